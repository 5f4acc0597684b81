"""Every parser takes hostile input without a crash and without a hang.

`STEADYRUN_FUZZ_INPUTS=1000000 STEADYRUN_FUZZ_SEED=7` is the long form: so many inputs for each
parser. A failure names its seed and its input.
"""

import os
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import astuple

from steadyrun.config import load
from steadyrun.dialect import Dialect, LaunchRequest, Send, Turn, TurnEnded
from steadyrun.driver import JournalBatch
from steadyrun.drivers import keeper
from steadyrun.drivers.journal.json_cutter import JsonCutter
from steadyrun.drivers.replay import read_recording
from steadyrun.drivers.turn_tracker import TrackedOutput, TurnTracker
from steadyrun.errors import InvalidUsage
from steadyrun.lib import jsonrpc
from steadyrun.lib.framing import Frame
from steadyrun.lib.jsonrpc import RpcRequest
from steadyrun.model.event import Emitted
from steadyrun.model.event_codec import decode_events, encode_events
from steadyrun.model.ids import AgentId, RunId
from steadyrun.model.policy import Rights, read_permissions
from steadyrun.model.run import Finished, Run, build_status_events, step
from steadyrun.model.secret import Scrubber
from steadyrun.model.usage import MOST_TOKENS
from steadyrun.operations.registry import OPERATIONS
from steadyrun.providers.registry import make_dialect
from steadyrun.runtime.agent.ingest import find_types, ingest
from tests.children.keeper_driver import Driver, Kept
from tests.fuzz.mutations import mutate
from tests.recordings.recorded import HERE as RECORDINGS

ENVIRONMENT = os.environ  # noqa: TID251 (two numbers for this test alone)
INPUTS = int(ENVIRONMENT.get("STEADYRUN_FUZZ_INPUTS", "10000"))
SEED = int(ENVIRONMENT.get("STEADYRUN_FUZZ_SEED", "20261118"))
# Generous: a busy machine is slow, but a parser that hangs never ends.
INPUT_SECONDS = 20
# A Dialect remembers what it has read: it starts anew after so many lines.
LINES_OF_A_PROCESS = 200
AT = datetime(2026, 1, 1, tzinfo=UTC)
REQUEST = LaunchRequest(Turn("t1", "go"), "/")
SCRUBBER = Scrubber()
RUN = Run(RunId("run_1"), AgentId("agt_1"), None, "claude", AT)
CONFIG = b"""
store = "sqlite"
[daemon]
listen = "127.0.0.1:7717"
runs = 5
[providers.claude]
command = ["claude"]
model = "sonnet"
env = { ANTHROPIC_API_KEY = "${ANTHROPIC_API_KEY}" }
options = { max_retries = 2 }
[agents.ada]
provider = "claude"
fallback = ["codex"]
home = "~/agents/ada"
mode = "full_auto"
budget = { day = 5.0 }
"""
USED = b'{"input_tokens":5,"output_tokens":7,"cache_read_tokens":1,"cache_write_tokens":null}'
SCRIPTED = (
    b'{"type":"ready","token":"t"}',
    b'{"type":"began","turn":"t1","by":"turn"}',
    b'{"type":"usage","usage":' + USED + b',"cost_usd":0.5}',
    b'{"type":"stats","model":"m","context_window":200000,"output_tokens":7}',
    b'{"type":"retrying","reason":"rate_limited","attempt":1,"delay_ms":500}',
    b'{"type":"compacted","tokens_before":5,"tokens_after":3}',
    b'{"type":"tool_start","id":"c1","name":"bash","input":{"command":"ls","n":1}}',
    b'{"type":"tool_end","id":"c1","name":"bash","output":{"lines":3}}',
    b'{"type":"ask","id":"a","call":"c2","name":"bash","input":{"n":1}}',
    b'{"type":"background","open":1}',
    b'{"type":"ended","turn":"t1","status":"completed","usage":' + USED + b',"cost_usd":0.5}',
)
PERMISSIONS = (
    b'{"tier": "custom", "tools": ["Read", "Bash"], "note": "only these"}',
    b'{"tier": "readonly"}',
    b'{"tools": []}',
)


@contextmanager
def limited_time(data: bytes) -> Iterator[None]:
    """Fail if one input takes too long."""

    def fail(*_: object) -> None:
        raise AssertionError(f"this input takes more than {INPUT_SECONDS} s: {data[:2000]!r}")

    before = signal.signal(signal.SIGALRM, fail)
    signal.alarm(INPUT_SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def fuzz(samples: list[bytes], parse: Callable[[bytes], object]) -> None:
    for data in mutate(samples, SEED, INPUTS):
        with limited_time(data):
            try:
                parse(data)
            except Exception as error:
                raise AssertionError(f"seed {SEED}: {data[:2000]!r}") from error


def read_lines(cli: str) -> list[bytes]:
    """Every different kind of line that a CLI has printed."""
    lines: dict[str, bytes] = {}
    for path in sorted((RECORDINGS / cli).glob("*.jsonl")):
        for line in read_recording(path):
            if line.dir == "out":
                raw = (
                    line.msg.encode()
                    if isinstance(line.msg, str)
                    else msgspec.json.encode(line.msg)
                )
                lines.setdefault(_find_shape(raw), raw)
    return list(lines.values())


def _find_shape(raw: bytes) -> str:
    try:
        document = msgspec.json.decode(raw)
    except ValueError:
        return "text"
    if not isinstance(document, dict):
        return type(document).__name__
    inner = document.get("params") or document.get("event") or document.get("message") or {}
    kinds = [document.get(key) for key in ("type", "subtype", "method")]
    return str((*kinds, sorted(inner) if isinstance(inner, dict) else inner, sorted(document)))


def store(tracked: list[TrackedOutput]) -> None:
    """Encode events and change a run as the runtime and the store do."""
    output = [each for each in tracked if not isinstance(each, Send)]
    events = [each for each in output if isinstance(each, Emitted)]
    assert len(decode_events(encode_events(events, SCRUBBER))) == len(events)
    ingest(JournalBatch(output, 0, 0), find_types(output), Rights("default"), {})
    for each in output:
        if isinstance(each, TurnEnded):
            facts = {name: getattr(each, name) for name in TurnEnded.__struct_fields__}
            run = step(RUN, Finished(AT, **facts))
            assert max(count or 0 for count in astuple(run.usage)) <= MOST_TOKENS
            assert encode_events(build_status_events(RUN, run), SCRUBBER)
            msgspec.json.encode(run)


class TrackedDialect:
    """A Dialect with a running turn, made anew from time to time."""

    def __init__(self, provider: str) -> None:
        self._provider, self._count = provider, 0
        self._offset, self._tracker = 0, self._make()

    def _make(self) -> TurnTracker:
        dialect: Dialect = make_dialect(self._provider, {})
        tracker = TurnTracker(dialect)
        sends = [*dialect.open(REQUEST), *dialect.begin(REQUEST.turn)]
        for number, send in enumerate(sends, 1):
            tracker.on_sent(Frame(send.raw, 0, send.key, number), AT)
        return tracker

    def receive(self, data: bytes) -> None:
        self._count += 1
        if self._count % LINES_OF_A_PROCESS == 0:
            self._offset, self._tracker = 0, self._make()
        self._offset += len(data) + 1
        tracked = self._tracker.on_received(Frame(data, self._offset), AT)
        # What is decoded can be stored, and the state can be saved and restored.
        store(tracked)
        if self._count % 20 == 0:
            self._tracker.restore(self._tracker.save())


@pytest.mark.parametrize("provider", ["claude", "codex", "scripted"])
def test_dialect_reads_any_line(provider: str) -> None:
    samples = list(SCRIPTED) if provider == "scripted" else read_lines(provider)
    fuzz(samples, TrackedDialect(provider).receive)


def test_json_is_cut_without_a_crash() -> None:
    def cut(data: bytes) -> None:
        cutter = JsonCutter(text_bytes=64, most_bytes=4096)
        for at in range(0, len(data), 100):
            cutter.feed(data[at : at + 100])
        assert cutter.result is None or len(cutter.result) <= 4096

    fuzz([*read_lines("claude"), *read_lines("codex")], cut)


def test_permissions_are_read_or_refused() -> None:
    fuzz(list(PERMISSIONS), lambda data: read_permissions(data.decode(errors="replace")))


def test_configuration_is_read_or_refused(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"

    def parse(data: bytes) -> None:
        file.write_bytes(data)
        with suppress(InvalidUsage):
            load(home=tmp_path, cwd=tmp_path, environ={"PATH": "/bin"})

    fuzz([CONFIG], parse)


def test_request_is_decoded_or_refused() -> None:
    requests = [
        jsonrpc.encode_request(1, operation.name, {"agent": "ada", "text": "hello", "limit": 5})
        for operation in OPERATIONS
    ]
    kinds = {operation.name: operation.request for operation in OPERATIONS}

    def parse(data: bytes) -> None:
        with suppress(msgspec.DecodeError):
            message = jsonrpc.decode(data)
            if isinstance(message, RpcRequest) and message.method in kinds:
                message.decode_params(kinds[message.method])

    fuzz(requests, parse)


def test_sent_file_of_a_keeper_is_read_or_refused() -> None:
    frames = (
        b'{"n":1,"key":"begin:t1","at":0,"size":6}\nhello\n\n'
        b'{"n":2,"key":"k","at":9,"size":2}\n{}\n'
    )

    def parse(data: bytes) -> None:
        with suppress(ValueError, TypeError, KeyError):
            keeper.read_sent(data)

    fuzz([frames], parse)


def test_keeper_survives_any_message(tmp_path: Path) -> None:
    messages = [
        b'{"type":"claim","v":1,"holder":"h","fence":1}\n',
        b'{"type":"frame","key":"k","at":0,"size":2}\n{}',
        b'{"type":"will","size":2}\n{}',
        b'{"type":"eof"}\n',
        b'{"type":"signal","number":0}\n',
    ]
    kept = Kept(tmp_path / "prc", ["/bin/sleep", "600"])

    def send(data: bytes) -> None:
        # A message that would end the process is not what is tested.
        if b'"stop"' in data or b'"signal"' in data:
            return
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(str(kept.directory / "socket"))
            connection.settimeout(INPUT_SECONDS)
            with suppress(BrokenPipeError, ConnectionResetError):
                connection.sendall(data)
                connection.shutdown(socket.SHUT_WR)
                while connection.recv(1 << 16):
                    pass

    try:
        fuzz(messages, send)
        assert not (kept.directory / "exit").exists()
    finally:
        with Driver(kept.directory) as driver:
            driver.claim(10**1000)
            driver.stop()
    assert kept.wait_for_end()["reason"] == "user_stop"
