"""Calls inside the runtime go down: one message is traced through a daemon, cold and warm.

An owner calls what it owns. What it owns reports back in one way only: it calls the one callback
that it was given, with a value. Those callbacks are named here; every other call back up the graph
fails the test.
"""

import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import anyio
import pytest

from steadyrun.model.item import Message
from tests.support.daemon_harness import running_daemon, say

ROOM = "steadyrun.runtime."
# The functions that receive the values of lower modules: `on_update` of a process, `on_change` of a
# worker.
CALLBACKS = frozenset(
    {
        ("agent.worker", "AgentWorker.handle_update"),
        ("dispatcher", "Dispatcher.handle_change"),
        ("direct_runs", "DirectRuns.handle_change"),
    }
)
MOST_IN_A_COMPONENT = 2

Graph = dict[str, set[str]]


class CallTrace:
    """The calls between modules of the runtime, in every task and thread."""

    def __init__(self) -> None:
        self.is_on = False
        self.calls: Counter[tuple[str, str]] = Counter()
        self.modules: set[str] = set()

    def record(self, frame: FrameType, event: str, _: Any) -> None:
        if event != "call" or not self.is_on:
            return
        callee = _module_of(frame)
        if callee is None or not callee.startswith(ROOM) or frame.f_code.co_name == "<module>":
            return
        callee = callee.removeprefix(ROOM)
        self.modules.add(callee)
        caller = _caller_of(frame)
        if caller is None or not caller.startswith(ROOM) or caller.removeprefix(ROOM) == callee:
            return
        if (callee, frame.f_code.co_qualname) not in CALLBACKS:
            self.calls[caller.removeprefix(ROOM), callee] += 1

    def graph(self) -> Graph:
        graph: Graph = {module: set() for module in self.modules}
        for caller, callee in self.calls:
            graph[caller].add(callee)
        return graph


def _module_of(frame: FrameType) -> str | None:
    name = frame.f_globals.get("__name__")
    return name if isinstance(name, str) and name.startswith("steadyrun.") else None


def _caller_of(frame: FrameType) -> str | None:
    """Find the nearest calling module of steadyrun. Library frames in between are skipped."""
    above = frame.f_back
    while above is not None:
        found = _module_of(above)
        if found is not None:
            return found
        above = above.f_back
    return None


@contextmanager
def _profiling(trace: CallTrace) -> Iterator[None]:
    """Observe this thread, and every thread that it starts while the block runs."""
    before = sys.getprofile()
    threading.setprofile(trace.record)
    sys.setprofile(trace.record)
    try:
        yield
    finally:
        sys.setprofile(before)
        threading.setprofile(before)


def _reachable(graph: Graph, start: str) -> set[str]:
    found, waiting = set[str](), [start]
    while waiting:
        for callee in graph[waiting.pop()] - found:
            found.add(callee)
            waiting.append(callee)
    return found


def _components(graph: Graph) -> list[list[str]]:
    """The strongly connected components of more than one module, the largest first."""
    reach = {module: _reachable(graph, module) for module in graph}
    found = {
        tuple(sorted(other for other in reach[module] if module in reach[other]))
        for module in graph
        if module in reach[module]
    }
    return sorted(map(list, found), key=len, reverse=True)


def _check(trace: CallTrace) -> None:
    graph = trace.graph()
    pairs = sorted(
        (one, two) for one in graph for two in graph[one] if one < two and one in graph[two]
    )
    components = _components(graph)
    edges = sum(map(len, graph.values()))
    summary = (
        f"{len(graph)} modules, {sum(trace.calls.values())} calls, {edges} edges; "
        f"two-way pairs: {pairs}; components: {components}"
    )
    assert trace.calls, "nothing was traced"
    assert not pairs, summary
    assert all(len(each) <= MOST_IN_A_COMPONENT for each in components), summary


async def _trace_one_message(place: Path, *, is_warm: bool) -> CallTrace:
    trace = CallTrace()
    with _profiling(trace):
        async with running_daemon(place) as harness:
            ada = await harness.add_agent("ada")
            if is_warm:
                await harness.send_and_wait(ada, say("before"))
                await harness.wait_for_lane(ada, "warm")
            trace.is_on = True
            accepted = await harness.daemon.accept(Message(ada, say("hello")))
            await harness.wait_until_settled(accepted.item.id)
            await harness.wait_for_lane(ada, "warm")
            trace.is_on = False
    return trace


@pytest.mark.parametrize("is_warm", [False, True], ids=["cold", "warm"])
def test_calls_inside_the_runtime_go_down(tmp_path: Path, is_warm: bool) -> None:
    _check(anyio.run(partial(_trace_one_message, tmp_path, is_warm=is_warm)))
