"""An option that cannot apply is refused by name before anything is written."""

import json
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest

import steadyrun
from steadyrun.config import load
from steadyrun.errors import InvalidUsage
from steadyrun.stores.sqlite import SqliteStore
from tests.support.commands import steadyrun as steadyrun_command

DOLLARS = "max_cost_usd: expected a number of dollars above 0, found "
SECONDS = "timeout_seconds: expected a number of seconds above 0, found "
TURNS = "max_turns: expected a number of turns above 0, found "
ENDLESS: dict[str, Any] = {}
ENDLESS["self"] = ENDLESS
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"max_cost_usd": -1}, DOLLARS + "-1"),
    ({"max_cost_usd": 0.0}, DOLLARS + "0.0"),
    ({"max_cost_usd": float("nan")}, DOLLARS + "nan"),
    ({"max_cost_usd": float("inf")}, DOLLARS + "inf"),
    ({"max_cost_usd": True}, DOLLARS + "True"),
    ({"max_cost_usd": "5"}, DOLLARS + "'5'"),
    ({"timeout_seconds": -1.0}, SECONDS + "-1.0"),
    ({"timeout_seconds": 0}, SECONDS + "0"),
    ({"timeout_seconds": float("nan")}, SECONDS + "nan"),
    ({"max_turns": 0}, TURNS + "0"),
    ({"max_turns": -3}, TURNS + "-3"),
    ({"max_turns": 10**400}, TURNS + "1000"),
    ({"max_turns": 2.5}, TURNS + "2.5"),
    ({"mode": "nonsense"}, "mode: unknown mode 'nonsense'"),
    ({"mode": ["plan"]}, "mode: unknown mode ['plan']"),
    ({"model": ""}, "model: expected a text, found ''"),
    ({"resume": ""}, "resume: expected a text, found ''"),
    ({"model": "a\0b"}, "model: must not contain a NUL character"),
    ({"system": 7}, "system: expected a text, found 7"),
    ({"tools": ["Raed"]}, "tools: unknown tool 'Raed'"),
    ({"tools": "Read"}, "tools: expected a list of names, found 'Read'"),
    ({"tools": [7]}, "tools: expected a list of names, found [7]"),
    ({"schema": ["type"]}, "schema: expected an object, found ['type']"),
    ({"schema": {"type": {1, object}}}, "schema: cannot be written as JSON"),
    ({"schema": ENDLESS}, "schema: cannot be written as JSON"),
    ({"images": [b"png"]}, "images: expected a list of Image, found [b'png']"),
    ({"or_fresh": "no"}, "or_fresh: expected True or False, found 'no'"),
    ({"or_fresh": True}, "or_fresh is for a conversation to resume"),
    ({"metadata": ["a"]}, "metadata: expected an object, found ['a']"),
    ({"metadata": {"wall_seconds": 1}}, "the metadata must not have the key 'wall_seconds'"),
    ({"max_cost": 5}, "unknown option 'max_cost'"),
    ({"env": "LANG=C"}, "env: expected texts by name"),
    ({"env": {"LANG": 7}}, "env: expected texts by name"),
    ({"env": {"A=B": "x"}}, "env: 'A=B' cannot be the name of a variable"),
    ({"env": {"A": "x\0"}}, "env: 'A' must not contain a NUL character"),
    ({"env": {"STEADYRUN_HOME": "/"}}, "env: 'STEADYRUN_HOME' may not be set"),
    ({"metadata": {"stopping": 1}}, "the metadata must not have the key 'stopping'"),
]


@pytest.mark.parametrize("role", [None, "reviewer"])
def test_option_that_cannot_apply_is_refused_and_writes_nothing(
    tmp_path: Path, role: str | None
) -> None:
    said: list[str] = []

    async def main() -> int:
        config = load(home=tmp_path / "home", cwd=tmp_path, environ={"PATH": "/usr/bin:/bin"})
        async with steadyrun.open(config) as library:
            begin = partial(library.summon, role) if role else library.start
            for wishes, _ in REFUSED:
                with pytest.raises(InvalidUsage) as found:
                    await begin("hi", provider="scripted", cwd=tmp_path, **wishes)
                said.append(found.value.message)
        store = await SqliteStore.open(tmp_path / "home")
        try:
            return len(await store.runs())
        finally:
            await store.close()

    assert anyio.run(main) == 0
    expected = [message for _, message in REFUSED]
    assert [each[: len(message)] for each, message in zip(said, expected, strict=True)] == expected


def test_nearest_option_is_suggested(tmp_path: Path) -> None:
    async def main() -> list[str]:
        config = load(home=tmp_path / "home", cwd=tmp_path, environ={"PATH": "/usr/bin:/bin"})
        hints = []
        async with steadyrun.open(config) as library:
            for wishes in ({"mode": "plann"}, {"max_cost": 5}, {"tools": ["Raed"]}):
                given: dict[str, Any] = {"provider": "scripted", "cwd": tmp_path, **wishes}
                with pytest.raises(InvalidUsage) as found:
                    await library.start("hi", **given)
                hints.append(found.value.hint)
        return hints

    near = ["plan", "max_cost_usd", "Read"]
    assert anyio.run(main) == [f"Did you mean {word!r}?" for word in near]


def test_option_of_a_run_overrides_the_configuration_and_is_not_stored(
    tmp_path: Path,
) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (home / "config.toml").write_text(
        '[providers.shell]\nenv = { WHO = "configured", WHERE = "here" }\n'
    )
    given = {"WHO": "only-for-this-run", "STEADY": "1"}

    async def main() -> str | None:
        config = load(home=home, cwd=tmp_path, environ={"PATH": "/usr/bin:/bin"})
        async with steadyrun.open(config) as library:
            run = await library.start(
                "sh -c 'echo $WHERE $STEADY ${#WHO}'", provider="shell", cwd=tmp_path, env=given
            )
            return (await run.result()).text

    assert (anyio.run(main) or "").strip() == "here 1 17"
    kept = [each for each in home.rglob("*") if each.is_file()]
    assert kept
    assert not any(b"only-for-this-run" in each.read_bytes() for each in kept)


def test_option_env_passes_variables_of_the_caller(tmp_path: Path) -> None:
    said = steadyrun_command(
        tmp_path / "home", "run", "--provider", "shell", "--json",
        "--env", "WHERE", "--env", "WHO=me", "sh -c 'echo $WHERE $WHO $WHAT'",
        wrapper=("env", "WHERE=here", "WHAT=nothing"),
    )  # fmt: skip
    unset = steadyrun_command(
        tmp_path / "home", "run", "--provider", "shell", "--env", "NOT_SET_HERE", "true"
    )

    assert json.loads(said.stdout)["text"].split() == ["here", "me"]
    assert (unset.returncode, "'NOT_SET_HERE' is not set" in unset.stderr) == (2, True)
