"""Tests that every recording yields its reviewed events."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.recordings.recorded import CLIS, HERE, Cli, Recording, index, recordings, telling
from tests.support.commands import steadyrun

RECORDINGS = recordings()
FILES = sorted(path for cli in CLIS for path in (HERE / cli).rglob("*.json*"))
by_name = pytest.mark.parametrize("recording", RECORDINGS, ids=str)
by_cli = pytest.mark.parametrize("cli", CLIS)
AT_LEAST: dict[Cli, int] = {"claude": 65, "codex": 45}

# Text that would reveal the machine or the user of a recording.
_PRIVATE = re.compile(
    r"/(?:home|root|Users|private|work|opt)/|\bsk-(?!test\b|ant-oat01-test\b)[A-Za-z0-9]"
    r"|\b(?!127\.0\.0\.1\b)\d{1,3}(?:\.\d{1,3}){3}\b|[\w.]+@[\w.]+\.\w+"
)


@by_name
def test_recording_gives_the_expected_events(recording: Recording) -> None:
    note, *expected = _expected(recording)

    assert note["checked"]
    assert list(telling(recording.play())) == expected


@by_cli
def test_replay_command_prints_the_expected_events(cli: Cli, tmp_path: Path) -> None:
    recording = next(each for each in recordings(cli) if each.code == 0 and not each.one_shot)
    _, *expected = _expected(recording)

    assert _replayed(tmp_path, recording) == [event[1] for event in expected]


@pytest.mark.parametrize("name", ["41-exec-json-tool", "43-exec-resume-unknown"])
def test_replay_command_works_without_the_one_shot_option(name: str, tmp_path: Path) -> None:
    recording = next(each for each in recordings("codex") if each.name == name)
    _, *expected = _expected(recording)

    # A replay does not know when the turn began.
    apart = ("run.started", "output.raw")
    replayed = [type_ for type_ in _replayed(tmp_path, recording) if type_ not in apart]
    assert replayed == [event[1] for event in expected if event[1] not in apart]


@by_cli
def test_every_recording_of_the_index_has_a_file_and_expected_events(cli: Cli) -> None:
    names = sorted(index(cli)["recordings"])

    assert len(names) >= AT_LEAST[cli]
    assert sorted(path.stem for path in (HERE / cli).glob("*.jsonl")) == names
    assert sorted(path.stem for path in (HERE / cli / "expected").glob("*.jsonl")) == names


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_no_file_contains_a_machine_path_or_a_key(path: Path) -> None:
    assert _PRIVATE.findall(path.read_text("utf-8")) == []
    assert path.stat().st_size < 100_000


def _expected(recording: Recording) -> list[Any]:
    return [json.loads(line) for line in recording.expected.read_text("utf-8").splitlines()]


def _replayed(home: Path, recording: Recording) -> list[str]:
    file, provider = str(recording.path), recording.cli
    done = steadyrun(home / "home", "replay", file, "--provider", provider, "--jsonl")
    return [json.loads(line)["type"] for line in done.stdout.splitlines()]
