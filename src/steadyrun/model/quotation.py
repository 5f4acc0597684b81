"""Quotes input in messages, shortened so that no part of a secret is left at the cut.

The code that refuses an input does not know the secrets. So a word that the cut would tear is left
out, except its first characters.
"""

LONGEST_QUOTE = 80
_SHOWN_OF_WORD = 4


def shorten(text: str, most: int = LONGEST_QUOTE) -> str:
    """Return the text, or the whole words of its beginning and an ellipsis."""
    if len(text) <= most:
        return text
    kept = text[:most]
    if text[most].isspace() or kept[-1].isspace():
        return f"{kept}…"
    torn = len(kept.rsplit(maxsplit=1)[-1])
    return f"{kept[: most - torn + _SHOWN_OF_WORD]}…"


def quote(value: object, most: int = LONGEST_QUOTE) -> str:
    """Return the representation of a value, shortened."""
    return repr(shorten(value, most)) if isinstance(value, str) else shorten(repr(value), most)
