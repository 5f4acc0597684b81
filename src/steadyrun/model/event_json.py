"""How does an event look to the world? The same on every machine-readable surface."""

from datetime import datetime

import msgspec

from steadyrun.model.event import (
    VERSION,
    Event,
    Foreign,
    JsonObject,
    LiveEvent,
    StoredEvent,
    get_type,
)


def to_public(seen: StoredEvent | LiveEvent) -> JsonObject:
    """An event as every machine-readable surface shows it."""
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
    """The event's own fields, without the tag."""
    fields: JsonObject = (
        decode_fields(event.raw)
        if isinstance(event, Foreign)
        else msgspec.to_builtins(event, builtin_types=(datetime,))
    )
    fields.pop("type", None)
    return fields


# MessagePack has no integers of more than 64 bits; JSON, and so a tool's input, may.
BIG_INTEGER = 1


def from_ext(code: int, data: memoryview) -> int | bytes:
    """Big integers are numbers again; what a later version has put there are bytes to us."""
    return int(bytes(data)) if code == BIG_INTEGER else bytes(data)


decode_fields = msgspec.msgpack.Decoder(JsonObject, ext_hook=from_ext).decode
