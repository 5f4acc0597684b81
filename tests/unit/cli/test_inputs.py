"""The arguments of `run` are read and checked."""

from argparse import Namespace
from pathlib import Path
from typing import get_args

import pytest

from steadyrun.cli.command_table import MODES
from steadyrun.cli.inputs import LARGEST_IMAGE_BYTES, read_image, read_options, read_schema
from steadyrun.cli.main import build_parser
from steadyrun.errors import InvalidUsage
from steadyrun.model.policy import Mode

PNG = b"\x89PNG\r\n\x1a\n"


def parsed(*words: str) -> Namespace:
    return build_parser().parse_args(["run", "--provider", "p", *words])


def test_modes_of_the_command_line_equal_the_modes_of_the_policy() -> None:
    assert get_args(Mode) == MODES


def test_read_options_leaves_out_what_was_not_typed() -> None:
    assert read_options(parsed("x")) == {}


def test_read_options_converts_every_option_to_its_type() -> None:
    words = ("--tools", "Read, Bash,", "--max-turns", "3", "--max-cost", "0.5", "--timeout", "2m",
             "--mode", "plan", "--schema", '{"type": "object"}')  # fmt: skip

    assert read_options(parsed(*words)) == {
        "tools": ("Read", "Bash"), "max_turns": 3, "max_cost_usd": 0.5, "timeout_seconds": 120.0,
        "mode": "plan", "schema": {"type": "object"},
    }  # fmt: skip


@pytest.mark.parametrize(
    ("words", "text"),
    [(["hello"], "hello"), (["--", "--help"], "--help"), (["-"], "-"), ([], None),
     (["--cwd", "x", "--", "-n"], "-n"), (["-- fix it"], "-- fix it")],
)  # fmt: skip
def test_prompt_may_have_any_position_and_begin_with_a_dash_after_two_dashes(
    words: list[str], text: str | None
) -> None:
    assert parsed(*words).text == text


@pytest.mark.parametrize(
    ("start", "media_type"),
    [(PNG, "image/png"), (b"\xff\xd8\xff\xe0", "image/jpeg"), (b"GIF87a", "image/gif"),
     (b"GIF89a", "image/gif"), (b"RIFF\x10\x00\x00\x00WEBPVP8 ", "image/webp")],
)  # fmt: skip
def test_read_image_finds_the_type_from_the_content(
    tmp_path: Path, start: bytes, media_type: str
) -> None:
    path = tmp_path / "picture.txt"
    path.write_bytes(start)

    assert read_image(str(path)).media_type == media_type


@pytest.mark.parametrize("content", [b"", b"RIFF\x10\x00\x00\x00WAVE", b"<svg/>", b"GIF"])
def test_read_image_refuses_other_content(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "picture.png"
    path.write_bytes(content)

    with pytest.raises(InvalidUsage, match="png, jpeg, gif or webp"):
        read_image(str(path))


def test_read_image_accepts_the_size_limit_and_refuses_one_byte_more(tmp_path: Path) -> None:
    path = tmp_path / "picture.png"
    path.write_bytes(PNG.ljust(LARGEST_IMAGE_BYTES, b"\0"))
    assert len(read_image(str(path)).data) == LARGEST_IMAGE_BYTES

    path.write_bytes(PNG.ljust(LARGEST_IMAGE_BYTES + 1, b"\0"))
    with pytest.raises(InvalidUsage, match="20 MB"):
        read_image(str(path))


@pytest.mark.parametrize("given", ["{", "[1]", "{}x", "\udcff", "no\0file", '{"a":' * 100_000])
def test_read_schema_refuses_what_is_not_a_json_object(given: str) -> None:
    with pytest.raises(InvalidUsage, match="the schema"):
        read_schema(given)
