"""Makes hostile inputs from valid samples by random damage. A seed always makes the same inputs."""

import random
from collections.abc import Callable, Iterator, Sequence

import msgspec

# What parsers are known to stumble over.
_ODD = (
    b"[" * 2000, b'{"a":' * 500, b"9" * 400, b"-1e999", b"1e-999", b"9223372036854775808",
    b"18446744073709551616", b"-9223372036854775809", b"NaN", b"\x00", b"\xff\xfe", b"\xed\xa0\x80",
    b"\\ud800", b"\\u0000", b'"', b"\\", b"null", b"true", b'""', b"[]", b"{}", b"\r\n", b"\x1b[2J",
    b"../../etc/passwd", b"${HOME}", b"${", b"'''", b'"""', b"=", b"# ", "\u202e".encode(),
    b"type", b"id",
)  # fmt: skip
_ODD_VALUES: tuple[object, ...] = (
    None, True, 0, -1, 2**63, 2**64, 1.5, "", "x" * 5000, [], {}, [None], {"": None}, [[]] * 3,
)  # fmt: skip
_MOST_CHANGES = 4
_LONGEST = 1 << 16


def mutate(samples: Sequence[bytes], seed: int, count: int) -> Iterator[bytes]:
    """Yield `count` damaged samples."""
    chance = random.Random(seed)
    for _ in range(count):
        data = chance.choice(samples)
        for _ in range(chance.randint(1, _MOST_CHANGES)):
            data = chance.choice(_CHANGES)(data, chance, samples)
        yield data[:_LONGEST]


def _flip_byte(data: bytes, chance: random.Random, _: Sequence[bytes]) -> bytes:
    at = chance.randrange(len(data) + 1)
    return data[:at] + bytes([chance.randrange(256)]) + data[at + 1 :]


def _insert_odd(data: bytes, chance: random.Random, _: Sequence[bytes]) -> bytes:
    at = chance.randrange(len(data) + 1)
    return data[:at] + chance.choice(_ODD) + data[at:]


def _remove_slice(data: bytes, chance: random.Random, _: Sequence[bytes]) -> bytes:
    start, end = _draw_slice(data, chance)
    return data[:start] + data[end:]


def _repeat_slice(data: bytes, chance: random.Random, _: Sequence[bytes]) -> bytes:
    start, end = _draw_slice(data, chance)
    return data[:end] + data[start:end] * chance.randint(1, 3) + data[end:]


def _join_other(data: bytes, chance: random.Random, samples: Sequence[bytes]) -> bytes:
    other = chance.choice(samples)
    return data[: chance.randrange(len(data) + 1)] + other[chance.randrange(len(other) + 1) :]


def _replace_value(data: bytes, chance: random.Random, samples: Sequence[bytes]) -> bytes:
    """Replace one value of a JSON document by a value of any type."""
    try:
        document = msgspec.json.decode(data)
    except (ValueError, RecursionError):
        return _insert_odd(data, chance, samples)
    return msgspec.json.encode(_with_odd_value(document, chance))


def _with_odd_value(value: object, chance: random.Random) -> object:
    match value:
        case dict() if value and chance.random() < 0.8:
            key = chance.choice(list(value))
            return {**value, key: _with_odd_value(value[key], chance)}
        case list() if value and chance.random() < 0.8:
            at = chance.randrange(len(value))
            return [*value[:at], _with_odd_value(value[at], chance), *value[at + 1 :]]
        case _:
            return chance.choice(_ODD_VALUES)


def _draw_slice(data: bytes, chance: random.Random) -> tuple[int, int]:
    start = chance.randrange(len(data) + 1)
    return start, min(len(data), start + chance.randint(1, 200))


Change = Callable[[bytes, random.Random, Sequence[bytes]], bytes]
_CHANGES: tuple[Change, ...] = (
    _flip_byte, _insert_odd, _remove_slice, _repeat_slice, _join_other, _replace_value,
    _replace_value,
)  # fmt: skip
