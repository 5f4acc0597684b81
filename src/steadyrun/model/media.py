"""Detects the type of an image by its first bytes, never by its name."""

# The first bytes of each type; webp needs a second check.
_BEGINNINGS = {
    b"\x89PNG\r\n\x1a\n": "image/png",
    b"\xff\xd8\xff": "image/jpeg",
    b"GIF87a": "image/gif",
    b"GIF89a": "image/gif",
}
_WEBP = "image/webp"
# The limits of one prompt.
MOST_IMAGES = 10
LARGEST_IMAGE_BYTES = 20 * 1024 * 1024
LARGEST_IMAGES_BYTES = 50 * 1024 * 1024
IMAGE_TYPES = frozenset({*_BEGINNINGS.values(), _WEBP})


def detect_image_type(data: bytes) -> str | None:
    """The media type of an image that every provider accepts; None for anything else."""
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return _WEBP
    return next((kind for start, kind in _BEGINNINGS.items() if data.startswith(start)), None)
