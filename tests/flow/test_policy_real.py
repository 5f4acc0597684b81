"""Real CLIs apply the policy of an agent: tools that their model is offered, and files."""

from dataclasses import replace
from pathlib import Path
from typing import get_args

import anyio
import pytest

from steadyrun.errors import AbilityMissing, FileUnusable
from steadyrun.model.budget import Budget
from steadyrun.model.policy import DENIED, TIERS, TOOLS, Mode, Policy, Tier
from steadyrun.testing.model_servers.content import answer
from tests.support.codex_harness import codex_harness, run_command
from tests.support.real_agents import real_agent
from tests.support.real_cli import real_claude
from tests.support.real_cli_harness import CLAUDE, CODEX, CliHarness, cli_harness


def offered(folder: Path, policy: Policy, permissions: str = "") -> set[str]:
    """The tools that the model of Claude Code is offered."""
    with cli_harness(folder, [answer("Yes.")]) as harness:
        if permissions:
            (harness.cwd / "PERMISSIONS.json").write_text(permissions)

        async def main() -> None:
            async with real_agent(harness, policy) as (daemon, ada):
                assert (await daemon.send_and_wait(ada, "Are you?")).status == "completed"

        anyio.run(main)
        return set(harness.server.main_requests[0].tools)


@pytest.mark.parametrize("tier", TIERS)
def test_claude_is_offered_the_tools_of_its_tier(tmp_path: Path, tier: Tier) -> None:
    assert offered(tmp_path, Policy("full_auto", tier=tier)) == set(TIERS[tier])


def test_denied_tools_are_not_offered_to_claude(tmp_path: Path) -> None:
    found = offered(tmp_path, Policy("full_auto", deny=("Bash", "Agent", "WebSearch")))

    assert {"Read", "Edit", "Write", "WebFetch"} <= found
    assert not found & {"Bash", "Agent", "WebSearch", *DENIED}


def test_permissions_file_removes_tools_and_adds_none(tmp_path: Path) -> None:
    policy = Policy("full_auto", ("Read", "Edit", "Bash"))

    found = offered(tmp_path, policy, '{"tools": ["Read", "Bash", "Write"], "note": "Look."}')

    assert found == {"Read", "Bash"}


def test_changed_permissions_file_removes_tools_from_the_next_turn_on(tmp_path: Path) -> None:
    with cli_harness(tmp_path, [answer("One."), answer("Two.")]) as harness:

        async def main() -> None:
            async with real_agent(harness, Policy("full_auto", tier="full")) as (daemon, ada):
                await daemon.send_and_wait(ada, "one")
                (harness.cwd / "PERMISSIONS.json").write_text('{"tier": "readonly"}')
                await daemon.send_and_wait(ada, "two")

                # Another process, the same conversation.
                first, second = await daemon.runs(ada)
                assert first.process != second.process
                assert first.resume_token == second.resume_token

        anyio.run(main)
        first, second = [set(ask.tools) for ask in harness.server.main_requests]
    assert first == set(TOOLS)
    assert second == set(TIERS["readonly"])


@pytest.mark.parametrize("text", ["[]", '{"tier": "readonyl"}', '{"tools": ["Raed"]}'])
def test_invalid_permissions_file_starts_no_run(tmp_path: Path, text: str) -> None:
    with cli_harness(tmp_path, [answer("Never.")]) as harness:
        file = harness.cwd / "PERMISSIONS.json"
        file.write_text(text)

        async def main() -> None:
            async with real_agent(harness) as (daemon, ada):
                assert (await daemon.send_and_wait(ada, "work")).status == "failed"

                [run] = await daemon.runs(ada)
                assert run.error
                assert run.error.code == FileUnusable.code
                assert str(file) in run.error.message

        anyio.run(main)
        assert not harness.server.main_requests


def test_process_for_many_turns_is_not_started_with_the_budget_of_a_run(tmp_path: Path) -> None:
    program = tmp_path / "claude"
    program.write_text(f'#!/bin/sh\necho "$@" >>{tmp_path}/argv\nexec {real_claude()} "$@"\n')
    program.chmod(0o755)
    cli = replace(CLAUDE, program=lambda: program)

    with cli_harness(tmp_path, [answer("One."), answer("Two.")], cli=cli) as harness:

        async def main() -> None:
            policy = Policy("full_auto", budget=Budget(run=0.01))
            async with real_agent(harness, policy) as (daemon, ada):
                assert (await daemon.send_and_wait(ada, "one")).status == "completed"
                assert (await daemon.send_and_wait(ada, "two")).status == "completed"

        anyio.run(main)

    [argv] = (tmp_path / "argv").read_text().splitlines()
    assert "--permission-mode" in argv
    assert "--max-budget-usd" not in argv


# -- Codex

PATCH = """apply_patch <<'EOF'
*** Begin Patch
*** Add File: patched
+x
*** End Patch
EOF"""


def tried(folder: Path, policy: Policy, permissions: str = "") -> tuple[CliHarness, list[str]]:
    """Run a Codex whose model requests to read and to write; return its notes."""
    with codex_harness(
        folder, [run_command("cat there; touch made"), run_command(PATCH), answer("Done.")]
    ) as harness:
        (harness.cwd / "there").write_text("what is there")
        if permissions:
            (harness.cwd / "PERMISSIONS.json").write_text(permissions)

        async def main() -> list[str]:
            async with real_agent(harness, policy) as (daemon, ada):
                assert (await daemon.send_and_wait(ada, "work")).status == "completed"
                return await daemon.notes(ada)

        return harness, anyio.run(main)


UNWRITING = "Codex can still run commands, in a sandbox in which they cannot write"


@pytest.mark.parametrize("mode", get_args(Mode))
def test_codex_that_may_only_read_writes_nothing_in_any_mode(tmp_path: Path, mode: Mode) -> None:
    harness, notes = tried(tmp_path, Policy(mode, tier="readonly"))

    assert sorted(file.name for file in harness.cwd.iterdir()) == ["there"]
    assert "what is there" in str(harness.server.main_requests[1].messages)
    assert notes.count(UNWRITING) == 1


def test_permissions_file_makes_codex_read_only(tmp_path: Path) -> None:
    everything = Policy("dangerously_skip_permissions")

    harness, notes = tried(tmp_path, everything, '{"tier": "readonly"}')

    assert not (harness.cwd / "made").exists()
    assert not (harness.cwd / "patched").exists()
    assert notes.count(UNWRITING) == 1


def test_codex_with_all_tools_writes_as_its_mode_says(tmp_path: Path) -> None:
    harness, notes = tried(tmp_path, Policy("dangerously_skip_permissions", tier="full"))

    assert (harness.cwd / "made").exists()
    assert (harness.cwd / "patched").exists()
    assert UNWRITING not in notes


@pytest.mark.parametrize("is_denied", [False, True])
def test_codex_searches_the_web_unless_that_is_denied(tmp_path: Path, is_denied: bool) -> None:
    policy = Policy(CODEX.mode, deny=("WebSearch",) if is_denied else ())
    live = {"config": {"web_search": "live"}}
    with codex_harness(tmp_path, [answer("Done.")], options=live) as harness:

        async def main() -> None:
            async with real_agent(harness, policy) as (daemon, ada):
                assert (await daemon.send_and_wait(ada, "work")).status == "completed"

        anyio.run(main)
        assert ("web_search" in harness.server.main_requests[0].tools) == (not is_denied)


@pytest.mark.parametrize("permissions", ['{"tier": "standard"}', '{"tools": ["WebSearch"]}'])
def test_policy_that_codex_cannot_apply_starts_no_run(tmp_path: Path, permissions: str) -> None:
    with codex_harness(tmp_path, [answer("Never.")]) as harness:
        (harness.cwd / "PERMISSIONS.json").write_text(permissions)

        async def main() -> None:
            async with real_agent(harness) as (daemon, ada):
                assert (await daemon.send_and_wait(ada, "work")).status == "failed"

                [run] = await daemon.runs(ada)
                assert run.error
                assert run.error.code == AbilityMissing.code
                assert run.error.message.startswith("the provider codex cannot do this: tools (")

        anyio.run(main)
        assert not harness.server.main_requests
