"""Reports the state of the daemon to systemd, if a unit of `Type=notify` has started it.

The protocol is that of sd_notify(3): datagrams of lines to the socket that the environment names.
"""

import os
import socket
from collections.abc import Callable, Mapping
from contextlib import suppress

import anyio

from steadyrun.lib.signal import Signal

# How often the status is reported if there is no watchdog.
_REPORT_SECONDS = 30.0
# How much more time a start gets with each report: it may have many processes to adopt.
_START_SECONDS = 60.0


class ServiceManager:
    """systemd, or nothing: without its socket, no method has an effect.

    States: starting (the start gets more time), ready (`report_ready` was called; the watchdog is
    served), stopping. The command `up` makes it and runs `serve` in a task of its event loop: a
    loop that is stuck does not serve the watchdog, and systemd starts the daemon again.
    """

    def __init__(self, environ: Mapping[str, str]) -> None:
        address = environ.get("NOTIFY_SOCKET", "")
        # A name that begins with @ is not in the file system.
        self._address = f"\0{address[1:]}" if address.startswith("@") else address
        self._watchdog_seconds = _read_watchdog(environ)
        self._describe: Callable[[], str] | None = None
        self._changed = Signal()

    def report_ready(self, describe: Callable[[], str]) -> None:
        """The daemon serves callers. `describe` returns its state in one line."""
        self._describe = describe
        self._send("READY=1", f"STATUS={describe()}")
        self._changed.notify()

    def report_end(self) -> None:
        self._send("STOPPING=1")

    async def serve(self) -> None:
        """Report until this is cancelled."""
        if not self._address:
            return
        while True:
            seen = self._changed.count
            with anyio.move_on_after(self._report()):
                await self._changed.wait(since=seen)

    def _report(self) -> float:
        """Send a report, and return the seconds until the next one is due."""
        if self._describe is None:
            self._send(f"EXTEND_TIMEOUT_USEC={_START_SECONDS * 1e6:.0f}")
            return _START_SECONDS / 4
        status = f"STATUS={self._describe()}"
        if self._watchdog_seconds is None:
            self._send(status)
            return _REPORT_SECONDS
        self._send("WATCHDOG=1", status)
        return self._watchdog_seconds / 2

    def _send(self, *lines: str) -> None:
        if not self._address:
            return
        # The daemon works without systemd, which may be about to restart itself.
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.setblocking(False)
            sender.sendto("\n".join(lines).encode(), self._address)


def _read_watchdog(environ: Mapping[str, str]) -> float | None:
    """The time within which the watchdog expects a report; None without a watchdog."""
    found, pid = environ.get("WATCHDOG_USEC", ""), environ.get("WATCHDOG_PID", "")
    is_ours = pid in {"", str(os.getpid())}
    return int(found) / 1e6 if is_ours and found.isdecimal() and int(found) else None
