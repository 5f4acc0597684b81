"""Names the built-in kinds of providers for the help of commands, without importing a provider."""

from steadyrun.providers.registry import BUILT_IN


def format_kinds() -> str:
    """List the built-in kinds for a line of help."""
    return ", ".join(sorted(BUILT_IN))
