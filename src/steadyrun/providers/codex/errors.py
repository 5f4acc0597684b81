"""Decides why a turn of Codex failed, and builds its error.

The decision uses only structured fields: statuses and error codes. Free text is passed on to the
user and decides nothing. The exception is a process that ends without output: then its stderr is
the only evidence.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from steadyrun.dialect import RESUME_NOT_FOUND, ProcessExit, TurnEnded
from steadyrun.lib.jsonrpc import INVALID_REQUEST, RpcError
from steadyrun.model.event import ErrorFact, LimitWindow
from steadyrun.providers.codex.frames import RateLimitWindow
from steadyrun.providers.shared.errors import (
    COMMON_HINTS,
    RATE_LIMITED,
    build_exit_end,
    build_incompatible_error,
    find_line,
    to_datetime,
)

_OTHER, _SERVER = "provider_error", "server_error"
_BLOCKED = "hook_blocked"
_FULL_PERCENT = 100

_BY_STATUS = {
    401: "auth",
    402: "billing",
    403: "auth",
    404: "model_not_found",
    429: RATE_LIMITED,
    503: "overloaded",
    529: "overloaded",
}
_BY_WORD = {
    "badRequest": "invalid_request",
    "contextWindowExceeded": "prompt_too_long",
    "cyberPolicy": "policy",
    "flexUnavailable": "overloaded",
    "httpConnectionFailed": _SERVER,
    "internalServerError": _SERVER,
    "misalignmentPolicyViolation": "policy",
    "modelNotFound": "model_not_found",
    "policyCapacityUnavailable": "overloaded",
    "rateLimitExceeded": RATE_LIMITED,
    "responseStreamConnectionFailed": _SERVER,
    "responseStreamDisconnected": _SERVER,
    "responseTooManyFailedAttempts": _SERVER,
    "sandboxError": "sandbox_error",
    "serverOverloaded": "overloaded",
    "sessionBudgetExceeded": "max_cost",
    "threadRollbackFailed": "thread_rollback_failed",
    "tooManyDenials": "too_many_denials",
    "unauthorized": "auth",
    "usageLimitExceeded": RATE_LIMITED,
}
_BY_API = {
    "context_length_exceeded": "prompt_too_long",
    "insufficient_quota": RATE_LIMITED,
    "rate_limit_exceeded": RATE_LIMITED,
    "usage_limit_reached": RATE_LIMITED,
}
# How a message of `exec` begins that contains an HTTP status.
_STATED = re.compile(r"(?:exceeded retry limit, last status:|unexpected status) (\d{3})\b")
_RETRYABLE = frozenset({RATE_LIMITED, "overloaded", _SERVER})
_NEW_CONVERSATION_HINT = "Continue another conversation, or allow a new one with --or-fresh."
_HINTS = {
    **COMMON_HINTS,
    "auth": "Log in with `codex login`, or choose a model provider with a key: docs/providers.md.",
    "model_not_found": "Choose another model; `codex` and /model show which there are.",
    "sandbox_error": "Its sandbox does not work here: see docs/providers.md, or use another mode.",
    RESUME_NOT_FOUND: _NEW_CONVERSATION_HINT,
    _BLOCKED: "Change the prompt, or check the hooks in the settings of Codex.",
    _OTHER: "Check the login and the settings of Codex with `steadyrun doctor`.",
}
# The messages on stderr of a process that cannot start.
_STDERR_ERRORS = {
    "no rollout found": RESUME_NOT_FOUND,
    "invalid session id": RESUME_NOT_FOUND,
    "is archived": RESUME_NOT_FOUND,
    "Not inside a trusted directory": "untrusted_directory",
}
_TOO_LONG = "input_too_large"
# Several processes were started at once, and Codex was never used before with this user.
_UNPREPARED = "failed to initialize sqlite state runtime"
# A refused conversation has the same error code for all reasons, so the message decides.
_BUSY = "already has an active writer"
_NOT_MISSING = ("Invalid request", "failed to load configuration")


def find_code(error: Any) -> str:
    """Find the error code: by the HTTP status, else by Codex's own word, else by the API's word."""
    word, status = _read_kind(error)
    if status is not None:
        if found := _BY_STATUS.get(status):
            return found
        if status >= 500:
            return _SERVER
        if status >= 400:
            return "invalid_request"
    return _BY_WORD.get(word) or _find_api_code(_read_api_error(error))


def build_error(error: Any, windows: Iterable[RateLimitWindow] = ()) -> ErrorFact:
    """Build the error of a turn. A rate limit ends when the last full window resets."""
    code, body = find_code(error), _read_api_error(error)
    message = body.get("message") or _read_message(error)
    full = [each.resets_at for each in windows if each.used_percent >= _FULL_PERCENT]
    ends = [time for time in map(to_datetime, [*full, _read_reset_time(body)]) if time is not None]
    return ErrorFact(
        code,
        message if isinstance(message, str) and message else "Codex gave no reason",
        _HINTS.get(code, ""),
        retryable=code in _RETRYABLE,
        retry_at=max(ends, default=None) if code == RATE_LIMITED else None,
    )


def explain_error(fact: ErrorFact, retry: ErrorFact | None) -> ErrorFact:
    """Use the error of the last retry if it is more precise than the final error."""
    if retry is None or fact.code != _OTHER:
        return fact
    return msgspec.structs.replace(retry, message=fact.message)


def build_open_error(number: int, message: str, *, is_resumed: bool) -> ErrorFact:
    """Build the error of a conversation that could not be opened."""
    if _BUSY in message:
        hint = "Another process uses this conversation: wait for its end, or stop it."
        return ErrorFact("conversation_busy", message, hint, retryable=True)
    is_missing = is_resumed and number == INVALID_REQUEST
    if is_missing and not any(words in message for words in _NOT_MISSING):
        return build_missing_error(message)
    hint = "Check the options of providers.codex and the settings of Codex."
    return ErrorFact(_OTHER, message, hint)


def build_missing_error(message: str) -> ErrorFact:
    return ErrorFact(RESUME_NOT_FOUND, message, _HINTS[RESUME_NOT_FOUND])


def build_refusal_error(error: RpcError) -> ErrorFact:
    """Build the error of a turn that Codex refused."""
    match error.data:
        case {"input_error_code": str(word)} if word == _TOO_LONG:
            return ErrorFact("prompt_too_long", error.message, _HINTS["prompt_too_long"])
        case _:
            return ErrorFact(_OTHER, error.message, _HINTS[_OTHER])


def build_hook_error(words: str) -> ErrorFact:
    """Build the error of a turn that a hook blocked before the model was asked."""
    return ErrorFact(_BLOCKED, f"a hook of Codex blocked the turn: {words}", _HINTS[_BLOCKED])


def build_no_answer_error() -> ErrorFact:
    """Build the error of a turn that ended without an answer and without a reason."""
    why = "Codex ended the turn without asking the model"
    return ErrorFact("no_answer", why, "A hook in the settings of Codex may have blocked it.")


def parse_exec_error(message: str | None) -> ErrorFact:
    """Build the error of `exec`, which prints only a message.

    The message may contain an HTTP status, or it is the JSON error of the API. Other text decides
    nothing.
    """
    stated = _STATED.match(message or "")
    info = {"": {"httpStatusCode": int(stated[1])}} if stated else None
    fact = build_error({"message": message, "codexErrorInfo": info})
    return ErrorFact(_OTHER, fact.message, retryable=True) if fact.code == _OTHER else fact


def end_from_exit(last: ProcessExit) -> TurnEnded | None:
    """Return the end of a process that printed nothing; None if nothing explains it."""
    if last.reason is not None:
        return None
    for words, code in _STDERR_ERRORS.items():
        if words in last.stderr:
            hint = _HINTS.get(code, "")
            return build_exit_end(last, ErrorFact(code, find_line(last.stderr, words), hint))
    if _UNPREPARED in last.stderr:
        why, hint = find_line(last.stderr, _UNPREPARED), "Start the run again."
        return build_exit_end(last, ErrorFact("start_failed", why, hint, retryable=True))
    if last.code is None:
        return None
    hint = (
        "Check with `steadyrun doctor` that it is Codex, in a tested version."
        " If it is, check the options of providers.codex and the settings of Codex."
    )
    return build_exit_end(last, build_incompatible_error(last, hint))


def end_mid_turn(last: ProcessExit, error: ErrorFact | None) -> TurnEnded | None:
    """Return the end of a process that exited during a turn; None if nothing explains it."""
    if last.reason is not None:
        return None
    if _TOO_LONG in last.stderr:
        code, why = "prompt_too_long", find_line(last.stderr, _TOO_LONG)
        return build_exit_end(last, ErrorFact(code, why, _HINTS[code]))
    # A killed process did not end because of an earlier error.
    return build_exit_end(last, error) if error and last.code else None


def build_limit_windows(windows: Mapping[str, RateLimitWindow]) -> tuple[LimitWindow, ...]:
    return tuple(
        LimitWindow(name, each.used_percent, each.window_duration_mins, to_datetime(each.resets_at))
        for name, each in windows.items()
    )


def _read_kind(error: Any) -> tuple[str, int | None]:
    """Read the error word of Codex, and the HTTP status of the API if there was one."""
    info = error.get("codexErrorInfo") if isinstance(error, dict) else None
    if isinstance(info, dict) and info:
        word, more = next(iter(info.items()))
        status = more.get("httpStatusCode") if isinstance(more, dict) else None
        return str(word), status if isinstance(status, int) else None
    return info if isinstance(info, str) else "", None


def _read_message(error: Any) -> Any:
    return error.get("message") if isinstance(error, dict) else None


def _read_api_error(error: Any) -> Mapping[str, Any]:
    """Read the error of the API, which Codex passes on as JSON if it is unknown to Codex."""
    try:
        body = msgspec.json.decode(_read_message(error))
    except (ValueError, TypeError, RecursionError):
        return {}
    found = body.get("error") if isinstance(body, dict) else None
    return found if isinstance(found, dict) else {}


def _find_api_code(body: Mapping[str, Any]) -> str:
    """Find the error code by the error of the API, which has it in one of two fields."""
    found = (_BY_API.get(str(body.get(place))) for place in ("code", "type"))
    return next((code for code in found if code), _OTHER)


def _read_reset_time(body: Mapping[str, Any]) -> float | None:
    ends = body.get("resets_at")
    is_number = isinstance(ends, int | float) and not isinstance(ends, bool)
    return ends if is_number else None
