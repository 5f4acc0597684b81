"""How did a turn of Codex fail, and why? By the structure of what it printed.

What it says in words is passed on to people and decides nothing. Only where a process ends without
having printed anything, its last words on stderr are all there is.
"""

import re
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

import msgspec

from steadyrun.dialect import RESUME_NOT_FOUND, ProcessExit, TurnEnded
from steadyrun.lib.jsonrpc import INVALID_REQUEST, RpcError
from steadyrun.model.event import Diagnostic, ErrorFact, LimitWindow
from steadyrun.model.run import EndStatus, StopReason
from steadyrun.providers.codex.frames import RateLimitWindow

RATE_LIMITED = "rate_limited"
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
# How `exec` begins what it says of an answer's status, which is a number.
_STATED = re.compile(r"(?:exceeded retry limit, last status:|unexpected status) (\d{3})\b")
_RETRYABLE = frozenset({RATE_LIMITED, "overloaded", _SERVER})
_STOPPED: dict[str, StopReason] = {"max_cost": "budget"}
_ANEW = "Go on with another conversation, or allow a new one with --or-fresh."
_HINTS = {
    "auth": "Log in with `codex login`, or choose a model provider with a key: docs/providers.md.",
    "billing": "Look at the plan and the credit of the account.",
    "model_not_found": "Choose another model; `codex` and /model show which there are.",
    "prompt_too_long": "Say less at once, or begin a new conversation.",
    "sandbox_error": "Its sandbox does not work here: see docs/providers.md, or take another mode.",
    RESUME_NOT_FOUND: _ANEW,
    _BLOCKED: "Say it otherwise, or look at the hooks in the settings of Codex.",
    _OTHER: "Is somebody logged in, and are the settings of Codex right? `steadyrun doctor` tells.",
}
# What it says on stderr when it does not even start.
_LAST_WORDS = {
    "no rollout found": RESUME_NOT_FOUND,
    "invalid session id": RESUME_NOT_FOUND,
    "is archived": RESUME_NOT_FOUND,
    "Not inside a trusted directory": "untrusted_directory",
}
_INCOMPATIBLE = "cli_incompatible"
_TOO_LONG = "input_too_large"
# When many start at once where it was never used before.
_UNPREPARED = "failed to initialize sqlite state runtime"
# An answer that refuses a conversation has one number for all reasons.
_BUSY = "already has an active writer"
_NOT_MISSING = ("Invalid request", "failed to load configuration")


def find_code(error: Any) -> str:
    """What kind of error it is: by the status of the API's answer, else by Codex's own word, else
    by the API's own."""
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
    """The error of a turn. A limit ends when all that are used up begin anew."""
    code, body = find_code(error), _read_api_error(error)
    message = body.get("message") or _read_message(error)
    full = [each.resets_at for each in windows if each.used_percent >= _FULL_PERCENT]
    ends = [time for time in map(to_datetime, [*full, _read_reset_time(body)]) if time is not None]
    return ErrorFact(
        code,
        message if isinstance(message, str) and message else "Codex did not say why",
        _HINTS.get(code, ""),
        retryable=code in _RETRYABLE,
        retry_at=max(ends, default=None) if code == RATE_LIMITED else None,
    )


def explain_error(fact: ErrorFact, retry: ErrorFact | None) -> ErrorFact:
    """The end of a stream that broke too often says less than what was said each time it broke."""
    if retry is None or fact.code != _OTHER:
        return fact
    return msgspec.structs.replace(retry, message=fact.message)


def find_status(fact: ErrorFact) -> tuple[EndStatus, StopReason | None]:
    status: EndStatus = "rate_limited" if fact.code == RATE_LIMITED else "failed"
    return status, _STOPPED.get(fact.code)


def build_open_error(number: int, message: str, *, is_resumed: bool) -> ErrorFact:
    """Why there is no conversation; what Codex calls a fault of its own is another matter."""
    if _BUSY in message:
        hint = "Another process goes on with this conversation: wait for its end, or stop it."
        return ErrorFact("conversation_busy", message, hint, retryable=True)
    is_missing = is_resumed and number == INVALID_REQUEST
    if is_missing and not any(words in message for words in _NOT_MISSING):
        return build_missing_error(message)
    hint = "Look at the options of providers.codex, and at the settings of Codex."
    return ErrorFact(_OTHER, message, hint)


def build_missing_error(message: str) -> ErrorFact:
    return ErrorFact(RESUME_NOT_FOUND, message, _HINTS[RESUME_NOT_FOUND])


def build_refusal_error(error: RpcError) -> ErrorFact:
    """Why a turn did not begin."""
    match error.data:
        case {"input_error_code": str(word)} if word == _TOO_LONG:
            return ErrorFact("prompt_too_long", error.message, _HINTS["prompt_too_long"])
        case _:
            return ErrorFact(_OTHER, error.message, _HINTS[_OTHER])


def build_hook_error(words: str) -> ErrorFact:
    """Why the model was never asked."""
    return ErrorFact(_BLOCKED, f"a hook of Codex was against it: {words}", _HINTS[_BLOCKED])


def build_no_answer_error() -> ErrorFact:
    """Why there is no answer, where nothing tells why."""
    why = "Codex ended the turn without asking the model"
    return ErrorFact("no_answer", why, "A hook in the settings of Codex may be against it.")


def parse_exec_error(message: str | None) -> ErrorFact:
    """The error of `exec`, which has a message alone: there may be the number of a status in it, or
    it is the API's own error. Words decide nothing."""
    stated = _STATED.match(message or "")
    info = {"": {"httpStatusCode": int(stated[1])}} if stated else None
    fact = build_error({"message": message, "codexErrorInfo": info})
    return ErrorFact(_OTHER, fact.message, retryable=True) if fact.code == _OTHER else fact


def end_from_exit(last: ProcessExit) -> TurnEnded | None:
    """The end of a process that has printed nothing; None if nothing explains it."""
    if last.reason is not None:
        return None
    for words, code in _LAST_WORDS.items():
        if words in last.stderr:
            hint = _HINTS.get(code, "")
            return _build_exit_end(last, ErrorFact(code, _find_line(words, last.stderr), hint))
    if _UNPREPARED in last.stderr:
        why, hint = _find_line(_UNPREPARED, last.stderr), "Start it again."
        return _build_exit_end(last, ErrorFact("start_failed", why, hint, retryable=True))
    if last.code is None:
        return None
    words = "".join(f": {line}" for line in last.stderr.strip().splitlines()[-1:])
    why = f"the program ended with code {last.code} before it answered{words}"
    hint = (
        "Is it Codex, in a version that was tried? `steadyrun doctor` tells."
        " If it is, look at the options of providers.codex, and at the settings of Codex."
    )
    return _build_exit_end(last, ErrorFact(_INCOMPATIBLE, why, hint))


def end_mid_turn(last: ProcessExit, error: ErrorFact | None) -> TurnEnded | None:
    """The end of one that goes in mid-turn and says why, or has said it; None if it does not."""
    if last.reason is not None:
        return None
    if _TOO_LONG in last.stderr:
        code = "prompt_too_long"
        return _build_exit_end(
            last, ErrorFact(code, _find_line(_TOO_LONG, last.stderr), _HINTS[code])
        )
    # One that was killed did not end because of what was wrong before.
    return _build_exit_end(last, error) if error and last.code else None


def build_limit_windows(windows: Mapping[str, RateLimitWindow]) -> tuple[LimitWindow, ...]:
    return tuple(
        LimitWindow(name, each.used_percent, each.window_duration_mins, to_datetime(each.resets_at))
        for name, each in windows.items()
    )


def to_datetime(epoch: float | None) -> datetime | None:
    try:
        return None if epoch is None else datetime.fromtimestamp(epoch, UTC)
    except (ValueError, OverflowError, OSError):
        return None


def _read_kind(error: Any) -> tuple[str, int | None]:
    """Codex's word for it, and the status of the API's answer, if there was one."""
    info = error.get("codexErrorInfo") if isinstance(error, dict) else None
    if isinstance(info, dict) and info:
        word, more = next(iter(info.items()))
        status = more.get("httpStatusCode") if isinstance(more, dict) else None
        return str(word), status if isinstance(status, int) else None
    return info if isinstance(info, str) else "", None


def _read_message(error: Any) -> Any:
    return error.get("message") if isinstance(error, dict) else None


def _read_api_error(error: Any) -> Mapping[str, Any]:
    """The error of the API's answer, which Codex gives whole where it does not know it."""
    try:
        body = msgspec.json.decode(_read_message(error))
    except (ValueError, TypeError, RecursionError):
        return {}
    found = body.get("error") if isinstance(body, dict) else None
    return found if isinstance(found, dict) else {}


def _find_api_code(body: Mapping[str, Any]) -> str:
    """By the word of the API's own error, which has two places for it."""
    found = (_BY_API.get(str(body.get(place))) for place in ("code", "type"))
    return next((code for code in found if code), _OTHER)


def _read_reset_time(body: Mapping[str, Any]) -> float | None:
    ends = body.get("resets_at")
    is_number = isinstance(ends, int | float) and not isinstance(ends, bool)
    return ends if is_number else None


def _build_exit_end(last: ProcessExit, error: ErrorFact) -> TurnEnded:
    diagnostic = Diagnostic(last.code, last.stderr)
    status, reason = find_status(error)
    return TurnEnded(
        status, error=error, diagnostic=diagnostic, exit_code=last.code, stop_reason=reason
    )


def _find_line(words: str, text: str) -> str:
    found = re.search(rf"^.*{re.escape(words)}.*$", text, re.MULTILINE)
    return found[0].strip() if found else words
