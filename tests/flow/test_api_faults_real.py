"""A run of a real CLI reports what is wrong with the API of its model.

Every error has a code, the record is complete, no process remains, and the same process can take
another turn. Faults of the program and of its input are in test_program_faults_real.py.
"""

from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import anyio
import pytest

from steadyrun.dialect import Turn
from steadyrun.model import event as ev
from steadyrun.testing.model_servers.anthropic import build_limit_headers
from steadyrun.testing.model_servers.content import answer, make_text
from steadyrun.testing.model_servers.faults import (
    Break,
    Cut,
    Hang,
    Refusal,
    StreamGate,
    refuse_rate_limit,
    refuse_usage_limit,
)
from steadyrun.testing.model_servers.model_server import ResponsesServer
from steadyrun.testing.model_servers.openai_common import build_codex_limit_headers
from steadyrun.testing.model_servers.openai_responses import ResponsesApi
from steadyrun.testing.model_servers.protocol import Fields, ModelRequest, ServerStep, ServerSteps
from tests.support.codex_harness import check_event_order
from tests.support.fast_clock import AdjustableClock, library_with_clock, with_timeouts
from tests.support.real_cli_harness import (
    CLAUDE,
    CODEX,
    Cli,
    RunRecord,
    cli_harness,
    each_cli,
    run_turns,
    wait_for_event,
    wait_for_gate,
    wait_for_output,
)
from tests.support.real_codex import codex_environment, codex_home

RESETS_AT = 1_894_785_857
SUBSCRIPTION = {"ANTHROPIC_API_KEY": "", "CLAUDE_CODE_OAUTH_TOKEN": "sk-ant-oat01-dummy"}
WEEK_MINUTES = 10_080
THREADS = 3


def retry_once(folder: Path, url: str, idle_ms: int = 30_000) -> dict[str, str]:
    """An environment in which Codex retries once."""
    codex_home(folder, url, retries=1, idle_ms=idle_ms)
    return codex_environment(folder)


class StatusApi(ResponsesApi):
    """The API, of which a refusal may also name the status."""

    def build_error(self, refusal: Refusal) -> tuple[int, Fields]:
        status, body = super().build_error(refusal)
        return int(refusal.detail.get("status", status)), body


class StatusServer(ResponsesServer):
    apis = (StatusApi(),)


ONCE_MORE = replace(CODEX, environment=retry_once, server=StatusServer)
SHORT = replace(CODEX, environment=lambda folder, url: retry_once(folder, url, idle_ms=500))


# -- what the API refuses


@dataclass(frozen=True)
class Refused:
    """An API that refuses every request so, and the outcome of the run.

    `retries` are the reasons of the retries that the CLI reports, `requests` is how often the model
    was asked: a CLI does not report every retry.
    """

    cli: Cli
    name: str
    step: ServerStep
    code: str
    retries: tuple[str, ...] = ()
    requests: int = 1
    status: str = "failed"
    is_retryable: bool = False
    has_hint: bool = False
    retry_at: int | None = None

    @property
    def id(self) -> str:
        return f"{self.cli.name}: {self.name}"

    @property
    def options(self) -> dict[str, Any]:
        """Claude Code retries once because of an option, Codex because of its configuration."""
        return {"max_retries": 1} if self.cli is CLAUDE else {}


def _retryable(name: str, step: ServerStep, code: str, **more: Any) -> Refused:
    return Refused(ONCE_MORE, name, step, code, is_retryable=True, **more)


def _limited(name: str, step: ServerStep, **more: Any) -> Refused:
    return _retryable(name, step, "rate_limited", status="rate_limited", **more)


def _broken(name: str, step: ServerStep, cli: Cli | None = None) -> Refused:
    retries = ("server_error",)
    case = _retryable(name, step, "server_error", retries=retries, requests=2)
    return replace(case, cli=cli or ONCE_MORE)


def _final(name: str, step: ServerStep, code: str, **more: Any) -> Refused:
    return Refused(ONCE_MORE, name, step, code, **more)


def _claude(name: str, step: ServerStep, code: str, requests: int = 2, **more: Any) -> Refused:
    more.setdefault("is_retryable", requests > 1)
    retries = (code,) if requests > 1 else ()
    return Refused(CLAUDE, name, step, code, retries, requests, **more)


def _status(status: int) -> Refusal:
    return Refusal("invalid", detail={"status": status})


def _in_stream(fault: Any) -> ServerStep:
    return answer(make_text("Hel", Break(fault)))


def refuse_by_cut() -> Hang:
    """The connection is closed at once, without headers."""
    hang = Hang()
    hang.gate.open()
    return hang


HOURS = build_codex_limit_headers(100, RESETS_AT)
WEEK = build_codex_limit_headers(100, RESETS_AT + 60, WEEK_MINUTES, "secondary")
RETRIED_AUTH = {"retries": ("auth",), "requests": 2, "has_hint": True}
CODEX_REFUSED = [
    _limited("rate limit", refuse_rate_limit()),
    _limited("rate limit with a time", refuse_rate_limit(0), retries=("rate_limited",), requests=2),
    _limited("usage limit", refuse_usage_limit(HOURS), retry_at=RESETS_AT),
    _limited(
        "usage limit of a week", refuse_usage_limit({**HOURS, **WEEK}), retry_at=RESETS_AT + 60
    ),
    _limited("usage limit without a window", refuse_usage_limit(resets_at=RESETS_AT)),
    _limited(
        "usage limit that is not reached",
        refuse_usage_limit(build_codex_limit_headers(88, RESETS_AT)),
    ),
    _limited("no credit", Refusal("no_credit")),
    _limited("no credit in mid-stream", _in_stream("no_credit")),
    _retryable("overload", Refusal("overloaded"), "overloaded", requests=2),
    _retryable("overload in mid-stream", _in_stream("overloaded"), "overloaded"),
    _retryable(
        "broken server",
        Refusal("server"),
        "server_error",
        retries=("server_error",),
        requests=4,
    ),
    _broken("error in mid-stream", _in_stream("server")),
    _broken("cut stream", answer(make_text("Hel", Cut()))),
    replace(_broken("cut before the headers", refuse_by_cut()), requests=4),
    _broken("stalled stream", answer(make_text("Hel", StreamGate())), SHORT),
    _final("wrong key", Refusal("auth"), "auth", **RETRIED_AUTH),
    _final("forbidden", _status(403), "auth", **RETRIED_AUTH),
    _final("to be paid", _status(402), "billing", retries=("billing",), requests=2, has_hint=True),
    _final("no such model", Refusal("not_found"), "model_not_found", has_hint=True),
    _final("prompt too long", Refusal("too_long"), "prompt_too_long", has_hint=True),
    _final(
        "prompt too long in mid-stream", _in_stream("too_long"), "prompt_too_long", has_hint=True
    ),
    _final("request that is wrong", Refusal("invalid"), "provider_error"),
]


UNIFIED = build_limit_headers("rejected", RESETS_AT)
LIMITED: dict[str, Any] = {"status": "rate_limited"}
CLAUDE_REFUSED = [
    _claude("rate limit", refuse_rate_limit(), "rate_limited", **LIMITED),
    _claude(
        "rate limit of a key, with the headers of a subscription",
        refuse_rate_limit(headers=UNIFIED),
        "rate_limited",
        **LIMITED,
    ),
    _claude("overload", Refusal("overloaded"), "overloaded"),
    # A stream that breaks is requested once more, in one piece, before that counts as a retry.
    _claude("overload in mid-stream", _in_stream("overloaded"), "overloaded", 3),
    _claude("broken server", Refusal("server"), "server_error"),
    _claude("error in mid-stream", _in_stream("server"), "server_error", 3),
    _claude("wrong key", Refusal("auth"), "auth", has_hint=True, is_retryable=False),
    _claude("prompt too long", Refusal("too_long"), "prompt_too_long", 1, has_hint=True),
    _claude("request that is wrong", Refusal("invalid"), "invalid_request", 1),
]
REFUSED = [*CLAUDE_REFUSED, *CODEX_REFUSED]


@pytest.fixture(scope="module")
def records(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[dict[str, "Future[tuple[RunRecord, list[ModelRequest]]]"]]:
    """The records of all selected cases, made side by side: most of their time is waiting."""
    wanted = {item.name for item in request.session.items}
    with ThreadPoolExecutor(THREADS) as pool:
        yield {
            case.id: pool.submit(_run_case, case, tmp_path_factory.mktemp("refused"))
            for case in REFUSED
            if f"{_REFUSED_TEST}[{case.id}]" in wanted
        }


def _run_case(case: Refused, folder: Path) -> tuple[RunRecord, list[ModelRequest]]:
    with cli_harness(folder, [case.step] * 9, cli=case.cli, options=case.options) as harness:
        return harness.run("go"), list(harness.server.main_requests)


@pytest.mark.parametrize("case", REFUSED, ids=lambda case: case.id)
def test_refusal_of_the_api_fails_the_run_with_its_code(
    case: Refused, records: "dict[str, Future[tuple[RunRecord, list[ModelRequest]]]]"
) -> None:
    record, requests = records[case.id].result()

    run, error = record.run, record.error
    assert (run.status, run.stop_reason, run.text) == (case.status, None, None)
    assert (error.code, error.retryable) == (case.code, case.is_retryable)
    assert error.message
    assert error.hint or not case.has_hint
    assert case.cli is not CLAUDE or bool(error.hint) == case.has_hint
    ends = None if case.retry_at is None else datetime.fromtimestamp(case.retry_at, UTC)
    assert error.retry_at == ends
    assert tuple(each.reason for each in record.events_of(ev.ProviderRetrying)) == case.retries
    assert len(requests) == case.requests
    assert record.events_of(ev.TextFinal) == []
    assert case.cli is CLAUDE or run.resume_token is not None
    check_event_order(record)


_REFUSED_TEST = test_refusal_of_the_api_fails_the_run_with_its_code.__name__


@pytest.mark.parametrize(
    ("step", "status", "code"),
    [
        (refuse_rate_limit(), "rate_limited", "rate_limited"),
        (Refusal("auth"), "failed", "auth"),
        (_status(402), "failed", "billing"),
        (Refusal("too_long"), "failed", "prompt_too_long"),
        (refuse_usage_limit(resets_at=RESETS_AT), "failed", "provider_error"),
        (Refusal("overloaded"), "failed", "provider_error"),
    ],
    ids=["rate limit", "wrong key", "to be paid", "prompt too long", "usage limit", "overload"],
)
def test_one_shot_codex_reports_the_errors_that_have_a_status(
    tmp_path: Path, step: ServerStep, status: str, code: str
) -> None:
    """The last two are reported only in words."""
    options = {"one_shot": True}
    with cli_harness(tmp_path, [step] * 9, cli=ONCE_MORE, options=options) as harness:
        record = harness.run("go")

        assert (record.run.status, record.error.code) == (status, code)
        assert record.error.message


def test_one_codex_process_takes_another_turn_after_every_refusal(tmp_path: Path) -> None:
    """After each fault the next turn works, and has the conversation so far."""
    faults = {case.name: case for case in CODEX_REFUSED if case.cli is ONCE_MORE}

    def step(ask: ModelRequest) -> ServerStep:
        last = ask.user_text.splitlines()[-1]
        return faults[last].step if last in faults else answer(f"I heard {last}.")

    texts = [text for name in faults for text in (name, f"after {name}")]
    with cli_harness(tmp_path, step, cli=ONCE_MORE) as harness:
        ends = run_turns(harness, [Turn(text, text) for text in texts]).ends

        refused, answered = ends[::2], ends[1::2]
        assert [end.error.code for end in refused if end.error] == [
            case.code for case in faults.values()
        ]
        assert [(end.status, end.text) for end in answered] == [
            ("completed", f"I heard after {name}.") for name in faults
        ]
        assert all(name in str(harness.server.main_requests[-1].messages) for name in faults)


# -- what is refused for a while


@each_cli
def test_request_refused_once_is_retried_and_the_run_completes(tmp_path: Path, cli: Cli) -> None:
    """A stream that breaks is requested again, and its text is no part of the reply."""
    script: ServerSteps = [
        Refusal("server"),
        answer(make_text("Hel", Cut())),
        answer(make_text("Hel", "lo.")),
    ]
    with cli_harness(tmp_path, script, cli=CLAUDE if cli is CLAUDE else ONCE_MORE) as harness:
        record = harness.run("go")

        assert (record.run.status, record.run.text) == ("completed", "Hello.")
        assert record.run.error is None
        retries = record.events_of(ev.ProviderRetrying)
        assert [(each.attempt, each.reason) for each in retries] == [(1, "server_error")]
        assert [each.text for each in record.events_of(ev.TextFinal)] == ["Hello."]
        assert harness.server.script.unused == 0


def test_codex_waits_for_a_rate_limit_with_a_time(tmp_path: Path) -> None:
    with cli_harness(tmp_path, [refuse_rate_limit(0), answer("Hello.")], cli=ONCE_MORE) as harness:
        record = harness.run("go")

    assert (record.run.status, record.run.text) == ("completed", "Hello.")
    assert [each.reason for each in record.events_of(ev.ProviderRetrying)] == ["rate_limited"]


def test_limit_windows_of_a_codex_subscription_are_recorded(tmp_path: Path) -> None:
    near = {
        **build_codex_limit_headers(91, RESETS_AT),
        **build_codex_limit_headers(12, RESETS_AT, WEEK_MINUTES, "secondary"),
    }
    with cli_harness(tmp_path, [answer("Hello.", headers=near)], cli=CODEX) as harness:
        record = harness.run("go")

    assert (record.run.status, record.run.text) == ("completed", "Hello.")
    ends = datetime.fromtimestamp(RESETS_AT, UTC)
    limits = record.events_of(ev.StatsUpdated)[-1].limits
    assert [(each.name, each.used_percent, each.resets_at) for each in limits] == [
        ("primary", 91, ends),
        ("secondary", 12, ends),
    ]


@pytest.mark.parametrize(
    "words",
    [
        "429 rate limit exceeded",
        "Error: usage_limit_reached. You've hit your usage limit. Try again at 11:53 AM.",
        '{"error": {"code": "context_length_exceeded", "message": "too long"}}',
        "no rollout found for thread id; is archived; Not inside a trusted directory",
    ],
)
def test_reply_that_reads_like_an_error_is_a_reply(tmp_path: Path, words: str) -> None:
    with cli_harness(tmp_path, [answer(words)], cli=CODEX) as harness:
        record = harness.run(words)

    assert (record.run.status, record.run.text, record.run.error) == ("completed", words, None)
    assert record.events_of(ev.ProviderRetrying) == []


# -- a model that never answers


@each_cli
@pytest.mark.parametrize("is_begun", [False, True], ids=["not a byte", "stalls in mid-stream"])
def test_model_that_never_answers_times_out_and_the_conversation_resumes(
    tmp_path: Path, cli: Cli, is_begun: bool
) -> None:
    gate, clock = StreamGate(), AdjustableClock()
    steps: Sequence[ServerStep] = [
        answer(make_text("Hel", gate, "lo")) if is_begun else Hang(gate),
        answer("Again."),
    ]
    with cli_harness(tmp_path, steps, cli=cli) as harness:
        config = with_timeouts(harness.config, idle_seconds=90.0)

        async def main() -> RunRecord:
            async with library_with_clock(config, clock) as library:
                run = await harness.start(library, "go")
                await wait_for_event(run, ev.TokenBound)
                await wait_for_gate(gate)
                if cli is CODEX:
                    # The last line that it prints before it waits.
                    last = b"agentMessage/delta" if is_begun else b"item/completed"
                    await wait_for_output(harness, last)
                clock.seconds = 61
                await wait_for_event(run, ev.StallWarned)
                clock.seconds = 91
                return await harness.read_record(await run.result())

        record = anyio.run(main)

        assert (record.run.status, record.run.stop_reason) == ("timed_out", "idle_timeout")
        assert record.run.resume_token is not None
        [request] = harness.server.main_requests
        number = request.request.number
        harness.server.wait_until(lambda: harness.server.find_fate(number) == "left")
        check_event_order(record)
        again = harness.run("go on", resume=record.run.resume_token)
        assert (again.run.status, again.run.text) == ("completed", "Again.")


@each_cli
def test_unknown_model_fails_the_run_and_the_hint_suggests_another(
    tmp_path: Path, cli: Cli
) -> None:
    with cli_harness(tmp_path, [Refusal("not_found")] * 9, cli=cli) as harness:
        record = harness.run("go", model="no-such-model")

        assert (record.run.status, record.error.code) == ("failed", "model_not_found")
        assert cli is CODEX or "no-such-model" in record.error.message
        assert "another model" in record.error.hint
        assert record.events_of(ev.ProviderRetrying) == []
        models = [request.model for request in harness.server.main_requests]
        assert set(models) == {"no-such-model"}
        assert cli is CLAUDE or len(models) == 1


# -- Claude Code only


def test_limit_of_a_claude_subscription_has_its_end_as_retry_time(tmp_path: Path) -> None:
    script = [refuse_rate_limit(headers=UNIFIED)]
    with cli_harness(tmp_path, script, env=SUBSCRIPTION) as harness:
        record = harness.run("go")

        assert record.run.status == "rate_limited"
        assert record.error.code == "rate_limited"
        assert record.error.retry_at == datetime.fromtimestamp(RESETS_AT, UTC)
        assert record.events_of(ev.ProviderRetrying) == []
        assert len(harness.server.main_requests) == 1


def test_limit_that_is_nearly_reached_is_noted(tmp_path: Path) -> None:
    near = build_limit_headers("allowed_warning", RESETS_AT, used=0.91)
    with cli_harness(tmp_path, [answer("Hello.", headers=near)], env=SUBSCRIPTION) as harness:
        record = harness.run("go")

    assert (record.run.status, record.run.text) == ("completed", "Hello.")
    [note] = record.events_of(ev.Note)
    assert "91%" in note.text
    assert "2030-01-16" in note.text


def test_fallback_model_answers_when_the_first_is_overloaded(tmp_path: Path) -> None:
    script: ServerSteps = [
        Refusal("overloaded"),
        Refusal("overloaded"),
        Refusal("overloaded"),
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


def test_stream_that_is_always_cut_fails_as_server_error(tmp_path: Path) -> None:
    script = [answer(make_text("Hel", Cut()))] * 9
    with cli_harness(tmp_path, script, options={"max_retries": 1}) as harness:
        record = harness.run("go")

        assert record.run.status == "failed"
        assert (record.error.code, record.error.retryable) == ("server_error", True)
        # After the stream it is asked for in one piece, once or twice.
        assert [ask.is_stream for ask in harness.server.main_requests][:2] == [True, False]
        assert len(harness.server.main_requests) - len(record.events_of(ev.ProviderRetrying)) == 2
        assert record.events_of(ev.TextFinal) == []
