"""Tests that a CLI outlives its driver, and that no process outlives the end of the CLI.

Everything here is real: keepers, drivers, badly behaved CLIs and kill -9. After each test nothing
of it may be running.
"""

import contextlib
import json
import os
import py_compile
import re
import select
import shutil
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from steadyrun.drivers import keeper, keeper_client
from tests.children.keeper_cli import FLOOD_BYTES, LINE_BYTES
from tests.children.keeper_driver import (
    KEEPER,
    PATIENCE_SECONDS,
    PROCESS,
    Driver,
    Kept,
    eventually,
    hostile,
    is_locked,
    parent,
    spec,
    start,
)
from tests.support.commands import ROOT
from tests.support.require import require

CHILDREN = ROOT / "tests/children"
OK = {"type": "ok"}
INTERRUPT = {"do": "signal", "number": signal.SIGINT, "wait_seconds": 10}
# How a CLI may try to keep something alive, with the number of processes it has besides itself.
HOSTILE = {"ignore": 1, "fork_twice": 1, "clean": 1, "close_stdio": 0, "run_away": 0}

INVALID_MESSAGES = [
    b"nonsense\n",
    b"[]\n",
    b'{"type":["stop"]}\n',
    b'{"type":"sing"}\n',
    b'{"type":"frame","key":"k","at":0}\n',
    b'{"type":"frame","key":"k","at":-1,"size":1}\nx',
    b'{"type":"frame","key":"","at":0,"size":1}\nx',
    b'{"type":"frame","key":"k","at":0,"size":true}\nx',
    b'{"type":"frame","key":"k","at":0,"size":67108865}\n',
    b'{"type":"stop","reason":"r","size":1}\nx',
    b'{"type":"stop"}\n',
    b'{"type":"signal","number":0}\n',
    b'{"type":"signal","number":[]}\n',
    b'{"type":"claim","v":2,"fence":9}\n',
    b'{"type":"claim","v":1,"fence":1.5}\n',
    b"[" * 60_000 + b"\n",
    b"x" * 70_000,
    b"\xff\n",
]


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A directory for a process, in the working directory of the CLI."""
    return tmp_path / "prc"


@pytest.fixture(autouse=True)
def check_no_process_is_left(tmp_path: Path) -> Iterator[None]:
    yield
    try:
        eventually(lambda: not _find_processes(tmp_path), "that nothing is left")
    finally:
        for pid in _find_processes(tmp_path):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


# -- starting


def test_cli_gets_what_the_spec_contains_and_nothing_of_the_driver(
    tmp_path: Path, place: Path
) -> None:
    reading, writing = os.pipe()
    words = [f"/proc/self/{name}" for name in ("status", "oom_score_adj", "environ")]
    wrapper = ["sh", "-c", 'umask 027; trap "" HUP USR1 CHLD; exec "$@"', "sh"]
    what = spec(place, ["cat", *words], env={"PATH": "/usr/bin:/bin", "ODD": "ä\udcff="})

    with subprocess.Popen(
        [*wrapper, sys.executable, "-I", "-S", KEEPER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=writing,
        pass_fds=[writing],
        preexec_fn=_block_signals,  # noqa: PLW1509 (there is one thread)
    ) as starter:
        answer, _ = starter.communicate(json.dumps(what).encode(), PATIENCE_SECONDS)
    os.close(writing)

    assert json.loads(answer)["pid"] > 0
    assert os.read(reading, 1000) == b"", (
        "no other process has the driver's descriptors or writes to them"
    )
    os.close(reading)
    eventually(lambda: not is_locked(place), "the end")
    journal = (place / "journal").read_bytes()
    umask, *masks = re.findall(rb"(?:Umask|SigBlk|SigIgn):\t(\w+)", journal)
    assert umask == b"0027"
    # Signals 32 and 33 are the C library's own: no program can change how they came to it.
    assert [int(mask, 16) & ~(0b11 << 31) for mask in masks] == [0, 0]
    assert journal.split(b"\n")[-1] == b"".join(
        entry + b"\0"
        for entry in (
            b"PATH=/usr/bin:/bin",
            b"ODD=\xc3\xa4\xff=",
            b"STEADYRUN_PROCESS=" + PROCESS.encode(),
        )
    )
    assert journal.split(b"\n")[-2] == b"500"


def test_cli_leads_its_own_session_and_has_three_descriptors(tmp_path: Path, place: Path) -> None:
    kept = Kept(place, ["sh", "-c", "ls /proc/$$/fd; pwd; cut -d' ' -f1,5,6 /proc/$$/stat"])

    assert kept.wait_for_end()["code"] == 0
    *descriptors, directory, session = kept.read("journal").decode().splitlines()
    assert descriptors == ["0", "1", "2"]
    assert directory == str(tmp_path)
    assert session.split() == [str(kept.pid)] * 3


def test_keeper_is_detached_and_creates_only_private_files(place: Path) -> None:
    kept = Kept(place, ["cat"])

    assert parent(kept.outer) != os.getpid()
    assert is_locked(place)
    assert stat.S_IMODE(place.stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in place.iterdir()} == {0o600}
    with Driver(place) as driver:
        driver.claim()
        driver.stop()
    kept.wait_for_end()
    names = {path.name for path in place.iterdir()}
    assert names == {"journal", "stderr", "sent", "exit", "lock", "socket"}


@pytest.mark.parametrize(
    ("argv", "changes", "code"),
    [
        (["no such program"], {}, "not_found"),
        (["/no/such/program"], {}, "not_found"),
        (["cat"], {"env": {}}, "started"),
        (["cat"], {"env": {"PATH": "/nowhere:/etc/passwd"}}, "not_found"),
        (["passwd"], {"env": {"PATH": "/etc:/nowhere"}}, "not_executable"),
        (["/etc"], {}, "not_executable"),
        (["cat"], {"cwd": "/no/such/directory"}, "no_directory"),
        (["cat"], {"cwd": "/etc/passwd"}, "no_directory"),
        (["cat", "\0"], {}, "invalid"),
        (["cat", "x" * 3_000_000], {}, "too_long"),
        ([], {}, "failed"),
    ],
)
def test_cli_that_cannot_be_started_is_reported_with_an_error_code(
    place: Path, argv: list[str], changes: dict[str, Any], code: str
) -> None:
    answer = start(spec(place, argv, stdin="null", **changes))

    eventually(lambda: not is_locked(place), "the end")
    ended = json.loads((place / "exit").read_bytes())
    assert answer.get("error", {"code": "started"})["code"] == code
    assert ended["error"] == answer.get("error")
    assert (ended["code"], ended["signal"]) == ((0, None) if code == "started" else (None, None))


@pytest.mark.parametrize(
    "change", [{"v": 2}, {"directory": "/no/such/place"}, {"directory": "/etc/passwd"}], ids=str
)
def test_impossible_spec_is_answered_with_an_error(place: Path, change: dict[str, Any]) -> None:
    answer = start(spec(place, ["cat"]) | change)

    assert answer["error"]["code"] == "failed"
    assert answer["error"]["message"]
    assert not place.exists()


@pytest.mark.parametrize("garbage", [b"", b"[" * 100_000, b"\xff\xfe\0"], ids=["", "[[[", "ff"])
def test_spec_that_is_not_json_is_refused(garbage: bytes) -> None:
    assert start(garbage)["error"]["code"] == "failed"


@pytest.mark.parametrize(
    "change",
    [
        {"argv": None},
        {"env": {"A": 1}},
        {"env": []},
        {"stdin": "file"},
        {"rungs": [{"do": "ask", "wait_seconds": 1}]},
        {"rungs": [{"do": "signal", "number": 99, "wait_seconds": 1}]},
        {"rungs": [{"do": "eof"}]},
        {"limits": {"free_bytes": 1}},
        {"process": None},
    ],
    ids=str,
)
def test_invalid_field_of_a_spec_is_refused_by_the_parser(
    place: Path, change: dict[str, Any]
) -> None:
    good = spec(place, ["cat"])
    keeper.LaunchSpec(json.dumps(good).encode())

    with pytest.raises((ValueError, TypeError, KeyError, AttributeError)):
        keeper.LaunchSpec(json.dumps(good | change).encode())


def test_second_keeper_in_a_directory_is_refused(place: Path) -> None:
    kept = Kept(place, ["cat"])
    while_it_runs = start(spec(place, ["cat"]))
    with Driver(place) as driver:
        driver.claim()
        driver.frame("one", b"one\n")
        driver.stop()
    kept.wait_for_end()
    before = {path.name: path.read_bytes() for path in place.iterdir() if path.is_file()}
    afterwards = start(spec(place, ["cat"]))

    assert while_it_runs["error"]["code"] == afterwards["error"]["code"] == "failed"
    assert {p.name: p.read_bytes() for p in place.iterdir() if p.is_file()} == before


def test_keeper_works_in_a_path_longer_than_a_socket_address(tmp_path: Path) -> None:
    place = tmp_path / ("x" * 200) / ("y" * 200)
    place.parent.mkdir()
    kept = Kept(place, ["cat"])

    with Driver(place) as driver:
        assert driver.claim()["pid"] == kept.pid
        assert driver.stop()["reason"] == "user_stop"


# -- its own code


def test_cached_bytecode_is_run_if_it_matches_the_source(tmp_path: Path) -> None:
    copy = _copy_with_message(tmp_path, "first")
    os.utime(copy, (1000, 1000))
    py_compile.compile(str(copy))
    _copy_with_message(tmp_path, "other")
    changed = _read_message(copy)
    os.utime(copy, (1000, 1000))

    assert (changed, _read_message(copy)) == ("other", "first"), (
        "what looks the same is not compiled"
    )


def test_source_is_run_without_valid_bytecode_and_none_is_written(tmp_path: Path) -> None:
    copy = _copy_with_message(tmp_path, "words")
    assert _read_message(copy) == "words"
    assert list(tmp_path.iterdir()) == [copy]

    cache = Path(str(py_compile.compile(str(copy))))
    for damaged in (b"", cache.read_bytes()[:1000], cache.read_bytes()[:16] + b"nonsense"):
        cache.write_bytes(damaged)
        assert _read_message(copy) == "words"
        assert cache.read_bytes() == damaged
    shutil.rmtree(cache.parent)
    cache.parent.touch()
    assert _read_message(copy) == "words"


def test_keeper_imports_no_slow_module() -> None:
    script = "import sys; sys.path.append(sys.argv[1]); import keeper; print(*sys.modules)"
    words = [sys.executable, "-I", "-S", "-B", "-c", script, str(KEEPER.parent)]
    found = set(subprocess.run(words, capture_output=True, check=True).stdout.decode().split())

    slow = {"collections", "contextlib", "enum", "functools", "json", "re", "signal", "socket"}
    assert "keeper" in found
    assert found & slow == set()


@pytest.mark.parametrize(
    ("line", "instead"),
    [
        ("    from _json import ", "    from no_such_json import "),
        ("object_pairs_hook, array_hook = True, None, None, None", "array_hook = True, None, None"),
        ('if __name__ == "__main__":', "import sys\n\nsys.meta_path.clear()\nif True:"),
    ],
    ids=["json without C", "json unlike today's", "a library that was taken away"],
)
def test_keeper_works_with_a_changed_or_removed_standard_library(
    tmp_path: Path, place: Path, line: str, instead: str
) -> None:
    assert KEEPER.read_text().count(line) == 1
    other = tmp_path / "other_keeper.py"
    other.write_text(KEEPER.read_text().replace(line, instead))
    kept = hostile(place, "clean", keeper=other, rungs=[{"do": "eof", "wait_seconds": 0.05}])
    pids = _wait_for_pids(tmp_path, kept, 2)
    for message in INVALID_MESSAGES:
        with Driver(place) as driver:
            driver.claim()
            driver.socket.sendall(message)
            assert driver.read_answer()["code"] == "bad_message", message
    with Driver(place) as driver:
        assert driver.claim(2)["pid"] == kept.pid
        assert driver.frame('ä "\\\n\u2028\udcff', b"a\n")["n"] == 1
        exited = driver.stop("ö")

    assert exited == {"type": "exited", **kept.wait_for_end()}
    assert (exited["reason"], exited["left"]) == ("ö", [])
    assert kept.sent() == [(1, 'ä "\\\n\u2028\udcff', 0, b"a\n")]
    assert not any(map(_is_running, pids))


# -- talking


def test_only_the_driver_with_the_highest_fence_is_served(place: Path) -> None:
    kept = Kept(place, ["cat"])
    with Driver(place) as first, Driver(place) as second, Driver(place) as third:
        claimed = {"type": "claimed", "v": 1, "pid": kept.pid, "sent": 0}
        assert first.claim(5) == claimed
        assert second.claim(4) == {"type": "refused", "fence": 5}
        assert second.read_answer() == {}, "and hung up"
        assert first.frame("a", b"a\n")["n"] == 1, "who was there is not disturbed"
        assert third.claim(6) == claimed | {"sent": 1}
        assert first.read_answer() == {"type": "replaced", "fence": 6}
        assert first.read_answer() == {}, "dropped"
        assert third.claim(6) == claimed | {"sent": 1}, "the same may claim again"
        with Driver(place) as fourth:
            assert fourth.claim(6) == claimed | {"sent": 1}
            assert third.read_answer() == {"type": "replaced", "fence": 6}
            assert third.read_answer() == {}
            assert fourth.stop()["signal"] == signal.SIGKILL


def test_frame_is_recorded_written_and_acknowledged_once(place: Path) -> None:
    kept = Kept(place, ["cat"])
    with Driver(place) as driver:
        driver.claim()
        one = driver.frame("key 1", b"one\n")
        kept.wait_for(b"one\n")
        two = driver.frame("key 2", b"tw\0o\n{}\n", at=4)
        again = driver.frame("key 1", b"changed\n", at=9)
    with Driver(place) as driver:
        assert driver.claim(2)["sent"] == 2
        after = driver.frame("key 2", b"tw\0o\n{}\n", at=4)
        kept.wait_for(b"{}\n")
        ended = driver.stop()

    assert one == {"type": "ack", "key": "key 1", "n": 1, "repeated": False}
    assert two == {"type": "ack", "key": "key 2", "n": 2, "repeated": False}
    assert again == one | {"repeated": True}
    assert after == two | {"repeated": True}
    assert kept.sent() == [(1, "key 1", 0, b"one\n"), (2, "key 2", 4, b"tw\0o\n{}\n")]
    assert kept.read("journal") == b"one\ntw\0o\n{}\n"
    assert ended == {"type": "exited", **kept.wait_for_end()}


def test_cli_continues_without_a_driver_and_the_next_driver_sends_on(place: Path) -> None:
    kept = Kept(place, ["sh", "-c", "read a; echo 1 $a; read b; echo 2 $b; exec cat"])
    child = [sys.executable, "-m", "tests.children.keeper_driver", str(place)]
    with subprocess.Popen(child, cwd=ROOT, stdin=-1, stdout=-1, bufsize=0) as first:
        assert _ask(first, "claim 1")["type"] == "claimed"
        assert _ask(first, "frame a alpha")["n"] == 1
        first.kill()
    kept.wait_for(b"1 alpha\n")
    with Driver(place) as second:
        assert second.claim(2)["sent"] == 1
        assert second.frame("a", b"alpha\n")["repeated"]
        assert second.frame("b", b"beta\n")["n"] == 2
        kept.wait_for(b"2 beta\n")
        second.stop()


def test_replaced_driver_that_is_continued_writes_nothing(place: Path) -> None:
    kept = Kept(place, ["cat"])
    child = [sys.executable, "-m", "tests.children.keeper_driver", str(place)]
    with subprocess.Popen(child, cwd=ROOT, stdin=-1, stdout=-1, bufsize=0) as stale:
        assert _ask(stale, "claim 1")["type"] == "claimed"
        assert _ask(stale, "half torn torn-in-the-middle") is None
        os.kill(stale.pid, signal.SIGSTOP)
        assert os.WIFSTOPPED(os.waitpid(stale.pid, os.WUNTRACED)[1])
        with Driver(place) as driver:
            driver.claim(2)
            _send(stale, "rest torn-in-the-middle")
            _send(stale, "frame late late")
            os.kill(stale.pid, signal.SIGCONT)
            outcomes = [_receive(stale), _receive(stale)]
            assert driver.frame("fresh", b"fresh\n")["n"] == 1
            kept.wait_for(b"fresh\n")
            driver.stop()
        stale.kill()

    assert outcomes == ["BrokenPipeError"] * 2
    assert [key for _, key, _, _ in kept.sent()] == ["fresh"]
    assert kept.read("journal") == b"fresh\n"


def test_invalid_messages_are_answered_and_do_not_affect_the_cli(place: Path) -> None:
    kept = Kept(place, ["cat"])
    for message in INVALID_MESSAGES:
        with Driver(place) as driver:
            driver.claim()
            driver.socket.sendall(message)
            answer = driver.read_answer()
            assert (answer["type"], answer["code"]) == ("error", "bad_message"), message
            assert answer["message"]
            assert driver.read_answer() == {}, "and hung up"
    with Driver(place) as driver:
        assert driver.claim() == {"type": "claimed", "v": 1, "pid": kept.pid, "sent": 0}
        driver.frame("good", b"good\n")
        kept.wait_for(b"good\n")
        driver.stop()

    assert kept.read("journal") == b"good\n"


def test_connection_without_a_claim_is_refused_every_message(place: Path) -> None:
    kept = Kept(place, ["cat"])
    for message in ("frame", "will", "signal", "eof", "stop"):
        with Driver(place) as other:
            assert other.ask({"type": message, "size": 5})["code"] == "bad_message"
            assert other.read_answer() == {}
    with contextlib.ExitStack() as stack:
        # More than it keeps: some of them are dropped, the driver never is.
        driver = stack.enter_context(Driver(place))
        driver.claim()
        for _ in range(3 * keeper.MOST_UNCLAIMED):
            stack.enter_context(Driver(place)).socket.sendall(b'{"half')
        assert driver.frame("a", b"a\n")["n"] == 1
        descriptors = list(Path(f"/proc/{kept.keeper}/fd").iterdir())
        assert len(descriptors) < keeper.MOST_UNCLAIMED + 20
        kept.wait_for(b"a\n")
        driver.stop()

    assert kept.read("journal") == b"a\n"


def test_driver_that_sends_much_and_never_reads_is_disconnected(place: Path) -> None:
    kept = Kept(place, ["cat"])
    with Driver(place) as deaf:
        deaf.claim()
        same = b'{"type":"frame","key":"%s","at":0,"size":0}\n' % (b"k" * keeper.NAME_LENGTH)
        with pytest.raises((BrokenPipeError, ConnectionResetError)):
            deaf.socket.sendall(same * 100_000)
    with Driver(place) as driver:
        driver.claim()
        assert driver.frame("a", b"a\n")["n"] == 2
        assert _memory_kb(kept.keeper, "VmHWM") < 40_000
        driver.stop()


def test_incomplete_message_does_not_block_the_keeper(place: Path) -> None:
    kept = Kept(place, ["cat"])
    with Driver(place) as slow, Driver(place) as driver:
        slow.claim()
        slow.socket.sendall(b'{"type":"frame","key":"k","at":0,"size":1000}\nhalf')
        driver.claim(2)
        assert driver.frame("a", b"a\n")["n"] == 1
        kept.wait_for(b"a\n")
        driver.stop()

    assert kept.read("journal") == b"a\n"


def test_frame_that_cannot_be_recorded_is_not_written_to_the_cli(place: Path) -> None:
    kept = Kept(place, ["cat"], wrapper=["sh", "-c", 'ulimit -f 200; exec "$@"', "sh"])
    with Driver(place) as driver:
        driver.claim()
        driver.frame("a", b"a\n")
        before = kept.read("sent")
        refused = driver.frame("b", b"b" * 400_000)
        assert kept.read("sent") == before
        shorter = driver.frame("b", b"b\n")
        kept.wait_for(b"b\n")
        driver.stop()

    assert (refused["type"], refused["code"]) == ("error", "not_recorded")
    assert (shorter["n"], shorter["repeated"]) == (2, False)
    assert kept.read("journal") == b"a\nb\n"


def test_frame_for_a_closed_stdin_is_refused(place: Path, tmp_path: Path) -> None:
    closed = {"type": "error", "code": "stdin_closed", "key": "b"}
    kept = hostile(place, "exit_at_interrupt", rungs=[INTERRUPT])
    with Driver(place) as driver:
        driver.claim()
        driver.frame("a", b"a\n")
        assert driver.ask({"type": "eof"}) == OK
        assert driver.frame("b", b"b\n") == closed
        assert driver.frame("a", b"a\n")["repeated"]
        kept.wait_for(b"eof\n")
        assert driver.stop()["code"] == 7
    assert [key for _, key, _, _ in kept.sent()] == ["a"]

    null = Kept(tmp_path / "null", ["sh", "-c", "cat; echo over; exec sleep 100"], stdin="null")
    null.wait_for(b"over\n")
    shut = Kept(tmp_path / "shut", ["sh", "-c", "exec <&-; echo over; exec sleep 100"])
    shut.wait_for(b"over\n")
    for other in (null, shut):
        with Driver(other.directory) as driver:
            driver.claim()
            assert driver.frame("b", b"b\n") == closed
            assert driver.ask({"type": "eof"}) == OK
            driver.stop()
        assert other.sent() == []


def test_cli_that_never_reads_does_not_block_the_keeper(place: Path) -> None:
    kept = hostile(place, "ignore", rungs=[{"do": "eof", "wait_seconds": 0.1}])
    frame = b"x" * (10 << 20)
    with Driver(place) as driver:
        driver.claim()
        for n in range(1, 7):
            assert driver.frame(str(n), frame)["n"] == n
        assert driver.frame("7", frame) == {"type": "error", "code": "queue_full", "key": "7"}
        assert driver.frame("8", b"small")["n"] == 7
        assert driver.stop()["signal"] == signal.SIGKILL

    assert [len(body) for _, _, _, body in kept.sent()] == [len(frame)] * 6 + [5]


def test_frame_of_the_largest_size_arrives_complete(place: Path) -> None:
    kept = Kept(place, ["wc", "-c"])
    with Driver(place) as driver:
        driver.claim()
        driver.frame("large", bytes(keeper.FRAME_BYTES))
        driver.ask({"type": "eof"})
        assert driver.read_answer()["code"] == 0

    assert kept.read("journal").strip() == b"%d" % keeper.FRAME_BYTES


# -- output


def test_line_of_64_megabytes_is_complete_in_the_journal(place: Path) -> None:
    kept = hostile(place, "print_long_line")

    assert kept.wait_for_end()["code"] == 0
    assert kept.read("journal") == b"x" * LINE_BYTES + b"\n"


def test_much_stderr_does_not_block_the_cli_and_is_truncated(place: Path) -> None:
    kept = hostile(place, "flood_stderr")
    kept.wait_for(b"ready\n")
    last = b"%999d\n" % (FLOOD_BYTES // 1000 - 1)

    # A cut in the middle of the flood leaves less than the limit, and no other follows. The file
    # is empty for a moment, between the cut and the write of what is kept.
    rest = range(keeper.STDERR_KEPT_BYTES, keeper.STDERR_BYTES + 1)
    eventually(lambda: len(kept.read("stderr")) in rest, "the cut")
    assert kept.read("stderr").endswith(last)
    with Driver(place) as driver:
        driver.claim()
        driver.stop()


# -- ending


@pytest.mark.parametrize(("verb", "others"), HOSTILE.items())
def test_no_process_is_left_when_the_cli_is_stopped(
    tmp_path: Path, place: Path, verb: str, others: int
) -> None:
    kept = hostile(place, verb, rungs=[{**INTERRUPT, "wait_seconds": 0.05}])
    pids = _wait_for_pids(tmp_path, kept, others + 1)
    with Driver(place) as driver:
        driver.claim()
        exited = driver.stop()

    assert exited["reason"] == "user_stop"
    assert exited["left"] == []
    assert not any(map(_is_running, pids))


def test_children_of_a_cli_that_has_ended_are_killed(tmp_path: Path, place: Path) -> None:
    kept = hostile(place, "leave_children")

    ended = kept.wait_for_end()
    pids = _pids(tmp_path)
    assert (ended["code"], ended["signal"], ended["reason"]) == (3, None, None)
    assert (ended["error"], ended["left"]) == (None, [])
    assert len(pids) == 3
    assert not any(map(_is_running, pids))


def test_exit_of_a_cli_that_ends_at_once_is_recorded(place: Path) -> None:
    ended = Kept(place, ["sh", "-c", "exit 9"]).wait_for_end()
    killed = Kept(place.with_name("other"), ["sh", "-c", "kill -USR1 $$"]).wait_for_end()

    assert (ended["code"], ended["signal"]) == (9, None)
    assert (killed["code"], killed["signal"]) == (None, signal.SIGUSR1)


def test_stop_steps_are_taken_in_order_and_the_will_is_a_frame(place: Path) -> None:
    rungs = [
        {"do": "will", "wait_seconds": 0.2},
        {"do": "signal", "number": signal.SIGINT, "wait_seconds": 0.2},
        {"do": "eof", "wait_seconds": 10},
    ]
    kept = hostile(place, "exit_at_eof", rungs=rungs)
    with Driver(place) as driver:
        driver.claim()
        kept.wait_for(b"ready\n")
        assert driver.will(b"first will\n") == OK
        assert driver.will(b"last will\n") == OK
        exited = driver.stop("because")

    assert (exited["code"], exited["reason"]) == (0, "because")
    assert kept.read("journal") == b"ready\nlast will\nouch\neof\n"
    assert kept.sent() == [(1, keeper.WILL_KEY, len(b"ready\n"), b"last will\n")]


def test_will_step_without_a_will_is_skipped(place: Path) -> None:
    rungs = [{"do": "will", "wait_seconds": 1000}, {"do": "eof", "wait_seconds": 1000}]
    kept = hostile(place, "exit_at_eof", rungs=rungs)
    with Driver(place) as driver:
        driver.claim()
        driver.will(b"withdrawn")
        driver.will(b"")
        kept.wait_for(b"ready\n")
        assert driver.stop()["code"] == 0


def test_second_stop_has_no_effect(place: Path) -> None:
    kept = hostile(place, "exit_at_eof", rungs=[{**INTERRUPT, "wait_seconds": 1000}])
    with Driver(place) as driver:
        driver.claim()
        kept.wait_for(b"ready\n")
        for reason in ("first", "second"):
            assert driver.ask({"type": "stop", "reason": reason}) == OK
        os.kill(kept.keeper, signal.SIGTERM)
        kept.wait_for(b"ouch\n")
        assert driver.frame("a", b"a\n")["n"] == 1, "it still listens"
        assert driver.ask({"type": "eof"}) == OK
        assert driver.read_answer()["reason"] == "first"

    assert kept.read("journal").count(b"ouch") == 1


def test_signal_of_the_driver_reaches_the_cli(place: Path) -> None:
    kept = hostile(place, "exit_at_interrupt")
    with Driver(place) as driver:
        driver.claim()
        kept.wait_for(b"ready\n")
        assert driver.ask({"type": "signal", "number": signal.SIGINT}) == OK
        exited = driver.read_answer()

    assert (exited["code"], exited["reason"]) == (7, None)


@pytest.mark.parametrize("to", ["keeper", "outer"])
def test_sigterm_shuts_down_and_terminal_signals_are_ignored(place: Path, to: str) -> None:
    kept = hostile(place, "exit_at_interrupt", rungs=[INTERRUPT])
    kept.wait_for(b"ready\n")
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
        os.kill(getattr(kept, to), number)

    ended = kept.wait_for_end()
    assert (ended["code"], ended["reason"]) == (7, "shutdown")


def test_unclaimed_cli_is_stopped_after_silence_or_its_time_limit(tmp_path: Path) -> None:
    silent, soon = {"silent_seconds": 0.5}, {"silent_seconds": 0.5, "unclaimed_seconds": 1.5}
    kept = hostile(tmp_path / "silent", "exit_at_interrupt", rungs=[INTERRUPT], limits=silent)
    printing = hostile(tmp_path / "printing", "tick", limits=soon)
    claimed = Kept(tmp_path / "claimed", ["cat"], limits={"unclaimed_seconds": 0.5, **silent})
    with Driver(claimed.directory) as driver:
        driver.claim()
        ended = kept.wait_for_end()
        assert (ended["code"], ended["reason"]) == (7, "unclaimed")
        assert printing.wait_for_end()["reason"] == "unclaimed"
        assert printing.read("journal").count(b"tick") > 21, "it had more than a second"
        assert driver.frame("a", b"a\n")["n"] == 1, "the claimed one was not stopped"
    assert claimed.wait_for_end()["reason"] == "unclaimed"


def test_cli_is_ended_when_its_journal_is_too_long(place: Path) -> None:
    kept = hostile(place, "print_without_end", limits={"journal_bytes": 1 << 20})

    assert kept.wait_for_end()["reason"] == "journal_full"


def test_cli_is_ended_before_a_full_disk_loses_output(tmp_path: Path) -> None:
    story = _on_small_disk(tmp_path)

    assert story["guarded"]["reason"] == "disk_full"
    full = story["full"]
    first, refused, accepted = full["answers"]
    assert (first["n"], refused["code"], accepted["n"]) == (1, "not_recorded", 2)
    assert full["is_cut_back"]
    assert full["is_given_once"]
    assert full["exited"] == {"type": "exited", **full["exit"]}


def test_cli_and_keeper_end_when_their_directory_is_deleted(place: Path, tmp_path: Path) -> None:
    kept = hostile(place, "fork_twice")
    pids = _wait_for_pids(tmp_path, kept, 2)
    lock = (place / "lock").open()
    shutil.rmtree(place)

    for pid in [*pids, kept.keeper, kept.outer]:
        eventually(lambda pid=pid: not _is_running(pid), f"the end of {pid}")  # type: ignore[misc]
    lock.close()


def test_cli_is_ended_when_its_journal_was_truncated(place: Path) -> None:
    kept = hostile(place, "exit_at_eof")
    kept.wait_for(b"ready\n")
    with Driver(place) as driver:
        driver.claim()
        driver.frame("a", b"a" * 1000)
        kept.wait_for(b"a" * 1000)
        _wait_for_a_check(kept)
        os.truncate(place / "journal", 3)
        assert driver.read_answer()["reason"] == "journal_lost"


def test_bug_in_the_keeper_leaves_no_process_running(tmp_path: Path, place: Path) -> None:
    broken = tmp_path / "broken_keeper.py"
    line = "            self.close()\n        else:"
    assert KEEPER.read_text().count(line) == 1
    broken.write_text(KEEPER.read_text().replace(line, "            1 / 0\n        else:"))
    kept = hostile(place, "clean", keeper=broken)
    pids = _wait_for_pids(tmp_path, kept, 2)
    with Driver(place) as driver:
        driver.claim()
        driver.say({"type": "eof"})
        assert driver.read_answer()["reason"] == "keeper_lost"

    ended = kept.wait_for_end()
    assert (ended["reason"], ended["error"]["code"]) == ("keeper_lost", "failed")
    assert "ZeroDivisionError" in ended["error"]["message"]
    assert not any(map(_is_running, pids))


# -- the keepers themselves are killed


@pytest.mark.parametrize("verb", HOSTILE)
def test_outer_process_ends_everything_when_the_keeper_is_killed(
    tmp_path: Path, place: Path, verb: str
) -> None:
    kept = hostile(place, verb)
    pids = _wait_for_pids(tmp_path, kept, HOSTILE[verb] + 1)
    os.kill(kept.keeper, signal.SIGKILL)

    ended = kept.wait_for_end()
    with pytest.raises(ConnectionRefusedError):
        Driver(place)
    assert (ended["reason"], ended["left"]) == ("keeper_lost", [])
    assert (ended["code"], ended["signal"], ended["error"]) == (None, None, None)
    assert not any(map(_is_running, [*pids, kept.pid]))


def test_keeper_continues_when_the_outer_process_is_killed(tmp_path: Path, place: Path) -> None:
    kept = hostile(place, "leave_children")
    kept.wait_for_end()
    other = hostile(tmp_path / "other", "clean")
    pids = _wait_for_pids(tmp_path, other, 5)
    os.kill(other.outer, signal.SIGKILL)
    eventually(lambda: not _is_running(other.outer), "the end of the outer")

    assert is_locked(other.directory)
    with Driver(other.directory) as driver:
        driver.claim()
        assert driver.frame("a", b"a\n")["n"] == 1
        assert driver.stop()["left"] == []
    assert other.wait_for_end()["reason"] == "user_stop"
    assert not any(map(_is_running, pids))


@pytest.mark.parametrize("verb", ["ignore", "fork_twice", "close_stdio"])
def test_sweep_ends_what_is_left_when_keeper_and_outer_process_are_killed(
    tmp_path: Path, place: Path, verb: str
) -> None:
    kept = hostile(place, verb)
    pids = _wait_for_pids(tmp_path, kept, HOSTILE[verb] + 1)
    os.kill(kept.outer, signal.SIGSTOP)
    os.kill(kept.keeper, signal.SIGKILL)
    os.kill(kept.outer, signal.SIGKILL)
    eventually(lambda: not is_locked(place), "the end of both")
    eventually(lambda: not _is_running(kept.pid), "the end of the CLI itself")

    assert keeper.find_marked(PROCESS) <= set(pids)
    assert keeper.find_marked(PROCESS[:-1]) == set()
    assert keeper.sweep(["prc_other", PROCESS]) == set()
    assert keeper.find_marked(PROCESS) == set()
    assert not any(map(_is_running, pids))
    assert not (place / "exit").exists()


def test_sweep_ends_the_unmarked_children_of_marked_processes(tmp_path: Path) -> None:
    words = [sys.executable, "-I", "-S", str(CHILDREN / "keeper_cli.py"), "clean", str(tmp_path)]
    env = {"PATH": "/usr/bin:/bin", keeper.MARK: PROCESS}
    with subprocess.Popen(words, cwd=tmp_path, env=env, stdout=subprocess.DEVNULL) as orphan:
        eventually(lambda: len(_pids(tmp_path)) == 2, "both")
        assert keeper.find_marked(PROCESS) == {orphan.pid}
        assert keeper.sweep([PROCESS]) == set()
        assert orphan.wait(PATIENCE_SECONDS) == -signal.SIGKILL

    eventually(lambda: not any(map(_is_running, _pids(tmp_path))), "the end of the child")


# -- with less power


def test_keeper_needs_no_privileges(tmp_path: Path, place: Path) -> None:
    kept = hostile(place, "clean", wrapper=_without_privileges())
    pids = _wait_for_pids(tmp_path, kept, 2)
    with Driver(place) as driver:
        driver.claim()
        driver.frame("a", b"a\n")
        assert driver.stop()["left"] == []
    assert not any(map(_is_running, pids))


def test_unreadable_directory_on_the_path_hides_no_program(tmp_path: Path, place: Path) -> None:
    forbidden, other = tmp_path / "forbidden", tmp_path / "other"
    forbidden.mkdir(0o000)
    env = {"PATH": f"{forbidden}:/usr/bin:/bin"}

    missing = start(spec(place, ["no such program"], env=env), wrapper=_without_privileges())
    assert missing["error"]["code"] == "not_found"
    found = Kept(other, ["true"], env=env, wrapper=_without_privileges())
    assert found.wait_for_end()["code"] == 0


def test_process_that_may_not_be_killed_is_reported(tmp_path: Path, place: Path) -> None:
    other_user = _setpriv_of_another_user(tmp_path)
    script = f"{other_user} --reuid=65534 --keep-groups sleep 1000 & echo $!; exec cat"
    limits = {"kill_seconds": 0.2}
    kept = Kept(place, ["sh", "-c", script], wrapper=_without_privileges(), limits=limits)
    kept.wait_for(b"\n")
    other = int(kept.read("journal"))
    status = Path(f"/proc/{other}/status")
    eventually(lambda: "Uid:\t65534\t65534" in status.read_text(), "that it is another user's")
    with Driver(place) as driver:
        driver.claim()
        exited = driver.stop()
    was_running = _is_running(other)
    os.kill(other, signal.SIGKILL)

    assert was_running
    assert exited["left"] == [other]
    assert kept.wait_for_end()["left"] == [other]


def test_keeper_and_outer_process_use_less_than_ten_megabytes(place: Path) -> None:
    kept = Kept(place, ["cat"])
    with Driver(place) as driver:
        driver.claim()
        for n in range(100):
            driver.frame(str(n), b"x" * 1000)
        weight = sum(_dirty_kb(pid) for pid in (kept.keeper, kept.outer))
        driver.stop()

    assert weight < 10_000


# -- the files


def test_incomplete_last_frame_is_ignored() -> None:
    one = b'{"n":1,"key":"a","at":0,"size":4}\n{}\n\n\n'
    two = b'{"n":2,"key":"b","at":7,"size":25}\n' + b"x" * 24 + b"\n\n"

    assert keeper.read_sent(one + two) == [(1, "a", 0, b"{}\n\n"), (2, "b", 7, b"x" * 24 + b"\n")]
    for lost in range(1, len(two) + 1):
        assert keeper.read_sent((one + two)[:-lost]) == [(1, "a", 0, b"{}\n\n")]
    for lost in range(len(two) + 1, len(one + two) + 1):
        assert keeper.read_sent((one + two)[:-lost]) == []


# -- helpers


def _copy_with_message(tmp_path: Path, word: str) -> Path:
    """A keeper that has this word for what is no JSON."""
    said = "this is no JSON"
    assert KEEPER.read_text().count(said) == 1
    copy = tmp_path / "keeper.py"
    copy.write_text(KEEPER.read_text().replace(said, word))
    return copy


def _read_message(copy: Path) -> str:
    """What this keeper says about nonsense, when it is run as a driver runs it."""
    done = subprocess.run(
        keeper_client.build_command("unused", str(copy)),
        input=b"nonsense",
        stdout=subprocess.PIPE,
        timeout=PATIENCE_SECONDS,
        check=False,
    )
    message: str = json.loads(done.stdout)["error"]["message"]
    return message.split(": ")[1]


def _block_signals() -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR2, signal.SIGTERM, signal.SIGCHLD})


def _find_processes(tmp_path: Path) -> set[int]:
    """The processes with the mark of the test, or with its directory as working directory or
    argument.
    """
    numbers = {int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()}
    near = {pid for pid in numbers if str(tmp_path).encode() in _command(pid) + _cwd(pid)}
    return (keeper.find_marked(PROCESS) | near) - {os.getpid()}


def _command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def _cwd(pid: int) -> bytes:
    try:
        return os.fsencode(Path(f"/proc/{pid}/cwd").readlink())
    except OSError:
        return b""


def _is_running(pid: int) -> bool:
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return status.rpartition(")")[2].split()[0] not in "ZX"


def _pids(tmp_path: Path) -> list[int]:
    notes = tmp_path / "pids"
    return [int(line) for line in notes.read_bytes().split()] if notes.exists() else []


def _wait_for_pids(tmp_path: Path, kept: Kept, count: int) -> list[int]:
    eventually(lambda: len(_pids(tmp_path)) >= count, f"{count} processes of {kept.pid}")
    return _pids(tmp_path)


def _wait_for_a_check(kept: Kept) -> None:
    """Until the keeper has looked around: it cuts stderr then."""
    (kept.directory / "stderr").write_bytes(b"x" * (keeper.STDERR_BYTES + 1))
    eventually(lambda: len(kept.read("stderr")) == keeper.STDERR_KEPT_BYTES, "a look around")


def _memory_kb(pid: int, name: str) -> int:
    found = re.search(rf"{name}:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert found is not None
    return int(found[1])


def _dirty_kb(pid: int) -> int:
    found = re.search(r"Pss_Dirty:\s+(\d+) kB", Path(f"/proc/{pid}/smaps_rollup").read_text())
    assert found is not None
    return int(found[1])


def _send(child: "subprocess.Popen[bytes]", order: str) -> None:
    assert child.stdin is not None
    child.stdin.write(order.encode() + b"\n")


def _receive(child: "subprocess.Popen[bytes]") -> Any:
    assert child.stdout is not None
    assert select.select([child.stdout], [], [], PATIENCE_SECONDS)[0], "it says nothing"
    return json.loads(child.stdout.readline())


def _ask(child: "subprocess.Popen[bytes]", order: str) -> Any:
    _send(child, order)
    return _receive(child)


def _on_small_disk(tmp_path: Path) -> dict[str, Any]:
    attempt = ["unshare", "-rm", "mount", "-t", "tmpfs", "none", str(tmp_path)]
    can_mount = shutil.which("unshare") is not None and _succeeds(attempt)
    require("unshare", can_mount, "no tmpfs can be mounted in a namespace of one's own")
    script = 'mount -t tmpfs -o size=16m none "$0" && exec "$1" -m "$2" "$0"'
    program = "tests.children.keeper_small_disk"
    done = subprocess.run(
        ["unshare", "-rm", "sh", "-c", script, str(tmp_path), sys.executable, program],
        cwd=ROOT,
        capture_output=True,
        timeout=PATIENCE_SECONDS * 2,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()
    story: dict[str, Any] = json.loads(done.stdout)
    return story


def _succeeds(command: Sequence[str]) -> bool:
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def _without_privileges() -> list[str]:
    require("setpriv", shutil.which("setpriv") is not None, "it is not installed")
    if os.geteuid() != 0:
        return []
    return ["setpriv", "--bounding-set=-all", "--inh-caps=-all"]


def _setpriv_of_another_user(tmp_path: Path) -> Path:
    """A program that runs as that user for every caller."""
    require("root", os.geteuid() == 0, "only root can make a program run as another user")
    program = tmp_path / "setpriv"
    shutil.copy(str(shutil.which("setpriv")), program)
    os.chown(program, 65534, 65534)
    program.chmod(0o4755)
    return program
