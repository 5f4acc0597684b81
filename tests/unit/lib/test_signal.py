"""A notification wakes all waiting tasks; a task that was too late does not wait for it."""

import anyio
import anyio.lowlevel

from steadyrun.lib.signal import Signal


def test_notification_wakes_all_waiting_tasks() -> None:
    woken: list[int] = []

    async def wait(signal: Signal, number: int) -> None:
        await signal.wait()
        woken.append(number)

    async def main() -> None:
        signal = Signal()
        async with anyio.create_task_group() as tasks:
            for number in range(3):
                tasks.start_soon(wait, signal, number)
            await anyio.lowlevel.checkpoint()
            assert not woken
            signal.notify()

    anyio.run(main)
    assert woken == [0, 1, 2]


async def test_wait_since_an_earlier_count_returns_at_once() -> None:
    signal = Signal()
    seen = signal.count
    signal.notify()
    await signal.wait(seen)
    with anyio.move_on_after(0) as scope:
        await signal.wait(signal.count)
    assert scope.cancelled_caught


def test_cancelled_wait_leaves_the_other_tasks_waiting() -> None:
    woken: list[str] = []

    async def wait(signal: Signal) -> None:
        await signal.wait()
        woken.append("the other")

    async def main() -> None:
        signal = Signal()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(wait, signal)
            with anyio.move_on_after(0):
                await signal.wait()
            assert not woken
            signal.notify()

    anyio.run(main)
    assert woken == ["the other"]
