"""A cursor separates what the record has from what is new after a takeover."""

from datetime import UTC, datetime

from steadyrun.drivers.journal.process_output import JournalCursor
from steadyrun.lib.framing import Frame
from steadyrun.model.ids import AgentId, ProcessId
from steadyrun.model.process import Marks, Process, SavedState

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def make_process(*, offset: int = 0, saved: SavedState | None = None, s: int = 0) -> Process:
    return Process(
        ProcessId("prc_1"), AgentId("agt_1"), "scripted", "here", "processes/prc_1", NOW,
        offset=offset, saved=saved, marks=Marks(s=s),
    )  # fmt: skip


def sent(number: int, key: str, at: int) -> Frame:
    return Frame(b"line", at, key, number)


def test_new_process_starts_at_the_beginning() -> None:
    cursor = JournalCursor(make_process(), [])
    assert (cursor.offset, cursor.stored, cursor.passed, cursor.sent) == (0, 0, 0, 0)
    assert cursor.next_replay(before=100) is None
    assert not cursor.has_begun_a_turn


def test_takeover_starts_at_the_saved_state_and_replays_later_frames() -> None:
    saved = SavedState(state=b"state", sent=1, offset=50)
    frames = [sent(1, "begin:run_1", 0), sent(2, "begin:run_2", 60), sent(3, "steer:a", 90)]
    cursor = JournalCursor(make_process(offset=80, saved=saved, s=2), frames)

    assert (cursor.offset, cursor.stored, cursor.sent) == (50, 80, 1)
    assert cursor.has_begun("run_1")
    assert cursor.has_begun("run_2")
    assert not cursor.has_begun("run_3")
    assert cursor.next_replay(before=60) is None
    assert cursor.next_replay(before=61) == frames[1]
    assert cursor.next_replay(before=61) is None
    assert cursor.next_replay(before=91) == frames[2]


def test_only_frames_after_the_recorded_number_are_new() -> None:
    cursor = JournalCursor(make_process(s=2), [])
    assert not cursor.note_sent(sent(2, "b", 10))
    assert cursor.note_sent(sent(3, "c", 20))
    assert cursor.sent == 3
    assert cursor.has_sent("c")
