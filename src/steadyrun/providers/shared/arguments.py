"""Can what was given be passed on to a CLI at all? The same answer for every CLI."""

from collections.abc import Sequence
from typing import NoReturn

from steadyrun.dialect import Image
from steadyrun.errors import InvalidUsage
from steadyrun.model.media import (
    IMAGE_TYPES,
    LARGEST_IMAGE_BYTES,
    LARGEST_IMAGES_BYTES,
    MOST_IMAGES,
    detect_image_type,
)

# Linux gives a program no longer argument.
LONGEST_ARGUMENT_BYTES = 128 * 1024 - 1


def check_images(images: Sequence[Image]) -> None:
    """Refuse pictures that are too many, too large or of another kind."""
    total = sum(len(image.data) for image in images)
    if len(images) > MOST_IMAGES:
        raise InvalidUsage(f"expected at most {MOST_IMAGES} images, found {len(images)}")
    for number, image in enumerate(images, 1):
        _check_image(number, image)
    if total > LARGEST_IMAGES_BYTES:
        expected = f"expected at most {_format_mb(LARGEST_IMAGES_BYTES)} of images"
        raise InvalidUsage(
            f"{expected}, found {_format_mb(total)}", hint="Send fewer, or make them smaller."
        )


def check_argument(what: str, value: str) -> str:
    """The value, if it can be an argument."""
    if not is_argument(value):
        found = f"expected a name that does not begin with -, found {value[:80]!r}"
        raise InvalidUsage(f"{what}: {found}")
    return value


def is_argument(value: str) -> bool:
    """Whether it can be an argument; what begins with - would be taken for an option."""
    return bool(value.strip()) and not value.startswith("-") and "\0" not in value


def refuse_option(option: str, expected: str, found: object) -> NoReturn:
    """An option that cannot work: msgspec makes it a part of its own error."""
    raise ValueError(f"{option}: expected {expected}, found {found}")


def _check_image(number: int, image: Image) -> None:
    if image.media_type not in IMAGE_TYPES:
        found = f"image {number}: expected png, jpeg, webp or gif, found {image.media_type!r}"
        raise InvalidUsage(found, hint="Convert it first.")
    if detect_image_type(image.data) != image.media_type:
        expected = f"image {number}: expected {image.media_type}"
        raise InvalidUsage(f"{expected}, found something else", hint="Is it the right file?")
    if len(image.data) > LARGEST_IMAGE_BYTES:
        expected = f"image {number}: expected at most {_format_mb(LARGEST_IMAGE_BYTES)}"
        raise InvalidUsage(
            f"{expected}, found {_format_mb(len(image.data))}", hint="Make it smaller."
        )


def _format_mb(size: int) -> str:
    return f"{size / 1024 / 1024:.1f} MB"
