"""The record has a violation for a tool use against the policy."""

import sys
from pathlib import Path

import msgspec

from steadyrun.model import event as ev
from steadyrun.model.ids import AgentId
from steadyrun.model.policy import Policy
from tests.children import fake_claude
from tests.support.daemon_harness import HomeHarness, killable_daemon, running_daemon, script

# It reads over what it is started with, and uses any tool.
COMMAND = msgspec.json.encode([sys.executable, "-I", "-S", fake_claude.__file__]).decode()
CONFIG = f"[providers.claude]\ncommand = {COMMAND}\n"


def uses(*tools: str) -> str:
    steps = [{"tool": {"name": name, "output": "ok"}} for name in tools]
    return "play:" + msgspec.json.encode([*steps, {"text": "so"}]).decode()


async def read_tool_uses(harness: HomeHarness, agent: AgentId) -> list[tuple[str, str | None]]:
    """The tools that were used, each with the rule that this was against."""
    events = [seen.event for seen in await harness.events(agent)]
    return [
        (event.tool_name, after.rule if isinstance(after, ev.PolicyViolated) else None)
        for event, after in zip(events, [*events[1:], None], strict=True)
        if isinstance(event, ev.ToolCompleted)
    ]


async def test_tool_use_against_the_policy_is_recorded_once_each(tmp_path: Path) -> None:
    async with running_daemon(tmp_path, config=CONFIG) as harness:
        policy = Policy(tier="standard", deny=("WebFetch", "mcp__mail"))
        ada = await harness.add_agent("ada", "claude", policy=policy)
        (tmp_path / "ada" / "PERMISSIONS.json").write_text('{"tier": "readonly"}')
        names = ("Read", "Edit", "WebFetch", "mcp__mail__send", "mcp__a__b", "Other", "Edit")
        assert (await harness.send_and_wait(ada, uses(*names))).status == "completed"

        rules = [None, "tools", "deny", "deny", None, None, "tools"]
        assert await read_tool_uses(harness, ada) == [*zip(names, rules, strict=True)]
        violated = await harness.events_of(ada, ev.PolicyViolated)
        assert [each.tool_name for each in violated] == [
            "Edit", "WebFetch", "mcp__mail__send", "Edit",
        ]  # fmt: skip


async def test_denied_tool_is_not_a_violation(tmp_path: Path) -> None:
    async with running_daemon(tmp_path) as harness:
        ada = await harness.add_agent("ada", policy=Policy(tier="readonly"))
        await harness.send_and_wait(
            ada, script({"tool": {"name": "Bash"}}, {"tool": {"name": "Read"}})
        )

        assert [each.tool_name for each in await harness.events_of(ada, ev.ToolFailed)] == ["Bash"]
        assert await read_tool_uses(harness, ada) == [("Read", None)]
        assert await harness.events_of(ada, ev.PolicyViolated) == []


async def test_adopting_daemon_applies_the_policy_of_the_process(tmp_path: Path) -> None:
    """Also if its agent may do more now: that counts from the next process on."""
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "config.toml").write_text(CONFIG)
    async with killable_daemon(tmp_path) as (home, daemon):
        await daemon.wait_until_up()
        ada = await home.add_agent("ada", "claude", policy=Policy(tier="readonly"))
        held = [{"text": "on it"}, {"until": "go"}, {"tool": {"name": "Bash", "output": "ok"}}]
        item = await home.send(ada, "play:" + msgspec.json.encode(held).decode())
        await home.wait_for_text(ada, "on it")
        daemon.kill()
        await home.set_agent(ada, policy=Policy())
    async with running_daemon(tmp_path, config=CONFIG) as harness:
        (harness.place / "ada" / "go").touch()
        await harness.wait_until_settled(item)
        await harness.send_and_wait(ada, uses("Bash"))

        assert await read_tool_uses(harness, ada) == [("Bash", "tools"), ("Bash", None)]
