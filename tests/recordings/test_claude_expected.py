"""Does every recording still come to the events that somebody has read and found right?"""

import json
import re
from pathlib import Path

import pytest

from tests.commands import steadyrun
from tests.recordings.recorded import HERE, Recording, claude_recordings, telling

RECORDINGS = claude_recordings()
FILES = sorted((HERE / "claude").rglob("*.json*"))
by_name = pytest.mark.parametrize("recording", RECORDINGS, ids=lambda recording: recording.name)

# Whatever would say on which machine, or for whom, something was recorded.
_PRIVATE = re.compile(
    r"/(?:home|root|Users|private|work|opt)/|\bsk-(?!test\b|ant-oat01-test\b)[A-Za-z0-9]"
    r"|\b(?!127\.0\.0\.1\b)\d{1,3}(?:\.\d{1,3}){3}\b|[\w.]+@[\w.]+\.\w+"
)


@by_name
def test_a_recording_comes_to_what_is_expected(recording: Recording) -> None:
    note, *expected = map(json.loads, recording.expected.read_text("utf-8").splitlines())

    assert note["checked"]
    assert list(telling(recording.play())) == expected


def test_the_command_says_the_same(tmp_path: Path) -> None:
    recording = next(each for each in RECORDINGS if each.code == 0 and not each.one_shot)
    _, *expected = map(json.loads, recording.expected.read_text("utf-8").splitlines())

    done = steadyrun(
        tmp_path / "home", "replay", str(recording.path), "--provider", "claude", "--jsonl"
    )

    told = [json.loads(line) for line in done.stdout.splitlines()]
    assert [event["type"] for event in told] == [event[1] for event in expected]


def test_there_are_recordings_and_expectations_for_the_whole_index() -> None:
    names = sorted(recording.name for recording in RECORDINGS)

    assert len(names) >= 65
    assert sorted(path.stem for path in (HERE / "claude").glob("*.jsonl")) == names
    assert sorted(path.stem for path in (HERE / "claude" / "expected").glob("*.jsonl")) == names


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_no_file_tells_of_a_machine_or_a_key(path: Path) -> None:
    assert _PRIVATE.findall(path.read_text("utf-8")) == []
    assert path.stat().st_size < 100_000
