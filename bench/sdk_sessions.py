"""The SDK's part of `sessions`: many clients in one process, each with an agent of its own.

    python -m bench.sdk_sessions COUNT PROGRAM

Each client sends its agent one request and reads the answer to its end. The process prints when it
is ready, begins when it reads a line, and prints when all agents have begun and how many lines
came.
"""

import importlib
import sys
from typing import Any

import anyio
import anyio.to_thread


async def main(count: int, program: str) -> None:
    sdk: Any = importlib.import_module("claude_agent_sdk")
    clients = [sdk.ClaudeSDKClient(sdk.ClaudeAgentOptions(cli_path=program)) for _ in range(count)]
    print("ready", flush=True)
    await anyio.to_thread.run_sync(sys.stdin.readline)
    for client in clients:
        await client.connect()
        await client.query("Go.")
    readers = _Readers(sdk, count)
    async with anyio.create_task_group() as tasks:
        for client in clients:
            tasks.start_soon(readers.read, client)
    print(readers.lines, flush=True)
    for client in clients:
        await client.disconnect()


class _Readers:
    """Which agents have begun, and how many lines came."""

    def __init__(self, sdk: Any, count: int) -> None:
        self.lines = 0
        self._sdk, self._missing = sdk, count

    async def read(self, client: Any) -> None:
        async for message in client.receive_response():
            if isinstance(message, self._sdk.AssistantMessage):
                self.lines += 1
            elif isinstance(message, self._sdk.SystemMessage):
                self._missing -= 1
                if not self._missing:
                    print("running", flush=True)


if __name__ == "__main__":
    anyio.run(main, int(sys.argv[1]), sys.argv[2])
