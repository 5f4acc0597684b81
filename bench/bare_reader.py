"""The limit of `sessions`: epoll, os.read, and nothing else, for as many agents.

    bare_reader.py COUNT LINES PACE@GATE

It says when all agents are there, and in the end how many lines it has read. The agents are forks
of it, which play their lines as those of the others do. It runs alone: `python -I -S`.
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
