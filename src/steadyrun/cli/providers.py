"""Who can do the work here? `providers` lists them; `doctor` asks the same."""

import shutil
from argparse import Namespace
from collections.abc import Iterator

from msgspec import Struct

from steadyrun.assemble.runtime import DIALECTS
from steadyrun.cli import render
from steadyrun.config import Config, ProviderSettings, load

BUILT_IN = "built in"


class Found(Struct, frozen=True):
    """A provider. `path` is its program; None if it was not found or is part of steadyrun."""

    name: str
    program: str
    path: str | None
    is_there: bool
    is_configured: bool
    abilities: tuple[str, ...]


def list_providers(args: Namespace) -> int:
    found = list(find_providers(load()))
    if args.json:
        print(render.to_json({"providers": found}))
        return 0
    for each in found:
        where = (each.path or each.program) if each.is_there else f"{each.program}: not found"
        print(f"{each.name:<12} {render.plain(where)}")
        print(f"{'':<12} can: {', '.join(each.abilities)}")
    return 0


def find_providers(config: Config) -> Iterator[Found]:
    for name, kind in sorted(DIALECTS.items()):
        command = config.settings.providers.get(name, ProviderSettings()).command
        # The usual program of a provider that is not part of steadyrun.
        usual: str | None = getattr(kind, "program", None)
        program = command[0] if command else usual
        path = _which(config, program) if program else None
        yield Found(
            name,
            program or BUILT_IN,
            path,
            is_there=program is None or path is not None,
            is_configured=command is not None,
            abilities=tuple(sorted(kind.abilities)),
        )


def _which(config: Config, program: str) -> str | None:
    return shutil.which(program, path=config.environ.get("PATH"))
