"""Executes operations for a process: in the name of its user, if it may call them."""

from dataclasses import replace
from typing import Any

from msgspec import Struct

from steadyrun.lib.processes.peer import PeerProcess, find_this_process
from steadyrun.operations.access.caller import name_user, require_person, require_same_user
from steadyrun.operations.context import OperationContext
from steadyrun.operations.registry import Operation

# What a process of an agent may call.
_FOR_AGENTS = ("read", "message")


async def call_for(
    peer: PeerProcess, context: OperationContext, operation: Operation, request: Struct
) -> Any:
    """Execute an operation for the process that requests it; `NotAllowed` if it may not."""
    require_same_user(peer)
    if operation.scope not in _FOR_AGENTS:
        require_person(context.home, operation.summary, peer=peer)
    return await operation.do(replace(context, caller=name_user(peer.uid)), request)


async def call_here(context: OperationContext, operation: Operation, request: Struct) -> Any:
    """Execute an operation for this process itself, by the same rules."""
    if operation.scope not in _FOR_AGENTS:
        require_person(context.home, operation.summary)
    name = name_user(find_this_process().uid)
    return await operation.do(replace(context, caller=name), request)
