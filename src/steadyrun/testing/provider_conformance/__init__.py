"""Checks that a provider keeps the contract of a Dialect, with one function for each promise.

Write a `ProviderHarness` for the provider, and await every promise with a new harness.
`ProviderPromise.find_skip_reason` returns the reason if a promise does not apply, because the
provider lacks an ability.
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
