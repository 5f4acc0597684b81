"""Tests how a turn of Claude Code ended, decided by structure alone."""

import json
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from steadyrun.dialect import ProcessExit
from steadyrun.providers.claude.errors import (
    ResultContext,
    build_unreadable_error,
    classify_result,
    end_from_exit,
)
from steadyrun.providers.claude.frames import ResultLine, decode_output


def result(**fields: Any) -> ResultLine:
    line = decode_output(json.dumps({"type": "result", "is_error": True, **fields}).encode())
    assert isinstance(line, ResultLine)
    return line


def code(error: str | None = None, **fields: Any) -> str:
    found = classify_result(result(**{"subtype": "success", **fields}), ResultContext(error)).error
    assert found
    return found.code


def test_an_end_without_an_error_is_completed() -> None:
    assert classify_result(result(is_error=False), ResultContext()).status == "completed"


@pytest.mark.parametrize("reason", ["aborted_streaming", "aborted_tools"])
@pytest.mark.parametrize("is_error", [True, False])
def test_an_aborted_turn_is_cancelled_in_any_case(reason: str, is_error: bool) -> None:
    said = result(is_error=is_error, terminal_reason=reason, api_error_status=429)

    found = classify_result(said, ResultContext("rate_limit"))

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
def test_the_code_comes_from_the_structure(
    fields: dict[str, Any], error: str | None, expected: str
) -> None:
    assert code(error, **fields) == expected


def test_words_decide_nothing() -> None:
    assert code(result="API Error: 429 rate_limit overloaded authentication_failed") == (
        "provider_error"
    )


def test_only_a_rate_limit_is_rate_limited() -> None:
    statuses = {number: classify_result(result(api_error_status=number), ResultContext()).status
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
def test_what_may_pass_by_itself_is_retryable(fields: dict[str, Any], is_retryable: bool) -> None:
    found = classify_result(result(**fields), ResultContext()).error

    assert found
    assert found.retryable is is_retryable


def test_a_rate_limit_ends_at_its_reset_time() -> None:
    found = classify_result(result(api_error_status=429), ResultContext(resets_at=1794785857)).error

    assert found
    assert found.retry_at == datetime(2026, 11, 15, 23, 37, 37, tzinfo=UTC)


def test_another_error_has_no_such_time() -> None:
    found = classify_result(result(api_error_status=529), ResultContext(resets_at=1794785857)).error

    assert found
    assert found.retry_at is None


@pytest.mark.parametrize("epoch", [1e300, -1e300, 1e18])
def test_a_time_that_no_calendar_has_is_none(epoch: float) -> None:
    found = classify_result(result(api_error_status=429), ResultContext(resets_at=epoch)).error

    assert found
    assert found.retry_at is None


def test_a_budget_that_is_spent_is_a_reason_to_stop() -> None:
    found = classify_result(result(subtype="error_max_budget_usd"), ResultContext())

    assert (found.status, found.stop_reason) == ("failed", "budget")


def test_a_conversation_that_is_not_there_is_known_before_any_turn_began() -> None:
    said = result(subtype="error_during_execution", num_turns=0)

    found = classify_result(said, ResultContext(has_init=False)).error

    assert found
    assert (found.code, found.retryable) == ("resume_not_found", False)
    assert "directory" in found.hint


def test_the_message_is_for_people() -> None:
    found = classify_result(result(errors=["[ede_diagnostic] x", "Reached maximum budget ($0.01)"]),
                    ResultContext()).error  # fmt: skip

    assert found
    assert found.message == "Reached maximum budget ($0.01)"


def test_there_is_a_message_where_nothing_was_said() -> None:
    found = classify_result(
        result(errors=["[ede_diagnostic] x", 3, {}], api_error_status=529), ResultContext()
    )

    assert found.error
    assert found.error.message == "Claude Code failed with overloaded"


def test_an_end_that_cannot_be_read_is_named() -> None:
    assert build_unreadable_error().code == "protocol"


def test_a_result_that_does_not_say_whether_it_failed_is_none() -> None:
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
def test_the_last_words_explain_an_exit_at_the_start(stderr: str, expected: str) -> None:
    end = end_from_exit(
        ProcessExit(1, stderr=f"warning: y\n{stderr}\nbye"), has_init=False, has_answered=False
    )

    assert end
    assert end.error
    assert (end.status, end.error.code, end.error.message) == ("failed", expected, stderr)
    assert end.exit_code == 1
    assert end.diagnostic


def test_last_words_that_are_not_known_explain_nothing() -> None:
    last = ProcessExit(1, stderr="Segmentation fault")

    assert end_from_exit(last, has_init=False, has_answered=True) is None


def test_many_overloads_in_a_row_have_no_status() -> None:
    """Claude Code outside of a sandbox gives up with other words, and says no status then."""
    said = result(api_error_status=None)

    codes = {
        retry: classify_result(said, ResultContext("server_error", retry=retry)).error
        for retry in ("overloaded", "unknown", None)
    }

    assert [error and error.code for error in codes.values()] == [
        "overloaded",
        "server_error",
        "server_error",
    ]
    assert codes["overloaded"]
    assert codes["overloaded"].retryable


def test_a_program_that_ends_before_it_has_answered_is_none_that_we_know() -> None:
    end = end_from_exit(
        ProcessExit(1, stderr="a\nusage: claude FILE\n"), has_init=False, has_answered=False
    )

    assert end
    assert end.error
    assert (end.error.code, end.error.retryable) == ("cli_incompatible", False)
    assert "code 1" in end.error.message
    assert end.error.message.endswith("usage: claude FILE")
    assert "doctor" in end.error.hint


def test_a_program_that_was_killed_before_it_had_answered_may_be_one() -> None:
    assert end_from_exit(ProcessExit(None, 9), has_init=False, has_answered=False) is None


def test_who_was_stopped_did_not_end_for_a_reason_of_its_own() -> None:
    last = ProcessExit(1, reason="user_stop", stderr="is already in use")

    assert end_from_exit(last, has_init=False, has_answered=False) is None


def test_last_words_of_a_process_that_worked_count_only_if_it_gave_up() -> None:
    words = "Error parsing streaming input line: x"

    assert (
        end_from_exit(ProcessExit(None, 9, stderr=words), has_init=True, has_answered=True) is None
    )
    assert end_from_exit(ProcessExit(1, stderr=words), has_init=True, has_answered=True) is not None
