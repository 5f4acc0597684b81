"""A daemon exports its runs to a collector: the real command, real bytes, kill -9."""

import json
import signal
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from steadyrun.model import event as ev
from steadyrun.telemetry.exporter import CURSOR
from tests.children.keeper_driver import eventually
from tests.support.cli_home import TIMEOUT_SECONDS, CliHome, cli_home, end_daemon
from tests.support.commands import COMMAND, environment
from tests.support.otlp_collector import Collector, Seen, collecting

PROMPT_WORD, INPUT_WORD, OUTPUT_WORD, ANSWER_WORD = "ultramarine", "vermilion", "ochre", "umber"
HEADER = "tok_4711_ziegelrot"
STEPS = (
    {"tool": {"name": "Bash", "input": {"command": INPUT_WORD}, "output": OUTPUT_WORD}},
    {"tool": {"name": "Read", "input": {"path": INPUT_WORD}, "error": f"no {OUTPUT_WORD}"}},
    {
        "usage": {
            "input_tokens": 10,
            "cache_read_tokens": 300,
            "cache_write_tokens": 7,
            "output_tokens": 42,
            "cost_usd": 0.25,
        }
    },
    {"stats": {"model": "model-9"}},
    {"text": f"{ANSWER_WORD} {PROMPT_WORD}"},
)


@pytest.fixture
def home(tmp_path: Path) -> Iterator[CliHome]:
    with cli_home(tmp_path) as found:
        found.path.mkdir()
        yield found


@pytest.fixture
def collector() -> Iterator[Collector]:
    with collecting() as found:
        yield found


def configure(home: CliHome, endpoint: str, *lines: str) -> None:
    text = "\n".join(["[telemetry]", f'endpoint = "{endpoint}"', *lines])
    (home.path / "config.toml").write_text(text)


def named(spans: list[Seen]) -> dict[str, Seen]:
    assert len({seen.name for seen in spans}) == len(spans)
    return {seen.name: seen for seen in spans}


def test_run_is_exported_as_a_span_with_a_child_span_for_each_tool(
    home: CliHome, collector: Collector
) -> None:
    configure(home, collector.endpoint, f'headers = {{ authorization = "Bearer {HEADER}" }}')
    home.add_agent("ada", model="model-1")
    home.up()
    item = home.send("ada", *STEPS)

    spans = named(collector.wait(3))

    run, bash, read = (
        spans[name] for name in ("invoke_agent ada", "execute_tool Bash", "execute_tool Read")
    )
    [stored] = home.runs()
    assert run.attributes == {
        "gen_ai.operation.name": "invoke_agent",
        "gen_ai.provider.name": "scripted",
        "gen_ai.agent.name": "ada",
        "gen_ai.conversation.id": stored.resume_token,
        "gen_ai.request.model": "model-1",
        "gen_ai.response.model": "model-9",
        "gen_ai.usage.input_tokens": 317,
        "gen_ai.usage.output_tokens": 42,
        "gen_ai.usage.cache_read.input_tokens": 300,
        "gen_ai.usage.cache_creation.input_tokens": 7,
        "steadyrun.run": stored.id,
        "steadyrun.item": item,
        "steadyrun.status": "completed",
        "steadyrun.cost.usd": 0.25,
        "steadyrun.cost.kind": stored.cost.kind,
    }
    assert stored.resume_token
    assert run.span.kind == run.span.SPAN_KIND_CLIENT
    assert (run.span.parent_span_id, run.is_error) == (b"", False)
    for tool in (bash, read):
        assert tool.span.kind == tool.span.SPAN_KIND_INTERNAL
        assert tool.span.trace_id == run.span.trace_id
        assert tool.span.parent_span_id == run.span.span_id
        assert tool.attributes["gen_ai.operation.name"] == "execute_tool"
        assert tool.attributes["gen_ai.tool.call.id"]
        assert run.span.start_time_unix_nano <= tool.span.start_time_unix_nano
        assert tool.span.end_time_unix_nano <= run.span.end_time_unix_nano
    assert (bash.is_error, read.is_error) == (False, True)
    assert read.attributes["error.type"] == "tool_failed"
    assert {seen.resource["service.name"] for seen in spans.values()} == {"steadyrun"}
    assert {asked[0] for asked in collector.asked} == {"/v1/traces"}
    assert {asked[1]["authorization"] for asked in collector.asked} == {f"Bearer {HEADER}"}


def test_telemetry_sends_no_content_by_default(home: CliHome, collector: Collector) -> None:
    configure(home, collector.endpoint)
    home.add_agent("ada")
    home.up()
    home.send("ada", *STEPS)
    collector.wait(3)

    words = (PROMPT_WORD, INPUT_WORD, OUTPUT_WORD, ANSWER_WORD)
    assert [word for word in words if word.encode() in collector.raw] == []


def test_telemetry_with_content_sends_prompts_tools_and_replies(
    home: CliHome, collector: Collector
) -> None:
    configure(home, collector.endpoint, "content = true")
    home.add_agent("ada")
    home.up()
    home.send("ada", *STEPS)

    spans = named(collector.wait(3))

    run, bash = spans["invoke_agent ada"].attributes, spans["execute_tool Bash"].attributes
    [asked] = json.loads(run["gen_ai.input.messages"])
    [answer] = json.loads(run["gen_ai.output.messages"])
    assert (asked["role"], answer["role"]) == ("user", "assistant")
    assert PROMPT_WORD in asked["parts"][0]["content"]
    assert answer["parts"] == [{"type": "text", "content": f"{ANSWER_WORD} {PROMPT_WORD}"}]
    assert answer["finish_reason"] == "stop"
    assert json.loads(bash["gen_ai.tool.call.arguments"]) == {"command": INPUT_WORD}
    assert bash["gen_ai.tool.call.result"] == OUTPUT_WORD
    failed = spans["execute_tool Read"].attributes
    assert OUTPUT_WORD in failed["gen_ai.tool.call.result"]


def test_telemetry_with_content_sends_no_secrets(home: CliHome, collector: Collector) -> None:
    configure(home, collector.endpoint, "content = true", f'headers = {{ x-team = "{HEADER}" }}')
    token = "ghp_" + "a1B2" * 10
    home.add_agent("ada")
    home.up()
    home.send("ada", {"text": f"{HEADER} {token} and no more"})

    [run] = collector.wait(1)

    assert "and no more" in run.attributes["gen_ai.input.messages"]
    assert "and no more" in run.attributes["gen_ai.output.messages"]
    assert HEADER.encode() not in collector.raw
    assert token.encode() not in collector.raw
    assert HEADER not in (home.place / "log").read_text()


def test_each_span_is_sent_once_when_the_daemon_is_killed_in_a_run(
    home: CliHome, collector: Collector
) -> None:
    configure(home, collector.endpoint)
    gate = home.place / "gate"
    home.add_agent("ada")
    first = home.up()
    home.send(
        "ada",
        {"tool": {"name": "Bash", "output": "1"}},
        {"until": str(gate)},
        {"tool": {"name": "Read", "output": "2"}},
    )
    collector.wait(1)
    done = next(e for e in home.events() if isinstance(e.event, ev.ToolCompleted))
    eventually(lambda: read_export_cursor(home) >= done.cursor, "that it is written down as sent")
    end_daemon(first, signal.SIGKILL)

    second = home.up()
    gate.touch()
    collector.wait(3)
    end_daemon(second, signal.SIGTERM)

    spans = named(collector.wait(3))
    assert set(spans) == {"invoke_agent ada", "execute_tool Bash", "execute_tool Read"}
    assert set(Counter(seen.span.span_id for seen in spans.values()).values()) == {1}
    assert len({seen.span.trace_id for seen in spans.values()}) == 1
    run = spans["invoke_agent ada"]
    assert {seen.span.parent_span_id for seen in spans.values() if seen is not run} == {
        run.span.span_id
    }
    # What only the first daemon had heard is known to the second.
    assert run.span.start_time_unix_nano <= spans["execute_tool Bash"].span.start_time_unix_nano
    assert run.attributes["steadyrun.item"]


def read_export_cursor(home: CliHome) -> int:
    found: bytes | None = home.read(lambda store: store.get(CURSOR))
    return int(found or 0)


def test_next_daemon_exports_the_runs_that_ended_without_an_exporter(
    home: CliHome, collector: Collector
) -> None:
    configure(home, collector.endpoint)
    home.add_agent("ada")
    collector.status = 503
    first = home.up()
    item = home.send("ada", {"text": "done"})
    eventually(lambda: home.item(item).status == "completed", "its end")
    collector.until_asked()
    assert end_daemon(first, signal.SIGTERM) == 0

    collector.status = 200
    home.up()

    [run] = collector.wait(1)
    assert run.attributes["steadyrun.item"] == item


def test_missing_collector_is_logged_and_runs_complete(home: CliHome) -> None:
    with collecting() as gone:
        configure(home, gone.endpoint)
    home.add_agent("ada")
    daemon = home.up()

    items = [home.send("ada", {"text": str(number)}) for number in range(3)]

    eventually(lambda: all(home.item(i).status == "completed" for i in items), "their end")
    log = home.place / "log"
    eventually(lambda: "telemetry.failed" in log.read_text(), "that the failure is logged")
    assert end_daemon(daemon, signal.SIGTERM) == 0
    said = log.read_text()
    assert "Traceback" not in said
    # The packages' own words are not among the facts.
    assert "ransient" not in said
    assert "Failed to export" not in said


def test_collector_that_never_answers_delays_no_run(home: CliHome) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        configure(home, f"http://127.0.0.1:{silent.getsockname()[1]}")
        home.add_agent("ada")
        daemon = home.up()
        first = home.send("ada", {"text": "one"})
        # It waits for its answer from now on.
        connection, _ = silent.accept()

        second = home.send("ada", {"text": "two"})

        eventually(lambda: home.item(second).status == "completed", "its end")
        assert home.item(first).status == "completed"
        assert "telemetry.failed" not in (home.place / "log").read_text()
        assert end_daemon(daemon, signal.SIGTERM) == 0
        connection.close()


def test_daemon_exports_a_run_of_another_process(home: CliHome, collector: Collector) -> None:
    configure(home, collector.endpoint)
    home.up()

    done = home.run("run", "--provider", "scripted", 'script:[{"text": "done"}]')

    [run], [stored] = collector.wait(1), home.runs()
    assert done.returncode == 0
    assert run.attributes["steadyrun.run"] == stored.id


def test_remaining_spans_are_sent_before_the_daemon_ends(
    home: CliHome, collector: Collector
) -> None:
    configure(home, collector.endpoint)
    home.add_agent("ada")
    daemon = home.up()
    item = home.send("ada", {"text": "done"})
    eventually(lambda: home.item(item).status == "completed", "its end")

    assert end_daemon(daemon, signal.SIGTERM) == 0

    assert [seen.name for seen in collector.wait(0)] == ["invoke_agent ada"]


def test_daemon_without_the_package_names_what_to_install(home: CliHome) -> None:
    configure(home, "http://127.0.0.1:4318")
    hidden = home.place / "hidden" / "opentelemetry"
    hidden.mkdir(parents=True)
    (hidden / "__init__.py").touch()

    done = subprocess.run(
        [COMMAND, "up"],
        env={**environment(home.path), "PYTHONPATH": str(hidden.parent)},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_SECONDS,
        check=False,
    )

    assert done.returncode == 2
    assert "telemetry.endpoint is set, but the package opentelemetry" in done.stderr
    assert 'pip install "steadyrun[otel]"' in done.stderr
    assert "Traceback" not in done.stderr
    assert not (home.path / "store.db").exists()


def test_unset_variable_of_a_header_is_reported_at_the_start(home: CliHome) -> None:
    configure(home, "http://127.0.0.1:4318", 'headers = { authorization = "Bearer ${TOKEN}" }')

    done = home.run("up")

    assert done.returncode == 2
    assert "telemetry.headers.authorization needs the environment variable TOKEN" in done.stderr


def test_opentelemetry_is_not_imported_by_the_daemon_modules() -> None:
    program = (
        "import sys, steadyrun.app.daemon, steadyrun.cli.commands.up\n"
        "import steadyrun.telemetry.exporter\n"
        "print([name for name in sys.modules if name.startswith('opentelemetry')])"
    )

    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )

    assert done.stdout == "[]\n"
