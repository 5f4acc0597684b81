"""The commands `approve` and `deny`. Agents cannot use them."""

from argparse import Namespace

import anyio

from steadyrun.cli.inputs import find_user
from steadyrun.cli.invoke import call_operation, parse_request, print_answer
from steadyrun.config import is_started_by_agent, load
from steadyrun.errors import NotAllowed
from steadyrun.operations.registry import BY_NAME


def answer(args: Namespace) -> int:
    """Approve or deny a request, as the operation of the command says."""
    if is_started_by_agent():
        hint = "A user must do it, outside of the processes of agents."
        raise NotAllowed("an agent cannot answer approval requests", hint=hint)
    return anyio.run(_answer, args)


async def _answer(args: Namespace) -> int:
    operation = BY_NAME[args.operation]
    request = parse_request(args, operation, by=find_user())
    found, _ = await call_operation(load(), operation, request)
    print_answer(operation, request, found, as_json=args.json)
    return 0
