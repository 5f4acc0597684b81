"""An archive has no secrets, and its offsets fit its journal."""

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from steadyrun.app import archive
from steadyrun.app.archive import copy_scrubbed
from steadyrun.model.secret import Scrubber, Secret

SECRET = "hunter2-hunter2"
LINES = st.lists(st.sampled_from([b"a\n", b"\n", f"x{SECRET}y\n".encode(), b"long " * 9 + b"\n"]))


@given(LINES, st.data())
def test_copy_scrubbed_moves_a_cut_with_the_lines_before_it(
    lines: list[bytes], data: st.DataObject
) -> None:
    count = data.draw(st.integers(0, len(lines)))
    before = b"".join(lines[:count])
    scrubber, target = Scrubber([Secret(SECRET)]), io.BytesIO()

    moved = copy_scrubbed(scrubber, io.BytesIO(b"".join(lines)), target, [len(before)])

    assert target.getvalue() == scrubber.clean(b"".join(lines))
    assert moved == {len(before): len(scrubber.clean(before))}


def test_copy_scrubbed_finds_a_secret_at_the_border_of_two_chunks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    text = f"a {SECRET} b\n".encode() * 10
    for size in range(1, 40):
        monkeypatch.setattr(archive, "CHUNK_BYTES", size)
        target = io.BytesIO()

        copy_scrubbed(Scrubber([Secret(SECRET)]), io.BytesIO(text), target)

        assert target.getvalue() == b"a [redacted] b\n" * 10


def test_copy_scrubbed_removes_a_private_key_of_many_lines() -> None:
    key = b"-----BEGIN PRIVATE KEY-----\nQUJD\nREVG\n-----END PRIVATE KEY-----\n"
    target = io.BytesIO()

    copy_scrubbed(Scrubber(), io.BytesIO(b"before\n" + key + b"after\n"), target)

    assert target.getvalue() == b"before\n[redacted]\nafter\n"
