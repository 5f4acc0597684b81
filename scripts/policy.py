"""Writes the tables of docs/policy.md: how each provider enforces each policy."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

from steadyrun.dialect import EnforcedRights
from steadyrun.model.policy import TIERS, TOOLS, Mode, Policy, Rights, compute_rights
from steadyrun.providers.registry import BUILT_IN, make_dialect

PAGE = Path(__file__).parents[1] / "docs" / "policy.md"
START = "<!-- made by scripts/policy.py: -->\n"
END = "<!-- end of what was made -->\n"


def main() -> int:
    """Write the page."""
    PAGE.write_text(renewed(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    return 0


def renewed(page: str) -> str:
    """The page with current tables; the rest is unchanged."""
    before, rest = page.split(START)
    _, after = rest.split(END)
    return f"{before}{START}{tables()}{END}{after}"


def tables() -> str:
    """The tools of each tier, and how each provider enforces each policy."""
    names = ["", *(f"`{tool}`" for tool in TOOLS)]
    tools = [
        [f"`{tier}`", *("yes" if tool in has else "" for tool in TOOLS)]
        for tier, has in TIERS.items()
    ]
    head = ["", "", *(f"`{mode}`" for mode in get_args(Mode)), "reason"]
    return f"{_table(names, tools)}\n{_table(head, list(_build_rows()))}"


def policies() -> dict[str, Policy]:
    """The policies in the table: every tier, and every tool denied by itself."""
    tiers = {f"tier `{tier}`": Policy(tier=tier) for tier in TIERS}
    denied = {f"deny `{tool}`": Policy(deny=(tool,)) for tool in TOOLS}
    return {"no policy": Policy(), **tiers, **denied}


def _build_rows() -> Iterator[list[str]]:
    for provider in sorted(BUILT_IN):
        for words, policy in policies().items():
            found = [_outcome(provider, Rights(mode, *_rest(policy))) for mode in get_args(Mode)]
            reasons = dict.fromkeys(reason for _, reason in found if reason)
            yield [provider, words, *(cell for cell, _ in found), "; ".join(reasons)]


def _rest(policy: Policy) -> tuple[tuple[str, ...] | None, tuple[str, ...]]:
    wanted = compute_rights(policy)
    return wanted.tools, wanted.deny


def _outcome(provider: str, wanted: Rights) -> tuple[str, str]:
    found = make_dialect(provider, {}).enforce(wanted)
    if not isinstance(found, EnforcedRights):
        return "**refused**", found.reason
    return "enforced" if found.mode == wanted.mode else f"enforced, as `{found.mode}`", "; ".join(
        found.notes
    )


def _table(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


if __name__ == "__main__":
    sys.exit(main())
