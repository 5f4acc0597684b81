"""A real CLI with a simulated model behind it, for the promises of the provider suite.

The first word of a prompt selects what the simulated model does.
"""

import subprocess
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
import pytest

from steadyrun.config import ProviderSettings
from steadyrun.testing.model_servers.content import CallBlock, answer, make_text
from steadyrun.testing.model_servers.faults import StreamGate
from steadyrun.testing.model_servers.openai_responses import REMINDERS
from steadyrun.testing.model_servers.protocol import ModelRequest, ServerStep, collect_user_texts
from steadyrun.testing.provider_conformance import (
    GO,
    LONG_BYTES,
    PROMISES,
    Prompt,
    ProviderPromise,
    Situation,
)
from tests.conformance.harness import CANARY, LibraryHarness
from tests.support.real_cli_harness import TIMEOUT_SECONDS, Cli

WORKERS = 3
Kept = Mapping[str, "Future[None]"]
_DEEDS: tuple[Situation, ...] = (
    "waits", "hangs", "crashes", "leaves_process", "asks", "tells_secret", "tells_secret_in_pieces",
)  # fmt: skip
PROMPTS: dict[Situation, Prompt] = {
    "answers": Prompt("answers", "42"),
    "learns": Prompt("learns 7f3a"),
    "recalls": Prompt("recalls", "7f3a"),
    "is_long": Prompt("x" * LONG_BYTES),
    **{deed: Prompt(deed) for deed in _DEEDS},
}
# A model cannot make a CLI do these.
BEYOND_A_MODEL = {
    "check_a_full_disk_ends_the_run",
    "check_an_unresponsive_run_is_killed",
    "check_an_unknown_frame_is_kept",
    "check_a_line_without_json_is_kept",
    "check_a_line_of_invalid_utf8_is_kept",
    "check_stderr_does_not_block_and_is_not_stored",
}
# These situations are caused by a command that needs no approval.
SHELL: dict[str, str] = {
    "waits": f"until test -e {GO}; do sleep 0.02; done",
    "crashes": "kill -KILL $PPID; sleep 60",
    "leaves_process": "setsid sleep 60 >/dev/null 2>&1 & echo started",
    "tells_secret": 'echo "it is $CANARY_KEY."',
}


@dataclass(frozen=True)
class RealCli:
    """A CLI, a tool call of its model that must be approved, and the promises that do not apply.

    `options` are those of the provider. `more` are situations that only this CLI has, `free` those
    that it gets into only when it may do everything. With `arguments` the CLI starts and ends at
    once: that makes its database before many processes start together.
    """

    cli: Cli
    request_file: CallBlock
    not_applicable: frozenset[str]
    options: Mapping[str, Any] = field(default_factory=dict)
    prompts: Mapping[Situation, Prompt] = field(default_factory=lambda: PROMPTS)
    more: Mapping[str, CallBlock] = field(default_factory=dict)
    free: frozenset[Situation] = frozenset()
    arguments: tuple[str, ...] = ()

    def keep_all(
        self, request: pytest.FixtureRequest, places: pytest.TempPathFactory
    ) -> Iterator[Kept]:
        """Every promise that is wanted and applies, some at a time: most of it is waiting."""
        names = {item.name for item in request.session.items if item.path == request.path}
        with self.cli.server(self._model) as server, ThreadPoolExecutor(WORKERS) as pool:
            yield {
                promise.name: pool.submit(self._keep, promise, places.mktemp("real"), server.url)
                for promise in PROMISES
                if any(self.cli.name in name and promise.name in name for name in names)
            }

    def check(self, promise: ProviderPromise, kept: Kept, place: Path) -> None:
        """It was kept, or is one of those that cannot be."""
        self.cli.program()
        why_not = promise.find_skip_reason(self._harness(place, ""))
        assert (promise.name in self.not_applicable) == (why_not is not None), why_not
        if why_not:
            pytest.skip(f"{self.cli.name}: {why_not}")

        kept[promise.name].result()

    def _keep(self, promise: ProviderPromise, place: Path, url: str) -> None:
        made = self._harness(place, url)
        if promise.find_skip_reason(made) is None:
            self._warm(place, url)
            anyio.run(promise.check, made)

    def _warm(self, place: Path, url: str) -> None:
        if self.arguments:
            subprocess.run(
                (self.cli.program(), *self.arguments),
                env=self.cli.environment(place, url),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=TIMEOUT_SECONDS,
                check=True,
            )

    def _harness(self, place: Path, url: str) -> LibraryHarness:
        env = self.cli.environment(place, url)
        for inherited in ("PATH", "HOME", "LANG"):
            del env[inherited]
        settings = ProviderSettings(
            command=(str(self.cli.program()),), env=env, options=dict(self.options)
        )
        return LibraryHarness(self.cli.name, place, settings, self.prompts, free=self.free)

    def _model(self, ask: ModelRequest) -> ServerStep:
        said = [*collect_user_texts(ask.messages, ("<system-reminder>", *REMINDERS))]
        # What comes while it hangs does not end that.
        *before, deed = ["", *(words.split()[0] for words in said if words)]
        if before[-1:] == ["hangs"] and deed == "more":
            deed = "hangs"
        if ask.results:
            told = f", it is {CANARY}" if deed == "tells_secret" else ""
            return answer(f"{deed} done{told}")
        return self._begin(deed, str(ask.messages))

    def _begin(self, deed: str, history: str) -> ServerStep:
        match deed:
            case "answers":
                return answer(make_text("4", "2"))
            case "recalls":
                return answer("7f3a" if "learns 7f3a" in history else "nothing")
            case "hangs":
                return answer(make_text("one", StreamGate()))
            case "asks":
                return answer(self.request_file)
            case "tells_secret_in_pieces":
                return answer(make_text("it is ", *CANARY, "."))
            case _ if deed in self.more:
                return answer("one", self.more[deed])
            case _ if deed in SHELL:
                return answer("one", self.cli.run_command(SHELL[deed]))
            case _:
                return answer("one")


every_promise = pytest.mark.parametrize("promise", PROMISES, ids=lambda promise: promise.name)
