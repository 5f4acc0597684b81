"""Tests that the type of an image is detected from its content."""

import pytest

from steadyrun.model.media import IMAGE_TYPES, detect_image_type

PICTURES = {
    b"\x89PNG\r\n\x1a\n...": "image/png",
    b"\xff\xd8\xff\xe0": "image/jpeg",
    b"GIF87a": "image/gif",
    b"GIF89a": "image/gif",
    b"RIFF\x10\x00\x00\x00WEBPVP8 ": "image/webp",
}


@pytest.mark.parametrize(("data", "kind"), PICTURES.items())
def test_image_type_is_detected_by_the_first_bytes(data: bytes, kind: str) -> None:
    assert detect_image_type(data) == kind


@pytest.mark.parametrize("data", [b"", b"RIFF", b"RIFF\x10\x00\x00\x00WAVE", b"<svg/>", b"GIF"])
def test_other_content_has_no_image_type(data: bytes) -> None:
    assert detect_image_type(data) is None


def test_every_image_type_is_tested() -> None:
    assert set(PICTURES.values()) == IMAGE_TYPES
