"""Tests what a policy compiles to, in the most common cases."""

import msgspec
import pytest

from steadyrun.dialect import (
    EnforcedRights,
    LaunchRequest,
    Refused,
    Turn,
    TurnBegan,
    enforce_mode_only,
)
from steadyrun.driver import DriverOutput
from steadyrun.model.agent import Agent
from steadyrun.model.budget import Budget
from steadyrun.model.event import (
    Emitted,
    Note,
    PolicyViolated,
    TextFinal,
    ToolCompleted,
    ToolFailed,
)
from steadyrun.model.ids import AgentId
from steadyrun.model.policy import DENIED, Permissions, Policy, Rights, compute_rights, find_breach
from steadyrun.providers.claude.dialect import Claude
from steadyrun.providers.claude.launch import ClaudeOptions
from steadyrun.providers.codex.dialect import Codex
from steadyrun.providers.codex.launch import CodexOptions
from steadyrun.runtime.prompt.builder import build_launch_request
from steadyrun.runtime.prompt.system import SystemPrompt
from steadyrun.runtime.run.permissions import with_breaches
from steadyrun.testing.clock import START


def test_empty_policy_leaves_the_tools_of_the_provider() -> None:
    assert compute_rights(Policy()) == Rights("default", None, DENIED)


def test_tools_need_both_the_policy_and_the_file() -> None:
    policy = Policy("plan", tier="standard", deny=("Grep", "Grep"))
    file = Permissions(tools=("Read", "Grep", "Bash"))

    assert compute_rights(policy, file) == Rights("plan", ("Read",), (*DENIED, "Grep"))


def test_permissions_without_tier_or_tools_restrict_nothing() -> None:
    assert compute_rights(Policy(tier="full"), Permissions(note="n")) == compute_rights(
        Policy(tier="full")
    )


@pytest.mark.parametrize("is_direct", [True, False])
def test_run_budget_is_passed_only_to_a_direct_process(is_direct: bool) -> None:
    policy = Policy(budget=Budget(run=0.5))
    agent = Agent(AgentId("agt_1"), "ada", ("claude",), "/work", policy=policy, is_direct=is_direct)

    request = build_launch_request(agent, Turn("run_1", "hello"), None, SystemPrompt(None))

    assert ("--max-budget-usd" in Claude().launch(request).argv) == is_direct


def test_launch_request_of_an_older_version_can_be_read() -> None:
    known = {"turn": {"key": "run_1", "text": "hello"}, "cwd": "/work", "mode": "plan"}

    read = msgspec.msgpack.decode(msgspec.msgpack.encode(known), type=LaunchRequest)

    assert read == LaunchRequest(Turn("run_1", "hello"), "/work", mode="plan", deny=DENIED)


class TestNotes:
    def test_tool_list_with_mcp_servers_is_noted(self) -> None:
        limited, free = Rights(tools=("Read",)), Rights()
        claude = Claude(ClaudeOptions(mcp_config={"mcpServers": {}}))
        codex = Codex(CodexOptions(mcp_servers={"a": {"command": "b"}}))

        for dialect in (claude, codex):
            found, all_of_them = dialect.enforce(limited), dialect.enforce(free)
            assert isinstance(found, EnforcedRights)
            assert any("mcp" in note.lower() for note in found.notes)
            assert all_of_them == EnforcedRights("default")

    def test_codex_notes_that_one_mcp_tool_cannot_be_denied(self) -> None:
        found = Codex().enforce(Rights(deny=("mcp__a__b",)))

        assert isinstance(found, EnforcedRights)
        assert ["MCP servers" in note for note in found.notes] == [True]


@pytest.mark.parametrize("limited", [Rights(tools=()), Rights(deny=(*DENIED, "Bash"))])
def test_provider_without_tool_control_refuses_tool_limits(limited: Rights) -> None:
    assert isinstance(enforce_mode_only(limited), Refused)
    assert enforce_mode_only(Rights("plan")) == EnforcedRights("plan")


READS = Rights(tools=("Read",), deny=(*DENIED, "Edit", "mcp__a"))
WRITES = Rights(tools=("Read", "Write"))
SEARCHES_NOT = Rights(deny=("WebSearch",))


@pytest.mark.parametrize(
    ("held", "tool", "rule"),
    [
        (Rights(), "Bash", None),
        (Rights(), "AskUserQuestion", "deny"),
        (READS, "Read", None),
        (READS, "Bash", "tools"),
        (READS, "Edit", "deny"),
        (READS, "Agent", "tools"),
        # No user could have allowed it, and a list does not apply to servers.
        (READS, "TodoWrite", None),
        (READS, "mcp__b__x", None),
        (READS, "mcp__a__x", "deny"),
        (READS, "mcp__a", "deny"),
        (READS, "mcp__ab__x", None),
        # Of Codex: one tool for two of ours, and commands that a sandbox holds.
        (READS, "fileChange", "tools"),
        (WRITES, "fileChange", None),
        (Rights(deny=("Edit", "Write")), "fileChange", "deny"),
        (SEARCHES_NOT, "webSearch", "deny"),
        (Rights(tools=("Read",)), "webSearch", "tools"),
        (READS, "commandExecution", None),
    ],
)
def test_tool_use_breaches_a_rule_or_none(held: Rights, tool: str, rule: str | None) -> None:
    assert find_breach(held, tool) == rule


def test_violation_follows_the_tool_use_and_shifts_later_events() -> None:
    used, failed = ToolCompleted("a", "Bash"), ToolFailed("b", "Bash")
    heard: list[DriverOutput] = [
        Emitted(10, 0, START, used),
        Emitted(20, 0, START, Note("n")),
        Emitted(20, 1, START, used),
        TurnBegan(None),
        Emitted(20, 2, START, failed),
        Emitted(20, 3, START, used),
        Emitted(30, 0, START, TextFinal("t")),
    ]

    found = with_breaches(heard, READS)

    told = [(each.place, each.n, type(each.event)) for each in found if isinstance(each, Emitted)]
    assert told == [
        (10, 0, ToolCompleted), (10, 1, PolicyViolated),
        (20, 0, Note), (20, 1, ToolCompleted), (20, 2, PolicyViolated),
        (20, 3, ToolFailed), (20, 4, ToolCompleted), (20, 5, PolicyViolated),
        (30, 0, TextFinal),
    ]  # fmt: skip
    assert with_breaches(heard, Rights()) == heard
