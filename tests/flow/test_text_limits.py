"""A text that is too long to send is refused before anything is written."""

from pathlib import Path

import anyio
import pytest

import steadyrun
from steadyrun.config import load
from steadyrun.errors import InvalidUsage
from steadyrun.stores.sqlite import SqliteStore


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("half a \ud800 character", "incomplete character at 7"),
        ("x" * (61 << 20), "at most 62914560 bytes, found"),
        # Each of these is six bytes as JSON.
        ("\0" * (11 << 20), "at most 62914560 bytes, found"),
    ],
    ids=["half a character", "too long", "too long as JSON"],
)
def test_text_that_cannot_be_sent_is_refused(tmp_path: Path, text: str, found: str) -> None:
    async def main() -> int:
        config = load(home=tmp_path / "home", cwd=tmp_path, environ={"PATH": "/usr/bin:/bin"})
        async with steadyrun.open(config) as library:
            with pytest.raises(InvalidUsage, match=found):
                await library.start(text, provider="scripted", cwd=tmp_path)
        store = await SqliteStore.open(tmp_path / "home")
        try:
            return len(await store.runs())
        finally:
            await store.close()

    assert anyio.run(main) == 0
