"""Items, holders and the start of runs in the reference store."""

from collections.abc import Callable, Collection
from datetime import datetime

from steadyrun.errors import ChangeRefused
from steadyrun.lib.notifier import Hint
from steadyrun.model.agent import Agent
from steadyrun.model.ids import AgentId, HolderId, ItemId
from steadyrun.model.item import Claim, Item, Lease, Message, build_cancel_fact
from steadyrun.model.run import Created
from steadyrun.store import PAGE, AbandonedLane, Accepted, Holder, Start, Started
from steadyrun.stores import rules
from steadyrun.stores.memory import tables
from steadyrun.stores.memory.base import MemoryBase
from steadyrun.stores.memory.tables import Tables
from steadyrun.version import __version__


class MemoryQueue(MemoryBase):
    """The verbs of `QueueStore`."""

    async def accept(self, message: Message, start: Start | None = None) -> Accepted:
        now, new = self._clock.now(), self._ids.make_item()
        with self._begin_transaction([]) as t:
            accepted = tables.accept(t, new, message, now)
            for started in self._start_ready(t, start, 1, message.agent, now) if start else ():
                accepted = accepted.with_started(started)
        self.hints.notify([message.agent], Hint.STATE if accepted.started else Hint.WORK)
        return accepted

    async def cancel(self, item: ItemId, reason: str | None = None) -> Item:
        now, why = self._clock.now(), build_cancel_fact(reason and self._scrubber.clean(reason))
        found = tables.find_item(self._tables, item)
        with self._begin_transaction([found.agent]) as t:
            return tables.cancel_item(t, item, why, now)

    async def item(self, item: ItemId) -> Item:
        return tables.find_item(self._tables, item)

    async def items(
        self,
        agent: AgentId | None = None,
        *,
        include_settled: bool = False,
        before: ItemId | None = None,
        limit: int = PAGE,
    ) -> list[Item]:
        found = [
            item
            for item in self._tables.items.values()
            if agent in {None, item.agent}
            and (include_settled or not item.is_settled)
            and (before is None or item.id < before)
        ]
        return sorted(found, key=lambda i: i.id, reverse=True)[:limit]

    async def join(self, kind: str) -> Holder:
        now = self._clock.now()
        holder = Holder(self._ids.make_holder(), kind, self._machine, __version__, now)
        self._tables.holders[holder.id] = holder
        return holder

    async def leave(self, holder: HolderId) -> None:
        self._tables.holders.pop(holder, None)

    async def holders(self) -> list[Holder]:
        return sorted(self._tables.holders.values(), key=lambda h: h.id)

    async def reap(self, holder: HolderId, *, lasting: bool = True) -> list[AbandonedLane]:
        with self._begin_transaction([]) as t:
            tables.require_holder(t, holder)
            alive = {each.id: each for each in t.holders.values() if each.is_alive}
            lanes = [
                lane
                for lane in t.lanes.values()
                if lane.holder
                and lane.holder not in alive
                and (lasting or t.agents[lane.agent].is_direct)
            ]
            lanes.sort(key=lambda lane: lane.agent)
            abandoned = [tables.take_over(t, lane, holder) for lane in lanes]
            t.holders = alive
        self.hints.notify(each.agent.id for each in abandoned)
        return abandoned

    async def start(
        self,
        holder: HolderId,
        create_run: Callable[[Agent, Item], Created],
        limit: int = 1,
        *,
        agent: AgentId | None = None,
        excluded: Collection[str] = (),
    ) -> list[Started]:
        now, start = self._clock.now(), Start(holder, create_run, excluded)
        with self._begin_transaction([]) as t:
            started = self._start_ready(t, start, limit, agent, now)
        self.hints.notify((each.agent.id for each in started), Hint.STATE)
        return started

    async def start_direct(
        self,
        holder: HolderId,
        agent: Agent,
        message: Message,
        create_run: Callable[[Agent, Item], Created],
    ) -> Started:
        now, new = self._clock.now(), self._ids.make_item()
        with self._begin_transaction([agent.id]) as t:
            tables.require_holder(t, holder)
            rules.require_message_for(agent.id, message, "start_direct")
            tables.add_agent(t, agent)
            tables.accept(t, new, message, now)
            started = self._start_ready(t, Start(holder, create_run), 1, agent.id, now)
            if not started:
                found = f"the gate of {agent.provider} is closed"
                raise ChangeRefused("start_direct", found=found)
            return started[0]

    async def release_lane(self, lease: Lease) -> None:
        with self._begin_transaction([lease.agent]) as t:
            lane = rules.require_warm(t.lanes.get(lease.agent), lease, "release_lane")
            tables.save_lane(t, rules.free_lane(lane, self._clock.now()))

    def _start_ready(
        self, t: Tables, start: Start, limit: int, agent: AgentId | None, now: datetime
    ) -> list[Started]:
        tables.require_holder(t, start.holder)
        started: list[Started] = []
        while len(started) < limit:
            # One at a time: a gate may admit a single run.
            shut = self._gates.find_unavailable(t, now, start.excluded)
            ready = tables.list_claimable(t, start.holder, agent, shut)
            if not ready:
                break
            lane, provider = ready[0]
            claim = tables.claim(t, lane, start.holder, now)
            started.append(self._start_claimed(t, claim, provider, start.create_run))
        return started

    def _start_claimed(
        self, t: Tables, claim: Claim, provider: str, create_run: Callable[[Agent, Item], Created]
    ) -> Started:
        agent = t.agents[claim.agent].with_provider(provider)
        created = create_run(agent, claim.item)
        rules.require_unused(t.runs.get(created.id))
        tables.bind_run(t, claim, created.id, created)
        return tables.build_started(t, claim, agent, self._change(t, created.id, created))
