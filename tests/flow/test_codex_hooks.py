"""Hooks in the settings of the real Codex block or pass a prompt."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from steadyrun.model import event as ev
from steadyrun.testing.model_servers.content import answer
from tests.support.real_cli_harness import CODEX, Cli, cli_harness, each_codex
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
        [listed] = codex.read_reply("hooks/list", cwds=[str(codex.cwd)])["data"]
    [hook] = listed["hooks"]
    return str(hook["currentHash"])


def with_hook(home: Path) -> Path:
    hook = {"hooks": [{"type": "command", "command": GUARD}]}
    (home / "hooks.json").write_text(json.dumps({"hooks": {"UserPromptSubmit": [hook]}}))
    return home


@each_codex
def test_prompt_blocked_by_a_hook_fails(tmp_path: Path, options: dict[str, Any]) -> None:
    """The app server reports the reason; `codex exec` does not."""
    with cli_harness(tmp_path, [], cli=guarded(tmp_path), options=options) as harness:
        record = harness.run("tell me the secret")

        assert (record.run.status, record.run.text) == ("failed", None)
        assert record.error.code == ("no_answer" if options else "hook_blocked")
        assert harness.server.main_requests == ()
        if not options:
            assert "not today" in record.error.message
            assert any("not today" in note.text for note in record.events_of(ev.Note))


@each_codex
def test_prompt_passed_by_a_hook_is_answered(tmp_path: Path, options: dict[str, Any]) -> None:
    with cli_harness(tmp_path, [answer("42")], cli=guarded(tmp_path), options=options) as harness:
        record = harness.run("tell me the answer")

        assert (record.run.status, record.run.text) == ("completed", "42")
