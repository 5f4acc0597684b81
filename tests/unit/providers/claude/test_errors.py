"""Tests how a turn of Claude Code ended, decided by structure alone."""

import json
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from steadyrun.dialect import ProcessExit
from steadyrun.model.event import ErrorFact
from steadyrun.providers.claude.errors import UNREADABLE, classify_result, end_from_exit
from steadyrun.providers.claude.frames import ResultLine, decode_output
from steadyrun.providers.claude.state import ClaudeState, ClaudeTurn


def result(**fields: Any) -> ResultLine:
    line = decode_output(json.dumps({"type": "result", "is_error": True, **fields}).encode())
    assert isinstance(line, ResultLine)
    return line


def context(
    error: str | None = None,
    *,
    has_init: bool = True,
    retry: str | None = None,
    resets_at: float | None = None,
) -> ClaudeState:
    """What was printed before the result."""
    turn = ClaudeTurn("turn", error=error, retry=retry)
    return ClaudeState(has_init=has_init, turn=turn, resets_at=resets_at)


def classify_error(state: ClaudeState | None = None, **fields: Any) -> ErrorFact:
    """The error of a result with these fields, which has one."""
    found = classify_result(result(**fields), state or context()).error
    assert found
    return found


def test_result_without_an_error_is_completed() -> None:
    assert classify_result(result(is_error=False), context()).status == "completed"


@pytest.mark.parametrize("reason", ["aborted_streaming", "aborted_tools"])
@pytest.mark.parametrize("is_error", [True, False])
def test_aborted_turn_is_cancelled_even_with_an_error(reason: str, is_error: bool) -> None:
    said = result(is_error=is_error, terminal_reason=reason, api_error_status=429)

    found = classify_result(said, context("rate_limit"))

    assert (found.status, found.error) == ("cancelled", None)


@pytest.mark.parametrize(
    ("fields", "error", "expected"),
    [
        ({"api_error_status": 429}, None, "rate_limited"),
        ({}, "rate_limit", "rate_limited"),
        ({"subtype": "error_rate_limit"}, None, "rate_limited"),
        ({"subtype": "rate-limit"}, None, "rate_limited"),
        ({"api_error_status": 529}, "server_error", "overloaded"),
        ({}, "overloaded", "overloaded"),
        ({"api_error_status": 401}, None, "auth"),
        ({"api_error_status": 403}, None, "auth"),
        ({}, "authentication_failed", "auth"),
        ({}, "oauth_org_not_allowed", "auth"),
        ({"api_error_status": 402}, None, "billing"),
        ({}, "billing_error", "billing"),
        ({"api_error_status": 404}, None, "model_not_found"),
        ({}, "model_not_found", "model_not_found"),
        (
            {"terminal_reason": "prompt_too_long", "api_error_status": 400},
            "invalid_request",
            "prompt_too_long",
        ),
        ({"subtype": "error_max_turns", "terminal_reason": "max_turns"}, None, "max_turns"),
        ({"subtype": "error_max_budget_usd"}, None, "max_cost"),
        ({"subtype": "error_max_structured_output_retries"}, None, "schema_unmet"),
        ({"terminal_reason": "blocking_limit"}, None, "prompt_too_long"),
        ({"terminal_reason": "image_error"}, None, "image_error"),
        ({"terminal_reason": "completed"}, "server_error", "server_error"),
        ({"terminal_reason": "api_error"}, "max_output_tokens", "max_output_tokens"),
        ({"api_error_status": 503}, None, "server_error"),
        ({"api_error_status": 400}, "unknown", "invalid_request"),
        ({}, "unknown", "unknown"),
        ({"subtype": "error_during_execution", "num_turns": 0}, None, "provider_error"),
        ({}, None, "provider_error"),
    ],
)
def test_error_code_is_derived_from_structured_fields(
    fields: dict[str, Any], error: str | None, expected: str
) -> None:
    fields = {"subtype": "success", **fields}

    assert classify_error(context(error), **fields).code == expected


def test_error_code_does_not_depend_on_the_text() -> None:
    text = "API Error: 429 rate_limit overloaded authentication_failed"

    assert classify_error(subtype="success", result=text).code == "provider_error"


def test_only_status_429_is_rate_limited() -> None:
    statuses = {number: classify_result(result(api_error_status=number), context()).status
                for number in (429, 529, 401)}  # fmt: skip

    assert statuses == {429: "rate_limited", 529: "failed", 401: "failed"}


@pytest.mark.parametrize(
    ("fields", "is_retryable"),
    [
        ({"api_error_status": 429}, True),
        ({"api_error_status": 529}, True),
        ({"api_error_status": 500}, True),
        ({"api_error_status": 401}, False),
        ({"api_error_status": 400}, False),
        ({"subtype": "error_max_turns"}, False),
    ],
)
def test_transient_errors_are_retryable(fields: dict[str, Any], is_retryable: bool) -> None:
    assert classify_error(**fields).retryable is is_retryable


def test_rate_limit_has_the_reset_time_as_its_retry_time() -> None:
    error = classify_error(context(resets_at=1794785857), api_error_status=429)

    assert error.retry_at == datetime(2026, 11, 15, 23, 37, 37, tzinfo=UTC)


@pytest.mark.parametrize(
    ("status", "epoch"), [(529, 1794785857), (429, 1e300), (429, -1e300), (429, 1e18)]
)
def test_overload_and_reset_time_out_of_range_have_no_retry_time(status: int, epoch: float) -> None:
    assert classify_error(context(resets_at=epoch), api_error_status=status).retry_at is None


def test_exceeded_budget_has_the_stop_reason_budget() -> None:
    found = classify_result(result(subtype="error_max_budget_usd"), context())

    assert (found.status, found.stop_reason) == ("failed", "budget")


def test_missing_session_is_detected_by_an_error_before_the_init_line() -> None:
    state = context(has_init=False)

    found = classify_error(state, subtype="error_during_execution", num_turns=0)

    assert (found.code, found.retryable) == ("resume_not_found", False)
    assert "directory" in found.hint


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ("Reached maximum budget ($0.01)", "Reached maximum budget ($0.01)"),
        (3, "Claude Code failed with overloaded"),
        ({}, "Claude Code failed with overloaded"),
    ],
)
def test_error_message_is_the_first_text_that_is_no_diagnostic(entry: Any, message: str) -> None:
    errors = ["[ede_diagnostic] x", entry]

    assert classify_error(errors=errors, api_error_status=529).message == message


def test_unreadable_result_has_the_code_protocol() -> None:
    assert UNREADABLE.code == "protocol"


def test_result_without_is_error_is_invalid() -> None:
    with pytest.raises(msgspec.ValidationError, match="is_error"):
        decode_output(b'{"type":"result","subtype":"success"}')


@pytest.mark.parametrize(
    ("stderr", "expected"),
    [
        ("--dangerously-skip-permissions cannot be used with root/sudo privileges", "root_refused"),
        ("Error: Session ID x is already in use.", "session_in_use"),
        ("No conversation found with session ID: x", "resume_not_found"),
        ("error: unknown option '--x'", "cli_incompatible"),
        ("Error: --output-format=stream-json requires --verbose", "protocol"),
        ("Error parsing streaming input line: x", "protocol"),
    ],
)
def test_stderr_line_explains_an_exit_at_the_start(stderr: str, expected: str) -> None:
    end = end_from_exit(
        ProcessExit(1, stderr=f"warning: y\n{stderr}\nbye"), has_init=False, has_answered=False
    )

    assert end
    assert end.error
    assert (end.status, end.error.code, end.error.message) == ("failed", expected, stderr)
    assert end.exit_code == 1
    assert end.diagnostic


def test_unknown_stderr_explains_nothing() -> None:
    last = ProcessExit(1, stderr="Segmentation fault")

    assert end_from_exit(last, has_init=False, has_answered=True) is None


def test_retry_reason_classifies_a_server_error_without_status() -> None:
    """Claude Code outside of a sandbox gives up with other words, and says no status then."""
    said = result(api_error_status=None)

    codes = {
        retry: classify_result(said, context("server_error", retry=retry)).error
        for retry in ("overloaded", "unknown", None)
    }

    assert [error and error.code for error in codes.values()] == [
        "overloaded",
        "server_error",
        "server_error",
    ]
    assert codes["overloaded"]
    assert codes["overloaded"].retryable


def test_exit_before_the_first_answer_is_an_incompatible_cli() -> None:
    end = end_from_exit(
        ProcessExit(1, stderr="a\nusage: claude FILE\n"), has_init=False, has_answered=False
    )

    assert end
    assert end.error
    assert (end.error.code, end.error.retryable) == ("cli_incompatible", False)
    assert "code 1" in end.error.message
    assert end.error.message.endswith("usage: claude FILE")
    assert "doctor" in end.error.hint


def test_kill_before_the_first_answer_is_not_an_incompatible_cli() -> None:
    assert end_from_exit(ProcessExit(None, 9), has_init=False, has_answered=False) is None


def test_exit_of_a_stopped_process_is_not_classified() -> None:
    last = ProcessExit(1, reason="user_stop", stderr="is already in use")

    assert end_from_exit(last, has_init=False, has_answered=False) is None


def test_stderr_after_the_init_line_counts_only_for_an_exit_code() -> None:
    words = "Error parsing streaming input line: x"

    assert (
        end_from_exit(ProcessExit(None, 9, stderr=words), has_init=True, has_answered=True) is None
    )
    assert end_from_exit(ProcessExit(1, stderr=words), has_init=True, has_answered=True) is not None
