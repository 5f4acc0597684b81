"""Extracts images from the output of tools.

Each image is reported once. In the output, its name takes its place.
"""

import base64
import re
from typing import Any

from msgspec import Struct

from steadyrun.dialect import DialectOutput, ProducedImage
from steadyrun.model import event as ev

MOST_IMAGES = 10
LARGEST_IMAGE_CHARS = 25 * 1024 * 1024
_DATA_URL = re.compile(r"data:(image/[a-z0-9.+-]+);base64,")
_ENDINGS = {"image/jpeg": "jpg", "image/svg+xml": "svg"}


class ImageTurn(Struct, kw_only=True):
    """The base of a turn that may produce images: the names of its images, by their keys."""

    images: dict[str, str] = {}
    has_left_out_images: bool = False


class EncodedImage(Struct, frozen=True):
    """An image as it is printed, in base64."""

    media_type: str
    data: str

    @property
    def key(self) -> str:
        return f"{self.media_type} {len(self.data)} {self.data[:64]}"

    @property
    def content(self) -> bytes:
        """The decoded image; empty if it is not base64."""
        try:
            return base64.b64decode(f"{self.data}==")
        except ValueError:
            return b""


def extract_images(turn: ImageTurn | None, content: Any) -> tuple[Any, list[DialectOutput]]:
    """Replace the images in a tool's output by their names; also return the new images."""
    if not isinstance(content, list):
        return content, []
    output: list[DialectOutput] = []
    return [_name_image(turn, part, output) for part in content], output


def register_image(turn: ImageTurn, image: EncodedImage, output: list[DialectOutput]) -> str | None:
    """Return the name of an image, and add a new image to `output`.

    The name is None if there are too many images, or if the image is too large or invalid.
    """
    if name := turn.images.get(image.key):
        return name
    if len(turn.images) >= MOST_IMAGES or len(image.data) > LARGEST_IMAGE_CHARS:
        if not turn.has_left_out_images:
            turn.has_left_out_images = True
            output.append(
                ev.Note("some images were left out: there are too many, or they are too large")
            )
        return None
    content = image.content
    if not content:
        return None
    kind = image.media_type
    ending = _ENDINGS.get(kind, kind.removeprefix("image/"))
    name = f"image-{len(turn.images) + 1}.{ending}"
    turn.images[image.key] = name
    output.append(ProducedImage(name, kind, content))
    return name


def _name_image(turn: ImageTurn | None, part: Any, output: list[DialectOutput]) -> Any:
    image = _parse_image(part)
    if image is None:
        return part
    name = register_image(turn, image, output) if turn else None
    return {"type": "image", "media_type": image.media_type, "name": name}


def _parse_image(part: Any) -> EncodedImage | None:
    """Recognize an image by the shape of its block: of Anthropic, of MCP, or of OpenAI."""
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
