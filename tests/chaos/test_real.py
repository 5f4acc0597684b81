"""Agents with a real CLI survive kills of their daemon, their keeper and the CLI.

Claude Code and Codex as they are installed, with simulated models. A lasting agent gets message
after message, and at each of them a process is killed: in the middle of an answer, or at a point on
the way. Every message has to reach the model once and to be answered.
"""

import re
import sys
from collections import Counter
from pathlib import Path

import anyio
import msgspec
import pytest

from steadyrun.lib.clock import SystemClock
from steadyrun.model.agent import Agent
from steadyrun.model.ids import Ids
from steadyrun.model.item import OnLost
from steadyrun.model.policy import Policy
from steadyrun.testing.model_servers.content import ModelAnswer, answer, make_text
from steadyrun.testing.model_servers.faults import StreamGate
from steadyrun.testing.model_servers.protocol import ModelRequest
from tests.chaos import checks
from tests.chaos.forked_daemons import fork_daemons
from tests.chaos.scenario import Scenario, Sent
from tests.support.real_cli_harness import CLAUDE, CODEX, Cli, wait_for_gate

CONFIG = """
[daemon]
idle_seconds = 600.0
drain_seconds = 20.0

[clocks]
close_seconds = 5.0

[providers.{name}]
command = {command}
env = {env}
"""
# Where a daemon is killed; None: in the middle of an answer, before and after the next one is up.
POINTS = (
    None,
    None,
    "after start",
    "before send begin",
    "after send begin",
    "after append started",
    "before append events",
    "before append ended",
    "after append ended",
    "before settle warm",
    "after settle warm",
)
# The other processes that are killed during an answer; the request is then repeated.
OTHERS = ("cli", "keeper", "keeper and outer")
SECONDS = 60.0


class Model:
    """Answers every message in two pieces, with a gate between them; it repeats its mark."""

    def __init__(self) -> None:
        self._gates: dict[str, StreamGate] = {}

    def gate(self, mark: str) -> StreamGate:
        return self._gates.setdefault(mark, StreamGate())

    def __call__(self, ask: ModelRequest) -> ModelAnswer:
        mark = re.findall(r"mark-\d+", ask.user_text)[-1]
        return answer(make_text("I heard ", self.gate(mark), mark))


class Stage:
    """A scenario with one agent that has a real CLI."""

    def __init__(self, scene: Scenario, cli: Cli, model: Model) -> None:
        self.scene, self.cli, self.model = scene, cli, model
        self.kills: Counter[str] = Counter()
        self._count = 0

    async def hire(self) -> None:
        folder = self.scene.place / "real"
        folder.mkdir()
        ids = Ids(SystemClock().now)
        agent = Agent(ids.make_agent(), "real", (self.cli.name,), str(folder))
        agent = msgspec.structs.replace(agent, policy=Policy(self.cli.mode))
        await self.scene.store.add_agent(agent)
        self.scene.agents["real"] = agent.id

    async def send(self, *, is_repeated: bool = False) -> Sent:
        mark = f"mark-{self._count}"
        self._count += 1
        on_lost: OnLost = "resume" if is_repeated else "fail"
        sent = Sent(mark, self.scene.agents["real"], f"Say {mark}", on_lost)
        self.scene.sent.append(sent)
        await self.scene._accept(sent)
        return sent

    async def answered(self, sent: Sent) -> None:
        assert await self.scene.until_settled(sent, seconds=SECONDS)
        assert sent.item
        item = await self.scene.store.item(sent.item)
        assert (item.status, item.reply) == ("completed", f"I heard {sent.mark}"), item

    async def kill_at(self, point: str) -> None:
        """Kill the daemon at a named point of the path of a message."""
        daemon = await self.scene.up(point=point)
        sent = await self.send()
        self.model.gate(sent.mark).open()
        await daemon.end()
        assert daemon.struck == point
        self.kills["daemon"] += 1
        daemon = await self.scene.up()
        await self.answered(sent)
        await daemon.kill()
        self.kills["daemon"] += 1

    async def kill_in_answer(self, *, ends_alone: bool) -> None:
        daemon = await self.scene.up()
        sent = await self.send()
        gate = self.model.gate(sent.mark)
        await wait_for_gate(gate)
        await daemon.kill()
        self.kills["daemon"] += 1
        if ends_alone:
            gate.open()
        daemon = await self.scene.up()
        gate.open()
        await self.answered(sent)
        await daemon.kill()
        self.kills["daemon"] += 1

    async def kill_other(self, target: str) -> None:
        """Kill a process of the run. The request is repeated, because its item allows that."""
        daemon = await self.scene.up()
        sent = await self.send(is_repeated=True)
        gate = self.model.gate(sent.mark)
        await wait_for_gate(gate)
        assert await self.scene.kill_one(target)
        self.kills[target] += 1
        gate.open()
        await self.answered(sent)
        await daemon.kill()
        self.kills["daemon"] += 1


def _config(cli: Cli, place: Path, url: str) -> str:
    place.mkdir(parents=True)
    env = {key: value for key, value in cli.environment(place, url).items() if key != "PATH"}
    written = ", ".join(
        f"{key} = {msgspec.json.encode(value).decode()}" for key, value in env.items()
    )
    command = msgspec.json.encode([str(cli.program())]).decode()
    return CONFIG.format(name=cli.name, command=command, env=f"{{ {written} }}")


@pytest.mark.parametrize("cli", [CLAUDE, CODEX], ids=["claude", "codex"])
def test_agent_with_a_real_cli_is_adopted_after_every_kill(
    tmp_path: Path, cli: Cli, capsys: pytest.CaptureFixture[str]
) -> None:
    cli.program()
    model = Model()
    with cli.server([], fallback=model) as server:

        async def main() -> Stage:
            async with fork_daemons() as by:
                config = _config(cli, tmp_path / "user", server.url)
                scene = await Scenario.begin(tmp_path / "scene", 1, by, config)
                harness = Stage(scene, cli, model)
                try:
                    await harness.hire()
                    for number, point in enumerate(POINTS):
                        if point is None:
                            await harness.kill_in_answer(ends_alone=number % 2 == 0)
                        else:
                            await harness.kill_at(point)
                    asked = Counter(ask.user_text for ask in server.main_requests)
                    # No request may be repeated after these kills: `on_lost` is `fail`.
                    assert set(asked.values()) == {1}, asked
                    for target in OTHERS:
                        await harness.kill_other(target)
                    await scene.settle_down()
                    await checks.check(scene)
                finally:
                    await scene.store.close()
                    checks.clear(scene.home)
                return harness

        harness = anyio.run(main)
    with capsys.disabled():
        sys.stdout.write(f"\nchaos with {cli.name}: {dict(harness.kills)}\n")
    assert harness.kills.total() >= 20
