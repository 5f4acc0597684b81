"""Encodes and decodes events as MessagePack lists, without secrets.

Events of an unknown type or version are kept byte for byte.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple

import msgspec
from msgspec import Struct, structs

from steadyrun.model.event import (
    VERSION,
    Emitted,
    Event,
    Foreign,
    Kinds,
    StoredEvent,
    count_kinds,
    make_event_id,
)
from steadyrun.model.event_json import decode_fields, from_ext, spell_out
from steadyrun.model.ids import ProcessId, RunId
from steadyrun.model.secret import Scrubber


class _EncodedEvent(Struct, frozen=True, array_like=True, gc=False):
    """An event as it is written: the fields of `Emitted`."""

    place: int | str
    n: int
    at: datetime
    event: Event
    v: int


class _RawEvent(Struct, frozen=True, array_like=True):
    place: int | str
    n: int
    at: datetime
    event: msgspec.Raw
    v: int


_OURS = frozenset({VERSION})
_encode = msgspec.msgpack.Encoder().encode
_written = msgspec.msgpack.Decoder(list[_EncodedEvent], ext_hook=from_ext)
_written_raw = msgspec.msgpack.Decoder(list[_RawEvent])
_raws = msgspec.msgpack.Decoder(list[msgspec.Raw])
_event = msgspec.msgpack.Decoder(Event, ext_hook=from_ext)


def encode_events(
    events: Sequence[Emitted], scrubber: Scrubber, kinds: Kinds | None = None
) -> bytes:
    """Encode events as a MessagePack list, without the secrets that `scrubber` finds."""
    kinds = count_kinds(events) if kinds is None else kinds
    try:
        body = _encode([_as_raw(e) for e in events] if Foreign in kinds else events)
    except OverflowError:
        body = _encode([_with_big_integers(emitted) for emitted in events])
    if scrubber.is_suspicious(body):
        body = _encode([_clean(raw, scrubber) for raw in _written_raw.decode(body)])
    return body


def decode_events(body: bytes) -> Sequence[Emitted]:
    """Decode events; those of an unknown type or version become `Foreign`."""
    try:
        return _decode(body)
    except (ValueError, RecursionError) as error:
        # Text that is not UTF-8 or invalid digits: msgspec does not convert these errors.
        raise msgspec.DecodeError(str(error)) from error


class EventRow(NamedTuple):
    """Events that were stored together, and their common fields."""

    cursor: int
    seq: int
    agent: str | None
    run: RunId | None
    process: ProcessId | None
    provider: str | None
    body: bytes


def decode_row(row: EventRow) -> list[StoredEvent]:
    """The events of a row with their positions."""
    cursor, seq, agent, run, process, provider, body = row
    # One loop without a call for each event: all reads of events come through here.
    found = [
        StoredEvent(
            cursor + n,
            seq + n,
            f"{process}:{each.place}.{each.n}"  # type: ignore[arg-type]
            if type(each.place) is int
            else make_event_id(process, each.place, each.n),
            each.at,
            agent,
            run,
            provider,
            each.event,
        )
        for n, each in enumerate(_read(body))
    ]
    return found if agent is not None else [structs.replace(each, seq=None) for each in found]


def _read(body: bytes) -> "Sequence[_EncodedEvent | Emitted]":
    """The encoded events, if this version supports all of them."""
    try:
        found = _written.decode(body)
    except (msgspec.ValidationError, ValueError, RecursionError):
        return decode_events(body)
    return found if {each.v for each in found} <= _OURS else decode_events(body)


def _decode(body: bytes) -> Sequence[Emitted]:
    try:
        return [_from_written(written) for written in _written.decode(body)]
    except msgspec.ValidationError:
        return [_from_raw(written) for written in _written_raw.decode(body)]


def join_encoded(bodies: Sequence[bytes]) -> bytes:
    """Join several encoded lists."""
    return bodies[0] if len(bodies) == 1 else _encode([r for b in bodies for r in _raws.decode(b)])


def _as_raw(emitted: Emitted) -> Emitted | _RawEvent:
    event = emitted.event
    return _build_raw(emitted, event.raw, event.version) if isinstance(event, Foreign) else emitted


def _build_raw(emitted: Emitted | _RawEvent, raw: bytes, version: int) -> _RawEvent:
    return _RawEvent(emitted.place, emitted.n, emitted.at, msgspec.Raw(raw), version)


def _clean(written: _RawEvent, scrubber: Scrubber) -> _RawEvent:
    """The event without secrets; one without secrets stays byte for byte the same."""
    raw = bytes(written.event)
    if not scrubber.is_suspicious(raw):
        return written
    fields = decode_fields(raw)
    cleaned = {"type": fields.pop("type", ""), **scrubber.clean(fields)}
    return _build_raw(written, _encode(spell_out(cleaned)), written.v)


def _with_big_integers(emitted: Emitted) -> Emitted | _RawEvent:
    event = emitted.event
    if isinstance(event, Foreign):
        return _as_raw(emitted)
    plain = msgspec.to_builtins(event, builtin_types=(bytes, datetime))
    return _build_raw(emitted, _encode(spell_out(plain)), VERSION)


def _from_written(written: _EncodedEvent) -> Emitted:
    if written.v != VERSION:
        raise msgspec.ValidationError("another version")
    return Emitted(written.place, written.n, written.at, written.event)


def _from_raw(written: _RawEvent) -> Emitted:
    return Emitted(written.place, written.n, written.at, _decode_event(written))


def _decode_event(written: _RawEvent) -> Event | Foreign:
    raw = bytes(written.event)
    # Decoded as a whole, not only for its type: a damaged event must fail here.
    foreign = Foreign(str(decode_fields(raw).get("type", "")), written.v, raw)
    if written.v != VERSION:
        return foreign
    try:
        known: Event = _event.decode(raw)
    except msgspec.ValidationError:
        return foreign
    return known
