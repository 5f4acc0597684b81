"""What does `make up` start? The daemon, with a demo agent to talk to, until Ctrl-C.

The demo agent is scripted: it needs nothing installed and asks no model.
"""

import os
import sys
from pathlib import Path

import anyio

from steadyrun.app.operations import open_desk
from steadyrun.cli.commands.providers import find_providers
from steadyrun.config import Config, load, printable
from steadyrun.errors import NameTaken, SteadyrunError
from steadyrun.operations.agents import AddAgentRequest, add

DEMO = "demo"


def main() -> None:
    """Add the agent, say what to try, and become the daemon."""
    try:
        config = load()
        anyio.run(_hire, config)
    except SteadyrunError as error:
        print(f"steadyrun: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    for line in _advice(config):
        print(line)
    sys.stdout.flush()
    os.execv(sys.executable, [sys.executable, "-P", "-m", "steadyrun", "up"])  # noqa: S606


async def _hire(config: Config) -> None:
    place = anyio.Path(config.places.home / DEMO)
    await place.mkdir(mode=0o700, parents=True, exist_ok=True)
    async with open_desk(config) as desk:
        try:
            await add(desk, AddAgentRequest(name=DEMO, provider="scripted", home=str(place)))
        except NameTaken:
            # It is there since the last time, or somebody else has that name: both are fine.
            return


def _advice(config: Config) -> list[str]:
    command = Path(sys.executable).parent / "steadyrun"
    shown = printable(command.relative_to(Path.cwd())) if _is_here(command) else str(command)
    clis = [each for each in find_providers(config) if each.path]
    return [
        f"The agent {DEMO} plays a script and asks no model. In another terminal:",
        f'  {shown} send {DEMO} "say hello" --wait',
        f"  {shown} tail {DEMO} -f",
        f"  {shown} status",
        "Real agents found on PATH:" if clis else "No Claude Code and no Codex on PATH.",
        *(f"  {each.name:<8} {each.version or '?':<10} {each.path}" for each in clis),
        "",
    ]


def _is_here(command: Path) -> bool:
    return command.is_relative_to(Path.cwd())


if __name__ == "__main__":
    main()
