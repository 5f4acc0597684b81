"""The commands `config show`, `config path`, `config check` and `trust`."""

from argparse import Namespace
from typing import Any

import msgspec

from steadyrun.config import (
    Config,
    Locations,
    describe,
    is_trusted,
    list_kinds,
    load,
    locate,
    to_document,
    to_printable,
)
from steadyrun.config import trust as trust_project


def show(args: Namespace) -> int:
    """Print every setting with its origin."""
    config = load()
    if args.json:
        return _print_json(to_document(config))
    rows = [(f"{key} = {value}", origin) for key, value, origin in describe(config)]
    width = min(60, max(len(setting) for setting, _ in rows))
    for setting, origin in rows:
        print(f"{setting:<{width}}  # {origin}")
    return 0


def show_path(args: Namespace) -> int:
    """Print the configuration files. This works even if their content is invalid."""
    files = _describe_files(locate())
    if args.json:
        return _print_json(files)
    user, project = files["user"], files["project"]
    print(f"user     {user['path']}  ({'exists' if user['exists'] else 'does not exist'})")
    if project["path"] is None:
        print("project  none in this directory or above")
    else:
        print(f"project  {project['path']}  ({_describe_trust(project['trusted'])})")
    return 0


def check(args: Namespace) -> int:
    """Load the configuration. An error in it is raised."""
    config, kinds = load(), list_kinds()
    if args.json:
        names = {key: sorted(getattr(config.settings, key)) for key in ("providers", "agents")}
        return _print_json(
            {"ok": True, **_describe_files(config.locations), **names, "kinds": kinds}
        )
    for line in _list_findings(config):
        print(f"ok: {line}")
    return 0


def trust(args: Namespace) -> int:
    """Trust the file of the project with its present content."""
    file = to_printable(trust_project())
    if args.json:
        return _print_json({"trusted": file})
    print(f"trusted: {file}\nRun this command again after a change of the file.")
    return 0


def _list_findings(config: Config) -> list[str]:
    files, settings = _describe_files(config.locations), config.settings
    user, project = files["user"], files["project"]
    found = [f"user file {user['path']}" if user["exists"] else f"no user file {user['path']}"]
    if project["path"] is not None:
        found.append(f"project file {project['path']} ({_describe_trust(config.project_trusted)})")
    found.append(f"kinds of providers: {', '.join(list_kinds())}")
    found.append(f"providers: {', '.join(_name_providers(config)) or 'none set'}")
    found.append(f"agents: {', '.join(sorted(settings.agents)) or 'none set'}")
    return found


def _name_providers(config: Config) -> list[str]:
    kinds = {name: config.find_kind(name) for name in sorted(config.settings.providers)}
    return [name if kind == name else f"{name} ({kind})" for name, kind in kinds.items()]


def _describe_files(places: Locations) -> dict[str, Any]:
    project = places.project_file
    return {
        "home": to_printable(places.home),
        "user": {"path": to_printable(places.user_file), "exists": places.has_user_file},
        "project": {
            "path": None if project is None else to_printable(project),
            "exists": project is not None,
            "trusted": is_trusted(places),
        },
    }


def _describe_trust(trusted: bool) -> str:
    return "trusted" if trusted else "not trusted: it may set models only"


def _print_json(document: dict[str, Any]) -> int:
    print(msgspec.json.encode(document).decode())
    return 0
