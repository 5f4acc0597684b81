"""Calls an operation: in the daemon if one answers, otherwise in this process if possible."""

from argparse import Namespace
from typing import Any

import anyio
import msgspec
from msgspec import Struct

from steadyrun.api import client
from steadyrun.app.operations import open_operations
from steadyrun.cli.output.format import to_json
from steadyrun.cli.output.tables import format_answer
from steadyrun.config import Config, is_started_by_agent, load
from steadyrun.errors import DaemonUnreachable, InvalidUsage, NotAllowed, RpcClosed
from steadyrun.operations.registry import BY_NAME, Operation


def run_operation(args: Namespace) -> int:
    """Call the operation of a command and print the answer."""
    return anyio.run(_run_operation, args)


async def _run_operation(args: Namespace) -> int:
    operation = BY_NAME[args.operation]
    require_person(operation)
    request = parse_request(args, operation)
    answer, _ = await call_operation(load(), operation, request)
    print_answer(operation, request, answer, as_json=args.json)
    return 0


def require_person(operation: Operation) -> None:
    """Refuse an admin operation if an agent has started this process."""
    if operation.scope == "admin" and is_started_by_agent():
        hint = "A user must do it, outside of the processes of agents."
        raise NotAllowed(f"an agent cannot {operation.summary}", hint=hint)


def parse_request(args: Namespace, operation: Operation, **other: Any) -> Any:
    """Convert the typed arguments to the request of the operation. An argument that was not typed
    gets its default."""
    fields = operation.request.__struct_fields__
    typed = {name: getattr(args, name, None) for name in fields} | other
    try:
        values = {name: value for name, value in typed.items() if value is not None}
        return msgspec.convert(values, operation.request)
    except msgspec.ValidationError as error:
        raise InvalidUsage(f"{operation.name}: {error}") from error


async def call_operation(config: Config, operation: Operation, request: Struct) -> tuple[Any, bool]:
    """Return the answer, and whether the daemon gave it."""
    try:
        return await client.call(config.locations.home, operation, request), True
    except DaemonUnreachable:
        if operation.place == "daemon":
            raise
    except RpcClosed:
        # The daemon has ended and may have done it. It is repeated only if that is harmless.
        if operation.place == "daemon" or not _is_safe_to_repeat(operation, request):
            raise
    async with open_operations(config) as context:
        return await operation.do(context, request), False


def _is_safe_to_repeat(operation: Operation, request: Struct) -> bool:
    return operation.scope == "read" or getattr(request, "key", None) is not None


def print_answer(operation: Operation, request: Struct, answer: Struct, *, as_json: bool) -> None:
    if as_json:
        print(to_json(answer))
    else:
        for line in format_answer(operation.name, request, answer):
            print(line)
