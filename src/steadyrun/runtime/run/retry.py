"""Decides whether a finished run is retried. Pure: None settles the item, a `RetryDecision` runs it
once more.

    how the run ended                               run again, at most      at its own cost
    ended by itself, a limit, a gate, a person      never                   -
    crash, stall, keeper lost, orphaned             3 times                 yes
      ... before the turn had been told             3 times more            no
    hang, journal full                              once each               no
    its conversation is missing or damaged          once, in a new one      no

An item is run again only where that can do nothing twice, or where its `on_lost` allows it: with
"fail", a turn that had been told is never told again. Only lasting agents ask; a run that somebody
watches is settled as it ended. Each try is a new run on a new process.
"""

from collections.abc import Mapping
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from steadyrun.dialect import RESUME_NOT_FOUND
from steadyrun.errors import KeeperFailed
from steadyrun.model.item import Item
from steadyrun.model.run import Metadata, Run, StopReason

Why = Literal[
    "crash", "stall", "keeper_lost", "orphaned", "machine_lost", "hang", "journal_full",
    "conversation",
]  # fmt: skip

# What the runtime calls a conversation that its provider has refused again and again.
CONVERSATION_CORRUPT = "conversation_corrupt"
# What providers call a request that they do not take.
_INVALID = "invalid_request"
MOST_TRIES = 3
WAIT_SECONDS = 0.5
# Where the metadata of a run says what came before it.
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
    KeeperFailed.code: "crash",
    RESUME_NOT_FOUND: "conversation",
    "resume_corrupt": "conversation",
    CONVERSATION_CORRUPT: "conversation",
}
_ONCE: frozenset[str] = frozenset({"hang", "journal_full", "conversation"})
_OF_THE_CLI: frozenset[Why] = frozenset({"crash", "stall"})


class RetryDecision(Struct, frozen=True):
    """Run the item once more, `after_seconds`.

    `is_fresh`: in a new conversation, the present token is retired first. `one_shot`: on a process
    for this turn alone, if the provider has such. `free` are the tries that have cost the item
    nothing, this one with them: `metadata_of` takes them to the next run, where they are counted.
    """

    spends: bool
    after_seconds: float
    is_fresh: bool
    one_shot: bool
    why: Why
    free: tuple[str, ...] = ()


def decide_retry(run: Run, item: Item, *, was_told: bool) -> RetryDecision | None:
    """`was_told`: the turn was, or may have been, written to the provider's process."""
    assert run.is_terminal
    why = _why(run)
    # A turn that the provider began by itself has no request that could be repeated.
    if why is None or item.cancel_requested or item.kind == "self":
        return None
    if why in _ONCE:
        return _once(why, run, item, was_told=was_told)
    return _tried(why, run, item) if was_told else _untold(why, run)


def is_refused(run: Run) -> bool:
    """Whether the provider has refused to hear it, and nothing was done."""
    is_invalid = run.error is not None and run.error.code == _INVALID
    return run.status == "failed" and is_invalid and not run.tools and run.resume_token is not None


def with_corruption(run: Run, before: Run | None) -> Run:
    """A request may be wrong; two in a row, of two items in one conversation, are not: then it is
    the conversation that the provider does not take any more."""
    if before is None or before.item == run.item or not (is_refused(run) and is_refused(before)):
        return run
    if before.resume_token != run.resume_token:
        return run
    assert run.error
    return replace(run, error=replace(run.error, code=CONVERSATION_CORRUPT))


def metadata_of(again: RetryDecision, attempt: int) -> Metadata:
    """What the next run has to be created with: `decide_retry` reads it when that run ends, in
    whichever process."""
    return {METADATA_KEY: {"attempt": attempt, "after": again.why, "free": list(again.free)}}


def carry_over(before: Run) -> Metadata:
    """What the next run of an item that was queued again takes over from the one `before`."""
    known = before.metadata.get(METADATA_KEY)
    return {} if known is None else {METADATA_KEY: known}


def begins_anew(run: Run) -> bool:
    """Whether the run was made to begin a new conversation."""
    match run.metadata.get(METADATA_KEY):
        case {"after": "conversation"}:
            return True
        case _:
            return False


def _why(run: Run) -> Why | None:
    if run.status != "failed":
        return None
    if run.stop_reason is not None:
        return _BY_REASON.get(run.stop_reason)
    return _BY_CODE.get(run.error.code) if run.error else None


def _once(why: Why, run: Run, item: Item, *, was_told: bool) -> RetryDecision | None:
    # Without its conversation a turn has done nothing, whatever was written.
    is_new = why == "conversation"
    is_forbidden = was_told and item.on_lost == "fail" and not is_new
    free = _free(run)
    if is_forbidden or why in free:
        return None
    return RetryDecision(False, 0.0, is_new, one_shot=False, why=why, free=(*free, why))


def _tried(why: Why, run: Run, item: Item) -> RetryDecision | None:
    number = item.tries + 1
    if item.on_lost == "fail" or number > MOST_TRIES:
        return None
    return _numbered(number, why, _free(run), spends=True)


def _untold(why: Why, run: Run) -> RetryDecision | None:
    free = _free(run)
    number = sum(each not in _ONCE for each in free) + 1
    return _numbered(number, why, (*free, why), spends=False) if number <= MOST_TRIES else None


def _numbered(number: int, why: Why, free: tuple[str, ...], *, spends: bool) -> RetryDecision:
    one_shot = number > 1 and why in _OF_THE_CLI
    return RetryDecision(
        spends, WAIT_SECONDS * number, is_fresh=False, one_shot=one_shot, why=why, free=free
    )


def _free(run: Run) -> tuple[str, ...]:
    """Anybody may write into the metadata of a run: what does not fit was not ours."""
    match run.metadata.get(METADATA_KEY):
        case {"free": list(free)}:
            return tuple(each for each in free if isinstance(each, str))
        case _:
            return ()
