"""A spent budget holds the items of an agent back and reports the reason."""

import json
import signal
from functools import partial
from pathlib import Path
from typing import Any

from steadyrun.app.operations import open_operations
from steadyrun.config import load
from steadyrun.lib.clock import SystemClock
from steadyrun.model import event as ev
from steadyrun.model.approval import Approval, ApprovalAnswer
from steadyrun.model.budget import Budget, BudgetRules, find_window_start
from steadyrun.model.ids import AgentId, ApprovalId
from steadyrun.model.item import Item
from steadyrun.model.policy import Policy
from steadyrun.operations.approvals import answer_approval
from steadyrun.stores.sqlite import SqliteStore
from tests.children.keeper_driver import eventually
from tests.support.cli_home import TIMEOUT_SECONDS, cli_home, end_daemon
from tests.support.commands import COMMAND, steadyrun
from tests.support.daemon_harness import HomeHarness, killable_daemon, running_daemon, say, script


def costs(usd: float | None, tokens: int = 100) -> dict[str, object]:
    return {"usage": {"input_tokens": tokens, "output_tokens": 0, "cost_usd": usd}}


def limited(**limits: float) -> dict[str, Any]:
    return {"policy": Policy(budget=Budget(**limits))}  # type: ignore[arg-type]


async def until_stopped(harness: HomeHarness, agent: AgentId) -> None:
    """A run was stopped, and its item is back in its place."""

    async def is_it() -> bool:
        lane = await harness.store.lane(agent)
        return lane.is_paused and lane.queued > 0 and lane.status != "held"

    await harness.wait_until(agent, is_it)


async def read_question(harness: HomeHarness, agent: AgentId) -> Approval:
    """The one thing that is asked about an agent."""
    [asked] = await harness.store.approvals(agent)
    assert asked.about == "budget"
    return asked


async def allow_more(
    harness: HomeHarness, agent: AgentId, **fields: Any
) -> list[tuple[str, str, float]]:
    """The limits after a user has allowed more."""
    answer = ApprovalAnswer(True, "eve", SystemClock().now(), **fields)
    async with open_operations(load(harness.place / "home")) as context:
        answered = await answer_approval(context, await read_question(harness, agent), answer)
    assert answered.answer
    return [(each.limit, each.unit, round(each.allowed, 6)) for each in answered.answer.extended]


def marks(reached: list[ev.BudgetReached]) -> list[tuple[str, str, int]]:
    return [(each.limit, each.unit, each.percent) for each in reached]


async def test_run_that_spends_the_day_budget_is_stopped_and_its_item_is_queued(
    tmp_path: Path,
) -> None:
    async with running_daemon(tmp_path) as harness:
        ada = await harness.add_agent("ada", **limited(day=1.0))
        first = await harness.send_and_wait(ada, script(costs(0.5), {"text": "half"}))
        loop = script(costs(0.35), costs(0.2), harness.gates.wait_step("never"), {"text": "no"})
        item = await harness.send(ada, loop)
        await until_stopped(harness, ada)

        reached = await harness.events_of(ada, ev.BudgetReached)
        run = (await harness.runs(ada))[-1]
        waiting = await harness.store.item(item)
        assert first.status == "completed"
        assert marks(reached) == [("day", "usd", 80), ("day", "usd", 100)]
        assert [round(each.spent, 2) for each in reached] == [0.85, 1.05]
        assert (run.status, run.stop_reason) == ("failed", "budget")
        assert run.error
        assert run.error.message == "the budget of its day is spent: 1.05 of 1.00 USD"
        # What it had told before it was stopped counts.
        assert run.cost.usd == 0.55
        assert (waiting.status, waiting.attempt, waiting.settled_at) == ("queued", 1, None)
        assert len(await harness.runs(ada)) == 2


async def test_allowed_budget_is_extended_by_its_limit(tmp_path: Path) -> None:
    async with running_daemon(tmp_path) as harness:
        ada = await harness.add_agent("ada", **limited(day=1.0, agent=50.0))
        await harness.send_and_wait(ada, script(costs(0.5), {"text": "half"}))
        item = await harness.send(
            ada, script(costs(0.6), harness.gates.wait_step("go"), {"text": "done"})
        )
        await until_stopped(harness, ada)
        harness.gates.open("go")
        extended = await allow_more(harness, ada)
        done = await harness.wait_until_settled(item)

        assert extended == [("day", "usd", 2.1)]
        assert (done.status, done.reply, done.attempt) == ("completed", "done", 2)
        reached = await harness.events_of(ada, ev.BudgetReached)
        assert marks(reached) == [("day", "usd", 100), ("day", "usd", 80)]
        assert await harness.store.approvals(ada) == []
        [resolved] = await harness.events_of(ada, ev.ApprovalResolved)
        assert (resolved.verdict, resolved.by) == ("allow", "eve")


async def test_run_that_spends_the_rest_of_a_budget_completes_and_the_next_waits(
    tmp_path: Path,
) -> None:
    async with running_daemon(tmp_path) as harness:
        ada = await harness.add_agent("ada", **limited(month_tokens=1000))
        all_of_it = {"usage": {"input_tokens": 1000}}
        done = await harness.send_and_wait(ada, script({"text": "done"}, all_of_it))
        item = await harness.send(ada, say("more"))

        assert done.status == "completed"
        assert (await harness.store.lane(ada)).is_paused
        assert (await harness.store.item(item)).status == "queued"
        asked = await read_question(harness, ada)
        assert asked.tool_input["limits"] == [
            {"limit": "month", "unit": "tokens", "spent": 1000, "allowed": 1000}
        ]
        # Its last word but one: its run had ended with it.
        *_, before_last, last = [each.event for each in await harness.events(ada)]
        assert isinstance(before_last, ev.ApprovalRequested)
        assert isinstance(last, ev.RunCompleted)


async def test_run_budget_applies_to_each_run(tmp_path: Path) -> None:
    async with running_daemon(tmp_path) as harness:
        ada = await harness.add_agent("ada", **limited(run_tokens=1000))
        for _ in range(3):
            done = await harness.send_and_wait(ada, script(costs(None, 700), {"text": "done"}))
            assert done.status == "completed"
        item = await harness.send(ada, script(costs(None, 1200), harness.gates.wait_step("go")))
        await until_stopped(harness, ada)
        assert len({run.process for run in await harness.runs(ada)}) == 1

        extended = await allow_more(harness, ada)
        await harness.wait_for_event(ada, ev.ApprovalRequested, 2)
        await until_stopped(harness, ada)

        # It had the whole limit again, and spent it again.
        assert extended == []
        assert (await harness.store.item(item)).attempt == 2
        assert [run.stop_reason for run in await harness.runs(ada)] == [None] * 3 + ["budget"] * 2


async def test_unknown_cost_counts_as_configured(tmp_path: Path) -> None:
    async def stopped(policy: str, place: Path) -> list[ev.BudgetReached]:
        config = f'[budgets]\nunknown = "{policy}"\nunknown_usd_per_million = 10.0'
        async with running_daemon(place, config=config) as harness:
            ada = await harness.add_agent("ada", **limited(day=1.0))
            await harness.send(
                ada, script(costs(None, 90_000), harness.gates.wait_step("a"), {"text": "a"})
            )
            await harness.wait_for_event(ada, ev.UsageUpdated)
            if policy == "refuse":
                await until_stopped(harness, ada)
            else:
                harness.gates.open("a")
                await harness.wait_for_text(ada, "a")
                await harness.wait_until_idle(ada)
            return await harness.events_of(ada, ev.BudgetReached)

    for policy in ("tokens", "refuse", "allow"):
        (tmp_path / policy).mkdir()

    [warned] = await stopped("tokens", tmp_path / "tokens")
    [refused] = await stopped("refuse", tmp_path / "refuse")
    allowed = await stopped("allow", tmp_path / "allow")

    assert (warned.percent, round(warned.spent, 6), warned.unknown_runs) == (80, 0.9, 1)
    assert (refused.percent, refused.unknown_runs) == (100, 1)
    assert allowed == []


async def test_next_daemon_repeats_no_budget_event_and_stops_at_the_same_limit(
    tmp_path: Path,
) -> None:
    async with killable_daemon(tmp_path) as (home, daemon):
        ada = await home.add_agent("ada", **limited(day=1.0))
        item = await home.send(
            ada,
            script(
                costs(0.85), home.gates.wait_step("more"), costs(0.05), costs(0.2),
                home.gates.wait_step("never"),
            ),
        )  # fmt: skip
        await daemon.wait_until_up()
        await home.wait_for_event(ada, ev.BudgetReached)
        daemon.kill()
        home.gates.open("more")
    async with running_daemon(tmp_path) as harness:
        await until_stopped(harness, ada)

        reached = await harness.events_of(ada, ev.BudgetReached)
        [run] = await harness.runs(ada)
        assert marks(reached) == [("day", "usd", 80), ("day", "usd", 100)]
        assert (run.stop_reason, round(run.cost.usd or 0, 2)) == ("budget", 1.1)
        assert (await harness.store.item(item)).status == "queued"


async def test_next_daemon_ends_a_run_over_budget_and_requests_one_approval(tmp_path: Path) -> None:
    async with killable_daemon(tmp_path) as (home, daemon):
        ada = await home.add_agent("ada", **limited(day=1.0))
        deaf = {"hang": {"ignore_interrupt": True}}
        item = await home.send(ada, script(costs(1.5), deaf))
        await daemon.wait_until_up()
        await home.wait_for_event(ada, ev.BudgetReached)
        daemon.kill()
        assert await home.store.approvals(ada) == []
    async with running_daemon(tmp_path, interrupt=0.2) as harness:
        await until_stopped(harness, ada)

        [run] = await harness.runs(ada)
        asked = await read_question(harness, ada)
        assert (run.status, run.stop_reason) == ("failed", "budget")
        assert (asked.run, (await harness.store.item(item)).status) == (run.id, "queued")
        assert len(await harness.events_of(ada, ev.ApprovalRequested)) == 1


async def test_budget_extended_without_a_daemon_is_used_by_the_next(
    tmp_path: Path,
) -> None:
    async with killable_daemon(tmp_path) as (home, daemon):
        ada = await home.add_agent("ada", **limited(day_tokens=1500))
        await home.send(ada, script(costs(0.1, 1000), {"text": "first"}))
        loop = script(costs(0.1, 600), home.gates.wait_step("go"), {"text": "done"})
        # As a follow-up it could be absorbed by the first turn.
        item = await home.send(ada, loop, followup="queue")
        await daemon.wait_until_up()
        await until_stopped(home, ada)
        daemon.kill()
        home.gates.open("go")
        assert await allow_more(home, ada) == [("day", "tokens", 3100.0)]
    async with running_daemon(tmp_path) as harness:
        done = await harness.wait_until_settled(item)
        assert (done.status, done.attempt) == ("completed", 2)


def test_denied_budget_cancels_the_item_and_the_agent_stays_paused(tmp_path: Path) -> None:
    with cli_home(tmp_path) as home:
        home.add_agent("ada", budget="run=1")
        home.up()
        item = home.send("ada", costs(2.0), {"until": str(tmp_path / "never")})
        other = home.send("ada", {"text": "later"})
        [asked] = eventually(home.list_approvals, "a question")
        denied = home.run("deny", asked["id"], "--reason", "too dear")
        again = home.run("approve", asked["id"])

        assert denied.returncode == 0, denied.stderr
        assert again.returncode == 5
        assert home.item(item).status == "cancelled"
        error = home.item(item).error
        assert error
        assert error.message == "too dear"
        assert home.item(other).status == "queued"
        assert home.list_approvals() == []
        # Now it is a pause like any other.
        assert home.run("resume", "ada").stdout == "resumed ada\n"
        eventually(lambda: home.item(other).status == "completed", "the other one")


def test_only_the_first_of_two_answers_at_once_has_an_effect(tmp_path: Path) -> None:
    """Without a daemon, so that two processes answer."""
    names = [f"agent{number}" for number in range(6)]
    with cli_home(tmp_path) as home:
        for name in names:
            home.add_agent(name, budget="day=1")
        daemon = home.up()
        for name in names:
            home.send(name, costs(2.0), {"until": str(tmp_path / "never")})
        eventually(lambda: len(home.list_approvals()) == len(names), "all questions")
        end_daemon(daemon, signal.SIGTERM)
        for asked in home.list_approvals():
            answers = [
                home.start("approve", asked["id"]),
                home.start("deny", asked["id"], "--reason", "too dear"),
            ]
            codes = [answer.wait(TIMEOUT_SECONDS) for answer in answers]
            assert sorted(codes) == [0, 5], codes
            is_allowed, extended, item = home.read(partial(read_effects, asked["id"]))
            assert is_allowed == (codes[0] == 0)
            assert (extended, item.status) == (
                (b"3.0", "queued") if is_allowed else (None, "cancelled")
            )


async def read_effects(approval: str, store: SqliteStore) -> tuple[bool, bytes | None, Item]:
    """Whether more was allowed, the stored limit of the day, and the item."""
    found = await store.approval(ApprovalId(approval))
    assert found.answer
    item = (await store.run(found.run)).item
    assert item
    since = find_window_start("day", found.asked_at, BudgetRules().zone)
    assert since
    key = f"budget/{found.agent}/day.usd/{since.isoformat()}"
    return found.answer.is_allowed, await store.get(key), await store.item(item)


def test_agent_paused_by_a_user_stays_paused_when_its_budget_is_extended(tmp_path: Path) -> None:
    with cli_home(tmp_path) as home:
        home.add_agent("ada", budget="day=1,run=0.5")
        home.up()
        done = home.send("ada", costs(1.2), {"text": "done"})
        [asked] = eventually(home.list_approvals, "a question")
        waiting = home.send("ada", {"text": "later"})
        home.run("pause", "ada")
        approved = home.run("approve", asked["id"])
        shown = json.loads(home.run("agent", "show", "ada", "--json").stdout)

        # It was done, or stopped by its own limit: the limit of the day is why no run starts.
        assert "the budget of its day is spent: 1.20 of 1.00 USD" in asked["tool_input"]["why"]
        assert approved.returncode == 0
        assert (shown["state"], home.item(waiting).status) == ("paused", "queued")
        assert home.run("resume", "ada").stdout == "resumed ada\n"
        eventually(lambda: home.item(waiting).status == "completed", "the other one")
        assert home.item(done).is_settled


def test_process_of_a_run_cannot_answer_change_agents_or_stop_the_daemon(tmp_path: Path) -> None:
    with cli_home(tmp_path) as home:
        home.add_agent("ada", budget="day=1")
        for words in (
            "agent set ada --budget day=1000",
            "approve :1",
            "deny :1 --reason no",
            "down",
        ):
            tried = home.run("run", "--provider", "shell", "--json", f"{COMMAND} {words}")
            diagnostic = json.loads(tried.stdout)["diagnostic"]
            assert diagnostic["exit_code"] == 4, words
            assert "an agent cannot" in diagnostic["stderr_excerpt"]

        ada = json.loads(home.run("agent", "show", "ada", "--json").stdout)
        assert ada["budget"]["day"] == 1.0


def test_approver_can_move_an_agent_over_budget_to_another_provider(tmp_path: Path) -> None:
    with cli_home(tmp_path) as home:
        home.add_agent("ada", budget="day=1")
        home.up()
        home.send("ada", costs(2.0), {"until": str(tmp_path / "never")})
        [asked] = eventually(home.list_approvals, "a question")
        home.run("down")
        unable = home.run("approve", asked["id"], "--provider", "shell")
        unknown = home.run("approve", asked["id"], "--provider", "missing")
        still = home.list_approvals()
        switched = home.run("approve", asked["id"], "--provider", "codex", "--json")
        ada = json.loads(home.run("agent", "show", "ada", "--json").stdout)

        assert (unable.returncode, "shell cannot" in unable.stderr) == (2, True)
        assert (unknown.returncode, "missing" in unknown.stderr) == (2, True)
        assert still == [asked]
        answered = json.loads(switched.stdout)
        assert (answered["status"], answered["provider"]) == ("resolved", "codex")
        assert answered["extended"] == [{"limit": "day", "unit": "usd", "allowed": 3.0}]
        assert (ada["provider"], ada["fallback"], ada["state"]) == ("codex", ["scripted"], "idle")


def test_commands_show_the_spent_budget_and_approve_continues_the_agent(tmp_path: Path) -> None:
    with cli_home(tmp_path) as home:
        home.add_agent("ada", budget="day=1,run_tokens=5000")
        home.up()
        first = home.send("ada", costs(0.5), {"text": "half"})
        eventually(lambda: home.item(first).is_settled, "the end of the first item")
        item = home.send("ada", costs(0.6), {"until": str(tmp_path / "go")}, {"text": "done"})
        eventually(home.list_approvals, "an approval")
        assert home.run("send", "ada", "and more", "--wait", "--timeout", "500ms").returncode == 7
        status = json.loads(home.run("status", "--json").stdout)
        items = json.loads(home.run("inbox", "--json").stdout)["items"]
        listed, page = home.run("agents").stdout, home.run("agent", "show", "ada").stdout
        (tmp_path / "go").touch()
        [asked] = home.list_approvals()
        shown, refused = home.run("approvals").stdout, home.run("resume", "ada")
        all_of_them = home.run("resume", "--all")
        approved = home.run("approve", asked["id"])
        again = home.run("send", "ada", "say hello", "--wait")

        [agent] = status["agents"]
        why = "the budget of its day is spent: 1.10 of 1.00 USD"
        assert (agent["state"], agent["reason"]) == ("paused", why)
        assert {each["waiting"] for each in items} == {"budget"}
        assert why in listed
        assert why in page
        assert "day=1, run_tokens=5000" in page
        assert (asked["about"], asked["tool_input"]["why"]) == ("budget", why)
        assert f"{why}: continue?" in shown
        assert (refused.returncode, f"steadyrun approve {asked['id']}" in refused.stderr) == (
            5,
            True,
        )
        assert all_of_them.stdout == f"ada is paused: {why}\n"
        assert approved.stdout == (
            f"allowed: budget for ada ({asked['id']})\n"
            "ada may spend $2.10 now: its day limit is extended\n"
        )
        assert again.returncode == 0
        assert home.item(item).status == "completed"


def test_direct_run_over_budget_is_stopped_and_fails(tmp_path: Path) -> None:
    home = tmp_path / "home"
    loop = "script:" + json.dumps([costs(0.4), costs(0.6), {"until": str(tmp_path / "never")}])
    stopped = steadyrun(home, "run", "--provider", "scripted", "--max-cost", "1", "--json", loop)
    shell = steadyrun(home, "run", "--provider", "shell", "--max-cost", "1", "--json", "true")

    run = json.loads(stopped.stdout)
    assert stopped.returncode == 1
    assert (run["status"], run["stop_reason"], run["cost"]["usd"]) == ("failed", "budget", 1.0)
    assert run["error"]["code"] == "max_cost"
    assert json.loads(shell.stdout)["error"]["code"] == "ability_missing"


def test_invalid_budget_is_refused_by_name(tmp_path: Path) -> None:
    home = tmp_path / "home"
    (tmp_path / "ada").mkdir()
    add = ("agent", "add", "ada", "--home", str(tmp_path / "ada"), "--provider")
    for words, problem in (
        (("scripted", "--budget", "day=-1"), "day: expected a number of dollars above 0"),
        (("scripted", "--budget", "day=nan"), "day: expected a number of dollars above 0"),
        (("scripted", "--budget", "run_tokens=1.5"), "expected a whole number of tokens above 0"),
        (("scripted", "--budget", "week=1"), "found 'week'"),
        (("scripted", "--budget", "day=1,day=2"), "day is named twice"),
        (("shell", "--budget", "day=1"), "shell cannot"),
        (("scripted", "--fallback", "shell", "--budget", "day=1"), "shell cannot"),
    ):
        refused = steadyrun(home, *add, *words)
        assert refused.returncode == 2, refused.stderr
        assert problem in refused.stderr
