"""Identifies the process at the other end of a unix socket, as the kernel knows it."""

import errno
import os
import select
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from steadyrun.lib.processes.tree import read_start

# Linux 6.5 and later; the module `socket` does not have it yet.
_SO_PEERPIDFD = 77
_CREDENTIALS, _INTEGER = struct.Struct("3i"), struct.Struct("i")
_UNSUPPORTED = {errno.ENOPROTOOPT, errno.EOPNOTSUPP, errno.ENOSYS}


@dataclass(frozen=True, slots=True)
class PeerProcess:
    """A process that connected to a socket. Its id stays its own for as long as `is_running`.

    `pidfd` is a descriptor of the process. On a kernel without them, the time at which the process
    `started` stands for it. The process has ended if it has neither.
    """

    pid: int
    uid: int
    pidfd: int | None
    started: int | None

    def is_running(self) -> bool:
        """Whether the process itself runs, and no other process has got its id."""
        if self.pidfd is None:
            return self.started is not None and read_start(self.pid) == self.started
        ended = select.poll()
        ended.register(self.pidfd, select.POLLIN)
        return not ended.poll(0)


@contextmanager
def open_peer(connection: socket.socket) -> Iterator[PeerProcess]:
    """The process that connected; it is valid in the block."""
    pid, uid = _read_credentials(connection)
    pidfd, started = _hold(connection, pid)
    try:
        yield PeerProcess(pid, uid, pidfd, started)
    finally:
        if pidfd is not None:
            os.close(pidfd)


def read_peer_pid(connection: socket.socket) -> int:
    """The process at the other end; for a client, the one that listens."""
    return _read_credentials(connection)[0]


def find_this_process() -> PeerProcess:
    """This process, as its own caller."""
    pid = os.getpid()
    return PeerProcess(pid, os.geteuid(), None, read_start(pid))


def _hold(connection: socket.socket, pid: int) -> tuple[int | None, int | None]:
    """The pidfd of the process, or the time of its start; neither if it has ended."""
    try:
        return _read_peer_pidfd(connection), None
    except OSError as error:
        if error.errno not in _UNSUPPORTED:
            return None, None
    try:
        return os.pidfd_open(pid), None
    except OSError:
        return None, read_start(pid)


def _read_credentials(connection: socket.socket) -> tuple[int, int]:
    found = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, uid, _ = _CREDENTIALS.unpack(found)
    return pid, uid


def _read_peer_pidfd(connection: socket.socket) -> int:
    raw = connection.getsockopt(socket.SOL_SOCKET, _SO_PEERPIDFD, _INTEGER.size)
    (pidfd,) = _INTEGER.unpack(raw)
    return int(pidfd)
