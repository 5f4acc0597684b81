"""Checks the ends of runs: each end has a named reason, and no process is left."""

import anyio
import anyio.to_thread

from steadyrun.model.run import Run
from steadyrun.testing.provider_conformance.fixtures import (
    check_record,
    get_prompt,
    open_program,
    play,
    start_run,
    wait_until_busy,
)
from steadyrun.testing.provider_conformance.harness import ProviderHarness, make_promise

_SHORT_SECONDS = 0.2


def _check_cancelled(run: Run, reason: str | None = None) -> None:
    assert (run.status, run.stop_reason) == ("cancelled", "user_stop")
    if reason:
        assert run.error
        assert run.error.message == reason


@make_promise("hangs")
async def check_a_cancelled_run_ends(harness: ProviderHarness) -> None:
    async with start_run(harness, "hangs") as run:
        await run.cancel("enough")
        ended = await run.result()
        assert await run.cancel("again") == ended

    played = await check_record(harness, ended)
    _check_cancelled(ended, "enough")
    assert [item.status for item in played.items] == ["cancelled"]


@make_promise("hangs")
async def check_cancelling_twice_ends_the_run_once(harness: ProviderHarness) -> None:
    async with start_run(harness, "hangs") as run:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(run.cancel, "first")
            tasks.start_soon(run.cancel, "second")
        ended = await run.result()

    await check_record(harness, ended)
    assert ended.error
    assert ended.error.message in {"first", "second"}


@make_promise("hangs")
async def check_a_run_can_be_cancelled_before_it_begins(harness: ProviderHarness) -> None:
    async with open_program(harness) as library:
        run = await library.start(get_prompt(harness, "hangs"))
        await run.cancel("too soon")
        ended = await run.result()

    await check_record(harness, ended)
    _check_cancelled(ended, "too soon")


@make_promise("hangs")
async def check_any_program_can_cancel(harness: ProviderHarness) -> None:
    async with start_run(harness, "hangs") as run:
        async with harness.open_library() as other:
            await (await other.run(run.id)).cancel()
            ended = await (await other.run(run.id)).result()
        await run.result()

    await check_record(harness, ended)
    _check_cancelled(ended)


@make_promise("answers")
async def check_an_ended_run_cannot_be_cancelled(harness: ProviderHarness) -> None:
    played = await play(harness, "answers")

    async with open_program(harness) as library:
        assert await (await library.run(played.run.id)).cancel() == played.run


@make_promise("is_deaf")
async def check_an_unresponsive_run_is_killed(harness: ProviderHarness) -> None:
    async with start_run(harness, "is_deaf") as run:
        await run.cancel()
        ended = await run.result()

    await check_record(harness, ended)
    _check_cancelled(ended)


@make_promise("hangs")
async def check_a_run_times_out(harness: ProviderHarness) -> None:
    played = await play(harness, "hangs", timeout_seconds=_SHORT_SECONDS)

    assert (played.run.status, played.run.stop_reason) == ("timed_out", "wall_timeout")
    assert [item.status for item in played.items] == ["failed"]


@make_promise("crashes")
async def check_a_crash_is_a_named_error(harness: ProviderHarness) -> None:
    played = await play(harness, "crashes")

    assert played.run.status == "failed"
    assert played.run.error
    assert played.run.error.code
    assert played.run.diagnostic


@make_promise("leaves_process")
async def check_a_process_left_by_a_run_is_killed(harness: ProviderHarness) -> None:
    played = await play(harness, "leaves_process")

    assert played.run.status == "completed"


@make_promise("hangs")
async def check_runs_continue_after_their_program_ends(harness: ProviderHarness) -> None:
    async with harness.open_library() as library:
        run = await library.start(get_prompt(harness, "hangs"))
        await wait_until_busy(run)

    async with open_program(harness) as library:
        reopened = await library.run(run.id)
        await reopened.cancel("now")
        ended = await reopened.result()

    await check_record(harness, ended)
    _check_cancelled(ended, "now")


def _find_big_disk(harness: ProviderHarness) -> str | None:
    return None if harness.has_small_disk else "its disk must not be filled"


@make_promise("hangs", unless=_find_big_disk)
async def check_a_full_disk_ends_the_run(harness: ProviderHarness) -> None:
    async with start_run(harness, "hangs") as run:
        await anyio.to_thread.run_sync(harness.fill_disk)
        ended = await run.result()

    await check_record(harness, ended)
    assert (ended.status, ended.stop_reason) == ("failed", "disk_full")
    assert ended.error
    assert ended.error.code == "disk_full"
