"""Tests the promises of the configuration for any file."""

import tempfile
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from steadyrun.config import Config, list_kinds, load
from steadyrun.errors import ConfigInvalid

FRAGMENTS = st.sampled_from(
    ["store", "[daemon]", "listen", "=", "'a:1'", "\n", "[", "]", "{", "}", '"""', "#", ".", ",",
     "[[agents]]", "[agents.a]", "home", "providers", "claude", "env", "${A", "$$", "1",
     "1979-05-27", "nan", "\\", "\x00", "\ufeff", "\r"]
)  # fmt: skip
ANY_CONTENT = st.one_of(
    st.binary(max_size=300),
    st.text(max_size=300).map(lambda text: text.encode(errors="surrogatepass")),
    st.lists(FRAGMENTS, max_size=40).map(lambda parts: " ".join(parts).encode()),
)

INTRUDER = "zzz"
TRAPS = ["zzz = 1", "[providers.zzz]", "# zzz", "]", "}", "text"]
VALUES = st.one_of(
    st.integers().map(str),
    st.sampled_from(["'zzz = 1'", '"]"', "{ zzz = 1 }", "[[], [{ zzz = ']' }]]", "1979-05-27"]),
    st.lists(st.sampled_from(TRAPS)).map(lambda lines: "'''\n" + "\n".join(lines) + "'''"),
    st.lists(st.sampled_from(TRAPS)).map(
        lambda lines: "[\n" + "".join(f"  '{line}', # ]\n" for line in lines) + "]"
    ),
)
GAPS = st.lists(st.sampled_from(["", "# zzz = 1", "  ", "# [zzz]"]), max_size=3)


@dataclass(frozen=True)
class Page:
    """A file that is right but for one key, and the line of that key."""

    text: str
    line: int


@st.composite
def pages(draw: st.DrawFn) -> Page:
    names = draw(st.lists(st.sampled_from(list_kinds()), min_size=1, unique=True))
    sections = [draw(_sections(name)) for name in names]
    spoiled = draw(st.integers(0, len(sections) - 1))
    place = draw(st.integers(1, len(sections[spoiled])))
    sections[spoiled].insert(place, f"{draw(_spellings())} = {draw(VALUES)}")
    before = [*chain(*sections[:spoiled]), *sections[spoiled][:place]]
    return Page("\n".join(chain(*sections)), "\n".join([*before, ""]).count("\n") + 1)


@st.composite
def _sections(draw: st.DrawFn, name: str) -> list[str]:
    """A header, then whole statements; each may take several lines."""
    values = draw(st.lists(VALUES, max_size=4))
    lines = [f"[ providers . {name} ]"]
    for number, value in enumerate(values):
        lines += [*draw(GAPS), f"options.k{number} = {value}"]
    return [*lines, *draw(GAPS)]


def _spellings() -> st.SearchStrategy[str]:
    return st.sampled_from(
        [INTRUDER, f'"{INTRUDER}"', f"'{INTRUDER}'", "\tzzz.deep", '"\\u007azz"']
    )


def load_bytes(content: bytes, **environ: str) -> Config:
    with tempfile.TemporaryDirectory() as home:
        (Path(home) / ".git").touch()
        (Path(home) / "config.toml").write_bytes(content)
        return load(Path(home), Path(home), environ)


def refusal_of(content: bytes) -> ConfigInvalid | None:
    try:
        load_bytes(content)
    except ConfigInvalid as error:
        return error
    return None


@settings(deadline=None)
@given(ANY_CONTENT)
def test_any_bytes_are_loaded_or_refused_with_the_file(content: bytes) -> None:
    error = refusal_of(content)

    if error is not None:
        assert error.file is not None
        assert error.line is None or 1 <= error.line <= content.count(b"\n") + 1


@settings(deadline=None)
@given(pages(), st.sampled_from(["\n", "\r\n"]))
def test_line_of_an_unknown_key_is_exact(page: Page, newline: str) -> None:
    with pytest.raises(ConfigInvalid) as caught:
        load_bytes(page.text.replace("\n", newline).encode())

    assert f".{INTRUDER}" in caught.value.problem
    assert caught.value.line == page.line


@settings(deadline=None)
@given(st.text(st.characters(codec="utf-8", exclude_characters="\0")), st.text())
def test_doubled_dollars_preserve_any_text(literal: str, variable: str) -> None:
    quoted = "".join(f"\\U{ord(char):08x}" for char in literal.replace("$", "$$"))

    config = load_bytes(f'[providers.codex.env]\nA = "{quoted}${{X}}"\n'.encode(), X=variable)

    assert config.expand_env("codex")["A"].reveal() == literal + variable
