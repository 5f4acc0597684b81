"""Tests how a turn of Codex ended, decided by structure alone."""

from datetime import UTC, datetime
from typing import Any

import pytest

from steadyrun.dialect import RESUME_NOT_FOUND, ProcessExit
from steadyrun.model import event as ev
from steadyrun.providers.codex.errors import (
    build_error,
    end_from_exit,
    explain_error,
    find_code,
)
from steadyrun.providers.shared.errors import find_status
from tests.support.codex_lines import (
    completed,
    error,
    failed,
    hook,
    interrupted,
    make_notification,
    ready,
    reply,
    text,
    tokens,
    usage,
    working,
)
from tests.support.dialect_talker import get_end, the_error


def http(word: str, status: Any = None) -> Any:
    return {word: {"httpStatusCode": status}}


ROWS: list[tuple[Any, str, bool]] = [
    (http("responseTooManyFailedAttempts", 429), "rate_limited", True),
    (http("news", 429), "rate_limited", True),
    ("rateLimitExceeded", "rate_limited", True),
    ("usageLimitExceeded", "rate_limited", True),
    ("serverOverloaded", "overloaded", True),
    ("flexUnavailable", "overloaded", True),
    ("policyCapacityUnavailable", "overloaded", True),
    (http("httpConnectionFailed", 503), "overloaded", True),
    (http("httpConnectionFailed", 529), "overloaded", True),
    (http("httpConnectionFailed", 401), "auth", False),
    (http("httpConnectionFailed", 403), "auth", False),
    ("unauthorized", "auth", False),
    (http("httpConnectionFailed", 402), "billing", False),
    ("contextWindowExceeded", "prompt_too_long", False),
    ("modelNotFound", "model_not_found", False),
    (http("httpConnectionFailed", 404), "model_not_found", False),
    ("badRequest", "invalid_request", False),
    (http("httpConnectionFailed", 400), "invalid_request", False),
    (http("httpConnectionFailed", 413), "invalid_request", False),
    ("sessionBudgetExceeded", "max_cost", False),
    ("internalServerError", "server_error", True),
    (http("responseStreamDisconnected", 500), "server_error", True),
    (http("responseStreamDisconnected"), "server_error", True),
    (http("responseStreamConnectionFailed"), "server_error", True),
    (http("httpConnectionFailed"), "server_error", True),
    (http("responseTooManyFailedAttempts"), "server_error", True),
    ("cyberPolicy", "policy", False),
    ("misalignmentPolicyViolation", "policy", False),
    ("tooManyDenials", "too_many_denials", False),
    ("sandboxError", "sandbox_error", False),
    ("threadRollbackFailed", "thread_rollback_failed", False),
    ("other", "provider_error", False),
    (None, "provider_error", False),
    ("news", "provider_error", False),
    ({"news": {}}, "provider_error", False),
]


@pytest.mark.parametrize(("info", "code", "is_retryable"), ROWS)
def test_error_code_is_derived_from_structured_fields(
    info: Any, code: str, is_retryable: bool
) -> None:
    end = get_end(working().receive(failed(info, "429 usage limit, unauthorized, overloaded")))

    assert end.error
    assert (end.error.code, end.error.retryable) == (code, is_retryable)
    assert end.status == ("rate_limited" if code == "rate_limited" else "failed")
    assert end.error.message.startswith("429 usage")
    assert end.stop_reason == ("budget" if code == "max_cost" else None)


ODD: list[Any] = [
    7, "x", [], {}, {"message": 7}, {"codexErrorInfo": 7}, {"codexErrorInfo": []},
    {"codexErrorInfo": {}}, {"codexErrorInfo": {"x": None}}, {"codexErrorInfo": {"x": [1]}},
    {"codexErrorInfo": http("x", "429")}, {"codexErrorInfo": http("x", True)},
    {"codexErrorInfo": http("x", 10**30)}, {"codexErrorInfo": http("x", -1)},
    {"codexErrorInfo": http("x", 4.29)},
]  # fmt: skip


@pytest.mark.parametrize("given", ODD)
def test_malformed_error_still_has_a_code_and_a_message(given: Any) -> None:
    end = get_end(working().receive(completed(status="failed", error=given)))

    assert end.status == "failed"
    assert end.error
    assert end.error.code
    assert end.error.message
    assert find_status(build_error(given).code)[0] == "failed"
    assert find_code(given)


def test_failure_without_an_error_has_the_last_reported_error() -> None:
    lines = [
        error("serverOverloaded", will_retry=False),
        error(http("x", 401), will_retry=False),
        error("usageLimitExceeded"),
        completed(status="failed", error=None),
    ]

    assert the_error(working().receive(*lines)).code == "auth"


@pytest.mark.parametrize("status", [None, "news", 7, {}])
def test_unknown_end_status_is_a_failure(status: Any) -> None:
    said = working().receive(completed("x", status=status))

    assert get_end(said).status == "failed"
    assert get_end(said).error


def test_error_of_a_completed_turn_is_dropped() -> None:
    lines = [error("serverOverloaded", will_retry=False), completed("x")]

    end = get_end(working().receive(*lines))

    assert (end.status, end.error) == ("completed", None)


def test_interrupted_turn_has_no_error() -> None:
    end = get_end(working().receive(error("serverOverloaded", will_retry=False), interrupted()))

    assert (end.status, end.error) == ("cancelled", None)


@pytest.mark.parametrize(
    ("info", "status", "reason", "code"),
    [
        ("sessionBudgetExceeded", "failed", "budget", "max_cost"),
        ("serverOverloaded", "cancelled", None, "overloaded"),
        ("usageLimitExceeded", "cancelled", None, "rate_limited"),
    ],
)
def test_turn_interrupted_by_codex_has_its_error(
    info: str, status: str, reason: str | None, code: str
) -> None:
    said = {"message": "enough", "codexErrorInfo": info}

    end = get_end(working().receive(completed(status="interrupted", error=said)))

    assert (end.status, end.stop_reason) == (status, reason)
    assert end.error
    assert (end.error.code, end.error.message) == (code, "enough")


def test_retries_are_counted_for_each_turn() -> None:
    talk = working()
    said = talk.receive(error(http("x")), error(http("x", 429)), completed())
    talk.turn("t2")
    talk.receive(reply("begin:t2", turn={"id": "turn2"}))
    said += talk.receive(error("serverOverloaded", turn="turn2"))

    tries = [each for each in said if isinstance(each, ev.ProviderRetrying)]
    assert [(each.attempt, each.reason) for each in tries] == [
        (1, "provider_error"), (2, "rate_limited"), (1, "overloaded"),
    ]  # fmt: skip
    assert {each.delay_ms for each in tries} == {None}


def test_error_of_another_turn_is_ignored() -> None:
    talk = working()

    said = talk.receive(
        error(turn="turn0"), error("usageLimitExceeded", will_retry=False, turn="x")
    )
    end = get_end(talk.receive(completed(status="failed")))

    assert ev.ProviderRetrying not in map(type, said)
    assert end.error
    assert end.error.code == "provider_error"


def test_error_without_a_turn_is_noted() -> None:
    assert ready().receive(error("serverOverloaded")) == [ev.Note("sorry")]


# -- the last words of one that never spoke


@pytest.mark.parametrize(
    ("words", "code"),
    [
        ("Error: thread/resume failed: no rollout found for thread id x", RESUME_NOT_FOUND),
        ("Error: invalid session id: x", RESUME_NOT_FOUND),
        ("session x is archived. Run `codex unarchive x`", RESUME_NOT_FOUND),
        ("Not inside a trusted directory and --skip-git-repo-check was not", "untrusted_directory"),
        ("Error: failed to initialize sqlite state runtime under /x", "start_failed"),
    ],
)
def test_stderr_line_explains_a_failed_start(words: str, code: str) -> None:
    stderr = f"WARN something\n{words}\nand more"

    end = end_from_exit(ProcessExit(1, stderr=stderr))

    assert end
    assert end.error
    assert (end.error.code, end.error.message) == (code, words)
    assert end.diagnostic
    assert end.diagnostic.stderr_excerpt == stderr


def test_exit_of_a_stopped_process_is_not_classified() -> None:
    assert end_from_exit(ProcessExit(1, reason="user_stop", stderr="is archived")) is None
    assert end_from_exit(ProcessExit(signal=9)) is None


def test_error_of_a_retry_explains_the_failure() -> None:
    ends = datetime(2026, 1, 1, tzinfo=UTC)
    retry = ev.ErrorFact("rate_limited", "too fast", "Wait.", True, retry_at=ends)

    found = explain_error(build_error({"message": "the stream broke"}), retry)

    assert found == ev.ErrorFact("rate_limited", "the stream broke", "Wait.", True, retry_at=ends)
    assert explain_error(found, build_error(None)) == found
    assert explain_error(found, None) == found


# -- hooks of Codex's own settings


@pytest.mark.parametrize("event", ["sessionStart", "userPromptSubmit", "preModelRequest"])
@pytest.mark.parametrize("status", ["blocked", "stopped"])
def test_prompt_blocked_by_a_hook_fails(event: str, status: str) -> None:
    heard = working().receive(hook(status, "not today", "sorry", event=event), completed())

    assert heard[0] == ev.Note(f"a hook of Codex ({event}) {status}: not today; sorry")
    end = get_end(heard)
    assert (end.status, end.text) == ("failed", None)
    assert end.error
    assert (end.error.code, end.error.retryable) == ("hook_blocked", False)
    assert "not today; sorry" in end.error.message


@pytest.mark.parametrize(
    "lines",
    [
        [hook("failed", "broken"), completed()],
        [hook("blocked", event="stop"), completed()],
        [hook("blocked", event="postToolUse"), completed()],
        [hook("blocked", turn="turn0"), completed()],
        [hook("blocked"), text("hi"), completed("hi")],
        [hook("blocked"), usage(tokens(1, 1)), completed()],
    ],
    ids=["broken", "at the end", "after a tool", "of another turn", "answered", "asked"],
)
def test_hook_that_does_not_block_the_model_call_is_noted(lines: Any) -> None:
    heard = working().receive(*lines)

    assert isinstance(heard[0], ev.Note)
    assert get_end(heard).status == "completed"


def test_blocked_turn_that_was_interrupted_is_cancelled() -> None:
    assert get_end(working().receive(hook("blocked"), interrupted())).status == "cancelled"


def test_successful_hook_causes_no_event() -> None:
    odd = make_notification("hook/completed", run={"entries": 7})

    assert working().receive(hook("completed", "fine"), hook("running"), odd) == []


def test_hook_without_a_turn_is_noted() -> None:
    [note] = ready().receive(hook("stopped", event="sessionEnd"))

    assert note == ev.Note("a hook of Codex (sessionEnd) stopped: it gave no reason")
