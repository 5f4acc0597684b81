"""Decides whether a finished run is retried. Pure: None settles the item, a `RetryDecision` runs it
once more.

    how the run ended                               run again, at most      at its own cost
    ended by itself, a limit, a gate, a person      never                   -
    its provider could not be started               never: the item waits   -
    crash, stall, keeper lost, orphaned             3 times                 yes
      ... before the turn was sent                  3 times more            no
    hang, journal full, out of memory               once each               no
    its conversation is missing or damaged          once, in a new one      no

An item is run again only where that can do nothing twice, or where its `on_lost` allows it: with
"fail", a turn that was sent is never sent again. Only the items of lasting agents are retried; a
direct run is settled as it ended. Each retry is a new run in a new process.
"""

from collections.abc import Mapping
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from steadyrun.dialect import OUT_OF_MEMORY, RESUME_NOT_FOUND
from steadyrun.errors import JournalPoisoned
from steadyrun.model.event import ErrorFact
from steadyrun.model.item import Item
from steadyrun.model.run import Finished, Metadata, Run, StopReason

Why = Literal[
    "crash", "stall", "keeper_lost", "orphaned", "machine_lost", "hang", "journal_full",
    "memory", "conversation",
]  # fmt: skip

# The error code of a conversation that its provider has refused twice in a row.
CONVERSATION_CORRUPT = "conversation_corrupt"
# The error code of a request that a provider refuses.
_INVALID = "invalid_request"
MOST_TRIES = 3
WAIT_SECONDS = 0.5
# The metadata key of what came before a run.
METADATA_KEY = "again"

_BY_REASON: Mapping[StopReason, Why] = {
    "stall": "stall",
    "hang": "hang",
    "orphaned": "orphaned",
    "keeper_lost": "keeper_lost",
    "machine_lost": "machine_lost",
    "journal_full": "journal_full",
}
_BY_CODE: Mapping[str, Why] = {
    "exited": "crash",
    "start_failed": "crash",
    OUT_OF_MEMORY: "memory",
    RESUME_NOT_FOUND: "conversation",
    "resume_corrupt": "conversation",
    CONVERSATION_CORRUPT: "conversation",
}
_ONCE: frozenset[str] = frozenset({"hang", "journal_full", "memory", "conversation"})
_OF_THE_CLI: frozenset[Why] = frozenset({"crash", "stall"})


class RetryDecision(Struct, frozen=True):
    """Run the item once more, `after_seconds`.

    `is_fresh`: in a new conversation; the present token is retired first. `one_shot`: in a process
    for this turn alone, if the provider has such processes. `free` are the retries that have cost
    the item nothing, including this one: `build_metadata` passes them on to the next run.
    """

    spends: bool
    after_seconds: float
    is_fresh: bool
    one_shot: bool
    why: Why
    free: tuple[str, ...] = ()


def decide_retry(run: Run, item: Item, *, was_sent: bool) -> RetryDecision | None:
    """`was_sent`: the turn was, or may have been, sent to the process of the provider."""
    assert run.is_terminal
    why = _find_cause(run)
    # A turn that the provider began by itself has no request that could be repeated.
    if why is None or item.cancel_requested or item.kind == "self":
        return None
    if why in _ONCE:
        return _retry_once(why, run, item, was_sent=was_sent)
    return _retry_sent(why, run, item) if was_sent else _retry_unsent(why, run)


def is_refused(run: Run) -> bool:
    """Whether the provider has refused the request, and nothing was done."""
    is_invalid = run.error is not None and run.error.code == _INVALID
    return run.status == "failed" and is_invalid and not run.tools and run.resume_token is not None


def with_corruption(run: Run, before: Run | None) -> Run:
    """The run, marked as failed by a corrupt conversation if the previous run shows that.

    One refused request may be wrong; if two in a row are refused, of two items in one conversation,
    then the conversation is corrupt.
    """
    if before is None or before.item == run.item or not (is_refused(run) and is_refused(before)):
        return run
    if before.resume_token != run.resume_token:
        return run
    assert run.error
    return replace(run, error=replace(run.error, code=CONVERSATION_CORRUPT))


def with_poison(ended: Finished, before: Run) -> Finished:
    """The end of a run; it is poisoned if the kernel has killed the CLI of its item a second time
    for lack of memory. `before` is the run before its end."""
    if (
        ended.error is None
        or ended.error.code != OUT_OF_MEMORY
        or "memory" not in _read_free(before)
    ):
        return ended
    hint = "The process is set aside, its files are kept. Retry the item: steadyrun retry"
    why = "the kernel killed the process of this item twice: the machine had no memory left"
    return replace(ended, error=ErrorFact(JournalPoisoned.code, why, hint, retryable=True))


def build_metadata(retry: RetryDecision, attempt: int) -> Metadata:
    """The metadata of the next run: `decide_retry` reads it when that run ends."""
    return {METADATA_KEY: {"attempt": attempt, "after": retry.why, "free": list(retry.free)}}


def carry_over(before: Run) -> Metadata:
    """The metadata that the next run of a requeued item takes over from the run `before`."""
    known = before.metadata.get(METADATA_KEY)
    return {} if known is None else {METADATA_KEY: known}


def is_new_conversation(run: Run) -> bool:
    """Whether the run was created to start a new conversation."""
    match run.metadata.get(METADATA_KEY):
        case {"after": "conversation"}:
            return True
        case _:
            return False


def _find_cause(run: Run) -> Why | None:
    if run.status != "failed":
        return None
    if run.stop_reason is not None:
        return _BY_REASON.get(run.stop_reason)
    return _BY_CODE.get(run.error.code) if run.error else None


def _retry_once(why: Why, run: Run, item: Item, *, was_sent: bool) -> RetryDecision | None:
    # Without its conversation a turn has done nothing, even if it was sent.
    is_new = why == "conversation"
    is_forbidden = was_sent and item.on_lost == "fail" and not is_new
    free = _read_free(run)
    if is_forbidden or why in free:
        return None
    return RetryDecision(False, 0.0, is_new, one_shot=False, why=why, free=(*free, why))


def _retry_sent(why: Why, run: Run, item: Item) -> RetryDecision | None:
    number = item.tries + 1
    if item.on_lost == "fail" or number > MOST_TRIES:
        return None
    return _build_decision(number, why, _read_free(run), spends=True)


def _retry_unsent(why: Why, run: Run) -> RetryDecision | None:
    free = _read_free(run)
    number = sum(each not in _ONCE for each in free) + 1
    return (
        _build_decision(number, why, (*free, why), spends=False) if number <= MOST_TRIES else None
    )


def _build_decision(number: int, why: Why, free: tuple[str, ...], *, spends: bool) -> RetryDecision:
    one_shot = number > 1 and why in _OF_THE_CLI
    return RetryDecision(
        spends, WAIT_SECONDS * number, is_fresh=False, one_shot=one_shot, why=why, free=free
    )


def _read_free(run: Run) -> tuple[str, ...]:
    """The retries without cost before this run. A caller may write anything into the metadata of a
    run: values of another form are ignored."""
    match run.metadata.get(METADATA_KEY):
        case {"free": list(free)}:
            return tuple(each for each in free if isinstance(each, str))
        case _:
            return ()
