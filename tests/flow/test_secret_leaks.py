"""No part of a secret that a CLI prints is in any file of the home but its raw files, and in no
output of a command."""

import json
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from steadyrun.config import load
from steadyrun.model.event import get_type
from steadyrun.model.item import SETTLED
from tests.children.keeper_driver import eventually
from tests.children.leaking_cli import CAP_BYTES
from tests.support.cli_home import CliHome, cli_home
from tests.support.commands import ROOT, environment
from tests.support.planted_secrets import KNOWN, SECRETS, find_leaks, find_part

CHILD = str(ROOT / "tests" / "children" / "leaking_cli.py")
# What a process printed and was sent, as it is.
RAW_FILES = frozenset({"journal", "sent", "stderr", "request", "config.toml"})
SHARES = (1, 50, 99)


@pytest.fixture
def home(tmp_path: Path) -> Iterator[CliHome]:
    with cli_home(tmp_path) as found:
        found.path.mkdir()
        (found.path / "config.toml").write_text(write_config())
        yield found


def write_config() -> str:
    """The known secrets are named in the configuration; the others are only in the environment of
    the CLIs, under a name of no secret. A literal there would be known as well."""
    lines = [f"[daemon]\nline_bytes = {4 << 20}\n[providers.shell.options]"]
    lines += [f"output_cap_bytes = {CAP_BYTES}", "timeout_seconds = 0"]
    for provider in ("shell", *list_printers()):
        if provider != "shell":
            number, share = provider.removeprefix("printer-").split("-")
            command = [sys.executable, "-I", "-S", CHILD, "scripted", number, share]
            lines += [f"[providers.{provider}]", 'kind = "scripted"']
            lines += [f"command = {json.dumps(command)}"]
        lines.append(f"[providers.{provider}.env]")
        lines += [
            f"PLANTED_SECRET_{number} = {json.dumps(secret, ensure_ascii=False)}"
            for number, secret in enumerate(KNOWN)
        ]
    return "\n".join(lines) + "\n"


def list_printers() -> list[str]:
    return [f"printer-{number}-{share}" for number in range(len(KNOWN)) for share in SHARES]


def wait_for_all(home: CliHome) -> None:
    def is_done() -> bool:
        items = home.read(lambda store: store.items(include_settled=True, limit=1000))
        return all(item.status in SETTLED for item in items)

    eventually(is_done, "that all items are settled")


def read_outputs(home: CliHome) -> Iterator[tuple[str, str]]:
    """What the commands print about some of the runs: each command is a process."""
    for run in home.runs()[::4]:
        for command in ("show RUN", "show RUN --json", "tail RUN", "tail RUN --jsonl"):
            yield command, read_output(home, command.replace("RUN", run.id))
        yield "replay", read_output(home, f"replay {run.id}")
        archive = home.place / f"{run.id}.tar.gz"
        done = home.run("export", run.id, "-o", str(archive))
        assert done.returncode == 0, done.stderr
        with tarfile.open(archive) as tar:
            for member in tar:
                file = tar.extractfile(member)
                assert file
                yield f"export {member.name}", file.read().decode(errors="replace")
    for command in ("status --json", "runs", "inbox --all --json", "agents"):
        yield command, read_output(home, command)


def read_output(home: CliHome, command: str) -> str:
    done = home.run(*command.split())
    assert done.returncode == 0, done.stderr
    assert done.stdout
    return done.stdout


def list_command_lines() -> Iterator[tuple[str, str]]:
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            yield str(file), file.read_bytes().decode(errors="replace")
        except OSError:
            continue


def test_secrets_across_every_cut_are_found_nowhere(home: CliHome) -> None:
    assert len(load(home=home.path, environ=environment(home.path)).list_secrets()) > 0
    home.add_agent("pat", provider="shell")
    for provider in list_printers():
        home.add_agent(provider, provider=provider)
    home.up()
    for number in range(len(KNOWN)):
        for share in SHARES:
            text = f"{sys.executable} -I -S {CHILD} shell {number} {share}"
            assert home.run("send", "pat", text).returncode == 0
            assert home.run("send", f"printer-{number}-{share}", "go").returncode == 0
    leaks = [name for name, line in list_command_lines() if find_part(line)]
    wait_for_all(home)

    events = home.events()
    assert {"run.failed", "note", "text.final", "tool.completed"} <= {
        get_type(each.event) for each in events
    }
    assert any("[redacted]" in str(each.event) for each in events)
    leaks += find_leaks(home.path, RAW_FILES)
    leaks += [name for name, text in read_outputs(home) if find_part(text)]
    leaks += [line for line in home.read_log() if find_part(line)]
    assert leaks == []


def test_tokens_of_known_shapes_across_every_cut_are_found_nowhere(home: CliHome) -> None:
    """The variables of a shell command are not those of the configuration: it sets them itself."""
    home.add_agent("pat", provider="shell")
    program = home.place / "program.sh"
    home.up()
    for number, secret in enumerate(SECRETS[len(KNOWN) :]):
        for share in SHARES:
            # The token is not in the message, which is stored as it was sent.
            file = program.with_name(f"{number}-{share}.sh")
            variable = f"export PLANTED_SECRET_{number}='{secret}'"
            file.write_text(f"{variable}\nexec {sys.executable} {CHILD} shell {number} {share}\n")
            assert home.run("send", "pat", f"sh {file}").returncode == 0
    wait_for_all(home)

    leaks = find_leaks(home.path, RAW_FILES)
    leaks += [name for name, text in read_outputs(home) if find_part(text)]
    leaks += [line for line in home.read_log() if find_part(line)]
    assert leaks == []


def test_sent_secret_is_only_in_the_item_itself(home: CliHome) -> None:
    """A message and a system prompt may contain a secret: the copies of them do not."""
    secret = KNOWN[0]
    home.add_agent("ada")
    home.up()
    script = json.dumps([{"echo": True}, {"text": f"you said {secret}"}])
    assert home.run("send", "ada", f"script:{script}", "--wait").returncode in {0, 1}
    direct = home.run(
        "run", "--provider", "scripted", "--system", f"use {secret}",
        f'script:[{{"text": "it is {secret}"}}]', "--json",
    )  # fmt: skip
    assert find_part(direct.stdout + direct.stderr) is None
    for run in home.runs():
        for command in (f"show {run.id} --json", f"tail {run.id}", f"replay {run.id}"):
            assert find_part(read_output(home, command)) is None
    assert find_part(home.run("status", "--json").stdout) is None
    assert find_part("\n".join(home.read_log())) is None
    assert find_part(str(home.events())) is None
