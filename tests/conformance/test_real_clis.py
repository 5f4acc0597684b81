"""The real CLIs keep the promises of the provider suite, with a simulated model behind them."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from steadyrun.testing.model_servers.content import call
from steadyrun.testing.provider_conformance import Prompt, ProviderPromise
from tests.conformance.real import BEYOND_A_MODEL, PROMPTS, Kept, RealCli, every_promise
from tests.support.real_cli_harness import CLAUDE, CODEX

REAL_CLAUDE = RealCli(
    CLAUDE,
    request_file=call("Write", file_path="written.txt", content="x"),
    not_applicable=frozenset(
        {
            *BEYOND_A_MODEL,
            "check_a_missing_ability_is_refused_by_name",
            "check_steering_is_refused_where_unsupported",
            "check_a_changed_input_is_refused_by_name",
            "check_an_open_tool_is_closed_at_the_end",
        }
    ),
    options={"settings": {"permissions": {"allow": ["Bash"]}}},
)
REAL_CODEX = RealCli(
    CODEX,
    request_file=CODEX.request_command("touch written.txt"),
    not_applicable=frozenset({*BEYOND_A_MODEL, "check_steering_is_refused_where_unsupported"}),
    prompts={**PROMPTS, "leaves_tool": Prompt("leaves_tool")},
    # Codex ends its turn while a command still runs.
    more={"leaves_tool": call("exec_command", cmd="sleep 60", yield_time_ms=250)},
    # No command can leave the sandbox of Codex, not even to kill Codex.
    free=frozenset({"crashes", "leaves_process"}),
    arguments=("app-server",),
)


@pytest.fixture(
    scope="module", params=[REAL_CLAUDE, REAL_CODEX], ids=lambda real: f"{real.cli.name}"
)
def checked(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[RealCli, Kept]]:
    """A CLI, and the promises that are being checked with it, some at a time."""
    real: RealCli = request.param
    for kept in real.keep_all(request, tmp_path_factory):
        yield real, kept


@every_promise
def test_real_cli_keeps_its_promise(
    promise: ProviderPromise, checked: tuple[RealCli, Kept], tmp_path: Path
) -> None:
    real, kept = checked
    real.check(promise, kept, tmp_path)
