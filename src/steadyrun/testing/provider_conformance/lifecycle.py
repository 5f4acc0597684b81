"""Checks runs without intervention: they begin, answer and end."""

from pathlib import Path

import anyio

from steadyrun.dialect import Ability, Image
from steadyrun.errors import AbilityMissing, InvalidUsage, NotFound
from steadyrun.model.event import RunStarted, StoredEvent
from steadyrun.testing.provider_conformance.fixtures import (
    check_record,
    expect_error,
    get_expected,
    get_prompt,
    open_program,
    play,
    release_runs,
    wait_for_event,
)
from steadyrun.testing.provider_conformance.harness import (
    LONG_BYTES,
    ProviderHarness,
    RunLike,
    make_promise,
)

MANY = 10
# The options beyond a prompt, by the ability that each needs.
OPTIONS: dict[Ability, dict[str, object]] = {
    "modes": {"mode": "full_auto"},
    "model": {"model": "some"},
    "tools": {"tools": ["Edit"]},
    "system": {"system": "be brief"},
    "resume": {"resume": "token"},
    "max_turns": {"max_turns": 1},
    "usage": {"max_cost_usd": 1.0},
    "schema": {"schema": {"type": "object"}},
    "images": {"images": [Image("image/png", b"png")]},
}


@make_promise("answers")
async def check_a_run_begins_once_and_ends_once(harness: ProviderHarness) -> None:
    played = await play(harness, "answers")

    assert played.run.status == "completed"
    assert played.run.error is None
    assert str(get_expected(harness, "answers")) in (played.run.text or "")
    stored = [entry for entry in played.published if isinstance(entry, StoredEvent)]
    assert stored == [entry for entry in played.stored if entry.run == played.run.id]


@make_promise("answers")
async def check_a_later_reader_gets_the_same_events(harness: ProviderHarness) -> None:
    played = await play(harness, "answers")

    async with open_program(harness) as library:
        run = await library.run(played.run.id)
        events = [entry async for entry in run.events()]
        ended = await run.result()

    assert events == [entry for entry in played.stored if entry.run == played.run.id]
    assert ended == played.run


@make_promise("learns", "recalls", abilities=("resume",))
async def check_a_conversation_is_resumed(harness: ProviderHarness) -> None:
    first = await play(harness, "learns")
    assert first.run.resume_token

    second = await play(harness, "recalls", resume=first.run.resume_token)

    assert str(get_expected(harness, "recalls")) in (second.run.text or "")
    assert str(get_expected(harness, "recalls")) not in (
        (await play(harness, "recalls")).run.text or ""
    )


@make_promise("answers", abilities=("resume",))
async def check_an_unknown_conversation_is_a_named_error(
    harness: ProviderHarness,
) -> None:
    played = await play(harness, "answers", resume="00000000-0000-4000-8000-000000000000")

    assert played.run.status == "failed"
    assert played.run.error
    assert played.run.error.code not in {"", "exited"}


def _find_full_ability(harness: ProviderHarness) -> str | None:
    return None if OPTIONS.keys() - harness.abilities else "it can do everything"


@make_promise(unless=_find_full_ability)
async def check_a_missing_ability_is_refused_by_name(harness: ProviderHarness) -> None:
    async with open_program(harness) as library:
        for ability in OPTIONS.keys() - harness.abilities:
            error = await expect_error(AbilityMissing, library.start("any", **OPTIONS[ability]))
            assert (error.provider, error.ability) == (harness.provider, ability)

    async with harness.open_store() as store:
        assert await store.runs() == []


@make_promise()
async def check_an_unknown_run_is_not_found(harness: ProviderHarness) -> None:
    async with open_program(harness) as library:
        error = await expect_error(NotFound, library.run("run_00000000000000000000000000"))

    assert error.kind == "run"


@make_promise("waits")
async def check_many_runs_at_once_all_complete(harness: ProviderHarness) -> None:
    async with open_program(harness) as library:
        runs: list[RunLike] = [
            await library.start(get_prompt(harness, "waits")) for _ in range(MANY)
        ]
        async with anyio.create_task_group() as tasks:
            for run in runs:
                tasks.start_soon(wait_for_event, run, RunStarted)
        release_runs(harness)
        ended = [await run.result() for run in runs]

    for each in ended:
        await check_record(harness, each)
    assert [run.status for run in ended] == ["completed"] * MANY
    assert len({run.process for run in ended}) == MANY


@make_promise("is_long")
async def check_a_long_prompt_works_or_is_a_named_error(harness: ProviderHarness) -> None:
    assert len(get_prompt(harness, "is_long").encode()) >= LONG_BYTES

    played = await play(harness, "is_long")

    assert played.run.status == "completed" or played.run.error


@make_promise()
async def check_a_prompt_is_never_an_option(harness: ProviderHarness) -> None:
    async with open_program(harness) as library:
        ended = await (await library.start("--version")).result()

    played = await check_record(harness, ended)
    assert played.items[0].text == "--version"
    assert ended.status == "completed" or ended.error


@make_promise("answers")
async def check_a_missing_program_is_a_named_error(harness: ProviderHarness) -> None:
    run = (await play(harness, "answers", command=("/nowhere/program",))).run

    assert run.status == "failed"
    assert run.error
    assert "/nowhere/program" in run.error.message or run.error.code == "exit_nonzero"
    assert run.error.hint


@make_promise("answers")
async def check_a_program_without_output_ends_the_run(harness: ProviderHarness) -> None:
    """The program exits without output, and is not a CLI of the provider."""
    run = (await play(harness, "answers", command=("/bin/false",))).run

    assert run.status == "failed"
    assert run.error


@make_promise("answers")
async def check_a_missing_directory_is_a_named_error(harness: ProviderHarness) -> None:
    async with open_program(harness) as library:
        start = library.start(get_prompt(harness, "answers"), cwd=Path("/nowhere"))
        error = await expect_error(InvalidUsage, start)

    assert "/nowhere" in error.message
    assert error.hint
