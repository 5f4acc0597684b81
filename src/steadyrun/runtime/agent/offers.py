"""What becomes of a message that is sent while a turn runs? Offered, and known only by evidence."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Protocol, TypeVar

import anyio
import anyio.to_thread
from msgspec.structs import replace

from steadyrun.dialect import Ability, Offer, Refused
from steadyrun.driver import Driver
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
from steadyrun.runtime.attachments import find_files
from steadyrun.runtime.prompt.recovery import with_files
from steadyrun.store import MOST_TAKEN_BYTES, LaneSnapshot, Store

# What a CLI has not taken in yet, at most.
_MOST_OPEN = 16

Answer = TypeVar("Answer")


class Speaker(Protocol):
    """What follow-ups need of a process."""

    @property
    def driver(self) -> Driver | None: ...

    @property
    def abilities(self) -> frozenset[Ability]: ...

    async def say(self, verb: Callable[[Driver], Awaitable[Answer]]) -> Answer | None: ...

    async def note(self, *events: Event) -> None: ...


class OpenOffers:
    """The open offers of one process, and the items behind them."""

    def __init__(self, store: Store, process: Speaker, *, home: Path, is_direct: bool) -> None:
        """What is turned down waits for a run of its own, unless there will be none: `is_direct`.
        Then it is cancelled, and whoever sent it is told."""
        self._home = home
        # On whose behalf things are taken.
        self.claim: Claim | None = None
        self.open: dict[ItemId, int] = {}
        # There was no room for all, or it is not known: to be looked at when there is room again.
        self.may_have_more = False
        # What an earlier holder had taken and not offered yet, as far as is known.
        self._untold: list[Item] = []
        # What somebody wants back: it may not have been told yet.
        self._unwanted: set[ItemId] = set()
        # What is turned down lies in the queue for a moment, and must not be taken from there.
        self._lock, self._looking = asyncio.Lock(), asyncio.Lock()
        self._has_more = False
        self._store = store
        self._process = process
        self._is_direct = is_direct

    async def look(self) -> None:
        """Offer what an earlier holder may not have told, and what has come since: one after the
        other, whoever asks."""
        self._has_more = True
        if self._looking.locked():
            return
        async with self._looking:
            while self._has_more:
                self._has_more = False
                await self._offer_again()
                await self._take()
            driver = self._process.driver
            if driver is None or not driver.is_open:
                self.put_off()

    def put_off(self) -> None:
        """There may be something to `look` for, and nobody can be told now."""
        self._has_more = True

    async def _take(self) -> None:
        """Offer what has come to the lane, in order, as much as may be open at once."""
        driver, claim = self._process.driver, self.claim
        can_wait = "steer" not in self._process.abilities and not self._is_direct
        if claim is None or driver is None or not driver.is_open or can_wait:
            return
        async with self._lock:
            room = MOST_TAKEN_BYTES - sum(self.open.values())
            most = _MOST_OPEN - len(self.open)
            is_full = most <= 0 or not await self._fits(claim, room)
            taken = (
                [] if is_full else await self._store.offer_followups(claim, most, most_bytes=room)
            )
            self.may_have_more = is_full or bool(taken)
            self.open |= {item.id: _size(item) for item in taken}
        for item in taken:
            await self.offer(item)

    async def _fits(self, claim: Claim, room: int) -> bool:
        """Whether the next one may be open beside those that are; alone it may be of any length."""
        if not self.open:
            return True
        waiting = [
            item
            for item in await self._store.items(claim.agent)
            if item.status == "queued" and item.delivery == "none" and item.followup == "steer"
        ]
        return bool(waiting) and _size(min(waiting, key=lambda item: item.seq)) <= room

    async def offer(self, item: Item) -> None:
        """Offer a message to the turn; turned down, it is given back with the reason."""
        self.open[item.id] = _size(item)
        refused = await self._offered(item)
        # What an earlier holder had told may have been heard of meanwhile.
        if refused and item.id in self.open:
            await self._process.note(FollowupReturned(item.id, item.text, refused.reason))
            await self._turn_down(item.id)
        elif item.id in self._unwanted:
            # Somebody wanted it back while it was being told: there was nothing to take back then.
            await self.take_back(item.id)

    async def recall(self) -> None:
        """Take back what has not been consumed yet."""
        for offer in sorted(self.open):
            await self.take_back(offer)

    async def give_up(self, why: str) -> None:
        """The process is gone, and nothing has come of what is open."""
        for offer in sorted(self.open):
            item = await self._store.item(offer)
            await self._process.note(FollowupReturned(offer, item.text, why))
            await self._turn_down(offer)

    async def take_back(self, offer: ItemId) -> None:
        """Take one back, or do not tell it; events tell whether that came in time."""
        self._unwanted.add(offer)
        await self._process.say(lambda driver: driver.recall(offer))

    async def note(self, event: Event | Foreign) -> None:
        """The process gave evidence."""
        match event:
            case FollowupAbsorbed(item, _) if item in self.open:
                await self._store.absorb(self._claimed(), ItemId(item))
                self.forget(ItemId(item))
            case FollowupReturned(item, _, _) if item in self.open:
                await self._turn_down(ItemId(item))
            case _:
                pass

    def forget(self, item: ItemId) -> None:
        """It is no offer any more."""
        self.open.pop(item, None)
        self._unwanted.discard(item)

    async def take_up(self, known: LaneSnapshot) -> None:
        """Go on with the offers of an earlier holder: the record tells how far each has come."""
        self.open, self._untold = {}, []
        self._has_more = self._has_more or known.has_steerable
        for item in known.followups:
            told = (each.event for each in reversed(known.events))
            last = next((event for event in told if _item_of(event) == item.id), None)
            await self._take_up(item, last)

    @property
    def is_due(self) -> bool:
        """Whether there may be something to `look` for that nobody could be told so far."""
        return self._has_more or bool(self._untold)

    async def _take_up(self, item: Item, last: Event | Foreign | None) -> None:
        if item.delivery == "offered":
            self.open[item.id] = _size(item)
            await self.note(last) if last else self._untold.append(item)
        elif isinstance(last, FollowupReturned) and self._is_direct:
            # Its holder was killed in the middle of turning it down.
            await self._store.cancel(item.id)

    async def _offer_again(self) -> None:
        """Offer what may not have been told; what was, is not told twice."""
        untold, self._untold = self._untold, []
        for item in untold:
            if item.id in self.open:
                await self.offer(item)

    async def _offered(self, item: Item) -> Refused | None:
        if "steer" not in self._process.abilities:
            return Refused("this provider cannot be steered")
        answers = await self._process.say(lambda driver: self._steered(driver, item))
        return answers[0] if answers else Refused("the process has ended")

    async def _steered(self, driver: Driver, item: Item) -> tuple[Refused | None]:
        if item.id in self._unwanted:
            return (Refused("it was taken back"),)
        try:
            text = await self._text(item)
        except FileUnusable as error:
            # Its own run tells what is wrong with it.
            return (Refused(error.message),)
        return (await driver.steer(Offer(item.id, text)),)

    async def _text(self, item: Item) -> str:
        """With the names of its files: a message to a turn has nothing but a text."""
        if not item.payload.files:
            return item.text
        files = await anyio.to_thread.run_sync(find_files, item.payload.files, self._home)
        return with_files(item.text, [(replace(file, media_type=None), at) for file, at in files])

    async def _turn_down(self, item: ItemId) -> None:
        async with self._lock:
            if item not in self.open:
                # Turned down already, for another reason.
                return
            await self._store.return_offer(self._claimed(), item)
            if self._is_direct:
                await self._store.cancel(item)
            self.forget(item)

    def _claimed(self) -> Claim:
        assert self.claim
        return self.claim


def _size(item: Item) -> int:
    return len(item.text.encode())


def _item_of(event: Event | Foreign) -> str | None:
    match event:
        case FollowupOffered(item, _) | FollowupAbsorbed(item, _) | FollowupReturned(item, _, _):
            return item
        case _:
            return None
