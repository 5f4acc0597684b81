"""However bytes are cut into chunks, the lines are the same, and say where they stood."""

from hypothesis import given
from hypothesis import strategies as st

from steadyrun.lib.framing import Frame, LineSplitter

# Mostly what matters: line breaks, and bytes that other people take for line breaks.
texts = st.lists(st.sampled_from([b"\n", b"\r", b"a", b"\x0c", b"\x85", b"{}"]) | st.binary()).map(
    b"".join
)
offsets = st.integers(0, 2**53)


@st.composite
def cut(draw: st.DrawFn) -> list[bytes]:
    """A text in chunks; some of them may be empty."""
    text = draw(texts)
    places = sorted(draw(st.lists(st.integers(0, len(text)), max_size=8)))
    return [text[a:b] for a, b in zip([0, *places], [*places, len(text)], strict=True)]


def lines_of(chunks: list[bytes], offset: int) -> tuple[list[Frame], Frame | None]:
    lines = LineSplitter(offset)
    return [line for chunk in chunks for line in lines.feed(chunk)], lines.read_rest()


@given(cut(), offsets)
def test_lines_do_not_depend_on_the_chunks(chunks: list[bytes], offset: int) -> None:
    text = b"".join(chunks)

    assert lines_of(chunks, offset) == lines_of([text], offset)


@given(cut(), offsets)
def test_lines_equal_the_lines_of_the_text(chunks: list[bytes], offset: int) -> None:
    *whole, last = b"".join(chunks).split(b"\n")

    found, rest = lines_of(chunks, offset)

    assert [line.raw for line in found] == [raw for raw in whole if raw]
    assert (rest.raw if rest else b"") == last


@given(cut(), offsets)
def test_line_is_at_its_stated_position(chunks: list[bytes], offset: int) -> None:
    text = b"".join(chunks)

    found, rest = lines_of(chunks, offset)

    for line in found:
        end = line.end - offset
        assert text[end - len(line.raw) - 1 : end] == line.raw + b"\n"
    assert rest is None or (rest.end - offset == len(text) and text.endswith(rest.raw))


@given(cut(), offsets, st.data())
def test_reading_can_continue_after_any_line(
    chunks: list[bytes], offset: int, data: st.DataObject
) -> None:
    text = b"".join(chunks)
    found, rest = lines_of(chunks, offset)
    read = data.draw(st.integers(0, len(found)))
    end = found[read - 1].end if read else offset

    assert lines_of([text[end - offset :]], end) == (found[read:], rest)
