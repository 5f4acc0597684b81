"""A simulated Messages server says what its script says, and goes wrong as its script says."""

import http.client
import json
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from steadyrun.testing.model_servers.anthropic import build_limit_headers
from steadyrun.testing.model_servers.content import (
    AnswerTokens,
    answer,
    call,
    make_text,
    make_thinking,
)
from steadyrun.testing.model_servers.faults import (
    Break,
    Cut,
    Fault,
    Hang,
    Refusal,
    StreamGate,
    refuse_rate_limit,
)
from steadyrun.testing.model_servers.model_server import MessagesServer
from steadyrun.testing.model_servers.protocol import ModelRequest, ServerStep
from steadyrun.testing.model_servers.script_json import read_script

PATIENCE_SECONDS = 30
HELLO = [{"role": "user", "content": "hello"}]
TOOLS = [{"name": "Bash", "input_schema": {"type": "object"}}]


def post(url: str, path: str = "/v1/messages?beta=true", **body: Any) -> http.client.HTTPResponse:
    body = {"model": "m", "messages": HELLO, "tools": TOOLS, "stream": True, **body}
    headers = {"content-type": "application/json", "x-api-key": "sk-secret", "X-Who": "me"}
    asked = urllib.request.Request(f"{url}{path}", json.dumps(body).encode(), headers)
    found: http.client.HTTPResponse = urllib.request.urlopen(asked, timeout=PATIENCE_SECONDS)
    return found


def streamed(url: str, **body: Any) -> list[dict[str, Any]]:
    with post(url, **body) as response:
        return list(events(response))


def whole(url: str, **body: Any) -> dict[str, Any]:
    with post(url, stream=False, **body) as response:
        found: dict[str, Any] = json.load(response)
        return found


def events(response: http.client.HTTPResponse) -> Iterator[dict[str, Any]]:
    for line in response:
        if line.startswith(b"data: "):
            yield json.loads(line[6:])


def refused(url: str, **body: Any) -> tuple[urllib.error.HTTPError, dict[str, Any]]:
    with pytest.raises(urllib.error.HTTPError) as caught:
        post(url, **body)
    with caught.value as error:
        return error, json.load(error)["error"]


def test_text_is_streamed_in_pieces() -> None:
    with MessagesServer(
        [answer(make_text("Hel", "lo"), tokens=AnswerTokens(3, 7, 2, 1))]
    ) as server:
        said = streamed(server.url)

    assert [event["type"] for event in said] == [
        "message_start",
        "ping",
        "content_block_start",
        "content_block_delta",
        "content_block_delta",
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]
    assert [event["delta"]["text"] for event in said[3:5]] == ["Hel", "lo"]
    assert said[0]["message"]["model"] == "m"
    assert said[0]["message"]["usage"]["output_tokens"] == 1
    assert said[6]["delta"]["stop_reason"] == "end_turn"
    assert said[6]["usage"] == {
        "input_tokens": 3,
        "output_tokens": 7,
        "cache_read_input_tokens": 2,
        "cache_creation_input_tokens": 1,
    }


def test_blocks_keep_their_order_and_calls_their_input() -> None:
    step = answer(
        make_thinking("hm"), "I look.", call("Bash", command="ls"), call("Read", path="a")
    )
    with MessagesServer([step]) as server:
        said = streamed(server.url)

    started = [each["content_block"] for each in said if each["type"] == "content_block_start"]
    assert [block["type"] for block in started] == ["thinking", "text", "tool_use", "tool_use"]
    assert [block.get("id") for block in started[2:]] == ["toolu_sim_0_2", "toolu_sim_0_3"]
    deltas = [event["delta"] for event in said if event.get("index") == 2 and "delta" in event]
    written = "".join(delta["partial_json"] for delta in deltas)
    assert json.loads(written) == {"command": "ls"}
    assert said[-2]["delta"]["stop_reason"] == "tool_use"
    assert any(event.get("delta", {}).get("type") == "signature_delta" for event in said)


def test_answer_without_a_stream_is_one_body() -> None:
    step = answer(make_text("Hel", "lo"), call("Bash", command="ls"), tokens=AnswerTokens(output=7))
    with MessagesServer([step]) as server:
        found = whole(server.url)

    assert found["content"] == [
        {"type": "text", "text": "Hello"},
        {"type": "tool_use", "id": "toolu_sim_0_1", "name": "Bash", "input": {"command": "ls"}},
    ]
    assert (found["stop_reason"], found["usage"]["output_tokens"]) == ("tool_use", 7)


@pytest.mark.parametrize(
    ("step", "status", "kind"),
    [
        (refuse_rate_limit(), 429, "rate_limit_error"),
        (Refusal("overloaded"), 529, "overloaded_error"),
        (Refusal("server"), 500, "api_error"),
        (Refusal("auth"), 401, "authentication_error"),
        (Refusal("too_long"), 400, "invalid_request_error"),
    ],
)
def test_refusal_has_the_status_and_format_of_the_api(
    step: Refusal, status: int, kind: str
) -> None:
    with MessagesServer([step, answer("again")]) as server:
        error, said = refused(server.url)

        assert (error.code, said["type"]) == (status, kind)
        assert whole(server.url)["content"][0]["text"] == "again"


def test_rate_limit_may_have_headers() -> None:
    limit = build_limit_headers("rejected", 1794785857, used=1.0)
    with MessagesServer(
        [refuse_rate_limit(retry_after=2, headers=limit), refuse_rate_limit()]
    ) as server:
        told, _ = refused(server.url)
        bare, _ = refused(server.url)

    assert told.headers["retry-after"] == "2"
    assert told.headers["anthropic-ratelimit-unified-status"] == "rejected"
    assert told.headers["anthropic-ratelimit-unified-5h-reset"] == "1794785857"
    assert bare.headers["retry-after"] is None


def test_answer_waits_at_its_gate() -> None:
    gate = StreamGate()
    with MessagesServer([answer(make_text("Hel", gate, "lo"))]) as server:
        with post(server.url) as response:
            said = events(response)
            while next(said)["type"] != "content_block_delta":
                pass
            gate.wait_until_reached()
            assert server.find_fate(0) == "open"
            gate.open()
            assert next(said)["delta"]["text"] == "lo"
            assert [event["type"] for event in said][-1] == "message_stop"
        server.wait_until(lambda: server.find_fate(0) == "answered")


def test_gate_may_be_a_file(tmp_path: Path) -> None:
    gate = StreamGate(tmp_path / "go")
    with MessagesServer([answer("late", held=gate)]) as server, ThreadPoolExecutor() as pool:
        found = pool.submit(whole, server.url)
        gate.wait_until_reached()
        assert (tmp_path / "go.reached").exists()
        (tmp_path / "go").touch()

        assert found.result(PATIENCE_SECONDS)["content"][0]["text"] == "late"


def test_closed_connection_of_a_hanging_request_is_noticed() -> None:
    hang = Hang()
    with MessagesServer([hang]) as server:
        connection = http.client.HTTPConnection(server.url.removeprefix("http://"))
        body = json.dumps({"messages": HELLO, "tools": TOOLS})
        connection.request("POST", "/v1/messages", body)
        hang.gate.wait_until_reached()
        connection.close()

        server.wait_until(lambda: server.find_fate(0) == "left")


def test_closed_server_ends_hanging_requests() -> None:
    hang = Hang()
    with ThreadPoolExecutor() as pool:
        with MessagesServer([hang]) as server:
            asked = pool.submit(post, server.url)
            hang.gate.wait_until_reached()

        assert isinstance(asked.exception(PATIENCE_SECONDS), OSError)


def test_cut_stream_ends_without_an_event() -> None:
    with MessagesServer([answer(make_text("Hel", Cut(), "lo"))]) as server:
        with post(server.url) as response, pytest.raises(http.client.IncompleteRead):
            response.read()

        server.wait_until(lambda: server.find_fate(0) == "cut")


@pytest.mark.parametrize("fault", ["overloaded", "server"])
def test_break_ends_the_stream_with_an_error_event(fault: Fault) -> None:
    with MessagesServer([answer(make_text("Hel", Break(fault), "lo"))]) as server:
        said = streamed(server.url)

    assert [event["type"] for event in said][-2:] == ["content_block_delta", "error"]


def test_script_function_answers_by_the_request() -> None:
    def step(ask: ModelRequest) -> ServerStep:
        if ask.results:
            return answer(f"it printed {ask.results[0]['content']}")
        return answer(call("Bash", command=ask.user_text))

    result = {"type": "tool_result", "tool_use_id": "t", "content": "a b"}
    later = [*HELLO, {"role": "assistant", "content": "x"}, {"role": "user", "content": [result]}]
    with MessagesServer(step) as server:
        first = whole(server.url)
        second = whole(server.url, messages=later)

    assert first["content"][0]["input"] == {"command": "hello"}
    assert second["content"][0]["text"] == "it printed a b"


def test_side_requests_use_no_step() -> None:
    title = {"format": {"type": "json_schema", "schema": {}}}
    with MessagesServer([answer("main"), answer("bare")]) as server:
        streamed(server.url, tools=[], output_config=title, thinking={"type": "disabled"})
        whole(server.url, tools=[], max_tokens=1)
        with post(server.url, "/v1/messages/count_tokens") as counted:
            assert json.load(counted)["input_tokens"] > 0
        urllib.request.urlopen(urllib.request.Request(server.url, method="HEAD")).close()

        assert whole(server.url)["content"][0]["text"] == "main"
        assert streamed(server.url, tools=[])[3]["delta"]["text"] == "bare"
        assert (len(server.main_requests), len(server.side_requests)) == (2, 3)
        assert [request.method for request in server.requests].count("HEAD") == 1


def test_log_has_the_request_without_the_key(tmp_path: Path) -> None:
    with MessagesServer([answer("x")], log=tmp_path / "log") as server:
        streamed(server.url)
        [request] = server.requests

    [line] = (tmp_path / "log").read_text().splitlines()
    assert json.loads(line)["body"]["messages"] == HELLO == request.body["messages"]
    assert request.headers["x-who"] == "me"
    assert "sk-secret" not in line


def test_request_after_the_last_step_is_refused() -> None:
    with MessagesServer([answer("only"), answer("never")]) as server:
        whole(server.url)
        assert server.script.unused == 1
        whole(server.url)
        _, said = refused(server.url)

    assert said["message"] == "the script has no step number 3"


def test_fallback_answers_after_the_last_step() -> None:
    with MessagesServer([], fallback=answer("more")) as server:
        assert [whole(server.url)["content"][0]["text"] for _ in range(2)] == ["more", "more"]


def test_error_of_a_script_function_is_raised_in_the_test() -> None:
    def step(ask: ModelRequest) -> ServerStep:
        raise AssertionError(f"the model was asked {ask.user_text}")

    with pytest.raises(AssertionError, match="asked hello"), MessagesServer(step) as server:
        refused(server.url)


def test_server_runs_as_a_separate_process(tmp_path: Path) -> None:
    script, log = tmp_path / "script.json", tmp_path / "log"
    script.write_text(
        json.dumps(
            [
                {"answer": ["hi", {"call": "Bash", "input": {"command": "ls"}}], "stop": "pause"},
                {"refuse": "rate_limit", "headers": {"retry-after": "1"}},
                {"answer": [{"text": ["a", {"gate": str(tmp_path / "go")}, {"break": "server"}]}]},
                {"answer": [{"thinking": ["hm", {"cut": True}]}]},
            ]
        )
    )
    argv = [sys.executable, "-m", "steadyrun.testing.model_servers", str(script), "--log", str(log)]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        url = child.stdout.readline().strip()
        (tmp_path / "go").touch()

        assert whole(url)["stop_reason"] == "pause"
        assert refused(url)[0].headers["retry-after"] == "1"
        assert streamed(url)[-1]["type"] == "error"
        with pytest.raises(http.client.IncompleteRead):
            post(url).read()
        child.communicate(timeout=PATIENCE_SECONDS)

    assert (child.returncode, len(log.read_text().splitlines())) == (0, 4)


def test_script_with_an_unknown_step_is_refused(tmp_path: Path) -> None:
    (tmp_path / "script.json").write_text('[{"say": "hi"}]')

    with pytest.raises(ValueError, match="a step is an answer, refuse or hang"):
        read_script(tmp_path / "script.json")
