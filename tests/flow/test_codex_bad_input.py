"""A run of the real Codex reports wrong input, options and settings.

Every error has a code and a hint, and no process remains.
"""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import msgspec
import pytest

from steadyrun.dialect import Image
from steadyrun.errors import ConfigInvalid, SteadyrunError
from steadyrun.model import event as ev
from steadyrun.model.event import ErrorFact
from steadyrun.model.run import Run
from steadyrun.testing.model_servers.anthropic import answer, text
from steadyrun.testing.model_servers.faults import (
    Refusal,
    StreamGate,
    refuse_unauthorized,
)
from tests.support.codex_harness import codex_harness
from tests.support.commands import steadyrun as command
from tests.support.real_cli_harness import (
    CODEX,
    Cli,
    cli_harness,
    wait_for_event,
    wait_for_gate,
)
from tests.support.real_codex import codex_environment, codex_home, real_codex

KEY, SECRET = "SIMULATED_KEY", "sk-dummy"
NOWHERE = "00000000-0000-4000-8000-000000000009"


# -- a program that cannot work


def without_key(folder: Path, url: str) -> dict[str, str]:
    codex_home(folder, url)
    given = codex_environment(folder)
    return {name: value for name, value in given.items() if name != KEY}


def test_a_key_that_is_not_there_is_named(tmp_path: Path) -> None:
    with cli_harness(tmp_path, [], cli=replace(CODEX, environment=without_key)) as harness:
        record = harness.run("go")

        assert record.run.status == "failed"
        assert KEY in error_of(record.run).message
        assert error_of(record.run).hint
        assert harness.server.main_requests == ()


def test_codex_without_a_login_fails_as_auth(tmp_path: Path) -> None:
    """Its own provider asks without a key, and is told no."""
    with codex_harness(tmp_path, [refuse_unauthorized()] * 9) as harness:
        own = {"model_provider": "openai", "openai_base_url": f"{harness.server.url}/v1"}
        harness._settings = msgspec.structs.replace(harness._settings, options={"config": own})
        record = harness.run("go")

        assert {"authorization" in ask.request.headers for ask in harness.server.main_requests} == {
            False
        }
        assert record.run.status == "failed"
        assert (error_of(record.run).code, error_of(record.run).retryable) == ("auth", False)
        assert "codex login" in error_of(record.run).hint


# -- what `providers` and `doctor` say of it


def looked(home: Path, settings: str) -> tuple[dict[str, Any], dict[str, str]]:
    """What the two commands say of Codex, configured so."""
    home.mkdir(mode=0o700, exist_ok=True)
    (home / "config.toml").write_text(f"[providers.codex]\n{settings}\n")
    (home / "config.toml").chmod(0o600)
    listed = json.loads(command(home, "providers", "--json").stdout)["providers"]
    checks = json.loads(command(home, "doctor", "--json").stdout)["checks"]
    [found] = [each for each in listed if each["name"] == "codex"]
    [check] = [each for each in checks if each["check"] == "provider codex"]
    return found, check


def test_the_real_codex_is_found_tested_and_logged_in(tmp_path: Path) -> None:
    home, settings = tmp_path / "home", f'command = ["{real_codex()}"]'

    without_login, warning = looked(home, settings)
    (home / ".codex").mkdir()
    (home / ".codex" / "auth.json").touch(mode=0)
    with_login, fine = looked(home, settings)

    assert (without_login["path"], without_login["login"]) == (str(real_codex()), None)
    assert (warning["state"], "no login was found" in warning["detail"]) == ("warn", True)
    assert with_login["version"] in fine["detail"]
    assert (with_login["is_tested"], with_login["login"]) == (True, "~/.codex/auth.json")
    assert fine["state"] == "ok"


def test_a_login_in_a_home_of_its_own_is_found(tmp_path: Path) -> None:
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "auth.json").touch(mode=0)
    env = f'env = {{ CODEX_HOME = "{tmp_path / "own"}" }}'

    found, check = looked(tmp_path / "home", f'command = ["{real_codex()}"]\n{env}')

    assert found["login"] is not None
    assert check["state"] == "ok"


@pytest.mark.parametrize("version", ["0.1.0", "9.9.9"])
def test_another_version_is_a_warning(tmp_path: Path, version: str) -> None:
    program = another(tmp_path, f"echo codex-cli {version}").program()

    found, check = looked(tmp_path / "home", f'command = ["{program}"]')

    assert (found["version"], found["is_tested"]) == (version, False)
    assert check["state"] == "warn"
    assert f"{version} (not tested" in check["detail"]


# -- options and wishes that cannot work


@pytest.mark.parametrize(
    "options",
    [
        {"bogus": 1},
        {"effort": ""},
        {"effort": 3},
        {"add_dirs": ["here"]},
        {"auto_compact_token_limit": 0},
        {"mcp_servers": {"x": 1}},
        {"config": {"a b": 1}},
        {"disabled_features": ["--help"]},
    ],
    ids=str,
)
def test_options_that_cannot_work_are_named_before_anything_begins(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    with codex_harness(tmp_path, [], options=options) as harness:
        with pytest.raises(ConfigInvalid, match=next(iter(options))):
            harness.run("go")

        assert list(harness.home.glob("processes/*")) == []


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"config": {"model_provider": "nope"}}, "nope"),
        ({"config": {"approval_policy": "bogus"}}, "bogus"),
        ({"enabled_features": ["bogus"]}, "bogus"),
        ({"mcp_servers": {"x": {"none": 1}}}, "mcp_servers.x"),
    ],
    ids=str,
)
def test_settings_that_codex_refuses_are_named(
    tmp_path: Path, options: dict[str, Any], words: str
) -> None:
    with codex_harness(tmp_path, [], options=options) as harness:
        record = harness.run("go")

        assert record.run.status == "failed"
        assert words in error_of(record.run).message
        assert error_of(record.run).hint
        assert harness.server.main_requests == ()


def test_unknown_effort_or_schema_is_refused_by_the_api(tmp_path: Path) -> None:
    refusal = Refusal("invalid", message="Invalid value: 'bogus'.")
    with codex_harness(tmp_path, [refusal], options={"effort": "bogus"}) as harness:
        record = harness.run("go", schema={"type": "bogus"})

        assert record.run.status == "failed"
        assert "bogus" in error_of(record.run).message
        [ask] = harness.server.main_requests
        assert ask.request.body["reasoning"]["effort"] == "bogus"
        assert ask.request.body["text"]["format"]["schema"] == {"type": "bogus"}


@pytest.mark.parametrize("wish", [{"model": "--help"}, {"resume": "--last"}], ids=str)
def test_value_that_looks_like_an_option_is_refused(tmp_path: Path, wish: dict[str, Any]) -> None:
    with codex_harness(tmp_path, []) as harness:
        record = harness.run("go", **wish)

    assert (record.run.status, error_of(record.run).code) == ("failed", "usage")
    assert next(iter(wish)) in error_of(record.run).message


def test_a_directory_must_be_there(tmp_path: Path) -> None:
    with codex_harness(tmp_path, []) as harness:
        harness.cwd = tmp_path / "none"
        with pytest.raises(SteadyrunError, match="none"):
            harness.run("go")


PNG = b"\x89PNG\r\n\x1a\n"


@pytest.mark.parametrize(
    "image",
    [Image("image/png", b"no image"), Image("image/png", b""), Image("text/plain", PNG)],
    ids=["other bytes", "nothing", "other kind"],
)
def test_a_picture_that_is_none_is_refused(tmp_path: Path, image: Image) -> None:
    with codex_harness(tmp_path, []) as harness:
        record = harness.run("look", images=[image])

        assert (record.run.status, error_of(record.run).code) == ("failed", "usage")
        assert "image 1" in error_of(record.run).message
        assert harness.server.main_requests == ()


@pytest.mark.parametrize("prompt", ["--help", "-", "/compact", "!ls", "@file", "a\0b", "😀"])
def test_any_text_is_a_prompt(tmp_path: Path, prompt: str) -> None:
    with codex_harness(tmp_path, [answer("I heard.")]) as harness:
        record = harness.run(prompt)

        assert (record.run.status, record.run.text) == ("completed", "I heard.")
        assert [ask.user_text for ask in harness.server.main_requests] == [prompt]


def test_a_prompt_that_is_too_long_is_named(tmp_path: Path) -> None:
    with codex_harness(tmp_path, []) as harness:
        record = harness.run("x" * 10_000_000)

        assert (record.run.status, error_of(record.run).code) == ("failed", "prompt_too_long")
        assert error_of(record.run).hint
        assert harness.server.main_requests == ()


# -- a conversation that is not there


@pytest.mark.parametrize("wish", [{}, {"or_fresh": True}], ids=["as it is", "or fresh"])
def test_a_conversation_that_is_in_use_is_named(tmp_path: Path, wish: dict[str, Any]) -> None:
    gate = StreamGate()
    with codex_harness(tmp_path, [answer(text("Hel", gate, "lo"))]) as harness:

        async def main() -> tuple[Run, Run]:
            async with harness.library() as library:
                run = await harness.start(library, "go")
                bound = await wait_for_event(run, lambda event: isinstance(event, ev.TokenBound))
                await wait_for_gate(gate)
                other = await harness.start(library, "me, too", resume=bound.token, **wish)
                refused = await other.result()
                gate.open()
                return await run.result(), refused

        first, second = anyio.run(main)

        assert (first.status, first.text) == ("completed", "Hello")
        assert (second.status, error_of(second).code) == ("failed", "conversation_busy")
        assert error_of(second).retryable
        assert len(harness.server.main_requests) == 1


# -- what all of them use


def another(folder: Path, does: str) -> Cli:
    """A program in Codex's place."""
    program = folder / "codex"
    program.write_text(f"#!/bin/sh\n{does}\n")
    program.chmod(0o755)
    return replace(CODEX, program=lambda: program)


def error_of(run: Run) -> ErrorFact:
    assert run.error is not None
    return run.error
