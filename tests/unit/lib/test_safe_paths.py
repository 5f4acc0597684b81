"""Tests which paths are refused: difficult ones by name. The property tests have the others."""

import os
import stat
from pathlib import Path

import pytest

from steadyrun.errors import FileUnusable, PathRefused
from steadyrun.lib.safe_files import open_regular
from steadyrun.lib.safe_paths import LONGEST_PATH_BYTES, PathScope, escape_path, resolve_directory


class Desk:
    """A directory that is open, another one that was added, and all that is beside them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.own, self.added = folder / "ada", folder / "added"
        for each in (self.own, self.added, folder / "adamant"):
            each.mkdir()
            (each / "file").write_text(each.name)
        self.scope = PathScope.from_directories(self.own, self.added)

    def problem(self, path: str) -> str:
        with pytest.raises(PathRefused) as refused:
            self.scope.resolve(path)
        assert (refused.value.exit_code, refused.value.code) == (4, "path_refused")
        return refused.value.problem

    def open(self, real: Path, flags: int = os.O_RDONLY) -> str:
        with os.fdopen(self.scope.open(real, flags)) as stream:
            return stream.read()


def open_descriptors() -> list[str]:
    return sorted(each.name for each in Path("/proc/self/fd").iterdir())


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


class TestWhereAPathLeads:
    @pytest.mark.parametrize("path", [".", "./", "x/..", "", "file"])
    def test_a_relative_path_begins_in_the_first_directory(self, desk: Desk, path: str) -> None:
        whole = f"./{path}"

        assert desk.scope.resolve(whole) == (desk.own / "file" if path == "file" else desk.own)

    def test_an_added_directory_is_open_by_every_way(self, desk: Desk) -> None:
        (desk.own / "link").symlink_to(desk.added)

        ways = (str(desk.added / "file"), "../added/file", "link/file", "link/../added/file")

        assert {desk.scope.resolve(way) for way in ways} == {desk.added / "file"}

    def test_what_is_not_there_yet_may_be_made(self, desk: Desk) -> None:
        assert desk.scope.resolve("new/dir/file") == desk.own / "new/dir/file"

    def test_a_tilde_and_a_variable_are_names_like_others(self, desk: Desk) -> None:
        assert desk.scope.resolve("~/$HOME") == desk.own / "~" / "$HOME"

    @pytest.mark.parametrize(
        "path", ["..", "../adamant/file", "/", "//etc", "/etc/passwd", "x/../.."]
    )
    def test_all_else_is_out(self, desk: Desk, path: str) -> None:
        assert desk.problem(path) == f"leads out of {desk.own}, {desk.added}"

    def test_a_neighbour_with_the_same_beginning_is_out(self, desk: Desk) -> None:
        assert "leads out" in desk.problem(f"{desk.own}mant/file")

    @pytest.mark.parametrize("target", ["/etc/passwd", "../adamant/file", "../missing"])
    def test_a_link_out_is_refused_be_there_something_or_not(self, desk: Desk, target: str) -> None:
        (desk.own / "link").symlink_to(target)

        assert "leads out" in desk.problem("link")

    def test_a_parent_is_that_of_where_a_link_leads(self, desk: Desk) -> None:
        (desk.added / "deep").mkdir()
        (desk.own / "link").symlink_to(desk.added / "deep")

        assert desk.scope.resolve("link/../file") == desk.added / "file"
        assert "leads out" in desk.problem("link/../../adamant/file")

    def test_a_scope_that_is_reached_by_a_link_is_where_it_leads(self, desk: Desk) -> None:
        (desk.folder / "way").symlink_to(desk.own)

        scope = PathScope.from_directories(desk.folder / "way")

        assert scope.roots == (desk.own,)
        assert scope.resolve(f"{desk.folder}/way/file") == desk.own / "file"

    def test_everything_is_below_the_top(self) -> None:
        assert PathScope.from_directories("/").resolve("etc") == Path("/etc")


class TestWhatIsNoPath:
    @pytest.mark.parametrize(
        ("path", "said"),
        [
            ("", "found 0"),
            ("a\0b", "null byte"),
            ("\ud800", "surrogates not allowed"),
            ("x" * 256, "File name too long"),
            ("x" * (LONGEST_PATH_BYTES + 1), "found 4096"),
            ("é" * 2048, "found 4096"),
            ("file/x", "Not a directory"),
        ],
    )
    def test_it_is_refused_by_name(self, desk: Desk, path: str, said: str) -> None:
        problem = desk.problem(path)

        assert problem.startswith("cannot be followed: ")
        assert said in problem

    def test_a_link_to_itself_is_refused(self, desk: Desk) -> None:
        (desk.own / "a").symlink_to("b")
        (desk.own / "b").symlink_to("a")

        assert "Too many levels" in desk.problem("a")
        assert "Too many levels" in desk.problem("b/x")

    def test_a_chain_of_links_without_end_is_refused(self, desk: Desk) -> None:
        for number in range(1100):
            (desk.own / str(number)).symlink_to(str(number + 1))

        assert "cannot be followed" in desk.problem("0")

    def test_a_link_that_is_too_deep_to_look_at_is_not_taken_for_a_file(self, desk: Desk) -> None:
        """Below so long a path nothing can be looked at, and realpath says that it is no link."""
        name = "d" * 250
        here = os.open(desk.own, os.O_RDONLY)
        for _ in range(17):
            os.mkdir(name, dir_fd=here)
            below = os.open(name, os.O_RDONLY, dir_fd=here)
            os.close(here)
            here = below
        os.symlink("/etc", "out", dir_fd=here)
        os.close(here)
        # Short links lead there: each is a path that the kernel takes.
        (desk.own / "half").symlink_to("/".join([name] * 10))
        (desk.own / "whole").symlink_to("half/" + "/".join([name] * 7) + "/out")
        assert (desk.own / "whole").samefile("/etc")

        assert desk.problem("whole/passwd") == "cannot be followed: File name too long"

    def test_an_error_shows_what_no_terminal_obeys(self, desk: Desk) -> None:
        with pytest.raises(PathRefused) as refused:
            desk.scope.resolve("/\x1b[2J\udcff\u202e\n")

        assert refused.value.path == r"/\x1b[2J\xff\u202e\n"

    def test_an_error_is_short(self, desk: Desk) -> None:
        with pytest.raises(PathRefused) as refused:
            desk.scope.resolve("x" * 1_000_000)

        assert len(str(refused.value)) < 500

    def test_a_path_of_any_bytes_has_a_text(self) -> None:
        assert escape_path(Path("/\udc80/\ud800/é")) == r"/\x80/\ud800/é"


class TestDirectories:
    @pytest.mark.parametrize("name", ["gone", "file", "loop", "a\0b", "file/.", "\ud800"])
    def test_what_is_none_opens_nothing(self, desk: Desk, name: str) -> None:
        (desk.own / "loop").symlink_to("loop")

        for given in ((desk.own / name,), (desk.own, desk.own / name)):
            with pytest.raises(FileUnusable, match="directory"):
                PathScope.from_directories(*given)

    def test_a_directory_has_its_real_path(self, desk: Desk) -> None:
        (desk.folder / "way").symlink_to("ada")

        assert resolve_directory(f"{desk.folder}/./way/../way") == desk.own


class TestOpening:
    def test_it_reads_and_writes(self, desk: Desk) -> None:
        (desk.own / "dir").mkdir()
        real = desk.scope.resolve("dir/new")

        os.close(desk.scope.open(real, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))

        assert stat.S_IMODE(real.stat().st_mode) == 0o600
        assert desk.open(desk.scope.resolve("../added/file")) == "added"

    def test_a_root_is_opened_itself(self, desk: Desk) -> None:
        descriptor = desk.scope.open(desk.scope.resolve("."), os.O_RDONLY | os.O_DIRECTORY)

        assert os.path.samestat(os.fstat(descriptor), desk.own.stat())
        os.close(descriptor)

    def test_it_stays_with_us(self, desk: Desk) -> None:
        descriptor = desk.scope.open(desk.own / "file", os.O_RDONLY)

        assert not os.get_inheritable(descriptor)
        os.close(descriptor)

    @pytest.mark.parametrize("flags", [os.O_RDONLY, os.O_WRONLY | os.O_CREAT | os.O_TRUNC])
    def test_a_file_that_became_a_link_is_refused(self, desk: Desk, flags: int) -> None:
        real = desk.scope.resolve("file")
        real.unlink()
        real.symlink_to(desk.folder / "adamant/file")

        with pytest.raises(PathRefused, match="there is a link"):
            desk.open(real, flags)

        assert (desk.folder / "adamant/file").read_text() == "adamant"

    def test_what_is_made_is_not_made_through_a_link(self, desk: Desk) -> None:
        real = desk.scope.resolve("new")
        real.symlink_to(desk.folder / "made")

        with pytest.raises(PathRefused):
            desk.open(real, os.O_WRONLY | os.O_CREAT)

        assert not (desk.folder / "made").exists()

    @pytest.mark.parametrize("turned", ["a", "a/b"])
    def test_a_directory_that_became_a_link_is_refused(self, desk: Desk, turned: str) -> None:
        for top in (desk.own, desk.folder / "adamant"):
            (top / "a/b").mkdir(parents=True)
            (top / "a/b/file").write_text(top.name)
        real = desk.scope.resolve("a/b/file")
        (desk.own / turned).rename(desk.folder / "aside")
        (desk.own / turned).symlink_to(desk.folder / "adamant" / turned)

        with pytest.raises(PathRefused, match="there is a link"):
            desk.open(real)

    def test_a_root_that_became_a_link_is_refused(self, desk: Desk) -> None:
        real = desk.scope.resolve("file")
        desk.own.rename(desk.folder / "aside")
        desk.own.symlink_to("adamant")

        with pytest.raises(PathRefused):
            desk.open(real)

    @pytest.mark.parametrize("path", ["../adamant/file", "a/../../adamant/file"])
    def test_what_was_never_resolved_is_not_opened_outside(self, desk: Desk, path: str) -> None:
        (desk.own / "a").mkdir()

        with pytest.raises(PathRefused, match="leads out"):
            desk.scope.open(desk.own / path, os.O_RDONLY)

    def test_other_failures_are_raised_as_they_are(self, desk: Desk) -> None:
        with pytest.raises(FileNotFoundError):
            desk.scope.open(desk.own / "gone", os.O_RDONLY)
        with pytest.raises(FileExistsError):
            desk.scope.open(desk.own / "file", os.O_WRONLY | os.O_CREAT | os.O_EXCL)

    def test_no_descriptor_is_left_open(self, desk: Desk) -> None:
        (desk.own / "a/b").mkdir(parents=True)
        before = open_descriptors()

        for path in ("a/b/gone", "a/gone/x"):
            with pytest.raises(FileNotFoundError):
                desk.scope.open(desk.own / path, os.O_RDONLY)
        with pytest.raises(PathRefused):
            desk.scope.open(desk.own / "file/x/y", os.O_RDONLY)

        assert open_descriptors() == before


class TestRegularFiles:
    def test_one_that_was_resolved_is_read(self, desk: Desk) -> None:
        with open_regular(desk.scope.resolve("file"), desk.scope) as stream:
            assert stream.read() == b"ada"

    def test_pipe_does_not_block_the_open(self, desk: Desk) -> None:
        os.mkfifo(desk.own / "pipe")

        with pytest.raises(FileUnusable, match="expected a regular file"):
            open_regular(desk.scope.resolve("pipe"), desk.scope)

    def test_a_link_that_came_since_is_refused(self, desk: Desk) -> None:
        real = desk.scope.resolve("file")
        real.unlink()
        real.symlink_to(desk.folder / "adamant/file")

        with pytest.raises(PathRefused):
            open_regular(real, desk.scope)

    def test_one_that_is_not_there_is_named(self, desk: Desk) -> None:
        with pytest.raises(FileUnusable, match="gone: cannot be read: No such file"):
            open_regular(desk.own / "gone", desk.scope)
