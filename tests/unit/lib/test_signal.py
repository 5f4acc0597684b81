"""A bell wakes all who wait, and whoever comes too late for a ring is told so."""

import anyio
import anyio.lowlevel

from steadyrun.lib.signal import Signal


def test_a_ring_wakes_everybody_who_waits() -> None:
    woken: list[int] = []

    async def wait(bell: Signal, number: int) -> None:
        await bell.wait()
        woken.append(number)

    async def main() -> None:
        bell = Signal()
        async with anyio.create_task_group() as tasks:
            for number in range(3):
                tasks.start_soon(wait, bell, number)
            await anyio.lowlevel.checkpoint()
            assert not woken
            bell.notify()

    anyio.run(main)
    assert woken == [0, 1, 2]


def test_a_ring_that_came_before_is_not_waited_for() -> None:
    async def main() -> None:
        bell = Signal()
        seen = bell.rung
        bell.notify()
        await bell.wait(seen)
        with anyio.move_on_after(0) as scope:
            await bell.wait(bell.rung)
        assert scope.cancelled_caught

    anyio.run(main)


def test_whoever_gives_up_leaves_the_others_waiting() -> None:
    woken: list[str] = []

    async def wait(bell: Signal) -> None:
        await bell.wait()
        woken.append("the other")

    async def main() -> None:
        bell = Signal()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(wait, bell)
            with anyio.move_on_after(0):
                await bell.wait()
            assert not woken
            bell.notify()

    anyio.run(main)
    assert woken == ["the other"]
