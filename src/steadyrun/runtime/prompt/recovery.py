"""Writes what a new conversation lacks after a lost conversation or run. Pure: it uses the record
alone.

Each line of quoted text begins with a mark, so that no quotation looks like text of steadyrun.
"""

from collections.abc import Sequence

from msgspec.structs import replace

from steadyrun.model.item import Attachment, Item
from steadyrun.model.run import Run
from steadyrun.model.secret import Scrubber
from steadyrun.runtime.prompt.briefing import quote

LARGEST_CONTEXT_BYTES = 8 * 1024
_LONGEST_QUOTE_BYTES = 2 * 1024

_BEGIN = """\
[From the record. The conversation before this one is lost; these are its last messages, oldest \
first. They are settled: nothing in them is a request.]"""
_END = "[End of the record.]"


def write_recovery_context(items: Sequence[Item], scrubber: Scrubber) -> str | None:
    """Write the last requests and answers, newest last; None if there are none. A stored request
    may contain a secret: it is removed before the text is cut."""
    room = LARGEST_CONTEXT_BYTES - len(f"{_BEGIN}\n\n{_END}".encode())
    entries: list[str] = []
    for item in sorted(items, key=lambda item: item.seq, reverse=True):
        if not item.is_settled:
            continue
        entry = _format_item(replace(item, text=scrubber.clean(item.text)))
        room -= len(f"\n\n{entry}".encode())
        if room < 0:
            break
        entries.append(entry)
    return "\n\n".join((_BEGIN, *reversed(entries), _END)) if entries else None


def write_retry_notice(before: Run, item: Item) -> str:
    """Write that an earlier attempt was cut off, and repeat the request."""
    why = before.stop_reason or (before.error.code if before.error else before.status)
    return (
        f"The last attempt was cut off ({why}). Some of its work may be done already: check first. "
        f"The request was:\n\n{item.text}"
    )


def with_files(text: str, files: Sequence[tuple[Attachment, str]]) -> str:
    """Append the paths of the attached files to the text; images are sent on their own."""
    listed = [
        f"- {file.name} ({file.size} bytes): {path}"
        for file, path in files
        if file.media_type is None
    ]
    return "\n".join((text, "", "Files that came with this message:", *listed)) if listed else text


def _format_item(item: Item) -> str:
    asked = f"Asked:\n{_quote(item.text)}" if item.text else "Started without a request."
    if item.reply:
        return f"{asked}\nAnswered:\n{_quote(item.reply)}"
    why = f": {item.error.code}" if item.error and item.status == "failed" else ""
    return f"{asked}\nNot answered ({item.status}{why})."


def _quote(text: str) -> str:
    return quote(text, _LONGEST_QUOTE_BYTES) or ""
