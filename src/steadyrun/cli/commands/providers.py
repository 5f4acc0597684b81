"""The command `providers`: lists providers, their programs and their abilities."""

from argparse import Namespace
from collections.abc import Iterator

from steadyrun.app.diagnostics import ProviderInfo, find_providers
from steadyrun.cli.output.format import sanitize, to_json
from steadyrun.config import load


def list_providers(args: Namespace) -> int:
    found = find_providers(load())
    if args.json:
        print(to_json({"providers": found}))
        return 0
    for provider in found:
        for number, line in enumerate(_format_lines(provider)):
            print(f"{'' if number else provider.name:<12} {sanitize(line)}")
    return 0


def format_version(provider: ProviderInfo) -> str:
    """Format the version and whether it was tested; empty if the version is not known."""
    if provider.version is None or provider.tested is None:
        return provider.version or ""
    if provider.is_tested:
        return f"{provider.version} (tested)"
    oldest, newest = provider.tested
    span = oldest if oldest == newest else f"{oldest} to {newest}"
    return f"{provider.version} (not tested; tested: {span})"


def _format_lines(provider: ProviderInfo) -> Iterator[str]:
    is_missing = not provider.is_there and not provider.problem
    yield f"{provider.program}: not found" if is_missing else provider.path or provider.program
    has_login = provider.is_there and provider.login_by
    facts = {
        "kind": provider.kind if provider.kind != provider.name else "",
        "version": format_version(provider),
        "login": (provider.login or "none found") if has_login else "",
        "problem": provider.problem,
        "install": "" if provider.is_there else provider.install,
        "can": ", ".join(provider.abilities),
    }
    yield from (f"{name}: {fact}" for name, fact in facts.items() if fact)
