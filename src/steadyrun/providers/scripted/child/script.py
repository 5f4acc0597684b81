"""Defines the steps of a script, and reads a whole script before its first step is played."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from steadyrun.providers.scripted.child.json_lines import Args, decode_json

ScriptStep = tuple[str, Args]

PREFIX = "script:"
_SEE = "docs/providers.md lists the steps and what they take."


class FieldKind(NamedTuple):
    """The type of a field of a step."""

    description: str
    is_valid: Callable[[Any], bool]


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_amount(value: Any) -> bool:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and 0 <= value < math.inf


def _are_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(each, str) for each in value)


TEXT = FieldKind("text", lambda found: isinstance(found, str))
TEXTS = FieldKind("a list of texts", _are_texts)
FLAG = FieldKind("true or false", lambda found: isinstance(found, bool))
COUNT = FieldKind("a whole number from 0", _is_whole)
AMOUNT = FieldKind("a number from 0", _is_amount)
CODE = FieldKind("a number from 0 to 255", lambda found: _is_whole(found) and found < 256)
SIGNAL = FieldKind("a number from 1 to 64", lambda found: _is_whole(found) and 0 < found <= 64)
OBJECT = FieldKind("an object", lambda found: isinstance(found, dict))
LIST = FieldKind("a list of steps", lambda found: isinstance(found, list))
ANY = FieldKind("anything", lambda _: True)
NEEDED = object()

# Each step with its fields and their defaults. The first field may be given alone.
STEPS: dict[str, dict[str, tuple[FieldKind, Any]]] = {
    "text": {"text": (TEXT, NEEDED)},
    "delta": {"pieces": (TEXTS, NEEDED), "seconds": (AMOUNT, 0), "until": (TEXT, None)},
    "thinking": {"text": (TEXT, NEEDED)},
    "result": {"text": (TEXT, NEEDED)},
    "structured": {},
    "recall": {},
    "tool": {
        "name": (TEXT, NEEDED),
        "input": (ANY, None),
        "output": (ANY, None),
        "error": (TEXT, None),
        "seconds": (AMOUNT, 0),
        "leave_open": (FLAG, False),
    },
    "approval": {"name": (TEXT, NEEDED), "input": (ANY, None), "output": (ANY, None)},
    "usage": {
        "input_tokens": (COUNT, None),
        "output_tokens": (COUNT, None),
        "cache_read_tokens": (COUNT, None),
        "cache_write_tokens": (COUNT, None),
        "cost_usd": (AMOUNT, None),
    },
    "stats": {
        "model": (TEXT, None),
        "context_window": (COUNT, None),
        "cache_read_tokens": (COUNT, None),
        "cache_write_tokens": (COUNT, None),
        "output_tokens": (COUNT, None),
        "terminal_reason": (TEXT, None),
    },
    "image": {"name": (TEXT, NEEDED), "media_type": (TEXT, "image/png"), "bytes": (COUNT, 1)},
    "compaction": {
        "trigger": (TEXT, "auto"),
        "tokens_before": (COUNT, None),
        "tokens_after": (COUNT, None),
        "error": (TEXT, None),
    },
    "retrying": {"reason": (TEXT, NEEDED), "attempt": (COUNT, 1), "delay_ms": (COUNT, None)},
    "wait": {"seconds": (AMOUNT, NEEDED)},
    "until": {"path": (TEXT, NEEDED)},
    "hang": {"ignore_interrupt": (FLAG, False)},
    "fail": {
        "message": (TEXT, NEEDED),
        "code": (TEXT, "scripted_failure"),
        "retryable": (FLAG, False),
    },
    "rate_limit": {
        "message": (TEXT, "the script has this step"),
        "resets_in": (AMOUNT, None),
        "resets_at": (AMOUNT, None),
    },
    "crash": {"code": (CODE, 1), "signal": (SIGNAL, None)},
    "no_newline": {"text": (TEXT, NEEDED), "code": (CODE, 0)},
    "flood": {"count": (COUNT, NEEDED), "bytes": (COUNT, 800), "stderr": (FLAG, False)},
    "stderr": {"text": (TEXT, NEEDED)},
    "unknown": {"name": (TEXT, "novelty"), "fields": (OBJECT, None)},
    "garbage": {"invalid_utf8": (FLAG, False)},
    "big_line": {"bytes": (COUNT, NEEDED)},
    "self_turn": {"steps": (LIST, NEEDED), "after": (AMOUNT, 0)},
    "background": {"seconds": (AMOUNT, 3600)},
    "ignore_sigterm": {},
}


class TurnFailed(Exception):
    """The turn failed."""

    def __init__(
        self, code: str, message: str, *, hint: str = "", status: str = "failed", **more: Any
    ) -> None:
        super().__init__(message)
        self.status = status
        self.fact: Args = {"code": code, "message": message, "hint": hint, **more}


class ScriptInvalid(TurnFailed):
    """The script is invalid."""

    def __init__(self, problem: str) -> None:
        super().__init__("script_invalid", problem, hint=_SEE)


class ScriptedTurn(NamedTuple):
    """A turn to play. `by` is what began it: turn, offer or self."""

    id: str
    by: str
    text: str = ""
    images: tuple[Args, ...] = ()
    schema: Any = None
    steps: list[ScriptStep] | None = None


def find_steps(turn: ScriptedTurn, script: str | None, number: int) -> list[ScriptStep]:
    """Find the steps of a turn: its own, else those of the prompt, of the file or of the demo."""
    if turn.steps is not None:
        return turn.steps
    # Text that steadyrun puts before the request is in paragraphs of its own.
    _, is_script, steps = f"\n\n{turn.text.lstrip()}".rpartition(f"\n\n{PREFIX}")
    if is_script:
        return read_steps(_parse_json(steps, "the prompt"))
    return read_steps(_read_file(Path(script), number) if script else _build_demo(turn))


def read_steps(value: Any, where: str = "") -> list[ScriptStep]:
    """Check all steps, also those of nested turns."""
    if not isinstance(value, list):
        raise ScriptInvalid(
            f"{where or 'the script'}: expected a list of steps, found {_format_value(value)}"
        )
    return [_read_step(step, f"{where}step {n}") for n, step in enumerate(value, 1)]


def _read_step(value: Any, where: str) -> ScriptStep:
    named = {value: {}} if isinstance(value, str) else value
    if not isinstance(named, dict) or len(named) != 1:
        raise ScriptInvalid(
            f"{where}: expected an object with one key, found {_format_value(value)}"
        )
    [(name, given)] = named.items()
    if name not in STEPS:
        raise ScriptInvalid(
            f"{where}: expected one of {', '.join(STEPS)}, found {_format_value(name)}"
        )
    return name, _read_args(STEPS[name], given, f"{where} ({name})")


def _read_args(fields: dict[str, tuple[FieldKind, Any]], given: Any, where: str) -> Args:
    if not isinstance(given, dict):
        if not fields:
            raise ScriptInvalid(f"{where}: expected {{}}, found {_format_value(given)}")
        given = {next(iter(fields)): given}
    for key in given.keys() - fields.keys():
        raise ScriptInvalid(
            f"{where}: expected {', '.join(fields) or '{}'}, found {_format_value(key)}"
        )
    return {key: _read_field(key, given, fields[key], where) for key in fields}


def _read_field(key: str, given: Args, field: tuple[FieldKind, Any], where: str) -> Any:
    kind, default = field
    value = given.get(key, default)
    if value is NEEDED:
        raise ScriptInvalid(f"{where}: expected {key}, {kind.description}, found none")
    if value is not default and not kind.is_valid(value):
        raise ScriptInvalid(
            f"{where}: expected {key} to be {kind.description}, found {_format_value(value)}"
        )
    return read_steps(value, f"{where}: ") if kind is LIST else value


def _read_file(path: Path, number: int) -> Any:
    """Read a file: a list of steps, an object with `steps`, or one with `turns`."""
    try:
        data = path.expanduser().read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise ScriptInvalid(f"cannot read the script {path}: {error}") from error
    value = _parse_toml(data, path) if path.suffix == ".toml" else _parse_json(data, str(path))
    match value:
        case {"steps": steps, **more} if not more:
            return steps
        case {"turns": [_, *_] as turns, **more} if not more:
            return turns[min(number, len(turns) - 1)]
        case dict():
            raise ScriptInvalid(f"{path}: expected steps, or turns with a list of steps for each")
        case _:
            return value


def _parse_json(text: str, source: str) -> Any:
    try:
        return decode_json(text)
    except (ValueError, RecursionError) as error:
        raise ScriptInvalid(
            f"{source}: expected a list of steps in JSON, found: {error}"
        ) from error


def _parse_toml(text: str, path: Path) -> Any:
    import tomllib  # noqa: PLC0415 (most scripts are JSON, and starting must be quick)

    try:
        # A script has the values of JSON only: dates become text, and NaN is refused.
        return decode_json(json.dumps(tomllib.loads(text), default=str))
    except (ValueError, RecursionError) as error:
        raise ScriptInvalid(f"{path}: expected steps in TOML, found: {error}") from error


def _format_value(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else f"{text[:60]}…"


def _build_demo(turn: ScriptedTurn) -> list[Any]:
    read = {"name": "Read", "input": {"path": "README.md"}, "output": "# Nothing was read"}
    words = len(turn.text.split())
    return [
        {"text": f"You said: {turn.text}"},
        {"tool": read},
        {"usage": {"input_tokens": words, "output_tokens": 12, "cost_usd": 0.0}},
        {"text": "Done. A script answered; no model was asked."}
        if turn.schema is None
        else "structured",
    ]
