"""A run of a real CLI reports a program that cannot work and a conversation that does not exist.

Every error has a code and a hint, the record is complete, and no process remains. No secret is
shown. Faults of the API are in test_api_faults_real.py.
"""

import os
import tarfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import msgspec
import pytest

from steadyrun.errors import InvalidUsage
from steadyrun.model import event as ev
from steadyrun.model.event_json import to_public
from steadyrun.model.run import Run
from steadyrun.testing.model_servers.content import answer, make_text
from tests.children.keeper_driver import eventually
from tests.support.codex_harness import check_event_order
from tests.support.commands import steadyrun as command
from tests.support.fast_clock import AdjustableClock, library_with_clock
from tests.support.real_cli_harness import (
    CLAUDE,
    CODEX,
    Cli,
    CliHarness,
    RunRecord,
    cli_harness,
    each_cli,
    replace_environment,
    replace_program,
)

UNKNOWN_TOKEN = "00000000-0000-4000-8000-000000000009"
# The variable with the key of each CLI, and its value.
KEYS = {"claude": ("ANTHROPIC_API_KEY", "sk-ant-dummy"), "codex": ("SIMULATED_KEY", "sk-dummy")}


# -- a conversation that does not exist


@each_cli
def test_conversation_is_resumed_only_in_its_own_directory(tmp_path: Path, cli: Cli) -> None:
    script = [answer("Hello."), answer("New here."), answer("On.")]
    with cli_harness(tmp_path, script, cli=cli) as harness:
        token = harness.run("greet").run.resume_token
        first, harness.cwd = harness.cwd, tmp_path / "elsewhere"
        harness.cwd.mkdir()
        with pytest.raises(InvalidUsage, match="belongs to"):
            harness.run("go on", resume=token)
        fresh = harness.run("go on", resume=token, or_fresh=True)

        assert (fresh.run.status, fresh.run.text) == ("completed", "New here.")
        # A home without a record of the token leaves the search to the CLI.
        harness.home = tmp_path / "another"
        if cli is CLAUDE:
            assert fresh.run.resume_token not in {None, token}
            assert len(fresh.events_of(ev.Note)) == 1
            lost = harness.run("go on", resume=token)
            assert (lost.run.status, lost.error.code) == ("failed", "resume_not_found")
            assert "directory" in lost.error.hint
            sent = [request.user_text for request in harness.server.main_requests]
            assert sent == ["greet", "go on"]
        else:
            harness.cwd = first
            found = harness.run("go on", resume=token)
            assert (found.run.status, found.run.text) == ("completed", "On.")
            assert found.run.resume_token == token


def test_conversation_resumes_with_the_model_that_answered(tmp_path: Path) -> None:
    with cli_harness(tmp_path, [answer("Hello."), answer("Again.")]) as harness:
        first = harness.run("greet")
        second = harness.run("go on", resume=first.run.resume_token)

        named = [stats.model for stats in first.events_of(ev.StatsUpdated)]
        assert first.run.model is None
        assert second.run.model == named[0]
        assert second.run.resume_token == first.run.resume_token
        assert [ask.user_text for ask in harness.server.main_requests] == ["greet", "go on"]
        assert second.events_of(ev.StatsUpdated)[0].model == named[0]


@pytest.mark.parametrize(
    ("cli", "options"),
    [(CLAUDE, {}), (CODEX, {}), (CODEX, {"one_shot": True})],
    ids=["claude", "codex", "codex one shot"],
)
@pytest.mark.parametrize(
    "token", [UNKNOWN_TOKEN, "no token at all", "../../../etc/passwd", UNKNOWN_TOKEN * 9]
)
def test_unknown_conversation_fails_or_starts_fresh(
    tmp_path: Path, cli: Cli, options: dict[str, Any], token: str
) -> None:
    with cli_harness(tmp_path, [answer("New here.")], cli=cli, options=options) as harness:
        record = harness.run("go on", resume=token)
        requests = harness.server.main_requests
        fresh = harness.run("go on", resume=token, or_fresh=True)

        assert (record.run.status, record.error.code) == ("failed", "resume_not_found")
        assert record.error.hint
        assert not record.error.retryable
        assert record.run.resume_token is None
        assert requests == ()
        assert (fresh.run.status, fresh.run.text) == ("completed", "New here.")
        assert fresh.run.resume_token not in {None, token}
        assert [request.user_text for request in harness.server.main_requests] == ["go on"]


# -- a program that cannot work


def test_claude_without_a_login_fails_as_auth(tmp_path: Path) -> None:
    with cli_harness(
        tmp_path, [], cli=replace_environment(CLAUDE, without=KEYS["claude"][0])
    ) as harness:
        record = harness.run("go")

        assert record.run.status == "failed"
        assert (record.error.code, record.error.retryable) == ("auth", False)
        assert "log in" in record.error.hint.lower()
        assert harness.server.main_requests == ()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root is refused")
@pytest.mark.parametrize("sandbox", [None, "0"])
def test_claude_as_root_without_a_sandbox_is_refused(tmp_path: Path, sandbox: str | None) -> None:
    given = {} if sandbox is None else {"IS_SANDBOX": sandbox}
    cli = replace_environment(CLAUDE, without="IS_SANDBOX", **given)
    with cli_harness(tmp_path, [], cli=cli) as harness:
        record = harness.run("go")

        assert record.run.status == "failed"
        assert record.error.code == "root_refused"
        assert "IS_SANDBOX" in record.error.hint
        assert record.run.diagnostic is not None
        assert "root" in record.run.diagnostic.stderr_excerpt


@each_cli
@pytest.mark.parametrize("mode", [None, 0o644])
def test_program_that_cannot_be_started_fails_with_a_hint(
    tmp_path: Path, cli: Cli, mode: int | None
) -> None:
    program = tmp_path / cli.name
    if mode is not None:
        program.touch(mode)
    with cli_harness(tmp_path, [], cli=replace(cli, program=lambda: program)) as harness:
        record = harness.run("go")

    assert record.run.status == "failed"
    assert record.error.code == "launch_failed"
    assert str(program) in record.error.message
    install = "npm install -g @openai/codex" if cli is CODEX else "npm install"
    assert (install if mode is None else "executable") in record.error.hint
    assert list(harness.home.glob("processes/*/journal")) == []


GARBAGE = r"printf 'hello\n\377\376\n{\"type\":\n[1]\n{}\n'; read line"


@pytest.mark.parametrize(
    ("cli", "does", "code"),
    [
        (CLAUDE, "echo 'usage: claude [file]' >&2; exit 1", "cli_incompatible"),
        (
            CLAUDE,
            "echo \"error: unknown option '--replay-user-messages'\" >&2; exit 1",
            "cli_incompatible",
        ),
        (CLAUDE, GARBAGE, "cli_incompatible"),
        (CLAUDE, "kill -9 $$", "exited"),
        (CODEX, "exec /bin/true", "cli_incompatible"),
        (CODEX, "exit 1", "cli_incompatible"),
        (
            CODEX,
            "echo \"error: unrecognized subcommand 'app-server'\" >&2; exit 2",
            "cli_incompatible",
        ),
        (CODEX, GARBAGE, "cli_incompatible"),
        (CODEX, "kill -9 $$", "exited"),
    ],
    ids=[
        "claude: usage", "claude: older version", "claude: garbage", "claude: killed",
        "codex: does nothing", "codex: fails", "codex: older version", "codex: garbage",
        "codex: killed",
    ],
)  # fmt: skip
def test_program_that_is_not_the_cli_fails_the_run(
    tmp_path: Path, cli: Cli, does: str, code: str
) -> None:
    with cli_harness(tmp_path, [], cli=replace_program(cli, tmp_path, does)) as harness:
        record = harness.run("go")

    error = record.error
    assert (record.run.status, error.code) == ("failed", code)
    assert error.retryable == (code == "exited")
    assert bool(error.hint) == (code == "cli_incompatible")
    assert record.run.diagnostic is not None
    check_event_order(record)


@each_cli
def test_program_that_prints_nothing_fails_as_hang(tmp_path: Path, cli: Cli) -> None:
    clock = AdjustableClock()
    silent = replace_program(cli, tmp_path, "exec sleep 600")
    with cli_harness(tmp_path, [], cli=silent) as harness:

        def is_handshake_sent() -> bool:
            return any(b"initialize" in sent.read_bytes() for sent in harness.home.rglob("sent"))

        async def main() -> RunRecord:
            async with library_with_clock(harness.config, clock) as library:
                run = await harness.start(library, "go")
                await anyio.to_thread.run_sync(eventually, is_handshake_sent, "the handshake")
                clock.seconds = 61
                return await harness.read_record(await run.result())

        record = anyio.run(main)

    assert (record.run.status, record.run.stop_reason) == ("failed", "hang")
    check_event_order(record)


# -- secrets


@each_cli
def test_key_is_in_no_event_and_in_no_output(tmp_path: Path, cli: Cli) -> None:
    variable, key = KEYS[cli.name]
    show = cli.run_command(f"printenv {variable}; false")
    script = [
        answer(make_text("It is ", key[:5], key[5:]), show),
        answer(cli.run_command(f"printenv {variable} | tee {tmp_path}/printed")),
        answer(make_text("So: ", key)),
    ]
    with cli_harness(tmp_path, script, cli=cli) as harness:
        shown = anyio.run(_read_all_events, harness)
        [run] = {seen["run"] for seen in shown if seen["run"]}
        _configure(harness)
        pages = [
            command(harness.home, *words) for words in (("show", run), ("tail", run), ("runs",))
        ]
        archive = tmp_path / "run.tar.gz"
        assert command(harness.home, "export", run, "-o", str(archive)).returncode == 0

    assert (tmp_path / "printed").read_text().strip() == key
    assert b"[redacted]" in msgspec.json.encode(shown)
    assert key.encode() not in msgspec.json.encode(shown)
    assert all(page.returncode == 0 and key not in page.stdout + page.stderr for page in pages)
    assert _find_in_archive(archive, key) == []
    # Only the process itself has written it, in its own directory.
    assert {each.parent.parent.name for each in _find_files(harness.home, key)} == {"processes"}


@each_cli
def test_key_is_not_in_the_error_of_a_program(tmp_path: Path, cli: Cli) -> None:
    variable, key = KEYS[cli.name]
    complaint = "unknown option" if cli is CLAUDE else "unexpected argument"
    does = f'echo "${variable}"; echo "{complaint} ${variable}" >&2; exit 2'
    with cli_harness(tmp_path, [], cli=replace_program(cli, tmp_path, does)) as harness:
        shown = anyio.run(_read_all_events, harness)
        [run] = {seen["run"] for seen in shown if seen["run"]}
        record = anyio.run(harness.read_record, anyio.run(_load_run, harness, run))

    assert record.error.message.endswith(f"{complaint} [redacted]")
    assert record.events_of(ev.Unknown) == [ev.Unknown("[redacted]")]
    for seen in (shown, record.run, [seen.event for seen in record.stored]):
        assert key.encode() not in msgspec.json.encode(seen)


async def _read_all_events(harness: CliHarness) -> list[dict[str, Any]]:
    async with harness.library() as library:
        run = await harness.start(library, "what is it?")
        events = [to_public(seen) async for seen in run.events()]
        await run.result()
    return events


async def _load_run(harness: CliHarness, run: str) -> Run:
    async with harness.library() as library:
        return await (await library.run(run)).result()


def _configure(harness: CliHarness) -> None:
    """Configure the secret, so that commands redact it."""
    variable, key = KEYS[harness.cli.name]
    given = f'[providers.{harness.cli.name}]\nenv = {{ {variable} = "{key}" }}\n'
    (harness.home / "config.toml").write_text(given)
    (harness.home / "config.toml").chmod(0o600)


def _find_in_archive(archive: Path, key: str) -> list[str]:
    with tarfile.open(archive) as opened:
        files = [(member.name, opened.extractfile(member)) for member in opened]
        assert len(files) > 3
        return [name for name, file in files if file and key.encode() in file.read()]


def _find_files(folder: Path, key: str) -> list[Path]:
    files = [each for each in folder.rglob("*") if each.is_file() and each.name != "config.toml"]
    return [each for each in files if key.encode() in each.read_bytes()]
