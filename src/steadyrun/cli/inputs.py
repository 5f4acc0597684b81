"""What was asked for on the command line? Read, checked and named before anything is started."""

from argparse import Namespace
from pathlib import Path
from typing import Any

import msgspec

from steadyrun.cli.stdin import read_stdin
from steadyrun.config.locations import process_environ
from steadyrun.dialect import Image
from steadyrun.errors import InvalidUsage
from steadyrun.model.media import image_type
from steadyrun.runtime.run.options import RunOptions

LARGEST_IMAGE_BYTES = 20 * 1024 * 1024
_SAME_NAME = ("model", "mode", "system", "resume", "or_fresh", "max_turns")


def read_prompt(text: str | None) -> str:
    """The text as it was typed, or all of standard input."""
    hint = 'Type it: steadyrun run "…" --provider P, or pipe it in.'
    is_piped = text in {None, "-"}
    prompt = read_stdin("prompt", is_requested=text == "-", hint=hint) if is_piped else text
    if not prompt or not prompt.strip():
        raise InvalidUsage("the prompt is empty", hint='Type it: steadyrun run "…" --provider P')
    return prompt


def read_options(args: Namespace) -> RunOptions:
    """Everything that was asked for; what was not is left to the provider."""
    wishes: dict[str, Any] = {name: getattr(args, name) for name in _SAME_NAME}
    wishes["max_cost_usd"] = args.max_cost
    wishes["timeout_seconds"] = args.timeout
    wishes["tools"] = None if args.tools is None else _split(args.tools)
    wishes["schema"] = None if args.schema is None else read_schema(args.schema)
    wishes["metadata"] = None if args.metadata is None else read_metadata(args.metadata)
    wishes["env"] = dict(map(read_variable, args.env)) if args.env else None
    wishes["images"] = tuple(map(read_image, args.image)) if args.image else None
    asked: Any = {name: wish for name, wish in wishes.items() if wish is not None}
    return asked  # type: ignore[no-any-return]


def read_schema(given: str) -> dict[str, Any]:
    """A JSON Schema, written out or in a file."""
    is_inline = given.lstrip().startswith("{")
    raw = given.encode() if is_inline else _read_file(Path(given), "the schema")
    where = "the schema" if is_inline else f"the schema {given}"
    try:
        return msgspec.json.decode(raw, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidUsage(f"{where}: expected a JSON object, found: {error}") from error


def read_metadata(given: str) -> dict[str, Any]:
    """What is to be kept with the run: an object, written out."""
    try:
        return msgspec.json.decode(given, type=dict[str, Any])
    except (msgspec.DecodeError, RecursionError) as error:
        hint = "Like this: --metadata '{\"ticket\": 7}'"
        found = f"the metadata: expected a JSON object, found: {error}"
        raise InvalidUsage(found, hint=hint) from error


def read_variable(given: str) -> tuple[str, str]:
    """A variable with its value, or the name of one of our own."""
    name, is_set, value = given.partition("=")
    if is_set:
        return name, value
    found = process_environ().get(name)
    if found is None:
        hint = "Like this: --env NAME=VALUE; NAME alone takes its value from here."
        raise InvalidUsage(f"--env: {name[:80]!r} is not set here", hint=hint)
    return name, found


def read_image(given: str) -> Image:
    """A picture, known by its first bytes and not by its name."""
    data = _read_file(Path(given), "the image", LARGEST_IMAGE_BYTES + 1)
    if len(data) > LARGEST_IMAGE_BYTES:
        raise InvalidUsage(f"the image {given} has more than 20 MB", hint="Make it smaller.")
    media_type = image_type(data)
    if media_type is None:
        hint = "Convert it first."
        raise InvalidUsage(f"the image {given} is no png, jpeg, gif or webp", hint=hint)
    return Image(media_type, data)


def _split(tools: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in tools.split(",") if name.strip())


def _read_file(path: Path, what: str, limit: int = -1) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(limit)
    except (OSError, ValueError) as error:
        problem = error.strerror if isinstance(error, OSError) else str(error)
        raise InvalidUsage(f"{what} {path} cannot be read: {problem}") from error
