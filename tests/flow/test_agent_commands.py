"""The commands for agents as a person types them, with a daemon and without."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import anyio
import pytest

from steadyrun.model.agent import Agent
from steadyrun.model.ids import AgentId
from steadyrun.stores.sqlite import SqliteStore
from tests.support.commands import COMMAND, ROOT, environment, steadyrun

AGENT_KEYS = [
    "id", "name", "provider", "fallback", "home", "role", "model", "mode", "tier", "tools", "deny",
    "followup", "on_lost", "on_limited", "approvers", "origin", "state", "until", "reason",
    "budget", "process", "item", "run", "now", "queued", "resume_token", "cost_today",
]  # fmt: skip
ITEM_KEYS = [
    "id", "agent", "status", "delivery", "run", "text", "reply", "kind", "followup", "attempt",
    "waiting", "until", "reason", "error", "retry_of", "files", "text_pruned", "created_at",
    "started_at", "settled_at",
]  # fmt: skip
NO_DAEMON = "no daemon is running: steadyrun up\n"


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


@contextmanager
def daemon(home: Path, *words: str) -> Iterator["subprocess.Popen[str]"]:
    """The small daemon of the tests, ready, in a process of its own; gone at the end."""
    program = ROOT / "tests/children/small_daemon.py"
    with subprocess.Popen(
        [sys.executable, program, home, *words],
        env=environment(home) | {"PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        text=True,
    ) as child:
        try:
            assert child.stdout
            assert child.stdout.readline() == "ready\n"
            yield child
        finally:
            child.kill()


def add(home: Path, name: str = "ada", *words: str) -> None:
    done = steadyrun(home, "agent", "add", name, "--provider", "scripted", "--home", "/", *words)
    assert done.returncode == 0, done.stderr


def document(home: Path, *words: str) -> Any:
    done = steadyrun(home, *words, "--json")
    assert done.returncode == 0, (done.stdout, done.stderr)
    return json.loads(done.stdout)


def keep_busy(home: Path) -> None:
    """Have ada do something that does not end by itself, and see that it has begun."""
    document(home, "send", "ada", "wait")
    for _ in range(200):
        if document(home, "agent", "show", "ada")["run"]:
            return
    raise AssertionError("nothing has begun")


def said(home: Path, *words: str) -> tuple[int, str, str]:
    """Exit code, stdout and stderr, ids shortened to what they are of."""
    done = steadyrun(home, *words)
    out, err = (re.sub(r"\b(itm|run|agt)_[0-9a-z]{26}", r"\1_…", text)
                for text in (done.stdout, done.stderr))  # fmt: skip
    return done.returncode, out, err


def test_agent_is_added_listed_changed_shown_and_removed(home: Path) -> None:
    home.mkdir()
    (home / "roles").mkdir()
    (home / "roles" / "tester.md").write_text("Test.")
    words = [
        "--provider",
        "scripted",
        "--home",
        str(home),
        "--role",
        "tester",
        "--fallback",
        "shell",
    ]

    none = said(home, "agents")
    added = said(home, "agent", "add", "ada", *words)
    listed = said(home, "agents")
    changed = said(home, "agent", "set", "ada", "--on-lost", "fail", "--clear", "role,fallback")
    shown = said(home, "agent", "show", "ada")
    removed = said(home, "agent", "rm", "ada")

    assert none == (0, "There are no agents yet.\n", "")
    assert added == (0, "added ada\n", "")
    assert listed == (
        0,
        "NAME  STATE  PROVIDER  NOW  QUEUE  TODAY\n"
        "ada   idle   scripted  -    0      $0.00\n",
        "",
    )  # fmt: skip
    assert changed == (0, "set ada: on-lost, role, fallback\n", "")
    assert shown == (
        0,
        "agent     ada\n"
        "state     idle\n"
        "queue     0\n"
        "today     $0.00\n"
        "provider  scripted\n"
        f"home      {home}\n"
        "mode      default\n"
        "followup  steer\n"
        "on lost   fail\n"
        "on limit  wait\n"
        "origin    store\n",
        "",
    )
    assert removed == (0, "removed ada\n", "")
    assert said(home, "agent", "show", "ada")[0] == 3


@pytest.mark.parametrize(
    ("words", "code", "error"),
    [
        (["add", "Ada", "--provider", "scripted", "--home", "/"], 2, "usage"),
        (["add", "ada", "--provider", "gemini", "--home", "/"], 2, "usage"),
        (["add", "ada", "--provider", "scripted"], 2, "usage"),
        (["add", "ada", "--provider", "scripted", "--home", "/none"], 3, "agent_home_missing"),
        (["add", "ada", "--provider", "shell", "--home", "/", "--model", "m"], 2,
         "ability_missing"),
        (["add", "ada", "--provider", "scripted", "--home", "/", "--mode", "wild"], 2, "usage"),
        (["add", "ada", "--provider", "scripted", "--home", "/", "--role", "r"], 3, "role_missing"),
        (["show", "bob"], 3, "not_found"),
        (["set", "bob", "--model", "m"], 3, "not_found"),
        (["rm", "bob"], 3, "not_found"),
        (["pause", "bob"], 3, "not_found"),
        (["pause"], 2, "usage"),
    ],
)  # fmt: skip
def test_invalid_arguments_are_reported_by_error_code(
    home: Path, words: list[str], code: int, error: str
) -> None:
    done = steadyrun(home, "agent", *words, "--json")

    assert done.returncode == code
    assert json.loads(done.stdout)["error"]["code"] == error


def test_budget_of_a_provider_without_usage_is_refused_with_the_reason(home: Path) -> None:
    words = ["--provider", "shell", "--home", "/", "--budget", "day=5"]
    done = steadyrun(home, "agent", "add", "ada", *words)

    assert done.returncode == 2
    assert "it reports no usage" in done.stderr


def test_taken_name_and_change_of_a_configured_agent_are_refused(home: Path) -> None:
    async def configured() -> None:
        store = await SqliteStore.open(home)
        await store.add_agent(Agent(AgentId("agt_1"), "eve", ("scripted",), "/", origin="config"))
        await store.close()

    anyio.run(configured)
    add(home)

    taken = said(home, "agent", "add", "ada", "--provider", "scripted", "--home", "/")
    read_only = said(home, "agent", "rm", "eve")

    assert (taken[0], read_only[0]) == (5, 4)
    assert "[agents.eve]" in read_only[2]


def test_documents_have_every_key(home: Path) -> None:
    add(home)

    agent = document(home, "agents")["agents"][0]
    page = document(home, "agent", "show", "ada")
    item = document(home, "send", "ada", "hello")
    [listed] = document(home, "inbox")["items"]

    assert list(agent) == AGENT_KEYS
    assert list(page) == [*AGENT_KEYS, "system", "timeout_seconds", "tokens"]
    assert list(item) == ITEM_KEYS
    assert listed == item
    assert (item["waiting"], item["status"]) == ("daemon", "queued")


def test_message_sent_without_a_daemon_is_queued_with_a_notice(home: Path) -> None:
    add(home)

    sent = said(home, "send", "ada", "hello\nworld", "--queue")
    inbox = said(home, "inbox")
    retried = said(home, "retry", "itm_")
    busy = said(home, "agent", "rm", "ada")
    cancelled = said(home, "cancel", "itm_")
    again = said(home, "retry", "itm_")
    everything = said(home, "inbox", "ada", "--all")

    assert sent == (0, "* itm_… queued for ada\n", NO_DAEMON)
    assert inbox[0] == 0
    assert [line.split()[:4] for line in inbox[1].splitlines()] == [
        ["ITEM", "AGENT", "STATUS", "DELIVERY"], ["itm_…", "ada", "queued", "(daemon)"],
    ]  # fmt: skip
    assert inbox[1].splitlines()[1].endswith("hello world")
    assert (retried[0], busy[0]) == (5, 5)
    assert cancelled == (0, "cancelled: itm_…\n", "")
    assert again == (0, "itm_…: retry of itm_…\n", "")
    assert [line.split()[2] for line in everything[1].splitlines()[1:]] == ["queued", "cancelled"]


@pytest.mark.parametrize(
    ("words", "code", "error"),
    [
        (["send", "bob", "hello"], 3, "not_found"),
        (["send", "ada", " "], 2, "usage"),
        (["send", "ada", "hello", "--timeout", "5s"], 2, "usage"),
        (["send", "ada", "hello", "--queue", "--steer"], 2, "usage"),
        (["inbox", "bob"], 3, "not_found"),
        (["inbox", "-n", "0"], 2, "usage"),
        (["cancel", "itm_none"], 3, "not_found"),
        (["retry", "itm_none"], 3, "not_found"),
        (["status"], 69, "daemon_unreachable"),
        (["down"], 69, "daemon_unreachable"),
        (["send", "ada", "hello", "--wait"], 69, "daemon_unreachable"),
    ],
)
def test_impossible_request_is_refused_and_accepts_no_item(
    home: Path, words: list[str], code: int, error: str
) -> None:
    add(home)

    done = steadyrun(home, *words, "--json")

    assert done.returncode == code
    assert json.loads(done.stdout)["error"]["code"] == error
    assert document(home, "inbox", "--all") == {"items": []}


def test_message_of_1_mb_is_read_from_stdin_and_5_mb_are_refused(home: Path) -> None:
    add(home)

    def pipe(text: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [COMMAND, "send", "ada", "-", "--json"],
            input=text, env=environment(home), capture_output=True, text=True, check=False,
        )  # fmt: skip

    taken, refused = pipe("x" * 1_000_000), pipe("x" * 5_000_000)

    assert (taken.returncode, refused.returncode) == (0, 2)
    assert json.loads(refused.stdout)["error"]["code"] == "message_too_long"
    assert [len(item["text"]) for item in document(home, "inbox")["items"]] == [1_000_000]


def test_message_with_the_same_key_is_accepted_once(home: Path) -> None:
    add(home)

    first, again = (document(home, "send", "ada", "hello", "--key", "k") for _ in range(2))

    assert first == again


def test_send_with_wait_prints_the_reply_of_the_agent(home: Path) -> None:
    add(home)

    with daemon(home):
        waited = said(home, "send", "ada", "hello", "--wait")
        failed = said(home, "send", "ada", "fail", "--wait")
        item = document(home, "send", "ada", "again", "--wait")
        status = document(home, "status")

    assert (waited[0], waited[1]) == (0, "You said: hello\n")
    assert waited[2].splitlines()[:2] == ["* itm_… queued for ada", "* started (scripted)"]
    assert waited[2].splitlines()[-1].startswith("* done in")
    assert failed[0] == 1
    assert "it broke" in failed[2]
    assert list(item) == [*ITEM_KEYS, "result"]
    assert (item["status"], item["reply"]) == ("completed", "You said: again")
    assert item["result"]["text"] == "You said: again"
    assert [agent["name"] for agent in status["agents"]] == ["ada"]
    assert status["gates"] == [
        {"provider": "scripted", "account": "", "state": "open", "until": None, "level": 0,
         "dispatchable": True, "reason": None, "probe": None, "run": None, "hit_at": None,
         "is_present": True},
    ]  # fmt: skip


def test_send_with_the_key_of_a_settled_item_prints_its_reply(home: Path) -> None:
    add(home)

    with daemon(home):
        words = ["send", "ada", "hello", "--wait", "--key", "k"]
        first, again = said(home, *words), said(home, *words)
        item = document(home, *words)

    assert (first[0], again[0]) == (0, 0)
    assert again[1] == first[1] == "You said: hello\n"
    assert again[2].splitlines()[0] == "* itm_… completed for ada"
    assert item["result"]["text"] == "You said: hello"


def test_wait_ends_after_its_timeout_and_another_process_cancels_the_item(home: Path) -> None:
    add(home)

    with daemon(home):
        keep_busy(home)
        left = said(home, "send", "ada", "again", "--wait", "--timeout", "500ms")
        [second, _] = document(home, "inbox")["items"]
        running = said(home, "status")
        gone = said(home, "cancel", second["id"])
        cancelled = said(home, "cancel", "run_")
        status = document(home, "cancel", "run_")

    assert left[0] == 7
    assert (second["status"], second["waiting"]) == ("queued", "turn")
    assert gone == (0, "cancelled: itm_…\n", "")
    assert "still open: steadyrun tail ada -f" in left[2]
    assert "1 of 5 runs" in running[1]
    assert running[1].splitlines()[2].split()[:4] == ["ada", "running", "scripted", "wait"]
    assert cancelled == (0, "cancelled: run_…\n", "")
    assert status["status"] == "cancelled"
    assert list(status) == ["run", "item", "status", "stop_reason"]


def test_ctrl_c_once_stops_waiting_and_twice_cancels_the_item(home: Path) -> None:
    add(home)

    def interrupted(times: int) -> tuple[int, str]:
        with subprocess.Popen(
            [COMMAND, "send", "ada", "wait", "--wait"],
            env=environment(home), stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        ) as child:  # fmt: skip
            assert child.stderr
            lines: list[str] = []
            while not lines or "started" not in lines[-1]:
                lines.append(child.stderr.readline())
            for _ in range(times):
                child.send_signal(signal.SIGINT)
                lines.append(child.stderr.readline())
            rest = child.stderr.read()
            return child.wait(), "".join([*lines, rest])

    with daemon(home):
        once = interrupted(1)
        [open_item] = document(home, "inbox")["items"]
        document(home, "cancel", open_item["id"])
        twice = interrupted(2)
        after = document(home, "inbox")

    assert once[0] == 130
    assert "still open: steadyrun tail ada -f" in once[1]
    assert open_item["status"] == "running"
    assert twice[0] == 8
    assert "cancelling itm_" in twice[1]
    assert after == {"items": []}


def test_pause_reports_the_run_that_continues(home: Path) -> None:
    add(home)
    add(home, "bob")

    with daemon(home):
        keep_busy(home)
        paused = said(home, "pause", "--all")
        agents = document(home, "agents")["agents"]
        document(home, "cancel", "run_")
        resumed = said(home, "agent", "resume", "ada")

    assert paused == (0, "paused ada; 1 run continues\npaused bob\n", "")
    assert [(agent["state"], agent["now"]) for agent in agents] == [
        ("paused", "wait"), ("paused", None),
    ]  # fmt: skip
    assert resumed == (0, "resumed ada\n", "")


def test_tail_follows_stored_and_live_events_across_a_killed_daemon(home: Path) -> None:
    add(home)
    with subprocess.Popen(
        [COMMAND, "tail", "--all", "-f", "--jsonl"],
        env=environment(home), stdout=subprocess.PIPE, text=True,
    ) as tail:  # fmt: skip
        assert tail.stdout
        try:
            events: list[Any] = []
            with daemon(home):
                while "text.delta" not in {event["type"] for event in events}:
                    said(home, "send", "ada", "hello", "--wait")
                    events += _until_end(tail.stdout)
            with daemon(home, "idle"):
                said(home, "send", "ada", "two")
            with daemon(home):
                said(home, "send", "ada", "three", "--wait")
                events += [*_until_end(tail.stdout), *_until_end(tail.stdout)]
        finally:
            tail.kill()

    cursors = [event["cursor"] for event in events if event["cursor"] is not None]
    assert cursors == list(range(1, len(cursors) + 1))
    assert events[-1]["data"]["text"] == "You said: three"


def _until_end(lines: Any) -> list[Any]:
    """The events of one run."""
    found: list[Any] = []
    while not found or found[-1]["type"] != "run.completed":
        found.append(json.loads(lines.readline()))
    return found


def test_tail_selects_events_by_kind_count_and_cursor(home: Path) -> None:
    add(home)
    with daemon(home):
        for text in ("one", "fail", "two"):
            said(home, "send", "ada", text, "--wait")

    def types(*words: str) -> list[str]:
        done = steadyrun(home, "tail", *words, "--jsonl")
        assert done.returncode == 0, done.stderr
        return [json.loads(line)["type"] for line in done.stdout.splitlines()]

    every = types("ada")

    assert every == [
        "run.started", "text.final", "run.completed", "run.started", "run.failed", "run.started",
        "text.final", "run.completed",
    ]  # fmt: skip
    assert types("--all", "-n", "2") == ["text.final", "run.completed"]
    assert types("ada", "--kind", "text,error") == ["text.final", "run.failed", "text.final"]
    assert types("ada", "--kind", "text", "-n", "2") == ["text.final", "text.final"]
    assert types("ada", "--kind", "error", "-n", "1") == ["run.failed"]
    assert types("ada", "--after", "5") == every[5:]
    assert types("ada", "--after", "0", "-n", "2") == every[:2]
    assert types("ada", "--after", "0", "--kind", "text", "-n", "1") == ["text.final"]
    assert types("--all", "--after", "8") == []


@pytest.mark.parametrize(
    "words",
    [["tail", "ada", "--all"], ["tail", "ada", "--kind", "noise"], ["tail", "ada", "--after", "x"]],
)
def test_invalid_tail_options_are_a_usage_error(home: Path, words: list[str]) -> None:
    add(home)

    assert said(home, *words)[0] == 2


@pytest.mark.parametrize("keep", [[], ["--keep"]])
def test_down_ends_the_daemon_and_waits_until_it_is_gone(home: Path, keep: list[str]) -> None:
    add(home)

    with daemon(home) as child:
        done = said(home, "down", "--drain", "2s", *keep)
        code = child.wait(30)
    after = said(home, "status")

    assert done == (0, "* down\n", "")
    assert code == 0
    assert after[0] == 69
    assert not (home / "daemon" / "socket").exists()


def test_down_reports_the_runs_it_waits_for_and_their_outcome(home: Path) -> None:
    add(home)

    with daemon(home):
        keep_busy(home)
        done = steadyrun(home, "down", "--drain", "1s", "--json")

    assert done.returncode == 0
    assert re.fullmatch(r"\* waiting for 1 run \(\ds\)\n", done.stderr)
    assert json.loads(done.stdout) == {"stopped": 1, "kept": 0, "queued": 0}


def test_down_with_keep_leaves_the_processes_and_does_not_wait(home: Path) -> None:
    add(home)

    with daemon(home):
        keep_busy(home)
        done = said(home, "down", "--keep")

    assert done == (0, "* down: 1 kept\n", "")


@contextmanager
def dying(home: Path) -> Iterator[None]:
    """A daemon that greets each client and exits at the first request."""
    folder = home / "daemon"
    folder.mkdir(mode=0o700, exist_ok=True)
    with socket.socket(socket.AF_UNIX) as listener, pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        listener.bind("socket")
        listener.listen()

        def greet() -> None:
            with suppress(OSError):
                while True:
                    connection, _ = listener.accept()
                    with connection, connection.makefile("rb") as lines:
                        lines.readline()
                        connection.sendall(b'{"jsonrpc":"2.0","id":1,"result":{}}\n')
                        lines.readline()

        thread = threading.Thread(target=greet)
        thread.start()
        try:
            yield
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()


def test_call_lost_with_its_daemon_is_repeated_only_if_it_is_idempotent(
    home: Path,
) -> None:
    add(home)

    with dying(home):
        read = said(home, "inbox")
        sent = said(home, "send", "ada", "maybe")
        with_key = said(home, "send", "ada", "surely", "--key", "k")
        status = said(home, "status")
    items = document(home, "inbox")["items"]

    assert read == (0, "No open items.\n", "")
    assert sent[0] == 1
    assert "the connection ended before item.send was answered" in sent[2]
    assert with_key == (0, "* itm_… queued for ada\n", NO_DAEMON)
    assert status[0] == 1
    assert [item["text"] for item in items] == ["surely"]


def test_command_uses_the_store_when_the_daemon_is_stopped(home: Path) -> None:
    add(home)

    with daemon(home, "idle") as child:
        os.kill(child.pid, signal.SIGSTOP)
        sent = said(home, "send", "ada", "hello")

    assert sent[:2] == (0, "* itm_… queued for ada\n")
    assert sent[2].startswith(f"the daemon {child.pid} of {home} does not answer: it is stopped")
