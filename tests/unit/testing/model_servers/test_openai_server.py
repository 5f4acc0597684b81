"""Simulated OpenAI servers say what a script says, and go wrong as it says, each on its wire."""

import http.client
import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from steadyrun.testing.model_servers.content import (
    AnswerTokens,
    CallBlock,
    answer,
    call,
    make_raw,
    make_text,
    make_thinking,
)
from steadyrun.testing.model_servers.faults import (
    Break,
    Cut,
    Refusal,
    StreamGate,
    refuse_rate_limit,
    refuse_usage_limit,
)
from steadyrun.testing.model_servers.model_server import (
    AllApisServer,
    ChatServer,
    ModelServer,
    ResponsesServer,
)
from steadyrun.testing.model_servers.openai_common import build_codex_limit_headers
from steadyrun.testing.model_servers.protocol import ModelRequest, ServerStep
from steadyrun.testing.model_servers.script_json import read_script

PATIENCE_SECONDS = 30
RESPONSES, CHAT = "/v1/responses", "/v1/chat/completions"
HELLO = [{"role": "user", "content": "hello"}]
WIRES = [(ResponsesServer, RESPONSES), (ChatServer, CHAT)]
both = pytest.mark.parametrize(("kind", "path"), WIRES, ids=["responses", "chat"])


def post(url: str, path: str, **body: Any) -> http.client.HTTPResponse:
    said = {"input": HELLO} if path == RESPONSES else {"messages": HELLO}
    written = json.dumps({"model": "m", "stream": True, **said, **body}).encode()
    headers = {"authorization": "Bearer sk-secret", "content-type": "application/json"}
    asked = urllib.request.Request(f"{url}{path}", written, headers)
    found: http.client.HTTPResponse = urllib.request.urlopen(asked, timeout=PATIENCE_SECONDS)
    return found


def streamed(url: str, path: str, **body: Any) -> list[dict[str, Any]]:
    with post(url, path, **body) as response:
        return list(events(response))


def events(response: http.client.HTTPResponse) -> Iterator[dict[str, Any]]:
    for line in response:
        if line.startswith(b"data: {"):
            yield json.loads(line[6:])


def whole(url: str, path: str, **body: Any) -> dict[str, Any]:
    with post(url, path, stream=False, **body) as response:
        found: dict[str, Any] = json.load(response)
        return found


def refused(url: str, path: str) -> tuple[urllib.error.HTTPError, dict[str, Any]]:
    with pytest.raises(urllib.error.HTTPError) as caught:
        post(url, path)
    with caught.value as error:
        return error, json.load(error)["error"]


def items_done(said: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [event["item"] for event in said if event["type"] == "response.output_item.done"]


def deltas(said: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [event["choices"][0]["delta"] for event in said if event.get("choices")]


def test_response_is_streamed_in_pieces() -> None:
    step = answer(
        make_text("Hel", "lo", phase="commentary"), tokens=AnswerTokens(3, 7, 2, 1, reasoning=4)
    )
    with ResponsesServer([step]) as server:
        said = streamed(server.url, RESPONSES)

    assert [event["type"].removeprefix("response.") for event in said] == [
        "created",
        "in_progress",
        "output_item.added",
        "content_part.added",
        "output_text.delta",
        "output_text.delta",
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "completed",
    ]
    assert [event["delta"] for event in said[4:6]] == ["Hel", "lo"]
    assert said[2]["item"]["content"] == []
    [item] = items_done(said)
    assert (item["content"][0]["text"], item["phase"]) == ("Hello", "commentary")
    assert said[-1]["response"]["output"] == [item]
    assert said[-1]["response"]["usage"] == {
        "input_tokens": 6,
        "input_tokens_details": {"cached_tokens": 2, "cache_write_tokens": 1},
        "output_tokens": 7,
        "output_tokens_details": {"reasoning_tokens": 4},
        "total_tokens": 13,
    }


def test_items_of_a_response_keep_their_order_and_calls_their_input() -> None:
    search = {"type": "web_search_call", "id": "ws_1", "status": "completed"}
    step = answer(
        make_thinking("hm"),
        call("exec_command", cmd="ls"),
        call("exec", "make_text(1)"),
        CallBlock("echo", {"a": 1}, id="mine", namespace="mcp__sim"),
        make_raw(**search),
    )
    with ResponsesServer([step]) as server:
        said = streamed(server.url, RESPONSES)

    thought, function, custom, named, searched = items_done(said)
    assert thought["summary"] == [{"type": "summary_text", "text": "hm"}]
    assert (function["call_id"], json.loads(function["arguments"])) == (
        "call_sim_0_1",
        {"cmd": "ls"},
    )
    assert (custom["type"], custom["input"]) == ("custom_tool_call", "make_text(1)")
    assert (named["call_id"], named["namespace"]) == ("mine", "mcp__sim")
    assert searched == search
    kinds = [event["type"] for event in said]
    assert kinds.count("response.reasoning_summary_text.delta") == 1
    assert kinds.count("response.function_call_arguments.delta") == 4


def test_response_that_stops_early_is_incomplete() -> None:
    with ResponsesServer([answer("Hel", stop="max_output_tokens")]) as server:
        last = streamed(server.url, RESPONSES)[-1]

    assert last["type"] == "response.incomplete"
    assert last["response"]["incomplete_details"] == {"reason": "max_output_tokens"}


def test_completion_is_streamed_in_pieces() -> None:
    step = answer(
        make_thinking("hm"),
        make_text("Hel", "lo"),
        call("look", at="x"),
        call("say", "hi"),
        make_raw(extra=1),
    )
    with ChatServer([step]) as server:
        said = streamed(server.url, CHAT, stream_options={"include_usage": True})

    first, thought, hel, lo, *called = deltas(said)[:-1]
    assert (first["role"], thought["reasoning_content"]) == ("assistant", "hm")
    assert hel["content"] + lo["content"] == "Hello"
    calls = [delta["tool_calls"][0] for delta in called[:-1]]
    assert [each["index"] for each in calls] == [0, 0, 0, 1, 1, 1]
    written = "".join(each["function"]["arguments"] for each in calls[:3])
    assert json.loads(written) == {"at": "x"}
    assert "".join(each["custom"]["input"] for each in calls[3:]) == "hi"
    assert called[-1] == {"extra": 1}
    assert said[-2]["choices"][0]["finish_reason"] == "tool_calls"
    assert said[-1]["usage"]["total_tokens"] == 15


def test_completion_has_its_usage_only_on_request() -> None:
    with ChatServer([answer("x")]) as server, post(server.url, CHAT) as response:
        body = response.read()

    assert b'"usage"' not in body
    assert body.endswith(b"data: [DONE]\n\n")


def test_answer_without_a_stream_is_one_body() -> None:
    step = answer(
        make_thinking("hm"), make_text("Hel", "lo"), call("look", at="x"), make_raw(type="more")
    )
    with AllApisServer([step, step]) as server:
        response = whole(server.url, RESPONSES)
        message = whole(server.url, CHAT)["choices"][0]["message"]

    assert [item["type"] for item in response["output"]] == [
        "reasoning",
        "message",
        "function_call",
        "more",
    ]
    assert (message["content"], message["reasoning_content"]) == ("Hello", "hm")
    assert message["tool_calls"][0]["function"]["name"] == "look"
    assert message["type"] == "more"


@both
@pytest.mark.parametrize(
    ("step", "status", "code"),
    [
        (refuse_rate_limit(), 429, "rate_limit_exceeded"),
        (refuse_usage_limit(), 429, None),
        (Refusal("no_credit"), 429, "insufficient_quota"),
        (Refusal("overloaded"), 503, "server_is_overloaded"),
        (Refusal("server"), 500, "server_error"),
        (Refusal("auth"), 401, "invalid_api_key"),
        (Refusal("not_found"), 404, "model_not_found"),
        (Refusal("too_long"), 400, "context_length_exceeded"),
    ],
)
def test_refusal_has_the_status_and_format_of_the_api(
    kind: type[ModelServer], path: str, step: Refusal, status: int, code: str | None
) -> None:
    with kind([step]) as server:
        error, said = refused(server.url, path)

    assert (error.code, said["code"]) == (status, code)


def test_limit_states_its_reset_time() -> None:
    limit = build_codex_limit_headers(100, 1794830000)
    script = [
        refuse_usage_limit(limit, resets_at=1794830000, plan_type="plus"),
        refuse_rate_limit(2),
    ]
    with ResponsesServer(script) as server:
        used_up, said = refused(server.url, RESPONSES)
        wait, _ = refused(server.url, RESPONSES)

    assert (said["type"], said["resets_at"]) == ("usage_limit_reached", 1794830000)
    assert used_up.headers["x-codex-primary-used-percent"] == "100"
    assert used_up.headers["x-codex-primary-reset-at"] == "1794830000"
    assert wait.headers["retry-after"] == "2"


def test_break_ends_the_stream_with_the_error_of_the_api() -> None:
    step = answer(make_text("Hel", Break(), "lo"))
    with AllApisServer([step, step]) as server:
        failed = streamed(server.url, RESPONSES)[-1]
        error = streamed(server.url, CHAT)[-1]

    assert failed["type"] == "response.failed"
    assert failed["response"]["error"]["code"] == "server_is_overloaded"
    assert error["error"]["code"] == "server_is_overloaded"


@both
def test_cut_stream_ends_without_an_event_after_its_gate(
    kind: type[ModelServer], path: str
) -> None:
    gate = StreamGate()
    with kind([answer(make_text("Hel", gate, Cut(), "lo"))]) as server:
        with post(server.url, path) as response:
            gate.wait_until_reached()
            assert server.find_fate(0) == "open"
            gate.open()
            with pytest.raises(http.client.IncompleteRead):
                response.read()
        server.wait_until(lambda: server.find_fate(0) == "cut")


def step_by_news(ask: ModelRequest) -> ServerStep:
    return answer(f"it printed {ask.outputs[0]}" if ask.outputs else f"you said {ask.user_text}")


def test_script_function_reads_the_request_of_every_api() -> None:
    called = {"type": "function_call", "call_id": "c", "name": "look", "arguments": "{}"}
    result = {"type": "function_call_output", "call_id": "c", "output": "a b"}
    reminded = [{"role": "user", "content": "<environment_context>x"}, *HELLO]
    spoken: dict[str, Any] = {"role": "assistant", "content": None, "tool_calls": []}
    returned = {"role": "tool", "tool_call_id": "c", "content": [{"type": "text", "text": "a b"}]}
    with AllApisServer(step_by_news) as server:
        streamed(server.url, RESPONSES, input=reminded)
        streamed(server.url, RESPONSES, input="hello")
        streamed(server.url, RESPONSES, input=[*HELLO, called, result])
        streamed(server.url, CHAT)
        streamed(server.url, CHAT, messages=[*HELLO, spoken, returned])
        asks = server.main_requests

    assert [(ask.user_text, ask.outputs) for ask in asks] == [
        ("hello", ()),
        ("hello", ()),
        ("", ("a b",)),
        ("hello", ()),
        ("", ("a b",)),
    ]
    assert asks[2].results == (result,)
    assert asks[4].results == (returned,)


def test_tools_are_listed_by_name_in_every_format() -> None:
    inner = [{"type": "custom", "name": "exec"}]
    brought = {"type": "additional_tools", "tools": [{"type": "namespace", "tools": inner}]}
    tools = [{"type": "function", "name": "look"}, {"type": "web_search"}]
    function = {"type": "function", "function": {"name": "look"}}
    with AllApisServer([], fallback=answer("x")) as server:
        streamed(server.url, RESPONSES, tools=tools, input=[brought, *HELLO])
        streamed(server.url, CHAT, tools=[function])
        responses, chat = server.main_requests

    assert {"look", "web_search", "exec"} <= set(responses.tools)
    assert chat.tools == ("look",)


def test_side_requests_of_codex_use_no_step() -> None:
    with ResponsesServer([answer("main")]) as server:
        for kind in ("memory", "turn"):
            told = json.dumps({"request_kind": kind})
            headers = {"x-codex-turn-metadata": told}
            body = json.dumps({"input": HELLO}).encode()
            asked = urllib.request.Request(f"{server.url}{RESPONSES}", body, headers)
            urllib.request.urlopen(asked, timeout=PATIENCE_SECONDS).close()
        with urllib.request.urlopen(f"{server.url}/v1/models?x=1") as listed:
            assert json.load(listed)["data"] == []

        assert (len(server.main_requests), len(server.side_requests)) == (1, 1)
        assert server.script.unused == 0


def test_websocket_upgrade_is_refused() -> None:
    with ResponsesServer([]) as server:
        asked = urllib.request.Request(f"{server.url}{RESPONSES}", headers={"Upgrade": "websocket"})
        with pytest.raises(urllib.error.HTTPError) as caught:
            urllib.request.urlopen(asked, timeout=PATIENCE_SECONDS)
    caught.value.close()

    assert caught.value.code == 426


def test_one_script_answers_on_every_api_and_the_log_has_no_key(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with AllApisServer([answer("one"), answer("two"), answer("three")], log=log) as server:
        first = whole(server.url, RESPONSES)["output"][0]["content"][0]["text"]
        second = whole(server.url, CHAT)["choices"][0]["message"]["content"]
        third = whole(server.url, "/v1/messages", tools=[{"name": "x"}])["content"][0]["text"]
        with pytest.raises(urllib.error.HTTPError) as caught:
            post(server.url, "/v1/unknown")
        caught.value.close()

    assert (first, second, third) == ("one", "two", "three")
    assert caught.value.code == 404
    assert "sk-secret" not in log.read_text()


def test_json_script_supports_the_fields_of_openai(tmp_path: Path) -> None:
    written = [
        {"answer": [{"text": ["a"], "phase": "final_answer"}, {"raw": {"type": "x"}}]},
        {"answer": [{"call": "exec", "input": "1", "namespace": "n"}]},
        {"refuse": "usage_limit", "detail": {"resets_at": 5}},
    ]
    (tmp_path / "script.json").write_text(json.dumps(written))

    assert read_script(tmp_path / "script.json") == [
        answer(make_text("a", phase="final_answer"), make_raw(type="x")),
        answer(CallBlock("exec", "1", namespace="n")),
        refuse_usage_limit(resets_at=5),
    ]
