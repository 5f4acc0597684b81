"""The real Claude Code keeps the same promises, with a simulated model behind it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from steadyrun.testing.model_servers.content import Call, call
from steadyrun.testing.provider_conformance import Promise
from tests.conformance.real import BEYOND_A_MODEL, Kept, RealCli, every_promise
from tests.support.real_cli_stage import CLAUDE


def run(command: str) -> Call:
    return call("Bash", command=command)


REAL = RealCli(
    CLAUDE,
    run,
    asks=call("Write", file_path="written.txt", content="x"),
    not_applicable=frozenset(
        {
            *BEYOND_A_MODEL,
            "check_what_it_cannot_do_is_refused_by_name",
            "check_who_cannot_be_steered_says_so",
            "check_another_input_is_refused_by_name",
            "check_a_tool_that_is_open_at_the_end_is_closed",
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
    promise: Promise, kept: Kept, tmp_path: Path
) -> None:
    REAL.check(promise, kept, tmp_path)
