"""Tests which paths are refused: difficult ones by name. The property tests have the others."""

import os
import stat
from pathlib import Path

import pytest

from steadyrun.errors import FileUnusable, PathRefused
from steadyrun.lib.safe_paths import (
    LONGEST_PATH_BYTES,
    PathScope,
    escape_path,
    open_regular,
    resolve_directory,
)


class PathHarness:
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
def harness(tmp_path: Path) -> PathHarness:
    return PathHarness(tmp_path)


class TestWhereAPathLeads:
    @pytest.mark.parametrize("path", [".", "./", "x/..", "", "file"])
    def test_relative_path_starts_in_the_first_directory(
        self, harness: PathHarness, path: str
    ) -> None:
        whole = f"./{path}"

        assert harness.scope.resolve(whole) == (
            harness.own / "file" if path == "file" else harness.own
        )

    def test_added_directory_is_reached_by_every_path(self, harness: PathHarness) -> None:
        (harness.own / "link").symlink_to(harness.added)

        ways = (str(harness.added / "file"), "../added/file", "link/file", "link/../added/file")

        assert {harness.scope.resolve(way) for way in ways} == {harness.added / "file"}

    def test_missing_file_may_be_resolved(self, harness: PathHarness) -> None:
        assert harness.scope.resolve("new/dir/file") == harness.own / "new/dir/file"

    def test_tilde_and_variable_are_plain_names(self, harness: PathHarness) -> None:
        assert harness.scope.resolve("~/$HOME") == harness.own / "~" / "$HOME"

    @pytest.mark.parametrize(
        "path", ["..", "../adamant/file", "/", "//etc", "/etc/passwd", "x/../.."]
    )
    def test_path_outside_the_directories_is_refused(self, harness: PathHarness, path: str) -> None:
        assert harness.problem(path) == f"leads out of {harness.own}, {harness.added}"

    def test_directory_with_the_root_as_prefix_is_outside(self, harness: PathHarness) -> None:
        assert "leads out" in harness.problem(f"{harness.own}mant/file")

    @pytest.mark.parametrize("target", ["/etc/passwd", "../adamant/file", "../missing"])
    def test_link_to_the_outside_is_refused_even_if_broken(
        self, harness: PathHarness, target: str
    ) -> None:
        (harness.own / "link").symlink_to(target)

        assert "leads out" in harness.problem("link")

    def test_parent_of_a_link_is_the_parent_of_its_target(self, harness: PathHarness) -> None:
        (harness.added / "deep").mkdir()
        (harness.own / "link").symlink_to(harness.added / "deep")

        assert harness.scope.resolve("link/../file") == harness.added / "file"
        assert "leads out" in harness.problem("link/../../adamant/file")

    def test_root_reached_by_a_link_is_its_target(self, harness: PathHarness) -> None:
        (harness.folder / "way").symlink_to(harness.own)

        scope = PathScope.from_directories(harness.folder / "way")

        assert scope.roots == (harness.own,)
        assert scope.resolve(f"{harness.folder}/way/file") == harness.own / "file"

    def test_root_directory_contains_every_path(self) -> None:
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
    def test_invalid_path_is_refused_with_the_reason(
        self, harness: PathHarness, path: str, said: str
    ) -> None:
        problem = harness.problem(path)

        assert problem.startswith("cannot be followed: ")
        assert said in problem

    def test_link_to_itself_is_refused(self, harness: PathHarness) -> None:
        (harness.own / "a").symlink_to("b")
        (harness.own / "b").symlink_to("a")

        assert "Too many levels" in harness.problem("a")
        assert "Too many levels" in harness.problem("b/x")

    def test_too_long_chain_of_links_is_refused(self, harness: PathHarness) -> None:
        for number in range(1100):
            (harness.own / str(number)).symlink_to(str(number + 1))

        assert "cannot be followed" in harness.problem("0")

    def test_link_too_deep_to_be_read_is_refused(self, harness: PathHarness) -> None:
        """Below so long a path nothing can be looked at, and realpath says that it is no link."""
        name = "d" * 250
        here = os.open(harness.own, os.O_RDONLY)
        for _ in range(17):
            os.mkdir(name, dir_fd=here)
            below = os.open(name, os.O_RDONLY, dir_fd=here)
            os.close(here)
            here = below
        os.symlink("/etc", "out", dir_fd=here)
        os.close(here)
        # Short links lead there: each is a path that the kernel takes.
        (harness.own / "half").symlink_to("/".join([name] * 10))
        (harness.own / "whole").symlink_to("half/" + "/".join([name] * 7) + "/out")
        assert (harness.own / "whole").samefile("/etc")

        assert harness.problem("whole/passwd") == "cannot be followed: File name too long"

    def test_error_escapes_control_characters(self, harness: PathHarness) -> None:
        with pytest.raises(PathRefused) as refused:
            harness.scope.resolve("/\x1b[2J\udcff\u202e\n")

        assert refused.value.path == r"/\x1b[2J\xff\u202e\n"

    def test_error_with_a_long_path_is_short(self, harness: PathHarness) -> None:
        with pytest.raises(PathRefused) as refused:
            harness.scope.resolve("x" * 1_000_000)

        assert len(str(refused.value)) < 500

    def test_path_of_any_bytes_can_be_escaped(self) -> None:
        assert escape_path(Path("/\udc80/\ud800/é")) == r"/\x80/\ud800/é"


class TestDirectories:
    @pytest.mark.parametrize("name", ["gone", "file", "loop", "a\0b", "file/.", "\ud800"])
    def test_missing_root_directory_is_refused(self, harness: PathHarness, name: str) -> None:
        (harness.own / "loop").symlink_to("loop")

        for given in ((harness.own / name,), (harness.own, harness.own / name)):
            with pytest.raises(FileUnusable, match="directory"):
                PathScope.from_directories(*given)

    def test_directory_is_resolved_to_its_real_path(self, harness: PathHarness) -> None:
        (harness.folder / "way").symlink_to("ada")

        assert resolve_directory(f"{harness.folder}/./way/../way") == harness.own


class TestOpening:
    def test_resolved_file_is_opened_for_reading_and_writing(self, harness: PathHarness) -> None:
        (harness.own / "dir").mkdir()
        real = harness.scope.resolve("dir/new")

        os.close(harness.scope.open(real, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))

        assert stat.S_IMODE(real.stat().st_mode) == 0o600
        assert harness.open(harness.scope.resolve("../added/file")) == "added"

    def test_root_directory_can_be_opened(self, harness: PathHarness) -> None:
        descriptor = harness.scope.open(harness.scope.resolve("."), os.O_RDONLY | os.O_DIRECTORY)

        assert os.path.samestat(os.fstat(descriptor), harness.own.stat())
        os.close(descriptor)

    def test_opened_descriptor_is_not_inherited(self, harness: PathHarness) -> None:
        descriptor = harness.scope.open(harness.own / "file", os.O_RDONLY)

        assert not os.get_inheritable(descriptor)
        os.close(descriptor)

    @pytest.mark.parametrize("flags", [os.O_RDONLY, os.O_WRONLY | os.O_CREAT | os.O_TRUNC])
    def test_file_replaced_by_a_link_is_refused(self, harness: PathHarness, flags: int) -> None:
        real = harness.scope.resolve("file")
        real.unlink()
        real.symlink_to(harness.folder / "adamant/file")

        with pytest.raises(PathRefused, match="is a link"):
            harness.open(real, flags)

        assert (harness.folder / "adamant/file").read_text() == "adamant"

    def test_file_is_not_created_through_a_link(self, harness: PathHarness) -> None:
        real = harness.scope.resolve("new")
        real.symlink_to(harness.folder / "made")

        with pytest.raises(PathRefused):
            harness.open(real, os.O_WRONLY | os.O_CREAT)

        assert not (harness.folder / "made").exists()

    @pytest.mark.parametrize("turned", ["a", "a/b"])
    def test_directory_replaced_by_a_link_is_refused(
        self, harness: PathHarness, turned: str
    ) -> None:
        for top in (harness.own, harness.folder / "adamant"):
            (top / "a/b").mkdir(parents=True)
            (top / "a/b/file").write_text(top.name)
        real = harness.scope.resolve("a/b/file")
        (harness.own / turned).rename(harness.folder / "aside")
        (harness.own / turned).symlink_to(harness.folder / "adamant" / turned)

        with pytest.raises(PathRefused, match="is a link"):
            harness.open(real)

    def test_root_replaced_by_a_link_is_refused(self, harness: PathHarness) -> None:
        real = harness.scope.resolve("file")
        harness.own.rename(harness.folder / "aside")
        harness.own.symlink_to("adamant")

        with pytest.raises(PathRefused):
            harness.open(real)

    @pytest.mark.parametrize("path", ["../adamant/file", "a/../../adamant/file"])
    def test_unresolved_path_is_not_opened_outside(self, harness: PathHarness, path: str) -> None:
        (harness.own / "a").mkdir()

        with pytest.raises(PathRefused, match="leads out"):
            harness.scope.open(harness.own / path, os.O_RDONLY)

    def test_other_errors_of_open_are_raised_unchanged(self, harness: PathHarness) -> None:
        with pytest.raises(FileNotFoundError):
            harness.scope.open(harness.own / "gone", os.O_RDONLY)
        with pytest.raises(FileExistsError):
            harness.scope.open(harness.own / "file", os.O_WRONLY | os.O_CREAT | os.O_EXCL)

    def test_failed_open_leaves_no_descriptor(self, harness: PathHarness) -> None:
        (harness.own / "a/b").mkdir(parents=True)
        before = open_descriptors()

        for path in ("a/b/gone", "a/gone/x"):
            with pytest.raises(FileNotFoundError):
                harness.scope.open(harness.own / path, os.O_RDONLY)
        with pytest.raises(PathRefused):
            harness.scope.open(harness.own / "file/x/y", os.O_RDONLY)

        assert open_descriptors() == before


class TestRegularFiles:
    def test_resolved_regular_file_is_read(self, harness: PathHarness) -> None:
        with open_regular(harness.scope.resolve("file"), harness.scope) as stream:
            assert stream.read() == b"ada"

    def test_fifo_is_refused_without_blocking(self, harness: PathHarness) -> None:
        os.mkfifo(harness.own / "pipe")

        with pytest.raises(FileUnusable, match="expected a regular file"):
            open_regular(harness.scope.resolve("pipe"), harness.scope)

    def test_regular_file_replaced_by_a_link_is_refused(self, harness: PathHarness) -> None:
        real = harness.scope.resolve("file")
        real.unlink()
        real.symlink_to(harness.folder / "adamant/file")

        with pytest.raises(PathRefused):
            open_regular(real, harness.scope)

    def test_missing_regular_file_is_reported(self, harness: PathHarness) -> None:
        with pytest.raises(FileUnusable, match="gone: cannot be read: No such file"):
            open_regular(harness.own / "gone", harness.scope)
