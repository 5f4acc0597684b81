"""A run of the real Codex reports wrong input, options and settings.

Every error has a code and a hint, and no process remains.
"""

import json
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import msgspec
import pytest

from steadyrun.dialect import Image
from steadyrun.errors import ConfigInvalid, SteadyrunError
from steadyrun.model import event as ev
from steadyrun.model.run import Run
from steadyrun.testing.model_servers.content import answer, make_text
from steadyrun.testing.model_servers.faults import Refusal, StreamGate
from tests.support.codex_harness import codex_harness
from tests.support.commands import steadyrun as command
from tests.support.real_cli_harness import (
    CODEX,
    cli_harness,
    replace_environment,
    replace_program,
    wait_for_event,
    wait_for_gate,
)
from tests.support.real_codex import real_codex

KEY = "SIMULATED_KEY"


# -- a program that cannot work


def test_missing_key_fails_the_run_and_is_named(tmp_path: Path) -> None:
    with cli_harness(tmp_path, [], cli=replace_environment(CODEX, without=KEY)) as harness:
        record = harness.run("go")

        assert record.run.status == "failed"
        assert KEY in record.error.message
        assert record.error.hint
        assert harness.server.main_requests == ()


def test_codex_without_a_login_fails_as_auth(tmp_path: Path) -> None:
    """The default provider of Codex sends a request without a key, which is refused."""
    with codex_harness(tmp_path, [Refusal("auth")] * 9) as harness:
        own = {"model_provider": "openai", "openai_base_url": f"{harness.server.url}/v1"}
        harness._settings = msgspec.structs.replace(harness._settings, options={"config": own})
        record = harness.run("go")

        for request in harness.server.main_requests:
            assert "authorization" not in request.request.headers
        assert record.run.status == "failed"
        assert (record.error.code, record.error.retryable) == ("auth", False)
        assert "codex login" in record.error.hint


# -- the output of `providers` and `doctor`


def inspect_codex(home: Path, settings: str) -> tuple[dict[str, Any], dict[str, str]]:
    """What `providers` and `doctor` print about Codex with these settings."""
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

    without_login, warning = inspect_codex(home, settings)
    (home / ".codex").mkdir()
    (home / ".codex" / "auth.json").touch(mode=0)
    with_login, fine = inspect_codex(home, settings)

    assert (without_login["path"], without_login["login"]) == (str(real_codex()), None)
    assert (warning["state"], "no login was found" in warning["detail"]) == ("warn", True)
    assert with_login["version"] in fine["detail"]
    assert (with_login["is_tested"], with_login["login"]) == (True, "~/.codex/auth.json")
    assert fine["state"] == "ok"


def test_login_in_a_configured_codex_home_is_found(tmp_path: Path) -> None:
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "auth.json").touch(mode=0)
    env = f'env = {{ CODEX_HOME = "{tmp_path / "own"}" }}'

    found, check = inspect_codex(tmp_path / "home", f'command = ["{real_codex()}"]\n{env}')

    assert found["login"] is not None
    assert check["state"] == "ok"


@pytest.mark.parametrize("version", ["0.1.0", "9.9.9"])
def test_doctor_warns_of_a_version_that_was_not_tested(tmp_path: Path, version: str) -> None:
    program = replace_program(CODEX, tmp_path, f"echo codex-cli {version}").program()

    found, check = inspect_codex(tmp_path / "home", f'command = ["{program}"]')

    assert (found["version"], found["is_tested"]) == (version, False)
    assert check["state"] == "warn"
    assert f"{version} (not tested" in check["detail"]


# -- invalid options


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
def test_invalid_option_is_named_before_a_process_starts(
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
def test_setting_that_codex_refuses_fails_the_run_and_is_named(
    tmp_path: Path, options: dict[str, Any], words: str
) -> None:
    with codex_harness(tmp_path, [], options=options) as harness:
        record = harness.run("go")

        assert record.run.status == "failed"
        assert words in record.error.message
        assert record.error.hint
        assert harness.server.main_requests == ()


def test_unknown_effort_and_schema_are_sent_and_refused_by_the_api(tmp_path: Path) -> None:
    refusal = Refusal("invalid", message="Invalid value: 'bogus'.")
    with codex_harness(tmp_path, [refusal], options={"effort": "bogus"}) as harness:
        record = harness.run("go", schema={"type": "bogus"})

        assert record.run.status == "failed"
        assert "bogus" in record.error.message
        [request] = harness.server.main_requests
        assert request.body["reasoning"]["effort"] == "bogus"
        assert request.body["text"]["format"]["schema"] == {"type": "bogus"}


@pytest.mark.parametrize("wish", [{"model": "--help"}, {"resume": "--last"}], ids=str)
def test_value_that_looks_like_an_option_is_refused(tmp_path: Path, wish: dict[str, Any]) -> None:
    with codex_harness(tmp_path, []) as harness:
        record = harness.run("go", **wish)

    assert (record.run.status, record.error.code) == ("failed", "usage")
    assert next(iter(wish)) in record.error.message


def test_missing_working_directory_is_refused(tmp_path: Path) -> None:
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
def test_bytes_that_are_no_image_are_refused(tmp_path: Path, image: Image) -> None:
    with codex_harness(tmp_path, []) as harness:
        record = harness.run("look", images=[image])

        assert (record.run.status, record.error.code) == ("failed", "usage")
        assert "image 1" in record.error.message
        assert harness.server.main_requests == ()


# -- a conversation in use


@pytest.mark.parametrize("wish", [{}, {"or_fresh": True}], ids=["as it is", "or fresh"])
def test_conversation_in_use_cannot_be_resumed_by_another_run(
    tmp_path: Path, wish: dict[str, Any]
) -> None:
    gate = StreamGate()
    with codex_harness(tmp_path, [answer(make_text("Hel", gate, "lo"))]) as harness:

        async def main() -> tuple[Run, Run]:
            async with harness.library() as library:
                run = await harness.start(library, "go")
                bound = await wait_for_event(run, ev.TokenBound)
                await wait_for_gate(gate)
                other = await harness.start(library, "me, too", resume=bound.token, **wish)
                refused = await other.result()
                gate.open()
                return await run.result(), refused

        first, second = anyio.run(main)

        assert (first.status, first.text) == ("completed", "Hello")
        assert second.status == "failed"
        assert second.error is not None
        assert (second.error.code, second.error.retryable) == ("conversation_busy", True)
        assert len(harness.server.main_requests) == 1
