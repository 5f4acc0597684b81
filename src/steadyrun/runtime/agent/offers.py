"""Offers messages to a turn that runs, and settles them by the evidence of the process."""

import asyncio

import anyio
import anyio.to_thread
from msgspec.structs import replace

from steadyrun.dialect import Offer, Refused
from steadyrun.errors import FileUnusable
from steadyrun.model.event import (
    Event,
    FollowupAbsorbed,
    FollowupOffered,
    FollowupReturned,
    Foreign,
)
from steadyrun.model.ids import ItemId
from steadyrun.model.item import Claim, Item
from steadyrun.runtime.agent.connection import ProcessConnection
from steadyrun.runtime.agent.lane import AgentLane
from steadyrun.runtime.attachments import find_files
from steadyrun.runtime.prompt.recovery import with_files
from steadyrun.store import MAX_OFFER_BYTES, LaneSnapshot

# How many offers may be open at once.
_MOST_OPEN = 16


class OpenOffers:
    """The open offers of one process, and the items behind them.

    An item that the process refuses is returned to the queue and gets a run of its own. A direct
    run has no next one: there the item is cancelled. An offer is open from the moment its item is
    taken from the queue until an event of the process reports the outcome.
    """

    def __init__(self, lane: AgentLane, connection: ProcessConnection) -> None:
        self.open: dict[ItemId, int] = {}
        # Not all items fitted, or that is unknown: check again when an offer was closed.
        self.may_have_more = False
        # What an earlier holder had taken and maybe not sent.
        self._unsent: list[Item] = []
        # Offers that the sender has withdrawn, which may not have been sent yet.
        self._withdrawn: set[ItemId] = set()
        # An item that is refused is queued for a moment and must not be offered again.
        self._lock, self._sending = asyncio.Lock(), asyncio.Lock()
        self._has_more = False
        self._store, self._lane = lane.deps.store, lane
        self._connection = connection

    @property
    def is_due(self) -> bool:
        """Whether there may be something to send that could not be sent so far."""
        return self._has_more or bool(self._unsent)

    async def send_waiting(self) -> None:
        """Offer what an earlier holder may not have sent, and what was queued since. Concurrent
        calls are served by the first one."""
        self._has_more = True
        if self._sending.locked():
            return
        async with self._sending:
            while self._has_more:
                self._has_more = False
                await self._send_unsent()
                await self._send_queued()
            driver = self._connection.driver
            if driver is None or not driver.is_open:
                self.postpone()

    def postpone(self) -> None:
        """Note that an item may have to be offered later, because no turn is open now."""
        self._has_more = True

    async def _send_queued(self) -> None:
        """Offer what is queued in the lane, in order, as much as may be open at once."""
        driver, lease = self._connection.driver, self._lane.lease
        can_wait = "steer" not in self._connection.abilities and not self._lane.agent.is_direct
        if not lease.has_claim or driver is None or not driver.is_open or can_wait:
            return
        claim = lease.claim
        async with self._lock:
            room = MAX_OFFER_BYTES - sum(self.open.values())
            most = _MOST_OPEN - len(self.open)
            is_full = most <= 0 or not await self._has_room(claim, room)
            taken = (
                [] if is_full else await self._store.offer_followups(claim, most, max_bytes=room)
            )
            self.may_have_more = is_full or bool(taken)
            self.open |= {item.id: _measure(item) for item in taken}
        for item in taken:
            await self.offer(item)

    async def _has_room(self, claim: Claim, room: int) -> bool:
        """Whether the next item may be open beside the others; alone it may be of any length."""
        if not self.open:
            return True
        waiting = [
            item
            for item in await self._store.items(claim.agent)
            if item.status == "queued" and item.delivery == "none" and item.followup == "steer"
        ]
        return bool(waiting) and _measure(min(waiting, key=lambda item: item.seq)) <= room

    async def offer(self, item: Item) -> None:
        """Offer a message to the turn; a refused one is returned with the reason."""
        self.open[item.id] = _measure(item)
        refused = await self._send(item)
        # What an earlier holder had sent may have been settled since.
        if refused and item.id in self.open:
            await self._connection.note(FollowupReturned(item.id, item.text, refused.reason))
            await self._return_offer(item.id)
        elif item.id in self._withdrawn:
            # It was withdrawn while it was being sent, before there was an offer to recall.
            await self.withdraw(item.id)

    async def withdraw_all(self) -> None:
        """Withdraw all offers that the process has not absorbed yet."""
        for offer in sorted(self.open):
            await self.withdraw(offer)

    async def withdraw(self, offer: ItemId) -> None:
        """Withdraw one offer, or do not send it. Events report whether this was in time."""
        self._withdrawn.add(offer)
        await self._connection.send(lambda driver: driver.recall(offer))

    async def give_up(self, why: str) -> None:
        """The process is gone: return everything that is open."""
        for offer in sorted(self.open):
            item = await self._store.item(offer)
            await self._connection.note(FollowupReturned(offer, item.text, why))
            await self._return_offer(offer)

    async def settle(self, event: Event | Foreign) -> None:
        """The process has reported what became of an offer."""
        match event:
            case FollowupAbsorbed(item, _) if item in self.open:
                claim = self._lane.lease.claim
                await self._store.close_offer(claim, ItemId(item), "absorbed")
                self.forget(ItemId(item))
            case FollowupReturned(item, _, _) if item in self.open:
                await self._return_offer(ItemId(item))
            case _:
                pass

    def forget(self, item: ItemId) -> None:
        """Remove an item that is not an offer any more."""
        self.open.pop(item, None)
        self._withdrawn.discard(item)

    async def load(self, snapshot: LaneSnapshot) -> None:
        """Take over the offers of an earlier holder: the record has the state of each."""
        self.open, self._unsent = {}, []
        self._has_more = self._has_more or snapshot.has_steerable
        for item in snapshot.followups:
            events = (each.event for each in reversed(snapshot.events))
            last = next((event for event in events if _find_item(event) == item.id), None)
            await self._load_one(item, last)

    async def _load_one(self, item: Item, last: Event | Foreign | None) -> None:
        if item.delivery == "offered":
            self.open[item.id] = _measure(item)
            await self.settle(last) if last else self._unsent.append(item)
        elif isinstance(last, FollowupReturned) and self._lane.agent.is_direct:
            # The earlier holder was killed while it returned the item.
            await self._store.cancel(item.id)

    async def _send_unsent(self) -> None:
        """Offer what may not have been sent; the driver sends nothing twice."""
        unsent, self._unsent = self._unsent, []
        for item in unsent:
            if item.id in self.open:
                await self.offer(item)

    async def _send(self, item: Item) -> Refused | None:
        if "steer" not in self._connection.abilities:
            return Refused("this provider cannot be steered")
        try:
            text = await self._build_text(item)
        except FileUnusable as error:
            # The item's own run reports what is wrong with it.
            return Refused(error.message)
        return await self._connection.steer(Offer(item.id, text), self._withdrawn)

    async def _build_text(self, item: Item) -> str:
        """Build the text with the paths of its files, because a message to a turn is text only."""
        if not item.payload.files:
            return item.text
        home = self._lane.deps.home
        files = await anyio.to_thread.run_sync(find_files, item.payload.files, home)
        return with_files(item.text, [(replace(file, media_type=None), at) for file, at in files])

    async def _return_offer(self, item: ItemId) -> None:
        async with self._lock:
            if item not in self.open:
                # It was already returned, for another reason.
                return
            await self._store.close_offer(self._lane.lease.claim, item, "returned")
            if self._lane.agent.is_direct:
                await self._store.cancel(item)
            self.forget(item)


def _measure(item: Item) -> int:
    return len(item.text.encode())


def _find_item(event: Event | Foreign) -> str | None:
    match event:
        case FollowupOffered(item, _) | FollowupAbsorbed(item, _) | FollowupReturned(item, _, _):
            return item
        case _:
            return None
