"""Promises about accounts: a limit of one account does not apply to another. Each process has its
own present accounts; a run and a process keep the account that they were started with."""

from datetime import datetime, timedelta

from steadyrun.model.event import ErrorFact, GateClosed, GateOpened
from steadyrun.model.gate import Closed, Gate, Limited, Opened, Suspected, compute_gate_state
from steadyrun.model.run import Created, Finished
from steadyrun.store import Started, Store
from steadyrun.testing.store_conformance.fixtures import Scene, set_scene
from steadyrun.testing.store_conformance.harness import StoreHarness

MINUTE = timedelta(minutes=1)
HOME, WORK = {"claude": "home"}, {"claude": "work"}


async def check_a_gate_event_has_its_account(harness: StoreHarness) -> None:
    store, until = await harness.open(accounts=WORK), harness.clock.now() + MINUTE

    await store.update_gate("claude", Closed(until, "limit"))
    await store.update_gate("claude", Opened())

    events = [each.event for each in await store.events()]
    assert events == [GateClosed("claude", until, "limit", 0, "work"), GateOpened("claude", "work")]


async def check_a_report_goes_to_the_present_account(harness: StoreHarness) -> None:
    """A provider that is not named uses the login of the machine."""
    home, work = await harness.open(accounts=HOME), await harness.open(accounts=WORK)
    closed = Closed(harness.clock.now() + MINUTE, "limit")

    reported = [
        await home.update_gate("claude", closed),
        await work.update_gate("claude", Suspected(None, "asked to wait")),
        await work.update_gate("codex", closed),
    ]
    by_name = await work.update_gate("claude", closed, account="home")

    assert [gate.account for gate in reported] == ["home", "work", ""]
    assert by_name.account == "home"
    assert await _read_states(harness, home) == {
        ("claude", "home"): "closed",
        ("codex", ""): "closed",
    }
    assert await _read_states(harness, work) == {
        ("claude", "work"): "suspect",
        ("codex", ""): "closed",
    }
    every = {("claude", "home"): "closed", **await _read_states(harness, work)}
    assert await _read_states(harness, home, include_others=True) == every


async def check_a_report_changes_no_other_account(harness: StoreHarness) -> None:
    home, work = await harness.open(accounts=HOME), await harness.open(accounts=WORK)
    await home.update_gate("claude", Closed(None, "by hand"))
    before = await home.gates()

    await work.update_gate("claude", Opened())
    assert await home.gates() == before
    await work.update_gate("claude", Closed(None, "by hand"))
    await home.update_gate("claude", Opened())

    assert await _read_states(harness, home) == {("claude", "home"): "open"}
    assert await _read_states(harness, work) == {("claude", "work"): "held"}


async def check_a_new_account_does_not_wait_for_the_old_one(harness: StoreHarness) -> None:
    """The gate of the old account is unchanged when the daemon uses that account again."""
    home, work = await harness.open(accounts=HOME), await harness.open(accounts=WORK)
    scene = await set_scene(harness, store=home)
    await scene.send()
    [limited] = await scene.start()
    until = harness.clock.now() + MINUTE
    await _limit(scene, limited, until)
    assert await scene.start() == []

    [started] = await scene.start(store=work)
    await scene.finish(started.claim)
    await scene.send()

    assert (limited.run.account, started.run.account) == ("home", "work")
    assert await work.gates() == []
    [gate] = await home.gates()
    assert (gate.is_closed, gate.until, gate.run) == (True, until, limited.run.id)
    assert await scene.start() == []
    harness.clock.advance(MINUTE)
    [probe] = await scene.start()
    assert probe.is_probe


async def check_a_run_keeps_the_account_of_its_start(harness: StoreHarness) -> None:
    """The account stays the same if another daemon, with another account, finishes the run."""
    home, work = await harness.open(accounts=HOME), await harness.open(accounts=WORK)
    scene = await set_scene(harness, store=home)
    await scene.send()
    [started] = await scene.start()
    again = Created(started.run.id, scene.agent, None, "claude", harness.clock.now())
    assert (await work.change(started.claim, started.run.id, again)).account == "home"

    await _limit(scene, started, harness.clock.now() + MINUTE, work)

    assert await work.gates() == []
    assert await _read_states(harness, home) == {("claude", "home"): "closed"}
    assert (await work.run(started.run.id)).account == "home"


async def check_a_run_may_name_its_account(harness: StoreHarness) -> None:
    """A process that was launched with another account may begin a turn by itself."""
    scene = await set_scene(harness, store=await harness.open(accounts=WORK))
    await scene.send()
    claim = await scene.claim_next(account="home")

    run = await scene.begin(claim)
    await scene.finish(claim, "rate_limited")

    assert (await scene.store.run(run)).account == "home"
    assert await scene.store.gates() == []
    assert await _read_states(harness, scene.store, include_others=True) == {
        ("claude", "home"): "closed"
    }


async def check_a_probe_belongs_to_one_account(harness: StoreHarness) -> None:
    """A run of another account is no probe, opens no gate, and does not wait for one."""
    home, work = await harness.open(accounts=HOME), await harness.open(accounts=WORK)
    scene = await set_scene(harness, store=home)
    others = [await set_scene(harness, name, store=home) for name in ("bo", "cy")]
    for each in (scene, *others):
        await each.send()
    await home.update_gate("claude", Closed(harness.clock.now() + MINUTE, "limit"))
    harness.clock.advance(MINUTE)
    before = await home.gates()

    elsewhere = await scene.start(2, store=work)

    assert [each.is_probe for each in elsewhere] == [False, False]
    await scene.finish(elsewhere[0].claim)
    assert await home.gates() == before
    [probe] = await scene.start()
    assert (await home.gates())[0].probe == probe.run.id
    await scene.finish(elsewhere[1].claim)
    assert (await home.gates())[0].probe == probe.run.id
    await scene.finish(probe.claim)
    assert await home.gates() == [Gate("claude", "home")]


async def check_a_chain_skips_closed_gates_of_the_present_account_only(
    harness: StoreHarness,
) -> None:
    accounts = {**WORK, "codex": "shared"}
    store = await harness.open(accounts=accounts)
    scene = await set_scene(harness, store=store, fallback=["codex"])
    closed = Closed(harness.clock.now() + MINUTE, "limit")
    for provider, account in (("claude", "home"), ("claude", ""), ("codex", "")):
        await store.update_gate(provider, closed, account=account)
    await scene.send()
    await scene.send()

    [first] = await scene.start()
    await _limit(scene, first, harness.clock.now() + MINUTE)
    [second] = await scene.start()

    assert (first.run.provider, first.run.account) == ("claude", "work")
    assert (second.run.provider, second.run.account) == ("codex", "shared")


async def check_a_limit_of_another_account_is_stored(
    harness: StoreHarness,
) -> None:
    """A daemon that starts reports to the gates of all stored accounts."""
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


async def _read_states(
    harness: StoreHarness, store: Store, *, include_others: bool = False
) -> dict[tuple[str, str], str]:
    """How the gates are, in their order."""
    now, found = harness.clock.now(), await store.gates(include_others=include_others)
    states = {(gate.provider, gate.account): compute_gate_state(gate, now) for gate in found}
    assert list(states) == sorted(states)
    return dict(states)
