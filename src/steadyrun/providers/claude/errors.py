"""Decides how a turn of Claude Code ended, and builds its error.

The decision uses only structured fields: statuses, subtypes and reasons. Free text is passed on to
the user and decides nothing, because a model can write any text. The exception is a process that
ends without a frame: then its stderr is the only evidence.
"""

from steadyrun.dialect import RESUME_NOT_FOUND, ProcessExit, TurnEnded
from steadyrun.model.event import ErrorFact
from steadyrun.providers.claude.frames import ResultLine
from steadyrun.providers.claude.state import ClaudeState, ClaudeTurn
from steadyrun.providers.shared.errors import (
    CLI_INCOMPATIBLE,
    COMMON_HINTS,
    RATE_LIMITED,
    build_exit_end,
    build_incompatible_error,
    fail_turn,
    find_line,
    to_datetime,
)

_PROTOCOL = "protocol"
_HOOK_STOPPED = "hook_stopped"

_BY_STATUS = {
    429: RATE_LIMITED,
    529: "overloaded",
    401: "auth",
    403: "auth",
    402: "billing",
    404: "model_not_found",
}
_BY_ERROR = {
    "rate_limit": RATE_LIMITED,
    "overloaded": "overloaded",
    "authentication_failed": "auth",
    "oauth_org_not_allowed": "auth",
    "account_on_hold": "auth",
    "verification_required": "auth",
    "cloud_credential_error": "auth",
    "billing_error": "billing",
    "model_not_found": "model_not_found",
}
_BY_SUBTYPE = {
    "error_max_turns": "max_turns",
    "error_max_budget_usd": "max_cost",
    "error_max_structured_output_retries": "schema_unmet",
}
_BY_REASON = {"budget_exhausted": "max_cost", "blocking_limit": "prompt_too_long"}
# These reasons do not explain a failure.
_PLAIN_REASONS = frozenset({"completed", "api_error"})
_RETRYABLE = frozenset({RATE_LIMITED, "overloaded", "server_error", "unknown"})
_HINTS = {
    **COMMON_HINTS,
    "auth": "Log in with `claude` and /login, or name a key in providers.claude.env.",
    "model_not_found": "Choose another model; `claude` and /model show which there are.",
    "max_turns": "Allow more turns with max_turns.",
    "max_cost": "Allow more with the budget of a run.",
    _HOOK_STOPPED: "Check the hooks in the settings of Claude Code, here and in the project.",
    RESUME_NOT_FOUND: "A conversation exists only for the directory where it began: resume"
    " it there, or allow a new one with --or-fresh.",
}
# The error of a turn whose result could not be decoded.
UNREADABLE = ErrorFact(
    _PROTOCOL,
    "the result of Claude Code could not be read",
    "`steadyrun doctor` shows which versions of Claude Code were tested.",
)
# Claude Code echoes and drops a message whose uuid is already in the conversation.
DUPLICATE = ErrorFact(
    "already_told",
    "this conversation already has this prompt, and Claude Code ignores the second one",
)
# The prefix of messages that are meant for developers of the CLI.
_INTERNAL = "[ede_diagnostic]"


def classify_result(result: ResultLine, state: ClaudeState) -> TurnEnded:
    """Decide how the turn of this result ended: its status, its error and its stop reason."""
    if is_aborted(result):
        return TurnEnded("cancelled")
    turn = state.turn or ClaudeTurn("")
    # Claude Code reports it as a success if a hook of the user ended the turn.
    is_stopped = turn.is_stopped and not result.num_turns
    if not result.is_error and not is_stopped:
        return TurnEnded("completed")
    code = _HOOK_STOPPED if is_stopped else _find_code(result, turn, has_init=state.has_init)
    error = ErrorFact(
        code,
        _find_message(result) or f"Claude Code failed with {code}",
        _HINTS.get(code, ""),
        _is_retryable(code, result),
        to_datetime(state.resets_at) if code == RATE_LIMITED else None,
    )
    return fail_turn(TurnEnded("failed"), error)


def is_aborted(result: ResultLine) -> bool:
    """Whether the turn was interrupted. Its other fields are not reliable then."""
    return (result.terminal_reason or "").startswith("aborted")


def build_mode_error(why: str) -> ErrorFact:
    hint = "This process cannot change to the mode: start a new one in this mode."
    return ErrorFact("mode_refused", why, hint)


def end_from_exit(last: ProcessExit, *, has_init: bool, has_answered: bool) -> TurnEnded | None:
    """Return the end of a turn whose process exited without a result; None if nothing explains it.

    A program that did not answer the first line is not Claude Code, or not a supported version.
    """
    if last.reason is not None or (has_init and last.code != 1):
        return None
    for words, code, hint in _STDERR_ERRORS:
        if words in last.stderr:
            return build_exit_end(last, ErrorFact(code, find_line(last.stderr, words), hint))
    if has_answered or last.code is None:
        return None
    hint = "Check with `steadyrun doctor` that it is Claude Code, in a tested version."
    return build_exit_end(last, build_incompatible_error(last, hint))


_STDERR_ERRORS = (
    (
        "cannot be used with root/sudo",
        "root_refused",
        "Use another user, or set IS_SANDBOX=1 in the provider's env if this is a sandbox.",
    ),
    ("is already in use", "session_in_use", "Another process has the same conversation."),
    ("No conversation found", RESUME_NOT_FOUND, _HINTS[RESUME_NOT_FOUND]),
    ("unknown option", CLI_INCOMPATIBLE, "Install a tested version of Claude Code."),
    ("requires --verbose", _PROTOCOL, ""),
    ("Error parsing streaming input line", _PROTOCOL, ""),
)


def _find_code(result: ResultLine, turn: ClaudeTurn, *, has_init: bool) -> str:
    """Find the error code. The HTTP status comes first, because it is more precise: the error of
    an overloaded server is only `server_error`."""
    return (
        _BY_STATUS.get(result.api_error_status or 0)
        or _BY_ERROR.get(turn.error or "")
        or _find_subtype_code(result, has_init=has_init)
        or _find_reason_code(result)
        or ("invalid_request" if result.api_error_status == 400 else None)
        or _find_retry_code(result, turn)
        or turn.error
        or ("server_error" if _is_server_error(result) else "provider_error")
    )


def to_error_code(error: str) -> str:
    """Translate an API error of the CLI to an error code of steadyrun, where there is one."""
    return _BY_ERROR.get(error, error)


def _find_subtype_code(result: ResultLine, *, has_init: bool) -> str | None:
    if "rate_limit" in result.subtype.replace("-", "_"):
        return RATE_LIMITED
    if result.subtype == "error_during_execution" and not (has_init or result.num_turns):
        return RESUME_NOT_FOUND
    return _BY_SUBTYPE.get(result.subtype)


def _find_reason_code(result: ResultLine) -> str | None:
    reason = result.terminal_reason
    return None if reason in _PLAIN_REASONS or not reason else _BY_REASON.get(reason, reason)


def _find_retry_code(result: ResultLine, turn: ClaudeTurn) -> str | None:
    """Find the code by the last retry. After several retries, the result has no status."""
    is_vague = result.api_error_status is None and turn.error in {"server_error", "unknown"}
    return "overloaded" if is_vague and turn.retry == "overloaded" else None


def _is_retryable(code: str, result: ResultLine) -> bool:
    """Whether a retry may help. It does not if the request itself was wrong."""
    if code == "unknown" and 400 <= (result.api_error_status or 0) < 500:
        return False
    return code in _RETRYABLE or _is_server_error(result)


def _is_server_error(result: ResultLine) -> bool:
    return 500 <= (result.api_error_status or 0) < 600


def _find_message(result: ResultLine) -> str:
    messages = [result.result, *(result.errors or ())]
    words = [each for each in messages if isinstance(each, str) and each.strip()]
    return next((each for each in words if not each.startswith(_INTERNAL)), "")
