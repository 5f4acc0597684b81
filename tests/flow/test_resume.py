"""A conversation that no longer exists fails the run or starts fresh."""

from pathlib import Path
from typing import Any

import anyio
import pytest

import steadyrun
from steadyrun.config import load
from steadyrun.errors import InvalidUsage
from steadyrun.model.event import Note, RunStarted, StoredEvent
from steadyrun.model.run import Run

MISSING = "scr_0123456789abcdef"


def resumed(
    place: Path, resume: str | None = MISSING, **wishes: Any
) -> tuple[Run, list[StoredEvent]]:
    """A run that was to resume an unknown conversation."""
    environ = {"PATH": "/usr/bin:/bin", "HOME": str(place)}
    config = load(home=place / "home", cwd=place, environ=environ)

    async def main() -> tuple[Run, list[StoredEvent]]:
        async with steadyrun.open(config) as library:
            prompt = 'script:[{"text":"one"}]'
            asked = {"cwd": place, **({"resume": resume} if resume else {}), **wishes}
            run = await library.start(prompt, provider="scripted", **asked)
            ended = await run.result()
            return ended, [seen async for seen in run.events() if isinstance(seen, StoredEvent)]

    return anyio.run(main)


def test_run_fails_with_resume_not_found_if_the_conversation_is_unknown(tmp_path: Path) -> None:
    run, _ = resumed(tmp_path)

    assert run.status == "failed"
    assert run.error
    assert run.error.code == "resume_not_found"


def test_or_fresh_starts_a_new_conversation_if_the_old_one_is_unknown(tmp_path: Path) -> None:
    run, events = resumed(tmp_path, or_fresh=True)

    assert (run.status, run.text) == ("completed", "one")
    assert run.resume_token not in {None, MISSING}
    assert [type(seen.event) for seen in events].count(RunStarted) == 1
    notes = [seen.event.text for seen in events if isinstance(seen.event, Note)]
    assert any("a new one begins" in note for note in notes)
    # The process that knew nothing of it is gone, and another one has served the run.
    assert len(list((tmp_path / "home" / "processes").iterdir())) == 2


def test_or_fresh_without_a_conversation_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidUsage, match="or_fresh"):
        resumed(tmp_path, resume=None, or_fresh=True)


def test_resumed_conversation_keeps_its_directory_and_its_model(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    first, _ = resumed(tmp_path, resume=None, model="m-1")

    second, _ = resumed(tmp_path, resume=first.resume_token)
    third, _ = resumed(tmp_path, resume=first.resume_token, model="m-2")

    assert [run.model for run in (first, second, third)] == ["m-1", "m-1", "m-2"]
    assert first.resume_token == second.resume_token == third.resume_token
    with pytest.raises(InvalidUsage, match=f"belongs to {tmp_path}, not to {elsewhere}"):
        resumed(tmp_path, resume=first.resume_token, cwd=elsewhere)
