"""Secrets that tests plant, and the search for parts of them."""

from collections.abc import Iterator
from pathlib import Path

# Known values: they are in the configuration. One has blanks, one needs escapes in JSON.
KNOWN = (
    "plantedValue7Kq9ZtRw3XbN5mJc8VhP2LdG6FsY4TaQ0UeW1BoIrMkCx",
    'horse-Battery7 staple?Corr9ct \\planted"Grüße w0rds',
)
# Tokens that are only known by their shape.
SHAPED = (
    "sk-ant-api03-Zp4Qx8Lm2Vt7Ks1Rb6Nc9Wd3Hf5Jg0Ty",
    "ghp_Qw3Er5Ty7Ui9Op1As2Df4Gh6Jk8Lz0Xc1Vb3N",
    "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJwbGFudGVkIn0.Zk3Lq8Vt2Xw7Rb5Nc1Jd9Hf4Gs6Py0",
    "AKIAZQ3XWV5RTN7KLM9P",
    "xoxb-4827561930-7364910582-Pq9Zt3Wx7Lm2Vk8Rb5Nc1",
)
SECRETS = (*KNOWN, *SHAPED)
# A shorter part could be in a text by chance, or is the common beginning of a shape.
PART_CHARS = 9


def list_parts(secret: str) -> Iterator[str]:
    """Every part of a secret that must not be found. The prefix of a shape is no secret."""
    start = 14 if secret.startswith("sk-") else 4
    for at in range(start, len(secret) - PART_CHARS + 1):
        yield secret[at : at + PART_CHARS]


def find_part(text: str) -> str | None:
    """The first part of a planted secret in a text."""
    return next((part for each in SECRETS for part in list_parts(each) if part in text), None)


def find_leaks(directory: Path, excepted: frozenset[str]) -> list[str]:
    """The files below a directory that contain a part of a secret, without those of these names."""
    found = []
    for file in sorted(directory.rglob("*")):
        if file.is_file() and file.name not in excepted:
            part = find_part(file.read_bytes().decode(errors="replace"))
            if part is not None:
                found.append(f"{file.relative_to(directory)}: {part}")
    return found
