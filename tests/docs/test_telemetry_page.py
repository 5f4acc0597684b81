"""Checks that the page about telemetry lists every attribute and that its example runs."""

import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from steadyrun.config import load
from steadyrun.model import event as ev
from steadyrun.model.event import ErrorFact
from steadyrun.model.usage import Cost, Usage
from steadyrun.telemetry.exporter import MOST_SENT, WAITS
from steadyrun.telemetry.otlp import LONGEST_TEXT
from steadyrun.telemetry.spans import INPUT
from tests.support.cli_home import cli_home
from tests.support.commands import ROOT
from tests.unit.telemetry.test_spans import BEGUN, TOOL, heard, record

PAGE = (ROOT / "docs/telemetry.md").read_text(encoding="utf-8")
CONFIGS = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
[EXAMPLE] = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


def listed(text: str) -> set[tuple[str, str]]:
    """The attributes in a table, each with its span."""
    rows = re.findall(r"^\| `([a-z_.]+)` \| (both|run|tool) \|", text, re.MULTILINE)
    kinds = {"both": ("run", "tool"), "run": ("run",), "tool": ("tool",)}
    return {(name, kind) for name, of in rows for kind in kinds[of]}


def exported(*, content: bool) -> set[tuple[str, str]]:
    ended = ev.RunFailed(
        "failed",
        text="x",
        usage=Usage(1, 2, 3, 4),
        cost=Cost(1.0, "known"),
        resume_token="t",
        error=ErrorFact("broken", "it broke"),
    )
    failed = ev.ToolFailed("call_1", "Bash", error="no")
    spans = heard(record(BEGUN, ev.StatsUpdated("m"), TOOL, failed, ended), content=content)
    return {(key, "tool" if span.parent else "run") for span in spans for key in span.attributes}


def test_page_lists_exactly_the_attributes() -> None:
    plain, more = PAGE.split("With `content = true`")

    assert listed(plain) == exported(content=False)
    assert listed(more) == exported(content=True) - exported(content=False) | {(INPUT, "run")}


def test_numbers_on_the_page_are_the_real_ones() -> None:
    assert f"cut at {LONGEST_TEXT:,} characters" in PAGE
    assert f"of {MOST_SENT} spans at most" in PAGE
    assert "about four minutes" in PAGE
    assert 210 <= sum(WAITS) <= 270


@pytest.mark.parametrize("text", CONFIGS)
def test_every_configuration_loads(text: str, tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text(text)

    assert load(tmp_path, tmp_path, {}).settings.telemetry.endpoint


@contextmanager
def example(place: Path) -> Iterator["subprocess.Popen[str]"]:
    program = place / "collector.py"
    program.write_text(EXAMPLE)
    collector = subprocess.Popen(
        [sys.executable, program, "0"], stdout=subprocess.PIPE, text=True, cwd=place
    )
    try:
        yield collector
    finally:
        collector.kill()
        collector.communicate()


def test_collector_on_the_page_prints_the_spans_of_a_daemon(tmp_path: Path) -> None:
    with example(tmp_path) as collector, cli_home(tmp_path) as home:
        assert collector.stdout
        port = collector.stdout.readline().removeprefix("listening on ").strip()
        home.path.mkdir()
        (home.path / "config.toml").write_text(CONFIGS[0].replace("4318", port))
        home.add_agent("ada")
        home.up()
        home.send("ada", {"tool": {"name": "Bash"}}, {"text": "done"})

        printed = [collector.stdout.readline() for _ in range(2)]

    assert [line.rsplit(" ", 2)[0] for line in printed] == ["execute_tool Bash", "invoke_agent ada"]
