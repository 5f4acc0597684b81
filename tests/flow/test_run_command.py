"""`steadyrun run` and its kin as a person types them: real processes, killed for real."""

import contextlib
import json
import os
import pty
import re
import signal
import subprocess
import tarfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import pytest

from steadyrun.drivers.keeper_client import is_alive
from steadyrun.lib.clock import SystemClock
from tests.children.keeper_driver import eventually
from tests.support.commands import COMMAND, LIMIT_SECONDS, environment, python, steadyrun
from tests.support.real_cli_harness import find_processes_of

PNG = b"\x89PNG\r\n\x1a\n" + b"\0" * 20
KEY = "sk-" + "a1B2" * 8


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


def script(*steps: object) -> str:
    return f"script:{json.dumps(steps)}"


def run(home: Path, prompt: str, *options: str) -> "subprocess.CompletedProcess[str]":
    return steadyrun(home, "run", "--provider", "scripted", *options, "--", prompt)


def events(done: "subprocess.CompletedProcess[str]") -> list[dict[str, object]]:
    return [json.loads(line) for line in done.stdout.splitlines()]


def only_run(home: Path) -> dict[str, object]:
    [found] = json.loads(steadyrun(home, "runs", "--json").stdout)["runs"]
    assert isinstance(found, dict)
    return found


class Child:
    """A command that is running; it is ended after a bound, so that no reading lasts for ever."""

    def __init__(self, home: Path, *words: str, **streams: int) -> None:
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **streams}
        self.process = subprocess.Popen(
            [COMMAND, *words], env=environment(home), cwd=home.parent, text=True, **pipes
        )  # type: ignore[call-overload]
        self._limit = threading.Timer(LIMIT_SECONDS, self.process.kill)
        self._limit.start()

    def read_until(self, stream: IO[str] | None, text: str) -> str:
        assert stream
        for line in stream:
            if text in line:
                return line
        pytest.fail(f"{text!r} was never printed")

    def end(self) -> tuple[int, str, str]:
        out, err = self.process.communicate(timeout=LIMIT_SECONDS)
        self._limit.cancel()
        assert "Traceback" not in (err or ""), err
        return self.process.returncode, out, err


@contextlib.contextmanager
def running(home: Path, *words: str, **streams: int) -> Iterator[Child]:
    child = Child(home, *words, **streams)
    try:
        yield child
    finally:
        child.process.kill()
        child.end()


def follow_to_the_end(home: Path, run_id: str) -> list[str]:
    done = steadyrun(home, "tail", run_id, "-f", "--jsonl")
    return [event["type"] for event in map(json.loads, done.stdout.splitlines())]


# -- what is printed


def test_text_goes_to_stdout_and_progress_to_stderr(home: Path) -> None:
    tool = {"name": "Bash", "input": {"command": "pytest -q"}, "output": "1 passed"}
    usage = {"input_tokens": 41_000, "cache_read_tokens": 36_000, "output_tokens": 2100}
    spent = {"usage": {**usage, "cost_usd": 0.31}}
    done = run(home, script({"text": "I look."}, {"tool": tool}, spent, {"text": "Found."}))

    started, began, ended, last = done.stderr.splitlines()
    assert done.returncode == 0
    assert done.stdout == "I look.\nFound.\n"
    assert started == "* started (scripted)"
    assert began == "  > Running pytest -q"
    assert re.fullmatch(r"  < Running pytest -q +[\d.]+m?s", ended)
    assert re.fullmatch(
        r"\* done in [\d.]+m?s · \$0\.31 · 41k in \(36k cached\) / 2\.1k out · run_\w+", last
    )


def test_text_that_came_in_deltas_is_printed_once(home: Path) -> None:
    pieces = {"pieces": ["Hel", "lo ", "world"], "seconds": 0.05}
    done = run(home, script({"wait": 0.3}, {"delta": pieces}, {"wait": 0.1}))

    assert done.stdout == "Hello world\n"


def test_unknown_cost_is_not_printed_as_zero(home: Path) -> None:
    done = run(home, script({"text": "x"}))

    assert "$" not in done.stderr
    assert " in" not in done.stderr.splitlines()[-1].replace("done in", "")


def test_control_characters_of_an_agent_do_not_reach_the_terminal(home: Path) -> None:
    hostile = "\x1b]0;owned\x07\x1b[2Jsafe\x9b31m\u202e\tend"
    tool = {"name": hostile, "input": {"command": hostile}, "error": hostile}
    done = run(home, script({"text": hostile}, {"tool": tool}, {"fail": hostile}))

    assert "safe" in done.stdout
    assert "safe" in done.stderr
    for output in (done.stdout, done.stderr):
        assert not any(ord(char) < 32 and char not in "\n\t" for char in output)
        assert not set("\x9b\u202e") & set(output)


def test_jsonl_prints_every_event_and_nothing_else(home: Path) -> None:
    pieces = {"pieces": ["a", "b"], "seconds": 0.05}
    done = run(home, script({"wait": 0.3}, {"delta": pieces}, {"wait": 0.1}), "--jsonl")

    seen = events(done)
    assert done.returncode == 0
    assert done.stderr == ""
    assert [event["type"] for event in seen] == [
        "run.started", "text.delta", "text.delta", "text.final", "run.completed",
    ]  # fmt: skip
    assert all((event["seq"], event["cursor"]) == (None, None) for event in seen[1:3])
    assert all(event["cursor"] for event in (seen[0], *seen[3:]))


def test_json_prints_the_terminal_data_and_the_run_at_the_end(home: Path) -> None:
    done = run(home, script({"text": "x"}), "--json")

    [document] = events(done)
    assert set(document) == {
        "run", "status", "stop_reason", "text", "usage", "cost", "resume_token", "duration_ms",
        "exit_code", "error", "diagnostic",
    }  # fmt: skip
    assert (document["status"], document["text"]) == ("completed", "x")
    assert document["cost"] == {"usd": None, "kind": "unknown"}


@pytest.mark.parametrize(
    ("step", "options", "code", "said"),
    [
        ({"fail": "no luck"}, (), 1, "failed after"),
        ({"crash": {"code": 3}}, (), 1, "failed after"),
        ({"rate_limit": {"resets_in": 60}}, (), 6, "rate limited after"),
        ({"wait": 60}, ("--timeout", "500ms"), 7, "timed out after"),
    ],
)
def test_exit_code_of_a_failed_run_depends_on_its_status(
    home: Path, step: object, options: tuple[str, ...], code: int, said: str
) -> None:
    done = run(home, script(step), *options)

    assert done.returncode == code
    assert said in done.stderr.splitlines()[-1] + done.stderr.splitlines()[-2]


def test_run_with_the_shell_provider_prints_its_output(home: Path) -> None:
    done = steadyrun(home, "run", "--provider", "shell", "echo one two")

    assert (done.returncode, done.stdout) == (0, "one two\n")


# -- what is asked for


def test_the_prompt_may_come_from_standard_input(home: Path) -> None:
    for words in (["-"], []):
        with running(home, "run", *words, "--provider", "scripted", stdin=subprocess.PIPE) as child:
            out, _ = child.process.communicate("from the pipe", timeout=LIMIT_SECONDS)
            assert out.startswith("You said: from the pipe\n")


def test_prompt_of_ten_megabytes_completes(home: Path) -> None:
    with running(home, "run", "--provider", "scripted", "--json", stdin=subprocess.PIPE) as child:
        out, _ = child.process.communicate("x" * 10_000_000, timeout=LIMIT_SECONDS)

    assert json.loads(out)["status"] == "completed"


@pytest.mark.parametrize("prompt", ["--help", "--json", "-x", "--", "-"])
def test_a_prompt_may_look_like_an_option(home: Path, prompt: str) -> None:
    if prompt == "-":
        done = steadyrun(home, "run", "--provider", "scripted", "--", "--")
    else:
        done = run(home, prompt)

    assert done.returncode == 0
    assert done.stdout.startswith("You said: -")


def test_run_accepts_all_options_together(home: Path, tmp_path: Path) -> None:
    image, schema = tmp_path / "a.bin", tmp_path / "schema.json"
    image.write_bytes(PNG)
    schema.write_text('{"type": "object", "properties": {"n": {"type": "integer"}}}')
    options = (
        "--model", "m1", "--mode", "plan", "--tools", "Read, Bash", "--system", "be brief",
        "--max-turns", "3", "--max-cost", "0.5", "--timeout", "1m", "--schema", str(schema),
        "--image", str(image), "--cwd", str(tmp_path),
    )  # fmt: skip
    done = run(home, script("recall"), *options, "--json")

    document = json.loads(done.stdout)
    assert document["status"] == "completed", document
    assert only_run(home)["model"] == "m1"


def test_a_conversation_is_resumed_by_its_token(home: Path) -> None:
    token = json.loads(run(home, script({"text": "x"}), "--json").stdout)["resume_token"]

    again = json.loads(run(home, script({"text": "y"}), "--resume", token, "--json").stdout)

    assert (again["status"], again["resume_token"]) == ("completed", token)


@pytest.mark.parametrize(
    ("options", "code", "said"),
    [
        (("--cwd", "/nowhere/at/all"), 2, "no such directory"),
        (("--cwd", "/dev/null"), 2, "expected a directory"),
        (("--image", "/nowhere.png"), 2, "cannot be read"),
        (("--image", "/"), 2, "cannot be read"),
        (("--image", "/dev/zero"), 2, "20 MB"),
        (("--image", "/dev/null"), 2, "png, jpeg, gif or webp"),
        (("--schema", "{"), 2, "JSON object"),
        (("--schema", "/nowhere.json"), 2, "cannot be read"),
        (("--schema", "/dev/null"), 2, "JSON object"),
        (("--timeout", "soon"), 2, "500ms"),
        (("--max-cost", "0"), 2, "dollars"),
        (("--max-cost", "nan"), 2, "dollars"),
        (("--max-turns", "0"), 2, "number"),
        (("--mode", "reckless"), 2, "full_auto"),
        (("--json", "--jsonl"), 2, "not allowed"),
    ],
)
def test_invalid_option_is_reported_and_no_run_is_created(
    home: Path, options: tuple[str, ...], code: int, said: str
) -> None:
    done = run(home, "x", *options)

    assert done.returncode == code
    assert said in done.stderr + done.stdout
    assert steadyrun(home, "runs").stdout == "No runs yet.\n"


def test_directory_that_is_a_link_to_itself_is_refused(home: Path, tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")

    done = run(home, "x", "--cwd", str(tmp_path / "loop"))

    assert (done.returncode, "loop: there is no such directory" in done.stderr) == (2, True)


@pytest.mark.parametrize(("stdin", "said"), [("", "empty"), (" \n", "empty"), ("\udcff", "UTF-8")])
def test_empty_or_undecodable_prompt_is_a_usage_error(home: Path, stdin: str, said: str) -> None:
    done = subprocess.run(
        [COMMAND, "run", "--provider", "scripted"],
        env=environment(home),
        input=os.fsencode(stdin),
        capture_output=True,
        timeout=LIMIT_SECONDS,
        check=False,
    )

    assert done.returncode == 2
    assert said.encode() in done.stderr


def test_unknown_provider_is_not_found_and_the_others_are_listed(home: Path) -> None:
    done = steadyrun(home, "run", "x", "--provider", "missing")

    assert done.returncode == 3
    assert "scripted, shell" in done.stderr


def test_option_without_provider_support_is_refused_by_name(home: Path) -> None:
    done = steadyrun(home, "run", "true", "--provider", "shell", "--model", "m1")

    assert done.returncode == 2
    assert "model" in done.stderr


def test_missing_program_fails_with_its_name_and_a_hint(home: Path) -> None:
    home.mkdir()
    (home / "config.toml").write_text("[providers.scripted]\ncommand = ['/no/such/program']\n")

    done = run(home, "x")
    detached = run(home, "x", "--detach")

    for each in (done, detached):
        assert each.returncode == 1
        assert "/no/such/program" in each.stderr
        assert "providers.scripted.command" in each.stderr


def test_garbage_is_ignored_and_an_invalid_script_fails(home: Path) -> None:
    garbage = run(home, script("garbage", {"garbage": {"invalid_utf8": True}}, {"text": "x"}))
    wrong = run(home, "script:[{]")

    assert (garbage.returncode, garbage.stdout) == (0, "x\n")
    assert wrong.returncode == 1
    assert "script_invalid" in wrong.stderr


# -- approvals


def test_approval_of_a_run_without_a_terminal_is_denied(home: Path) -> None:
    done = run(home, script({"approval": {"name": "Bash", "input": {"command": "rm x"}}}))

    assert "denied Bash" in done.stderr
    assert "--mode" in done.stderr


def on_terminal(home: Path, prompt: str, answer: bytes, *, after: bytes) -> str:
    """Run it on a terminal of its own; type the answer once the question is there."""
    master, slave = pty.openpty()
    words = ("run", "--provider", "scripted", "--", prompt)
    with running(home, *words, stdin=slave, stdout=slave, stderr=slave) as child:
        os.close(slave)
        shown = b""
        with contextlib.suppress(OSError):
            while chunk := os.read(master, 4096):
                shown += chunk
                if answer and after in shown:
                    os.write(master, answer)
                    answer = b""
        os.close(master)
        assert child.process.wait(LIMIT_SECONDS) == 0
    return shown.decode()


@pytest.mark.parametrize(
    ("answer", "verdict"), [(b"y\n", "allow"), (b"n\n", "den"), (b"what?\nYES\n", "allow")]
)
def test_approval_of_a_run_on_a_terminal_is_asked_there(
    home: Path, answer: bytes, verdict: str
) -> None:
    ask = {"name": "Bash", "input": {"command": "rm \x1b[2Jx"}}

    shown = on_terminal(home, script({"approval": ask}), answer, after=b"Enter:")

    [resolved] = [
        event["data"]
        for event in map(
            json.loads,
            steadyrun(home, "tail", str(only_run(home)["run"]), "--jsonl").stdout.splitlines(),
        )
        if event["type"] == "approval.resolved"
    ]
    assert "rm" in shown
    assert "\x1b[2J" not in shown
    assert resolved["verdict"].startswith(verdict)


def test_tool_on_a_terminal_is_shown_in_one_line(home: Path) -> None:
    tool = {"name": "Read", "input": {"path": "a.txt"}, "seconds": 0.2}

    shown = on_terminal(home, script({"tool": tool}, {"text": "x"}), b"", after=b"")

    [line] = [line for line in shown.split("\r\n") if "Read" in line]
    assert re.fullmatch(r"  > Reading a\.txt\r  > Reading a\.txt +[\d.]+m?s", line)


# -- leaving it


def wait_steps(tmp_path: Path) -> tuple[Path, str]:
    """A script that goes on when a file is there."""
    flag = tmp_path / "go"
    return flag, script({"text": "begun"}, {"until": str(flag)}, {"text": "over"})


def test_detached_run_continues_without_its_command(home: Path, tmp_path: Path) -> None:
    flag, prompt = wait_steps(tmp_path)

    done = run(home, prompt, "--detach")
    run_id = done.stdout.strip()
    before = only_run(home)
    flag.touch()
    types = follow_to_the_end(home, run_id)

    assert done.returncode == 0
    assert done.stderr == f"steadyrun tail {run_id} -f\n"
    assert (before["run"], before["status"]) == (run_id, "running")
    assert types[-3:] == ["text.final", "text.final", "run.completed"]
    eventually(lambda: not find_processes_of(tmp_path), "the end of its driver")


def test_detach_with_json_prints_the_run_id(home: Path) -> None:
    done = run(home, script({"text": "x"}), "--detach", "--json")

    [document] = events(done)
    assert follow_to_the_end(home, str(document["run"]))[-1] == "run.completed"


def test_detached_run_denies_its_approvals(home: Path) -> None:
    done = run(home, script({"wait": 1}, {"approval": "Bash"}, {"text": "x"}), "--detach")

    assert "approval.resolved" in follow_to_the_end(home, done.stdout.strip())


def test_ctrl_c_once_leaves_the_run_running(home: Path, tmp_path: Path) -> None:
    flag, prompt = wait_steps(tmp_path)

    with running(home, "run", "--provider", "scripted", prompt) as child:
        child.read_until(child.process.stdout, "begun")
        child.process.send_signal(signal.SIGINT)
        said = child.read_until(child.process.stderr, "still running")
        code, _, _ = child.end()
    run_id = str(only_run(home)["run"])
    flag.touch()
    types = follow_to_the_end(home, run_id)

    assert code == 130
    assert said == f"still running: steadyrun tail {run_id} -f; Ctrl-C again cancels it\n"
    assert types[-1] == "run.completed"


def test_ctrl_c_twice_cancels_the_run(home: Path, tmp_path: Path) -> None:
    _, prompt = wait_steps(tmp_path)

    with running(home, "run", "--provider", "scripted", prompt) as child:
        child.read_until(child.process.stdout, "begun")
        child.process.send_signal(signal.SIGINT)
        child.read_until(child.process.stderr, "still running")
        child.process.send_signal(signal.SIGINT)
        code, _, errors = child.end()

    assert code == 8
    assert "cancelled after" in errors
    assert only_run(home)["status"] == "cancelled"


@pytest.fixture
def hanging_up() -> Iterator[None]:
    """Restore SIGHUP: the parent of the tests may have made them and their children ignore it."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.mark.usefixtures("hanging_up")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_signal_that_ends_the_command_leaves_the_run_running(
    home: Path, tmp_path: Path, number: int
) -> None:
    flag, prompt = wait_steps(tmp_path)

    with running(home, "run", "--provider", "scripted", prompt) as child:
        child.read_until(child.process.stdout, "begun")
        child.process.send_signal(number)
        code, _, _ = child.end()
    flag.touch()

    assert code == 130
    assert follow_to_the_end(home, str(only_run(home)["run"]))[-1] == "run.completed"


def test_closed_output_of_the_command_leaves_the_run_running(home: Path, tmp_path: Path) -> None:
    flag, prompt = wait_steps(tmp_path)

    with running(home, "run", "--provider", "scripted", prompt) as child:
        child.read_until(child.process.stdout, "begun")
        assert child.process.stdout
        child.process.stdout.close()
        flag.touch()
        code = child.process.wait(LIMIT_SECONDS)
        assert child.process.stderr
        errors = child.process.stderr.read()

    assert code == 141
    assert "Traceback" not in errors
    assert follow_to_the_end(home, str(only_run(home)["run"]))[-1] == "run.completed"


def test_run_of_a_killed_command_is_adopted_by_the_next_command(home: Path, tmp_path: Path) -> None:
    flag, prompt = wait_steps(tmp_path)

    kill_in_mid_run(home, prompt)
    run_id = str(only_run(home)["run"])
    flag.touch()

    assert follow_to_the_end(home, run_id)[-3:] == ["text.final", "text.final", "run.completed"]


def test_run_that_ended_without_a_driver_is_recorded_by_the_next_command(
    home: Path, tmp_path: Path
) -> None:
    flag = tmp_path / "go"
    command = f"sh -c 'until [ -e {flag} ]; do sleep 0.02; done; echo over'"

    with running(home, "run", "--provider", "shell", command) as child:
        child.read_until(child.process.stderr, "> Running")
        child.process.kill()
        child.end()
    [process] = (home / "processes").iterdir()
    flag.touch()
    wait_for_the_end(process)

    found = only_run(home)
    assert (found["status"], found["text"]) == ("completed", "over")


def wait_for_the_end(process: Path) -> None:
    pause, limit = threading.Event(), SystemClock().monotonic() + LIMIT_SECONDS
    while is_alive(process):
        assert SystemClock().monotonic() < limit
        pause.wait(0.02)


def test_run_of_a_killed_command_is_adopted_by_the_next_run(home: Path, tmp_path: Path) -> None:
    flag, prompt = wait_steps(tmp_path)

    kill_in_mid_run(home, prompt)
    flag.touch()
    lost = json.loads(run(home, script({"text": "x"}), "--jsonl").stdout.splitlines()[0])["run"]
    runs = json.loads(steadyrun(home, "runs", "--json").stdout)["runs"]

    [other] = [each["run"] for each in runs if each["run"] != lost]
    assert follow_to_the_end(home, other)[-1] == "run.completed"


def kill_in_mid_run(home: Path, prompt: str) -> None:
    with running(home, "run", "--provider", "scripted", prompt) as child:
        child.read_until(child.process.stdout, "begun")
        child.process.kill()
        child.end()


# -- steer and cancel


def test_detached_run_is_steered_by_a_command(home: Path, tmp_path: Path) -> None:
    flag, prompt = wait_steps(tmp_path)
    run_id = run(home, prompt, "--detach").stdout.strip()

    done = steadyrun(home, "steer", run_id, "--", "--also this")
    flag.touch()
    types = follow_to_the_end(home, run_id)

    assert (done.returncode, done.stdout) == (0, f"offered: {run_id}\n")
    assert [kind for kind in types if kind.startswith("followup")] == [
        "followup.offered", "followup.absorbed",
    ]  # fmt: skip


def test_steer_of_an_ended_run_or_a_shell_run_is_refused(home: Path) -> None:
    ended = json.loads(run(home, script({"text": "x"}), "--json").stdout)["run"]
    with running(home, "run", "--provider", "shell", "sleep 60") as child:
        child.read_until(child.process.stderr, "sleep 60")
        shell = json.loads(steadyrun(home, "runs", "--json").stdout)["runs"][0]["run"]
        refused = steadyrun(home, "steer", shell, "more")
        cancelled = steadyrun(home, "cancel", shell)
        code, _, _ = child.end()

    late = steadyrun(home, "steer", ended, "more")

    assert (refused.returncode, late.returncode) == (5, 5)
    assert "cannot be steered" in refused.stderr
    assert "completed" in late.stderr
    assert (cancelled.returncode, cancelled.stdout) == (0, f"cancelled: {shell}\n")
    assert code == 8


def test_second_cancel_reports_how_the_run_ended(home: Path, tmp_path: Path) -> None:
    _, prompt = wait_steps(tmp_path)
    run_id = run(home, prompt, "--detach").stdout.strip()

    first = steadyrun(home, "cancel", run_id, "--reason", "enough")
    again = steadyrun(home, "cancel", run_id, "--json")

    assert (first.returncode, first.stdout) == (0, f"cancelled: {run_id}\n")
    assert again.returncode == 0
    assert json.loads(again.stdout)["status"] == "cancelled"
    assert "'message': 'enough'" in str(only_run(home)["error"])


@pytest.mark.parametrize("words", [["steer", "run_no", "x"], ["cancel", "run_no"]])
def test_steer_and_cancel_of_an_unknown_run_are_not_found(home: Path, words: list[str]) -> None:
    assert steadyrun(home, *words).returncode == 3


def test_empty_steer_is_a_usage_error(home: Path) -> None:
    assert steadyrun(home, "steer", "run_x", " ").returncode == 2


# -- replay and export


def recording(path: Path) -> Path:
    lines: list[dict[str, object]] = [
        {"t": 0.1, "dir": "err", "msg": "warming up"},
        {"t": 1.0, "dir": "out", "msg": "hello"},
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_recording_is_replayed_without_a_home(home: Path, tmp_path: Path) -> None:
    path = str(recording(tmp_path / "shell.jsonl"))

    done = steadyrun(home, "replay", path, "--provider", "shell", "--jsonl")
    shown = steadyrun(home, "replay", path, "--provider", "shell")

    seen = events(done)
    assert done.returncode == 0
    assert [event["type"] for event in seen[-2:]] == ["tool.failed", "run.failed"]
    assert all(event["cursor"] is None for event in seen)
    assert [event["seq"] for event in seen if event["seq"]] == [1, 2, 3, 4]
    assert "tool.started" in shown.stdout
    assert not home.exists()


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["nowhere"], 3, "no run or file"),
        (["run_x"], 3, "no run or file"),
        (["{file}"], 2, "--provider"),
        (["{file}", "--provider", "missing"], 3, "scripted, shell"),
        (["{broken}", "--provider", "shell"], 2, "broken.jsonl:1"),
        (["{folder}", "--provider", "shell"], 2, "journal cannot be read"),
    ],
)
def test_impossible_replay_is_refused_with_the_reason(
    home: Path, tmp_path: Path, words: list[str], code: int, said: str
) -> None:
    (tmp_path / "broken.jsonl").write_text("{}\n")
    places = {
        "file": recording(tmp_path / "shell.jsonl"),
        "broken": tmp_path / "broken.jsonl",
        "folder": tmp_path,
    }

    done = steadyrun(home, "replay", *(word.format(**places) for word in words))

    assert done.returncode == code
    assert said in done.stderr
    assert not home.exists()


def test_run_is_replayed_from_its_journal(home: Path) -> None:
    tool = {"name": "Read", "input": {"path": "a"}, "output": "b"}
    seen = events(run(home, script({"text": "x"}, {"tool": tool}), "--jsonl"))

    played = events(steadyrun(home, "replay", str(seen[0]["run"]), "--jsonl"))

    kinds = {"text.final", "tool.completed"}
    assert [each["data"] for each in played if each["type"] in kinds] == [
        each["data"] for each in seen if each["type"] in kinds
    ]


def test_export_contains_all_files_of_a_run_without_secrets(home: Path, tmp_path: Path) -> None:
    home.mkdir()
    (home / "config.toml").write_text("[providers.scripted.env]\nMY_TOKEN = 'hunter2-hunter2'\n")
    secrets = f"{KEY} hunter2-hunter2"
    prompt = script({"text": secrets}, {"stderr": secrets}, {"text": "after"})
    run_id = json.loads(run(home, prompt, "--json").stdout)["run"]

    first = steadyrun(home, "export", run_id, cwd=tmp_path)
    second = steadyrun(home, "export", run_id[:-1], "-o", "b.tgz", cwd=tmp_path)
    again = steadyrun(home, "export", run_id, cwd=tmp_path)

    assert (first.returncode, first.stdout) == (0, f"{run_id}.tar.gz\n")
    assert (again.returncode, second.returncode) == (5, 0)
    packed = tmp_path / f"{run_id}.tar.gz"
    assert packed.read_bytes() == (tmp_path / "b.tgz").read_bytes()
    assert packed.stat().st_mode & 0o777 == 0o600
    with tarfile.open(packed) as archive:
        names = archive.getnames()
        archive.extractall(tmp_path, filter="data")
    assert [name.rpartition("/")[2] for name in names] == [
        "run.json", "events.jsonl", "journal", "sent", "stderr", "exit",
    ]  # fmt: skip
    for name in names:
        content = (tmp_path / name).read_bytes()
        assert KEY.encode() not in content, name
        assert b"hunter2-hunter2" not in content, name
    process = str((tmp_path / names[2]).parent)
    played = events(steadyrun(home, "replay", process, "--jsonl"))
    assert played == events(steadyrun(home, "replay", str(tmp_path / run_id), "--jsonl"))
    texts = [event["data"] for event in played if event["type"] == "text.final"]
    assert texts == [{"text": "[redacted] [redacted]"}, {"text": "after"}]


def test_run_that_never_started_is_exported(home: Path, tmp_path: Path) -> None:
    home.mkdir()
    (home / "config.toml").write_text("[providers.scripted]\ncommand = ['/no/such/program']\n")
    run_id = json.loads(run(home, "x", "--json").stdout)["run"]

    done = steadyrun(home, "export", run_id, "-o", str(tmp_path / "a.tgz"))

    assert done.returncode == 0
    with tarfile.open(tmp_path / "a.tgz") as archive:
        assert [Path(name).name for name in archive.getnames()] == ["run.json", "events.jsonl"]


def test_export_to_an_unwritable_path_is_a_usage_error(home: Path) -> None:
    run_id = json.loads(run(home, script({"text": "x"}), "--json").stdout)["run"]

    done = steadyrun(home, "export", run_id, "-o", "/nowhere/a.tgz")

    assert done.returncode == 2
    assert "/nowhere/a.tgz" in done.stderr


# -- providers


def test_providers_are_listed_with_their_abilities(home: Path) -> None:
    home.mkdir()
    (home / "config.toml").write_text("[providers.shell]\ncommand = ['no-such-program']\n")

    listed = json.loads(steadyrun(home, "providers", "--json").stdout)["providers"]
    shown = steadyrun(home, "providers").stdout
    checked = steadyrun(home, "doctor")

    found = {each["name"]: each for each in listed}
    assert "steer" in found["scripted"]["abilities"]
    assert (found["shell"]["is_there"], found["scripted"]["is_there"]) == (False, True)
    assert "no-such-program: not found" in shown
    assert checked.returncode == 1
    assert "providers.shell.command" in checked.stdout


KILLED_EARLY = """
import os, signal
import anyio, steadyrun
from steadyrun.stores.sqlite import SqliteStore

async def killed(*_):
    os.kill(os.getpid(), signal.SIGKILL)

async def main():
    SqliteStore.open_process = killed
    async with steadyrun.open() as sr:
        run = await sr.start("hello", provider="scripted")
        await run.result()

anyio.run(main)
"""


def test_run_whose_command_was_killed_before_it_had_a_process_fails(
    home: Path, tmp_path: Path
) -> None:
    program = tmp_path / "killed.py"
    program.write_text(KILLED_EARLY)
    assert python(home, program).returncode == -signal.SIGKILL

    [found] = json.loads(steadyrun(home, "runs", "--json").stdout)["runs"]
    tailed = events(steadyrun(home, "tail", found["run"], "-f", "--jsonl"))

    assert tailed[-1]["type"] == "run.failed"
    assert (only_run(home)["status"], only_run(home)["stop_reason"]) == ("failed", "orphaned")


LEFT_AT_ONCE = """
import os

import anyio, steadyrun

async def main():
    async with steadyrun.open() as sr:
        run = await sr.start({prompt!r}, provider="scripted")
        {leave}

anyio.run(main)
"""


@pytest.mark.parametrize(
    ("leave", "code"),
    [
        ("pass", 0),
        ("raise RuntimeError", 1),
        ("os.kill(os.getpid(), 9)", -signal.SIGKILL),
    ],
    ids=["the end of the block", "an error in the block", "a kill"],
)
def test_run_that_was_started_continues_after_the_program_leaves_at_once(
    home: Path, tmp_path: Path, leave: str, code: int
) -> None:
    program = tmp_path / "left.py"
    program.write_text(LEFT_AT_ONCE.format(leave=leave, prompt=script({"text": "here"})))
    assert python(home, program).returncode == code

    [found] = json.loads(steadyrun(home, "runs", "--json").stdout)["runs"]
    tailed = events(steadyrun(home, "tail", found["run"], "-f", "--jsonl"))

    assert tailed[-1]["type"] == "run.completed"
    assert (only_run(home)["status"], only_run(home)["text"]) == ("completed", "here")
