"""A run whose process prints nothing is ended by short timeouts."""

import re
from pathlib import Path

import anyio
import pytest

import steadyrun
from steadyrun.config import load
from steadyrun.model.run import Run
from tests.children.keeper_driver import eventually, is_locked

PATIENCE_SECONDS = 30.0


def ended(place: Path, config: str, prompt: str, provider: str = "scripted") -> Run:
    """How a run ends under this configuration."""
    home = place / "home"
    home.mkdir()
    (home / "config.toml").write_text(config)
    environ = {"PATH": "/usr/bin:/bin", "HOME": str(place)}

    async def main() -> Run:
        with anyio.fail_after(PATIENCE_SECONDS):
            async with steadyrun.open(load(home=home, cwd=place, environ=environ)) as library:
                run = await library.start(prompt, provider=provider, cwd=place)
                return await run.result()

    run = anyio.run(main)
    [directory] = (home / "processes").iterdir()
    # Its keeper has told of the end, and is about to end itself.
    eventually(lambda: not is_locked(directory), "the end of the keeper")
    return run


@pytest.mark.parametrize("command", ["exec sleep 600", "echo complaint >&2; cat >&2"])
def test_cli_that_prints_no_output_is_ended_as_a_hang(tmp_path: Path, command: str) -> None:
    program = f'[providers.scripted]\ncommand = ["/bin/sh", "-c", "{command}"]\n'
    config = f"[clocks]\nhang_seconds = 0.5\n{program}"

    run = ended(tmp_path, config, "hello")

    assert (run.status, run.stop_reason) == ("failed", "hang")


def test_turn_without_output_ends_with_an_idle_timeout(tmp_path: Path) -> None:
    config = "[clocks]\nidle_seconds = 0.5\n"

    run = ended(tmp_path, config, 'script:[{"text":"one"},"hang"]')

    assert (run.status, run.stop_reason) == ("timed_out", "idle_timeout")
    assert run.error
    assert run.error.code == "idle_timeout"
    assert re.fullmatch(r"no output for \d+ms", run.error.message)


def test_one_shot_without_output_ends_as_a_stall(tmp_path: Path) -> None:
    program = '[providers.claude]\ncommand = ["/bin/sh", "-c", "exec sleep 600"]\n'
    config = f"[clocks]\nstall_seconds = 0.5\n{program}options = {{ one_shot = true }}\n"

    run = ended(tmp_path, config, "hello", provider="claude")

    assert (run.status, run.stop_reason) == ("failed", "stall")
    assert run.error
    assert re.fullmatch(r"stream stall: no output for \d+ms", run.error.message)


def test_timeout_of_zero_never_ends_a_run(tmp_path: Path) -> None:
    config = (
        "[clocks]\nidle_seconds = 0\nhang_seconds = 0\nstall_seconds = 0\nwarning_seconds = 0\n"
    )

    run = ended(tmp_path, config, 'script:[{"text":"one"},{"wait":1.2},{"text":"two"}]')

    assert (run.status, run.text) == ("completed", "two")
