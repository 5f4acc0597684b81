"""Lets many agents begin to print at the same time, in rounds."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class Gate:
    """A FIFO at which agents wait; see `fake_agent`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        os.mkfifo(path)

    @contextmanager
    def open_at(self, begin: float, *, every: float = 0.0, rounds: int = 1) -> Iterator[None]:
        """Let the agents begin at that time of the monotonic clock, with one round per interval."""
        Path(f"{self.path}.plan").write_text(f"{begin} {every} {rounds}")
        # For reading and writing: opening it for writing alone would wait for the first agent.
        descriptor = os.open(self.path, os.O_RDWR)
        try:
            yield
        finally:
            os.close(descriptor)
