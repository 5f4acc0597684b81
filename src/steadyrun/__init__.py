"""A durable runtime for coding agents."""

from steadyrun.version import __version__

TYPE_CHECKING = False
if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager

    from steadyrun.config import Config
    from steadyrun.library import Steadyrun

__all__ = ["__version__", "open"]


def open(config: "Config | None" = None) -> "AbstractAsyncContextManager[Steadyrun]":  # noqa: A001
    """Open the home that the configuration names; see `steadyrun.library`."""
    # Imported here, because every command imports this file and most do not need the library.
    from steadyrun.library import open_library  # noqa: PLC0415

    return open_library(config)
