"""`cost` reports known, estimated and unknown costs separately."""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from steadyrun.errors import InvalidUsage
from steadyrun.model.usage import USAGE_REFUSED, Usage
from steadyrun.operations.costs import parse_since
from steadyrun.providers.shared.prices import load_prices
from tests.support.cli_home import cli_home
from tests.support.commands import steadyrun

NOW = datetime(2026, 3, 29, 22, 30, tzinfo=UTC)
BERLIN = ZoneInfo("Europe/Berlin")


def uses(tokens: int, usd: float | None) -> dict[str, object]:
    return {"usage": {"input_tokens": tokens, "output_tokens": 0, "cost_usd": usd}}


def cost(home: Path, *words: str) -> Any:
    done = steadyrun(home, "cost", *words, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_known_and_unknown_costs_are_reported_separately(tmp_path: Path) -> None:
    with cli_home(tmp_path) as home:
        home.add_agent("ada", model="m")
        home.add_agent("bob")
        home.up()
        for steps in ([uses(100, 0.25)], [uses(7, None)]):
            home.run("send", "ada", "script:" + json.dumps(steps), "--wait")
        home.run("send", "bob", "script:" + json.dumps([uses(10, 1.0)]), "--wait")
        home.run("run", "--provider", "scripted", "script:" + json.dumps([uses(1, 2.0)]))
        found = cost(home.path)
        by_provider = cost(home.path, "--by", "provider", "--since", "24h")
        by_model = cost(home.path, "ada", "--by", "model")
        by_day = cost(home.path, "--by", "day", "--since", "7d")
        shown = home.run("cost").stdout

        rows = {row["key"]: row for row in found["rows"]}
        assert set(rows) == {None, "ada", "bob"}
        ada = rows["ada"]
        assert (ada["runs"], ada["input_tokens"], ada["known_usd"]) == (2, 107, 0.25)
        assert (ada["estimated_usd"], ada["unknown_runs"], ada["unknown_tokens"]) == (0.0, 1, 7)
        assert (rows["bob"]["known_usd"], rows[None]["known_usd"]) == (1.0, 2.0)
        assert (found["total"]["runs"], found["total"]["known_usd"]) == (4, 3.25)
        assert (found["since"], found["timezone"]) == (None, "UTC")
        assert found["prices"] == {
            "source": load_prices().source, "published": load_prices().published.isoformat(),
        }  # fmt: skip
        assert [row["key"] for row in by_provider["rows"]] == ["scripted"]
        assert [(row["key"], row["runs"]) for row in by_model["rows"]] == [("m", 2)]
        assert sum(row["runs"] for row in by_day["rows"]) == 4
        assert by_day["total"]["runs"] == 4
        assert "1 run, 7 tokens" in shown
        assert f"of {load_prices().published}" in shown


def test_today_begins_at_midnight_of_the_configured_time_zone(tmp_path: Path) -> None:
    """Somewhere it is another day than in UTC at any moment."""
    now = datetime.now(UTC)
    zone = next(
        name
        for name in ("Pacific/Kiritimati", "Pacific/Pago_Pago")
        if now.astimezone(ZoneInfo(name)).date() != now.date()
    )
    home = tmp_path / "home"
    home.mkdir()
    (home / "config.toml").write_text(f'[budgets]\ntimezone = "{zone}"\n')

    steadyrun(home, "run", "--provider", "scripted", "script:" + json.dumps([uses(1, 2.0)]))
    found = cost(home, "--by", "day", "--since", "today")

    here = datetime.now(UTC).astimezone(ZoneInfo(zone))
    assert found["timezone"] == zone
    assert [row["key"] for row in found["rows"]] == [here.date().isoformat()]
    since = datetime.fromisoformat(found["since"]).astimezone(ZoneInfo(zone))
    assert (since.date(), since.hour, since.minute) == (here.date(), 0, 0)


@pytest.mark.parametrize(
    ("text", "begin"),
    [
        ("24h", NOW - timedelta(hours=24)),
        ("7d", NOW - timedelta(days=7)),
        # Half past midnight of the 30th in Berlin, where summer time has begun.
        ("today", datetime(2026, 3, 29, 22, tzinfo=UTC)),
        ("2026-03-29", datetime(2026, 3, 28, 23, tzinfo=UTC)),
        ("month", datetime(2026, 2, 28, 23, tzinfo=UTC)),
    ],
)
def test_since_is_parsed_in_the_configured_time_zone(text: str, begin: datetime) -> None:
    assert parse_since(text, NOW, BERLIN) == begin


@pytest.mark.parametrize(
    "text", ["", "yesterday", "-7d", "7", "7y", "2026-02-30", "2999-01-01", "0001-01-01x", "٣d"]
)
def test_invalid_time_is_refused(text: str) -> None:
    with pytest.raises(InvalidUsage, match="expected today"):
        parse_since(text, NOW, BERLIN)


def test_cost_of_an_unknown_agent_is_not_found(tmp_path: Path) -> None:
    missing = steadyrun(tmp_path / "home", "cost", "missing")
    wrong = steadyrun(tmp_path / "home", "cost", "--by", "week")

    assert (missing.returncode, wrong.returncode) == (3, 2)


def test_tokens_beyond_63_bits_are_not_counted_and_the_run_completes(tmp_path: Path) -> None:
    with cli_home(tmp_path) as home:
        home.add_agent("ada")
        home.up()
        steps = [uses(2**62, 0.5), uses(2**62, None), {"text": "done"}]
        done = home.run("send", "ada", "script:" + json.dumps(steps), "--wait", "--json")
        assert done.returncode == 0, done.stderr
        home.run("send", "ada", "script:" + json.dumps([uses(5, 0.25)]), "--wait")

        first, second = sorted(home.runs(), key=lambda run: run.id)
        assert (first.status, first.text, first.usage) == ("completed", "done", Usage())
        assert (second.status, second.usage.input_tokens) == ("completed", 5)
        assert USAGE_REFUSED in home.texts()
        assert cost(home.path)["total"]["input_tokens"] == 5
