"""Tests the one turn of `codex exec --json`."""

from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from steadyrun.dialect import (
    RESUME_NOT_FOUND,
    LaunchRequest,
    ProcessExit,
    Turn,
    TurnBegan,
    TurnEnded,
)
from steadyrun.drivers.turn_tracker import TurnTracker
from steadyrun.lib.framing import Frame
from steadyrun.model import event as ev
from steadyrun.model.usage import Usage
from steadyrun.providers.codex.dialect import Codex
from tests.support.codex_lines import ONCE, Talk
from tests.support.dialect_talker import NOW, get_end, play

START: list[Any] = [{"type": "thread.started", "thread_id": "th1"}, {"type": "turn.started"}]
# What the program itself prints first when a conversation is gone on with.
RESUMED = (
    Codex(ONCE)
    .launch(LaunchRequest(Turn("t1", "x"), "/", directory="/d", resume="th1"))
    .files["prompt.first"]
)


def item(kind: str, how: str = "completed", name: str = "item_0", **fields: Any) -> Any:
    return {"type": f"item.{how}", "item": {"id": name, "type": kind, **fields}}


def said(words: str) -> Any:
    return item("agent_message", text=words)


def completed(given: int = 100, got: int = 20, cached: int = 30) -> Any:
    used = {"input_tokens": given, "cached_input_tokens": cached, "output_tokens": got}
    return {"type": "turn.completed", "usage": used}


def failed(message: Any = "sorry") -> Any:
    return {"type": "turn.failed", "error": {"message": message}}


def once(*lines: Any) -> Talk:
    talk = Talk(ONCE)
    talk.receive(*START, *lines)
    return talk


def test_exec_turn_is_open_from_the_start_and_ends_once() -> None:
    talk = Talk(ONCE)

    heard = talk.receive(*START, said("hi"), completed())

    assert heard[:2] == [ev.TokenBound("th1"), ev.TextFinal("hi")]
    assert TurnBegan not in map(type, heard)
    assert (get_end(heard).status, get_end(heard).text) == ("completed", "hi")
    assert get_end(heard).usage == Usage(70, 20, 30, 0)
    assert talk.dialect.on_exit(ProcessExit(0)) == []


def test_last_text_is_the_answer() -> None:
    assert get_end(once(said("a")).receive(said("b"), completed())).text == "b"


def test_usage_of_a_resumed_thread_is_unknown() -> None:
    talk = Talk(ONCE)

    heard = talk.receive(RESUMED, *START, said("hi"), completed())

    assert get_end(heard).usage is None
    assert ev.Note in map(type, heard)


def test_missing_thread_has_the_code_resume_not_found() -> None:
    talk = Talk(ONCE)
    talk.receive(RESUMED)

    end = get_end(
        talk.dialect.on_exit(ProcessExit(1, stderr="Error: no rollout found for thread id x"))
    )

    assert end.error
    assert end.error.code == RESUME_NOT_FOUND


def test_thread_started_instead_of_the_resumed_one_is_not_bound() -> None:
    """Codex begins another one if it gets an unknown one."""
    other = [{"type": "thread.started", "thread_id": "th2"}, {"type": "turn.started"}]
    talk = Talk(ONCE)

    said_ = talk.receive(RESUMED, *other, said("x"), completed())

    assert [type(each) for each in said_].count(TurnEnded) == 1
    assert TurnBegan not in map(type, said_)
    assert ev.TokenBound("th2") not in said_


def test_command_is_reported_as_a_tool() -> None:
    given: dict[str, Any] = {"command": "ls", "aggregated_output": "", "exit_code": None}

    heard = once().receive(
        item("command_execution", "started", **given, status="in_progress"),
        item("command_execution", **given | {"aggregated_output": "a", "exit_code": 3},
             status="failed"),
    )  # fmt: skip

    start, end = heard
    assert start == ev.ToolStarted("item_0", "commandExecution", {"command": "ls"})
    assert isinstance(end, ev.ToolFailed)
    assert (end.error, end.tool_output) == ("exit code 3", "a")


@pytest.mark.parametrize(
    ("kind", "fields", "name"),
    [
        ("file_change", {"changes": [{"path": "/a", "kind": "add"}]}, "fileChange"),
        ("mcp_tool_call", {"server": "s", "tool": "t", "arguments": {}}, "mcp__s__t"),
        ("web_search", {"query": "cats"}, "webSearch"),
        ("collab_tool_call", {"tool": "spawn_agent", "prompt": "x"}, "agent"),
    ],
)
def test_exec_tools_have_the_names_of_the_app_server(kind: str, fields: Any, name: str) -> None:
    start, end = once().receive(item(kind, **fields, status="completed"))

    assert isinstance(start, ev.ToolStarted)
    assert isinstance(end, ev.ToolCompleted)
    assert start.tool_name == end.tool_name == name


def test_thoughts_and_warnings_are_reported() -> None:
    heard = once().receive(
        item("reasoning", text="hm"), item("error", message="careful"),
        item("todo_list", "started", items=[]), item("todo_list", "updated", items=[]),
        item("todo_list", items=[]),
    )  # fmt: skip

    assert heard == [ev.ThinkingDelta("hm"), ev.Note("careful")]


def test_failed_turn_has_the_message_of_codex() -> None:
    talk = once()

    heard = talk.receive({"type": "error", "message": "Reconnecting... 1/5"}, said("x"), failed())

    assert heard[0] == ev.Note("Reconnecting... 1/5")
    end = get_end(heard)
    assert (end.status, end.text) == ("failed", "x")
    assert end.error
    assert (end.error.code, end.error.message, end.error.retryable) == (
        "provider_error", "sorry", True,
    )  # fmt: skip
    assert talk.dialect.on_exit(ProcessExit(1)) == []


LIMIT = {"type": "usage_limit_reached", "message": "no more", "resets_at": 1_900_000_000}


@pytest.mark.parametrize(
    ("message", "status", "code"),
    [
        ("exceeded retry limit, last status: 429 Too Many Requests, request id: x",
         "rate_limited", "rate_limited"),
        ("unexpected status 429 Too Many Requests: x, url: y", "rate_limited", "rate_limited"),
        ("unexpected status 401 Unauthorized: x, url: y", "failed", "auth"),
        ("unexpected status 402 Payment Required: x", "failed", "billing"),
        ("unexpected status 503 Service Unavailable: x", "failed", "overloaded"),
        ("exceeded retry limit, last status: 500 Internal Server Error", "failed", "server_error"),
        ('{"error": {"code": "context_length_exceeded"}}', "failed", "prompt_too_long"),
        ('{"error": {"code": "rate_limit_exceeded"}}', "rate_limited", "rate_limited"),
        ('{"error": {"type": "insufficient_quota"}}', "rate_limited", "rate_limited"),
        ("You\u2019ve hit your usage limit. Try again at Mar 17th, 2030 5:46 PM.",
         "failed", "provider_error"),
        ("Quota exceeded. Check your plan and billing details.", "failed", "provider_error"),
        ("it said: unexpected status 429 Too Many Requests", "failed", "provider_error"),
        ("unexpected status 4290", "failed", "provider_error"),
        ("429", "failed", "provider_error"),
        ("rate_limit_exceeded", "failed", "provider_error"),
    ],
)  # fmt: skip
def test_error_code_comes_from_the_status_number_and_not_from_words(
    message: str, status: str, code: str
) -> None:
    end = get_end(once().receive(failed(message)))

    assert end.status == status
    assert end.error
    assert (end.error.code, end.error.retry_at) == (code, None)


def test_reset_time_of_a_limit_is_reported() -> None:
    end = get_end(once().receive(failed(msgspec.json.encode({"error": LIMIT}).decode())))

    assert end.error
    assert (end.status, end.error.message) == ("rate_limited", "no more")
    assert end.error.retry_at == datetime.fromtimestamp(1_900_000_000, UTC)


@pytest.mark.parametrize("ends", [None, "soon", [], True, 1e300, -1e300])
def test_invalid_reset_time_is_not_reported(ends: Any) -> None:
    odd = msgspec.json.encode({"error": {**LIMIT, "resets_at": ends}}).decode()

    end = get_end(once().receive(failed(odd)))

    assert end.error
    assert (end.status, end.error.retry_at) == ("rate_limited", None)


def error(message: Any) -> Any:
    return {"type": "error", "message": message}


def test_last_error_before_the_exit_fails_the_turn() -> None:
    lines = [error("Reconnecting... 1/5"), error("fatal: something"), item("error", message="hm")]
    talk = once(*lines)

    end = get_end(talk.dialect.on_exit(ProcessExit(1, stderr="so be it")))

    assert (end.status, end.exit_code) == ("failed", 1)
    assert end.error
    assert (end.error.code, end.error.message) == ("provider_error", "fatal: something")
    assert end.diagnostic == ev.Diagnostic(1, "so be it")


def test_rate_limit_error_before_the_exit_is_rate_limited() -> None:
    talk = once(error("exceeded retry limit, last status: 429 Too Many Requests"))

    assert get_end(talk.dialect.on_exit(ProcessExit(1))).status == "rate_limited"


@pytest.mark.parametrize(
    ("lines", "last"),
    [
        ([error("Reconnecting... 1/5"), said("hi")], ProcessExit(1)),
        ([error("Reconnecting... 1/5")], ProcessExit(None, 9)),
        ([error("Reconnecting... 1/5")], ProcessExit(0)),
        ([error("Reconnecting... 1/5")], ProcessExit(1, reason="wall_timeout")),
        ([error(None)], ProcessExit(1)),
        ([error("")], ProcessExit(1)),
    ],
    ids=["got over", "killed", "well ended", "stopped", "silent", "empty"],
)
def test_error_that_did_not_cause_the_exit_is_not_reported(lines: Any, last: ProcessExit) -> None:
    assert once(*lines).dialect.on_exit(last) == []


def test_turn_without_a_model_call_fails() -> None:
    """What a hook has kept from the model ends so: nothing else is said."""
    end = get_end(once().receive(completed(0, 0, 0)))

    assert (end.status, end.text) == ("failed", None)
    assert end.error
    assert end.error.code == "no_answer"


def test_turn_without_text_or_without_usage_completes() -> None:
    assert get_end(once().receive(completed(1, 0, 0))).status == "completed"
    assert get_end(once().receive(said("hi"), completed(0, 0, 0))).status == "completed"
    thought = {"type": "item.completed", "item": {"id": "1", "type": "reasoning", "text": "hm"}}
    assert get_end(once().receive(thought, completed(0, 0, 0))).status == "completed"


@pytest.mark.parametrize("error", [None, 7, "x", [], {}, {"message": 7}])
def test_malformed_failure_still_fails_the_turn(error: Any) -> None:
    heard = once().receive({"type": "turn.failed", "error": error})

    end = get_end(heard)
    assert [type(each) for each in heard] == [ev.Unknown, TurnEnded]
    assert end.status == "failed"
    assert end.error
    assert end.error.message


@pytest.mark.parametrize(
    "usage", [None, 7, "x", [], {"input_tokens": "x"}, {"input_tokens": 10**30}, {}]
)
def test_turn_ends_with_any_reported_usage(usage: Any) -> None:
    turns = TurnTracker(Codex(ONCE))
    talk = once(said("x"))

    ends = play(turns, [*talk.log, *_frames(talk, {"type": "turn.completed", "usage": usage})])

    assert [type(each).__name__ for each in ends][-1] == "TurnEnded"
    turns.save()


def _frames(talk: Talk, line: Any) -> Any:
    return [Frame(msgspec.json.encode(line), talk.log[-1].end + 10)]


@pytest.mark.parametrize("line", [completed(), failed()])
def test_exec_turn_ends_only_once(line: Any) -> None:
    turns = TurnTracker(Codex(ONCE))
    talk = once(completed())

    told = play(turns, [*talk.log, *_frames(talk, line)])

    assert [type(each).__name__ for each in told].count("TurnEnded") == 1


@pytest.mark.parametrize(
    "line",
    [
        {"type": "news"},
        item("new_item"),
        item("new_item", "updated"),
        {"type": "item.updated"},
        {"type": "item.completed"},
        {"type": "item.completed", "item": {}},
        {"type": "item.completed", "item": {"type": 7}},
        {"type": "item.completed", "item": [1]},
        {"type": 7},
        {},
        b"[" * 100_000,
        b'{"type":"item.completed","item":' + b'{"a":' * 5000 + b"1" + b"}" * 5001,
        b'{"type":"error","message":"\xff"}',
        b"Reading additional input from stdin...",
    ],
)
def test_unreadable_line_is_kept(line: Any) -> None:
    raw = line if isinstance(line, bytes) else msgspec.json.encode(line)
    turns = TurnTracker(Codex(ONCE))
    play(turns, once().log)

    [told] = turns.on_received(Frame(raw, 1000), NOW)

    assert type(told).__name__ == "Emitted"
    assert isinstance(getattr(told, "event", None), ev.Unknown)
