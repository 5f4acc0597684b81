"""What kind of image is this? Its first bytes say so, never its name."""

# How the files of each begin; webp is known by what follows as well.
_BEGINNINGS = {
    b"\x89PNG\r\n\x1a\n": "image/png",
    b"\xff\xd8\xff": "image/jpeg",
    b"GIF87a": "image/gif",
    b"GIF89a": "image/gif",
}
_WEBP = "image/webp"
# What goes with one prompt, at most.
MOST_IMAGES = 10
LARGEST_IMAGE_BYTES = 20 * 1024 * 1024
LARGEST_IMAGES_BYTES = 50 * 1024 * 1024
IMAGE_TYPES = frozenset({*_BEGINNINGS.values(), _WEBP})


def detect_image_type(data: bytes) -> str | None:
    """The media type of a picture that every provider takes; None for anything else."""
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return _WEBP
    return next((kind for start, kind in _BEGINNINGS.items() if data.startswith(start)), None)
