"""Stops processes in a way that SIGCONT does not end: `tracer.py PID...`. Only SIGKILL ends them.

Prints `stopped` when all are stopped, and waits for their end.
"""

import ctypes
import os
import sys

SEIZE, INTERRUPT, WAIT_ALL = 0x4206, 0x4207, 0x40000000


def main(pids: list[int]) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    for pid in pids:
        for request in (SEIZE, INTERRUPT):
            if libc.ptrace(request, pid, None, None):
                os.write(1, os.strerror(ctypes.get_errno()).encode())
                return
        os.waitpid(pid, WAIT_ALL)
    os.write(1, b"stopped\n")
    left = set(pids)
    while left:
        pid, status = os.waitpid(-1, WAIT_ALL)
        if os.WIFSIGNALED(status) or os.WIFEXITED(status):
            left.discard(pid)


if __name__ == "__main__":
    main([int(word) for word in sys.argv[1:]])
