"""Output is divided into frames of bounded size, in places that do not depend on the chunks."""

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from steadyrun.drivers.journal import output_lines
from steadyrun.drivers.journal.json_cutter import JsonCutter
from steadyrun.drivers.journal.output_lines import OutputLines
from steadyrun.lib.framing import CutFrame, Frame, PartFrame

# With this limit a line above 64 bytes is too long.
LINE_BYTES = 256
LONGEST = 64


@st.composite
def _cut_into_chunks(draw: st.DrawFn, data: st.SearchStrategy[bytes]) -> tuple[bytes, list[bytes]]:
    whole = draw(data)
    cuts = sorted(draw(st.sets(st.integers(0, len(whole)), max_size=12)) | {0, len(whole)})
    return whole, [whole[start:end] for start, end in pairwise(cuts)]


_OUTPUT = st.lists(
    st.sampled_from([b"\n", b"a", b"{}", b"x" * 40, b"y" * 100, "ä€🐤".encode(), b"\xff\xfe"]),
    max_size=30,
).map(b"".join)

_TEXTS = st.text(max_size=90) | st.sampled_from(['\\"', "\n\t", "🐤" * 40, "ä" * 70, "\\" * 60])
_DOCUMENTS: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | _TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=8,
)


def _split(chunks: list[bytes], *, has_parts: bool) -> tuple[list[Frame], OutputLines]:
    lines = OutputLines(0, LINE_BYTES, has_parts=has_parts)
    frames = [frame for chunk in chunks for frame in lines.feed(chunk)]
    return frames, lines


@given(_cut_into_chunks(_OUTPUT), st.booleans())
def test_frames_do_not_depend_on_the_chunks(
    output: tuple[bytes, list[bytes]], has_parts: bool
) -> None:
    whole, chunks = output

    at_once, lines_at_once = _split([whole], has_parts=has_parts)
    in_chunks, lines_in_chunks = _split(chunks, has_parts=has_parts)

    assert in_chunks == at_once
    assert lines_in_chunks.read_rest() == lines_at_once.read_rest()


@given(_cut_into_chunks(_OUTPUT))
def test_parts_make_the_whole_output_and_none_is_too_long(
    output: tuple[bytes, list[bytes]],
) -> None:
    whole, chunks = output

    frames, lines = _split(chunks, has_parts=True)
    rest = lines.read_rest()

    printed, end = b"", 0
    for frame in [*frames, *([rest] if rest else [])]:
        assert len(frame.raw) <= LONGEST
        line_break = b"" if isinstance(frame, PartFrame) or frame is rest else b"\n"
        # The gap between two frames is empty lines.
        printed += b"\n" * (frame.end - end - len(frame.raw) - len(line_break))
        printed += frame.raw + line_break
        end = frame.end
    assert whole.startswith(printed)
    assert whole[len(printed) :].strip(b"\n") == b""


@given(_cut_into_chunks(_OUTPUT))
def test_long_line_is_cut_and_its_place_is_known(output: tuple[bytes, list[bytes]]) -> None:
    whole, chunks = output

    frames, lines = _split(chunks, has_parts=False)
    rest = lines.read_rest()

    for frame in [*frames, *([rest] if rest else [])]:
        if isinstance(frame, CutFrame):
            line = whole[frame.start : frame.start + frame.length]
            assert len(line) > LONGEST
            assert b"\n" not in line
            assert frame.is_document or line.startswith(frame.raw)
            assert frame.end == frame.start + frame.length + (frame is not rest)
        else:
            assert len(frame.raw) <= LONGEST


@given(_cut_into_chunks(_DOCUMENTS.map(lambda value: json.dumps(value).encode())), st.booleans())
def test_cut_document_is_valid_and_keeps_short_texts(
    document: tuple[bytes, list[bytes]], is_ascii: bool
) -> None:
    whole, chunks = document
    if not is_ascii:
        whole = json.dumps(json.loads(whole), ensure_ascii=False).encode(errors="replace")
        chunks = [whole[at : at + 7] for at in range(0, len(whole), 7)]
    cutter = JsonCutter(text_bytes=50, most_bytes=100_000)
    for chunk in chunks:
        cutter.feed(chunk)

    assert cutter.result is not None
    _compare(json.loads(whole), json.loads(cutter.result))


def _compare(whole: Any, cut: Any) -> None:
    match whole, cut:
        case (str(), str()) if whole != cut:
            kept, _, remark = cut.rpartition(" [")
            assert whole.startswith(kept)
            assert remark.endswith(" bytes cut by steadyrun]")
            assert len(json.dumps(whole)) > 30
        case (dict(), dict()):
            # Two long keys may become the same.
            for value, other in zip(whole.values(), cut.values(), strict=len(whole) == len(cut)):
                _compare(value, other)
        case (list(), list()):
            for value, other in zip(whole, cut, strict=True):
                _compare(value, other)
        case _:
            assert whole == cut


def test_document_of_many_short_texts_has_no_result() -> None:
    cutter = JsonCutter(text_bytes=50, most_bytes=1000)

    cutter.feed(json.dumps(["short"] * 1000).encode())

    assert cutter.result is None


def test_text_states_how_many_bytes_are_missing() -> None:
    cutter = JsonCutter(text_bytes=50, most_bytes=1000)

    cutter.feed(b'{"text":"' + b"x" * 200 + b'","n":1}')

    assert json.loads(cutter.result or b"") == {
        "text": "x" * 50 + " [150 bytes cut by steadyrun]",
        "n": 1,
    }


@pytest.mark.parametrize("limit", [1024 * 1024, 64 * 1024 * 1024])
def test_default_part_is_a_megabyte_and_never_above_a_quarter_of_the_limit(limit: int) -> None:
    lines = OutputLines(0, limit, has_parts=True)

    frames = lines.feed(b"x" * (3 * 1024 * 1024))

    longest = min(limit // 4, output_lines.PART_BYTES)
    assert {len(frame.raw) for frame in frames} == {longest}
