"""What does a run of the real Codex say when something is wrong with the model's API?

Whatever it is, the error has a name, the record is whole, nothing is left running, and the same
process could go on. What is wrong with the program or with what it is given: test_codex_bad_input.
"""

from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import anyio
import pytest

from steadyrun.dialect import LaunchRequest, Turn
from steadyrun.model import event as ev
from steadyrun.model.event import ErrorFact
from steadyrun.model.run import Run
from steadyrun.providers.codex.dialect import Codex
from steadyrun.testing.model_servers.anthropic import (
    ModelRequest,
    ServerStep,
    ServerSteps,
    answer,
    text,
)
from steadyrun.testing.model_servers.faults import (
    Break,
    Cut,
    Hang,
    Refusal,
    StreamGate,
    refuse_no_credit,
    refuse_not_found,
    refuse_overloaded,
    refuse_rate_limit,
    refuse_server_error,
    refuse_too_long,
    refuse_unauthorized,
    refuse_usage_limit,
)
from steadyrun.testing.model_servers.openai_common import build_codex_limit_headers
from steadyrun.testing.model_servers.openai_responses import ResponsesApi, ResponsesServer
from steadyrun.testing.model_servers.protocol import Fields
from tests.support.codex_harness import check_event_order
from tests.support.fast_clock import AdjustableClock, library_with_clock, with_timeouts
from tests.support.real_cli_harness import (
    CODEX,
    Cli,
    CliHarness,
    EventSink,
    RunRecord,
    cli_harness,
    close_and_wait,
    drive_warm_process,
    wait_for_event,
    wait_for_gate,
    wait_for_output,
)
from tests.support.real_codex import codex_environment, codex_home

RESETS_AT = 1_894_785_857
WEEK_MINUTES = 10_080
THREADS = 3


def impatient(folder: Path, url: str, idle_ms: int = 30_000) -> dict[str, str]:
    """An environment in which Codex tries once more, and no more."""
    codex_home(folder, url, retries=1, idle_ms=idle_ms)
    return codex_environment(folder)


class StatusApi(ResponsesApi):
    """The API, of which a refusal may also name the status."""

    def build_error(self, refusal: Refusal) -> tuple[int, Fields]:
        status, body = super().build_error(refusal)
        return int(refusal.detail.get("status", status)), body


class StatusServer(ResponsesServer):
    apis = (StatusApi(),)


ONCE_MORE = replace(CODEX, environment=impatient, server=StatusServer)
SHORT = replace(CODEX, environment=lambda folder, url: impatient(folder, url, idle_ms=500))


# -- what the API refuses


@dataclass(frozen=True)
class Refused:
    """An API that always answers so, and what the run then says.

    `told` are the reasons of the retries that were told, `asked` is how often the model was asked:
    of some retries Codex does not tell.
    """

    name: str
    step: ServerStep
    code: str
    told: tuple[str, ...] = ()
    asked: int = 1
    status: str = "failed"
    is_retryable: bool = False
    has_hint: bool = False
    retry_at: int | None = None
    cli: Cli = ONCE_MORE


def _retryable(name: str, step: ServerStep, code: str, **more: Any) -> Refused:
    return Refused(name, step, code, is_retryable=True, **more)


def _limited(name: str, step: ServerStep, **more: Any) -> Refused:
    return _retryable(name, step, "rate_limited", status="rate_limited", **more)


def _broken(name: str, step: ServerStep, **more: Any) -> Refused:
    return _retryable(name, step, "server_error", told=("server_error",), asked=2, **more)


def _status(status: int) -> Refusal:
    return Refusal("invalid", detail={"status": status})


def _in_stream(fault: Any) -> ServerStep:
    return answer(text("Hel", Break(fault)))


HOURS = build_codex_limit_headers(100, RESETS_AT)
WEEK = build_codex_limit_headers(100, RESETS_AT + 60, WEEK_MINUTES, "secondary")
REFUSED = [
    _limited("rate limit", refuse_rate_limit()),
    _limited("rate limit with a time", refuse_rate_limit(0), told=("rate_limited",), asked=2),
    _limited("usage limit", refuse_usage_limit(HOURS), retry_at=RESETS_AT),
    _limited(
        "usage limit of a week", refuse_usage_limit({**HOURS, **WEEK}), retry_at=RESETS_AT + 60
    ),
    _limited("usage limit without a window", refuse_usage_limit(resets_at=RESETS_AT)),
    _limited(
        "usage limit that is not reached",
        refuse_usage_limit(build_codex_limit_headers(88, RESETS_AT)),
    ),
    _limited("no credit", refuse_no_credit()),
    _limited("no credit in mid-stream", _in_stream("no_credit")),
    _retryable("overload", refuse_overloaded(), "overloaded", asked=2),
    _retryable("overload in mid-stream", _in_stream("overloaded"), "overloaded"),
    _retryable(
        "broken server", refuse_server_error(), "server_error", told=("server_error",), asked=4
    ),
    _broken("error in mid-stream", _in_stream("server")),
    _broken("cut stream", answer(text("Hel", Cut()))),
    _broken("stalled stream", answer(text("Hel", StreamGate())), cli=SHORT),
    Refused("wrong key", refuse_unauthorized(), "auth", ("auth",), 2, has_hint=True),
    Refused("forbidden", _status(403), "auth", ("auth",), 2, has_hint=True),
    Refused("to be paid", _status(402), "billing", ("billing",), 2, has_hint=True),
    Refused("no such model", refuse_not_found(), "model_not_found", has_hint=True),
    Refused("prompt too long", refuse_too_long(), "prompt_too_long", has_hint=True),
    Refused(
        "prompt too long in mid-stream", _in_stream("too_long"), "prompt_too_long", has_hint=True
    ),
    Refused("request that is wrong", Refusal("invalid"), "provider_error"),
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
    with cli_harness(folder, [case.step] * 9, cli=case.cli) as harness:
        return harness.run("go"), list(harness.server.main_requests)


@pytest.mark.parametrize("case", REFUSED, ids=lambda case: case.name)
def test_what_the_api_refuses_has_a_name(
    case: Refused, played: "dict[str, Future[tuple[RunRecord, list[ModelRequest]]]]"
) -> None:
    record, asks = played[case.name].result()

    run, error = record.run, error_of(record.run)
    assert (run.status, run.stop_reason, run.text) == (case.status, None, None)
    assert (error.code, error.retryable) == (case.code, case.is_retryable)
    assert error.message
    assert error.hint or not case.has_hint
    ends = None if case.retry_at is None else datetime.fromtimestamp(case.retry_at, UTC)
    assert error.retry_at == ends
    assert tuple(each.reason for each in record.events_of(ev.ProviderRetrying)) == case.told
    assert len(asks) == case.asked
    assert record.events_of(ev.TextFinal) == []
    assert run.resume_token is not None
    check_event_order(record)


_REFUSED_TEST = test_what_the_api_refuses_has_a_name.__name__


@pytest.mark.parametrize(
    ("step", "status", "code"),
    [
        (refuse_rate_limit(), "rate_limited", "rate_limited"),
        (refuse_unauthorized(), "failed", "auth"),
        (_status(402), "failed", "billing"),
        (refuse_too_long(), "failed", "prompt_too_long"),
        (refuse_usage_limit(resets_at=RESETS_AT), "failed", "provider_error"),
        (refuse_overloaded(), "failed", "provider_error"),
    ],
    ids=["rate limit", "wrong key", "to be paid", "prompt too long", "usage limit", "overload"],
)
def test_one_shot_has_the_names_of_what_it_has_a_number_for(
    tmp_path: Path, step: ServerStep, status: str, code: str
) -> None:
    """Of the last two it tells in words only."""
    options = {"one_shot": True}
    with cli_harness(tmp_path, [step] * 9, cli=ONCE_MORE, options=options) as harness:
        played = harness.run("go")

        assert (played.run.status, error_of(played.run).code) == (status, code)
        assert error_of(played.run).message


def test_one_process_goes_on_after_all_that_is_refused(tmp_path: Path) -> None:
    """After each fault the next turn of the same process works, and knows what was said before."""
    faults = {case.name: case for case in REFUSED if case.cli is ONCE_MORE}

    def step(ask: ModelRequest) -> ServerStep:
        last = ask.user_text.splitlines()[-1]
        return faults[last].step if last in faults else answer(f"I heard {last}.")

    async def main(harness: CliHarness) -> EventSink:
        sink, told = EventSink(), [words for name in faults for words in (name, f"after {name}")]
        first = LaunchRequest(Turn("0", told[0]), str(harness.cwd), mode=harness.cli.mode)
        async with drive_warm_process(harness, Codex, first, sink) as driver:
            for number, words in enumerate(told):
                await driver.begin(Turn(str(number), words))
                await sink.wait_for_end(number + 1)
            await close_and_wait(driver, harness)
        return sink

    with cli_harness(tmp_path, step, cli=ONCE_MORE) as harness:
        sink = anyio.run(main, harness)

        refused, heard = sink.ends[::2], sink.ends[1::2]
        assert [end.error.code for end in refused if end.error] == [
            case.code for case in faults.values()
        ]
        assert [(end.status, end.text) for end in heard] == [
            ("completed", f"I heard after {name}.") for name in faults
        ]
        assert all(name in str(harness.server.main_requests[-1].messages) for name in faults)


# -- what is refused for a while


def test_what_is_refused_once_is_only_told(tmp_path: Path) -> None:
    """A stream that breaks is asked for again, and what it had said is no part of the answer."""
    script: ServerSteps = [
        refuse_server_error(),
        answer(text("Hel", Cut())),
        answer(text("Hel", "lo.")),
    ]
    with cli_harness(tmp_path, script, cli=ONCE_MORE) as harness:
        record = harness.run("go")

        assert (record.run.status, record.run.text) == ("completed", "Hello.")
        assert record.run.error is None
        assert [(each.attempt, each.reason) for each in record.events_of(ev.ProviderRetrying)] == [
            (1, "server_error")
        ]
        assert [each.text for each in record.events_of(ev.TextFinal)] == ["Hello."]
        assert harness.server.script.unused == 0


def test_a_limit_with_a_time_is_waited_for(tmp_path: Path) -> None:
    with cli_harness(tmp_path, [refuse_rate_limit(0), answer("Hello.")], cli=ONCE_MORE) as harness:
        record = harness.run("go")

    assert (record.run.status, record.run.text) == ("completed", "Hello.")
    assert [each.reason for each in record.events_of(ev.ProviderRetrying)] == ["rate_limited"]


def test_the_windows_of_a_subscription_are_told(tmp_path: Path) -> None:
    near = {
        **build_codex_limit_headers(91, RESETS_AT),
        **build_codex_limit_headers(12, RESETS_AT, WEEK_MINUTES, "secondary"),
    }
    with cli_harness(tmp_path, [answer("Hello.", headers=near)], cli=CODEX) as harness:
        record = harness.run("go")

    assert (record.run.status, record.run.text) == ("completed", "Hello.")
    ends = datetime.fromtimestamp(RESETS_AT, UTC)
    told = record.events_of(ev.StatsUpdated)[-1].limits
    assert [(each.name, each.used_percent, each.resets_at) for each in told] == [
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
def test_what_the_model_says_is_never_taken_for_an_error(tmp_path: Path, words: str) -> None:
    with cli_harness(tmp_path, [answer(words)], cli=CODEX) as harness:
        record = harness.run(words)

    assert (record.run.status, record.run.text, record.run.error) == ("completed", words, None)
    assert record.events_of(ev.ProviderRetrying) == []


# -- a model that never answers


@pytest.mark.parametrize("is_begun", [False, True], ids=["not a byte", "stalls in mid-stream"])
def test_a_model_that_never_answers_is_interrupted(tmp_path: Path, is_begun: bool) -> None:
    gate, clock = StreamGate(), AdjustableClock()
    steps: Sequence[ServerStep] = [
        answer(text("Hel", gate, "lo")) if is_begun else Hang(gate),
        answer("Again."),
    ]
    with cli_harness(tmp_path, steps, cli=CODEX) as harness:
        config = with_timeouts(harness.config, idle_seconds=90.0)

        async def main() -> RunRecord:
            async with library_with_clock(config, clock) as library:
                run = await harness.start(library, "go")
                await wait_for_gate(gate)
                # What it says last before it waits.
                await wait_for_output(
                    harness, b"agentMessage/delta" if is_begun else b"item/completed"
                )
                clock.seconds = 61
                await wait_for_event(run, lambda event: isinstance(event, ev.StallWarned))
                clock.seconds = 91
                return await harness.read_record(await run.result())

        record = anyio.run(main)

        assert (record.run.status, record.run.stop_reason) == ("timed_out", "idle_timeout")
        [ask] = harness.server.main_requests
        harness.server.wait_until(lambda: harness.server.find_fate(ask.request.number) == "left")
        check_event_order(record)
        again = harness.run("go on", resume=record.run.resume_token)
        assert (again.run.status, again.run.text) == ("completed", "Again.")


def error_of(run: Run) -> ErrorFact:
    assert run.error is not None
    return run.error
