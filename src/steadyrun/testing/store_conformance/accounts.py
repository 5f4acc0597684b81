"""Promises about accounts: what a provider says to one of them holds for no other. Each process
knows its own present ones; a run and a process keep the one they were begun with."""

from collections.abc import Callable
from datetime import datetime, timedelta

from steadyrun.model.agent import Agent
from steadyrun.model.event import ErrorFact, GateClosed, GateOpened
from steadyrun.model.gate import Closed, Gate, Limited, Opened, Suspected, compute_gate_state
from steadyrun.model.item import Item
from steadyrun.model.run import Created, Finished
from steadyrun.store import Started, Store
from steadyrun.testing.store_conformance.fixtures import (
    Scene,
    claim_lanes,
    set_scene,
)
from steadyrun.testing.store_conformance.harness import StoreHarness

MINUTE = timedelta(minutes=1)
HOME, WORK = {"claude": "home"}, {"claude": "work"}


async def check_a_gate_is_told_with_its_account(harness: StoreHarness) -> None:
    store, until = await harness.open(accounts=WORK), harness.clock.now() + MINUTE

    await store.update_gate("claude", Closed(until, "limit"))
    await store.update_gate("claude", Opened())

    told = [each.event for each in await store.events()]
    assert told == [GateClosed("claude", until, "limit", 0, "work"), GateOpened("claude", "work")]


async def check_the_present_account_is_told(harness: StoreHarness) -> None:
    """A provider that is not named has that of the machine's own login."""
    home, work = await harness.open(accounts=HOME), await harness.open(accounts=WORK)
    closed = Closed(harness.clock.now() + MINUTE, "limit")

    told = [
        await home.update_gate("claude", closed),
        await work.update_gate("claude", Suspected(None, "asked to wait")),
        await work.update_gate("codex", closed),
    ]
    by_name = await work.update_gate("claude", closed, account="home")

    assert [gate.account for gate in told] == ["home", "work", ""]
    assert by_name.account == "home"
    assert await _states(harness, home) == {("claude", "home"): "closed", ("codex", ""): "closed"}
    assert await _states(harness, work) == {("claude", "work"): "suspect", ("codex", ""): "closed"}
    every = {("claude", "home"): "closed", **await _states(harness, work)}
    assert await _states(harness, home, include_others=True) == every


async def check_another_account_is_neither_closed_nor_opened(harness: StoreHarness) -> None:
    home, work = await harness.open(accounts=HOME), await harness.open(accounts=WORK)
    await home.update_gate("claude", Closed(None, "by hand"))
    before = await home.gates()

    await work.update_gate("claude", Opened())
    assert await home.gates() == before
    await work.update_gate("claude", Closed(None, "by hand"))
    await home.update_gate("claude", Opened())

    assert await _states(harness, home) == {("claude", "home"): "open"}
    assert await _states(harness, work) == {("claude", "work"): "held"}


async def check_a_new_account_does_not_wait_for_the_old_one(harness: StoreHarness) -> None:
    """The gate of the old account is unchanged when the daemon uses that account again."""
    home, work = await harness.open(accounts=HOME), await harness.open(accounts=WORK)
    scene = await set_scene(harness, store=home)
    await scene.send()
    [limited] = await _started(scene)
    until = harness.clock.now() + MINUTE
    await _limit(scene, limited, until)
    assert await _started(scene) == []
    assert await claim_lanes(home, scene.holder) == []

    [started] = await _started(scene, work)
    await scene.finish(started.claim)
    await scene.send()

    assert (limited.run.account, started.run.account) == ("home", "work")
    assert await work.gates() == []
    [gate] = await home.gates()
    assert (gate.is_closed, gate.until, gate.run) == (True, until, limited.run.id)
    assert await _started(scene) == []
    harness.clock.advance(MINUTE)
    [probe] = await _started(scene)
    assert probe.is_probe


async def check_a_run_ends_on_the_account_it_was_begun_with(harness: StoreHarness) -> None:
    """The account stays the same if another daemon, with another account, finishes the run."""
    home, work = await harness.open(accounts=HOME), await harness.open(accounts=WORK)
    scene = await set_scene(harness, store=home)
    await scene.send()
    [started] = await _started(scene)
    again = Created(started.run.id, scene.agent, None, "claude", harness.clock.now())
    assert (await work.change(started.claim, started.run.id, again)).account == "home"

    await _limit(scene, started, harness.clock.now() + MINUTE, work)

    assert await work.gates() == []
    assert await _states(harness, home) == {("claude", "home"): "closed"}
    assert (await work.run(started.run.id)).account == "home"


async def check_a_run_may_be_begun_on_a_known_account(harness: StoreHarness) -> None:
    """That of a process which was launched with another one, and has begun a turn by itself."""
    scene = await set_scene(harness, store=await harness.open(accounts=WORK))
    await scene.send()
    claim = await scene.claim(account="home")

    run = await scene.begin(claim)
    await scene.finish(claim, "rate_limited")

    assert (await scene.store.run(run)).account == "home"
    assert await scene.store.gates() == []
    assert await _states(harness, scene.store, include_others=True) == {
        ("claude", "home"): "closed"
    }


async def check_a_probe_is_one_of_its_own_account(harness: StoreHarness) -> None:
    """A gate that is ready neither takes a run of another account nor is opened by its answer; nor
    does it make those wait for each other."""
    home, work = await harness.open(accounts=HOME), await harness.open(accounts=WORK)
    scene = await set_scene(harness, store=home)
    others = [await set_scene(harness, name, store=home) for name in ("bo", "cy")]
    for each in (scene, *others):
        await each.send()
    await home.update_gate("claude", Closed(harness.clock.now() + MINUTE, "limit"))
    harness.clock.advance(MINUTE)
    before = await home.gates()

    elsewhere = await _started(scene, work, limit=2)

    assert [each.is_probe for each in elsewhere] == [False, False]
    await scene.finish(elsewhere[0].claim)
    assert await home.gates() == before
    [probe] = await _started(scene)
    assert (await home.gates())[0].probe == probe.run.id
    await scene.finish(elsewhere[1].claim)
    assert (await home.gates())[0].probe == probe.run.id
    await scene.finish(probe.claim)
    assert await home.gates() == [Gate("claude", "home")]


async def check_a_chain_goes_past_the_present_account_only(harness: StoreHarness) -> None:
    accounts = {**WORK, "codex": "shared"}
    store = await harness.open(accounts=accounts)
    scene = await set_scene(harness, store=store, fallback=["codex"])
    closed = Closed(harness.clock.now() + MINUTE, "limit")
    for provider, account in (("claude", "home"), ("claude", ""), ("codex", "")):
        await store.update_gate(provider, closed, account=account)
    await scene.send()
    await scene.send()

    [first] = await _started(scene)
    await _limit(scene, first, harness.clock.now() + MINUTE)
    [second] = await _started(scene)

    assert (first.run.provider, first.run.account) == ("claude", "work")
    assert (second.run.provider, second.run.account) == ("codex", "shared")


async def check_what_an_account_was_refused_is_not_forgotten_by_others(
    harness: StoreHarness,
) -> None:
    """News by name, as a daemon tells it that begins: of every account that is known."""
    work, now = await harness.open(accounts=WORK), harness.clock.now()
    run = harness.ids.make_run()
    await work.update_gate("claude", Limited(run, now, now + MINUTE, "limit"), account="home")

    [gate] = await work.gates(include_others=True)

    assert (gate.account, gate.run, gate.until) == ("home", run, now + MINUTE)


async def _limit(
    scene: Scene, started: Started, until: datetime, store: Store | None = None
) -> None:
    fact = ErrorFact("rate_limited", "too much", retry_at=until)
    end = Finished(scene.harness.clock.now(), "rate_limited", error=fact)
    await (store or scene.store).settle(started.claim, end)


async def _started(scene: Scene, store: Store | None = None, limit: int = 5) -> list[Started]:
    return await (store or scene.store).start(scene.holder, _opened(scene.harness), limit)


def _opened(harness: StoreHarness) -> Callable[[Agent, Item], Created]:
    def opened(agent: Agent, item: Item) -> Created:
        now = harness.clock.now()
        return Created(harness.ids.make_run(), agent.id, item.id, agent.provider, now)

    return opened


async def _states(
    harness: StoreHarness, store: Store, *, include_others: bool = False
) -> dict[tuple[str, str], str]:
    """How the gates are, in their order."""
    now, found = harness.clock.now(), await store.gates(include_others=include_others)
    states = {(gate.provider, gate.account): compute_gate_state(gate, now) for gate in found}
    assert list(states) == sorted(states)
    return dict(states)
