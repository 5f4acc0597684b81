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
    find_status,
)
from tests.support.codex_lines import (
    completed,
    error,
    failed,
    hook,
    interrupted,
    news,
    ready,
    reply,
    text,
    tokens,
    usage,
    working,
)
from tests.support.dialect_talker import the_end


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
def test_the_code_comes_from_the_structure(info: Any, code: str, is_retryable: bool) -> None:
    end = the_end(working().hear(failed(info, "429 usage limit, unauthorized, overloaded")))

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
def test_an_error_of_an_odd_shape_is_one(given: Any) -> None:
    end = the_end(working().hear(completed(status="failed", error=given)))

    assert end.status == "failed"
    assert end.error
    assert end.error.code
    assert end.error.message
    assert find_status(build_error(given))[0] == "failed"
    assert find_code(given)


def test_a_failure_without_an_error_has_the_last_reported_one() -> None:
    lines = [
        error("serverOverloaded", will_retry=False),
        error(http("x", 401), will_retry=False),
        error("usageLimitExceeded"),
        completed(status="failed", error=None),
    ]

    end = the_end(working().hear(*lines))

    assert end.error
    assert end.error.code == "auth"


@pytest.mark.parametrize("status", [None, "news", 7, {}])
def test_an_unknown_end_status_is_a_failure(status: Any) -> None:
    said = working().hear(completed("x", status=status))

    assert the_end(said).status == "failed"
    assert the_end(said).error


def test_an_error_that_was_got_over_is_forgotten() -> None:
    lines = [error("serverOverloaded", will_retry=False), completed("x")]

    end = the_end(working().hear(*lines))

    assert (end.status, end.error) == ("completed", None)


def test_an_interrupt_is_no_error() -> None:
    end = the_end(working().hear(error("serverOverloaded", will_retry=False), interrupted()))

    assert (end.status, end.error) == ("cancelled", None)


@pytest.mark.parametrize(
    ("info", "status", "reason", "code"),
    [
        ("sessionBudgetExceeded", "failed", "budget", "max_cost"),
        ("serverOverloaded", "cancelled", None, "overloaded"),
        ("usageLimitExceeded", "cancelled", None, "rate_limited"),
    ],
)
def test_a_turn_interrupted_by_codex_has_its_error(
    info: str, status: str, reason: str | None, code: str
) -> None:
    said = {"message": "enough", "codexErrorInfo": info}

    end = the_end(working().hear(completed(status="interrupted", error=said)))

    assert (end.status, end.stop_reason) == (status, reason)
    assert end.error
    assert (end.error.code, end.error.message) == (code, "enough")


def test_tries_are_counted_for_each_turn() -> None:
    talk = working()
    said = talk.hear(error(http("x")), error(http("x", 429)), completed())
    talk.turn("t2")
    talk.hear(reply("begin:t2", turn={"id": "turn2"}))
    said += talk.hear(error("serverOverloaded", turn="turn2"))

    tries = [each for each in said if isinstance(each, ev.ProviderRetrying)]
    assert [(each.attempt, each.reason) for each in tries] == [
        (1, "provider_error"), (2, "rate_limited"), (1, "overloaded"),
    ]  # fmt: skip
    assert {each.delay_ms for each in tries} == {None}


def test_an_error_of_another_turn_is_not_of_this() -> None:
    talk = working()

    said = talk.hear(error(turn="turn0"), error("usageLimitExceeded", will_retry=False, turn="x"))
    end = the_end(talk.hear(completed(status="failed")))

    assert ev.ProviderRetrying not in map(type, said)
    assert end.error
    assert end.error.code == "provider_error"


def test_an_error_without_a_turn_is_a_note() -> None:
    assert ready().hear(error("serverOverloaded")) == [ev.Note("sorry")]


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
def test_last_words_explain_a_start_that_failed(words: str, code: str) -> None:
    stderr = f"WARN something\n{words}\nand more"

    end = end_from_exit(ProcessExit(1, stderr=stderr))

    assert end
    assert end.error
    assert (end.error.code, end.error.message) == (code, words)
    assert end.diagnostic
    assert end.diagnostic.stderr_excerpt == stderr


def test_one_that_was_stopped_is_explained_by_others() -> None:
    assert end_from_exit(ProcessExit(1, reason="user_stop", stderr="is archived")) is None
    assert end_from_exit(ProcessExit(signal=9)) is None


def test_the_error_of_a_retry_explains_the_end_and_the_limit() -> None:
    ends = datetime(2026, 1, 1, tzinfo=UTC)
    retry = ev.ErrorFact("rate_limited", "too fast", "Wait.", True, retry_at=ends)

    found = explain_error(build_error({"message": "the stream broke"}), retry)

    assert found == ev.ErrorFact("rate_limited", "the stream broke", "Wait.", True, retry_at=ends)
    assert explain_error(found, build_error(None)) == found
    assert explain_error(found, None) == found


# -- hooks of Codex's own settings


@pytest.mark.parametrize("event", ["sessionStart", "userPromptSubmit", "preModelRequest"])
@pytest.mark.parametrize("status", ["blocked", "stopped"])
def test_a_prompt_that_a_hook_is_against_has_failed(event: str, status: str) -> None:
    heard = working().hear(hook(status, "not today", "sorry", event=event), completed())

    assert heard[0] == ev.Note(f"a hook of Codex ({event}) {status}: not today; sorry")
    end = the_end(heard)
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
def test_a_hook_that_does_not_keep_the_model_from_being_asked_is_noted(lines: Any) -> None:
    heard = working().hear(*lines)

    assert isinstance(heard[0], ev.Note)
    assert the_end(heard).status == "completed"


def test_a_blocked_turn_that_was_interrupted_was_cancelled() -> None:
    assert the_end(working().hear(hook("blocked"), interrupted())).status == "cancelled"


def test_a_successful_hook_causes_no_event() -> None:
    odd = news("hook/completed", run={"entries": 7})

    assert working().hear(hook("completed", "fine"), hook("running"), odd) == []


def test_a_hook_without_a_turn_is_noted() -> None:
    [note] = ready().hear(hook("stopped", event="sessionEnd"))

    assert note == ev.Note("a hook of Codex (sessionEnd) stopped: it did not say why")
