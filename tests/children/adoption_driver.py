"""Drives a run from whatever was left of it to its end, or until it is killed.

It reads an order from stdin, forks a driver that executes it, prints how the driver ended, and
waits for the next order. Forking is faster than a new Python process for each kill.
"""

import gc
import os
import select
import signal
import sys
import traceback
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import anyio
import msgspec
from msgspec import Struct

from steadyrun.app.runtime import open_runtime
from steadyrun.config import load
from steadyrun.dialect import Verdict
from steadyrun.drivers import keeper
from steadyrun.lib.task_group import task_group
from steadyrun.library import RunHandle, Steadyrun
from steadyrun.model.event import ApprovalRequested, FollowupOffered, StoredEvent, TextFinal
from steadyrun.model.ids import RunId
from steadyrun.runtime.direct_runs import DirectRuns
from steadyrun.store import MaintainedStore, Store, follow
from tests.children.adoption_steps import Steps, WatchedStore, watch_processes

PATIENCE_SECONDS = 30.0
GATES = ("first", "second")
_LOOK_SECONDS = 0.002


class Order(Struct, frozen=True):
    """The run to drive, and when to exit: at a step by name or number, or after some seconds."""

    home: str
    story: str
    step: str | None = None
    number: int | None = None
    seconds: float | None = None


class Outcome(Struct, frozen=True):
    """How a driver ended: `steps` are those it took, unless it was killed."""

    signal: int | None
    problem: str = ""
    steps: int = 0


class RunPlan(Struct, frozen=True):
    """The prompt of a run, and what its caller does at each text.

    `steers` are messages to offer when a text is seen; when one is offered, its gate opens.
    """

    provider: str
    prompt: str
    steers: dict[str, str] = {}
    cancels: bool = False


def stories(place: Path) -> dict[str, RunPlan]:
    """All stories; `place` is where their gates are."""
    first, second = (str(place / gate) for gate in GATES)
    whole = [
        {"text": "one"},
        {"until": first},
        {"text": "two"},
        {"approval": {"name": "Write", "output": "written"}},
        {"text": "three"},
        {"until": second},
    ]
    own = [{"self_turn": {"steps": [{"text": "five"}]}}, {"text": "four"}]
    return {
        "whole": RunPlan("scripted", _script(*whole), {"one": "extra", "three": _script(*own)}),
        "cancelled": RunPlan(
            "scripted", _script({"text": "one"}, "hang"), {"one": "extra"}, cancels=True
        ),
        "crashed": RunPlan(
            "scripted",
            _script(
                {"text": "one"},
                {"tool": {"name": "Bash", "leave_open": True}},
                {"text": "two"},
                {"crash": 3},
            ),
        ),
        "busy": RunPlan(
            "scripted",
            _script({"text": "one"}, {"background": 60}, {"until": first}, {"text": "two"}),
        ),
        "afterthought": RunPlan(
            "scripted",
            _script(
                {"self_turn": {"steps": [{"wait": 0.5}, {"text": "two"}]}},
                {"text": "one"},
            ),
        ),
        "busy shell": RunPlan(
            "shell", f"sh -c 'until test -e {first}; do sleep 0.01; done; echo two'"
        ),
        "shell": RunPlan("shell", "sh -c 'echo one; echo two; echo three >&2'"),
    }


def _script(*steps: object) -> str:
    return "script:" + msgspec.json.encode(steps).decode()


async def drive(order: Order, steps: Steps) -> None:
    """Continue the run of this home, or start one if there is none, and drive it to its end."""
    home = Path(order.home)
    place = home.parent
    story = stories(place)[order.story]
    environ = {"PATH": "/usr/bin:/bin", "HOME": str(place)}
    config = load(home=home, cwd=place, environ=environ)
    async with (
        open_runtime(config, kind="test", machine="here") as around,
        task_group() as tasks,
    ):
        store: MaintainedStore = WatchedStore(around.store, steps)
        holding = DirectRuns(replace(around, store=store), tasks)
        await holding.adopt_all()
        await Caller(Steadyrun(holding), store, story, place).play()
        tasks.cancel_scope.cancel()


class Caller:
    """The program that wants the run; started again, it goes on where the last one was killed."""

    def __init__(self, library: Steadyrun, store: Store, story: RunPlan, place: Path) -> None:
        self._library, self._store, self._story, self._place = library, store, story, place

    async def play(self) -> None:
        if not await self._store.items(include_settled=True):
            story = self._story
            await self._library.start(story.prompt, provider=story.provider, cwd=self._place)
        [agent] = {item.agent for item in await self._store.items(include_settled=True)}
        async with task_group() as tasks:
            tasks.start_soon(self._answer, agent)
            with self._store.hints.watch(agent) as watch:
                while (await self._store.lane(agent)).status == "held":
                    await watch.wait()
            tasks.cancel_scope.cancel()

    async def _answer(self, agent: str) -> None:
        async with task_group() as tasks:
            async for seen in follow(self._store, agent=agent):  # type: ignore[arg-type]
                tasks.start_soon(self._react, seen)

    async def _react(self, seen: StoredEvent) -> None:
        match seen.event:
            case TextFinal(text) if text in self._story.steers:
                await self._until_it_waits()
                await self._steer(seen, self._story.steers[text])
            case FollowupOffered(_, text):
                await self._offered(seen, text)
            case ApprovalRequested(approval):
                await self._with_run(seen, lambda run: run.decide(approval, Verdict(True)))
            case _:
                pass

    async def _until_it_waits(self) -> None:
        """What is offered between two steps would be taken in before the next one begins."""
        for process in await self._store.processes():
            while any(map(_is_busy, keeper.find_marked(process.id))):  # noqa: ASYNC110 (no notification)
                await anyio.sleep(_LOOK_SECONDS)

    async def _steer(self, seen: StoredEvent, text: str) -> None:
        items = await self._store.items(include_settled=True)
        if text not in {item.text for item in items}:
            await self._with_run(seen, lambda run: run.steer(text))

    async def _offered(self, seen: StoredEvent, text: str) -> None:
        if self._story.cancels:
            await self._with_run(seen, lambda run: run.cancel("enough"))
        else:
            gate = GATES[list(self._story.steers.values()).index(text)]
            await anyio.Path(self._place / gate).touch()

    async def _with_run(
        self, seen: StoredEvent, do: Callable[[RunHandle], Awaitable[object]]
    ) -> None:
        """A caller acts on what it sees only while there is a run to act on."""
        assert seen.run
        if not (await self._store.run(RunId(seen.run))).is_terminal:
            await do(await self._library.run(seen.run))


def _is_busy(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "S"
    except OSError:
        return False


def execute_order(order: Order) -> Outcome:
    """Execute the order in a child process."""
    telling, told = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(telling)
        _be_driver(order, told)
    os.close(told)
    is_over = _wait(pid, order.seconds if order.seconds is not None else PATIENCE_SECONDS)
    if not is_over:
        os.kill(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    said = os.read(telling, 1 << 16)
    os.close(telling)
    if os.WIFSIGNALED(status) and (order.seconds is not None or is_over):
        return Outcome(os.WTERMSIG(status))
    if not said:
        return Outcome(None, problem="it did not end")
    return msgspec.json.decode(said, type=Outcome)


def _wait(pid: int, seconds: float) -> bool:
    pidfd = os.pidfd_open(pid)
    try:
        return bool(select.select([pidfd], [], [], seconds)[0])
    finally:
        os.close(pidfd)


def _be_driver(order: Order, told: int) -> None:
    steps, problem = Steps(order.step, order.number), ""
    try:
        watch_processes(steps)
        anyio.run(_drive_in_time, order, steps)
    except BaseException:  # noqa: BLE001 (whatever it is, the test must see it)
        problem = traceback.format_exc()
    os.write(told, msgspec.json.encode(Outcome(None, problem[-8000:], steps.passed)))
    os._exit(0)


async def _drive_in_time(order: Order, steps: Steps) -> None:
    with anyio.fail_after(PATIENCE_SECONDS - 5):
        await drive(order, steps)


def main() -> None:
    gc.freeze()  # A collection would touch, and so copy, all that is shared with the forked.
    for line in sys.stdin.buffer:
        outcome = execute_order(msgspec.json.decode(line, type=Order))
        os.write(1, msgspec.json.encode(outcome) + b"\n")


if __name__ == "__main__":
    main()
