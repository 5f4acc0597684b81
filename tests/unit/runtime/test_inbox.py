"""A message is stored completely as an item, or refused."""

import hashlib
import os
import resource
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import anyio
import pytest

from steadyrun.errors import FileUnusable, InvalidUsage, MessageTooLong, StoreFull, StoreUnusable
from steadyrun.lib.clock import SystemClock
from steadyrun.model.agent import Agent
from steadyrun.model.ids import AgentId, ItemId
from steadyrun.model.item import Attachment, Item, Payload
from steadyrun.runtime.attachments import LARGEST_FILE_BYTES, MOST_FILES, find_files
from steadyrun.runtime.inbox import LONGEST_KEY, LONGEST_TEXT_BYTES, accept
from steadyrun.stores.memory.store import MemoryStore
from tests.support.real_cli_harness import PNG

MIB = 1024 * 1024


class Box:
    """An agent with an inbox, and a home for what comes with its messages."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.home = folder / "sender", folder / "home"
        self.folder.mkdir()
        self.agent = Agent(
            AgentId("agt_1"),
            "ada",
            ("scripted",),
            str(folder),
            followup="queue",
            on_lost="retry",
        )

    def file(self, name: str, content: bytes = b"content") -> Path:
        file = self.folder / name
        file.write_bytes(content)
        return file

    def accept(self, *texts: str, **given: Any) -> list[Item]:
        """Accept each text, and return all items there are, oldest first."""

        async def main() -> list[Item]:
            store = MemoryStore(SystemClock())
            await store.add_agent(self.agent)
            for text in texts:
                await accept(store.accept, self.agent, text, home=self.home, **given)
            return sorted(await store.items(), key=lambda item: item.seq)

        return anyio.run(main)

    def refuse(self, text: str = "look", **given: Any) -> InvalidUsage:
        """Accepting is refused: there is no item then, and nothing was copied."""

        async def main() -> InvalidUsage:
            store = MemoryStore(SystemClock())
            await store.add_agent(self.agent)
            with pytest.raises(InvalidUsage) as refused:
                await accept(store.accept, self.agent, text, home=self.home, **given)
            assert await store.items(include_settled=True) == []
            return refused.value

        error = anyio.run(main)
        assert self.kept == []
        return error

    @property
    def kept(self) -> Sequence[Path]:
        return sorted(self.home.rglob("*"))[1:]


@pytest.fixture
def box(tmp_path: Path) -> Box:
    return Box(tmp_path)


def test_item_has_the_settings_of_its_agent_by_default(box: Box) -> None:
    [item] = box.accept("hello")

    assert (item.text, item.followup, item.on_lost) == ("hello", "queue", "retry")
    assert (item.kind, item.status, item.payload) == ("message", "queued", Payload())


def test_settings_of_a_message_override_those_of_the_agent(box: Box) -> None:
    payload = Payload(metadata={"from": "mail"}, retry_of=ItemId("itm_1"))

    [item] = box.accept("hello", followup="steer", on_lost="fail", payload=payload)

    assert (item.followup, item.on_lost, item.payload) == ("steer", "fail", payload)


def test_two_messages_with_one_key_are_one_item(box: Box) -> None:
    items = box.accept("hello", "hello", key="k")

    assert [item.text for item in items] == ["hello"]


class TestTexts:
    @pytest.mark.parametrize("text", ["", " \n\t "])
    def test_empty_text_is_refused(self, box: Box, text: str) -> None:
        assert "empty" in box.refuse(text).message

    def test_lone_surrogate_is_refused_with_its_position(self, box: Box) -> None:
        assert "incomplete character at 2" in box.refuse("ab\ud800").message

    def test_longest_text_is_accepted(self, box: Box) -> None:
        [item] = box.accept("ü" * (LONGEST_TEXT_BYTES // 2))

        assert len(item.text.encode()) == LONGEST_TEXT_BYTES

    def test_too_long_text_is_refused_with_both_sizes(self, box: Box) -> None:
        error = box.refuse("ü" * (5 * MIB // 2))

        assert isinstance(error, MessageTooLong)
        assert (error.found, error.most) == (5 * MIB, MIB)
        assert f"{MIB} bytes, found {5 * MIB}" in error.message

    @pytest.mark.parametrize("key", ["", "k" * (LONGEST_KEY + 1), "\udcff"])
    def test_invalid_key_is_refused(self, box: Box, key: str) -> None:
        assert box.refuse(key=key).message.startswith("expected ")

    @pytest.mark.parametrize(
        ("metadata", "found"),
        [
            ({"x": object()}, "cannot be written as JSON"),
            ({"x": "\ud800"}, "cannot be written as JSON"),
            ({"x": "y" * 65536}, "at most 65536 bytes of metadata"),
            ({"wall_seconds": 1}, "must not have the key 'wall_seconds'"),
        ],
    )
    def test_invalid_metadata_is_refused(
        self, box: Box, metadata: dict[str, Any], found: str
    ) -> None:
        assert found in box.refuse(payload=Payload(metadata=metadata)).message


class TestDamagedCopies:
    @pytest.mark.parametrize("damaged", [b"", b"samf", b"same and more"])
    def test_damaged_copy_is_replaced_when_the_file_is_sent_again(
        self, box: Box, damaged: bytes
    ) -> None:
        file = box.file("a", b"same")
        box.accept("one", files=[file])
        [kept] = box.kept
        kept.write_bytes(damaged)

        [item] = box.accept("two", files=[file])

        assert box.kept == [kept]
        assert kept.read_bytes() == b"same"
        assert [place for _, place in find_files(item.payload.files, box.home)] == [str(kept)]

    def test_link_in_place_of_a_copy_is_replaced_and_its_target_unchanged(self, box: Box) -> None:
        file, other = box.file("a", b"same"), box.file("other", b"other")
        box.accept("one", files=[file])
        [kept] = box.kept
        kept.unlink()
        kept.symlink_to(other)

        box.accept("two", files=[file])

        assert (kept.is_symlink(), kept.read_bytes()) == (False, b"same")
        assert other.read_bytes() == b"other"

    def test_damaged_copy_is_not_used(self, box: Box) -> None:
        [item] = box.accept("one", files=[box.file("a", b"same")])
        box.kept[0].write_bytes(b"samf")

        with pytest.raises(FileUnusable, match="its copy is damaged") as refused:
            find_files(item.payload.files, box.home)

        assert refused.value.file == "a"
        assert "Send it again" in refused.value.hint


class TestFiles:
    def test_file_is_stored_under_its_digest(self, box: Box) -> None:
        file, picture = box.file("notes.txt", b"some notes"), box.file("no ending", PNG)

        [item] = box.accept("look", files=[file, picture])

        digests = [hashlib.sha256(content).hexdigest() for content in (b"some notes", PNG)]
        assert item.payload.files == (
            Attachment("notes.txt", f"attachments/{digests[0]}", 10),
            Attachment("no ending", f"attachments/{digests[1]}", len(PNG), "image/png"),
        )
        assert [path.name for path in box.kept] == sorted(digests)
        assert (box.home / "attachments" / digests[0]).read_bytes() == b"some notes"

    def test_stored_file_is_private(self, box: Box) -> None:
        box.accept("look", files=[box.file("a")])

        [kept] = box.kept
        assert (kept.parent.stat().st_mode & 0o777, kept.stat().st_mode & 0o777) == (0o700, 0o600)

    def test_stored_file_is_independent_of_the_original(self, box: Box) -> None:
        file = box.file("a", b"before")

        [item] = box.accept("look", files=[file])
        file.write_bytes(b"after!")

        assert (box.home / item.payload.files[0].place).read_bytes() == b"before"

    def test_equal_files_are_stored_once(self, box: Box) -> None:
        files = [box.file("a", b"same"), box.file("b", b"same")]

        items = box.accept("one", "two", files=files)

        assert [[file.name for file in item.payload.files] for item in items] == [["a", "b"]] * 2
        assert len(box.kept) == 1

    def test_stored_files_of_the_payload_come_first(self, box: Box) -> None:
        before = Attachment("old", "attachments/0", 1)

        [item] = box.accept("look", files=[box.file("a")], payload=Payload(files=(before,)))

        assert [file.name for file in item.payload.files] == ["old", "a"]

    def test_link_named_by_the_sender_is_followed(self, box: Box) -> None:
        link = box.folder / "link.txt"
        link.symlink_to(box.file("real.txt", b"real"))

        [item] = box.accept("look", files=[link])

        [file] = item.payload.files
        assert (file.name, (box.home / file.place).read_bytes()) == ("link.txt", b"real")

    def test_long_file_name_keeps_its_suffix(self, box: Box) -> None:
        [item] = box.accept("look", files=[box.file("n" * 200 + ".txt")])

        assert item.payload.files[0].name == "n" * 96 + ".txt"

    @pytest.mark.parametrize(
        "name", ["a\nb", "a\x1b[2Jb", "a\u202eb", "a\x7f", os.fsdecode(b"\xff")]
    )
    def test_file_name_with_control_characters_is_refused(self, box: Box, name: str) -> None:
        error = box.refuse(files=[box.file("good"), box.file(name)])

        assert "its name has control characters" in error.message
        assert error.message.isprintable()

    @pytest.mark.parametrize("name", ["Bericht März.txt", "1\u202f2.png", "👩\u200d🔧.md"])
    def test_file_name_may_have_unicode_characters(self, box: Box, name: str) -> None:
        [item] = box.accept("look", files=[box.file(name)])

        assert item.payload.files[0].name == name

    def test_missing_file_is_reported(self, box: Box) -> None:
        error = box.refuse(files=[box.file("there"), box.folder / "missing"])

        assert isinstance(error, FileUnusable)
        assert error.file == str(box.folder / "missing")
        assert "No such file" in error.problem

    def test_only_regular_files_are_accepted(self, box: Box) -> None:
        os.mkfifo(box.folder / "pipe")
        (box.folder / "link").symlink_to("pipe")
        with socket.socket(socket.AF_UNIX) as listening:
            listening.bind(str(box.folder / "s"))
            for path in (box.folder / "pipe", box.folder / "link", box.folder / "s", box.folder,
                         Path("/dev/zero")):  # fmt: skip
                error = box.refuse(files=[box.file("a"), path])

                assert error.message == f"{path}: expected a regular file, found something else"

    def test_path_with_a_null_byte_is_refused(self, box: Box) -> None:
        assert "null" in box.refuse(files=[Path("x\0/y")]).message

    def test_too_large_file_is_refused(self, box: Box) -> None:
        sparse = box.file("large")
        os.truncate(sparse, LARGEST_FILE_BYTES + 1)

        error = box.refuse(files=[sparse])

        assert f"at most {LARGEST_FILE_BYTES} bytes, found {LARGEST_FILE_BYTES + 1}" in str(error)

    def test_too_large_sum_of_files_is_refused(self, box: Box) -> None:
        files = [box.file(name) for name in "abc"]
        for file in files:
            os.truncate(file, 17 * MIB)

        assert f"at most {50 * MIB} bytes of files, found {51 * MIB}" in str(
            box.refuse(files=files)
        )

    def test_too_many_files_are_refused(self, box: Box) -> None:
        files = [box.file("a")] * (MOST_FILES + 1)

        assert "at most 16 files, found 17" in box.refuse(files=files).message
        assert len(box.accept("look", files=files[:-1])[0].payload.files) == MOST_FILES

    def test_too_many_images_are_refused(self, box: Box) -> None:
        assert "at most 10 images, found 11" in box.refuse(files=[box.file("a", PNG)] * 11).message

    def test_home_that_cannot_be_written_is_reported(self, box: Box) -> None:
        box.home.mkdir()
        (box.home / "attachments").write_text("in the way")

        with pytest.raises(StoreUnusable, match="attachments: a file cannot be stored"):
            box.accept("look", files=[box.file("a")])

    def test_failed_copy_leaves_no_file(self, box: Box) -> None:
        file, limits = box.file("a", b"x" * 4096), resource.getrlimit(resource.RLIMIT_FSIZE)

        resource.setrlimit(resource.RLIMIT_FSIZE, (1024, limits[1]))
        try:
            with pytest.raises(StoreFull, match="a file cannot be stored"):
                box.accept("look", files=[file])
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)

        assert [path.name for path in box.kept] == []
