"""Defines the shapes of common tokens: keys of providers, of code hosts, of clouds and of chats.

A shape has a literal, which a fast search finds. A kind of key without a literal is not here: it
cannot be told from other text. Such a key is only removed if its value is known.
"""

import re
import string
from collections.abc import Iterator
from typing import NamedTuple

REDACTED = "[redacted]"
# The characters of a token and of its literal.
_CHARACTERS = f"{string.ascii_letters}{string.digits}_-+/=.~%"


class TokenShape(NamedTuple):
    """A kind of token. `loose` finds it in encoded values, and more; `strict` in a text.

    `characters` are those of a token that is not complete yet. `replacement` replaces what `strict`
    has matched.
    """

    literal: str
    loose: re.Pattern[bytes]
    strict: re.Pattern[str]
    characters: str = _CHARACTERS
    replacement: str = REDACTED


def _build_shape(literal: str, rest: str, strict: str | None = None) -> TokenShape:
    pattern = re.escape(literal) + rest
    return TokenShape(
        literal,
        re.compile(pattern.encode()),
        re.compile(strict or pattern, re.ASCII),
    )


def _build_assignment(name: str, rest: str) -> TokenShape:
    """A secret without a literal of its own, behind a name. The name stays."""
    between = r"""["'\\]{0,3}\s{0,3}[:=]\s{0,3}["'\\]{0,3}"""
    return TokenShape(
        name,
        re.compile(name.encode()),
        re.compile(f"({name}{between}){rest}", re.ASCII),
        f"{_CHARACTERS}\"'\\:= \n\r\t",
        rf"\g<1>{REDACTED}",
    )


_KEY_BLOCK = "PRIVATE KEY-----"
# The last line of a private key, and a line before it, at the end of the text that is searched.
_BREAK = r"(?:\s|\\+[nrt])"
_LAST_KEY_LINE = re.compile(
    rf"(?:(?<![A-Za-z0-9+/=])[A-Za-z0-9+/=]{{40,128}}{_BREAK}+[A-Za-z0-9+/=]{{1,128}}"
    rf"|[A-Za-z0-9+/=]{{16,128}}|[A-Za-z0-9+/]{{1,128}}={{1,2}}){_BREAK}*\Z"
)
_KEY_LINE = re.compile(rf"(?<![A-Za-z0-9+/=])[A-Za-z0-9+/=]{{40,128}}{_BREAK}+\Z")
_KEY_END = re.compile(r"-----END [A-Z ]{0,40}PRIVATE KEY-----")
_LONGEST_KEY_LINE = 300
_WEB = r"[A-Za-z0-9_-]"
# The beginning of a word, also after an escaped line break or a colour code.
_WORD_START = r"(?:(?<![\w-])|(?<=\\[bfnrt])|(?<=[0-9;\[]m))"

# The keys of these providers begin with sk-: Anthropic (sk-ant-), OpenAI (sk-proj-, sk-svcacct-),
# OpenRouter (sk-or-), DeepSeek and others.
SHAPES = (
    TokenShape(
        _KEY_BLOCK,
        re.compile(_KEY_BLOCK.encode()),
        re.compile(
            r"-----BEGIN [A-Z ]*PRIVATE KEY-----(?:[A-Za-z0-9+/=\s]|\\+[nrt])*"
            r"(?:-----END [A-Z ]*PRIVATE KEY-----)?"
        ),
        f"{_CHARACTERS}\\ \n\r\t",
    ),
    # The only literal at the end of ordinary words (task-, disk-): it must begin a word, or follow
    # an escaped line break or a colour code.
    _build_shape(
        "sk-",
        r"[A-Za-z0-9_-]{20,}",
        r"sk-(?:(?<!\wsk-)|(?<=\\[bfnrt]sk-)|(?<=[0-9;\[]msk-))[A-Za-z0-9_-]{20,}",
    ),
    # Other providers: Google, Groq, xAI, Hugging Face.
    _build_shape("AIza", _WEB + "{35}"),
    _build_shape("ya29.", _WEB + "{20,}"),
    _build_shape("GOCSPX-", _WEB + "{28}"),
    _build_shape("gsk_", r"[A-Za-z0-9]{40,}"),
    _build_shape("xai-", r"[A-Za-z0-9]{40,}"),
    _build_shape("hf_", r"[A-Za-z0-9]{30,}"),
    # Code hosts and package registries.
    _build_shape("ghp_", r"[A-Za-z0-9]{36,}"),
    _build_shape("gho_", r"[A-Za-z0-9]{36,}"),
    _build_shape("ghs_", r"[A-Za-z0-9]{36,}"),
    _build_shape("ghu_", r"[A-Za-z0-9]{36,}"),
    _build_shape("ghr_", r"[A-Za-z0-9]{36,}"),
    _build_shape("glpat-", _WEB + "{20,}"),
    _build_shape("github_pat_", r"[A-Za-z0-9_]{22,}"),
    _build_shape("npm_", r"[A-Za-z0-9]{36}"),
    _build_shape("pypi-AgE", _WEB + "{50,}"),
    _build_shape("dckr_pat_", _WEB + "{20,}"),
    # Clouds and payments.
    _build_shape("AKIA", r"[A-Z0-9]{16}"),
    _build_shape("ASIA", r"[A-Z0-9]{16}"),
    _build_assignment("ecret_access_key", r"[A-Za-z0-9/+=]{40}"),
    _build_assignment("ECRET_ACCESS_KEY", r"[A-Za-z0-9/+=]{40}"),
    _build_assignment("ecretAccessKey", r"[A-Za-z0-9/+=]{40}"),
    _build_assignment("AccountKey", r"[A-Za-z0-9/+]{80,}={0,2}"),
    _build_shape("8Q~", r"[A-Za-z0-9_~.-]{31,}", r"[A-Za-z0-9_~.-]{0,3}8Q~[A-Za-z0-9_~.-]{31,}"),
    _build_shape("k_live_", r"[A-Za-z0-9]{16,}", r"[rs]?k_live_[A-Za-z0-9]{16,}"),
    _build_shape("k_test_", r"[A-Za-z0-9]{16,}", r"[rs]?k_test_[A-Za-z0-9]{16,}"),
    _build_shape("whsec_", r"[A-Za-z0-9+/=]{24,}"),
    # Chats. The token of a Discord bot begins with the id of the bot in base 64; newer ids begin
    # with 10 to 14.
    _build_shape("xox", r"[abcdeprs]-[A-Za-z0-9-]{10,}"),
    _build_shape("xapp-", r"[A-Za-z0-9-]{10,}"),
    _build_shape("hooks.slack.com/services/", r"[A-Za-z0-9_/]{20,}"),
    *(
        _build_shape(start, rf"{_WEB}{{20,26}}\.{_WEB}{{6,7}}\.{_WEB}{{27,}}")
        for start in ("MTA", "MTE", "MTI", "MTM", "MTQ")
    ),
    # A JSON Web Token: header, payload and signature. It must begin a word, so that a long text of
    # its first letters is searched once.
    TokenShape(
        "eyJ",
        re.compile(rf"eyJ{_WEB}{{10,512}}\.eyJ".encode()),
        re.compile(rf"{_WORD_START}eyJ{_WEB}{{10,512}}\.eyJ{_WEB}{{10,}}\.{_WEB}{{10,}}", re.ASCII),
    ),
)


def remove_tokens(text: str) -> str:
    """Replace every token in a text."""
    for shape in SHAPES:
        if shape.literal in text:
            text = shape.strict.sub(shape.replacement, text)
    return _remove_key_ends(text) if _KEY_BLOCK in text else text


def find_tokens(text: str) -> Iterator[tuple[int, int]]:
    """Find where tokens begin and end."""
    for shape in SHAPES:
        if shape.literal in text:
            yield from (found.span() for found in shape.strict.finditer(text))


def _remove_key_ends(text: str) -> str:
    """Remove private keys whose beginning was cut off: the lines before each end."""
    pieces, done = list[str](), 0
    for found in _KEY_END.finditer(text):
        start = _find_key_start(text, done, found.start())
        pieces += (text[done:start], REDACTED)
        done = found.end()
    return "".join((*pieces, text[done:]))


def _find_key_start(text: str, least: int, end: int) -> int:
    start, pattern = end, _LAST_KEY_LINE
    while line := pattern.search(text, max(least, start - _LONGEST_KEY_LINE), start):
        start, pattern = line.start(), _KEY_LINE
    return start
