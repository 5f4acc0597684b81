"""The second process of `wake`: accepts a message for each line it reads, and prints when it began.

The line `ping` is answered at once; any other line is the id of an agent that gets a message.
"""

import sys
import time
from pathlib import Path

import anyio

from bench import store_setup
from steadyrun.model.ids import AgentId
from steadyrun.model.item import Message


async def main(home: Path) -> None:
    async with store_setup.open_store(home) as store:
        # Waiting here blocks the loop. That is harmless: the loop has no other task.
        for line in iter(sys.stdin.readline, ""):
            word, begin = line.strip(), time.monotonic_ns()
            if word != "ping":
                await store.accept(Message(AgentId(word), "Wake up."))
            print(begin, flush=True)


if __name__ == "__main__":
    anyio.run(main, Path(sys.argv[1]))
