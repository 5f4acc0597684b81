"""What is compiled of a policy, in the few cases that a person would ask about first?"""

import msgspec
import pytest

from steadyrun.model.agent import Agent
from steadyrun.model.budget import Budget
from steadyrun.model.ids import AgentId
from steadyrun.model.policy import DENIED, Permissions, Policy, Rights, rights
from steadyrun.provider import Enforced, LaunchRequest, Refused, Turn, all_or_nothing
from steadyrun.providers.claude import Claude
from steadyrun.providers.claude_launch import ClaudeOptions
from steadyrun.providers.codex import Codex
from steadyrun.providers.codex_launch import CodexOptions
from steadyrun.runtime.bridge import launch_request
from steadyrun.runtime.standing import Standing


def test_a_policy_that_says_nothing_leaves_the_provider_its_tools() -> None:
    assert rights(Policy()) == Rights("default", None, DENIED)


def test_both_must_allow_and_what_is_denied_is_gone() -> None:
    policy = Policy("plan", tier="standard", deny=("Grep", "Grep"))
    file = Permissions(tools=("Read", "Grep", "Bash"))

    assert rights(policy, file) == Rights("plan", ("Read",), (*DENIED, "Grep"))


def test_a_file_without_a_tier_or_tools_takes_nothing_away() -> None:
    assert rights(Policy(tier="full"), Permissions(note="n")) == rights(Policy(tier="full"))


@pytest.mark.parametrize("is_direct", [True, False])
def test_only_a_process_of_one_run_has_the_budget_of_a_run(is_direct: bool) -> None:
    policy = Policy(budget=Budget(run=0.5))
    agent = Agent(AgentId("agt_1"), "ada", ("claude",), "/work", policy=policy, is_direct=is_direct)

    request = launch_request(agent, Turn("run_1", "hello"), None, Standing(None))

    assert ("--max-budget-usd" in Claude().launch(request).argv) == is_direct


def test_what_an_older_version_has_launched_can_be_read() -> None:
    known = {"turn": {"key": "run_1", "text": "hello"}, "cwd": "/work", "mode": "plan"}

    read = msgspec.msgpack.decode(msgspec.msgpack.encode(known), type=LaunchRequest)

    assert read == LaunchRequest(Turn("run_1", "hello"), "/work", mode="plan", deny=DENIED)


class TestNotes:
    def test_a_list_does_not_hold_for_mcp_servers(self) -> None:
        limited, free = Rights(tools=("Read",)), Rights()
        claude = Claude(ClaudeOptions(mcp_config={"mcpServers": {}}))
        codex = Codex(CodexOptions(mcp_servers={"a": {"command": "b"}}))

        for dialect in (claude, codex):
            found, all_of_them = dialect.enforce(limited), dialect.enforce(free)
            assert isinstance(found, Enforced)
            assert any("mcp" in note.lower() for note in found.notes)
            assert all_of_them == Enforced("default")

    def test_codex_cannot_deny_one_of_them(self) -> None:
        found = Codex().enforce(Rights(deny=("mcp__a__b",)))

        assert isinstance(found, Enforced)
        assert ["MCP servers" in note for note in found.notes] == [True]


@pytest.mark.parametrize("limited", [Rights(tools=()), Rights(deny=(*DENIED, "Bash"))])
def test_who_cannot_take_a_tool_away_takes_none(limited: Rights) -> None:
    assert isinstance(all_or_nothing(limited), Refused)
    assert all_or_nothing(Rights("plan")) == Enforced("plan")
