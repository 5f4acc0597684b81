"""The limit of `sessions`: epoll and os.read, and nothing else, for the same number of agents.

    bare_reader.py COUNT LINES PACE@GATE

It prints a line when all agents are there, and at the end how many lines it has read. The agents
are its forks and play the same lines as the agents of the other contenders. It runs as `python -I
-S`.
"""

import os
import select
import sys

_READ_BYTES = 1 << 16


def main(count: int, path: str, pace: str) -> None:
    sys.path.insert(0, os.path.dirname(__file__))  # noqa: PTH120 (pathlib is half of the start)
    import fake_agent  # type: ignore[import-not-found] # noqa: PLC0415

    poll, lines = select.epoll(), 0
    for _ in range(count):
        of, to = os.pipe()
        if not os.fork():
            os.close(of)
            os.dup2(to, 1)
            fake_agent.main("raw", path, pace)
            os._exit(0)
        os.close(to)
        poll.register(of, select.EPOLLIN)
    os.write(1, b"running\n")
    while count:
        for descriptor, _ in poll.poll():
            if data := os.read(descriptor, _READ_BYTES):
                lines += data.count(b"\n")
            else:
                poll.unregister(descriptor)
                os.close(descriptor)
                count -= 1
    os.write(1, b"%d\n" % lines)


if __name__ == "__main__":
    main(int(sys.argv[1]), *sys.argv[2:4])
