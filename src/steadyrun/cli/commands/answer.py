"""Who answers what an agent asks? The person at this terminal, and never an agent."""

import os
import pwd
from argparse import Namespace

import anyio

from steadyrun.cli.invoke import call_operation, parse_request, print_answer
from steadyrun.config import is_agents_own, load
from steadyrun.errors import NotAllowed
from steadyrun.operations.registry import BY_NAME


def answer(args: Namespace) -> int:
    """Approve or deny."""
    if is_agents_own():
        hint = "A person has to, outside of what agents start."
        raise NotAllowed("an agent cannot answer what agents ask", hint=hint)
    return anyio.run(_answer, args)


async def _answer(args: Namespace) -> int:
    operation = BY_NAME[args.operation]
    given = parse_request(args, operation, by=find_user())
    found, _ = await call_operation(load(), operation, given)
    print_answer(operation, given, found, as_json=args.json)
    return 0


def find_user() -> str:
    """The name of whoever types, as the machine knows it."""
    try:
        return f"cli:{pwd.getpwuid(os.getuid()).pw_name}"
    except KeyError:
        return f"cli:{os.getuid()}"
