"""What is a provider told for an item? The last place that knows both sides."""

import hashlib
import hmac
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

import anyio.to_thread
import msgspec
from msgspec import Struct
from msgspec.structs import replace

from steadyrun.dialect import Image, LaunchRequest, Turn
from steadyrun.lib.safe_files import open_regular
from steadyrun.model.agent import Agent
from steadyrun.model.ids import RunId
from steadyrun.model.item import Attachment, Item
from steadyrun.model.run import Run
from steadyrun.model.session import Session
from steadyrun.runtime.attachments import kept_at
from steadyrun.runtime.deps import Deps, RunRequest
from steadyrun.runtime.prompt.briefing import write_briefing
from steadyrun.runtime.prompt.handover import load_handover
from steadyrun.runtime.prompt.recovery import recovery_context, retry_notice, with_files
from steadyrun.runtime.prompt.system import SystemPrompt, agent_environment, read_system_prompt
from steadyrun.runtime.run.active_run import ActiveRun
from steadyrun.runtime.run.permissions import permitted
from steadyrun.runtime.run.retry import RetryDecision

# How many settled items a new conversation is reminded of, at most.
_RECENT = 20


class TurnPlan(Struct, frozen=True):
    """A turn, and the process it is for: one with that seal, else a new one."""

    turn: Turn
    request: LaunchRequest
    env: Mapping[str, str] = {}
    seal: str = ""
    # Whether a new conversation will do where the one to resume is not there any more.
    or_fresh: bool = False
    # What whoever runs the process should know of how it was launched.
    notes: tuple[str, ...] = ()


class Place(Protocol):
    """Who will be told."""

    agent: Agent

    @property
    def taken_up(self) -> Turn | None:
        """What an earlier holder has launched its process for, as long as that runs."""

    def serves(self, seal: str) -> bool:
        """Whether a process with this seal is there and can be told."""


class TurnBuilder:
    """Makes orders for the items of lasting agents."""

    def __init__(self, around: Deps, key: bytes) -> None:
        """`key` seals what processes were launched with."""
        self._around, self._store = around, around.store
        self._home = around.home
        self._key = key

    async def order(
        self, place: Place, runner: ActiveRun, *, again: RetryDecision | None
    ) -> TurnPlan:
        """What is told for the runner's item; `again`: how, if not for the first time."""
        agent, item = self._equipped(place.agent), runner.claim.item
        one_shot = again is not None and again.one_shot
        if place.taken_up:
            # With whatever it was launched, and for a conversation that may not be there: it is
            # there, and may be at work.
            turn = place.taken_up
            if turn.key != runner.id:
                turn = replace(await self._turn(agent, item, runner.id), mode=None)
            return TurnPlan(
                turn, launch_request(agent, turn, None, SystemPrompt(None)), or_fresh=True
            )
        is_appended = agent.provider in self._around.appended
        standing = read_system_prompt(agent, home=self._home, appended=is_appended)
        drivers, file = self._around.drivers, standing.permissions
        agent, notes = permitted(drivers, agent, file, one_shot=one_shot)
        env = agent_environment(agent, self._home)
        turn = await self._turn(agent, item, runner.id, one_shot=one_shot)
        request = replace(launch_request(agent, turn, None, standing), one_shot=one_shot)
        seal = self._sealed(agent.provider, request, env)
        order = TurnPlan(turn, request, env, seal, notes=(*standing.notes, *notes))
        if again is not None and again.is_fresh:
            await self._retire(runner, agent.provider)
        elif place.serves(seal):
            return order
        return await self._launching(agent, item, order)

    async def _retire(self, runner: ActiveRun, provider: str) -> None:
        """Go on without the present conversation, unless it is the new one already."""
        run = await self._store.run(runner.id)
        session = await self._store.session(runner.claim.agent, provider)
        current = session.current if session else None
        if current is None or current.bound_at < run.created_at:
            await self._store.retire_token(runner.claim, provider, "it is not there any more")

    def _equipped(self, agent: Agent) -> Agent:
        """The agent with the model that its provider is to use where nobody says otherwise."""
        model = agent.model or self._around.drivers.find_model(agent.provider)
        return replace(agent, model=model)

    async def _launching(self, agent: Agent, item: Item, order: TurnPlan) -> TurnPlan:
        """What a new process needs besides: the conversation, and what that cannot know."""
        token = None
        if self._converses(agent):
            token = self._token(agent, await self._store.session(agent.id, agent.provider))
        run, now, resumes = RunId(order.turn.key), self._around.clock.now(), token is not None
        change = await load_handover(self._store, agent, item, run, now, resumes=resumes)
        order = replace(order, notes=(*change.notes, *order.notes))
        if not self._converses(agent):
            return order
        context = write_briefing(change.handover) if change.handover else None
        if context is None and token is None:
            recent = await self._store.items(agent.id, include_settled=True, limit=_RECENT)
            context = recovery_context(recent)
        text = f"{context}\n\n{order.turn.text}" if context else order.turn.text
        turn = replace(order.turn, text=text)
        request = replace(order.request, turn=turn, resume=token)
        return replace(order, turn=turn, request=request, or_fresh=resumes)

    def _token(self, agent: Agent, session: Session | None) -> str | None:
        """A conversation belongs to a machine and a directory, and is found nowhere else."""
        current = session.current if session else None
        if current is None or (current.machine, current.cwd) != (self._around.machine, agent.home):
            return None
        return current.token

    def _converses(self, agent: Agent) -> bool:
        """Whether a prompt is a word in a conversation; a command is nothing but itself."""
        return "resume" in self._around.drivers.find_abilities(agent.provider)

    async def _turn(self, agent: Agent, item: Item, run: RunId, *, one_shot: bool = False) -> Turn:
        text = item.text
        before = await self._store.run(item.before) if item.before else None
        is_told = item.on_lost == "resume" and self._converses(agent)
        if is_told and before and _was_cut_off(before):
            text = retry_notice(before, item)
        sent = item.payload.files
        files = await anyio.to_thread.run_sync(kept_at, sent, self._home) if sent else []
        images: tuple[Image, ...] = ()
        abilities = self._around.drivers.find_abilities(agent.provider, one_shot=one_shot)
        if files and "images" in abilities:
            images = await anyio.to_thread.run_sync(_images, files)
        elif files:
            # Those that cannot be shown are named like all others.
            files = [(replace(file, media_type=None), place) for file, place in files]
        model = agent.model if "model" in abilities else None
        mode = agent.policy.mode if "modes" in abilities else None
        return Turn(run, with_files(text, files), images, None, model, mode)

    def _sealed(self, provider: str, request: LaunchRequest, env: Mapping[str, str]) -> str:
        """What a process is launched with, turn and conversation apart."""
        about = replace(request, turn=Turn("", ""), model=None, mode="default", resume=None)
        configured = self._around.drivers.encode_setup(provider)
        whole = msgspec.msgpack.encode((provider, about, sorted(env.items()), configured))
        return hmac.new(self._key, whole, hashlib.sha256).hexdigest()


def _was_cut_off(run: Run) -> bool:
    """Whether it had begun, and did not come to an end of its own."""
    return run.started_at is not None and run.status != "completed"


def _images(files: Sequence[tuple[Attachment, str]]) -> tuple[Image, ...]:
    return tuple(
        Image(file.media_type, _content(Path(place)))
        for file, place in files
        if file.media_type is not None
    )


def _content(place: Path) -> bytes:
    with open_regular(place) as stream:
        return stream.read()


async def build_direct(
    around: Deps, agent: Agent, item: Item, run: RunId, ask: RunRequest
) -> TurnPlan:
    """What was asked of a provider itself: it is told that, and what its role is if it has one."""
    turn = Turn(run, item.text, ask.images, ask.schema)
    standing = await around.standing(agent)
    agent, notes = permitted(around.drivers, agent, standing.permissions)
    request = launch_request(agent, turn, ask.resume, standing)
    env = {**ask.env, **agent_environment(agent, around.home)}
    return TurnPlan(turn, request, env, or_fresh=ask.or_fresh, notes=(*standing.notes, *notes))


def launch_request(
    agent: Agent, turn: Turn, resume: str | None, standing: SystemPrompt
) -> LaunchRequest:
    return LaunchRequest(
        turn,
        agent.home,
        resume=resume,
        model=agent.model,
        mode=agent.policy.mode,
        tools=agent.policy.allowed_tools,
        deny=agent.policy.deny,
        system=standing.system,
        adds_system=standing.is_added,
        max_turns=agent.max_turns,
        # A CLI counts what its process has cost; that is a run's where it has no other.
        max_cost_usd=agent.policy.budget.run if agent.is_direct else None,
    )
