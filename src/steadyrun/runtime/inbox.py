"""Accepts messages: checks each one, stores it as an item, and then acknowledges it."""

from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import anyio.to_thread
import msgspec
from msgspec.structs import replace

from steadyrun.errors import InvalidUsage, MessageTooLong
from steadyrun.model.agent import Agent
from steadyrun.model.item import Followup, Message, OnLost, Payload
from steadyrun.model.run import Metadata
from steadyrun.model.text import encode_utf8
from steadyrun.runtime.attachments import store_files
from steadyrun.store import Accepted

LONGEST_TEXT_BYTES = 1024 * 1024
LONGEST_KEY = 500
LARGEST_METADATA_BYTES = 64 * 1024
# Keys of a run's metadata that steadyrun sets itself.
RESERVED = frozenset({"wall_seconds", "stopping"})

_NOTHING_ELSE = Payload()


async def accept(  # noqa: PLR0913 (each is an option of `send`)
    store: Callable[[Message], Awaitable[Accepted]],
    agent: Agent,
    text: str,
    *,
    home: Path,
    key: str | None = None,
    followup: Followup | None = None,
    on_lost: OnLost | None = None,
    files: Sequence[Path] = (),
    payload: Payload = _NOTHING_ELSE,
) -> Accepted:
    """Check a message for an agent and pass it to `store`. Options that are not given come from the
    agent's settings.

    An invalid message is not stored. Files are copied to `home` first: an accepted message does not
    depend on its sender.
    """
    check_message(text)
    check_metadata(payload.metadata)
    if key is not None:
        _check_key(key)
    kept = await anyio.to_thread.run_sync(store_files, files, home) if files else ()
    message = Message(
        agent.id,
        text,
        key=key,
        on_lost=on_lost or agent.on_lost,
        followup=followup or agent.followup,
        payload=replace(payload, files=(*payload.files, *kept)),
    )
    return await store(message)


def check_message(text: str) -> None:
    """Refuse a message that is empty or too long."""
    size = len(encode_utf8(text))
    if size > LONGEST_TEXT_BYTES:
        raise MessageTooLong(found=size, most=LONGEST_TEXT_BYTES)
    if not text.strip():
        raise InvalidUsage("the message is empty", hint="Give the agent a task.")


def check_metadata(metadata: Metadata) -> None:
    """Refuse metadata that cannot be written as JSON, is too large, or has a reserved key."""
    try:
        size = len(msgspec.json.encode(metadata))
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidUsage(f"the metadata cannot be written as JSON: {error}") from error
    if size > LARGEST_METADATA_BYTES:
        found = f"expected at most {LARGEST_METADATA_BYTES} bytes of metadata, found {size}"
        raise InvalidUsage(found, hint="Put it into a file, and give its path.")
    if taken := sorted(RESERVED & metadata.keys()):
        raise InvalidUsage(
            f"the metadata must not have the key {taken[0]!r}: it is reserved", hint="Rename it."
        )


def _check_key(key: str) -> None:
    encode_utf8(key)
    if not 1 <= len(key) <= LONGEST_KEY:
        raise InvalidUsage(f"expected a key of 1 to {LONGEST_KEY} characters, found {len(key)}")
