"""Who looks after a CLI when its driver dies, and ends all of it when it must end?

The contract is docs/keeper.md. This file runs by itself, as `python -I -S keeper.py`, and knows
nothing of the package. All is imported at the start: an upgrade may take the files away from under
a keeper that has been running for a day. And it is little, because the CLI waits for it: of json,
signal and socket only what is written in C. The other halves would double the time of a start.
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
MARK = "STEADYRUN_PROCESS"
WILL_KEY = "keeper:will"
LIMITS = ("free_bytes", "journal_bytes", "silent_seconds", "unclaimed_seconds", "kill_seconds")
HEADER_BYTES, UNREAD_BYTES = 64 << 10, 1 << 20
FRAME_BYTES = QUEUE_BYTES = 64 << 20
STDERR_BYTES, STDERR_KEPT_BYTES = 1 << 20, 64 << 10
NAME_LENGTH, STRANGERS = 256, 16
_CHUNK_BYTES, _EXIT_BYTES = 64 << 10, 16 << 10
_GOODBYE_SECONDS = 1.0
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_REFUSALS: "dict[int | None, str]" = {errno.ENOENT: "not_found", errno.ENOTDIR: "not_found"}
_REFUSALS |= {errno.EACCES: "not_executable", errno.ENOEXEC: "not_executable"}
_SIGNALS: "dict[int, int]" = {number: number for number in signal.valid_signals()}


def read_sent(data: bytes) -> list[tuple[int, str, int, bytes]]:
    """The frames of a `sent` file: number, key, offset, bytes. A torn last one is left out."""
    frames, start = [], 0
    while (head := data.find(b"\n", start)) >= 0:
        header = _parse(data[start:head])
        start = head + 1 + header["size"] + 1
        if start > len(data):
            break
        frames.append((header["n"], header["key"], header["at"], data[head + 1 : start - 1]))
    return frames


def marked(process_id: str) -> set[int]:
    """The processes, among those we may look into, that were started for this one."""
    mark = f"{MARK}={process_id}".encode()
    return {pid for pid, environ in _look_into("environ") if mark in environ.split(b"\0")}


def sweep(process_ids: "Iterable[str]", *, seconds: float = 5.0) -> set[int]:
    """Kill what has one of these marks, and all below it; return what does not go away."""
    ids, limit, pause, known = list(process_ids), time.monotonic() + seconds, 0.001, set[int]()
    while True:
        found = {pid for one in ids for pid in marked(one)} - {os.getpid()}
        known |= found | _descendants(found)
        _kill(known)
        # A dying process has no environment any more, but may still hold files open.
        known &= {pid for pid, stat in _stats() if stat[0] not in (b"Z", b"X")}
        if not known or time.monotonic() > limit:
            return known
        pause = _wait_longer(pause)


def main() -> int:
    """Start outer, keeper and CLI as stdin says, and say on stdout how that went."""
    os.closerange(3, 1 << 16)
    answer = os.dup(1)
    try:
        spec = Spec(_read_all(0))
        _let_go_of_driver()
        directory = Directory(spec.directory)
        gc.freeze()  # A collection would touch, and so copy, each page that the two share.
        if os.fork():
            return 0
        os.setsid()
        _set_signals()
        _prctl(_PR_SET_CHILD_SUBREAPER, 1)
        keeper = os.fork()
    except Exception as error:  # noqa: BLE001 (whatever it is, the driver must be told)
        _answer(answer, {"error": _fault("failed", error)})
        return 1
    if keeper == 0:
        Keeper(spec, directory).run(answer)
    else:
        os.close(answer)
        directory.listener.close()
        _stand_by(keeper, spec.limits["kill_seconds"])
    return 0


def _stand_by(keeper: int, kill_seconds: float) -> None:
    """Wait for the keeper's end; if it did not end by itself, do its last duty."""
    signal.signal(signal.SIGTERM, lambda *_: os.kill(keeper, signal.SIGTERM))
    pid = status = 0
    while pid != keeper:
        pid, status = os.waitpid(-1, 0)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if status != 0:
        _record_exit(None, "keeper_lost", None, _end_descendants(kill_seconds, lambda *_: None))


class Spec:
    """What is to run, how it is stopped and within what limits."""

    def __init__(self, data: bytes) -> None:
        spec = _parse(data)
        _require(spec["v"] == VERSION, f"the spec has version {spec['v']}, this keeper {VERSION}")
        self.directory, self.cwd = _raw(spec["directory"]), _raw(spec["cwd"])
        self.argv = [_raw(word) for word in spec["argv"]]
        self.env = {_raw(name): _raw(value) for name, value in spec["env"].items()}
        self.env[MARK.encode()] = _raw(spec["process"])
        self.has_stdin = {"pipe": True, "null": False}[spec["stdin"]]
        self.rungs = [_rung(**rung) for rung in spec["rungs"]]
        self.limits = {name: float(spec["limits"][name]) for name in LIMITS}


def _raw(text: str) -> bytes:
    """The bytes that the driver meant, whatever the locale of this process."""
    return text.encode("utf-8", "surrogateescape")


def _rung(*, do: str, wait_seconds: float, number: int = 0) -> tuple[str, float, int]:
    _require(do in ("will", "eof", "signal"), f"no such rung: {do}")
    return do, float(wait_seconds), _SIGNALS[number] if do == "signal" else 0


class Directory:
    """The files of one process. Only the first keeper to come may have them."""

    def __init__(self, path: bytes) -> None:
        self.umask_of_driver = os.umask(0o077)
        with _Ignoring(FileExistsError):
            os.mkdir(path)
        os.chdir(path)
        # Nobody closes it, so it is held until outer and keeper have both ended.
        fcntl.flock(_create("lock"), fcntl.LOCK_EX | fcntl.LOCK_NB)
        self._sent = _create("sent", os.O_EXCL)
        self._sent_bytes = self.sent = 0
        # Takes the room for the last record now: the disk may be full by then.
        os.write(_create("exit.new"), b" " * _EXIT_BYTES)
        self.journal = _create("journal", os.O_APPEND)
        self.stderr = _create("stderr", os.O_APPEND)
        self.listener = _socket.socket(_socket.AF_UNIX)
        self.listener.bind("socket")
        os.chmod("socket", 0o600)
        self.listener.listen()
        self.listener.setblocking(False)

    def record_frame(self, key: str, at: int, body: bytearray) -> int:
        """Write it whole, or raise and leave no trace; return its number."""
        header = _line({"n": self.sent + 1, "key": key, "at": at, "size": len(body)})
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

    def journal_size(self) -> int:
        return os.fstat(self.journal).st_size

    def cut_stderr(self) -> None:
        with _Ignoring(OSError):
            if (size := os.fstat(self.stderr).st_size) > STDERR_BYTES:
                tail = os.pread(self.stderr, STDERR_KEPT_BYTES, size - STDERR_KEPT_BYTES)
                os.ftruncate(self.stderr, 0)
                os.write(self.stderr, tail)


def _create(name: str, flags: int = 0) -> int:
    return os.open(name, os.O_RDWR | os.O_CREAT | flags, 0o600)


def _record_exit(end: int | None, reason: str | None, fault: "Fault", left: set[int]) -> "Message":
    """Write it once, best effort: after that there is no `exit.new`."""
    facts = {
        "v": VERSION,
        "code": None if end is None or os.WIFSIGNALED(end) else os.WEXITSTATUS(end),
        "signal": None if end is None or os.WIFEXITED(end) else os.WTERMSIG(end),
        "reason": reason,
        "error": fault,
        "at": time.time(),  # noqa: TID251 (the Clock is out of reach here)
        "left": sorted(left),
    }
    with _Ignoring(OSError):
        file = os.open("exit.new", os.O_WRONLY)
        os.ftruncate(file, os.write(file, _line(facts)))
        os.rename("exit.new", "exit")
    return facts


class Keeper:
    """Feeds one CLI, obeys one driver at a time, and ends only when nothing of the CLI is left."""

    def __init__(self, spec: Spec, directory: Directory) -> None:
        self._spec, self._directory = spec, directory
        self._poll = select.poll()
        self._signals = self._stdin = -1
        self._pid = self._fence = self._journal_bytes = 0
        self._status: int | None = None
        self._waiting, self._will = bytearray(), bytearray()
        self._is_eof_due = self._is_over = False
        self._numbers: dict[str, int] = {}
        self._connections: dict[int, DriverConnection] = {}
        self._driver: DriverConnection | None = None
        self._reason: str | None = None
        self._rungs = list(spec.rungs)
        self._rung_until = float("inf")
        self._look_at = self._alone_since = self._output_at = time.monotonic()

    def run(self, answer: int) -> None:
        fault = _fault_of(self._start)
        if fault is not None:
            self._finish(fault)
            _answer(answer, {"error": fault})
            return
        _answer(answer, {"pid": self._pid})
        fault = _fault_of(self._serve)
        if fault is not None:
            self._reason = self._reason or "keeper_lost"
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
        stdin, self._stdin = os.pipe()
        self._pid = os.fork()
        if self._pid == 0:
            # Stdin of this process is the null device.
            _become_cli(self._spec, self._directory, stdin if self._spec.has_stdin else 0, report)
        os.close(report)
        os.close(stdin)
        os.set_blocking(self._stdin, False)
        self._poll.register(self._stdin, 0)
        if not self._spec.has_stdin:
            self._close_stdin()
        said = _read_all(reading)
        os.close(reading)
        if said:
            os.waitpid(self._pid, 0)
        return _parse(said) if said else None

    def _serve(self) -> None:
        while self._status is None and not self._is_over:
            patience = min(self._look_at, self._rung_until) - time.monotonic()
            for descriptor, events in self._poll.poll(max(0.0, patience) * 1000):
                self._handle(descriptor, events)
            now = time.monotonic()
            if now >= self._look_at:
                self._look_at = now + 1
                self._look_around(now)
            if now >= self._rung_until:
                self._climb()

    def _handle(self, descriptor: int, events: int) -> None:
        if descriptor == self._signals:
            self._hear_signals()
        elif descriptor == self._stdin:
            self._feed(is_broken=bool(events & select.POLLERR))
        elif descriptor in self._connections:
            self._hear(self._connections[descriptor])
        else:
            self._accept()

    def _hear_signals(self) -> None:
        if signal.SIGTERM in os.read(self._signals, _CHUNK_BYTES):
            self._stop("shutdown")
        _reap(self._note)

    def _note(self, pid: int, status: int) -> None:
        if pid == self._pid:
            self._status = status

    def _look_around(self, now: float) -> None:
        """Is there room, and somebody who cares or a sign of life? If not, stop."""
        self._directory.cut_stderr()
        journal, disk = os.fstat(self._directory.journal), os.fstatvfs(self._directory.journal)
        is_shorter = journal.st_size < self._journal_bytes
        if journal.st_size != self._journal_bytes:
            self._journal_bytes, self._output_at = journal.st_size, now
        if journal.st_nlink == 0 or is_shorter:
            self._stop("journal_lost")
        elif disk.f_bavail * disk.f_frsize < self._spec.limits["free_bytes"]:
            self._stop("disk_full")
        elif journal.st_size > self._spec.limits["journal_bytes"]:
            self._stop("journal_full")
        elif self._driver is None and (
            now - max(self._output_at, self._alone_since) > self._spec.limits["silent_seconds"]
            or now - self._alone_since > self._spec.limits["unclaimed_seconds"]
        ):
            self._stop("unclaimed")

    def _stop(self, reason: str) -> None:
        if self._reason is None:
            self._reason = reason
            self._climb()

    def _climb(self) -> None:
        """Ask as the next rung says; there is no waiting on a will that was not given."""
        if not self._rungs:
            self._is_over = True
            return
        do, wait_seconds, number = self._rungs.pop(0)
        if do == "signal":
            self._signal(number)
        elif do == "eof":
            self._feed(is_last=True)
        elif not self._will or self._give(WILL_KEY, self._directory.journal_size(), self._will):
            wait_seconds = 0
        self._rung_until = time.monotonic() + wait_seconds

    def _signal(self, number: int) -> None:
        if self._status is None:  # Else the number may be another's by now.
            _kill({self._pid}, number)

    def _give(self, key: str, at: int, body: bytearray) -> str | None:
        """Record it, then queue it; the code of what prevents that."""
        if self._stdin < 0 or self._is_eof_due:
            return "stdin_closed"
        if len(self._waiting) + len(body) > QUEUE_BYTES:
            return "queue_full"
        try:
            self._numbers[key] = self._directory.record_frame(key, at, body)
        except OSError:
            return "not_recorded"
        self._waiting += body
        self._feed()
        return None

    def _feed(self, *, is_broken: bool = False, is_last: bool = False) -> None:
        """Give the CLI what it takes now, and close its stdin when it is time."""
        self._is_eof_due |= is_last
        if self._stdin < 0:
            return
        try:
            del self._waiting[: os.write(self._stdin, self._waiting[:_CHUNK_BYTES])]
        except BlockingIOError:
            pass
        except BrokenPipeError:
            is_broken = True
        if is_broken or (self._is_eof_due and not self._waiting):
            self._close_stdin()
        else:
            self._poll.modify(self._stdin, select.POLLOUT if self._waiting else 0)

    def _close_stdin(self) -> None:
        self._poll.unregister(self._stdin)
        os.close(self._stdin)
        self._stdin = -1
        self._waiting.clear()

    def _accept(self) -> None:
        """Let somebody in; of those who say nothing, the one who waited longest must leave."""
        with _Ignoring(OSError):
            descriptor, _ = self._directory.listener._accept()  # type: ignore[attr-defined] # noqa: SLF001
            self._connections[descriptor] = DriverConnection(descriptor)
            self._poll.register(descriptor, select.POLLIN)
        strangers = [one for one in self._connections.values() if one is not self._driver]
        for stranger in strangers[:-STRANGERS]:
            self._drop(stranger)

    def _drop(self, connection: "DriverConnection") -> None:
        del self._connections[connection.descriptor]
        self._poll.unregister(connection.descriptor)
        connection.socket.close()
        if connection is self._driver:
            self._driver, self._alone_since = None, time.monotonic()

    def _hear(self, connection: "DriverConnection") -> None:
        """Obey what has come whole; who talks nonsense, or does not listen, is dropped."""
        try:
            connection.exchange()
            while message := connection.next_message():
                connection.say(self._obey(connection, *message))
            self._poll.modify(connection.descriptor, connection.events())
        except OSError:
            self._drop(connection)
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            connection.say_last({"type": "error", **_fault("bad_message", error)})
            self._drop(connection)

    def _obey(self, sender: "DriverConnection", message: "Message", body: bytearray) -> "Message":
        match message["type"]:
            case "claim":
                return self._claim(sender, message["v"], _count(message["fence"]))
            case "frame":
                return self._take(_name(message["key"]), _count(message["at"]), body)
            case "will":
                self._will = body
            case "signal":
                self._signal(_SIGNALS[message["number"]])
            case "eof":
                self._feed(is_last=True)
            case "stop":
                self._stop(_name(message["reason"]))
            case unknown:
                raise ValueError(f"there is no message {unknown}")
        return {"type": "ok"}

    def _claim(self, connection: "DriverConnection", version: int, fence: int) -> "Message":
        _require(version == VERSION, f"this keeper speaks version {VERSION}")
        if fence < self._fence:
            connection.say({"type": "refused", "fence": self._fence})
            raise ConnectionRefusedError
        if self._driver is not None and self._driver is not connection:
            self._driver.say_last({"type": "replaced", "fence": fence})
            self._drop(self._driver)
        self._driver, self._fence, connection.is_driver = connection, fence, True
        return {"type": "claimed", "v": VERSION, "pid": self._pid, "sent": self._directory.sent}

    def _take(self, key: str, at: int, body: bytearray) -> "Message":
        is_repeated = key in self._numbers
        if not is_repeated and (code := self._give(key, at, body)):
            return {"type": "error", "code": code, "key": key}
        return {"type": "ack", "key": key, "n": self._numbers[key], "repeated": is_repeated}

    def _finish(self, fault: "Fault") -> None:
        """End all that is left, record how it ended, and tell the driver."""
        if self._pid > 0:  # Where there is no /proc, to kill its group is all that can be done.
            _kill({-self._pid})
        left = _end_descendants(self._spec.limits["kill_seconds"], self._note)
        self._directory.cut_stderr()
        facts = _record_exit(self._status, self._reason, fault, left)
        if self._driver is not None:
            self._driver.say_last({"type": "exited", **facts}, wait_seconds=_GOODBYE_SECONDS)


class DriverConnection:
    """One end of a talk. It holds one message at most, and a bounded number of answers."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self.socket = _socket.socket(fileno=descriptor)
        self.socket.setblocking(False)
        self.is_driver = False
        self._inbox, self._outbox = bytearray(), bytearray()

    def events(self) -> int:
        return select.POLLIN | select.POLLOUT if self._outbox else select.POLLIN

    def exchange(self) -> None:
        """Send what is due, take in what has come."""
        self._flush()
        with _Ignoring(BlockingIOError):
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
        end = start + self._size(header)
        if len(self._inbox) < end:
            return None
        body = self._inbox[start:end]
        del self._inbox[:end]
        return header, body

    def _size(self, header: "Message") -> int:
        is_sized = header["type"] in ("frame", "will")
        _require(header["type"] == "claim" or self.is_driver, "the first message must be a claim")
        _require(("size" in header) == is_sized, "frame and will have a size, and no others")
        _require(_count(header.get("size", 0)) <= FRAME_BYTES, f"a size is at most {FRAME_BYTES}")
        return int(header.get("size", 0))

    def say(self, message: "Message") -> None:
        self._outbox += _line(message)
        self._flush()
        if len(self._outbox) > UNREAD_BYTES:
            raise ConnectionAbortedError

    def say_last(self, message: "Message", *, wait_seconds: float = 0) -> None:
        with _Ignoring(OSError):
            self.socket.settimeout(wait_seconds)
            self.socket.sendall(self._outbox + _line(message))

    def _flush(self) -> None:
        with _Ignoring(BlockingIOError):
            while self._outbox:
                del self._outbox[: self.socket.send(self._outbox)]


def _count(value: int) -> int:
    _require(type(value) is int and value >= 0, f"{value!r} is not a count")
    return value


def _name(value: str) -> str:
    is_good = isinstance(value, str) and 0 < len(value) <= NAME_LENGTH
    _require(is_good, f"a name has 1 to {NAME_LENGTH} characters")
    return value


def _require(is_so: bool, problem: str) -> None:
    if not is_so:
        raise ValueError(problem)


def _become_cli(spec: Spec, directory: Directory, stdin: int, report: int) -> "NoReturn":
    code = "failed"
    try:
        os.setsid()
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        with _Ignoring(OSError):  # When memory ends, it is to go before its keeper.
            os.write(os.open("/proc/self/oom_score_adj", os.O_WRONLY), b"500")
        for target, source in enumerate((stdin, directory.journal, directory.stderr)):
            os.dup2(source, target)
        os.umask(directory.umask_of_driver)
        code = "no_directory"
        os.chdir(spec.cwd)
        code = "failed"
        refusal = _exec(spec.argv, spec.env)
        code = _REFUSALS.get(refusal.errno, code)
        os.write(report, _line(_fault(code, refusal)))
    except BaseException as error:  # noqa: BLE001 (the keeper passes it on)
        os.write(report, _line(_fault(code, error)))
    finally:
        os._exit(127)


def _exec(argv: list[bytes], env: dict[bytes, bytes]) -> OSError:
    """Become the program, found as a shell would on the PATH of `env`; return only if refused."""
    places = [b""] if b"/" in argv[0] else env.get(b"PATH", os.defpath.encode()).split(b":")
    refusal = None
    for path in [os.path.join(place, argv[0]) for place in places]:
        try:
            os.execve(path, argv, env)  # noqa: S606
        except OSError as error:
            # Only what is there can refuse; a place that may not be entered is none.
            if os.access(path, os.F_OK):
                refusal = refusal or error
    return refusal or FileNotFoundError(errno.ENOENT, "there is no such program", argv[0])


def _let_go_of_driver() -> None:
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(null, descriptor)
    os.close(null)


def _set_signals() -> None:
    """Hear of children and of SIGTERM, whatever the driver does; be deaf to terminals."""
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    for number in (signal.SIGCHLD, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def _answer(descriptor: int, answer: "Message") -> None:
    with _Ignoring(OSError):
        os.write(descriptor, _line({"v": VERSION, **answer}))
    os.close(descriptor)


def _fault_of(action: "Callable[[], Fault]") -> "Fault":
    """Nothing passes: whatever happens, there is a tree to be ended."""
    try:
        return action()
    except BaseException as error:  # noqa: BLE001 (see above)
        return _fault("failed", error)


def _fault(code: str, error: BaseException) -> dict[str, str]:
    message = f"{type(error).__name__}: {error}"
    if isinstance(error, OSError) and error.filename:
        message = f"{error.strerror}: {os.fsdecode(error.filename)}"
    return {"code": code, "message": message[:1000]}


class _Plain:
    """What a scanner wants to know: that nothing is special."""

    strict, object_hook, object_pairs_hook, array_hook = True, None, None, None
    parse_int, parse_float, parse_constant = int, float, float


try:
    from _json import encode_basestring_ascii, make_encoder, make_scanner

    _scan = make_scanner(_Plain)  # type: ignore[arg-type]
    _encode = make_encoder(None, str, encode_basestring_ascii, None, ":", ",", False, False, True)
except (ImportError, AttributeError, TypeError):  # A Python in which they are not like this.
    import json

    _scan = json.JSONDecoder().scan_once  # type: ignore[attr-defined]
    _encode = json.JSONEncoder(separators=(",", ":")).iterencode  # type: ignore[assignment]


def _parse(data: "bytes | bytearray") -> "Any":
    text = data.decode().strip()
    try:
        value, end = _scan(text, 0)
    except Exception as error:  # Also when the error it wants to raise is no longer on the disk.
        raise ValueError(f"this is no JSON: {error}") from error
    _require(end == len(text), "this is more than one document")
    return value


def _line(message: "Message") -> bytes:
    return "".join(_encode(message, 0)).encode() + b"\n"


class _Ignoring:
    """As `contextlib.suppress`."""

    def __init__(self, *errors: type[Exception]) -> None:
        self._errors = errors

    def __enter__(self) -> None: ...

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> bool:
        return kind is not None and issubclass(kind, self._errors)


def _read_all(descriptor: int) -> bytes:
    with open(descriptor, "rb", closefd=False) as file:
        return file.read()


def _prctl(option: int, value: int) -> None:
    """Best effort: without it, an orphan is found by its mark only."""
    with _Ignoring(OSError, AttributeError):
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def _end_descendants(seconds: float, note: "Callable[[int, int], None]") -> set[int]:
    """Kill all below this process until it has no child; after `seconds`, give up on the rest."""
    limit, pause, known = time.monotonic() + seconds, 0.001, set[int]()
    while not _reap(note):
        found = _descendants({os.getpid()})
        _kill(found)
        if time.monotonic() > limit:
            return found
        pause = _wait_longer(pause if found <= known else 0.001)
        known = found
    return set()


def _reap(note: "Callable[[int, int], None]") -> bool:
    """Take in all that have ended; true if no child is left."""
    with _Ignoring(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            note(*ended)
        return False
    return True


def _wait_longer(pause: float) -> float:
    select.select([], [], [], pause)
    return min(pause * 2, 0.1)


def _kill(pids: set[int], number: int = signal.SIGKILL) -> None:
    for pid in pids:
        with _Ignoring(OSError):
            os.kill(pid, number)


def _descendants(roots: set[int]) -> set[int]:
    """All below these, also in other sessions and groups; none where there is no /proc."""
    parents = {pid: int(stat[1]) for pid, stat in _stats()}
    found: set[int] = set()
    while fresh := {pid for pid, up in parents.items() if up in roots | found} - roots - found:
        found |= fresh
    return found


def _stats() -> "Iterator[tuple[int, list[bytes]]]":
    """State, parent and so on of each. The name in parentheses before them may hold anything."""
    return ((pid, stat.rpartition(b") ")[2].split()) for pid, stat in _look_into("stat") if stat)


def _look_into(name: str) -> "Iterator[tuple[int, bytes]]":
    """This file of each process that has not ended, if it is our business."""
    with _Ignoring(OSError):
        for pid in filter(str.isdigit, os.listdir("/proc")):
            with _Ignoring(OSError), open(f"/proc/{pid}/{name}", "rb") as file:
                yield int(pid), file.read()


if __name__ == "__main__":
    os._exit(main())  # Tidying up takes time, and there is nothing to tidy up.
