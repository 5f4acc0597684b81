"""Which pictures has a tool produced? Each is told once, and named in the place where it stood."""

import base64
import re
from typing import Any, Protocol

from msgspec import Struct

from steadyrun.dialect import DialectOutput, ProducedImage
from steadyrun.model import event as ev

MOST_IMAGES = 10
LARGEST_IMAGE_CHARS = 25 * 1024 * 1024
_DATA_URL = re.compile(r"data:(image/[a-z0-9.+-]+);base64,")
_ENDINGS = {"image/jpeg": "jpg", "image/svg+xml": "svg"}


class ImageTurn(Protocol):
    """A turn that pictures are produced in: their names by what tells them apart."""

    images: dict[str, str]
    has_left_out_images: bool


class EncodedImage(Struct, frozen=True):
    """A picture as it is printed, in base64."""

    media_type: str
    data: str

    @property
    def key(self) -> str:
        return f"{self.media_type} {len(self.data)} {self.data[:64]}"

    @property
    def content(self) -> bytes:
        """The image itself; nothing, if it is none."""
        try:
            return base64.b64decode(f"{self.data}==")
        except ValueError:
            return b""


def extract_images(turn: ImageTurn | None, content: Any) -> tuple[Any, list[DialectOutput]]:
    """A tool's output with the names of pictures in their place, and the new ones among them."""
    if not isinstance(content, list):
        return content, []
    said: list[DialectOutput] = []
    return [_name_image(turn, part, said) for part in content], said


def register_image(turn: ImageTurn, drawn: EncodedImage, said: list[DialectOutput]) -> str | None:
    """The name of a picture; a new one is told. None if there are too many, it is too large, or it
    is none."""
    if name := turn.images.get(drawn.key):
        return name
    if len(turn.images) >= MOST_IMAGES or len(drawn.data) > LARGEST_IMAGE_CHARS:
        if not turn.has_left_out_images:
            turn.has_left_out_images = True
            said.append(ev.Note("there are more images, or larger ones, than are told of"))
        return None
    content = drawn.content
    if not content:
        return None
    kind = drawn.media_type
    ending = _ENDINGS.get(kind, kind.removeprefix("image/"))
    name = f"image-{len(turn.images) + 1}.{ending}"
    turn.images[drawn.key] = name
    said.append(ProducedImage(name, kind, content))
    return name


def _name_image(turn: ImageTurn | None, part: Any, said: list[DialectOutput]) -> Any:
    drawn = _parse_image(part)
    if drawn is None:
        return part
    name = register_image(turn, drawn, said) if turn else None
    return {"type": "image", "media_type": drawn.media_type, "name": name}


def _parse_image(part: Any) -> EncodedImage | None:
    """A picture is known by the shape of its block, whichever tool it comes from: the first is
    Anthropic's, the second is that of MCP, the third is OpenAI's."""
    match part:
        case {
            "type": "image",
            "source": {"type": "base64", "media_type": str(kind), "data": str(data)},
        } if kind.startswith("image/"):
            return EncodedImage(kind, data)
        case {"type": "image", "data": str(data), "mimeType": str(kind)} if kind.startswith(
            "image/"
        ):
            return EncodedImage(kind, data)
        case {"type": "inputImage", "imageUrl": str(url)}:
            found = _DATA_URL.match(url)
            return EncodedImage(found[1], url[found.end() :]) if found else None
        case _:
            return None
