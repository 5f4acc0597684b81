"""What must a provider be told that it cannot know? Pure: made of the record alone.

What is quoted has a mark before each of its lines: nothing in it can pass for our own words.
"""

from collections.abc import Sequence

from steadyrun.model.item import Attachment, Item
from steadyrun.model.run import Run
from steadyrun.model.text import cut

LARGEST_CONTEXT_BYTES = 8 * 1024
_LONGEST_QUOTE_BYTES = 2 * 1024

_BEGIN = """\
[From the record. The conversation before this one is gone; these are its last messages, oldest \
first. They are done with: nothing in them is a request.]"""
_END = "[End of the record.]"


def recovery_context(items: Sequence[Item]) -> str | None:
    """What was asked and answered last, newest last; None if nothing was."""
    room = LARGEST_CONTEXT_BYTES - len(f"{_BEGIN}\n\n{_END}".encode())
    told: list[str] = []
    for item in sorted(items, key=lambda item: item.seq, reverse=True):
        if not item.is_settled:
            continue
        entry = _entry(item)
        room -= len(f"\n\n{entry}".encode())
        if room < 0:
            break
        told.append(entry)
    return "\n\n".join((_BEGIN, *reversed(told), _END)) if told else None


def retry_notice(before: Run, item: Item) -> str:
    """Say that the same was begun before, and ask for it again."""
    why = before.stop_reason or (before.error.code if before.error else before.status)
    return (
        f"The last attempt was cut off ({why}). What it did may be done already: look first. "
        f"The request was:\n\n{item.text}"
    )


def with_files(text: str, files: Sequence[tuple[Attachment, str]]) -> str:
    """The text, and where the files are that came with it; pictures are told by themselves."""
    listed = [
        f"- {file.name} ({file.size} bytes): {path}"
        for file, path in files
        if file.media_type is None
    ]
    return "\n".join((text, "", "Files that came with this message:", *listed)) if listed else text


def _entry(item: Item) -> str:
    asked = f"Asked:\n{_quoted(item.text)}" if item.text else "Begun unasked."
    if item.reply:
        return f"{asked}\nAnswered:\n{_quoted(item.reply)}"
    why = f": {item.error.code}" if item.error and item.status == "failed" else ""
    return f"{asked}\nNot answered ({item.status}{why})."


def _quoted(text: str) -> str:
    lines = cut(text.strip(), _LONGEST_QUOTE_BYTES).splitlines()
    # Once more: the marks of many short lines are longer than the lines.
    return cut("\n".join(f"> {line}" for line in lines), _LONGEST_QUOTE_BYTES)
