"""The real Codex keeps the same promises, with a simulated model behind it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from steadyrun.testing.model_servers.content import CallBlock, call
from steadyrun.testing.provider_conformance import Prompt, ProviderPromise
from tests.conformance.real import BEYOND_A_MODEL, PROMPTS, Kept, RealCli, every_promise
from tests.support.real_cli_harness import CODEX


def run(command: str) -> CallBlock:
    return call("exec_command", cmd=command)


REAL = RealCli(
    CODEX,
    run,
    asks=call(
        "exec_command",
        cmd="touch written.txt",
        sandbox_permissions="require_escalated",
        justification="may I?",
    ),
    not_applicable=frozenset({*BEYOND_A_MODEL, "check_steering_is_refused_where_unsupported"}),
    prompts={**PROMPTS, "leaves_tool": Prompt("leaves_tool")},
    # It goes on while a command still runs.
    more={"leaves_tool": call("exec_command", cmd="sleep 60", yield_time_ms=250)},
    # No command can leave its sandbox, not even to kill it.
    free=frozenset({"crashes", "leaves_process"}),
    arguments=("app-server",),
)


@pytest.fixture(scope="module")
def kept(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Kept]:
    yield from REAL.keep_all(request, tmp_path_factory)


@every_promise
def test_the_real_codex_keeps_its_promise(
    promise: ProviderPromise, kept: Kept, tmp_path: Path
) -> None:
    REAL.check(promise, kept, tmp_path)
