"""Validates the options of a run before it is stored.

Types exclude most errors, but a program may pass any value.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypedDict, get_args

import msgspec

from steadyrun.dialect import Ability, Image
from steadyrun.errors import InvalidUsage
from steadyrun.model.policy import Mode, check_tools
from steadyrun.model.quotation import quote
from steadyrun.model.run import Metadata
from steadyrun.model.text import Problem, encode_utf8, suggest
from steadyrun.model.validation import check_count, check_dollars, check_timeout, check_variable
from steadyrun.runtime.inbox import check_metadata


class RunOptions(TypedDict, total=False):
    """The options of a run beside its prompt. An option that its provider lacks is refused."""

    mode: Mode
    model: str
    tools: Sequence[str]
    system: str
    resume: str
    # Whether a new conversation may take the place of one that does not exist any more.
    or_fresh: bool
    max_turns: int
    max_cost_usd: float
    schema: dict[str, Any]
    images: Sequence[Image]
    timeout_seconds: float
    # Stored with the run, for the caller.
    metadata: Metadata
    # Variables in addition to the configured ones, or in their place. They are stored nowhere.
    env: Mapping[str, str]


NEEDS: Mapping[str, Ability] = {
    "mode": "modes", "model": "model", "system": "system", "resume": "resume",
    "max_turns": "max_turns", "max_cost_usd": "usage", "schema": "schema", "images": "images",
}  # fmt: skip


def validate_options(options: RunOptions) -> None:
    """Raise `InvalidUsage` for the first option that is wrong."""
    for name, value in options.items():
        if name not in _CHECKS:
            raise InvalidUsage(f"unknown option {quote(name)}", hint=suggest(name, _CHECKS))
        flaw = _CHECKS[name](value)
        if flaw:
            raise InvalidUsage(f"{name}: {flaw.problem}", hint=flaw.hint)
    if options.get("or_fresh") and "resume" not in options:
        raise InvalidUsage(
            "or_fresh is for a conversation to resume", hint="Name one, or leave it."
        )
    check_metadata(options.get("metadata", {}))


def _check_mode(value: object) -> Problem | None:
    known = get_args(Mode)
    if value in known:
        return None
    return Problem(f"unknown mode {quote(value)}", suggest(str(value), known))


def _check_text(value: object) -> Problem | None:
    if not isinstance(value, str) or not value:
        return _build_problem("a text", value)
    encode_utf8(value)
    return Problem("must not contain a NUL character") if "\0" in value else None


def _check_tools(value: object) -> Problem | None:
    if not _is_list_of(value, str):
        return _build_problem("a list of names", value, hint='Like this: tools=["Read"]')
    return check_tools(None, tuple(value))  # type: ignore[arg-type]


def _check_images(value: object) -> Problem | None:
    hint = 'Like this: images=[Image("image/png", data)]'
    return (
        None if _is_list_of(value, Image) else _build_problem("a list of Image", value, hint=hint)
    )


def _check_object(value: object) -> Problem | None:
    if not isinstance(value, dict):
        return _build_problem("an object", value, hint="Give a dict.")
    try:
        msgspec.json.encode(value)
    except (TypeError, ValueError, RecursionError) as error:
        return Problem(f"cannot be written as JSON: {error}")
    return None


def _check_env(env: object) -> Problem | None:
    # A value is never repeated: it may be a secret.
    if not isinstance(env, Mapping) or not all(isinstance(each, str) for each in env.values()):
        return Problem("expected texts by name", 'Like this: env={"LANG": "C"}')
    for name, value in env.items():
        flaw = check_variable(name) if isinstance(name, str) else Problem("is no text")
        if flaw is None and "\0" in value:
            flaw = Problem("must not contain a NUL character")
        if flaw:
            return Problem(f"{quote(name)} {flaw.problem}", flaw.hint)
    return None


def _check_switch(value: object) -> Problem | None:
    return None if isinstance(value, bool) else _build_problem("True or False", value)


def _check_turns(value: object) -> Problem | None:
    return check_count(value, "turns")


def _is_list_of(value: object, kind: type) -> bool:
    """A text is a sequence, too, but never meant as a list."""
    is_list = isinstance(value, Sequence) and not isinstance(value, str | bytes)
    return is_list and all(isinstance(each, kind) for each in value)  # type: ignore[attr-defined]


def _build_problem(
    what: str, found: object, *, hint: str = "Leave it out if there is none."
) -> Problem:
    return Problem(f"expected {what}, found {quote(found)}", hint)


_CHECKS: Mapping[str, Callable[[object], Problem | None]] = {
    "mode": _check_mode,
    "model": _check_text,
    "tools": _check_tools,
    "system": _check_text,
    "resume": _check_text,
    "or_fresh": _check_switch,
    "max_turns": _check_turns,
    "max_cost_usd": check_dollars,
    "schema": _check_object,
    "images": _check_images,
    "timeout_seconds": check_timeout,
    "metadata": _check_object,
    "env": _check_env,
}
