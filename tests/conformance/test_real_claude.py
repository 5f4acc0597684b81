"""The real Claude Code keeps the same promises, with a simulated model behind it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from steadyrun.testing.model_servers.content import CallBlock, call
from steadyrun.testing.provider_conformance import ProviderPromise
from tests.conformance.real import BEYOND_A_MODEL, Kept, RealCli, every_promise
from tests.support.real_cli_harness import CLAUDE


def run(command: str) -> CallBlock:
    return call("Bash", command=command)


REAL = RealCli(
    CLAUDE,
    run,
    asks=call("Write", file_path="written.txt", content="x"),
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


@pytest.fixture(scope="module")
def kept(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Kept]:
    yield from REAL.keep_all(request, tmp_path_factory)


@every_promise
def test_the_real_claude_code_keeps_its_promise(
    promise: ProviderPromise, kept: Kept, tmp_path: Path
) -> None:
    REAL.check(promise, kept, tmp_path)
