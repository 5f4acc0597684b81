"""A provider through `steadyrun.library`, for the promises of the provider suite."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

import steadyrun
from steadyrun.config import Config, ProviderSettings, load
from steadyrun.library import RunHandle, Steadyrun
from steadyrun.model.secret import Secret
from steadyrun.providers.registry import make_dialect
from steadyrun.runtime.run.timeouts import Timeouts
from steadyrun.store import Store
from steadyrun.stores.sqlite import SqliteStore
from steadyrun.testing.provider_conformance import Prompt, Situation

CANARY = "canary-7f3a-of-the-environment"
# The keeper's reserve is 64 MiB.
BALLAST_BYTES = 48 << 20
# A CLI that ignores an interrupt is killed sooner than after the default of ten seconds.
_IMPATIENT = Timeouts(interrupt_seconds=2.0)


class Program:
    """The library, for one provider in one directory."""

    def __init__(self, library: Steadyrun, provider: str, cwd: Path, free: frozenset[str]) -> None:
        self._library, self._provider, self._cwd, self._free = library, provider, cwd, free

    async def start(self, prompt: str, **wishes: Any) -> RunHandle:
        cwd = wishes.pop("cwd", self._cwd)
        if prompt in self._free:
            wishes["mode"] = "dangerously_skip_permissions"
        return await self._library.start(prompt, provider=self._provider, cwd=cwd, **wishes)

    async def run(self, run: str) -> RunHandle:
        return await self._library.run(run)


class LibraryHarness:
    """A provider as it is configured in a home of its own.

    `free` are the situations that it only gets into when it may do everything.
    """

    def __init__(
        self,
        provider: str,
        place: Path,
        settings: ProviderSettings,
        prompts: Mapping[Situation, Prompt],
        *,
        has_small_disk: bool = False,
        free: frozenset[Situation] = frozenset(),
    ) -> None:
        self.provider = provider
        self.abilities = make_dialect(provider, settings.options).abilities
        self.home, self.cwd = place / "home", place
        self.secret = Secret(CANARY)
        self.has_small_disk = has_small_disk
        self._settings, self._prompts = settings, prompts
        self._free = frozenset(prompts[situation].text for situation in free)

    def find_prompt(self, situation: Situation) -> Prompt | None:
        return self._prompts.get(situation)

    @asynccontextmanager
    async def open_library(
        self, *, command: tuple[str, ...] | None = None
    ) -> AsyncIterator[Program]:
        async with steadyrun.open(self._config(command)) as library:
            yield Program(library, self.provider, self.cwd, self._free)

    @asynccontextmanager
    async def open_store(self) -> AsyncIterator[Store]:
        store = await SqliteStore.open(self.home)
        try:
            yield store
        finally:
            await store.close()

    def fill_disk(self) -> None:
        (self.cwd / "ballast").write_bytes(bytes(BALLAST_BYTES))

    def _config(self, command: tuple[str, ...] | None) -> Config:
        environ = {"PATH": "/usr/bin:/bin", "HOME": str(self.cwd), "SECRET": CANARY}
        config = load(home=self.home, cwd=self.cwd, environ=environ)
        settings = msgspec.structs.replace(
            self._settings,
            command=command or self._settings.command,
            env={**self._settings.env, "CANARY_KEY": "${SECRET}"},
        )
        both = msgspec.structs.replace(
            config.settings, providers={self.provider: settings}, clocks=_IMPATIENT
        )
        return replace(config, settings=both)
