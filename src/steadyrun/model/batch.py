"""Defines batches of events of a process, and selects what is not in the store yet."""

from operator import attrgetter

from msgspec import Struct, structs

from steadyrun.errors import ChangeRefused, OffsetMismatch
from steadyrun.model.event import LIVE_ONLY, Emitted, Kinds, parse_place
from steadyrun.model.ids import ProcessId, RunId
from steadyrun.model.process import Checkpoint, Marks
from steadyrun.model.run import RunChange
from steadyrun.model.session import ResumeToken


class Batch(Struct, frozen=True):
    """The events of a part of the journal of a process: written whole or rejected.

    `run` is the run of the events. `change` is applied to it after them (a `Launched` before them),
    `token` becomes the present token of the session, `checkpoint` is saved with `to_offset`.
    """

    process: ProcessId
    run: RunId | None
    from_offset: int
    to_offset: int
    events: tuple[Emitted, ...] = ()
    change: RunChange | None = None
    token: ResumeToken | None = None
    checkpoint: Checkpoint | None = None


class StoredRow(Struct, frozen=True):
    """Stored events of one run, without secrets; the first one has `cursor` and `seq`."""

    cursor: int
    seq: int
    run: RunId | None
    body: bytes


class AppendResult(Struct, frozen=True):
    """How many events were new, and the last positions (of this agent, and of all).

    `rows` are the new events, so that they can be published without another read.
    """

    count: int
    last_seq: int
    cursor: int
    rows: tuple[StoredRow, ...] = ()


def select_new(batch: Batch, kinds: Kinds, *, offset: int, marks: Marks) -> tuple[Batch, Marks]:
    """The part of a batch that is not stored yet, and the marks of the process after it.

    The stored part of the journal ends at `offset` with `marks`. `kinds` are the kinds of the
    events; the caller counts them once because engines need them, too.
    """
    is_repeat = batch.from_offset < batch.to_offset <= offset
    if not is_repeat and batch.from_offset != offset:
        raise OffsetMismatch(batch.process, stored=offset, given=batch.from_offset)
    if batch.to_offset < batch.from_offset:
        raise ChangeRefused("append", found="the batch ends before it begins")
    if not LIVE_ONLY.isdisjoint(kinds):
        raise ChangeRefused("append", found="deltas and raw output are never stored")
    # Nearly every batch is new and comes from the journal alone: it needs no selection.
    if not is_repeat and str not in map(type, map(_PLACE_OF, batch.events)):
        return batch, marks
    events, after = _select_new_events(batch, marks, is_repeat=is_repeat)
    if is_repeat:
        # It changed the run and the session before; later changes must not be overwritten.
        return Batch(batch.process, batch.run, offset, offset, events), after
    return structs.replace(batch, events=events), after


_PLACE_OF = attrgetter("place")


def _select_new_events(
    batch: Batch, stored: Marks, *, is_repeat: bool
) -> tuple[tuple[Emitted, ...], Marks]:
    known = {"s": stored.s, "x": stored.x, "r": stored.r}
    fresh: dict[tuple[int | str, int], Emitted] = {}
    marks = dict(known)
    for emitted in batch.events:
        ours = parse_place(emitted.place) if isinstance(emitted.place, str) else None
        if ours is None:
            is_new = not is_repeat
        else:
            source, number = ours
            is_new = number > known[source]
            marks[source] = max(marks[source], number)
        if is_new:
            # A repeated event in one batch counts once. Events of one frame share its number.
            fresh.setdefault((emitted.place, emitted.n), emitted)
    return tuple(fresh.values()), Marks(**marks)
