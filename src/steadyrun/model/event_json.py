"""Converts events to their public JSON form, the same on every interface."""

from datetime import datetime
from typing import Any

import msgspec

from steadyrun.model.event import (
    VERSION,
    AnyEvent,
    Event,
    Foreign,
    JsonObject,
    StoredEvent,
    get_type,
)


def to_public(seen: AnyEvent) -> JsonObject:
    """The public form of an event."""
    cursor, seq = (seen.cursor, seen.seq) if isinstance(seen, StoredEvent) else (None, None)
    return {
        "v": seen.event.version if isinstance(seen.event, Foreign) else VERSION,
        "cursor": cursor,
        "seq": seq,
        "id": seen.id,
        "type": get_type(seen.event),
        "at": seen.at,
        "agent": seen.agent,
        "run": seen.run,
        "provider": seen.provider,
        "data": to_data(seen.event),
    }


def to_data(event: Event | Foreign) -> JsonObject:
    """The fields of the event without the tag."""
    fields: JsonObject = (
        decode_fields(event.raw)
        if isinstance(event, Foreign)
        else msgspec.to_builtins(event, builtin_types=(datetime,))
    )
    fields.pop("type", None)
    return fields


# MessagePack has no integers of more than 64 bits; JSON, and so the input of a tool, has.
BIG_INTEGER = 1


def from_ext(code: int, data: memoryview) -> int | bytes:
    """Decode a big integer; other extension types of later versions stay bytes."""
    return int(bytes(data)) if code == BIG_INTEGER else bytes(data)


def spell_out(value: Any) -> Any:
    """The value with big integers as text of an extension type."""
    match value:
        case dict():
            return {key: spell_out(inner) for key, inner in value.items()}
        case list() | tuple():
            return [spell_out(inner) for inner in value]
        case int() if not -(2**63) <= value < 2**64:
            return msgspec.msgpack.Ext(BIG_INTEGER, str(value).encode())
        case _:
            return value


decode_fields = msgspec.msgpack.Decoder(JsonObject, ext_hook=from_ext).decode
