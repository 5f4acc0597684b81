"""What came of a stretch of a process's journal, and what of it is not in the record yet?"""

from operator import attrgetter

from msgspec import Struct, structs

from steadyrun.errors import ChangeRefused, OffsetMismatch
from steadyrun.model.event import LIVE_ONLY, Emitted, Kinds, parse_place
from steadyrun.model.ids import ProcessId, RunId
from steadyrun.model.process import Checkpoint, Marks
from steadyrun.model.run import RunChange
from steadyrun.model.session import ResumeToken


class Batch(Struct, frozen=True):
    """What one stretch of a process's journal came to: written whole or not at all.

    `run` is the run the events belong to. `change` is applied to it after them (a `Launched` before
    them), `token` becomes the session's present one, `checkpoint` is saved with `to_offset`.
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
    """Events of one run as they were written, without secrets; the first has `cursor` and `seq`."""

    cursor: int
    seq: int
    run: RunId | None
    body: bytes


class AppendResult(Struct, frozen=True):
    """How many events were new, and where the record ends now (for this agent, and for all).

    `rows` are the new ones: whoever publishes them need not read them again.
    """

    count: int
    last_seq: int
    cursor: int
    rows: tuple[StoredRow, ...] = ()


def select_new(batch: Batch, kinds: Kinds, *, offset: int, marks: Marks) -> tuple[Batch, Marks]:
    """What of a batch is not in the record yet, and the process's marks once it is.

    The record of its process ends at `offset` and has `marks`. `kinds` are those of its events:
    engines need them too, and counting them takes its time.
    """
    is_repeat = batch.from_offset < batch.to_offset <= offset
    if not is_repeat and batch.from_offset != offset:
        raise OffsetMismatch(batch.process, stored=offset, given=batch.from_offset)
    if batch.to_offset < batch.from_offset:
        raise ChangeRefused("append", found="the batch ends before it begins")
    if not LIVE_ONLY.isdisjoint(kinds):
        raise ChangeRefused("append", found="deltas and raw output are never stored")
    # Nearly always a batch is new and all of the journal: then there is nothing to sort out.
    if not is_repeat and str not in map(type, map(_PLACE_OF, batch.events)):
        return batch, marks
    events, after = _select_new_events(batch, marks, is_repeat=is_repeat)
    if is_repeat:
        # It changed the run and the session long ago; what came later must stand.
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
            # Said twice in one batch is once, too; what one frame caused has its number in common.
            fresh.setdefault((emitted.place, emitted.n), emitted)
    return tuple(fresh.values()), Marks(**marks)
