"""Promises about ends: whatever ends a run, it is named, and nothing is left running."""

import anyio
import anyio.to_thread

from steadyrun.model.run import Run
from steadyrun.testing.provider_conformance.fixtures import (
    check_order,
    play,
    program,
    read,
    text_of,
    until_busy,
)
from steadyrun.testing.provider_conformance.harness import ProviderHarness, promised

_SHORT_SECONDS = 0.2


def _check_cancelled(run: Run, reason: str | None = None) -> None:
    assert (run.status, run.stop_reason) == ("cancelled", "user_stop")
    if reason:
        assert run.error
        assert run.error.message == reason


@promised("hangs")
async def check_a_cancelled_run_ends(harness: ProviderHarness) -> None:
    async with program(harness) as library:
        run = await library.start(text_of(harness, "hangs"))
        await until_busy(run)
        await run.cancel("enough")
        ended = await run.result()
        assert await run.cancel("again") == ended

    played = await read(harness, ended)
    check_order(played)
    _check_cancelled(ended, "enough")
    assert [item.status for item in played.items] == ["cancelled"]


@promised("hangs")
async def check_to_cancel_twice_is_once(harness: ProviderHarness) -> None:
    async with program(harness) as library:
        run = await library.start(text_of(harness, "hangs"))
        await until_busy(run)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(run.cancel, "first")
            tasks.start_soon(run.cancel, "second")
        ended = await run.result()

    check_order(await read(harness, ended))
    assert ended.error
    assert ended.error.message in {"first", "second"}


@promised("hangs")
async def check_a_run_may_be_cancelled_before_it_has_begun(harness: ProviderHarness) -> None:
    async with program(harness) as library:
        run = await library.start(text_of(harness, "hangs"))
        await run.cancel("too soon")
        ended = await run.result()

    check_order(await read(harness, ended))
    _check_cancelled(ended, "too soon")


@promised("hangs")
async def check_any_program_may_cancel(harness: ProviderHarness) -> None:
    async with program(harness) as library:
        run = await library.start(text_of(harness, "hangs"))
        await until_busy(run)
        async with harness.library() as other:
            await (await other.run(run.id)).cancel()
            ended = await (await other.run(run.id)).result()
        await run.result()

    check_order(await read(harness, ended))
    _check_cancelled(ended)


@promised("answers")
async def check_what_has_ended_cannot_be_cancelled(harness: ProviderHarness) -> None:
    played = await play(harness, "answers")

    async with program(harness) as library:
        assert await (await library.run(played.run.id)).cancel() == played.run


@promised("is_deaf")
async def check_a_run_that_will_not_end_is_ended(harness: ProviderHarness) -> None:
    async with program(harness) as library:
        run = await library.start(text_of(harness, "is_deaf"))
        await until_busy(run)
        await run.cancel()
        ended = await run.result()

    check_order(await read(harness, ended))
    _check_cancelled(ended)


@promised("hangs")
async def check_a_run_that_takes_too_long_is_ended(harness: ProviderHarness) -> None:
    played = await play(harness, "hangs", timeout_seconds=_SHORT_SECONDS)

    check_order(played)
    assert (played.run.status, played.run.stop_reason) == ("timed_out", "wall_timeout")
    assert [item.status for item in played.items] == ["failed"]


@promised("crashes")
async def check_a_crash_is_an_error_with_a_name(harness: ProviderHarness) -> None:
    played = await play(harness, "crashes")

    check_order(played)
    assert played.run.status == "failed"
    assert played.run.error
    assert played.run.error.code
    assert played.run.diagnostic


@promised("leaves_process")
async def check_what_a_run_leaves_behind_is_ended(harness: ProviderHarness) -> None:
    played = await play(harness, "leaves_process")

    check_order(played)
    assert played.run.status == "completed"


@promised("hangs")
async def check_a_program_that_ends_leaves_its_runs_running(harness: ProviderHarness) -> None:
    async with harness.library() as library:
        run = await library.start(text_of(harness, "hangs"))
        await until_busy(run)

    async with program(harness) as library:
        again = await library.run(run.id)
        await again.cancel("now")
        ended = await again.result()

    check_order(await read(harness, ended))
    _check_cancelled(ended, "now")


def _is_on_a_big_disk(harness: ProviderHarness) -> str | None:
    return None if harness.has_small_disk else "its disk must not be filled"


@promised("hangs", unless=_is_on_a_big_disk)
async def check_a_full_disk_ends_the_run(harness: ProviderHarness) -> None:
    async with program(harness) as library:
        run = await library.start(text_of(harness, "hangs"))
        await until_busy(run)
        await anyio.to_thread.run_sync(harness.fill_disk)
        ended = await run.result()

    check_order(await read(harness, ended))
    assert (ended.status, ended.stop_reason) == ("failed", "disk_full")
    assert ended.error
    assert ended.error.code == "disk_full"
