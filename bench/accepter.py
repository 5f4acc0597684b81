"""The other process of `wake`: accepts a message whenever it is told to, and says when it began.

It reads lines: `ping` is answered at once, anything else is the id of an agent to write to.
"""

import sys
import time
from pathlib import Path

import anyio

from bench import setting
from steadyrun.model.ids import AgentId
from steadyrun.model.item import Message


async def main(home: Path) -> None:
    async with setting.opened(home) as store:
        # Waiting here blocks the loop, and nobody minds: there is nothing else to do in between.
        for line in iter(sys.stdin.readline, ""):
            word, begin = line.strip(), time.monotonic_ns()
            if word != "ping":
                await store.accept(Message(AgentId(word), "Wake up."))
            print(begin, flush=True)


if __name__ == "__main__":
    anyio.run(main, Path(sys.argv[1]))
