"""How is a Dialect run over a live process? One driver for one process, from claim to exit.

Frames are read and sent in one order at a time: a frame that the Dialect wants to send is written,
acknowledged and told to it before the next line of the journal is read. A process that somebody
else has driven before is taken over by the same code: what was recorded is played again from the
last saved state, and only what is not in the record yet is passed on.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import anyio
import anyio.to_thread
from msgspec.structs import replace

from steadyrun.dialect import (
    Ability,
    Dialect,
    Ended,
    LaunchRequest,
    Offer,
    Refused,
    Send,
    SendSignal,
    Turn,
    Verdict,
)
from steadyrun.driver import DriverOutput, JournalBatch, Sink
from steadyrun.drivers import keeper, keeper_client
from steadyrun.drivers.keeper_client import KeeperConnection, KeptProcess
from steadyrun.drivers.turn_tracker import TrackedOutput, TurnTracker, end_from_exit
from steadyrun.errors import KeeperGone, LeaseLost
from steadyrun.lib.atomic import write_file
from steadyrun.lib.clock import Clock
from steadyrun.lib.file_follower import FileWatches, JournalFollower, TailFollower
from steadyrun.lib.framing import Frame, Lines
from steadyrun.lib.signal import Signal
from steadyrun.model.event import Emitted, ImageProduced, Note, OutputRaw
from steadyrun.model.process import Process

# Where the images of a process are, in its directory.
IMAGES = "images"
# How the key of the frame that tells a turn begins.
_BEGIN = "begin:"


class ProcessDriver:
    """Drives one process through its keeper."""

    def __init__(
        self,
        dialect: Dialect,
        process: Process,
        kept: KeptProcess,
        *,
        watches: FileWatches,
        clock: Clock,
        sink: Sink,
    ) -> None:
        """Without a link the process is gone, and what it left is read to its end."""
        directory, journal = kept.directory, kept.directory / "journal"
        self._turns = TurnTracker(dialect)
        self.heard_at = self.said_at = clock.monotonic()
        self._dialect = dialect
        self._process = process
        self._directory = directory
        self._link = kept.link
        # What it was started with, which may be long: until it has shaken hands.
        self._opening: LaunchRequest | None = kept.request
        self._clock = clock
        self._sink = sink
        # Not anyio's: taken for every stretch, it would look through all cancel scopes each time.
        self._lock, self._complaining = asyncio.Lock(), asyncio.Lock()
        self._caught_up, self._changed = Signal(), Signal()
        self._will: bytes | None = None
        self._is_gone = False
        self._stored, self._marks = process.offset, process.marks
        self._passed = process.offset
        self._offset, self._sent, self._complaints = 0, 0, 0
        if process.saved:
            if process.saved.state:
                self._turns.restore(process.saved.state)
            self._offset, self._sent = process.saved.offset, process.saved.sent
        self._lines = Lines(self._offset)
        self._journal = JournalFollower(watches, journal, self._offset)
        self._known_bytes = journal.stat().st_size
        self._stderr = TailFollower(watches, directory / "stderr", told=self._journal.call)
        recorded = keeper_client.read_sent(directory, after=0)
        self._keys = {frame.key for frame in recorded}
        # What is to be told again, the next one last.
        self._replay = [frame for frame in reversed(recorded) if frame.number > self._sent]

    @property
    def abilities(self) -> frozenset[Ability]:
        return self._dialect.abilities

    @property
    def is_open(self) -> bool:
        return self._turns.is_open

    @property
    def input(self) -> str | None:
        return self._turns.input

    @property
    def has_open_tools(self) -> bool:
        return self._turns.has_open_tools

    @property
    def has_background(self) -> bool:
        return self._dialect.has_background

    # -- verbs

    async def begin(self, turn: Turn, *, is_wanted: Callable[[], bool] = lambda: True) -> bool:
        if "multi_turn" not in self._dialect.abilities:
            return False
        async with self._speaking():
            if self._opening and await self._send_all(self._dialect.open(self._opening)):
                self._opening = None
        while not self._has_begun(turn):
            seen = self._changed.count
            async with self._speaking():
                if not is_wanted():
                    return False
                if self._dialect.is_ready:
                    sends = self._dialect.begin(turn)
                    if not sends or not await self._send_all(sends):
                        return False
                    if self._has_begun(turn):
                        return True
            await self._changed.wait(seen)
        return False

    def has_told(self, turn: Turn) -> bool:
        if "multi_turn" in self._dialect.abilities:
            return self._has_begun(turn)
        return self._opening is not None and self._opening.turn.key == turn.key

    def _has_begun(self, turn: Turn) -> bool:
        return f"{_BEGIN}{turn.key}" in self._keys

    async def steer(self, offer: Offer) -> Refused | None:
        while True:
            seen = self._changed.count
            async with self._speaking():
                is_open = self._turns.is_open
                answer = self._dialect.steer(offer) if is_open else Refused("no turn is running")
                if isinstance(answer, Refused):
                    return answer
                if answer:
                    is_sent = await self._send_all([answer])
                    return None if is_sent else Refused("the process has ended")
            await self._changed.wait(seen)

    async def recall(self, offer: str) -> bool:
        async with self._speaking():
            send = self._dialect.recall(offer)
            return send is not None and await self._send_all([send])

    async def interrupt(self) -> bool:
        async with self._speaking():
            match self._dialect.interrupt():
                case Send() as send:
                    return await self._send_all([send])
                case SendSignal(number) if self._link:
                    with self._unless_gone():
                        await self._link.signal(number)
                        return True
        return False

    async def decide(self, approval: str, verdict: Verdict) -> None:
        async with self._speaking():
            await self._send_all(self._dialect.decide(approval, verdict))

    async def close(self) -> None:
        with self._unless_gone():
            if self._link:
                await self._link.eof()

    async def stop(self, reason: str) -> None:
        with self._unless_gone():
            if self._link:
                await self._link.stop(reason)

    @contextmanager
    def _unless_gone(self) -> Iterator[None]:
        """What is said to a process that has ended meanwhile is not heard; `follow` tells of it."""
        try:
            yield
        except KeeperGone:
            if self._link and not self._link.is_over and not self._link.is_deaf:
                raise

    @asynccontextmanager
    async def _speaking(self) -> AsyncIterator[None]:
        """Nobody else reads or sends meanwhile, and all that had been recorded has been heard."""
        await self._caught_up.wait(since=0)
        async with self._lock:
            yield

    # -- reading

    async def follow(self) -> None:
        """One task does everything: it reads the journal, and is called when there is more."""
        journal, link = self._journal, self._link
        with journal, self._stderr:
            if link:
                link.on_over = journal.call
            await self._catch_up()
            journal.call()
            while (frames := await self._read()) is not None:
                if frames:
                    async with self._lock:
                        await self._take(frames)
                elif link is None or link.is_over:
                    await self._finish()
                if self._stderr.has_grown:
                    await self._hear_complaints()
        async with self._lock:
            await self._take_exit()

    async def _read(self) -> list[Frame] | None:
        """The next lines; none if we were called for something else, None at the end."""
        chunk = await self._journal.read()
        if not chunk:
            return None if self._journal.is_finished else []
        # A part of a line is a word, too.
        self.heard_at = self._clock.monotonic()
        return self._lines.feed(chunk)

    async def _catch_up(self) -> None:
        """Hear what an earlier driver had heard, and what came since nobody was here."""
        async with self._lock:
            while self._journal.offset < self._known_bytes:
                await self._take(self._lines.feed(await self._journal.read()))
            await self._pass_on(self._play_sent(before=self._offset + 1))
        self._caught_up.notify()

    async def _finish(self) -> None:
        if self._link:
            await self._wait_for_end(self._link)
        self._stderr.finish()
        self._journal.finish()

    async def _wait_for_end(self, link: KeeperConnection) -> None:
        await link.until_over()
        if link.is_replaced:
            raise LeaseLost(self._process.agent, fence=link.fence)
        # A killed keeper leaves the outer one behind, which ends everything and writes it down.
        if not link.has_exited:
            await keeper_client.wait_until_gone(self._directory)
            # Both may have been killed: then nobody has ended anything.
            await anyio.to_thread.run_sync(keeper.sweep, [self._process.id])

    async def _take(self, frames: list[Frame]) -> None:
        """Hear lines in order, and send what they ask for. None is kept while what it says is
        written down: others may wait for that, too, each with its lines."""
        now = self._clock.now()
        self.heard_at = self._clock.monotonic()
        heard: list[DriverOutput] = []
        for frame in frames:
            if self._replay:
                heard += self._play_sent(before=frame.end)
            told = self._turns.received(frame, now)
            if self._turns.pictures:
                told = await self._drawn(told, frame)
            if len(told) == 1 and type(told[0]) is Emitted:
                self._offset = frame.end
                if frame.end > self._stored:
                    heard.append(told[0])
                continue
            # A turn's beginning or end, or something to send: what came before goes first.
            await self._pass_on(heard)
            self._offset, heard = frame.end, []
            more = await self._act_on(told, is_new=frame.end > self._stored)
            await self._pass_on(more)
        frames.clear()
        await self._pass_on(heard)
        await self._leave_will()
        self._tell_change()

    async def _drawn(self, told: list[TrackedOutput], frame: Frame) -> list[TrackedOutput]:
        """Keep the images that were produced, and tell where."""
        pictures, self._turns.pictures = self._turns.pictures, {}
        try:
            await anyio.to_thread.run_sync(_write, self._directory / IMAGES, pictures)
        except OSError as error:
            lost = Note(f"images could not be kept: {error}")
            without = [_with_file(each, None) for each in told]
            return [*without, Emitted(frame.end, len(told), self._clock.now(), lost)]
        return [_with_file(each, f"{self._process.keeper}/{IMAGES}") for each in told]

    async def _act_on(self, told: list[TrackedOutput], *, is_new: bool) -> list[DriverOutput]:
        heard: list[DriverOutput] = []
        for each in told:
            if isinstance(each, Send):
                heard += await self._send(each) or ()
            elif is_new:
                heard.append(await self._explained(each))
        return heard

    async def _explained(self, heard: DriverOutput) -> DriverOutput:
        """A turn that its keeper has interrupted ended for the keeper's reason."""
        if not isinstance(heard, Ended) or heard.status != "cancelled":
            return heard
        if keeper.WILL_KEY not in {
            each.key for each in keeper_client.read_sent(self._directory, 0)
        }:
            return heard
        if self._link:
            await self._wait_for_end(self._link)
        cut = end_from_exit(keeper_client.read_exit(self._directory))
        return replace(heard, status=cut.status, error=cut.error, stop_reason=cut.stop_reason)

    def _play_sent(self, before: int) -> list[DriverOutput]:
        """Tell the Dialect again what was sent by an earlier driver before this point."""
        heard: list[DriverOutput] = []
        while self._replay and self._replay[-1].end < before:
            heard += self._was_sent(self._replay.pop())
        return heard

    def _was_sent(self, frame: Frame) -> list[DriverOutput]:
        self._sent = max(self._sent, frame.number)
        self._keys.add(frame.key)
        told = self._turns.sent(frame, self._clock.now())
        if frame.number <= self._marks.s:
            return []
        return [each for each in told if not isinstance(each, Send)]

    async def _take_exit(self) -> None:
        """The last line may lack its line break; then comes the end itself."""
        rest = self._lines.rest()
        if rest:
            await self._take([rest])
        self._is_gone = True
        if self._process.saved and not self._process.saved.state:
            return
        last = keeper_client.read_exit(self._directory)
        told = self._turns.exited(last, self._clock.now(), is_awaited=not self._was_told)
        heard = [each for each in told if not isinstance(each, Send)]
        await self._pass_on(heard if not self._marks.x else [])
        self._tell_change()

    @property
    def _was_told(self) -> bool:
        """Whether the turn that the process was launched for has reached it."""
        is_one_shot = "multi_turn" not in self._dialect.abilities
        return is_one_shot or any(key.startswith(_BEGIN) for key in self._keys)

    async def _complain(self, chunk: bytes) -> None:
        self._complaints += 1
        event = OutputRaw("stderr", chunk.decode(errors="replace"))
        emitted = Emitted(0, self._complaints, self._clock.now(), event)
        await self._sink(JournalBatch([emitted], self._offset, self._sent))

    async def _hear_complaints(self) -> None:
        """Tell what stderr has by now: whoever follows a turn is gone after its end."""
        async with self._complaining:
            for chunk in list(iter(self._stderr.unread, b"")):
                await self._complain(chunk)

    # -- sending

    async def _send_all(self, sends: Sequence[Send]) -> bool:
        """Whether all of it was sent, now or before."""
        heard: list[DriverOutput] = []
        is_sent = True
        for send in sends:
            came_of_it = await self._send(send)
            is_sent = is_sent and came_of_it is not None
            heard += came_of_it or ()
        await self._pass_on(heard)
        await self._leave_will()
        self._tell_change()
        return is_sent

    async def _send(self, send: Send) -> list[DriverOutput] | None:
        """What came of it; None if there is no process any more to send it to."""
        if send.key in self._keys:
            return []
        with self._unless_gone():
            if self._link:
                number = await self._link.frame(send.key, self._offset, send.raw)
                self.said_at = self._clock.monotonic()
                return self._was_sent(Frame(send.raw, self._offset, send.key, number))
        return None

    async def _pass_on(self, heard: list[DriverOutput]) -> None:
        if not heard and self._offset <= self._passed:
            return
        has_ended = Ended in set(map(type, heard))
        self._passed = max(self._passed, self._offset)
        if has_ended and not self._is_gone:
            await self._hear_complaints()
        memory = self._memory() if has_ended else None
        more = self._journal.is_behind
        await self._sink(JournalBatch(heard, self._passed, self._sent, memory, more))

    def _memory(self) -> bytes:
        """What to go on with; from the end of a process nobody does, and its record is whole."""
        return b"" if self._is_gone else self._turns.save()

    async def _leave_will(self) -> None:
        """Deposit how to interrupt the turn that is open now, for a keeper that is left alone."""
        if self._link is None:
            return
        will = self._dialect.interrupt() if self._turns.is_open else None
        raw = will.raw if isinstance(will, Send) else None
        if raw is not None and raw != self._will:
            self._will = raw
            with self._unless_gone():
                await self._link.will(raw)

    def _tell_change(self) -> None:
        self._changed.notify()


def _with_file(told: TrackedOutput, folder: str | None) -> TrackedOutput:
    """An image that was produced, with the place of its file; without a folder there is none."""
    if not isinstance(told, Emitted) or not isinstance(told.event, ImageProduced):
        return told
    file = f"{folder}/{told.event.file}" if folder and told.event.file else None
    return replace(told, event=replace(told.event, file=file))


def _write(directory: Path, pictures: Mapping[str, bytes]) -> None:
    """Write files that are not there yet, each whole or not at all."""
    directory.mkdir(mode=0o700, exist_ok=True)
    for name, data in pictures.items():
        file = directory / name
        if not file.exists():
            write_file(file, data, is_durable=False)
