"""How is an operation asked for? Of the daemon, if one answers; else it is done here, if it can."""

from argparse import Namespace
from typing import Any

import anyio
import msgspec
from msgspec import Struct

from steadyrun.api import client
from steadyrun.app.operations import open_desk
from steadyrun.cli.output import format as render
from steadyrun.cli.output.tables import format_answer
from steadyrun.config import Config, is_agents_own, load
from steadyrun.errors import DaemonUnreachable, InvalidUsage, NotAllowed, RpcClosed
from steadyrun.operations.registry import BY_NAME, Operation


def run_operation(args: Namespace) -> int:
    """Ask, and print the answer."""
    return anyio.run(_run_operation, args)


async def _run_operation(args: Namespace) -> int:
    operation = BY_NAME[args.operation]
    require_person(operation)
    given = parse_request(args, operation)
    answer, _ = await call_operation(load(), operation, given)
    print_answer(operation, given, answer, as_json=args.json)
    return 0


def require_person(operation: Operation) -> None:
    """Refuse what agents may not do, where an agent has started us."""
    if operation.scope == "admin" and is_agents_own():
        hint = "A person has to, outside of what agents start."
        raise NotAllowed(f"an agent cannot {operation.summary}", hint=hint)


def parse_request(args: Namespace, operation: Operation, **other: Any) -> Any:
    """What was typed as the operation's input; what was not typed is left to it."""
    fields = operation.request.__struct_fields__
    typed = {name: getattr(args, name, None) for name in fields} | other
    try:
        given = {name: value for name, value in typed.items() if value is not None}
        return msgspec.convert(given, operation.request)
    except msgspec.ValidationError as error:
        raise InvalidUsage(f"{operation.name}: {error}") from error


async def call_operation(config: Config, operation: Operation, given: Struct) -> tuple[Any, bool]:
    """The answer, and whether a daemon gave it."""
    try:
        return await client.call(config.places.home, operation, given), True
    except DaemonUnreachable:
        if operation.place == "daemon":
            raise
    except RpcClosed:
        # It is gone, and may have done it: here, too, only if that is harmless.
        if operation.place == "daemon" or not _is_safe_to_repeat(operation, given):
            raise
    async with open_desk(config) as desk:
        return await operation.do(desk, given), False


def _is_safe_to_repeat(operation: Operation, given: Struct) -> bool:
    return operation.scope == "read" or getattr(given, "key", None) is not None


def print_answer(operation: Operation, given: Struct, answer: Struct, *, as_json: bool) -> None:
    if as_json:
        print(render.to_json(answer))
    else:
        for line in format_answer(operation.name, given, answer):
            print(line)
