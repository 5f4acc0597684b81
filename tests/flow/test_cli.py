"""The command as a person types it: a real process, its output and its exit code."""

import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import anyio
import pytest
from anyio.abc import Process as ChildProcess
from anyio.streams.buffered import BufferedByteReceiveStream

from steadyrun.cli.main import COMMANDS
from steadyrun.lib.clock import SystemClock
from steadyrun.lib.notifier import FALLBACK_POLL_SECONDS
from steadyrun.model import event as ev
from steadyrun.model.agent import Agent
from steadyrun.model.batch import Batch
from steadyrun.model.event import Emitted, Event
from steadyrun.model.ids import Ids, RunId
from steadyrun.model.item import Claim, Message
from steadyrun.model.process import Process
from steadyrun.model.run import Created, Finished, Launched
from steadyrun.stores.sqlite import SqliteStore
from tests.support.commands import COMMAND, environment, first_run, steadyrun
from tests.support.require import require

ENVELOPE = ["v", "cursor", "seq", "id", "type", "at", "agent", "run", "provider", "data"]
ENDING = {
    "status", "stop_reason", "text", "usage", "cost", "resume_token", "duration_ms", "exit_code",
    "error", "diagnostic",
}  # fmt: skip


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


def test_version_and_help_create_no_home(home: Path) -> None:
    version = steadyrun(home, "--version")
    usage = steadyrun(home, "--help")

    assert version.stdout == "steadyrun 0.1.0\n"
    assert all(command.words.split()[0] in usage.stdout for command in COMMANDS)
    assert not home.exists()


@pytest.mark.parametrize("words", [["--version"], ["--help"], ["config", "--help"], ["run", "-h"]])
def test_help_imports_no_heavy_module(words: list[str]) -> None:
    probe = (
        "import sys; from steadyrun.__main__ import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "heavy = {'msgspec', 'sqlite3', 'asyncio', 'anyio', 'tomllib'} & set(sys.modules)\n"
        "sys.exit(f'imported {heavy}' if heavy else 0)"
    )

    done = subprocess.run([sys.executable, "-c", probe, *words], capture_output=True, check=False)

    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "words",
    [
        [], ["unknown"], ["runs", "-n", "0"], ["runs", "-n", "x"], ["runs", "-n", "9" * 50],
        ["runs", "-n", "0000001999999"], ["runs", "-n", "0" * 9 + "1" * 30], ["runs", "-n", "٣"],
        ["show"], ["tail"], ["config"], ["config", "sho"], ["runs", "--jsno"],
        ["tail", "x", "--js"],
    ],
)  # fmt: skip
def test_invalid_command_line_is_a_usage_error(home: Path, words: list[str]) -> None:
    done = steadyrun(home, *words)

    assert done.returncode == 2
    assert "usage: steadyrun" in done.stderr
    assert done.stdout == ""


def test_usage_error_with_json_is_a_document(home: Path) -> None:
    done = steadyrun(home, "runs", "-n", "0", "--json")

    assert done.returncode == 2
    assert json.loads(done.stdout)["error"]["code"] == "usage"


@pytest.mark.parametrize("words", [["show"], ["tail"], ["runs", "--agent"]])
def test_argument_with_invalid_bytes_is_not_found(home: Path, words: list[str]) -> None:
    done = steadyrun(home, *words, os.fsdecode(b"x\xff\xfe"))

    assert done.returncode == 3
    assert "x" in done.stderr


@pytest.mark.parametrize(
    ("shell", "code", "said"),
    [
        ("{command} runs > /dev/full", 1, "No space left"),
        ("{command} --version > /dev/full", 1, "No space left"),
        ("{command} --help > /dev/full", 1, "No space left"),
        ("{command} show nope --json > /dev/full", 1, "No space left"),
        ("{command} runs >&-", 1, "closed"),
        ("{command} runs 2>&-", 0, ""),
        ("{command} show nope 2>&-", 3, ""),
        ("{command} runs <&-", 0, ""),
        ("set -o pipefail; {command} --help | true", 141, ""),
        ("set -o pipefail; {command} show nope --json | true", 141, ""),
    ],
)
def test_command_with_unusable_streams_prints_no_traceback(
    home: Path, shell: str, code: int, said: str
) -> None:
    # A pipe without a reader is closed before the command can write into it.
    line = shell.format(command=COMMAND).replace("| true", "| exec 0<&-")

    done = subprocess.run(
        ["bash", "-c", line], env=environment(home), capture_output=True, text=True, check=False
    )

    assert done.returncode == code
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    assert "Exception ignored" not in done.stderr


def test_an_empty_home_has_no_runs(home: Path) -> None:
    assert steadyrun(home, "runs").stdout == "No runs yet.\n"
    assert json.loads(steadyrun(home, "runs", "--json").stdout) == {"runs": []}


def test_stored_run_is_listed_shown_and_tailed(home: Path) -> None:
    run = first_run(home)

    [listed] = json.loads(steadyrun(home, "runs", "--json").stdout)["runs"]
    shown = steadyrun(home, "show", run[:20])
    tailed = steadyrun(home, "tail", run)

    assert (listed["run"], listed["status"], listed["tools"]) == (run, "completed", 1)
    assert set(listed) >= ENDING
    assert listed["cost"] == {"usd": 0.0031, "kind": "estimated"}
    assert "The retry waits one second too little." in shown.stdout
    assert [line.split()[1] for line in tailed.stdout.splitlines()] == [
        "run.started", "text.final", "tool.started", "tool.completed", "text.final",
        "run.completed",
    ]  # fmt: skip


def test_show_prints_one_document_with_every_key(home: Path) -> None:
    run = first_run(home)

    document = json.loads(steadyrun(home, "show", run, "--json").stdout)

    assert set(document) >= ENDING | {"run", "agent", "item", "provider", "model", "metadata"}
    assert document["error"] is None


def test_tail_prints_the_last_events_as_lines_of_json(home: Path) -> None:
    run = first_run(home)

    lines = steadyrun(home, "tail", run, "-n", "2", "--jsonl").stdout.splitlines()
    text, ended = (json.loads(line) for line in lines)

    assert [list(event) for event in (text, ended)] == [ENVELOPE, ENVELOPE]
    assert (text["type"], ended["type"]) == ("text.final", "run.completed")
    assert (text["seq"], ended["seq"], ended["cursor"]) == (5, 6, 6)
    assert set(ended["data"]) == ENDING
    assert ended["at"].endswith("Z")


@pytest.mark.parametrize("words", [["show", "run_nope"], ["tail", "run_nope"], ["tail", "missing"]])
def test_unknown_id_is_not_found(home: Path, words: list[str]) -> None:
    done = steadyrun(home, *words)

    assert done.returncode == 3
    assert words[1] in done.stderr
    assert "steadyrun runs" in done.stderr


def test_failure_with_json_is_a_document(home: Path) -> None:
    done = steadyrun(home, "show", "run_nope", "--json")

    error = json.loads(done.stdout)["error"]
    assert done.returncode == 3
    assert (error["code"], error["retryable"]) == ("not_found", False)


def test_prefix_that_matches_several_runs_is_refused(home: Path) -> None:
    first_run(home)
    first_run(home)

    done = steadyrun(home, "show", "run_")

    assert done.returncode == 2
    assert "matches several runs" in done.stderr


def test_control_characters_of_an_agent_do_not_reach_the_terminal(home: Path) -> None:
    hostile = "\x1b]0;owned\x07\x1b[2J\x9b31m\x08\x08\u202esafe\u2028\r\nnext\x00"
    run = anyio.run(record, home, hostile)

    shown = steadyrun(home, "show", run).stdout
    tailed = steadyrun(home, "tail", run).stdout

    for output in (shown, tailed):
        assert "safe" in output
        assert not any(ord(char) < 32 and char != "\n" for char in output)
        assert not set("\x9b\u202e\u2028") & set(output)


def test_control_characters_of_a_directory_name_do_not_reach_the_terminal(
    home: Path, tmp_path: Path
) -> None:
    project = tmp_path / "a\x1b[31m\nb"
    project.mkdir()
    (project / "steadyrun.toml").write_text("[providers.claude]\ncommand = ['sh']\n")

    outputs = [
        steadyrun(home, *words, cwd=project)
        for words in (["runs"], ["config", "path"], ["trust"], ["config", "show"], ["doctor"])
    ]

    assert [done.returncode for done in outputs] == [2, 0, 0, 0, 0]
    assert not any("\x1b" in done.stdout + done.stderr for done in outputs)


def test_tail_follows_a_run_of_another_process_to_its_end(home: Path) -> None:
    lines = anyio.run(follow_while_writing, home)

    assert [json.loads(line)["type"] for line in lines] == [
        "run.started", "text.final", "text.final", "text.final", "run.completed",
    ]  # fmt: skip
    assert [json.loads(line)["seq"] for line in lines] == [1, 2, 3, 4, 5]


def test_ctrl_c_ends_a_tail_with_130(home: Path) -> None:
    async def interrupt() -> tuple[int, bytes]:
        store = await SqliteStore.open(home)
        writer = await Recorder.begin(store)
        with anyio.fail_after(60):
            child = await tail(home, writer.run)
            await child.line()
            child.process.send_signal(signal.SIGINT)
            code, errors = await child.process.wait(), await child.errors()
        await store.close()
        return code, errors

    code, errors = anyio.run(interrupt)

    assert code == 130
    assert b"Traceback" not in errors


def test_ctrl_c_at_any_moment_of_the_start_prints_no_traceback(home: Path) -> None:
    first_run(home)
    # The moments are parts of the time that the command takes on this machine.
    begin = time.monotonic()
    steadyrun(home, "runs")
    usual_seconds, chance = time.monotonic() - begin, random.Random(7)
    outcomes = [interrupted(home, chance.uniform(0.05, 1.5) * usual_seconds) for _ in range(24)]

    # Python's own start, before our first line runs, is not ours to mend.
    begun = [each for each in outcomes if b"Fatal Python error" not in each[1]]
    # Before the command begins the signal itself ends it; a shell calls both 130.
    assert {code for code, _ in begun} <= {0, 130, -signal.SIGINT}
    assert not [errors for _, errors in begun if b" in main" in errors]
    assert [errors for _, errors in outcomes].count(b"") >= 12


def interrupted(home: Path, after_seconds: float) -> tuple[int, bytes]:
    """Start `runs`, send Ctrl-C after a while (it may be done by then), and see how it ended."""
    with subprocess.Popen(
        [COMMAND, "runs"],
        env=environment(home),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    ) as child:
        assert child.stderr
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(after_seconds)
        child.send_signal(signal.SIGINT)
        return child.wait(30), child.stderr.read()


def test_tail_without_a_reader_exits_with_141_and_no_message(home: Path) -> None:
    run = first_run(home)

    with subprocess.Popen(
        [COMMAND, "tail", run, "--jsonl"],
        env=environment(home),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as child:
        assert child.stdout
        assert child.stderr
        child.stdout.close()
        errors = child.stderr.read()

    assert child.returncode == 141
    assert errors == b""


def test_config_that_is_not_text_is_a_configuration_error(home: Path) -> None:
    home.mkdir()
    (home / "config.toml").write_bytes(bytes(range(256)) * 4)

    done = steadyrun(home, "runs")

    assert done.returncode == 2
    assert "config.toml" in done.stderr


def test_unreadable_config_is_a_configuration_error(home: Path) -> None:
    home.mkdir()
    (home / "config.toml").touch(mode=0)

    done = steadyrun(home, "config", "check", wrapper=unprivileged())

    assert done.returncode == 2
    assert "config.toml: cannot be read: Permission denied" in done.stderr


def test_unknown_setting_is_reported_with_file_line_and_nearest_key(home: Path) -> None:
    home.mkdir()
    (home / "config.toml").write_text("[daemon]\nlisen = '127.0.0.1:1'\n")

    done = steadyrun(home, "config", "check")

    assert done.returncode == 2
    assert "config.toml:2" in done.stderr
    assert "listen" in done.stderr


def test_project_may_set_a_command_only_after_it_is_trusted(home: Path, tmp_path: Path) -> None:
    project = tmp_path / "project"
    project.mkdir()
    (project / "steadyrun.toml").write_text("[providers.claude]\ncommand = ['./evil']\n")

    before = steadyrun(home, "config", "show", cwd=project)
    trusted = steadyrun(home, "trust", cwd=project)
    after = steadyrun(home, "config", "show", cwd=project)

    assert (before.returncode, trusted.returncode, after.returncode) == (2, 0, 0)
    assert "steadyrun trust" in before.stderr
    assert "./evil" in after.stdout


@pytest.mark.parametrize("words", [["runs"], ["show", "run_x"], ["tail", "x"]])
def test_command_on_a_damaged_store_fails_with_the_name_of_the_file(
    home: Path, words: list[str]
) -> None:
    home.mkdir()
    (home / "steadyrun.db").write_bytes(os.urandom(8192))

    done = steadyrun(home, *words)

    assert done.returncode == 1
    assert "steadyrun.db" in done.stderr


def test_command_on_an_unwritable_home_fails_with_its_path(home: Path) -> None:
    home.mkdir(mode=0o500)

    done = steadyrun(home, "runs", wrapper=unprivileged())

    assert done.returncode == 1
    assert str(home) in done.stderr


def test_doctor_reports_no_failure_without_a_home_and_creates_none(home: Path) -> None:
    done = steadyrun(home, "doctor")

    states = {" ".join(words[1:3]): words[0] for words in map(str.split, done.stdout.splitlines())}
    assert done.returncode == 0
    assert [line.split()[:2] for line in done.stdout.splitlines()[:5]] == [
        ["ok", "python"], ["ok", "config"], ["ok", "home"], ["ok", "store"], ["ok", "daemon"],
    ]  # fmt: skip
    assert states["provider scripted"] == states["provider shell"] == "ok"
    assert "fail" not in states.values()
    assert not home.exists()


def test_doctor_reports_each_problem_and_its_repair(home: Path) -> None:
    first_run(home)
    home.chmod(0o755)
    (home / "config.toml").write_text("nonsense = 1\n")
    (home / "steadyrun.db").write_bytes(b"not a database, and long enough to be one" * 100)

    done = steadyrun(home, "doctor", "--json")
    found = {check["check"]: check for check in json.loads(done.stdout)["checks"]}

    assert done.returncode == 1
    assert {name: check["state"] for name, check in found.items()} == {
        "python": "ok", "config": "fail", "home": "warn", "store": "fail", "daemon": "ok",
    }  # fmt: skip
    assert found["home"]["repair"] == f"chmod 700 {home}"


def test_doctor_reports_an_unwritable_home(home: Path) -> None:
    home.mkdir(mode=0o500)

    done = steadyrun(home, "doctor", wrapper=unprivileged())

    assert done.returncode == 1
    assert "is not writable" in done.stdout


def unprivileged() -> tuple[str, ...]:
    """Root may write anywhere: run the command without that power. For others it is nothing."""
    if os.geteuid() != 0:
        return ()
    require("setpriv", shutil.which("setpriv") is not None, "needs util-linux")
    powers = "-dac_override,-dac_read_search,-fowner"
    return ("setpriv", f"--bounding-set={powers}", "--inh-caps=-all")


class Recorder:
    """A run being written through the store's verbs, as another process would."""

    def __init__(self, store: SqliteStore, claim: Claim, run: RunId, process: Process) -> None:
        self.store, self.claim, self.run, self.process = store, claim, run, process
        self.offset = 0

    @classmethod
    async def begin(cls, store: SqliteStore) -> "Recorder":
        now = SystemClock().now()
        ids = Ids(SystemClock().now)
        agent = Agent(ids.make_agent(), "ada", ("scripted",), home=".")
        await store.add_agent(agent)
        await store.accept(Message(agent.id, "go"))
        holder = await store.join("test")
        run = ids.make_run()
        [started] = await store.start(
            holder.id, lambda agent, item: Created(run, agent.id, item.id, "scripted", now)
        )
        claim = started.claim
        process = Process(ids.make_process(), agent.id, "scripted", "here", "none", now)
        await store.open_process(claim, process)
        await store.change(claim, run, Launched(now, process.id))
        return cls(store, claim, run, process)

    async def append(self, event: Event) -> None:
        start, self.offset = self.offset, self.offset + 10
        emitted = Emitted(self.offset, 0, SystemClock().now(), event)
        batch = Batch(self.process.id, self.run, start, self.offset, (emitted,))
        await self.store.append(self.claim, batch)

    async def settle(self, text: str) -> None:
        await self.store.settle(self.claim, Finished(SystemClock().now(), "completed", text=text))


async def record(home: Path, text: str) -> RunId:
    store = await SqliteStore.open(home)
    writer = await Recorder.begin(store)
    await writer.append(ev.TextFinal(text))
    await writer.append(ev.ToolStarted("1", text, {"a": text}))
    await writer.settle(text)
    await store.close()
    return writer.run


async def follow_while_writing(home: Path) -> list[str]:
    """Write one event at a time, each only after the tail has printed the one before."""
    store = await SqliteStore.open(home)
    writer = await Recorder.begin(store)
    # Less than the fallback poll: only hints from the other process can be this quick.
    with anyio.fail_after(FALLBACK_POLL_SECONDS - 1):
        child = await tail(home, writer.run)
        lines = [await child.line()]
        for text in ("one", "two", "three"):
            await writer.append(ev.TextFinal(text))
            lines.append(await child.line())
        await writer.settle("done")
        lines.append(await child.line())
        assert await child.process.wait() == 0
        assert await child.errors() == b""
    await store.close()
    return lines


class Tail:
    """A running `steadyrun tail -f`, read line by line."""

    def __init__(self, process: ChildProcess) -> None:
        assert process.stdout
        self.process = process
        self._out = BufferedByteReceiveStream(process.stdout)

    async def line(self) -> str:
        return (await self._out.receive_until(b"\n", 1 << 20)).decode()

    async def errors(self) -> bytes:
        assert self.process.stderr
        return b"".join([chunk async for chunk in self.process.stderr])


async def tail(home: Path, run: RunId) -> Tail:
    command = [str(COMMAND), "tail", run, "-f", "--jsonl"]
    return Tail(await anyio.open_process(command, env=environment(home)))
