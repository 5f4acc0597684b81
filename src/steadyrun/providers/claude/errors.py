"""Decides how a turn of Claude Code ended, and builds its error.

The decision uses only structured fields: statuses, subtypes and reasons. Free text is passed on to
the user and decides nothing, because a model can write any text. The exception is a process that
ends without a frame: then its stderr is the only evidence.
"""

from msgspec import Struct

from steadyrun.dialect import RESUME_NOT_FOUND, ProcessExit, TurnEnded
from steadyrun.model.event import Diagnostic, ErrorFact
from steadyrun.model.run import EndStatus, StopReason
from steadyrun.providers.claude.frames import ResultLine
from steadyrun.providers.shared.epoch import to_datetime

_RATE_LIMITED = "rate_limited"
_PROTOCOL = "protocol"
_HOOK_STOPPED = "hook_stopped"

_BY_STATUS = {
    429: _RATE_LIMITED,
    529: "overloaded",
    401: "auth",
    403: "auth",
    402: "billing",
    404: "model_not_found",
}
_BY_ERROR = {
    "rate_limit": _RATE_LIMITED,
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
_RETRYABLE = frozenset({_RATE_LIMITED, "overloaded", "server_error", "unknown"})
_STOPPED: dict[str, StopReason] = {"max_cost": "budget"}
_HINTS = {
    "auth": "Log in with `claude` and /login, or name a key in providers.claude.env.",
    "billing": "Look at the plan and the credit of the account.",
    "model_not_found": "Choose another model; `claude` and /model show which there are.",
    "prompt_too_long": "Say less at once, or begin a new conversation.",
    "max_turns": "Allow more turns with max_turns.",
    "max_cost": "Allow more with the budget of a run.",
    _HOOK_STOPPED: "Look at the hooks in the settings of Claude Code, here and in the project.",
    RESUME_NOT_FOUND: "A conversation is known only in the directory it was begun in: start it"
    " there, or allow a new one with --or-fresh.",
}
# The prefix of messages that are meant for developers of the CLI.
_INTERNAL = "[ede_diagnostic]"


class ResultContext(Struct, frozen=True):
    """What was printed before the result: an error in place of an answer, and the end of a limit.

    Without `has_init`, the process never began a turn.
    """

    error: str | None = None
    has_init: bool = True
    # The reason of the last retry. After several retries, the result has no status.
    retry: str | None = None
    # A hook of the user ended the turn. Claude Code reports that as a success.
    is_stopped: bool = False
    resets_at: float | None = None


class TurnOutcome(Struct, frozen=True):
    status: EndStatus
    error: ErrorFact | None = None
    stop_reason: StopReason | None = None


def classify_result(result: ResultLine, context: ResultContext) -> TurnOutcome:
    """Decide how the turn of this result ended."""
    if is_aborted(result):
        return TurnOutcome("cancelled")
    is_stopped = context.is_stopped and not result.num_turns
    if not result.is_error and not is_stopped:
        return TurnOutcome("completed")
    code = _HOOK_STOPPED if is_stopped else _find_code(result, context)
    error = ErrorFact(
        code,
        _find_message(result) or f"Claude Code failed with {code}",
        _HINTS.get(code, ""),
        _is_retryable(code, result),
        to_datetime(context.resets_at) if code == _RATE_LIMITED else None,
    )
    status: EndStatus = "rate_limited" if code == _RATE_LIMITED else "failed"
    return TurnOutcome(status, error, _STOPPED.get(code))


def is_aborted(result: ResultLine) -> bool:
    """Whether the turn was interrupted. Its other fields are not reliable then."""
    return (result.terminal_reason or "").startswith("aborted")


def build_unreadable_error() -> ErrorFact:
    """Build the error of a turn whose result could not be decoded."""
    hint = "`steadyrun doctor` shows which versions of Claude Code were tested."
    return ErrorFact(_PROTOCOL, "the result of Claude Code could not be read", hint)


def build_duplicate_error() -> ErrorFact:
    """Build the error of a dropped prompt.

    Claude Code echoes and drops a message whose uuid is already in the conversation.
    """
    why = "Claude Code has had this prompt before, in this conversation, and takes none twice"
    return ErrorFact("already_told", why)


def build_mode_error(why: str) -> ErrorFact:
    hint = "A process keeps to what it was started for: start a new one in this mode."
    return ErrorFact("mode_refused", why, hint)


def end_from_exit(last: ProcessExit, *, has_init: bool, has_answered: bool) -> TurnEnded | None:
    """Return the end of a turn whose process exited without a result; None if nothing explains it.

    A program that did not answer the first line is not Claude Code, or not a supported version.
    """
    if last.reason is not None or (has_init and last.code != 1):
        return None
    for words, code, hint in _LAST_WORDS:
        if words in last.stderr:
            return _build_exit_end(last, ErrorFact(code, _find_line(last.stderr, words), hint))
    if has_answered or last.code is None:
        return None
    last_line = last.stderr.strip().splitlines()[-1:]
    why = f"the program ended with code {last.code} before it had answered"
    hint = "Check with `steadyrun doctor` that it is Claude Code, in a tested version."
    return _build_exit_end(last, ErrorFact("cli_incompatible", ": ".join([why, *last_line]), hint))


def _build_exit_end(last: ProcessExit, error: ErrorFact) -> TurnEnded:
    diagnostic = Diagnostic(last.code, last.stderr)
    return TurnEnded("failed", error=error, diagnostic=diagnostic, exit_code=last.code)


_LAST_WORDS = (
    (
        "cannot be used with root/sudo",
        "root_refused",
        "Use another user, or set IS_SANDBOX=1 in the provider's env if this is a sandbox.",
    ),
    ("is already in use", "session_in_use", "Another process has the same conversation."),
    ("No conversation found", RESUME_NOT_FOUND, _HINTS[RESUME_NOT_FOUND]),
    ("unknown option", "cli_incompatible", "Install a tested version of Claude Code."),
    ("requires --verbose", _PROTOCOL, ""),
    ("Error parsing streaming input line", _PROTOCOL, ""),
)


def _find_code(result: ResultLine, context: ResultContext) -> str:
    """Find the error code. The HTTP status comes first, because it is more precise: the error of
    an overloaded server is only `server_error`."""
    return (
        _BY_STATUS.get(result.api_error_status or 0)
        or _BY_ERROR.get(context.error or "")
        or _find_subtype_code(result, context)
        or _find_reason_code(result)
        or ("invalid_request" if result.api_error_status == 400 else None)
        or _find_retry_code(result, context)
        or context.error
        or ("server_error" if _is_server_error(result) else "provider_error")
    )


def to_error_code(error: str) -> str:
    """Translate an API error of the CLI to an error code of steadyrun, where there is one."""
    return _BY_ERROR.get(error, error)


def _find_subtype_code(result: ResultLine, context: ResultContext) -> str | None:
    if "rate_limit" in result.subtype.replace("-", "_"):
        return _RATE_LIMITED
    if result.subtype == "error_during_execution" and not (context.has_init or result.num_turns):
        return RESUME_NOT_FOUND
    return _BY_SUBTYPE.get(result.subtype)


def _find_reason_code(result: ResultLine) -> str | None:
    reason = result.terminal_reason
    return None if reason in _PLAIN_REASONS or not reason else _BY_REASON.get(reason, reason)


def _find_retry_code(result: ResultLine, context: ResultContext) -> str | None:
    is_vague = result.api_error_status is None and context.error in {"server_error", "unknown"}
    return "overloaded" if is_vague and context.retry == "overloaded" else None


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


def _find_line(stderr: str, words: str) -> str:
    return next(line.strip() for line in stderr.splitlines() if words in line)
