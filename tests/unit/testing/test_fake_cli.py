"""A fake CLI is a real program that does what it was built for."""

import json
import subprocess
from pathlib import Path

import pytest

from steadyrun.testing.fake_cli import FakeCli, replay_recording


def told(program: Path, said: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [program], input=said, capture_output=True, text=True, timeout=20, check=False
    )


def test_fake_cli_prints_reads_and_exits(tmp_path: Path) -> None:
    cli = (
        FakeCli()
        .print_lines({"type": "ready"})
        .read()
        .print_error("oh")
        .print_lines("plain text")
        .exit(3)
    )

    done = told(cli.build(tmp_path / "cli"), '{"type":"go"}\n')

    assert done.stdout.splitlines() == ['{"type": "ready"}', "plain text"]
    assert (done.stderr, done.returncode) == ("oh\n", 3)


def test_fake_cli_ends_when_its_input_ends(tmp_path: Path) -> None:
    cli = FakeCli().print_lines("first").read().print_lines("second")

    done = told(cli.build(tmp_path / "cli"), "")

    assert (done.stdout, done.returncode) == ("first\n", 0)


def test_recording_is_replayed_with_the_ids_of_the_requests(tmp_path: Path) -> None:
    recording = [
        {"t": 0, "dir": "in", "msg": {"id": 1, "method": "start", "params": {"text": "x"}}},
        {"t": 1, "dir": "out", "msg": {"id": 1, "result": {"threadId": "t-1", "count": 1}}},
        {"t": 2, "dir": "in", "msg": {"type": "user", "uuid": "old"}},
        {"t": 3, "dir": "out", "msg": {"type": "user", "uuid": "old", "text": "old"}},
        {"t": 4, "dir": "err", "msg": "bye"},
    ]
    said = '{"id":"a-7","method":"start","params":{"text":"y"}}\n{"type":"user","uuid":"new"}\n'

    done = told(replay_recording(recording).build(tmp_path / "cli"), said)

    assert [json.loads(line) for line in done.stdout.splitlines()] == [
        {"id": "a-7", "result": {"threadId": "t-1", "count": 1}},
        {"type": "user", "uuid": "new", "text": "old"},
    ]
    assert done.stderr == "bye\n"


def test_invalid_recording_is_refused() -> None:
    with pytest.raises(ValueError, match="dir must be in, out or err"):
        replay_recording([{"dir": "sideways", "msg": "x"}])


def test_input_that_is_not_json_is_refused(tmp_path: Path) -> None:
    done = told(FakeCli().read({"id": 1}).build(tmp_path / "cli"), "hello\n")

    assert "not JSON: hello" in done.stderr
    assert done.returncode == 1
