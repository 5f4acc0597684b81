"""Keeps a CLI running when its driver ends, and ends the whole process tree when it must end.

The contract is docs/keeper.md. This file runs alone, as `python -I -S keeper.py`, and does not
import the package. Everything is imported at the start: an upgrade may delete the files of the
standard library while a keeper has been running for a day. The imports are few because the CLI
waits for them: of json, signal and socket only the parts in C. The parts in Python would double
the time of a start.
"""

import _socket
import ctypes
import errno
import fcntl
import gc
import os
import select
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
    from collections.abc import Callable, Iterable, Iterator
    from typing import Any, NoReturn

    Message = dict[str, Any]
    Fault = dict[str, str] | None
else:
    import _signal as signal

VERSION = 1
# The environment variable that marks every process of one CLI.
MARK = "STEADYRUN_PROCESS"
WILL_KEY = "keeper:will"
LIMITS = ("free_bytes", "journal_bytes", "silent_seconds", "unclaimed_seconds", "kill_seconds")
HEADER_BYTES, UNREAD_BYTES = 64 << 10, 1 << 20
FRAME_BYTES = QUEUE_BYTES = 64 << 20
STDERR_BYTES, STDERR_KEPT_BYTES = 1 << 20, 64 << 10
NAME_LENGTH, MOST_UNCLAIMED = 256, 16
_CHUNK_BYTES, _EXIT_BYTES = 64 << 10, 16 << 10
_GOODBYE_SECONDS = 1.0
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_REFUSALS: "dict[int | None, str]" = {errno.ENOENT: "not_found", errno.ENOTDIR: "not_found"}
_REFUSALS |= {errno.EACCES: "not_executable", errno.ENOEXEC: "not_executable"}
_REFUSALS |= {errno.E2BIG: "too_long"}
_SIGNALS: "dict[int, int]" = {number: number for number in signal.valid_signals()}


def read_sent(data: bytes) -> list[tuple[int, str, int, bytes]]:
    """The frames of a `sent` file: number, key, offset, bytes; without an incomplete last one."""
    frames, start = [], 0
    while (head := data.find(b"\n", start)) >= 0:
        header = _parse(data[start:head])
        start = head + 1 + _check_count(header["size"]) + 1
        if start > len(data):
            break
        frames.append((header["n"], header["key"], header["at"], data[head + 1 : start - 1]))
    return frames


def find_marked(process_id: str) -> set[int]:
    """The processes with this mark, among those whose environment this user may read."""
    mark = f"{MARK}={process_id}".encode()
    return {pid for pid, environ in _read_proc("environ") if mark in environ.split(b"\0")}


def sweep(process_ids: "Iterable[str]", *, seconds: float = 5.0) -> set[int]:
    """Kill processes with these marks and their descendants; return those that remain."""
    ids, limit, pause, known = list(process_ids), time.monotonic() + seconds, 0.001, set[int]()
    while True:
        found = {pid for one in ids for pid in find_marked(one)} - {os.getpid()}
        known |= found | _find_descendants(found)
        _kill(known)
        # An ending process has no environment any more, but may still hold files open.
        known &= {pid for pid, stat in _read_stats() if stat[0] not in (b"Z", b"X")}
        if not known or time.monotonic() > limit:
            return known
        pause = _wait_longer(pause)


def main() -> int:
    """Start outer process, keeper and CLI as stdin describes; report the result on stdout."""
    os.closerange(3, 1 << 16)
    answer, code = os.dup(1), "failed"
    try:
        spec = LaunchSpec(_read_all(0))
        _detach_from_driver()
        if spec.claim:
            # Never closed, as the lock of the directory: one process at a time in a conversation.
            claim, code = os.open(spec.claim, os.O_RDWR | os.O_CREAT, 0o600), "busy"
            _lock_soon(claim)
            code = "failed"
        directory = Directory(spec.directory)
        gc.freeze()  # A collection would write to, and so copy, each page that the two share.
        if os.fork():
            return 0
        os.setsid()
        _set_signals()
        _prctl(_PR_SET_CHILD_SUBREAPER, 1)
        keeper = os.fork()
    except Exception as error:  # noqa: BLE001 (the driver must get every error)
        _answer(answer, {"error": _describe_fault(code, error)})
        return 1
    if keeper == 0:
        Keeper(spec, directory).run(answer)
    else:
        os.close(answer)
        directory.listener.close()
        _wait_for_keeper(keeper, spec.limits["kill_seconds"])
    return 0


def _lock_soon(descriptor: int) -> None:
    """Lock a file, or raise. A keeper whose CLI has ended needs a moment to end itself."""
    limit, pause = time.monotonic() + _GOODBYE_SECONDS, 0.005
    while True:
        try:
            return fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > limit:
                raise
        pause = _wait_longer(pause)


def _wait_for_keeper(keeper: int, kill_seconds: float) -> None:
    """Wait for the end of the keeper; if it was killed, end its processes in its place."""
    signal.signal(signal.SIGTERM, lambda *_: os.kill(keeper, signal.SIGTERM))
    pid = status = 0
    while pid != keeper:
        pid, status = os.waitpid(-1, 0)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if status != 0:
        _record_exit(None, "keeper_lost", None, _end_descendants(kill_seconds, lambda *_: None))


class LaunchSpec:
    """What to run, how to stop it and its limits."""

    def __init__(self, data: bytes) -> None:
        spec = _parse(data)
        _require(spec["v"] == VERSION, f"the spec has version {spec['v']}, this keeper {VERSION}")
        self.directory, self.cwd = _encode_text(spec["directory"]), _encode_text(spec["cwd"])
        self.argv = [_encode_text(word) for word in spec["argv"]]
        self.env = {_encode_text(name): _encode_text(value) for name, value in spec["env"].items()}
        self.env[MARK.encode()] = _encode_text(spec["process"])
        self.has_stdin = {"pipe": True, "null": False}[spec["stdin"]]
        self.rungs = [_parse_rung(**rung) for rung in spec["rungs"]]
        self.claim = _encode_text(spec.get("claim", ""))
        self.limits = {name: float(spec["limits"][name]) for name in LIMITS}


def _encode_text(text: str) -> bytes:
    """The bytes that the driver encoded, independent of the locale of this process."""
    return text.encode("utf-8", "surrogateescape")


def _parse_rung(*, do: str, wait_seconds: float, number: int = 0) -> tuple[str, float, int]:
    _require(do in ("will", "eof", "signal"), f"no such rung: {do}")
    return do, float(wait_seconds), _SIGNALS[number] if do == "signal" else 0


class Directory:
    """The files of one process. Only the first keeper that creates them may use them."""

    def __init__(self, path: bytes) -> None:
        self.umask_of_driver = os.umask(0o077)
        with _ErrorFilter(FileExistsError):
            os.mkdir(path)
        os.fchdir(os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW))
        # Never closed: it is held until outer process and keeper have both ended.
        fcntl.flock(_create("lock"), fcntl.LOCK_EX | fcntl.LOCK_NB)
        self._sent = _create("sent", os.O_EXCL)
        self._sent_bytes = self.sent = 0
        # Allocates the space for the exit file now: later the disk may be full.
        os.write(_create("exit.new"), b" " * _EXIT_BYTES)
        self.journal = _create("journal", os.O_APPEND)
        self.stderr = _create("stderr", os.O_APPEND)
        self.listener = _socket.socket(_socket.AF_UNIX)
        self.listener.bind("socket")
        os.chmod("socket", 0o600)
        self.listener.listen()
        self.listener.setblocking(False)

    def record_frame(self, key: str, at: int, body: bytearray) -> int:
        """Write a frame whole, or raise and write nothing; return its number."""
        header = _encode_line({"n": self.sent + 1, "key": key, "at": at, "size": len(body)})
        record, done = memoryview(header + body + b"\n"), 0
        try:
            while done < len(record):
                done += os.pwrite(self._sent, record[done:], self._sent_bytes + done)
        except OSError:
            os.ftruncate(self._sent, self._sent_bytes)
            raise
        self._sent_bytes += done
        self.sent += 1
        return self.sent

    def measure_journal(self) -> int:
        return os.fstat(self.journal).st_size

    def cut_stderr(self) -> None:
        with _ErrorFilter(OSError):
            if (size := os.fstat(self.stderr).st_size) > STDERR_BYTES:
                tail = os.pread(self.stderr, STDERR_KEPT_BYTES, size - STDERR_KEPT_BYTES)
                os.ftruncate(self.stderr, 0)
                os.write(self.stderr, tail)


def _create(name: str, flags: int = 0) -> int:
    return os.open(name, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | flags, 0o600)


def _record_exit(
    end: int | None, reason: str | None, fault: "Fault", left: set[int], *, is_oom: bool = False
) -> "Message":
    """Write the exit file once, best effort: afterwards there is no `exit.new`."""
    facts = {
        "v": VERSION,
        "code": None if end is None or os.WIFSIGNALED(end) else os.WEXITSTATUS(end),
        "signal": None if end is None or os.WIFEXITED(end) else os.WTERMSIG(end),
        "reason": reason,
        "error": fault,
        "at": time.time(),  # noqa: TID251 (this file cannot import the Clock)
        "left": sorted(left),
        "oom": is_oom,
    }
    with _ErrorFilter(OSError):
        file = os.open("exit.new", os.O_WRONLY | os.O_NOFOLLOW)
        os.ftruncate(file, os.write(file, _encode_line(facts)))
        os.rename("exit.new", "exit")
    return facts


class CliInput:
    """The stdin of the CLI: frames are recorded first, then queued, then written as it reads."""

    def __init__(self, poll: "select.poll", directory: Directory) -> None:
        self._poll, self._directory = poll, directory
        self.descriptor = -1
        self._queue, self._is_eof_due = bytearray(), False
        # The numbers of the recorded frames by their keys.
        self.numbers: dict[str, int] = {}

    def open(self, descriptor: int) -> None:
        self.descriptor = descriptor
        os.set_blocking(descriptor, False)
        self._poll.register(descriptor, 0)

    def write(self, key: str, at: int, body: bytearray) -> str | None:
        """Record a frame, then queue it; return the code of an error."""
        if self.descriptor < 0 or self._is_eof_due:
            return "stdin_closed"
        if len(self._queue) + len(body) > QUEUE_BYTES:
            return "queue_full"
        try:
            self.numbers[key] = self._directory.record_frame(key, at, body)
        except OSError:
            return "not_recorded"
        self._queue += body
        self.flush()
        return None

    def flush(self, *, is_broken: bool = False) -> None:
        """Write what the CLI takes now; close its stdin if that is due and the queue is empty."""
        if self.descriptor < 0:
            return
        try:
            del self._queue[: os.write(self.descriptor, self._queue[:_CHUNK_BYTES])]
        except BlockingIOError:
            pass
        except BrokenPipeError:
            is_broken = True
        if is_broken or (self._is_eof_due and not self._queue):
            self.close()
        else:
            self._poll.modify(self.descriptor, select.POLLOUT if self._queue else 0)

    def finish(self) -> None:
        """Close stdin after what is queued; take nothing more."""
        self._is_eof_due = True
        self.flush()

    def close(self) -> None:
        self._poll.unregister(self.descriptor)
        os.close(self.descriptor)
        self.descriptor = -1
        self._queue.clear()


class ResourceGuard:
    """Decides once a second whether the CLI has to stop: because the disk is full, because the
    journal is too long or damaged, or because no driver claims it."""

    def __init__(self, limits: dict[str, float], directory: Directory) -> None:
        self._limits, self._directory = limits, directory
        self.due_at = self._output_at = time.monotonic()
        self._journal_bytes = 0

    def check(self, now: float, alone_since: float | None) -> str | None:
        """The reason to stop. `alone_since`: when the last driver left; None if there is one."""
        self.due_at = now + 1
        self._directory.cut_stderr()
        journal, disk = os.fstat(self._directory.journal), os.fstatvfs(self._directory.journal)
        is_shorter = journal.st_size < self._journal_bytes
        if journal.st_size != self._journal_bytes:
            self._journal_bytes, self._output_at = journal.st_size, now
        if journal.st_nlink == 0 or is_shorter:
            return "journal_lost"
        if disk.f_bavail * disk.f_frsize < self._limits["free_bytes"]:
            return "disk_full"
        if journal.st_size > self._limits["journal_bytes"]:
            return "journal_full"
        if alone_since is not None and (
            now - max(self._output_at, alone_since) > self._limits["silent_seconds"]
            or now - alone_since > self._limits["unclaimed_seconds"]
        ):
            return "unclaimed"
        return None


class StopLadder:
    """The rungs by which the CLI is asked to end, one after the other, each with a wait."""

    def __init__(self, rungs: list[tuple[str, float, int]]) -> None:
        self._rungs = list(rungs)
        self.reason: str | None = None
        # When the next rung is due.
        self.due_at = float("inf")
        # Whether all rungs were used: what is left is killed.
        self.is_over = False

    def next_rung(self) -> tuple[str, float, int] | None:
        if not self._rungs:
            self.is_over = True
            return None
        return self._rungs.pop(0)


class DriverConnections:
    """The connections to the socket. One of them is the driver: the last that has claimed."""

    def __init__(self, poll: "select.poll", listener: "_socket.socket") -> None:
        self._poll, self._listener = poll, listener
        self.by_descriptor: dict[int, DriverConnection] = {}
        self.driver: DriverConnection | None = None
        self._fence, self._left_at = 0, time.monotonic()

    @property
    def alone_since(self) -> float | None:
        """When the last driver left; None if there is a driver."""
        return self._left_at if self.driver is None else None

    def accept(self) -> None:
        """Accept a connection; of too many without a claim, the oldest is dropped."""
        with _ErrorFilter(OSError):
            descriptor, _ = self._listener._accept()  # type: ignore[attr-defined] # noqa: SLF001
            self.by_descriptor[descriptor] = DriverConnection(descriptor)
            self._poll.register(descriptor, select.POLLIN)
        unclaimed = [one for one in self.by_descriptor.values() if one is not self.driver]
        for connection in unclaimed[:-MOST_UNCLAIMED]:
            self.drop(connection)

    def drop(self, connection: "DriverConnection") -> None:
        del self.by_descriptor[connection.descriptor]
        self._poll.unregister(connection.descriptor)
        connection.socket.close()
        if connection is self.driver:
            self.driver, self._left_at = None, time.monotonic()

    def claim(self, connection: "DriverConnection", fence: int) -> None:
        """Make this connection the driver, unless its fence is older than the last one."""
        if fence < self._fence:
            connection.send({"type": "refused", "fence": self._fence})
            raise ConnectionRefusedError
        if self.driver is not None and self.driver is not connection:
            self.driver.send_last({"type": "replaced", "fence": fence})
            self.drop(self.driver)
        self.driver, self._fence, connection.is_driver = connection, fence, True


class Keeper:
    """Runs one CLI for one driver at a time. Made by `main` in the keeper process.

    States: starting (fork and exec), serving (until the CLI ends or the stop ladder is over), ended
    (all descendants are killed and the exit file is written). It ends only when nothing of the CLI
    is left, or what is left cannot be killed.
    """

    def __init__(self, spec: LaunchSpec, directory: Directory) -> None:
        self._spec, self._directory = spec, directory
        self._poll = select.poll()
        self._signals, self._pid = -1, 0
        self._status: int | None = None
        self._oom_kills = _count_oom_kills()
        self._will = bytearray()
        self._input = CliInput(self._poll, directory)
        self._guard = ResourceGuard(spec.limits, directory)
        self._ladder = StopLadder(spec.rungs)
        self._connections = DriverConnections(self._poll, directory.listener)

    def run(self, answer: int) -> None:
        fault = _catch_fault(self._start)
        if fault is not None:
            self._finish(fault)
            _answer(answer, {"error": fault})
            return
        _answer(answer, {"pid": self._pid})
        fault = _catch_fault(self._serve)
        if fault is not None:
            self._ladder.reason = self._ladder.reason or "keeper_lost"
        self._finish(fault)

    def _start(self) -> "Fault":
        _prctl(_PR_SET_CHILD_SUBREAPER, 1)
        self._signals, wakeup = os.pipe()
        os.set_blocking(wakeup, False)
        signal.set_wakeup_fd(wakeup, warn_on_full_buffer=False)
        for number in (signal.SIGCHLD, signal.SIGTERM):
            signal.signal(number, lambda *_: None)
        self._poll.register(self._signals, select.POLLIN)
        self._poll.register(self._directory.listener, select.POLLIN)
        return self._launch()

    def _launch(self) -> "Fault":
        """Fork and exec; what prevents that comes back through a pipe that exec closes."""
        reading, report = os.pipe()
        stdin, feeding = os.pipe()
        self._pid = os.fork()
        if self._pid == 0:
            # Stdin of this process is the null device.
            _become_cli(self._spec, self._directory, stdin if self._spec.has_stdin else 0, report)
        os.close(report)
        os.close(stdin)
        self._input.open(feeding)
        if not self._spec.has_stdin:
            self._input.close()
        refusal = _read_all(reading)
        os.close(reading)
        if refusal:
            os.waitpid(self._pid, 0)
        return _parse(refusal) if refusal else None

    def _serve(self) -> None:
        while self._status is None and not self._ladder.is_over:
            seconds = min(self._guard.due_at, self._ladder.due_at) - time.monotonic()
            for descriptor, events in self._poll.poll(max(0.0, seconds) * 1000):
                self._handle(descriptor, events)
            now = time.monotonic()
            if now >= self._guard.due_at:
                reason = self._guard.check(now, self._connections.alone_since)
                if reason:
                    self._stop(reason)
            if now >= self._ladder.due_at:
                self._climb()

    def _handle(self, descriptor: int, events: int) -> None:
        if descriptor == self._signals:
            self._handle_signals()
        elif descriptor == self._input.descriptor:
            self._input.flush(is_broken=bool(events & select.POLLERR))
        elif descriptor in self._connections.by_descriptor:
            self._receive(self._connections.by_descriptor[descriptor])
        else:
            self._connections.accept()

    def _handle_signals(self) -> None:
        if signal.SIGTERM in os.read(self._signals, _CHUNK_BYTES):
            self._stop("shutdown")
        _reap(self._note_exit)

    def _note_exit(self, pid: int, status: int) -> None:
        if pid == self._pid:
            self._status = status

    def _stop(self, reason: str) -> None:
        if self._ladder.reason is None:
            self._ladder.reason = reason
            self._climb()

    def _climb(self) -> None:
        """Execute the next rung; do not wait for a will that was not deposited."""
        rung = self._ladder.next_rung()
        if rung is None:
            return
        do, wait_seconds, number = rung
        if do == "signal":
            self._signal(number)
        elif do == "eof":
            self._input.finish()
        elif not self._will or self._input.write(
            WILL_KEY, self._directory.measure_journal(), self._will
        ):
            wait_seconds = 0
        self._ladder.due_at = time.monotonic() + wait_seconds

    def _signal(self, number: int) -> None:
        if self._status is None:  # Afterwards the pid may belong to another process.
            _kill({self._pid}, number)

    def _receive(self, connection: "DriverConnection") -> None:
        """Handle complete messages. A connection that sends an invalid one, or does not read its
        answers, is dropped."""
        try:
            connection.exchange()
            while message := connection.next_message():
                connection.send(self._handle_message(connection, *message))
            self._poll.modify(connection.descriptor, connection.events())
        except OSError:
            self._connections.drop(connection)
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            connection.send_last({"type": "error", **_describe_fault("bad_message", error)})
            self._connections.drop(connection)

    def _handle_message(
        self, sender: "DriverConnection", message: "Message", body: bytearray
    ) -> "Message":
        match message["type"]:
            case "claim":
                return self._claim(sender, message["v"], _check_count(message["fence"]))
            case "frame":
                return self._write_frame(
                    _check_name(message["key"]), _check_count(message["at"]), body
                )
            case "will":
                self._will = body
            case "signal":
                self._signal(_SIGNALS[message["number"]])
            case "eof":
                self._input.finish()
            case "stop":
                self._stop(_check_name(message["reason"]))
            case unknown:
                raise ValueError(f"there is no message {unknown}")
        return {"type": "ok"}

    def _claim(self, connection: "DriverConnection", version: int, fence: int) -> "Message":
        _require(version == VERSION, f"this keeper speaks version {VERSION}")
        self._connections.claim(connection, fence)
        return {"type": "claimed", "v": VERSION, "pid": self._pid, "sent": self._directory.sent}

    def _write_frame(self, key: str, at: int, body: bytearray) -> "Message":
        is_repeated = key in self._input.numbers
        if not is_repeated and (code := self._input.write(key, at, body)):
            return {"type": "error", "code": code, "key": key}
        return {"type": "ack", "key": key, "n": self._input.numbers[key], "repeated": is_repeated}

    def _finish(self, fault: "Fault") -> None:
        """End all that is left, write the exit file, and report to the driver."""
        if self._pid > 0:  # Without /proc, its process group is all that can be killed.
            _kill({-self._pid})
        left = _end_descendants(self._spec.limits["kill_seconds"], self._note_exit)
        self._directory.cut_stderr()
        is_oom = (
            self._status is not None
            and os.WIFSIGNALED(self._status)
            and os.WTERMSIG(self._status) == signal.SIGKILL
            and self._ladder.reason is None
            and _count_oom_kills() > self._oom_kills
        )
        facts = _record_exit(self._status, self._ladder.reason, fault, left, is_oom=is_oom)
        _kill({os.getppid()}, signal.SIGCONT)  # A stopped outer process would not end.
        driver = self._connections.driver
        if driver is not None:
            driver.send_last({"type": "exited", **facts}, wait_seconds=_GOODBYE_SECONDS)


class DriverConnection:
    """One connection to the socket. It holds at most one message and a limited queue of answers."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self.socket = _socket.socket(fileno=descriptor)
        self.socket.setblocking(False)
        self.is_driver = False
        self._inbox, self._outbox = bytearray(), bytearray()

    def events(self) -> int:
        return select.POLLIN | select.POLLOUT if self._outbox else select.POLLIN

    def exchange(self) -> None:
        """Send what is due, read what has come."""
        self._flush()
        with _ErrorFilter(BlockingIOError):
            data = self.socket.recv(_CHUNK_BYTES)
            if not data:
                raise ConnectionAbortedError
            self._inbox += data

    def next_message(self) -> "tuple[Message, bytearray] | None":
        start = self._inbox.find(b"\n", 0, HEADER_BYTES) + 1
        if start == 0 and len(self._inbox) < HEADER_BYTES:
            return None
        _require(start > 0, f"a header has at most {HEADER_BYTES} bytes")
        header = _parse(self._inbox[:start])
        end = start + self._check_size(header)
        if len(self._inbox) < end:
            return None
        body = self._inbox[start:end]
        del self._inbox[:end]
        return header, body

    def _check_size(self, header: "Message") -> int:
        is_sized = header["type"] in ("frame", "will")
        _require(header["type"] == "claim" or self.is_driver, "the first message must be a claim")
        _require(("size" in header) == is_sized, "frame and will have a size, and no others")
        size = _check_count(header.get("size", 0))
        _require(size <= FRAME_BYTES, f"a size is at most {FRAME_BYTES}")
        return size

    def send(self, message: "Message") -> None:
        self._outbox += _encode_line(message)
        self._flush()
        if len(self._outbox) > UNREAD_BYTES:
            raise ConnectionAbortedError

    def send_last(self, message: "Message", *, wait_seconds: float = 0) -> None:
        with _ErrorFilter(OSError):
            self.socket.settimeout(wait_seconds)
            self.socket.sendall(self._outbox + _encode_line(message))

    def _flush(self) -> None:
        with _ErrorFilter(BlockingIOError):
            while self._outbox:
                del self._outbox[: self.socket.send(self._outbox)]


def _check_count(value: int) -> int:
    _require(type(value) is int and value >= 0, f"{value!r} is not a count")
    return value


def _check_name(value: str) -> str:
    is_good = isinstance(value, str) and 0 < len(value) <= NAME_LENGTH
    _require(is_good, f"a name has 1 to {NAME_LENGTH} characters")
    return value


def _require(is_so: bool, problem: str) -> None:
    if not is_so:
        raise ValueError(problem)


def _become_cli(spec: LaunchSpec, directory: Directory, stdin: int, report: int) -> "NoReturn":
    code = "failed"
    try:
        os.setsid()
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        with _ErrorFilter(OSError):  # Without memory, the kernel ends the CLI before its keeper.
            os.write(os.open("/proc/self/oom_score_adj", os.O_WRONLY), b"500")
        for target, source in enumerate((stdin, directory.journal, directory.stderr)):
            os.dup2(source, target)
        os.umask(directory.umask_of_driver)
        code = "no_directory"
        os.chdir(spec.cwd)
        code = "failed"
        refusal = _exec(spec.argv, spec.env)
        code = _REFUSALS.get(refusal.errno, code)
        os.write(report, _encode_line(_describe_fault(code, refusal)))
    except BaseException as error:  # noqa: BLE001 (the keeper reports it)
        # No program can get such arguments, such as one with a null byte.
        code = "invalid" if isinstance(error, ValueError) else code
        os.write(report, _encode_line(_describe_fault(code, error)))
    finally:
        os._exit(127)


def _exec(argv: list[bytes], env: dict[bytes, bytes]) -> OSError:
    """Execute the program, found on the PATH of `env` as a shell does; return only on an error."""
    places = [b""] if b"/" in argv[0] else env.get(b"PATH", os.defpath.encode()).split(b":")
    refusal = None
    for path in [os.path.join(place, argv[0]) for place in places]:
        try:
            os.execve(path, argv, env)  # noqa: S606
        except OSError as error:
            # A directory that may not be entered counts as one without the program.
            if os.access(path, os.F_OK):
                refusal = refusal or error
    return refusal or FileNotFoundError(errno.ENOENT, "there is no such program", argv[0])


def _detach_from_driver() -> None:
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(null, descriptor)
    os.close(null)


def _set_signals() -> None:
    """Receive SIGCHLD and SIGTERM, whatever the driver has set; ignore signals of terminals."""
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    for number in (signal.SIGCHLD, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def _answer(descriptor: int, answer: "Message") -> None:
    with _ErrorFilter(OSError):
        os.write(descriptor, _encode_line({"v": VERSION, **answer}))
    os.close(descriptor)


def _catch_fault(action: "Callable[[], Fault]") -> "Fault":
    """Return every error: after any of them, the process tree has to be ended."""
    try:
        return action()
    except BaseException as error:  # noqa: BLE001 (see above)
        return _describe_fault("failed", error)


def _describe_fault(code: str, error: BaseException) -> dict[str, str]:
    message = f"{type(error).__name__}: {error}"
    if isinstance(error, OSError) and error.filename:
        message = f"{error.strerror}: {os.fsdecode(error.filename)}"
    return {"code": code, "message": message[:1000]}


class _ScannerOptions:
    """The options of a JSON scanner: all defaults."""

    strict, object_hook, object_pairs_hook, array_hook = True, None, None, None
    parse_int, parse_float, parse_constant = int, float, float


try:
    from _json import encode_basestring_ascii, make_encoder, make_scanner

    _scan = make_scanner(_ScannerOptions)  # type: ignore[arg-type]
    _encode = make_encoder(None, str, encode_basestring_ascii, None, ":", ",", False, False, True)
except (ImportError, AttributeError, TypeError):  # A Python without these functions.
    import json

    _scan = json.JSONDecoder().scan_once  # type: ignore[attr-defined]
    _encode = json.JSONEncoder(separators=(",", ":")).iterencode  # type: ignore[assignment]


def _parse(data: "bytes | bytearray") -> "Any":
    text = data.decode().strip()
    try:
        value, end = _scan(text, 0)
    except Exception as error:  # Also if the module of the error was deleted from the disk.
        raise ValueError(f"this is no JSON: {error}") from error
    _require(end == len(text), "this is more than one document")
    return value


def _encode_line(message: "Message") -> bytes:
    return "".join(_encode(message, 0)).encode() + b"\n"


class _ErrorFilter:
    """The same as `contextlib.suppress`, which costs an import."""

    def __init__(self, *errors: type[Exception]) -> None:
        self._errors = errors

    def __enter__(self) -> None: ...

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> bool:
        return kind is not None and issubclass(kind, self._errors)


def _count_oom_kills() -> int:
    """How many processes of this machine the kernel has killed for lack of memory; 0 if unknown."""
    with _ErrorFilter(OSError, ValueError), open("/proc/vmstat", "rb") as file:
        for line in file:
            if line.startswith(b"oom_kill "):
                return int(line.split()[1])
    return 0


def _read_all(descriptor: int) -> bytes:
    with open(descriptor, "rb", closefd=False) as file:
        return file.read()


def _prctl(option: int, value: int) -> None:
    """Best effort: without it, orphans are found only by their mark."""
    with _ErrorFilter(OSError, AttributeError):
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def _end_descendants(seconds: float, note: "Callable[[int, int], None]") -> set[int]:
    """Kill descendants until this process has no child; after `seconds`, return the rest."""
    limit, pause, known = time.monotonic() + seconds, 0.001, set[int]()
    while not _reap(note):
        found = _find_descendants({os.getpid()})
        _kill(found)
        if time.monotonic() > limit:
            return found
        pause = _wait_longer(pause if found <= known else 0.001)
        known = found
    return set()


def _reap(note: "Callable[[int, int], None]") -> bool:
    """Reap all children that have ended; return whether none is left."""
    with _ErrorFilter(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            note(*ended)
        return False
    return True


def _wait_longer(pause: float) -> float:
    select.select([], [], [], pause)
    return min(pause * 2, 0.1)


def _kill(pids: set[int], number: int = signal.SIGKILL) -> None:
    for pid in pids:
        with _ErrorFilter(OSError):
            os.kill(pid, number)


def _find_descendants(roots: set[int]) -> set[int]:
    """All descendants, also in other sessions and groups; none if there is no /proc."""
    parents = {pid: int(stat[1]) for pid, stat in _read_stats()}
    found: set[int] = set()
    while fresh := {pid for pid, up in parents.items() if up in roots | found} - roots - found:
        found |= fresh
    return found


def _read_stats() -> "Iterator[tuple[int, list[bytes]]]":
    """State, parent and so on of each process. The name before them may contain anything."""
    return ((pid, stat.rpartition(b") ")[2].split()) for pid, stat in _read_proc("stat") if stat)


def _read_proc(name: str) -> "Iterator[tuple[int, bytes]]":
    """This file in /proc of each process, if this user may read it."""
    with _ErrorFilter(OSError):
        for pid in filter(str.isdigit, os.listdir("/proc")):
            with _ErrorFilter(OSError), open(f"/proc/{pid}/{name}", "rb") as file:
                yield int(pid), file.read()


if __name__ == "__main__":
    os._exit(main())  # The cleanup of the interpreter takes time and has nothing to do.
