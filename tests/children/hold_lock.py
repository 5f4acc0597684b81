"""Holds the lock on a file and says so on stdout; lets go when stdin ends, or when it is killed."""

import fcntl
import os
import sys


def main(path: str) -> None:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    os.write(1, b"held\n")
    sys.stdin.read()


if __name__ == "__main__":
    main(sys.argv[1])
