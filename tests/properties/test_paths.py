"""Whatever tree of links an agent builds, it gets to all that is open to it and to nothing else.

What is true is asked of the kernel: it opens the path, and says which file that was.
"""

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from hypothesis import event, given, settings
from hypothesis import strategies as st

from steadyrun.errors import PathRefused
from steadyrun.lib.safe_paths import PathScope

TOP = "<top>"
OPEN = ("open", "added")
DIRECTORIES = ("open", "added", "out", "openx")
names = st.sampled_from(["a", "b", " é\n"])
steps = st.sampled_from(["a", "a", "b", " é\n", "..", "."])
beginnings = st.sampled_from(
    [(), (), *(("..", name) for name in DIRECTORIES), *((TOP, name) for name in DIRECTORIES)]
)
targets = st.builds(
    lambda first, rest: "/".join((*first, *rest)),
    beginnings,
    st.lists(steps, min_size=1, max_size=3),
)


@dataclass(frozen=True)
class Made:
    """Something is put at a place; what was there before is moved aside."""

    kind: Literal["directory", "file", "link"]
    place: tuple[str, ...]
    target: str


places = st.builds(
    lambda first, rest: (first, *rest),
    st.sampled_from(["open", *DIRECTORIES]),
    st.lists(names, min_size=1, max_size=2),
)
kinds = st.sampled_from(["link", "link", "link", "directory", "file"])
makings = st.lists(st.builds(Made, kinds, places, targets), min_size=1, max_size=8)


@st.composite
def cases(draw: st.DrawFn) -> tuple[list[Made], str]:
    """A tree, and a path that goes by what was made there more often than not."""
    made = draw(makings)
    if draw(st.integers(0, 3)) == 0:
        return made, draw(targets)
    place = draw(st.sampled_from(made)).place
    return made, "/".join((TOP, *place, *draw(st.lists(steps, max_size=2))))


class Tree:
    """Two directories that are open, one beside them of nearly the same name, one outside."""

    def __init__(self, top: str) -> None:
        self.top = top
        Path(top, "aside").mkdir()
        # So that most of what is drawn leads somewhere.
        for name in DIRECTORIES:
            Path(top, name, "a", "a").mkdir(parents=True)
            Path(top, name, "a", "b").write_text(name)
            Path(top, name, "b").write_text(name)
        self.scope = PathScope.from_directories(f"{top}/open", f"{top}/added")
        self._moved = 0

    def make(self, made: Made) -> None:
        path = Path(self.top, *made.place)
        # Never through a link: that could lead out of the tree, and this is for real.
        if located(str(path.parent)) != str(path.parent) or not path.parent.is_dir():
            return
        if os.path.lexists(path):
            self._moved += 1
            path.rename(f"{self.top}/aside/{self._moved}")
        match made.kind:
            case "directory":
                path.mkdir()
            case "file":
                path.write_text("before")
            case "link":
                path.symlink_to(self.written(made.target))

    def written(self, way: str) -> str:
        return way.replace(TOP, self.top)

    def is_open(self, place: str) -> bool:
        return any(f"{place}/".startswith(f"{self.top}/{name}/") for name in OPEN)

    def outside(self) -> list[tuple[str, str]]:
        """All that is in the directories that are not open, and what stands in the files."""
        files = [
            each for name in ("out", "openx", "aside") for each in Path(self.top, name).rglob("*")
        ]
        return sorted((str(each), each.read_text()) for each in files if is_file(each))


@contextmanager
def tree(makings: list[Made]) -> Iterator[Tree]:
    top = os.path.realpath(tempfile.mkdtemp())
    try:
        made = Tree(top)
        for each in makings:
            made.make(each)
        yield made
    finally:
        shutil.rmtree(top)


def is_file(path: Path) -> bool:
    return path.is_file() and not path.is_symlink()


def name_of(descriptor: int) -> str:
    return str(Path(f"/proc/self/fd/{descriptor}").readlink())


def located(path: str) -> str | None:
    """The name that the kernel has for what it finds there; None if it finds nothing."""
    try:
        descriptor = os.open(path, os.O_PATH)
    except OSError:
        return None
    try:
        return name_of(descriptor)
    finally:
        os.close(descriptor)


def truth(path: str) -> str | None:
    """Where a file would be that is opened or made by this path; None if none can be."""
    for _ in range(40):
        if (found := located(path)) is not None:
            return found
        parent, name = os.path.split(path)
        place = located(parent)
        if place is None or name in {"", ".", ".."} or not Path(place).is_dir():
            return None
        try:
            path = f"{place}/{name}"
            target = os.readlink(path)  # noqa: PTH115 (a Path is another text)
            path = target if target.startswith("/") else f"{place}/{target}"
        except FileNotFoundError:
            return path
        except OSError:
            return None
    return None


def resolved(tree: Tree, path: str) -> str | None:
    try:
        return str(tree.scope.resolve(path))
    except PathRefused:
        return None


@settings(max_examples=300)
@given(cases())
def test_path_is_accepted_exactly_if_it_leads_inside(case: tuple[list[Made], str]) -> None:
    makings, way = case
    with tree(makings) as made:
        path = made.written(way)

        found = resolved(made, path)
        true = truth(path if path.startswith("/") else f"{made.top}/open/{path}")

        event("nowhere" if true is None else "open" if made.is_open(true) else "out")
        if true is not None:
            assert found == (true if made.is_open(true) else None)
        # What cannot be opened may be taken or not, as long as it is a name of something inside.
        assert found is None or made.is_open(found)


@settings(max_examples=300)
@given(cases())
def test_resolved_path_contains_no_link(case: tuple[list[Made], str]) -> None:
    makings, way = case
    with tree(makings) as made:
        found = resolved(made, made.written(way))

        if found is not None:
            assert located(found) in {found, None}
            assert resolved(made, found) == found


@settings(max_examples=300)
@given(
    cases(),
    makings,
    st.sampled_from([0, os.O_CREAT, os.O_CREAT | os.O_TRUNC]),
)
def test_file_outside_is_never_opened_despite_changes(
    case: tuple[list[Made], str], changes: list[Made], flags: int
) -> None:
    makings, way = case
    with tree(makings) as made:
        found = resolved(made, made.written(way))
        if found is None:
            return
        for each in changes:
            made.make(each)
        before = made.outside()

        with suppress(OSError, PathRefused):
            descriptor = made.scope.open(Path(found), os.O_RDWR | flags)
            event("opened")
            assert name_of(descriptor) == found
            os.write(descriptor, b"after")
            os.close(descriptor)

        assert made.outside() == before
