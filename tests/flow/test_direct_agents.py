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
# The variables that describe an agent to itself: its role and its directory.
SYSTEM_PROMPT = """\
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


def write_agent_files(home: Path, work: Path) -> str:
    """Write a role and an agent's files; return what is to be told of them."""
    (home / "roles").mkdir(parents=True)
    (home / "roles" / "reviewer.md").write_text("Find what is wrong.\n")
    (work / "SOUL.md").write_text("Be kind: „ja“.\n", encoding="utf-8")
    (work / "TOOLS.md").write_text("git\n")
    return SYSTEM_PROMPT.format(home=work)


def config_of(folder: Path, text: str = "") -> Config:
    home = folder / "home"
    home.mkdir(exist_ok=True)
    (home / "config.toml").write_text(text)
    environ = {"PATH": "/usr/bin:/bin", "HOME": str(folder), "SECRET": CANARY}
    return load(home=home, cwd=folder, environ=environ)


def summon_and_wait(config: Config, work: Path, prompt: str = RECALL, **asked: Any) -> Run:
    async def main() -> Run:
        async with steadyrun.open(config) as library:
            given = {"role": "reviewer", "provider": "scripted", "cwd": work, **asked}
            run = await library.summon(prompt=prompt, **given)
            return await run.result()

    return anyio.run(main)


def test_policy_file_of_the_directory_applies_or_the_run_is_refused(
    tmp_path: Path, work: Path
) -> None:
    write_agent_files(tmp_path / "home", work)
    config, call = config_of(tmp_path), '{"tool": {"name": "%s"}}'
    (work / "PERMISSIONS.json").write_text('{"tier": "standard"}')

    run = summon_and_wait(config, work, f"script:[{call % 'Edit'}, {call % 'Write'}]")
    with pytest.raises(AbilityMissing, match="one tool to write and to edit"):
        summon_and_wait(config, work, "hello", provider="codex")

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


def read_recall(run: Run) -> Any:
    assert run.status == "completed", run.error
    return json.loads(run.text or "")


@pytest.fixture
def work(tmp_path: Path) -> Path:
    place = tmp_path.resolve() / "work"
    place.mkdir()
    return place


class TestSummon:
    def test_system_prompt_has_the_role_and_the_files_of_the_directory(
        self, tmp_path: Path, work: Path
    ) -> None:
        expected = write_agent_files(tmp_path / "home", work)

        run = summon_and_wait(config_of(tmp_path), work, system="Be brief.")

        assert read_recall(run)["system"] == f"{expected}\n\n# Instructions\nBe brief."

    def test_metadata_of_a_summoned_run_has_its_trigger_and_role(
        self, tmp_path: Path, work: Path
    ) -> None:
        write_agent_files(tmp_path / "home", work)
        given = {"ticket": 7, "trigger": "mail"}

        run = summon_and_wait(config_of(tmp_path), work, metadata=given)

        assert run.metadata == {"ticket": 7, "trigger": "summon", "role": "reviewer"}
        assert given == {"ticket": 7, "trigger": "mail"}

    def test_metadata_of_a_summoned_run_has_its_wall_timeout(
        self, tmp_path: Path, work: Path
    ) -> None:
        write_agent_files(tmp_path / "home", work)

        run = summon_and_wait(config_of(tmp_path), work, timeout_seconds=50.0)

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
    def test_invalid_summon_is_refused_and_creates_no_run(
        self, tmp_path: Path, work: Path, asked: dict[str, Any], kind: type[SteadyrunError]
    ) -> None:
        write_agent_files(tmp_path / "home", work)

        with pytest.raises(kind):
            summon_and_wait(config_of(tmp_path), work, **asked)

        assert runs_in(tmp_path / "home") == []

    def test_agent_file_outside_the_directory_is_refused(self, tmp_path: Path, work: Path) -> None:
        write_agent_files(tmp_path / "home", work)
        (work / "AGENTS.md").symlink_to("/etc/passwd")

        with pytest.raises(FileUnusable, match=r"AGENTS\.md: leads out of"):
            summon_and_wait(config_of(tmp_path), work)

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
    def test_start_without_a_role_adds_nothing_to_the_system_prompt(
        self, tmp_path: Path, work: Path
    ) -> None:
        write_agent_files(tmp_path / "home", work)

        async def main() -> Run:
            async with steadyrun.open(config_of(tmp_path)) as library:
                metadata = {"deep": {"er": [1, None]}}
                run = await library.start(
                    RECALL, provider="scripted", cwd=work, system="Mine.", metadata=metadata
                )
                return await run.result()

        run = anyio.run(main)

        assert read_recall(run)["system"] == "Mine."
        assert run.metadata == {"deep": {"er": [1, None]}}


class TestCommand:
    def test_run_command_has_options_for_role_and_metadata(
        self, tmp_path: Path, work: Path
    ) -> None:
        expected = write_agent_files(tmp_path / "home", work)
        words = ("--provider", "scripted", "--role", "reviewer", "--metadata", '{"n": [1]}')

        done = command(tmp_path / "home", "run", *words, "--json", "--", RECALL, cwd=work)

        document = json.loads(done.stdout)
        assert json.loads(document["text"])["system"] == expected
        shown = json.loads(command(tmp_path / "home", "show", document["run"], "--json").stdout)
        assert shown["metadata"] == {"n": [1], "trigger": "summon", "role": "reviewer"}

    @pytest.mark.parametrize(
        ("words", "code", "expected"),
        [
            (("--role", "poet"), 3, "role_missing"),
            (("--role", "../x"), 2, "the name of a role"),
            (("--metadata", "[1]"), 2, "expected a JSON object"),
            (("--metadata", "{"), 2, "expected a JSON object"),
            (("--metadata", '{"wall_seconds": 9}'), 2, "it is reserved"),
        ],
    )
    def test_invalid_arguments_are_reported_by_error_code(
        self, tmp_path: Path, words: tuple[str, ...], code: int, expected: str
    ) -> None:
        done = command(tmp_path / "home", "run", "--provider", "scripted", *words, "--json", "x")

        assert (done.returncode, expected in done.stdout) == (code, True)
        assert json.loads(command(tmp_path / "home", "runs", "--json").stdout) == {"runs": []}


class TestRealClis:
    """The request that the model gets."""

    @pytest.mark.parametrize("shape", [{}, {"one_shot": True}], ids=["many turns", "one shot"])
    def test_claude_gets_the_system_prompt_after_its_own(
        self, tmp_path: Path, shape: dict[str, Any]
    ) -> None:
        with cli_harness(tmp_path, [answer("Yes.")], options=shape) as harness:
            expected = write_agent_files(harness.home, harness.cwd)
            summon_with_cli(harness)

            parts = [part["text"] for part in harness.server.main_requests[0].body["system"]]
            whole = "\n".join(parts)
            assert expected in whole
            # The prompt of the CLI itself, as it is without any instructions, is in it too.
            assert len(whole) > len(expected) + 5_000
            assert whole.index("Claude Code") < whole.index(expected)

    def test_option_append_system_prompt_replaces_the_agent_files(self, tmp_path: Path) -> None:
        options = {"append_system_prompt": "Say please."}
        with cli_harness(tmp_path, [answer("Yes.")], options=options) as harness:
            expected = write_agent_files(harness.home, harness.cwd)
            summon_with_cli(harness)

            whole = str(harness.server.main_requests[0].body["system"])
            role = expected[: expected.index("\n\n# SOUL.md")]
            assert f"{role}\n\nSay please.".replace("\n", "\\n") in whole
            assert not [name for name in OWN_FILES if f"# {name}" in whole]

    def test_codex_gets_the_system_prompt_as_a_developer_message(self, tmp_path: Path) -> None:
        with cli_harness(tmp_path, [answer("Yes.")], cli=CODEX) as harness:
            expected = write_agent_files(harness.home, harness.cwd)
            summon_with_cli(harness)

            assert expected in developer_texts(harness.server.main_requests[0].body)


def developer_texts(body: Any) -> list[str]:
    items = [item for item in body["input"] if item.get("role") == "developer"]
    return [part["text"] for item in items for part in item["content"]]


def summon_with_cli(harness: CliHarness) -> None:
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

    def test_child_environment_has_only_the_configured_variables(
        self, tmp_path: Path, work: Path
    ) -> None:
        env = self.child(tmp_path, work)

        assert set(env) - {"STEADYRUN_PROCESS", "_", "PWD", "SHLVL"} == {
            "PATH", "HOME", "STEADYRUN_HOME", "MINE",
        }  # fmt: skip
        assert env["MINE"] == "given"
        assert CANARY not in str(env)

    def test_path_of_a_child_begins_with_the_steadyrun_command(
        self, tmp_path: Path, work: Path
    ) -> None:
        first, rest = self.child(tmp_path, work)["PATH"].split(":", 1)

        assert rest == "/usr/bin:/bin"
        assert [path.name for path in Path(first).iterdir()] == ["steadyrun"]
        assert (Path(first) / "steadyrun").resolve() == COMMAND.resolve()

    def test_configured_path_of_a_child_begins_with_the_steadyrun_command(
        self, tmp_path: Path, work: Path
    ) -> None:
        text = self.CONFIG.replace("MINE", "PATH").replace("given", "/bin")

        path = self.child(tmp_path, work, text)["PATH"]

        assert path == f"{tmp_path / 'home' / 'bin'}:/bin"

    def test_link_to_another_installation_is_replaced(self, tmp_path: Path, work: Path) -> None:
        link = tmp_path / "home" / "bin" / "steadyrun"
        link.parent.mkdir(parents=True)
        link.symlink_to("/old/steadyrun")

        self.child(tmp_path, work)

        assert link.resolve() == COMMAND.resolve()

    def test_path_of_a_child_has_the_installation_if_no_link_can_be_made(
        self, tmp_path: Path, work: Path
    ) -> None:
        (tmp_path / "home").mkdir()
        (tmp_path / "home" / "bin").write_text("in the way")

        assert self.child(tmp_path, work)["PATH"].split(":")[0] == str(COMMAND.parent)
