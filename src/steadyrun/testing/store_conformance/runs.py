"""Promises about runs, processes, sessions, usage, and about secrets in any of them."""

from datetime import timedelta, timezone

import msgspec

from steadyrun.errors import ChangeRefused, NotFound
from steadyrun.model.event import Diagnostic, ErrorFact, TextFinal, ToolCompleted
from steadyrun.model.process import Checkpoint, Process
from steadyrun.model.run import Created, Finished, Launched, Run, Touched
from steadyrun.model.token_shapes import REDACTED
from steadyrun.model.usage import Cost, Usage, UsageSum, add_up
from steadyrun.testing.store_conformance.fixtures import (
    Scene,
    expect_refused,
    read_everything,
    read_process,
    set_scene,
    set_working,
)
from steadyrun.testing.store_conformance.harness import StoreHarness


async def check_a_run_is_stored_with_all_its_fields(harness: StoreHarness) -> None:
    scene = await set_scene(harness)
    await scene.send()
    claim = await scene.claim_next(model="opus", allowed_tools=("Read",), metadata={"a": {"b": 1}})
    run = await scene.begin(claim)
    process = await scene.open_process(claim)
    harness.clock.advance(timedelta(microseconds=1_234_567))
    now = harness.clock.now()
    await scene.store.change(claim, run, Launched(now, process, now, {"a": {"c": [2, None]}}))
    await scene.store.change(claim, run, Touched(now, Usage(1), None, "tok"))
    error = ErrorFact("crashed", "it broke", "try again", retryable=True)

    after = await scene.store.change(
        claim, run,
        Finished(now + timedelta(seconds=1), "failed", "hang", "half", Usage(1, 2, 3, 4),
                 Cost(0.25, "known"), None, 137, error, Diagnostic(137, "last words"), now),
    )  # fmt: skip

    found = await scene.store.run(run)
    assert found == after
    assert (found.status, found.stop_reason, found.model) == ("failed", "hang", "opus")
    assert (found.allowed_tools, found.metadata) == (("Read",), {"a": {"b": 1, "c": [2, None]}})
    assert (found.process, found.resume_token, found.exit_code) == (process, "tok", 137)
    assert (found.usage, found.cost) == (Usage(1, 2, 3, 4), Cost(0.25, "known"))
    assert (found.error, found.diagnostic) == (error, Diagnostic(137, "last words"))
    assert (found.started_at, found.active_at, found.duration_ms) == (now, now, 1000)
    assert (await scene.store.item(claim.item.id)).run == run


async def check_a_run_is_bound_to_its_claims_item(harness: StoreHarness) -> None:
    scene = await set_scene(harness)
    first, second = await scene.send(), await scene.send()
    claim = await scene.claim_next()
    now, ids = harness.clock.now(), harness.ids
    await scene.store.change(claim, await scene.begin(claim), scene.make_end("failed"))

    for created in (
        Created(ids.make_run(), ids.make_agent(), first.id, "claude", now),
        Created(ids.make_run(), scene.agent, second.id, "claude", now),
        Created(ids.make_run(), scene.agent, None, "claude", now),
    ):
        await expect_refused(
            scene.store, ChangeRefused, scene.store.change(claim, created.id, created)
        )
    right = Created(ids.make_run(), scene.agent, first.id, "claude", now)
    await expect_refused(
        scene.store, ChangeRefused, scene.store.change(claim, ids.make_run(), right)
    )
    await scene.store.change(claim, right.id, right)
    another = Created(ids.make_run(), scene.agent, first.id, "claude", now)
    await expect_refused(scene.store, ChangeRefused, scene.store.change(claim, another.id, another))


async def check_a_claim_may_create_another_run_after_a_failed_one(harness: StoreHarness) -> None:
    scene = await set_scene(harness)
    item = await scene.send()
    claim = await scene.claim_next()
    first = await scene.begin(claim)
    await scene.store.change(claim, first, scene.make_end("failed"))

    second = await scene.create(claim)
    settled = await scene.finish(claim)

    assert (settled.id, settled.run, settled.status) == (item.id, second, "completed")
    assert [run.id for run in await scene.store.runs(scene.agent)] == [second, first]
    assert (await scene.store.run(first)).status == "failed"


async def check_a_change_of_an_unknown_run_is_refused(harness: StoreHarness) -> None:
    scene = await set_scene(harness)
    await scene.send()
    claim = await scene.claim_next()
    now = harness.clock.now()

    for change in (Launched(now), Touched(now), scene.make_end()):
        await expect_refused(
            scene.store, ChangeRefused, scene.store.change(claim, harness.ids.make_run(), change)
        )
    await scene.store.change(claim, await scene.begin(claim), scene.make_end("failed"))
    retried = await scene.store.retry(claim, spends=False)
    await expect_refused(scene.store, ChangeRefused, scene.store.settle(retried, scene.make_end()))


async def check_creating_a_run_again_only_adds_metadata(harness: StoreHarness) -> None:
    working = await set_working(harness)
    store, now = working.store, harness.clock.now()
    before = await store.run(working.run)
    again = Created(working.run, before.agent, before.item, "codex", now, metadata={"x": 1})

    after = await store.change(working.claim, working.run, again)

    assert after == msgspec.structs.replace(before, metadata={"x": 1})
    assert await store.run(working.run) == after


async def check_runs_are_paged_newest_first(harness: StoreHarness) -> None:
    scene = await set_scene(harness)
    whole: list[Run] = []
    for _ in range(5):
        whole.insert(0, await _finish_run(scene))

    assert await scene.store.runs() == whole
    for limit in (1, 2, 5, 9):
        page = paged = await scene.store.runs(scene.agent, limit=limit)
        while page and len(paged) <= len(whole):
            page = await scene.store.runs(scene.agent, before=page[-1].id, limit=limit)
            paged = paged + page
        assert paged == whole


async def check_a_process_is_open_until_closed(harness: StoreHarness) -> None:
    working = await set_working(harness)
    store, claim = working.store, working.claim
    opened = await read_process(store, working.process)
    assert opened == Process(
        working.process,
        claim.agent,
        "claude",
        "here",
        "/keepers/1",
        opened.opened_at,
        seal="seal-1",
        account="work",
    )
    assert await store.processes() == [opened]
    harness.clock.advance(timedelta(seconds=1))

    await store.close_process(claim, working.process)

    assert (await read_process(store, working.process)).closed_at == harness.clock.now()
    assert await store.processes() == []
    harness.clock.advance(timedelta(seconds=1))
    before = await read_everything(store), await read_process(store, working.process)
    await store.close_process(claim, working.process)
    assert (await read_everything(store), await read_process(store, working.process)) == before


async def check_a_process_belongs_to_one_agent(harness: StoreHarness) -> None:
    working = await set_working(harness)
    store, claim = working.store, working.claim
    other = await set_working(harness, "bo", store=store)
    mine = await read_process(store, working.process)

    await expect_refused(store, ChangeRefused, store.open_process(claim, mine))
    foreign = msgspec.structs.replace(mine, id=harness.ids.make_process(), agent=other.claim.agent)
    await expect_refused(store, ChangeRefused, store.open_process(claim, foreign))
    for process in (other.process, harness.ids.make_process()):
        await expect_refused(store, NotFound, store.close_process(claim, process))
    assert [each.id for each in await store.processes()] == [working.process, other.process]


async def check_saved_state_moves_only_with_a_checkpoint(harness: StoreHarness) -> None:
    working = await set_working(harness)
    store, claim = working.store, working.claim
    await store.append(claim, working.make_batch(0, 10, checkpoint=Checkpoint(b"one", 1)))

    await store.append(claim, working.make_batch(10, 20))
    process = await read_process(store, working.process)
    assert process.saved is not None
    assert (process.offset, process.saved.offset, process.saved.state) == (20, 10, b"one")

    await store.append(claim, working.make_batch(20, 30, checkpoint=Checkpoint(b"", 2)))
    process = await read_process(store, working.process)
    assert process.saved is not None
    assert (process.saved.offset, process.saved.state, process.saved.sent) == (30, b"", 2)


async def check_a_session_keeps_its_earlier_tokens(harness: StoreHarness) -> None:
    working = await set_working(harness)
    store, claim, agent = working.store, working.claim, working.agent
    assert (await store.sessions(agent)).get("claude") is None
    tokens = [working.make_token(name) for name in ("one", "two", "three")]
    for n, token in enumerate(tokens):
        await store.append(claim, working.make_batch(n * 10, n * 10 + 10, token=token))

    session = (await store.sessions(agent)).get("claude")

    assert session is not None
    assert (session.provider, session.current) == ("claude", tokens[2])
    assert session.history == (tokens[0], tokens[1])
    assert (await store.sessions(agent)).get("codex") is None
    assert await store.sessions(provider="claude", token=tokens[2].token) == {"claude": session}
    assert await store.sessions(provider="claude", token=tokens[0].token) == {}
    assert await store.sessions(provider="codex", token=tokens[2].token) == {}


async def check_a_repeated_token_changes_nothing(harness: StoreHarness) -> None:
    working = await set_working(harness)
    store, claim, agent = working.store, working.claim, working.agent
    await store.append(claim, working.make_batch(0, 10, token=working.make_token("one")))
    before = (await store.sessions(agent)).get("claude")
    harness.clock.advance(timedelta(hours=1))

    await store.append(claim, working.make_batch(10, 20, token=working.make_token("one")))

    assert (await store.sessions(agent)).get("claude") == before


async def check_usage_is_grouped_by_agent_provider_and_model(harness: StoreHarness) -> None:
    scene = await set_scene(harness)
    name = (await scene.store.agent(scene.agent)).name
    await _finish_run(scene, usage=Usage(10, 5), cost=Cost(0.5, "known"))
    harness.clock.advance(timedelta(hours=1))
    since = harness.clock.now()
    await _finish_run(scene, usage=Usage(1), cost=Cost())
    second = UsageSum(1, 1, unknown_cost_runs=1, unknown_tokens=1)
    both = UsageSum(2, 11, 5, known_usd=0.5, unknown_cost_runs=1, unknown_tokens=1)

    assert await scene.store.usage("agent") == {name: both}
    assert await scene.store.usage("agent", since=since) == {name: second}
    assert await scene.store.usage("provider", agent=scene.agent) == {"claude": both}
    assert await scene.store.usage("model") == {"": both}
    assert await scene.store.usage("model", agent=harness.ids.make_agent()) == {}


async def check_a_day_of_usage_is_a_date_of_the_zone(harness: StoreHarness) -> None:
    scene = await set_scene(harness)
    first, last = harness.clock.now(), harness.clock.now() + timedelta(hours=36)
    await _finish_run(scene, usage=Usage(1), cost=Cost(0.5, "known"))
    harness.clock.advance(timedelta(hours=36))
    await _finish_run(scene, usage=Usage(2), cost=Cost(0.25, "known"))
    sums = [UsageSum(1, 1, known_usd=0.5), UsageSum(1, 2, known_usd=0.25)]

    for hours in (-12, 0, 14):
        zone = timezone(timedelta(hours=hours))
        dates = [at.astimezone(zone).date().isoformat() for at in (first, last)]
        assert await scene.store.usage("day", zone=zone) == dict(zip(dates, sums, strict=True))
        latest = await scene.store.usage("day", since=last, zone=zone)
        assert latest == {dates[1]: sums[1]}


async def check_usage_keeps_known_estimated_and_unknown_apart(harness: StoreHarness) -> None:
    scene = await set_scene(harness)
    start = harness.clock.now()
    for cost in (Cost(0.5, "known"), Cost(0.25, "known"), Cost(2.0, "estimated"), Cost()):
        await _finish_run(scene, usage=Usage(10, 5, None, 1), cost=cost)
        harness.clock.advance(timedelta(hours=1))
    await _finish_run(scene)

    total = await scene.store.usage("provider")

    assert total == {"claude": UsageSum(5, 40, 20, 0, 4, 0.75, 2.0, 2, 16)}
    assert await scene.store.usage("provider", agent=scene.agent) == total
    assert await scene.store.usage("provider", agent=harness.ids.make_agent()) == {}
    later = await scene.store.usage("provider", since=start + timedelta(hours=2))
    assert later["claude"].runs == 3


async def check_usage_is_counted_from_the_exact_time_on(harness: StoreHarness) -> None:
    scene = await set_scene(harness)
    harness.clock.advance(timedelta(seconds=1) - timedelta(milliseconds=2))
    first = await _finish_run(scene)
    harness.clock.advance(timedelta(microseconds=500_000))
    second = await _finish_run(scene)
    moment = timedelta(microseconds=1)

    for since, runs in [
        (None, 2),
        (first.created_at, 2),
        (first.created_at + moment, 1),
        (second.created_at, 1),
        (second.created_at + moment, 0),
    ]:
        assert add_up((await scene.store.usage("day", since=since)).values()).runs == runs


async def check_secrets_are_scrubbed_from_events_and_runs(harness: StoreHarness) -> None:
    scene, secret = await set_scene(harness), harness.secret.reveal()
    await scene.send()
    claim = await scene.claim_next(metadata={"env": {"KEY": secret}})
    run = await scene.begin(claim)
    working = await set_working(harness, "bo", store=scene.store)
    nested = msgspec.json.encode({"token": f"Bearer {secret}"}).decode()
    await scene.store.append(
        working.claim,
        working.make_batch(
            0, 10, working.make_event(5, 0, TextFinal(f"it is {secret}!")),
            working.make_event(10, 0, ToolCompleted("t", "Bash", {"c": [secret]}, nested)),
        ),
    )  # fmt: skip

    item = await scene.finish(
        claim, "completed", text=f"the key is {secret}",
        error=ErrorFact("x", secret),
    )  # fmt: skip

    assert item.reply == f"the key is {REDACTED}"
    found = await scene.store.run(run)
    assert found.text == f"the key is {REDACTED}"
    assert found.metadata == {"env": {"KEY": REDACTED}}
    text = (await scene.store.events(run=working.run))[0].event
    assert text == TextFinal(f"it is {REDACTED}!")
    seen = msgspec.json.encode(await read_everything(scene.store))
    for form in (secret.encode(), msgspec.json.encode(secret)[1:-1]):
        assert form not in seen


async def _finish_run(scene: Scene, *, usage: Usage | None = None, cost: Cost | None = None) -> Run:
    await scene.send()
    claim = await scene.claim_next()
    run = await scene.begin(claim)
    await scene.finish(claim, "completed", usage=usage, cost=cost)
    return await scene.store.run(run)
