"""The system prompt has the content of the agent's own files, and of no others."""

import os
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from steadyrun.errors import AgentHomeMissing, FileUnusable, InvalidUsage, PathRefused, RoleMissing
from steadyrun.lib.safe_paths import PathScope
from steadyrun.model.agent import Agent
from steadyrun.model.ids import AgentId
from steadyrun.model.policy import Permissions
from steadyrun.runtime.prompt.system import (
    LARGEST_FILE_BYTES,
    OWN_FILES,
    SystemPrompt,
    _read_content,
    build_agent_environment,
    read_system_prompt,
    require_role,
)


class PromptHarness:
    """An agent with a home, and our own home with roles."""

    def __init__(self, folder: Path) -> None:
        self.home, self.own = folder / "steadyrun", folder / "ada"
        (self.home / "roles").mkdir(parents=True)
        self.own.mkdir()
        self.agent = Agent(AgentId("agt_1"), "ada", ("scripted",), str(self.own))

    def read(self, *, appended: bool = False, **changed: Any) -> SystemPrompt:
        agent = replace(self.agent, **changed)
        return read_system_prompt(agent, home=self.home, appended=appended)

    def refused(self, **changed: Any) -> FileUnusable:
        with pytest.raises(FileUnusable) as refused:
            self.read(**changed)
        return refused.value

    @property
    def rules(self) -> str:
        return (
            f"# steadyrun\nYou are ada, an agent that steadyrun runs. Your home directory is"
            f" {self.own}.\nWhat you write is internal: it is kept in the record, where the"
            " sender of a message can read it, and is not sent anywhere else."
        )


@pytest.fixture
def harness(tmp_path: Path) -> PromptHarness:
    return PromptHarness(tmp_path)


class TestOrder:
    def test_sections_have_a_fixed_order(self, harness: PromptHarness) -> None:
        (harness.home / "roles" / "reviewer.md").write_text("Review.\n")
        for name in OWN_FILES:
            (harness.own / name).write_text(f"\n{name} says so.\n\n")
        (harness.own / "PERMISSIONS.json").write_text('{"note": "Do not push."}')

        standing = harness.read(role="reviewer", system="Be brief.")

        assert standing == SystemPrompt(
            "\n\n".join(
                [
                    harness.rules,
                    "# Role: reviewer\nReview.",
                    "# SOUL.md\nSOUL.md says so.",
                    "# IDENTITY.md\nIDENTITY.md says so.",
                    "# USER.md\nUSER.md says so.",
                    "# AGENTS.md\nAGENTS.md says so.",
                    "# TOOLS.md\nTOOLS.md says so.",
                    "# Permissions\nDo not push.",
                    "# Instructions\nBe brief.",
                ]
            ),
            is_added=True,
            permissions=Permissions(note="Do not push."),
        )

    def test_missing_and_empty_files_are_left_out(self, harness: PromptHarness) -> None:
        (harness.own / "SOUL.md").write_text(" \n\n")
        (harness.own / "TOOLS.md").write_text("\ufeffHammer.", encoding="utf-8")

        assert harness.read().system == f"{harness.rules}\n\n# TOOLS.md\nHammer."

    def test_provider_that_reads_its_own_files_gets_none_of_the_five(
        self, harness: PromptHarness
    ) -> None:
        (harness.home / "roles" / "r.md").write_text("Role.")
        for name in OWN_FILES:
            # They are not even looked at.
            (harness.own / name).write_bytes(b"\xff")
        (harness.own / "PERMISSIONS.json").write_text('{"note": "N."}')

        system = harness.read(appended=True, role="r", system="Own.").system

        expected = "# Role: r\nRole.\n\n# Permissions\nN.\n\n# Instructions\nOwn."
        assert system == f"{harness.rules}\n\n{expected}"

    def test_direct_run_without_a_role_has_only_its_instructions(
        self, harness: PromptHarness
    ) -> None:
        (harness.own / "SOUL.md").write_bytes(b"\xff")

        assert harness.read(is_direct=True, system="Own.") == SystemPrompt("Own.")
        assert harness.read(is_direct=True, home="/nowhere") == SystemPrompt(None)

    def test_direct_run_with_a_role_has_the_name_of_the_role(self, harness: PromptHarness) -> None:
        (harness.home / "roles" / "reviewer.md").write_text("Review.")

        system = harness.read(is_direct=True, name="run_1", role="reviewer").system

        assert system == f"{harness.rules}\n\n# Role: reviewer\nReview.".replace(
            "ada,", "reviewer,"
        )

    def test_changed_file_is_read_again(self, harness: PromptHarness) -> None:
        soul = harness.own / "SOUL.md"
        soul.write_text("old")
        os.utime(soul, ns=(1, 1))
        before = harness.read().system or ""

        # Of the same size and time.
        other = harness.own / "new"
        other.write_text("new")
        os.utime(other, ns=(1, 1))
        other.replace(soul)
        after = harness.read().system or ""

        assert (before[-3:], after[-3:]) == ("old", "new")


class TestMissing:
    def test_missing_role_is_reported_with_its_path(self, harness: PromptHarness) -> None:
        with pytest.raises(RoleMissing) as missing:
            harness.read(role="poet")

        assert (missing.value.name, missing.value.exit_code) == ("poet", 3)
        assert str(harness.home / "roles" / "poet.md") in missing.value.hint

    @pytest.mark.parametrize("role", ["", "..", "../x", "a/b", ".hidden", "a\n", "r" * 64, "x.y"])
    def test_invalid_role_name_is_refused(self, harness: PromptHarness, role: str) -> None:
        with pytest.raises(InvalidUsage, match="expected the name of a role"):
            require_role(role, harness.home)

    @pytest.mark.parametrize("home", ["gone", "file"])
    def test_missing_agent_home_is_reported(self, harness: PromptHarness, home: str) -> None:
        (harness.own / "file").touch()
        path = str(harness.own / home)

        with pytest.raises(AgentHomeMissing) as missing:
            harness.read(home=path)

        assert (missing.value.agent, missing.value.home) == ("ada", path)
        assert missing.value.exit_code == 3


class TestHostileFiles:
    def test_link_within_the_home_is_followed(self, harness: PromptHarness) -> None:
        (harness.own / "notes").mkdir()
        (harness.own / "notes" / "soul").write_text("Kind.")
        (harness.own / "SOUL.md").symlink_to("notes/soul")

        assert (harness.read().system or "").endswith("# SOUL.md\nKind.")

    @pytest.mark.parametrize("target", ["/etc/passwd", "../secret", "/dev/zero", "../missing"])
    def test_link_out_of_the_home_is_refused(self, harness: PromptHarness, target: str) -> None:
        (harness.own.parent / "secret").write_text("secret")
        (harness.own / "USER.md").symlink_to(target)

        error = harness.refused()

        assert error.file == str(harness.own / "USER.md")
        assert error.problem == f"leads out of {harness.own}"

    def test_link_through_a_directory_out_of_the_home_is_refused(
        self, harness: PromptHarness
    ) -> None:
        (harness.own.parent / "secret").write_text("secret")
        (harness.own / "up").symlink_to("..")
        (harness.own / "USER.md").symlink_to("up/secret")

        assert "leads out of" in harness.refused().problem

    def test_directory_with_the_home_as_prefix_is_outside(self, harness: PromptHarness) -> None:
        beside = harness.own.with_name("adamant")
        beside.mkdir()
        (beside / "x").write_text("secret")
        (harness.own / "PERMISSIONS.json").symlink_to(beside / "x")

        assert "leads out of" in harness.refused().problem

    def test_broken_link_is_refused(self, harness: PromptHarness) -> None:
        (harness.own / "USER.md").symlink_to("not-here")

        error = harness.refused()

        assert error.file == str(harness.own / "USER.md")
        assert error.problem == "is a link without a target"

    def test_link_to_itself_is_refused(self, harness: PromptHarness) -> None:
        (harness.own / "SOUL.md").symlink_to("SOUL.md")

        assert "SOUL.md: cannot be followed" in harness.refused().message

    def test_too_long_chain_of_links_is_refused(self, harness: PromptHarness) -> None:
        (harness.own / "SOUL.md").symlink_to("0")
        for number in range(1100):
            (harness.own / str(number)).symlink_to(str(number + 1))

        assert "SOUL.md: cannot be followed" in harness.refused().message

    def test_file_replaced_by_a_link_before_the_read_is_refused(
        self, harness: PromptHarness
    ) -> None:
        (harness.own.parent / "secret").write_text("secret")
        (harness.own / "SOUL.md").symlink_to("../secret")

        with pytest.raises(PathRefused, match="is a link"):
            _read_content(harness.own / "SOUL.md", PathScope.from_directories(harness.own), ())

    def test_home_may_be_reached_by_a_link(self, harness: PromptHarness) -> None:
        (harness.own / "soul").write_text("Kind.")
        (harness.own / "SOUL.md").symlink_to("soul")
        link = harness.own.with_name("link")
        link.symlink_to(harness.own)

        assert (harness.read(home=str(link)).system or "").endswith("Kind.")

    def test_fifo_is_refused_without_blocking(self, harness: PromptHarness) -> None:
        os.mkfifo(harness.own / "SOUL.md")

        assert harness.refused().problem == "expected a regular file, found something else"

    def test_directory_instead_of_a_file_is_refused(self, harness: PromptHarness) -> None:
        (harness.own / "TOOLS.md").mkdir()

        assert harness.refused().problem == "expected a regular file, found something else"

    def test_file_above_64_kib_is_refused(self, harness: PromptHarness) -> None:
        (harness.own / "SOUL.md").write_bytes(b"x" * LARGEST_FILE_BYTES)
        assert "x" * LARGEST_FILE_BYTES in (harness.read().system or "")

        (harness.own / "SOUL.md").write_bytes(b"x" * 65 * 1024)
        assert harness.refused().problem == "expected at most 65536 bytes, found 66560"

    @pytest.mark.parametrize(
        ("content", "found"),
        [
            (b"abc\xff", "is not UTF-8: byte 0xff at offset 3"),
            (b"abc\0", "is no text: a zero byte at offset 3"),
        ],
    )
    def test_file_that_is_not_text_is_refused(
        self, harness: PromptHarness, content: bytes, found: str
    ) -> None:
        (harness.own / "AGENTS.md").write_bytes(content)

        error = harness.refused()

        assert (error.file, error.problem) == (str(harness.own / "AGENTS.md"), found)

    def test_role_file_has_the_same_checks(self, harness: PromptHarness) -> None:
        os.mkfifo(harness.home / "roles" / "r.md")
        assert "expected a regular file" in harness.refused(role="r").problem

        (harness.home / "roles" / "long.md").write_bytes(b"x" * 65 * 1024)
        assert "at most 65536 bytes" in harness.refused(role="long").problem

    def test_role_may_be_a_link_out_of_the_home(self, harness: PromptHarness) -> None:
        (harness.own.parent / "mine.md").write_text("Mine.")
        (harness.home / "roles" / "r.md").symlink_to(harness.own.parent / "mine.md")

        assert "# Role: r\nMine." in (harness.read(role="r").system or "")


class TestPermissions:
    @pytest.mark.parametrize("text", ["", "no JSON", "[1]", '"text"', "null", "[" * 5000])
    def test_permissions_that_are_not_an_object_are_refused(
        self, harness: PromptHarness, text: str
    ) -> None:
        (harness.own / "PERMISSIONS.json").write_text(text)

        refused = harness.refused()

        assert refused.file == str(harness.own / "PERMISSIONS.json")
        assert refused.problem == "expected a JSON object, found something else"

    @pytest.mark.parametrize(
        ("text", "problem", "hint"),
        [
            ('{"tier": "readonyl"}', "unknown tier 'readonyl'", "Did you mean 'readonly'?"),
            ('{"tools": ["Raed"]}', "unknown tool 'Raed'", "Did you mean 'Read'?"),
            ('{"tools": [""]}', "unknown tool ''", "Valid here: "),
            ('{"tier": "custom"}', "the tier custom needs a list of tools", "Name some of: "),
            ('{"tier": "full", "tools": []}', "the tier full has tools of its own", "Remove one"),
            ('{"tools": ["CronList"]}', "the tool 'CronList' is denied to every agent", "Leave"),
            ('{"tier": 1}', "cannot be understood: Expected `str | null`, got `int`", "It may"),
            ('{"tools": "Read"}', "cannot be understood: Expected `array | null`", "It may"),
            ('{"note": 1}', "cannot be understood: Expected `str`, got `int`", "It may"),
            ('{"tier": "readonly", "tier": "full"}', "has 'tier' twice", "Remove one"),
            ('{"tools": [], "note": "", "tools": ["Bash"]}', "has 'tools' twice", "Remove one"),
            ('{"teir": "full"}', "cannot be understood: Object contains unknown", "It may have"),
        ],
    )
    def test_invalid_permissions_are_refused_with_a_hint(
        self, harness: PromptHarness, text: str, problem: str, hint: str
    ) -> None:
        (harness.own / "PERMISSIONS.json").write_text(text)

        refused = harness.refused()

        assert refused.file == str(harness.own / "PERMISSIONS.json")
        assert refused.problem.startswith(problem)
        assert refused.hint.startswith(hint)

    def test_permissions_file_must_be_a_small_regular_file_in_the_home(
        self, harness: PromptHarness
    ) -> None:
        file, outside = harness.own / "PERMISSIONS.json", harness.own.parent / "mine.json"
        outside.write_text('{"tier": "full"}')
        found = []
        for put in (
            lambda: file.symlink_to(outside),
            lambda: file.symlink_to("../mine.json"),
            lambda: file.symlink_to(file),
            lambda: file.symlink_to("nothing-here.json"),
            lambda: os.mkfifo(file),
            lambda: file.write_bytes(b" " * (LARGEST_FILE_BYTES + 1)),
            lambda: file.write_bytes(b"\xff{}"),
        ):
            put()
            found.append(harness.refused().file)
            file.unlink()

        assert found == [str(file)] * 7

    def test_permissions_are_read_with_their_note(self, harness: PromptHarness) -> None:
        (harness.own / "PERMISSIONS.json").write_text('{"tier": "readonly", "note": "Only look."}')

        standing = harness.read()

        assert (standing.system or "").endswith("# Permissions\nOnly look.")
        assert standing.permissions == Permissions("readonly", note="Only look.")
        assert standing.notes == ()

    def test_agent_without_a_permissions_file_has_no_permissions(
        self, harness: PromptHarness
    ) -> None:
        assert harness.read().permissions is None

    def test_long_note_is_cut_and_noted(self, harness: PromptHarness) -> None:
        (harness.own / "PERMISSIONS.json").write_text(f'{{"note": "{"x" * 501}"}}')

        standing = harness.read()

        assert (standing.system or "").endswith("# Permissions\n" + "x" * 500)
        assert [note.rpartition(";")[2] for note in standing.notes] == [" it is cut"]


def test_agent_environment_names_the_agent_and_the_homes(harness: PromptHarness) -> None:
    assert build_agent_environment(harness.agent, harness.home) == {
        "STEADYRUN_AGENT": "ada",
        "STEADYRUN_AGENT_HOME": str(harness.own),
        "STEADYRUN_HOME": str(harness.home),
    }


def test_environment_of_a_direct_run_has_no_agent_name(harness: PromptHarness) -> None:
    direct = replace(harness.agent, name="run_1", is_direct=True)

    assert build_agent_environment(direct, harness.home) == {"STEADYRUN_HOME": str(harness.home)}
