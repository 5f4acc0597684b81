"""Calls an operation: in the daemon if one answers, otherwise in this process if possible.

Where the operation is executed, it is also decided whether this process may call it.
"""

import sys
from argparse import Namespace
from typing import Any

import msgspec
from msgspec import Struct

from steadyrun.api import client
from steadyrun.app.operations import open_operations
from steadyrun.cli.output.format import to_json
from steadyrun.cli.output.tables import format_answer
from steadyrun.config import Config, load
from steadyrun.errors import DaemonNotAnswering, DaemonUnreachable, InvalidUsage, RpcClosed
from steadyrun.operations.access.execution import call_here
from steadyrun.operations.registry import BY_NAME, Operation


async def run_operation(args: Namespace) -> int:
    """Call the operation of a command and print the answer."""
    operation = BY_NAME[args.operation]
    request = parse_request(args, operation)
    answer, _ = await call_operation(load(), operation, request)
    print_answer(operation, request, answer, as_json=args.json)
    return 0


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


async def call_operation(
    config: Config, operation: Operation, request: Struct
) -> tuple[Any, DaemonUnreachable | None]:
    """Return the answer, and why the daemon did not give it; None if it did. That a daemon runs and
    does not answer is printed first: if it is stopped in the middle of a write, the store is busy.
    """
    home = config.locations.home
    try:
        return await client.call(home, operation, request), None
    except DaemonUnreachable as error:
        if operation.place == "daemon":
            raise
        missing = error
        if isinstance(error, DaemonNotAnswering):
            print(f"{error.message}\n  {error.hint}", file=sys.stderr, flush=True)
    except RpcClosed as error:
        # The daemon has ended and may have done it. It is repeated only if that is harmless.
        if operation.place == "daemon" or not _is_safe_to_repeat(operation, request):
            raise
        missing = DaemonUnreachable(home, found=error.message)
    async with open_operations(config) as context:
        return await call_here(context, operation, request), missing


def _is_safe_to_repeat(operation: Operation, request: Struct) -> bool:
    return operation.scope == "read" or getattr(request, "key", None) is not None


def print_answer(operation: Operation, request: Struct, answer: Struct, *, as_json: bool) -> None:
    if as_json:
        print(to_json(answer))
    else:
        for line in format_answer(operation.name, request, answer):
            print(line)
