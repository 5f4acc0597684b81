"""Does a provider keep what its Dialect promises? One function per promise.

Write a `ProviderHarness` for the provider and await every promise with a new one. A promise that
does not apply, because the provider cannot do what it is about, says so by `why_not`.
"""

from types import ModuleType

from steadyrun.testing.provider_conformance import lifecycle, messages, output, stopping
from steadyrun.testing.provider_conformance.harness import (
    FLOOD_BYTES,
    GO,
    LONG_BYTES,
    Prompt,
    ProviderHarness,
    ProviderPromise,
    Situation,
)


def _collect_promises(*rooms: ModuleType) -> tuple[ProviderPromise, ...]:
    return tuple(
        each for room in rooms for each in vars(room).values() if isinstance(each, ProviderPromise)
    )


PROMISES = _collect_promises(lifecycle, stopping, messages, output)

__all__ = [
    "FLOOD_BYTES",
    "GO",
    "LONG_BYTES",
    "PROMISES",
    "Prompt",
    "ProviderHarness",
    "ProviderPromise",
    "Situation",
]
