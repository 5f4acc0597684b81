"""What does a run of the real Claude Code say when something is wrong? With the API, with the
conversation it is to go on with, with the program itself.

Whatever it is, the error has a name, the record is whole, and nothing is left running.
"""

import os
import tarfile
from collections.abc import AsyncIterator, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import msgspec
import pytest

import steadyrun
from steadyrun.app.runtime import open_runtime
from steadyrun.config import Config
from steadyrun.errors import InvalidUsage
from steadyrun.lib.clock import SystemClock
from steadyrun.lib.task_group import task_group
from steadyrun.library import Steadyrun
from steadyrun.model import event as ev
from steadyrun.model.event import ErrorFact
from steadyrun.model.event_json import to_public
from steadyrun.model.run import Run
from steadyrun.runtime.direct_runs import DirectRuns
from steadyrun.stores.sqlite import SqliteStore
from steadyrun.testing.model_servers.anthropic import (
    ModelRequest,
    ServerStep,
    ServerSteps,
    answer,
    build_limit_headers,
    call,
    text,
)
from steadyrun.testing.model_servers.faults import (
    Break,
    Cut,
    Hang,
    Refusal,
    StreamGate,
    refuse_not_found,
    refuse_overloaded,
    refuse_rate_limit,
    refuse_server_error,
    refuse_too_long,
    refuse_unauthorized,
)
from tests.children.keeper_driver import eventually
from tests.support.commands import steadyrun as command
from tests.support.real_cli_harness import (
    TIMEOUT_SECONDS,
    CliHarness,
    RunRecord,
    cli_harness,
    wait_for_event,
    wait_for_gate,
)

KEY, OAUTH = "ANTHROPIC_API_KEY", "CLAUDE_CODE_OAUTH_TOKEN"
SUBSCRIPTION = {KEY: "", OAUTH: "sk-ant-oat01-dummy"}
RESETS_AT = 1_894_785_857
NOWHERE = "00000000-0000-4000-8000-000000000009"
THREADS = 3


# -- what the API refuses


@dataclass(frozen=True)
class Refused:
    """An API that always answers so, and what the run then says.

    `told` are the reasons of the retries that were told, `asked` is how often the model was asked:
    a stream that breaks is asked for once more, in one piece, before that counts as a retry.
    """

    name: str
    step: ServerStep
    code: str
    told: tuple[str, ...] = ()
    asked: int = 2
    status: str = "failed"
    is_retryable: bool = False
    has_hint: bool = False


def _retryable(name: str, step: ServerStep, code: str, told: str, **more: Any) -> Refused:
    return Refused(name, step, code, (told,), is_retryable=True, **more)


def _limited(name: str, step: ServerStep) -> Refused:
    return _retryable(name, step, "rate_limited", "rate_limited", status="rate_limited")


def _broken(name: str, step: ServerStep, code: str) -> Refused:
    return _retryable(name, step, code, code, asked=3)


UNIFIED = build_limit_headers("rejected", RESETS_AT)
REFUSED = [
    _limited("rate limit", refuse_rate_limit()),
    _limited(
        "rate limit of a key, with a subscription's headers", refuse_rate_limit(headers=UNIFIED)
    ),
    _retryable("overload", refuse_overloaded(), "overloaded", "overloaded"),
    _broken("overload in mid-stream", answer(text("Hel", Break("overloaded"))), "overloaded"),
    _retryable("broken server", refuse_server_error(), "server_error", "server_error"),
    _broken("error in mid-stream", answer(text("Hel", Break("server"))), "server_error"),
    Refused("wrong key", refuse_unauthorized(), "auth", ("auth",), has_hint=True),
    Refused("prompt too long", refuse_too_long(), "prompt_too_long", asked=1, has_hint=True),
    Refused("request that is wrong", Refusal("invalid"), "invalid_request", asked=1),
]


@pytest.fixture(scope="module")
def played(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[dict[str, "Future[tuple[RunRecord, list[ModelRequest]]]"]]:
    """The records of all that are wanted, made together: most of their time is spent waiting."""
    wanted = {item.name for item in request.session.items}
    with ThreadPoolExecutor(THREADS) as pool:
        yield {
            case.name: pool.submit(_play, case, tmp_path_factory.mktemp("refused"))
            for case in REFUSED
            if f"{_REFUSED_TEST}[{case.name}]" in wanted
        }


def _play(case: Refused, folder: Path) -> tuple[RunRecord, list[ModelRequest]]:
    with cli_harness(folder, [case.step] * 9, options={"max_retries": 1}) as harness:
        return harness.run("go"), list(harness.server.main_requests)


@pytest.mark.parametrize("case", REFUSED, ids=lambda case: case.name)
def test_what_the_api_refuses_has_a_name(
    case: Refused, played: "dict[str, Future[tuple[RunRecord, list[ModelRequest]]]]"
) -> None:
    record, asks = played[case.name].result()

    run, error = record.run, _error(record.run)
    assert (run.status, run.stop_reason, run.text) == (case.status, None, None)
    assert (error.code, error.retryable) == (case.code, case.is_retryable)
    assert error.message
    assert bool(error.hint) == case.has_hint
    assert error.retry_at is None
    assert tuple(each.reason for each in record.events_of(ev.ProviderRetrying)) == case.told
    assert len(asks) == case.asked
    assert record.events_of(ev.TextFinal) == []
    _check_order(record)


_REFUSED_TEST = test_what_the_api_refuses_has_a_name.__name__


def test_a_model_that_nobody_knows_is_named(tmp_path: Path) -> None:
    with cli_harness(tmp_path, [refuse_not_found()] * 9) as harness:
        record = harness.run("go", model="claude-none")

        assert record.run.status == "failed"
        assert _error(record.run).code == "model_not_found"
        assert "claude-none" in _error(record.run).message
        assert "another model" in _error(record.run).hint
        assert record.events_of(ev.ProviderRetrying) == []
        assert {ask.model for ask in harness.server.main_requests} == {"claude-none"}


def test_the_limit_of_a_subscription_says_when_it_ends(tmp_path: Path) -> None:
    script = [refuse_rate_limit(headers=UNIFIED)]
    with cli_harness(tmp_path, script, env=SUBSCRIPTION) as harness:
        record = harness.run("go")

        assert record.run.status == "rate_limited"
        assert _error(record.run).code == "rate_limited"
        assert _error(record.run).retry_at == datetime.fromtimestamp(RESETS_AT, UTC)
        assert record.events_of(ev.ProviderRetrying) == []
        assert len(harness.server.main_requests) == 1


def test_a_limit_that_comes_near_is_noted(tmp_path: Path) -> None:
    near = build_limit_headers("allowed_warning", RESETS_AT, used=0.91)
    with cli_harness(tmp_path, [answer("Hello.", headers=near)], env=SUBSCRIPTION) as harness:
        record = harness.run("go")

    assert (record.run.status, record.run.text) == ("completed", "Hello.")
    [note] = record.events_of(ev.Note)
    assert "91%" in note.text
    assert "2030-01-16" in note.text


def test_another_model_steps_in_for_one_that_is_overloaded(tmp_path: Path) -> None:
    script: ServerSteps = [
        refuse_overloaded(),
        refuse_overloaded(),
        refuse_overloaded(),
        answer("Instead."),
    ]
    options = {"max_retries": 3, "fallback_model": "claude-haiku-4-5"}
    with cli_harness(tmp_path, script, options=options) as harness:
        record = harness.run("go")
        first, *_, last = [ask.model for ask in harness.server.main_requests]

    assert (record.run.status, record.run.text) == ("completed", "Instead.")
    assert (first, last) == ("claude-opus-4-8", "claude-haiku-4-5")
    assert [each.reason for each in record.events_of(ev.ProviderRetrying)] == ["overloaded"] * 2
    assert len(record.events_of(ev.Note)) == 1
    assert record.events_of(ev.StatsUpdated)[-1].model == "claude-haiku-4-5"


def test_a_stream_that_is_always_cut_fails_like_a_broken_server(tmp_path: Path) -> None:
    script = [answer(text("Hel", Cut()))] * 9
    with cli_harness(tmp_path, script, options={"max_retries": 1}) as harness:
        record = harness.run("go")

        assert record.run.status == "failed"
        assert (_error(record.run).code, _error(record.run).retryable) == ("server_error", True)
        # After the stream it is asked for in one piece, once or twice.
        assert [ask.is_stream for ask in harness.server.main_requests][:2] == [True, False]
        assert len(harness.server.main_requests) - len(record.events_of(ev.ProviderRetrying)) == 2
        assert record.events_of(ev.TextFinal) == []


def test_what_is_refused_once_is_only_told(tmp_path: Path) -> None:
    """A stream that breaks is asked for again, and what it had said is no part of the answer."""
    script: ServerSteps = [refuse_server_error(), answer(text("Hel", Cut())), answer("Hello.")]
    with cli_harness(tmp_path, script) as harness:
        record = harness.run("go")

        assert (record.run.status, record.run.text) == ("completed", "Hello.")
        assert record.run.error is None
        assert [each.reason for each in record.events_of(ev.ProviderRetrying)] == ["server_error"]
        assert [each.text for each in record.events_of(ev.TextFinal)] == ["Hello."]
        assert harness.server.script.unused == 0


# -- a model that never answers


class Ahead(SystemClock):
    """The machine's clock, put forward by hand."""

    seconds = 0.0

    def monotonic(self) -> float:
        return super().monotonic() + self.seconds


@pytest.mark.parametrize("is_begun", [False, True], ids=["not a byte", "stalls in mid-stream"])
def test_a_model_that_never_answers_is_interrupted(tmp_path: Path, is_begun: bool) -> None:
    gate, clock = StreamGate(), Ahead()
    step = answer(text("Hel", gate, "lo")) if is_begun else Hang(gate)
    with cli_harness(tmp_path, [step]) as harness:

        async def main() -> RunRecord:
            async with _library(harness.config, clock) as library:
                run = await harness.start(library, "go")
                await wait_for_event(run, lambda event: isinstance(event, ev.TokenBound))
                await wait_for_gate(gate)
                clock.seconds = 61
                await wait_for_event(run, lambda event: isinstance(event, ev.StallWarned))
                clock.seconds = 31 * 60
                return await harness.read_record(await run.result())

        record = anyio.run(main)

        assert (record.run.status, record.run.stop_reason) == ("timed_out", "idle_timeout")
        assert record.run.resume_token is not None
        [ask] = harness.server.main_requests
        harness.server.wait_until(lambda: harness.server.find_fate(ask.request.number) == "left")
        _check_order(record)


@asynccontextmanager
async def _library(config: Config, clock: Ahead) -> AsyncIterator[Steadyrun]:
    """The library, with a clock that can be put forward: half an hour is too long for a test."""
    with anyio.fail_after(TIMEOUT_SECONDS):
        async with (
            open_runtime(config, kind="test", machine="here") as around,
            task_group() as tasks,
        ):
            yield Steadyrun(DirectRuns(replace(around, clock=clock), tasks))
            tasks.cancel_scope.cancel()


# -- a conversation that is not there


def test_a_conversation_is_known_only_where_it_was_begun(tmp_path: Path) -> None:
    with cli_harness(tmp_path, [answer("Hello."), answer("New here.")]) as harness:
        token = harness.run("greet").run.resume_token
        harness.cwd = tmp_path / "elsewhere"
        harness.cwd.mkdir()
        with pytest.raises(InvalidUsage, match="belongs to"):
            harness.run("go on", resume=token)
        fresh = harness.run("go on", resume=token, or_fresh=True)
        # To a home that does not know the token, Claude Code itself says it.
        harness.home = tmp_path / "another"
        lost = harness.run("go on", resume=token)

        assert (lost.run.status, _error(lost.run).code) == ("failed", "resume_not_found")
        assert "directory" in _error(lost.run).hint
        assert (fresh.run.status, fresh.run.text) == ("completed", "New here.")
        assert fresh.run.resume_token not in {None, token}
        assert len(fresh.events_of(ev.Note)) == 1
        assert [ask.user_text for ask in harness.server.main_requests] == ["greet", "go on"]


def test_a_conversation_goes_on_with_the_model_that_answered(tmp_path: Path) -> None:
    with cli_harness(tmp_path, [answer("Hello."), answer("Again.")]) as harness:
        first = harness.run("greet")
        second = harness.run("go on", resume=first.run.resume_token)

        named = [stats.model for stats in first.events_of(ev.StatsUpdated)]
        assert first.run.model is None
        assert second.run.model == named[0]
        assert second.run.resume_token == first.run.resume_token
        assert [ask.user_text for ask in harness.server.main_requests] == ["greet", "go on"]
        assert second.events_of(ev.StatsUpdated)[0].model == named[0]


@pytest.mark.parametrize("token", [NOWHERE, "no token at all"])
def test_a_conversation_that_never_was_is_not_found(tmp_path: Path, token: str) -> None:
    with cli_harness(tmp_path, []) as harness:
        record = harness.run("go on", resume=token)

        assert record.run.status == "failed"
        assert _error(record.run).code == "resume_not_found"
        assert _error(record.run).hint
        assert record.run.resume_token is None
        assert harness.server.main_requests == ()


# -- a program that cannot work


def test_somebody_must_be_logged_in(tmp_path: Path) -> None:
    with cli_harness(tmp_path, []) as harness:
        record = _play_with(harness, _changed(harness.config, without=KEY))

        assert record.run.status == "failed"
        assert (_error(record.run).code, _error(record.run).retryable) == ("auth", False)
        assert "log in" in _error(record.run).hint.lower()
        assert harness.server.main_requests == ()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root is refused")
@pytest.mark.parametrize("sandbox", [None, "0"])
def test_root_without_a_sandbox_is_refused(tmp_path: Path, sandbox: str | None) -> None:
    with cli_harness(tmp_path, []) as harness:
        given = {} if sandbox is None else {"IS_SANDBOX": sandbox}
        record = _play_with(harness, _changed(harness.config, without="IS_SANDBOX", env=given))

        assert record.run.status == "failed"
        assert _error(record.run).code == "root_refused"
        assert "IS_SANDBOX" in _error(record.run).hint
        assert record.run.diagnostic is not None
        assert "root" in record.run.diagnostic.stderr_excerpt


@pytest.mark.parametrize("mode", [None, 0o644])
def test_a_program_that_cannot_be_started_says_what_to_do(tmp_path: Path, mode: int | None) -> None:
    program = tmp_path / "claude"
    if mode is not None:
        program.touch(mode)
    with cli_harness(tmp_path, []) as harness:
        record = _play_with(harness, _changed(harness.config, program))

    assert record.run.status == "failed"
    assert _error(record.run).code == "launch_failed"
    assert str(program) in _error(record.run).message
    assert ("npm install" if mode is None else "executable") in _error(record.run).hint
    assert list(harness.home.glob("processes/*/journal")) == []


@pytest.mark.parametrize(
    ("does", "code"),
    [
        ("echo 'usage: claude [file]' >&2; exit 1", "cli_incompatible"),
        ("echo \"error: unknown option '--replay-user-messages'\" >&2; exit 1", "cli_incompatible"),
        (r"printf 'hello\n\377\376\n{\"type\":\n[1]\n{}\n'; read line", "cli_incompatible"),
        ("kill -9 $$", "exited"),
    ],
    ids=["usage", "older version", "garbage", "killed"],
)
def test_a_program_that_is_no_claude_is_named(tmp_path: Path, does: str, code: str) -> None:
    program = _program(tmp_path, does)
    with cli_harness(tmp_path, []) as harness:
        record = _play_with(harness, _changed(harness.config, program))

    error = _error(record.run)
    assert (record.run.status, error.code) == ("failed", code)
    assert error.retryable == (code == "exited")
    assert bool(error.hint) == (code == "cli_incompatible")
    assert record.run.diagnostic is not None
    _check_order(record)


def test_a_program_that_never_says_anything_is_given_up(tmp_path: Path) -> None:
    clock, program = Ahead(), _program(tmp_path, "exec sleep 600")
    with cli_harness(tmp_path, []) as harness:

        def is_told() -> bool:
            return any(b"initialize" in sent.read_bytes() for sent in harness.home.rglob("sent"))

        async def main() -> RunRecord:
            async with _library(_changed(harness.config, program), clock) as library:
                run = await harness.start(library, "go")
                await anyio.to_thread.run_sync(eventually, is_told, "the handshake")
                clock.seconds = 61
                return await harness.read_record(await run.result())

        record = anyio.run(main)

    assert (record.run.status, record.run.stop_reason) == ("failed", "hang")
    _check_order(record)


# -- secrets


def test_the_key_is_in_no_event_and_in_nothing_that_is_shown(tmp_path: Path) -> None:
    key = "sk-ant-dummy"
    script = [
        answer(text("It is ", key[:5], key[5:]), call("Bash", command=f"printenv {KEY}; false")),
        answer(call("Bash", command=f"printenv {KEY} | tee {tmp_path}/printed")),
        answer(text("So: ", key)),
    ]
    with cli_harness(tmp_path, script) as harness:
        shown = anyio.run(_everything_told, harness, "what is it?")
        [run] = {seen["run"] for seen in shown}
        _configure(harness, key)
        pages = [
            command(harness.home, *words) for words in (("show", run), ("tail", run), ("runs",))
        ]
        parcel = tmp_path / "run.tar.gz"
        assert command(harness.home, "export", run, "-o", str(parcel)).returncode == 0

    assert (tmp_path / "printed").read_text().strip() == key
    assert b"[redacted]" in msgspec.json.encode(shown)
    assert key.encode() not in msgspec.json.encode(shown)
    assert all(page.returncode == 0 and key not in page.stdout + page.stderr for page in pages)
    assert _found_in(parcel, key) == []
    # Only the process itself has written it down, in its own directory.
    assert {each.parent.parent.name for each in _files_with(harness.home, key)} == {"processes"}


def test_the_key_is_not_in_the_last_words_of_a_program(tmp_path: Path) -> None:
    key = f"${KEY}"
    program = _program(tmp_path, f'echo "{key}"; echo "unknown option {key}" >&2; exit 1')
    with cli_harness(tmp_path, []) as harness:
        config = _changed(harness.config, program)
        shown = anyio.run(_everything_told, harness, "what is it?", config)
        record = anyio.run(harness.read_record, anyio.run(_only_run, harness))

    assert _error(record.run).message == "unknown option [redacted]"
    assert record.events_of(ev.Unknown) == [ev.Unknown("[redacted]")]
    for told in (shown, record.run, [seen.event for seen in record.stored]):
        assert b"sk-ant-dummy" not in msgspec.json.encode(told)


async def _everything_told(
    harness: CliHarness, prompt: str, config: Config | None = None
) -> list[dict[str, Any]]:
    with anyio.fail_after(TIMEOUT_SECONDS):
        async with steadyrun.open(config or harness.config) as library:
            run = await harness.start(library, prompt)
            told = [to_public(seen) async for seen in run.events()]
            await run.result()
    return told


async def _only_run(harness: CliHarness) -> Run:
    store = await SqliteStore.open(harness.home)
    try:
        [run] = await store.runs()
    finally:
        await store.close()
    return run


def _configure(harness: CliHarness, key: str) -> None:
    """Let commands know the secret, as they do where it is configured."""
    given = f'[providers.claude]\nenv = {{ {KEY} = "{key}" }}\n'
    (harness.home / "config.toml").write_text(given)
    (harness.home / "config.toml").chmod(0o600)


def _found_in(parcel: Path, key: str) -> list[str]:
    with tarfile.open(parcel) as archive:
        files = [(member.name, archive.extractfile(member)) for member in archive]
        assert len(files) > 3
        return [name for name, file in files if file and key.encode() in file.read()]


def _files_with(folder: Path, key: str) -> list[Path]:
    files = [each for each in folder.rglob("*") if each.is_file() and each.name != "config.toml"]
    return [each for each in files if key.encode() in each.read_bytes()]


# -- what all of them use


def _error(run: Run) -> ErrorFact:
    assert run.error is not None
    return run.error


def _check_order(record: RunRecord) -> None:
    """No event is lost or told twice, and the last one is the run's end."""
    assert [seen.seq for seen in record.stored] == list(range(1, len(record.stored) + 1))
    assert len({seen.id for seen in record.stored}) == len(record.stored)
    assert isinstance(record.stored[-1].event, ev.RunEnded)


def _changed(
    config: Config,
    program: Path | None = None,
    *,
    without: str = "",
    env: Mapping[str, str] | None = None,
) -> Config:
    """The configuration with another program, or another environment."""
    claude = config.settings.providers["claude"]
    left = {name: value for name, value in claude.env.items() if name != without}
    changed = msgspec.structs.replace(
        claude,
        command=claude.command if program is None else (str(program),),
        env={**left, **(env or {})},
    )
    settings = msgspec.structs.replace(config.settings, providers={"claude": changed})
    return replace(config, settings=settings)


def _program(folder: Path, does: str) -> Path:
    program = folder / "claude"
    program.write_text(f"#!/bin/sh\n{does}\n")
    program.chmod(0o755)
    return program


def _play_with(harness: CliHarness, config: Config) -> RunRecord:
    async def main() -> RunRecord:
        with anyio.fail_after(TIMEOUT_SECONDS):
            async with steadyrun.open(config) as library:
                run = await harness.start(library, "go")
                return await harness.read_record(await run.result())

    return anyio.run(main)
