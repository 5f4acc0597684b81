"""Hooks in the settings of the real Codex block or pass a prompt."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from steadyrun.model import event as ev
from steadyrun.testing.model_servers.anthropic import answer
from tests.support.real_cli_harness import CODEX, Cli, cli_harness
from tests.support.real_codex import StartedAppServer, codex_environment, codex_home

# It lets pass what has no "secret" in it.
GUARD = "if grep -q secret; then echo not today >&2; exit 2; fi"
NOWHERE = "http://127.0.0.1:9"


def guarded(folder: Path) -> Cli:
    """A Codex with this hook, which its user has looked at and trusts."""
    trusted = trust(folder / "before")

    def environment(folder: Path, url: str) -> dict[str, str]:
        home = with_hook(codex_home(folder, url))
        with (home / "config.toml").open("a") as config:
            key = f"{home}/hooks.json:user_prompt_submit:0:0"
            config.write(f'[hooks.state."{key}"]\ntrusted_hash = "{trusted}"\n')
        return codex_environment(folder)

    return replace(CODEX, environment=environment)


def trust(folder: Path) -> str:
    """What Codex knows the hook by, wherever it stands."""
    folder.mkdir()
    with_hook(codex_home(folder, NOWHERE))
    with StartedAppServer(folder, NOWHERE) as codex:
        [listed] = codex.hear_answer("hooks/list", cwds=[str(codex.cwd)])["data"]
    [hook] = listed["hooks"]
    return str(hook["currentHash"])


def with_hook(home: Path) -> Path:
    hook = {"hooks": [{"type": "command", "command": GUARD}]}
    (home / "hooks.json").write_text(json.dumps({"hooks": {"UserPromptSubmit": [hook]}}))
    return home


def test_prompt_blocked_by_a_hook_fails_with_the_reason(tmp_path: Path) -> None:
    with cli_harness(tmp_path, [], cli=guarded(tmp_path)) as harness:
        played = harness.run("tell me the secret")

        assert (played.run.status, played.run.text) == ("failed", None)
        assert played.run.error
        assert played.run.error.code == "hook_blocked"
        assert "not today" in played.run.error.message
        assert any("not today" in note.text for note in played.events_of(ev.Note))
        assert harness.server.main_requests == ()


def test_the_model_is_not_asked_for_one_shot_either(tmp_path: Path) -> None:
    options = {"one_shot": True}
    with cli_harness(tmp_path, [], cli=guarded(tmp_path), options=options) as harness:
        played = harness.run("tell me the secret")

        assert (played.run.status, played.run.text) == ("failed", None)
        assert played.run.error
        assert played.run.error.code == "no_answer"
        assert harness.server.main_requests == ()


@pytest.mark.parametrize("is_one_shot", [False, True], ids=["app server", "one shot"])
def test_prompt_passed_by_a_hook_is_answered(tmp_path: Path, is_one_shot: bool) -> None:
    options = {"one_shot": is_one_shot}
    with cli_harness(tmp_path, [answer("42")], cli=guarded(tmp_path), options=options) as harness:
        played = harness.run("tell me the answer")

        assert (played.run.status, played.run.text) == ("completed", "42")
