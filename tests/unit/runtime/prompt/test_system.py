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


class Desk:
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
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


class TestOrder:
    def test_everything_has_its_place(self, desk: Desk) -> None:
        (desk.home / "roles" / "reviewer.md").write_text("Review.\n")
        for name in OWN_FILES:
            (desk.own / name).write_text(f"\n{name} says so.\n\n")
        (desk.own / "PERMISSIONS.json").write_text('{"note": "Do not push."}')

        standing = desk.read(role="reviewer", system="Be brief.")

        assert standing == SystemPrompt(
            "\n\n".join(
                [
                    desk.rules,
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

    def test_what_is_not_there_or_empty_is_left_out(self, desk: Desk) -> None:
        (desk.own / "SOUL.md").write_text(" \n\n")
        (desk.own / "TOOLS.md").write_text("\ufeffHammer.", encoding="utf-8")

        assert desk.read().system == f"{desk.rules}\n\n# TOOLS.md\nHammer."

    def test_a_provider_with_a_text_of_its_own_gets_none_of_the_five(self, desk: Desk) -> None:
        (desk.home / "roles" / "r.md").write_text("Role.")
        for name in OWN_FILES:
            # They are not even looked at.
            (desk.own / name).write_bytes(b"\xff")
        (desk.own / "PERMISSIONS.json").write_text('{"note": "N."}')

        system = desk.read(appended=True, role="r", system="Own.").system

        expected = "# Role: r\nRole.\n\n# Permissions\nN.\n\n# Instructions\nOwn."
        assert system == f"{desk.rules}\n\n{expected}"

    def test_a_run_without_a_role_has_what_it_was_told_and_no_more(self, desk: Desk) -> None:
        (desk.own / "SOUL.md").write_bytes(b"\xff")

        assert desk.read(is_direct=True, system="Own.") == SystemPrompt("Own.")
        assert desk.read(is_direct=True, home="/nowhere") == SystemPrompt(None)

    def test_a_run_with_a_role_goes_by_its_role(self, desk: Desk) -> None:
        (desk.home / "roles" / "reviewer.md").write_text("Review.")

        system = desk.read(is_direct=True, name="run_1", role="reviewer").system

        assert system == f"{desk.rules}\n\n# Role: reviewer\nReview.".replace("ada,", "reviewer,")

    def test_what_was_changed_is_read_again(self, desk: Desk) -> None:
        soul = desk.own / "SOUL.md"
        soul.write_text("old")
        os.utime(soul, ns=(1, 1))
        before = desk.read().system or ""

        # Of the same size and time.
        other = desk.own / "new"
        other.write_text("new")
        os.utime(other, ns=(1, 1))
        other.replace(soul)
        after = desk.read().system or ""

        assert (before[-3:], after[-3:]) == ("old", "new")


class TestMissing:
    def test_a_role_that_is_not_there_is_named_with_its_place(self, desk: Desk) -> None:
        with pytest.raises(RoleMissing) as missing:
            desk.read(role="poet")

        assert (missing.value.name, missing.value.exit_code) == ("poet", 3)
        assert str(desk.home / "roles" / "poet.md") in missing.value.hint

    @pytest.mark.parametrize("role", ["", "..", "../x", "a/b", ".hidden", "a\n", "r" * 64, "x.y"])
    def test_a_role_leads_to_no_other_directory(self, desk: Desk, role: str) -> None:
        with pytest.raises(InvalidUsage, match="expected the name of a role"):
            require_role(role, desk.home)

    @pytest.mark.parametrize("home", ["gone", "file"])
    def test_a_home_that_is_gone_is_named(self, desk: Desk, home: str) -> None:
        (desk.own / "file").touch()
        path = str(desk.own / home)

        with pytest.raises(AgentHomeMissing) as missing:
            desk.read(home=path)

        assert (missing.value.agent, missing.value.home) == ("ada", path)
        assert missing.value.exit_code == 3


class TestHostileFiles:
    def test_a_link_within_the_home_is_followed(self, desk: Desk) -> None:
        (desk.own / "notes").mkdir()
        (desk.own / "notes" / "soul").write_text("Kind.")
        (desk.own / "SOUL.md").symlink_to("notes/soul")

        assert (desk.read().system or "").endswith("# SOUL.md\nKind.")

    @pytest.mark.parametrize("target", ["/etc/passwd", "../secret", "/dev/zero", "../missing"])
    def test_a_link_out_of_the_home_is_refused(self, desk: Desk, target: str) -> None:
        (desk.own.parent / "secret").write_text("secret")
        (desk.own / "USER.md").symlink_to(target)

        error = desk.refused()

        assert error.file == str(desk.own / "USER.md")
        assert error.problem == f"leads out of {desk.own}"

    def test_a_directory_on_the_way_may_not_lead_out_either(self, desk: Desk) -> None:
        (desk.own.parent / "secret").write_text("secret")
        (desk.own / "up").symlink_to("..")
        (desk.own / "USER.md").symlink_to("up/secret")

        assert "leads out of" in desk.refused().problem

    def test_a_neighbour_with_the_same_beginning_is_out(self, desk: Desk) -> None:
        beside = desk.own.with_name("adamant")
        beside.mkdir()
        (beside / "x").write_text("secret")
        (desk.own / "PERMISSIONS.json").symlink_to(beside / "x")

        assert "leads out of" in desk.refused().problem

    def test_a_link_to_nothing_is_refused(self, desk: Desk) -> None:
        (desk.own / "USER.md").symlink_to("not-here")

        error = desk.refused()

        assert error.file == str(desk.own / "USER.md")
        assert error.problem == "is a link without a target"

    def test_a_link_to_itself_is_refused(self, desk: Desk) -> None:
        (desk.own / "SOUL.md").symlink_to("SOUL.md")

        assert "SOUL.md: cannot be followed" in desk.refused().message

    def test_a_chain_of_links_without_end_is_refused(self, desk: Desk) -> None:
        (desk.own / "SOUL.md").symlink_to("0")
        for number in range(1100):
            (desk.own / str(number)).symlink_to(str(number + 1))

        assert "SOUL.md: cannot be followed" in desk.refused().message

    def test_a_file_that_becomes_a_link_before_it_is_read_is_not_read(self, desk: Desk) -> None:
        (desk.own.parent / "secret").write_text("secret")
        (desk.own / "SOUL.md").symlink_to("../secret")

        with pytest.raises(PathRefused, match="there is a link"):
            _read_content(desk.own / "SOUL.md", PathScope.from_directories(desk.own), ())

    def test_a_home_may_be_reached_by_a_link(self, desk: Desk) -> None:
        (desk.own / "soul").write_text("Kind.")
        (desk.own / "SOUL.md").symlink_to("soul")
        link = desk.own.with_name("link")
        link.symlink_to(desk.own)

        assert (desk.read(home=str(link)).system or "").endswith("Kind.")

    def test_pipe_does_not_block_the_open(self, desk: Desk) -> None:
        os.mkfifo(desk.own / "SOUL.md")

        assert desk.refused().problem == "expected a regular file, found something else"

    def test_a_directory_is_no_file(self, desk: Desk) -> None:
        (desk.own / "TOOLS.md").mkdir()

        assert desk.refused().problem == "expected a regular file, found something else"

    def test_a_file_may_have_64_kib(self, desk: Desk) -> None:
        (desk.own / "SOUL.md").write_bytes(b"x" * LARGEST_FILE_BYTES)
        assert "x" * LARGEST_FILE_BYTES in (desk.read().system or "")

        (desk.own / "SOUL.md").write_bytes(b"x" * 65 * 1024)
        assert desk.refused().problem == "expected at most 65536 bytes, found 66560"

    @pytest.mark.parametrize(
        ("content", "found"),
        [
            (b"abc\xff", "is not UTF-8: byte 0xff at offset 3"),
            (b"abc\0", "is no text: a zero byte at offset 3"),
        ],
    )
    def test_what_is_no_text_is_refused(self, desk: Desk, content: bytes, found: str) -> None:
        (desk.own / "AGENTS.md").write_bytes(content)

        error = desk.refused()

        assert (error.file, error.problem) == (str(desk.own / "AGENTS.md"), found)

    def test_a_role_is_read_with_the_same_care(self, desk: Desk) -> None:
        os.mkfifo(desk.home / "roles" / "r.md")
        assert "expected a regular file" in desk.refused(role="r").problem

        (desk.home / "roles" / "long.md").write_bytes(b"x" * 65 * 1024)
        assert "at most 65536 bytes" in desk.refused(role="long").problem

    def test_a_role_may_be_a_link_that_its_owner_made(self, desk: Desk) -> None:
        (desk.own.parent / "mine.md").write_text("Mine.")
        (desk.home / "roles" / "r.md").symlink_to(desk.own.parent / "mine.md")

        assert "# Role: r\nMine." in (desk.read(role="r").system or "")


class TestPermissions:
    @pytest.mark.parametrize("text", ["", "no JSON", "[1]", '"text"', "null", "[" * 5000])
    def test_what_is_no_object_is_refused(self, desk: Desk, text: str) -> None:
        (desk.own / "PERMISSIONS.json").write_text(text)

        refused = desk.refused()

        assert refused.file == str(desk.own / "PERMISSIONS.json")
        assert refused.problem == "expected a JSON object, found something else"

    @pytest.mark.parametrize(
        ("text", "problem", "hint"),
        [
            ('{"tier": "readonyl"}', "unknown tier 'readonyl'", "Did you mean 'readonly'?"),
            ('{"tools": ["Raed"]}', "unknown tool 'Raed'", "Did you mean 'Read'?"),
            ('{"tools": [""]}', "unknown tool ''", "Valid here: "),
            ('{"tier": "custom"}', "the tier custom needs a list of tools", "Name some of: "),
            ('{"tier": "full", "tools": []}', "the tier full has tools of its own", "Leave out"),
            ('{"tools": ["CronList"]}', "the tool 'CronList' is denied to every agent", "Leave"),
            ('{"tier": 1}', "cannot be understood: Expected `str | null`, got `int`", "It may"),
            ('{"tools": "Read"}', "cannot be understood: Expected `array | null`", "It may"),
            ('{"note": 1}', "cannot be understood: Expected `str`, got `int`", "It may"),
            ('{"tier": "readonly", "tier": "full"}', "has 'tier' twice", "Leave one"),
            ('{"tools": [], "note": "", "tools": ["Bash"]}', "has 'tools' twice", "Leave one"),
            ('{"teir": "full"}', "cannot be understood: Object contains unknown", "It may have"),
        ],
    )
    def test_what_allows_nothing_that_is_known_is_refused(
        self, desk: Desk, text: str, problem: str, hint: str
    ) -> None:
        (desk.own / "PERMISSIONS.json").write_text(text)

        refused = desk.refused()

        assert refused.file == str(desk.own / "PERMISSIONS.json")
        assert refused.problem.startswith(problem)
        assert refused.hint.startswith(hint)

    def test_nothing_but_a_small_file_of_its_own_is_read(self, desk: Desk) -> None:
        file, outside = desk.own / "PERMISSIONS.json", desk.own.parent / "mine.json"
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
            found.append(desk.refused().file)
            file.unlink()

        assert found == [str(file)] * 7

    def test_it_is_read_with_its_note(self, desk: Desk) -> None:
        (desk.own / "PERMISSIONS.json").write_text('{"tier": "readonly", "note": "Only look."}')

        standing = desk.read()

        assert (standing.system or "").endswith("# Permissions\nOnly look.")
        assert standing.permissions == Permissions("readonly", note="Only look.")
        assert standing.notes == ()

    def test_without_one_nothing_is_taken_away(self, desk: Desk) -> None:
        assert desk.read().permissions is None

    def test_a_long_note_is_cut_and_noted(self, desk: Desk) -> None:
        (desk.own / "PERMISSIONS.json").write_text(f'{{"note": "{"x" * 501}"}}')

        standing = desk.read()

        assert (standing.system or "").endswith("# Permissions\n" + "x" * 500)
        assert [note.rpartition(";")[2] for note in standing.notes] == [" it is cut"]


def test_a_process_knows_its_agent_and_nothing_that_changes(desk: Desk) -> None:
    assert build_agent_environment(desk.agent, desk.home) == {
        "STEADYRUN_AGENT": "ada",
        "STEADYRUN_AGENT_HOME": str(desk.own),
        "STEADYRUN_HOME": str(desk.home),
    }


def test_a_run_of_no_agent_does_not_learn_its_own_name(desk: Desk) -> None:
    direct = replace(desk.agent, name="run_1", is_direct=True)

    assert build_agent_environment(direct, desk.home) == {"STEADYRUN_HOME": str(desk.home)}
