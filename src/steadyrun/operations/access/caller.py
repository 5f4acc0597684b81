"""Decides whether a calling process is a person's or an agent's, and names its user.

The decision rests on what the kernel says about the process: its user, and the processes that it
descends from. Nothing that the caller sends is used. See docs/security.md.
"""

import os
import pwd
from pathlib import Path

from steadyrun.drivers.lineage import PROCESSES, find_run_process, read_mark
from steadyrun.errors import NotAllowed
from steadyrun.lib.processes.peer import PeerProcess, find_this_process

_HINT = "A user must do it, outside of the processes of agents."


def require_same_user(peer: PeerProcess) -> None:
    if peer.uid != os.geteuid():
        raise NotAllowed("this daemon belongs to another user")


def require_person(home: Path, action: str, *, peer: PeerProcess | None = None) -> None:
    """Refuse an action to processes that descend from a run of this home.

    Without a `peer`, the caller is this process. A process that carries the mark of a run of
    another home is refused as well, unless this daemon was itself started by that run.
    """
    caller = peer or find_this_process()
    own_mark = read_mark(os.getpid()) if peer else None
    try:
        process = find_run_process(caller.pid, home / PROCESSES)
    except TimeoutError as error:
        raise _build_refusal(action, str(error)) from error
    mark = read_mark(caller.pid)
    if process is not None or mark != own_mark:
        raise _build_refusal(action, f"process {caller.pid} was started by {process or mark}")
    # Checked last: an id that was used again in between has shown the ancestors of another process.
    if not caller.is_running():
        raise _build_refusal(action, f"process {caller.pid} has ended, so its origin is unknown")


def name_user(uid: int) -> str:
    """The name under which answers of this user are recorded, and by which `approvers` are
    checked."""
    try:
        return f"cli:{pwd.getpwuid(uid).pw_name}"
    except KeyError:
        return f"cli:{uid}"


def _build_refusal(action: str, reason: str) -> NotAllowed:
    return NotAllowed(f"an agent cannot {action}: {reason}", hint=_HINT)
