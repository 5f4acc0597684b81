"""Builds what a provider is sent for an item: the turn, and the process that it needs."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Protocol

import anyio.to_thread
from msgspec import Struct
from msgspec.structs import replace

from steadyrun.dialect import Image, LaunchRequest, Turn
from steadyrun.errors import NotFound
from steadyrun.lib.safe_paths import open_regular
from steadyrun.model.agent import Agent
from steadyrun.model.fingerprint import compute_hmac
from steadyrun.model.ids import RunId
from steadyrun.model.item import Attachment, Claim, Item
from steadyrun.model.policy import compute_rights
from steadyrun.model.run import Created, Metadata, Run
from steadyrun.model.session import Session
from steadyrun.runtime.attachments import find_files
from steadyrun.runtime.deps import Deps
from steadyrun.runtime.prompt.briefing import write_briefing
from steadyrun.runtime.prompt.handover import load_handover
from steadyrun.runtime.prompt.recovery import with_files, write_recovery_context, write_retry_notice
from steadyrun.runtime.prompt.system import (
    SystemPrompt,
    build_agent_environment,
    read_system_prompt,
)
from steadyrun.runtime.run.active_run import WALL
from steadyrun.runtime.run.options import RunOptions
from steadyrun.runtime.run.permissions import apply_permissions
from steadyrun.runtime.run.retry import RetryDecision

# The largest number of settled items in the context of a new conversation.
_RECENT = 20


class TurnPlan(Struct, frozen=True):
    """A turn and its process: an idle one with this seal, or else a new one."""

    turn: Turn
    request: LaunchRequest
    env: Mapping[str, str] = {}
    seal: str = ""
    # Whether a new conversation is allowed if the one to resume is lost.
    or_fresh: bool = False
    # Notes for the record about the launch.
    notes: tuple[str, ...] = ()


class PresentProcess(Struct, frozen=True):
    """The process that the lane has now: its seal if turns can be sent to it, and the turn that an
    earlier holder has launched it for, as long as that runs."""

    adopted_turn: Turn | None = None
    seal: str | None = None
    exists: bool = False


class TurnRequest(Struct, frozen=True):
    """The run for which a turn is built. `retry` is None for the first run of an item."""

    agent: Agent
    claim: Claim
    run: RunId
    present: PresentProcess
    retry: RetryDecision | None


class Turns(Protocol):
    """Builds turns and runs: `TurnBuilder` for lasting agents, `DirectTurns` for direct runs."""

    async def build(self, request: TurnRequest) -> TurnPlan:
        """What is sent for an item, and to which process."""

    async def create_run(self, run: RunId, agent: Agent, item: Item) -> Created:
        """A run of an item that is retried, or that the process has begun by itself."""


class TurnBuilder:
    """Builds the turns of lasting agents."""

    def __init__(self, deps: Deps, key: bytes) -> None:
        """`key` seals what processes were launched with."""
        self._deps, self._store = deps, deps.store
        self._home = deps.home
        self._key = key

    async def create_run(self, run: RunId, agent: Agent, item: Item) -> Created:
        return self.make_run(run, agent, item, self._deps.clock.now())

    def make_run(self, run: RunId, agent: Agent, item: Item, now: datetime) -> Created:
        """A run of a lasting agent, with its time limit."""
        wall = agent.wall_seconds or self._deps.launcher.find_wall_seconds(agent.provider)
        return build_created(run, agent, item, now, with_wall(item.payload.metadata, wall))

    async def build(self, request: TurnRequest) -> TurnPlan:
        present, retry, run = request.present, request.retry, request.run
        agent, item = self._with_model(request.agent), request.claim.item
        one_shot = retry is not None and retry.one_shot
        if present.adopted_turn:
            # The process that was taken over is used, whatever its launch settings: it may be
            # working on the turn.
            turn = present.adopted_turn
            if turn.key != run:
                turn = replace(await self._build_turn(agent, item, run), mode=None)
            return TurnPlan(
                turn, build_launch_request(agent, turn, None, SystemPrompt(None)), or_fresh=True
            )
        is_appended = agent.provider in self._deps.appended
        prompt = read_system_prompt(agent, home=self._home, appended=is_appended)
        launcher, file = self._deps.launcher, prompt.permissions
        agent, notes = apply_permissions(launcher, agent, file, one_shot=one_shot)
        env = build_agent_environment(agent, self._home)
        turn = await self._build_turn(agent, item, run, one_shot=one_shot)
        launch = replace(build_launch_request(agent, turn, None, prompt), one_shot=one_shot)
        seal = self._seal(agent.provider, launch, env)
        plan = TurnPlan(turn, launch, env, seal, notes=(*prompt.notes, *notes))
        if retry is not None and retry.is_fresh:
            await self._retire(request, agent.provider)
        elif seal and seal == present.seal:
            return plan
        return await self._prepare_launch(agent, item, plan)

    async def _retire(self, request: TurnRequest, provider: str) -> None:
        """End the present conversation, unless the run itself began it."""
        claim, run = request.claim, await self._store.run(request.run)
        session = (await self._store.sessions(claim.agent)).get(provider)
        current = session.current if session else None
        if current is None or current.bound_at < run.created_at:
            await self._store.retire_token(claim, provider, "the provider has lost it")

    def _with_model(self, agent: Agent) -> Agent:
        """Return the agent with the configured model of its provider, unless it has its own."""
        model = agent.model or self._deps.launcher.find_model(agent.provider)
        return replace(agent, model=model)

    async def _prepare_launch(self, agent: Agent, item: Item, plan: TurnPlan) -> TurnPlan:
        """Add what a new process needs: the conversation, and the context that is not in it."""
        token = None
        if self._has_conversation(agent):
            session = (await self._store.sessions(agent.id)).get(agent.provider)
            token = self._find_token(agent, session)
        run, now, resumes = RunId(plan.turn.key), self._deps.clock.now(), token is not None
        handover, notes = await load_handover(self._store, agent, item, run, now, resumes=resumes)
        plan = replace(plan, notes=(*notes, *plan.notes))
        if not self._has_conversation(agent):
            return plan
        context = write_briefing(handover, self._deps.scrubber) if handover else None
        if context is None and token is None:
            recent = await self._store.items(agent.id, include_settled=True, limit=_RECENT)
            context = write_recovery_context(recent, self._deps.scrubber)
        text = f"{context}\n\n{plan.turn.text}" if context else plan.turn.text
        turn = replace(plan.turn, text=text)
        request = replace(plan.request, turn=turn, resume=token)
        return replace(plan, turn=turn, request=request, or_fresh=resumes)

    def _find_token(self, agent: Agent, session: Session | None) -> str | None:
        """Find the token to resume. A conversation belongs to one machine and one directory."""
        current = session.current if session else None
        if current is None or (current.machine, current.cwd) != (self._deps.machine, agent.home):
            return None
        return current.token

    def _has_conversation(self, agent: Agent) -> bool:
        """Whether the provider has conversations. The text for one without, such as a command, must
        not be extended."""
        return "resume" in self._deps.launcher.find_abilities(agent.provider)

    async def _build_turn(
        self, agent: Agent, item: Item, run: RunId, *, one_shot: bool = False
    ) -> Turn:
        text = item.text
        before = await self._store.run(item.before) if item.before else None
        is_resumed = item.on_lost == "resume" and self._has_conversation(agent)
        if is_resumed and before and _was_cut_off(before):
            text = write_retry_notice(before, item)
        sent = item.payload.files
        files = await anyio.to_thread.run_sync(find_files, sent, self._home) if sent else []
        images: tuple[Image, ...] = ()
        abilities = self._deps.launcher.find_abilities(agent.provider, one_shot=one_shot)
        if files and "images" in abilities:
            images = await anyio.to_thread.run_sync(_load_images, files)
        elif files:
            # The provider takes no images: they are listed like other files.
            files = [(replace(file, media_type=None), place) for file, place in files]
        model = agent.model if "model" in abilities else None
        mode = agent.policy.mode if "modes" in abilities else None
        return Turn(run, with_files(text, files), images, None, model, mode)

    def _seal(self, provider: str, request: LaunchRequest, env: Mapping[str, str]) -> str:
        """Compute the seal of what a process is launched with, except its turn and conversation."""
        about = replace(request, turn=Turn("", ""), model=None, mode="default", resume=None)
        configured = self._deps.launcher.encode_setup(provider)
        return compute_hmac(self._key, (provider, about, sorted(env.items()), configured))


def _was_cut_off(run: Run) -> bool:
    """Whether the run started and was not completed."""
    return run.started_at is not None and run.status != "completed"


def _load_images(files: Sequence[tuple[Attachment, str]]) -> tuple[Image, ...]:
    return tuple(
        Image(file.media_type, _read_content(Path(place)))
        for file, place in files
        if file.media_type is not None
    )


def _read_content(place: Path) -> bytes:
    with open_regular(place) as stream:
        return stream.read()


class DirectTurns:
    """Builds the turns of a direct run from its options."""

    def __init__(self, deps: Deps, asked: RunOptions | Turn) -> None:
        """A `Turn` is one that an earlier holder has sent, or was about to send."""
        self._deps, self._asked = deps, asked

    async def build(self, request: TurnRequest) -> TurnPlan:
        agent, asked, deps = request.agent, self._asked, self._deps
        if isinstance(asked, Turn):
            if not request.present.exists:
                raise NotFound("launch of", request.run)
            return TurnPlan(asked, build_launch_request(agent, asked, None, SystemPrompt(None)))
        images, schema = tuple(asked.get("images", ())), asked.get("schema")
        turn = Turn(request.run, request.claim.item.text, images, schema)
        prompt = await deps.load_system_prompt(agent)
        agent, notes = apply_permissions(deps.launcher, agent, prompt.permissions)
        is_fresh = request.retry is not None and request.retry.is_fresh
        resume = None if is_fresh else asked.get("resume")
        launch = build_launch_request(agent, turn, resume, prompt)
        env = {**asked.get("env", {}), **build_agent_environment(agent, deps.home)}
        or_fresh, notes = asked.get("or_fresh", False), (*prompt.notes, *notes)
        return TurnPlan(turn, launch, env, or_fresh=or_fresh, notes=notes)

    async def create_run(self, run: RunId, agent: Agent, item: Item) -> Created:
        """A run that continues the work of another one has the same time limit."""
        [before, *_] = await self._deps.store.runs(agent.id, limit=1)
        metadata = with_wall({}, before.metadata.get(WALL))
        return build_created(run, agent, item, self._deps.clock.now(), metadata)


def build_created(
    run: RunId, agent: Agent, item: Item, now: datetime, metadata: Metadata
) -> Created:
    tools = compute_rights(agent.policy).tools
    return Created(run, agent.id, item.id, agent.provider, now, agent.model, tools, metadata)


def with_wall(metadata: Metadata, wall: object) -> Metadata:
    """Add the time limit of a run in seconds, if there is one."""
    return {**metadata, WALL: wall} if wall else metadata


def build_launch_request(
    agent: Agent, turn: Turn, resume: str | None, prompt: SystemPrompt
) -> LaunchRequest:
    return LaunchRequest(
        turn,
        agent.home,
        resume=resume,
        model=agent.model,
        mode=agent.policy.mode,
        tools=agent.policy.allowed_tools,
        deny=agent.policy.deny,
        system=prompt.system,
        adds_system=prompt.is_added,
        max_turns=agent.max_turns,
        # A CLI counts the cost of its process; the process of a direct run has no other run.
        max_cost_usd=agent.policy.budget.run if agent.is_direct else None,
    )
