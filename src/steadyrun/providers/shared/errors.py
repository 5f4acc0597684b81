"""Builds the parts of errors that several CLIs have in common."""

from datetime import UTC, datetime

from msgspec.structs import replace

from steadyrun.dialect import ProcessExit, TurnEnded
from steadyrun.model.event import Diagnostic, ErrorFact
from steadyrun.model.run import EndStatus, StopReason

RATE_LIMITED = "rate_limited"
CLI_INCOMPATIBLE = "cli_incompatible"
COMMON_HINTS = {
    "billing": "Check the plan and the credit of the account.",
    "prompt_too_long": "Send a shorter prompt, or begin a new conversation.",
}


def to_datetime(epoch: float | None) -> datetime | None:
    """Convert seconds since 1970; None for a number that is not a valid time."""
    try:
        return None if epoch is None else datetime.fromtimestamp(epoch, UTC)
    except (ValueError, OverflowError, OSError):
        return None


def find_status(code: str) -> tuple[EndStatus, StopReason | None]:
    """Find the status and the stop reason of a turn that failed with this error code."""
    status: EndStatus = "rate_limited" if code == RATE_LIMITED else "failed"
    return status, "budget" if code == "max_cost" else None


def fail_turn(end: TurnEnded, error: ErrorFact) -> TurnEnded:
    """Change the end of a turn to that of a turn which failed with this error."""
    status, reason = find_status(error.code)
    return replace(end, status=status, error=error, stop_reason=reason)


def build_exit_end(last: ProcessExit, error: ErrorFact) -> TurnEnded:
    """Build the end of a turn whose process exited because of this error."""
    diagnostic = Diagnostic(last.code, last.stderr)
    return fail_turn(TurnEnded("failed", diagnostic=diagnostic, exit_code=last.code), error)


def build_incompatible_error(last: ProcessExit, hint: str) -> ErrorFact:
    """Build the error of a program that exited without output that the Dialect can read."""
    why = f"the program ended with code {last.code} before it answered"
    last_line = last.stderr.strip().splitlines()[-1:]
    return ErrorFact(CLI_INCOMPATIBLE, ": ".join([why, *last_line]), hint)


def find_line(stderr: str, words: str) -> str:
    """Find the line that contains these words."""
    return next((line.strip() for line in stderr.splitlines() if words in line), words)
