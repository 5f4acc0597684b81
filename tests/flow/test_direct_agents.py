"""A direct agent gets its role and its files, and nothing of the environment."""

import json
from pathlib import Path
from typing import Any

import anyio
import pytest

import steadyrun
from steadyrun.config import Config, load
from steadyrun.errors import AbilityMissing, FileUnusable, InvalidUsage, RoleMissing, SteadyrunError
from steadyrun.model.event import ToolFailed
from steadyrun.model.run import Run
from steadyrun.runtime.prompt.system import OWN_FILES
from steadyrun.stores.sqlite import SqliteStore
from steadyrun.testing.model_servers.content import answer
from tests.support.commands import COMMAND
from tests.support.commands import steadyrun as command
from tests.support.real_cli_harness import CODEX, CliHarness, cli_harness

RECALL = 'script:["recall"]'
CANARY = "canary-of-the-environment"
# What an agent is told of itself: it goes by its role, and works in this directory.
TOLD = """\
# steadyrun
You are reviewer, an agent that steadyrun runs. Your home directory is {home}.
What you write is internal: it is kept in the record, where the sender of a message can read it, \
and is not sent anywhere else.

# Role: reviewer
Find what is wrong.

# SOUL.md
Be kind: „ja“.

# TOOLS.md
git"""


def furnish(home: Path, work: Path) -> str:
    """Write a role and an agent's files; return what is to be told of them."""
    (home / "roles").mkdir(parents=True)
    (home / "roles" / "reviewer.md").write_text("Find what is wrong.\n")
    (work / "SOUL.md").write_text("Be kind: „ja“.\n", encoding="utf-8")
    (work / "TOOLS.md").write_text("git\n")
    return TOLD.format(home=work)


def config_of(folder: Path, text: str = "") -> Config:
    home = folder / "home"
    home.mkdir(exist_ok=True)
    (home / "config.toml").write_text(text)
    environ = {"PATH": "/usr/bin:/bin", "HOME": str(folder), "SECRET": CANARY}
    return load(home=home, cwd=folder, environ=environ)


def summoned(config: Config, work: Path, prompt: str = RECALL, **asked: Any) -> Run:
    async def main() -> Run:
        async with steadyrun.open(config) as library:
            given = {"role": "reviewer", "provider": "scripted", "cwd": work, **asked}
            run = await library.summon(prompt=prompt, **given)
            return await run.result()

    return anyio.run(main)


def test_policy_file_of_the_directory_applies_or_the_run_does_not_start(
    tmp_path: Path, work: Path
) -> None:
    furnish(tmp_path / "home", work)
    config, call = config_of(tmp_path), '{"tool": {"name": "%s"}}'
    (work / "PERMISSIONS.json").write_text('{"tier": "standard"}')

    run = summoned(config, work, f"script:[{call % 'Edit'}, {call % 'Write'}]")
    with pytest.raises(AbilityMissing, match="one tool to write and to edit"):
        summoned(config, work, "hello", provider="codex")

    async def failed() -> list[str | None]:
        store = await SqliteStore.open(tmp_path / "home")
        try:
            assert len(await store.runs()) == 1
            seen = await store.events(agent=run.agent, newest=True)
        finally:
            await store.close()
        return [each.event.error for each in seen if isinstance(each.event, ToolFailed)]

    assert run.status == "completed"
    assert anyio.run(failed) == ["the tool Write is not allowed"]


def recalled(run: Run) -> Any:
    assert run.status == "completed", run.error
    return json.loads(run.text or "")


@pytest.fixture
def work(tmp_path: Path) -> Path:
    place = tmp_path.resolve() / "work"
    place.mkdir()
    return place


class TestSummon:
    def test_a_role_is_told_with_the_files_of_the_directory(
        self, tmp_path: Path, work: Path
    ) -> None:
        told = furnish(tmp_path / "home", work)

        run = summoned(config_of(tmp_path), work, system="Be brief.")

        assert recalled(run)["system"] == f"{told}\n\n# Instructions\nBe brief."

    def test_the_run_says_how_it_came_about(self, tmp_path: Path, work: Path) -> None:
        furnish(tmp_path / "home", work)
        given = {"ticket": 7, "trigger": "mail"}

        run = summoned(config_of(tmp_path), work, metadata=given)

        assert run.metadata == {"ticket": 7, "trigger": "summon", "role": "reviewer"}
        assert given == {"ticket": 7, "trigger": "mail"}

    def test_it_has_its_limits_beside_its_metadata(self, tmp_path: Path, work: Path) -> None:
        furnish(tmp_path / "home", work)

        run = summoned(config_of(tmp_path), work, timeout_seconds=50.0)

        assert run.metadata == {"trigger": "summon", "role": "reviewer", "wall_seconds": 50.0}

    @pytest.mark.parametrize(
        ("asked", "kind"),
        [
            ({"role": "poet"}, RoleMissing),
            ({"role": "../poet"}, InvalidUsage),
            ({"provider": "shell"}, AbilityMissing),
            ({"metadata": {"wall_seconds": 1}}, InvalidUsage),
            ({"metadata": {"x": b"bytes\xff", "y": object()}}, InvalidUsage),
        ],
    )
    def test_what_cannot_be_is_refused_and_no_run_is_made(
        self, tmp_path: Path, work: Path, asked: dict[str, Any], kind: type[SteadyrunError]
    ) -> None:
        furnish(tmp_path / "home", work)

        with pytest.raises(kind):
            summoned(config_of(tmp_path), work, **asked)

        assert runs_in(tmp_path / "home") == []

    def test_a_file_that_cannot_be_told_is_refused_first(self, tmp_path: Path, work: Path) -> None:
        furnish(tmp_path / "home", work)
        (work / "AGENTS.md").symlink_to("/etc/passwd")

        with pytest.raises(FileUnusable, match=r"AGENTS\.md: leads out of"):
            summoned(config_of(tmp_path), work)

        assert runs_in(tmp_path / "home") == []


def runs_in(home: Path) -> list[Run]:
    async def main() -> list[Run]:
        store = await SqliteStore.open(home)
        try:
            return await store.runs()
        finally:
            await store.close()

    return anyio.run(main)


class TestStart:
    def test_without_a_role_nothing_is_added(self, tmp_path: Path, work: Path) -> None:
        furnish(tmp_path / "home", work)

        async def main() -> Run:
            async with steadyrun.open(config_of(tmp_path)) as library:
                metadata = {"deep": {"er": [1, None]}}
                run = await library.start(
                    RECALL, provider="scripted", cwd=work, system="Mine.", metadata=metadata
                )
                return await run.result()

        run = anyio.run(main)

        assert recalled(run)["system"] == "Mine."
        assert run.metadata == {"deep": {"er": [1, None]}}


class TestCommand:
    def test_a_role_and_metadata_are_asked_for_by_flags(self, tmp_path: Path, work: Path) -> None:
        told = furnish(tmp_path / "home", work)
        words = ("--provider", "scripted", "--role", "reviewer", "--metadata", '{"n": [1]}')

        done = command(tmp_path / "home", "run", *words, "--json", "--", RECALL, cwd=work)

        document = json.loads(done.stdout)
        assert json.loads(document["text"])["system"] == told
        shown = json.loads(command(tmp_path / "home", "show", document["run"], "--json").stdout)
        assert shown["metadata"] == {"n": [1], "trigger": "summon", "role": "reviewer"}

    @pytest.mark.parametrize(
        ("words", "code", "said"),
        [
            (("--role", "poet"), 3, "role_missing"),
            (("--role", "../x"), 2, "the name of a role"),
            (("--metadata", "[1]"), 2, "expected a JSON object"),
            (("--metadata", "{"), 2, "expected a JSON object"),
            (("--metadata", '{"wall_seconds": 9}'), 2, "it is reserved"),
        ],
    )
    def test_invalid_arguments_are_reported_by_name(
        self, tmp_path: Path, words: tuple[str, ...], code: int, said: str
    ) -> None:
        done = command(tmp_path / "home", "run", "--provider", "scripted", *words, "--json", "x")

        assert (done.returncode, said in done.stdout) == (code, True)
        assert json.loads(command(tmp_path / "home", "runs", "--json").stdout) == {"runs": []}


class TestRealClis:
    """What the model itself is told."""

    @pytest.mark.parametrize("shape", [{}, {"one_shot": True}], ids=["many turns", "one shot"])
    def test_claude_keeps_its_own_prompt_and_gets_ours_after_it(
        self, tmp_path: Path, shape: dict[str, Any]
    ) -> None:
        with cli_harness(tmp_path, [answer("Yes.")], options=shape) as harness:
            told = furnish(harness.home, harness.cwd)
            played(harness)

            parts = [part["text"] for part in harness.server.main_requests[0].body["system"]]
            whole = "\n".join(parts)
            assert told in whole
            # The prompt of the CLI itself, as it is without any instructions, is in it too.
            assert len(whole) > len(told) + 5_000
            assert whole.index("Claude Code") < whole.index(told)

    def test_claude_is_told_an_option_beside_it_and_no_files(self, tmp_path: Path) -> None:
        options = {"append_system_prompt": "Say please."}
        with cli_harness(tmp_path, [answer("Yes.")], options=options) as harness:
            told = furnish(harness.home, harness.cwd)
            played(harness)

            whole = str(harness.server.main_requests[0].body["system"])
            role = told[: told.index("\n\n# SOUL.md")]
            assert f"{role}\n\nSay please.".replace("\n", "\\n") in whole
            assert not [name for name in OWN_FILES if f"# {name}" in whole]

    def test_codex_gets_ours_beside_its_own(self, tmp_path: Path) -> None:
        with cli_harness(tmp_path, [answer("Yes.")], cli=CODEX) as harness:
            told = furnish(harness.home, harness.cwd)
            played(harness)

            assert told in developer_texts(harness.server.main_requests[0].body)


def developer_texts(body: Any) -> list[str]:
    said = [item for item in body["input"] if item.get("role") == "developer"]
    return [part["text"] for item in said for part in item["content"]]


def played(harness: CliHarness) -> None:
    async def main() -> Run:
        async with harness.library() as library:
            name, mode = harness.cli.name, harness.cli.mode
            asked: Any = {"provider": name, "cwd": harness.cwd, "mode": mode}
            run = await library.summon("reviewer", "Well?", **asked)
            return await run.result()

    run = anyio.run(main)
    assert (run.status, run.text) == ("completed", "Yes."), run.error


class TestEnvironment:
    """A child has what it needs, and nothing else."""

    CONFIG = '[providers.shell]\noptions = { allowed = ["env"] }\nenv = { MINE = "given" }\n'

    def child(self, folder: Path, work: Path, text: str = CONFIG) -> dict[str, str]:
        async def main() -> Run:
            async with steadyrun.open(config_of(folder, text)) as library:
                run = await library.start("env", provider="shell", cwd=work)
                return await run.result()

        run = anyio.run(main)
        assert run.status == "completed", run.error
        lines = (run.text or "").splitlines()
        return dict(line.split("=", 1) for line in lines)

    def test_it_is_built_from_nothing(self, tmp_path: Path, work: Path) -> None:
        env = self.child(tmp_path, work)

        assert set(env) - {"STEADYRUN_PROCESS", "_", "PWD", "SHLVL"} == {
            "PATH", "HOME", "STEADYRUN_HOME", "MINE",
        }  # fmt: skip
        assert env["MINE"] == "given"
        assert CANARY not in str(env)

    def test_our_command_is_found_first_and_nothing_else_with_it(
        self, tmp_path: Path, work: Path
    ) -> None:
        first, rest = self.child(tmp_path, work)["PATH"].split(":", 1)

        assert rest == "/usr/bin:/bin"
        assert [path.name for path in Path(first).iterdir()] == ["steadyrun"]
        assert (Path(first) / "steadyrun").resolve() == COMMAND.resolve()

    def test_it_is_found_also_where_a_path_is_configured(self, tmp_path: Path, work: Path) -> None:
        text = self.CONFIG.replace("MINE", "PATH").replace("given", "/bin")

        path = self.child(tmp_path, work, text)["PATH"]

        assert path == f"{tmp_path / 'home' / 'bin'}:/bin"

    def test_a_link_to_another_installation_is_replaced(self, tmp_path: Path, work: Path) -> None:
        link = tmp_path / "home" / "bin" / "steadyrun"
        link.parent.mkdir(parents=True)
        link.symlink_to("/old/steadyrun")

        self.child(tmp_path, work)

        assert link.resolve() == COMMAND.resolve()

    def test_where_there_can_be_no_link_it_is_where_it_was_installed(
        self, tmp_path: Path, work: Path
    ) -> None:
        (tmp_path / "home").mkdir()
        (tmp_path / "home" / "bin").write_text("in the way")

        assert self.child(tmp_path, work)["PATH"].split(":")[0] == str(COMMAND.parent)
