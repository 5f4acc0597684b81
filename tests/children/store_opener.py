"""Opens a store when told to, writes one item into it and says how that went.

store_opener.py HOME       says `ready`, waits for a line, says `opened`, then the outcome
"""

import contextlib
import os
import sys
from pathlib import Path

import anyio
import msgspec

from steadyrun.errors import NameTaken, SteadyrunError
from steadyrun.model.agent import Agent
from steadyrun.model.ids import AgentId
from steadyrun.model.item import Message
from steadyrun.stores.sqlite import SqliteStore

AGENT = AgentId("agt_1")


async def main(home: Path) -> None:
    _say("ready")
    sys.stdin.readline()
    try:
        _say({"seq": await _accept_one(home)})
    except SteadyrunError as error:
        kind = type(error).__name__
        _say({"error": kind, "retryable": error.retryable, "message": str(error)})


async def _accept_one(home: Path) -> int:
    store = await SqliteStore.open(home)
    _say("opened")
    # Another process may have added it first.
    with contextlib.suppress(NameTaken):
        await store.add_agent(Agent(AGENT, "one", ("claude",), str(home)))
    accepted = await store.accept(Message(AGENT, str(os.getpid())))
    await store.close()
    return accepted.item.seq


def _say(answer: object) -> None:
    os.write(1, msgspec.json.encode(answer) + b"\n")


if __name__ == "__main__":
    anyio.run(main, Path(sys.argv[1]))
