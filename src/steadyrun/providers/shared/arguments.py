"""Checks values that are passed to a CLI: images, arguments and options."""

from collections.abc import Iterable, Sequence
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
from steadyrun.model.quotation import quote

# The longest argument that Linux passes to a program.
LONGEST_ARGUMENT_BYTES = 128 * 1024 - 1


def check_images(images: Sequence[Image]) -> None:
    """Refuse images that are too many, too large or of an unsupported type."""
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
    """Return the value if it can be an argument, else raise `InvalidUsage`."""
    if not is_argument(value):
        found = f"expected a name that does not begin with -, found {quote(value)}"
        raise InvalidUsage(f"{what}: {found}")
    return value


def is_argument(value: str) -> bool:
    """Whether a value can be an argument. A CLI would read a leading - as an option."""
    return bool(value.strip()) and not value.startswith("-") and "\0" not in value


def refuse_option(option: str, expected: str, found: object) -> NoReturn:
    """Refuse the value of an option. Msgspec adds this error to its own."""
    raise ValueError(f"{option}: expected {expected}, found {found}")


def check_option_names(options: Iterable[tuple[str, str | None]]) -> None:
    """Refuse an option whose value cannot be an argument; each has its name and its value."""
    for option, value in options:
        if value is not None and not is_argument(value):
            expected = "a name that is not empty and does not begin with -"
            refuse_option(option, expected, quote(value))


def _check_image(number: int, image: Image) -> None:
    if image.media_type not in IMAGE_TYPES:
        found = f"image {number}: expected png, jpeg, webp or gif, found {image.media_type!r}"
        raise InvalidUsage(found, hint="Convert it first.")
    if detect_image_type(image.data) != image.media_type:
        expected = f"image {number}: expected {image.media_type}"
        raise InvalidUsage(f"{expected}, found something else", hint="Check the file.")
    if len(image.data) > LARGEST_IMAGE_BYTES:
        expected = f"image {number}: expected at most {_format_mb(LARGEST_IMAGE_BYTES)}"
        raise InvalidUsage(
            f"{expected}, found {_format_mb(len(image.data))}", hint="Make it smaller."
        )


def _format_mb(size: int) -> str:
    return f"{size / 1024 / 1024:.1f} MB"
