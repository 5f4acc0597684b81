"""Starts the daemon with a demo agent, until Ctrl-C: `make up`.

The demo agent is scripted: it needs no installation and uses no model.
"""

import os
import sys
from pathlib import Path

import anyio
import anyio.to_thread

from steadyrun.app.diagnostics import find_providers
from steadyrun.app.operations import open_operations
from steadyrun.config import Config, load, to_printable
from steadyrun.errors import NameTaken, SteadyrunError
from steadyrun.lib.atomic import make_private_directory
from steadyrun.operations.agents import AddAgentRequest, add

DEMO = "demo"


def main() -> None:
    """Add the agent, print what to try, and become the daemon."""
    try:
        config = load()
        anyio.run(_add_agent, config)
    except SteadyrunError as error:
        print(f"steadyrun: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    for line in _build_advice(config):
        print(line)
    sys.stdout.flush()
    os.execv(sys.executable, [sys.executable, "-P", "-m", "steadyrun", "up"])  # noqa: S606


async def _add_agent(config: Config) -> None:
    directory = config.locations.home / DEMO
    await anyio.to_thread.run_sync(make_private_directory, directory)
    async with open_operations(config) as context:
        try:
            await add(context, AddAgentRequest(name=DEMO, provider="scripted", home=str(directory)))
        except NameTaken:
            # An earlier `make up` has added it, or the user has an agent of that name.
            return


def _build_advice(config: Config) -> list[str]:
    command = Path(sys.executable).parent / "steadyrun"
    shown = (
        to_printable(command.relative_to(Path.cwd())) if _is_below_cwd(command) else str(command)
    )
    clis = [each for each in find_providers(config) if each.path]
    return [
        f"The agent {DEMO} plays a script and uses no model. In another terminal:",
        f'  {shown} send {DEMO} "say hello" --wait',
        f"  {shown} tail {DEMO} -f",
        f"  {shown} status",
        "CLIs of real agents on PATH:" if clis else "No Claude Code and no Codex on PATH.",
        *(f"  {each.name:<8} {each.version or '?':<10} {each.path}" for each in clis),
        "",
    ]


def _is_below_cwd(command: Path) -> bool:
    return command.is_relative_to(Path.cwd())


if __name__ == "__main__":
    main()
