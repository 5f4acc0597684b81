"""Bytes are split into lines, with the offset of the end of each line."""

import sys
from collections import Counter
from types import FrameType
from typing import Any

from steadyrun.lib.framing import Frame, LineSplitter


def test_line_ends_after_its_line_break() -> None:
    assert LineSplitter().feed(b"one\ntwo\n") == [Frame(b"one", 4), Frame(b"two", 8)]


def test_offsets_are_positions_in_the_file() -> None:
    assert LineSplitter(offset=100).feed(b"one\n") == [Frame(b"one", 104)]


def test_line_is_returned_when_its_line_break_arrives() -> None:
    lines = LineSplitter()

    assert lines.feed(b"on") == []
    assert lines.feed(b"e") == []
    assert lines.feed(b"\ntw") == [Frame(b"one", 4)]
    assert lines.feed(b"o\n") == [Frame(b"two", 8)]


def test_empty_lines_are_skipped_and_counted() -> None:
    lines = LineSplitter()

    assert lines.feed(b"\n\n") == []
    assert lines.feed(b"\none\n\n") == [Frame(b"one", 7)]
    assert lines.feed(b"two") == []
    assert lines.feed(b"\n") == [Frame(b"two", 12)]


def test_only_the_line_break_is_removed() -> None:
    assert LineSplitter().feed(b" a\r\n\r\n\x0b\x0c\x85\n") == [
        Frame(b" a\r", 4),
        Frame(b"\r", 6),
        Frame(b"\x0b\x0c\x85", 10),
    ]


def test_empty_chunk_changes_nothing() -> None:
    lines = LineSplitter()
    lines.feed(b"on")

    assert lines.feed(b"") == []
    assert lines.feed(b"e\n") == [Frame(b"one", 4)]


def test_rest_is_the_text_without_a_line_break() -> None:
    lines = LineSplitter(offset=10)

    assert lines.read_rest() is None
    lines.feed(b"one\ntw")
    lines.feed(b"o")
    assert lines.read_rest() == Frame(b"two", 17)
    assert lines.read_rest() == Frame(b"two", 17)
    assert lines.feed(b"!\n") == [Frame(b"two!", 19)]
    assert lines.read_rest() is None


def test_long_line_is_joined_once() -> None:
    lines, chunks = LineSplitter(), [b"x" * 1024] * 1024
    calls = Counter[str]()

    def count(frame: FrameType, what: str, called: Any) -> None:
        calls[called.__name__ if what == "c_call" else what] += 1

    sys.setprofile(count)
    try:
        found = [line for chunk in [*chunks, b"\n"] for line in lines.feed(chunk)]
    finally:
        sys.setprofile(None)

    assert found == [Frame(b"".join(chunks), 1024 * 1024 + 1)]
    # No chunk is searched twice, and no part is copied before the line is whole.
    assert (calls["join"], calls["readlines"]) == (1, 1025)
