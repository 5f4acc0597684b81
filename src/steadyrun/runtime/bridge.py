"""What is a provider told for an item? The last place that knows both sides."""

from collections.abc import Mapping

from msgspec import Struct

from steadyrun.model.agent import Agent
from steadyrun.model.ids import RunId
from steadyrun.model.item import Item
from steadyrun.provider import LaunchRequest, Turn
from steadyrun.runtime.around import Ask


class Order(Struct, frozen=True):
    """A turn, and the process it is for: one with that seal, else a new one."""

    turn: Turn
    request: LaunchRequest
    env: Mapping[str, str] = {}
    seal: str = ""
    # Whether a new conversation will do where the one to resume is not there any more.
    or_fresh: bool = False


def direct_order(agent: Agent, item: Item, run: RunId, ask: Ask) -> Order:
    """What was asked of a provider itself: it is told that, and nothing else."""
    turn = Turn(run, item.text, ask.images, ask.schema)
    return Order(turn, launch_request(agent, turn, ask.resume), or_fresh=ask.or_fresh)


def launch_request(agent: Agent, turn: Turn, resume: str | None) -> LaunchRequest:
    return LaunchRequest(
        turn,
        agent.home,
        resume=resume,
        model=agent.model,
        mode=agent.policy.mode,
        tools=agent.policy.allowed_tools,
        system=agent.system,
        max_turns=agent.max_turns,
        max_cost_usd=agent.policy.budget.run,
    )
