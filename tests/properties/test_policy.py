"""Tests that a compiled policy never allows more than the policy, for every provider."""

from collections.abc import Collection
from functools import partial
from pathlib import Path
from typing import Any, get_args

import anyio
import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from steadyrun.dialect import LaunchRequest, Turn
from steadyrun.drivers.launcher import KeeperLauncher, ProviderSetup
from steadyrun.errors import AbilityMissing
from steadyrun.lib.clock import SystemClock
from steadyrun.lib.file_follower import FileWatches
from steadyrun.model.agent import Agent
from steadyrun.model.ids import AgentId
from steadyrun.model.policy import (
    DENIED,
    MORE_TOOLS,
    TIERS,
    TOOLS,
    Mode,
    Permissions,
    Policy,
    Tier,
    check_tools,
    compute_rights,
    read_permissions,
)
from steadyrun.providers.claude import launch as claude_launch
from steadyrun.providers.claude.launch import ClaudeOptions
from steadyrun.providers.codex import launch as codex_launch
from steadyrun.providers.codex.launch import CodexOptions
from steadyrun.providers.registry import BUILT_IN, make_dialect
from steadyrun.providers.scripted.dialect import Scripted
from steadyrun.providers.shell import Shell
from steadyrun.runtime.prompt.builder import build_launch_request
from steadyrun.runtime.prompt.system import SystemPrompt
from steadyrun.runtime.run.permissions import apply_permissions

COMBINATIONS = 10_000
MODES: tuple[Mode, ...] = get_args(Mode)
NAMES = (*TOOLS, *MORE_TOOLS, "mcp__files__read")

lists = st.lists(st.sampled_from(NAMES), max_size=8).map(tuple)
tiers: st.SearchStrategy[Tier | None] = st.sampled_from([None, *TIERS])
some_tools = st.one_of(
    st.tuples(tiers, st.none()), st.tuples(st.sampled_from([None, "custom"]), lists)
)
policies = st.builds(
    lambda mode, chosen, deny: Policy(mode, chosen[1], tier=chosen[0], deny=deny),
    st.sampled_from(MODES),
    some_tools,
    st.lists(st.sampled_from((*NAMES, *DENIED)), max_size=4).map(tuple),
)
files = st.none() | st.builds(lambda chosen: Permissions(*chosen), some_tools)


def allows(tier: Tier | None, tools: Collection[str] | None, name: str) -> bool:
    """What a person would say who reads a tier and a list."""
    if tier is not None and tier != "custom":
        return name in TIERS[tier]
    return tools is None or name in tools


def is_allowed(policy: Policy, file: Permissions | None, name: str) -> bool:
    return (
        allows(policy.tier, policy.allowed_tools, name)
        and (file is None or allows(file.tier, file.tools, name))
        and name not in policy.deny
        and name not in DENIED
    )


def test_no_combination_breaks_a_policy_rule() -> None:
    seen: set[bytes] = set()

    async def main() -> None:
        setups = {name: ProviderSetup(partial(make_dialect, name, {}), dict) for name in BUILT_IN}
        with FileWatches() as watches:
            # Nothing is launched.
            check(KeeperLauncher(Path("/nowhere"), setups, clock=SystemClock(), watches=watches))

    @settings(max_examples=3_500, deadline=None, database=None, derandomize=True)
    @given(policy=policies, file=files)
    def check(drivers: KeeperLauncher, policy: Policy, file: Permissions | None) -> None:
        check_rights(policy, file)
        for provider in BUILT_IN:
            check_kept(drivers, provider, policy, file)
            seen.add(msgspec.json.encode((provider, policy, file)))

    anyio.run(main)

    assert len(seen) >= COMBINATIONS


def check_rights(policy: Policy, file: Permissions | None) -> None:
    found = compute_rights(policy, file)
    alone = compute_rights(policy)

    assert {*DENIED, *policy.deny} == set(found.deny)
    assert found.mode == policy.mode
    # Nothing is lost, and nothing won: not by the file either.
    expected = {name for name in (*NAMES, *DENIED) if is_allowed(policy, file, name)}
    assert expected >= set(found.tools or ())
    assert found.tools is None or expected == set(found.tools)
    assert found.allowed <= alone.allowed | (set() if alone.tools else expected)
    assert not found.allowed & set(found.deny)


def check_kept(
    drivers: KeeperLauncher, provider: str, policy: Policy, file: Permissions | None
) -> None:
    agent = Agent(AgentId("agt_1"), "ada", (provider,), "/work", policy=policy)
    may = {name for name in NAMES if is_allowed(policy, file, name)}
    try:
        kept, notes = apply_permissions(drivers, agent, file)
    except AbilityMissing:
        # No provider refuses an agent with all tools, and these two accept any list of tools.
        assert provider not in {"claude", "scripted"}
        assert not set(TOOLS) <= may
        return
    turn = Turn("run_1", "true", mode=kept.policy.mode)
    request = build_launch_request(kept, turn, None, SystemPrompt(None))
    request = msgspec.structs.replace(request, directory="/home/processes/prc_1")
    KEPT[provider](request, may, policy, notes)


def claude(request: LaunchRequest, may: set[str], policy: Policy, notes: tuple[str, ...]) -> None:
    argv = claude_launch.launch(request, ClaudeOptions()).argv
    denied = argv[argv.index("--disallowedTools") + 1].split(",")

    assert {*DENIED, *policy.deny} <= set(denied)
    assert argv[argv.index("--permission-mode") + 1] == claude_launch.MODES[policy.mode]
    if "--tools" in argv:
        offered = set(argv[argv.index("--tools") + 1].split(",")) - {""}
        assert offered == may
    else:
        assert may >= set(TOOLS) - set(policy.deny)
    if {"Write", "Edit"} & set(policy.deny) and "Bash" in may:
        assert any("can do the same as the denied tools" in note for note in notes)


def codex(request: LaunchRequest, may: set[str], policy: Policy, notes: tuple[str, ...]) -> None:
    thread = codex_launch.build_thread_params(request, CodexOptions())
    turn = codex_launch.build_turn_params(request.turn, CodexOptions())
    argv = codex_launch.launch(request, CodexOptions(one_shot=True)).argv

    if {"Write", "Edit", "Bash"} <= may:
        assert turn["approvalPolicy"] == codex_launch.MODES[policy.mode][0]
    else:
        assert not may & {"Write", "Edit"}
        assert (turn["sandboxPolicy"], turn["approvalPolicy"]) == ({"type": "readOnly"}, "never")
        assert 'sandbox_mode="read-only"' in argv
        assert any("cannot write" in note for note in notes)
    assert ("Bash" in may) or any("can still run commands" in note for note in notes)
    is_off = thread.get("config", {}).get("web_search") == "disabled"
    assert is_off == ("WebSearch" not in may) == ('web_search="disabled"' in argv)
    assert not {"Bash", "Read", "Glob", "Grep"} & set(policy.deny)


def scripted(request: LaunchRequest, may: set[str], policy: Policy, _: tuple[str, ...]) -> None:
    [content] = Scripted().launch(request).files.values()
    told: Any = msgspec.json.decode(content)

    has = NAMES if told["tools"] is None else told["tools"]
    assert {name for name in has if name not in told["deny"]} == may
    assert told["mode"] == policy.mode


def shell(request: LaunchRequest, may: set[str], policy: Policy, _: tuple[str, ...]) -> None:
    assert "Bash" in may
    assert not set(TOOLS) & set(policy.deny)
    if policy.mode != "plan":
        assert Shell().launch(request).argv[-1] == "true"


KEPT = {"claude": claude, "codex": codex, "scripted": scripted, "shell": shell}


@given(file=st.builds(lambda chosen: Permissions(*chosen), some_tools))
def test_permissions_file_is_read_as_it_was_written(file: Permissions) -> None:
    read = read_permissions(msgspec.json.encode(file).decode())

    assert read == (check_tools(file.tier, file.tools) or file)


@given(st.text())
def test_any_text_is_read_as_permissions_or_refused(text: str) -> None:
    found = read_permissions(text)

    assert isinstance(found, Permissions) or found.problem
