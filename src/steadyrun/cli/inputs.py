"""Reads and checks what the user typed or piped in, before anything is started."""

import os
import sys
from argparse import Namespace
from pathlib import Path
from typing import Any

import msgspec

from steadyrun.cli.arguments import parse_words
from steadyrun.config.locations import get_environ
from steadyrun.dialect import Image
from steadyrun.errors import InvalidUsage
from steadyrun.model.media import detect_image_type
from steadyrun.model.quotation import quote
from steadyrun.runtime.run.options import RunOptions

LARGEST_IMAGE_BYTES = 20 * 1024 * 1024
_SAME_NAME = ("model", "mode", "system", "resume", "or_fresh", "max_turns")


def read_stdin(what: str, *, is_requested: bool, hint: str) -> str:
    """Read all of standard input as text. A terminal is read only if that `is_requested`."""
    if sys.stdin is None or (sys.stdin.isatty() and not is_requested):
        raise InvalidUsage(f"there is no {what}", hint=hint)
    try:
        return sys.stdin.buffer.read().decode()
    except UnicodeDecodeError as error:
        raise InvalidUsage(f"the {what} on standard input is not UTF-8: {error.reason}") from error
    except OSError as error:
        problem = os.strerror(error.errno or 0)
        raise InvalidUsage(f"standard input cannot be read: {problem}") from error


def read_prompt(text: str | None) -> str:
    """Return the typed text, or read all of standard input."""
    hint = 'Type it: steadyrun run "…" --provider P, or pipe it in.'
    is_piped = text in {None, "-"}
    prompt = read_stdin("prompt", is_requested=text == "-", hint=hint) if is_piped else text
    if not prompt or not prompt.strip():
        raise InvalidUsage("the prompt is empty", hint='Type it: steadyrun run "…" --provider P')
    return prompt


def read_options(args: Namespace) -> RunOptions:
    """Read the options of a run. An option that was not typed is left out."""
    options: dict[str, Any] = {name: getattr(args, name) for name in _SAME_NAME}
    options["max_cost_usd"] = args.max_cost
    options["timeout_seconds"] = args.timeout
    options["tools"] = None if args.tools is None else parse_words(args.tools)
    options["schema"] = None if args.schema is None else read_schema(args.schema)
    options["metadata"] = None if args.metadata is None else read_metadata(args.metadata)
    options["env"] = dict(map(read_variable, args.env)) if args.env else None
    options["images"] = tuple(map(read_image, args.image)) if args.image else None
    typed: Any = {name: value for name, value in options.items() if value is not None}
    return typed  # type: ignore[no-any-return]


def read_schema(text: str) -> dict[str, Any]:
    """Read a JSON Schema from the text itself or from the file that it names."""
    is_inline = text.lstrip().startswith("{")
    raw = text.encode() if is_inline else _read_file(Path(text), "the schema")
    where = "the schema" if is_inline else f"the schema {text}"
    try:
        return msgspec.json.decode(raw, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidUsage(f"{where}: expected a JSON object, found: {error}") from error


def read_metadata(text: str) -> dict[str, Any]:
    """Read the JSON object that is stored with the run."""
    try:
        return msgspec.json.decode(text, type=dict[str, Any])
    except (msgspec.DecodeError, RecursionError) as error:
        hint = "For example: --metadata '{\"ticket\": 7}'"
        problem = f"the metadata: expected a JSON object, found: {error}"
        raise InvalidUsage(problem, hint=hint) from error


def read_variable(text: str) -> tuple[str, str]:
    """Read NAME=VALUE, or NAME with its value in the environment of this process."""
    name, is_set, value = text.partition("=")
    if is_set:
        return name, value
    found = get_environ().get(name)
    if found is None:
        hint = "Use --env NAME=VALUE, or set the variable: --env NAME takes its present value."
        raise InvalidUsage(f"--env: {quote(name)} is not set", hint=hint)
    return name, found


def read_image(text: str) -> Image:
    """Read an image file. Its type is found from its first bytes, not from its name."""
    data = _read_file(Path(text), "the image", LARGEST_IMAGE_BYTES + 1)
    if len(data) > LARGEST_IMAGE_BYTES:
        raise InvalidUsage(f"the image {text} has more than 20 MB", hint="Make it smaller.")
    media_type = detect_image_type(data)
    if media_type is None:
        problem = f"the image {text} is not a png, jpeg, gif or webp"
        raise InvalidUsage(problem, hint="Convert it first.")
    return Image(media_type, data)


def _read_file(path: Path, what: str, limit: int = -1) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(limit)
    except (OSError, ValueError) as error:
        problem = error.strerror if isinstance(error, OSError) else str(error)
        raise InvalidUsage(f"{what} {path} cannot be read: {problem}") from error
