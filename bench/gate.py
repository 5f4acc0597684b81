"""When do many agents begin to print? In rounds, once somebody has opened their gate."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class Gate:
    """A FIFO that agents wait at; see `fake_agent`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        os.mkfifo(path)

    @contextmanager
    def opened(self, begin: float, *, every: float = 0.0, rounds: int = 1) -> Iterator[None]:
        """Let them begin at that time of the monotonic clock, with a round each so many seconds."""
        Path(f"{self.path}.plan").write_text(f"{begin} {every} {rounds}")
        # For both: to open it for writing alone would wait for the first agent.
        descriptor = os.open(self.path, os.O_RDWR)
        try:
            yield
        finally:
            os.close(descriptor)
