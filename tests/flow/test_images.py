"""An image of an agent is stored in a file, or the record has the reason why not."""

import base64
import sys
from pathlib import Path

import anyio
import msgspec
import pytest

import steadyrun
from steadyrun.config import load
from steadyrun.model.event import ImageProduced, Note, StoredEvent, TextFinal
from tests.children import fake_claude

PATIENCE_SECONDS = 30.0
PNG = b"\x89PNG and so on"


@pytest.mark.parametrize("is_kept", [True, False], ids=["kept", "not kept"])
def test_image_is_stored_in_a_file_or_a_note_has_the_reason(tmp_path: Path, is_kept: bool) -> None:
    home = tmp_path / "home"
    home.mkdir()
    command = msgspec.json.encode([sys.executable, "-I", "-S", fake_claude.__file__]).decode()
    (home / "config.toml").write_text(f"[providers.claude]\ncommand = {command}\n")
    data = base64.b64encode(PNG).decode()
    source = {"type": "base64", "media_type": "image/png", "data": data}
    tool = {"name": "Read", "output": [{"type": "image", "source": source}]}
    steps = [{"text": "one"}, {"until": "go"}, {"tool": tool}]
    prompt = "play:" + msgspec.json.encode(steps).decode()
    environ = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path)}

    async def main() -> list[StoredEvent]:
        with anyio.fail_after(PATIENCE_SECONDS):
            config = load(home=home, cwd=tmp_path, environ=environ)
            async with steadyrun.open(config) as library:
                run = await library.start(prompt, provider="claude", cwd=tmp_path)
                async for seen in run.events():
                    if isinstance(seen.event, TextFinal):
                        break
                [process] = (home / "processes").iterdir()
                if not is_kept:
                    (process / "images").touch()
                (tmp_path / "go").touch()
                await run.result()
                return [seen async for seen in run.events() if isinstance(seen, StoredEvent)]

    events = [seen.event for seen in anyio.run(main)]

    [image] = [event for event in events if isinstance(event, ImageProduced)]
    notes = [event.text for event in events if isinstance(event, Note)]
    assert (image.media_type, image.size_bytes) == ("image/png", len(PNG))
    if is_kept:
        assert image.file is not None
        assert (home / image.file).read_bytes() == PNG
        assert notes == []
    else:
        assert image.file is None
        assert ["could not be kept" in note for note in notes] == [True]
