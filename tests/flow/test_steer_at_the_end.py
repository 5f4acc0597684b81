"""Steering at the very end of a run reports whether the message was absorbed."""

from datetime import UTC, datetime
from pathlib import Path

import anyio

import steadyrun
from steadyrun.config import load
from steadyrun.dialect import Refused
from steadyrun.lib.notifier import Waiter
from steadyrun.library import Offered
from steadyrun.model.agent import Agent
from steadyrun.model.batch import Batch
from steadyrun.model.event import Emitted, FollowupOffered, make_place
from steadyrun.model.ids import AgentId, Ids, ItemId, ProcessId
from steadyrun.model.item import Message
from steadyrun.model.process import Process
from steadyrun.model.run import Created, Finished, Launched
from steadyrun.stores.sqlite import SqliteStore

PATIENCE_SECONDS = 20.0
WRONG_SECONDS = 0.5
NOW = datetime(2026, 1, 1, tzinfo=UTC)
ADA = AgentId("agt_ada")


async def _until_cancelled(store: SqliteStore, item: ItemId, watch: Waiter) -> None:
    """Give the caller of `steer` the time to take the message back, which must not happen."""
    with anyio.move_on_after(WRONG_SECONDS):
        while not (await store.item(item)).cancel_requested:
            await watch.wait()


def test_message_offered_at_the_end_of_a_run_is_not_cancelled_by_steer(tmp_path: Path) -> None:
    """The holder has taken the message, the run ends, and only then its offer is recorded."""
    environ = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path)}
    config = load(home=tmp_path / "home", cwd=tmp_path, environ=environ)
    answers: list[Offered | Refused] = []

    async def main() -> tuple[ItemId, bool]:
        store = await SqliteStore.open(config.locations.home)
        holder, run = (await store.join("test")).id, Ids(lambda: NOW).make_run()
        await store.add_agent(Agent(ADA, "ada", ("scripted",), str(tmp_path)))
        await store.accept(Message(ADA, "work"))
        [started] = await store.start(
            holder, lambda _, item: Created(run, ADA, item.id, "scripted", NOW), agent=ADA
        )
        claim = started.claim
        process = Process(ProcessId("prc_1"), ADA, "scripted", "here", "nowhere", NOW)
        await store.open_process(claim, process)
        await store.change(claim, run, Launched(NOW, process.id))

        async def steer() -> None:
            answers.append(await handle.steer("more"))

        with anyio.fail_after(PATIENCE_SECONDS):
            async with steadyrun.open(config) as library, anyio.create_task_group() as tasks:
                handle = await library.run(run)
                tasks.start_soon(steer)
                with store.hints.watch(ADA) as watch:
                    while not (taken := await store.offer_followups(claim)):
                        await watch.wait()
                    [item] = taken
                    await store.change(claim, run, Finished(NOW, "completed"))
                    await _until_cancelled(store, item.id, watch)
                offered = FollowupOffered(item.id, item.text)
                emitted = Emitted(make_place("s", 1), 0, NOW, offered)
                await store.append(claim, Batch(process.id, None, 0, 0, (emitted,)))
        try:
            return item.id, (await store.item(item.id)).cancel_requested
        finally:
            await store.leave(holder)
            await store.close()

    item, is_cancelled = anyio.run(main)

    assert answers == [Offered(item)]
    assert not is_cancelled
