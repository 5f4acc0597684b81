"""What becomes of a message that is sent while a turn runs? Offered, and known only by evidence."""

import anyio

from steadyrun.model.event import (
    Event,
    FollowupAbsorbed,
    FollowupOffered,
    FollowupReturned,
    Foreign,
)
from steadyrun.model.ids import ItemId, RunId
from steadyrun.model.item import Item
from steadyrun.provider import Ability, Driver, Offer, Refused
from steadyrun.runtime.recorder import Recorder
from steadyrun.store import Store

# More than any turn has: what is asked for is the whole of it.
_ALL = 1_000_000


class Followups:
    """The open offers of one process, and the items behind them."""

    def __init__(
        self, store: Store, driver: Driver, recorder: Recorder, *, abilities: frozenset[Ability]
    ) -> None:
        self.open: set[ItemId] = set()
        # What an earlier holder had taken and not offered yet, as far as is known.
        self._untold: list[Item] = []
        # What is turned down lies in the queue for a moment, and must not be taken from there.
        self._lock = anyio.Lock()
        self._store = store
        self._driver = driver
        self._recorder = recorder
        self._abilities = abilities

    async def take(self) -> None:
        """Offer what has come to the lane, in order."""
        claim = self._recorder.claim
        async with self._lock:
            is_due = (await self._store.lane(claim.agent)).queued > 0
            taken = await self._store.take(claim) if is_due else []
        for item in taken:
            await self.offer(item)

    async def offer(self, item: Item) -> None:
        """Offer a message to the turn; turned down, it is cancelled with the reason."""
        self.open.add(item.id)
        refused = await self._offered(item)
        # What an earlier holder had told may have been heard of meanwhile.
        if refused and item.id in self.open:
            await self._recorder.note(FollowupReturned(item.id, item.text, refused.reason))
            await self._turn_down(item.id)

    async def recall(self) -> None:
        """Take back what has not been consumed yet."""
        for offer in sorted(self.open):
            await self._driver.recall(offer)

    async def note(self, event: Event | Foreign) -> None:
        """The process gave evidence."""
        match event:
            case FollowupAbsorbed(item, _) if item in self.open:
                await self._store.absorb(self._recorder.claim, ItemId(item))
                self.open.discard(ItemId(item))
            case FollowupReturned(item, _, _) if item in self.open:
                await self._turn_down(ItemId(item))
            case _:
                pass

    async def take_up(self, run: RunId) -> None:
        """Go on with the offers of an earlier holder: the record tells how far each has come."""
        items = await self._store.items(self._recorder.claim.agent)
        begun = [each for each in items if each.delivery in {"offered", "returned"}]
        if not begun:
            return
        events = [seen.event for seen in await self._store.last_events(run=run, limit=_ALL)]
        for item in sorted(begun, key=lambda each: each.seq):
            last = next((each for each in reversed(events) if _item_of(each) == item.id), None)
            await self._take_up(item, last)

    async def _take_up(self, item: Item, last: Event | Foreign | None) -> None:
        if item.delivery == "offered":
            self.open.add(item.id)
            await self.note(last) if last else self._untold.append(item)
        elif isinstance(last, FollowupReturned):
            # Its holder was killed in the middle of turning it down.
            await self._store.cancel(item.id)

    async def offer_again(self) -> None:
        """Offer what may not have been told; what was, is not told twice."""
        untold, self._untold = self._untold, []
        for item in untold:
            if item.id in self.open:
                await self.offer(item)

    async def _offered(self, item: Item) -> Refused | None:
        if "steer" not in self._abilities:
            return Refused("this provider cannot be steered")
        return await self._driver.steer(Offer(item.id, item.text))

    async def _turn_down(self, item: ItemId) -> None:
        async with self._lock:
            await self._store.give_back(self._recorder.claim, item)
            await self._store.cancel(item)
        self.open.discard(item)


def _item_of(event: Event | Foreign) -> str | None:
    match event:
        case FollowupOffered(item, _) | FollowupAbsorbed(item, _) | FollowupReturned(item, _, _):
            return item
        case _:
            return None
