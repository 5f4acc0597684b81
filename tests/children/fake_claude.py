"""A program with the stream-json protocol of Claude Code. It plays the steps in its prompt.

    fake_claude.py [--resume TOKEN | --session-id TOKEN] …

A prompt is a list of steps behind `play:`, or anything: then it is repeated. What it remembers of a
conversation lies in its HOME. Other options are read over. It runs alone: `python -I -S`.
"""

import json
import sys
import uuid
from pathlib import Path
from typing import Any

# -I leaves everything of ours out of the path.
sys.path.append(str(Path(__file__).parents[2]))

from tests.children.fake_player import Frame, Interrupted, Player, say, steps_of

USAGE = {
    "input_tokens": 10,
    "output_tokens": 5,
    "cache_read_input_tokens": 0,
    "cache_creation_input_tokens": 0,
}
MODEL = "claude-fake-1"
PRICE = 0.001


class Cli(Player):
    """Plays the Claude CLI: one process with its input and its conversation.

    `main` plays the queued messages as turns, one at a time, until stdin is closed and the queue is
    empty. The conversation is kept in a file, so that a later process can resume it.
    """

    def __init__(self, argv: list[str]) -> None:
        super().__init__()
        self.flags = dict(zip(argv, [*argv[1:], ""], strict=True))
        asked = self.flags.get("--resume") or self.flags.get("--session-id")
        self.token = asked or str(uuid.uuid4())
        # A CLI reads its own environment.
        self.file = Path.home() / ".claude" / f"{self.token}.json"
        self.turns = 0
        self.queue: list[Frame] = []
        self.answers: dict[str, Frame] = {}

    def main(self) -> int:
        if "--resume" in self.flags and not self.file.exists():
            say(type="result", subtype="error_during_execution", is_error=True, num_turns=0,
                session_id=self.token, total_cost_usd=0, usage=USAGE, modelUsage={},
                errors=["No conversation found"], permission_denials=[])  # fmt: skip
            return 1
        self.memory = json.loads(self.file.read_text()) if self.file.exists() else []
        while self.is_open or self.queue:
            if not self.queue:
                self.listen(None)
                continue
            said, self.queue = self.queue, []
            self.play(said)
        return 0

    # -- hearing

    def take(self, told: Frame) -> None:
        match told["type"]:
            case "user":
                self.queue.append(told)
            case "control_request":
                self.control(told["request_id"], told["request"])
            case "control_response":
                self.answers[told["response"]["request_id"]] = told["response"]["response"]
            case _:
                pass

    def control(self, request_id: str, request: Frame) -> None:
        answer: Frame = {}
        match request["subtype"]:
            case "interrupt":
                self.wants_end = True
            case "cancel_async_message":
                before = len(self.queue)
                name = request["message_uuid"]
                self.queue = [each for each in self.queue if each.get("uuid") != name]
                answer = {"cancelled": len(self.queue) < before}
            case _:
                pass
        response = {"subtype": "success", "request_id": request_id, "response": answer}
        say(type="control_response", response=response)

    # -- playing

    def play(self, said: list[Frame]) -> None:
        """One turn for everything that has been said; all but the last are echoed before it."""
        for each in said[:-1]:
            self.echo(each)
        say(type="system", subtype="init", session_id=self.token, model=MODEL, tools=["Bash"],
            permissionMode=self.flags.get("--permission-mode", "default"), mcp_servers=[],
            apiKeySource="ANTHROPIC_API_KEY", claude_code_version="2.1.197",
            cwd=str(Path.cwd()))  # fmt: skip
        self.echo(said[-1])
        self.turns += 1
        self.text, self.wants_end, reason = "", False, "completed"
        try:
            for each in said:
                for step in steps_of(text_of(each)):
                    self.do(step)
                    self.listen(0)
                    self.check()
        except Interrupted:
            say_user([{"type": "text", "text": "[Request interrupted by user]"}])
            reason = "aborted_streaming"
        self.file.parent.mkdir(parents=True, exist_ok=True)
        self.file.write_text(json.dumps(self.memory))
        self.end(reason)

    def end(self, reason: str) -> None:
        cost = self.turns * PRICE
        about: Frame = {"session_id": self.token, "num_turns": 1, "duration_ms": 1,
                 "duration_api_ms": 1,
                 "total_cost_usd": cost, "usage": USAGE, "permission_denials": [],
                 "terminal_reason": reason, "stop_reason": "end_turn", "uuid": str(uuid.uuid4()),
                 "modelUsage": {MODEL: {
                     "inputTokens": 10 * self.turns, "outputTokens": 5 * self.turns,
                     "cacheReadInputTokens": 0, "cacheCreationInputTokens": 0,
                     "costUSD": cost, "contextWindow": 200000}}}  # fmt: skip
        if reason == "completed":
            say(type="result", subtype="success", is_error=False, result=self.text,
                api_error_status=None, **about)  # fmt: skip
        else:
            say(type="result", subtype="error_during_execution", is_error=True,
                errors=["[ede_diagnostic] x"], **about)  # fmt: skip

    def echo(self, told: Frame) -> None:
        if "uuid" in told:
            say(type="user", message=told["message"], uuid=told["uuid"], session_id=self.token,
                isReplay=True, parent_tool_use_id=None)  # fmt: skip

    def do_text(self, text: str) -> None:
        self.text = text
        self.assistant({"type": "text", "text": text})

    def do_delta(self, pieces: list[str]) -> None:
        say_stream({"type": "message_start", "message": {"id": "msg_d", "usage": USAGE}})
        for piece in pieces:
            delta = {"type": "text_delta", "text": piece}
            say_stream({"type": "content_block_delta", "index": 0, "delta": delta})
            self.listen(0.005)
        self.do_text("".join(pieces))

    def do_thinking(self, text: str) -> None:
        self.assistant({"type": "thinking", "thinking": text, "signature": "x"})

    def do_tool(self, given: Frame) -> None:
        call, wanted = f"toolu_{uuid.uuid4().hex}", given.get("input", {})
        self.assistant({"type": "tool_use", "id": call, "name": given["name"], "input": wanted})
        if not given.get("leave_open"):
            say_result(call, given.get("output", "ok"), is_error=False)

    def do_ask(self, given: Frame) -> None:
        call, request = f"toolu_{uuid.uuid4().hex}", str(uuid.uuid4())
        wanted = given.get("input", {})
        self.assistant({"type": "tool_use", "id": call, "name": given["name"], "input": wanted})
        say(type="control_request", request_id=request,
            request={"subtype": "can_use_tool", "tool_name": given["name"], "input": wanted,
                     "tool_use_id": call, "permission_suggestions": []})  # fmt: skip
        try:
            self.wait(lambda: request in self.answers)
        except Interrupted:
            say(type="control_cancel_request", request_id=request)
            say_result(call, "The user doesn't want to proceed", is_error=True)
            raise
        answer = self.answers[request]
        if answer["behavior"] == "allow":
            say_result(call, "done", is_error=False)
        else:
            say_result(call, answer["message"], is_error=True)
            if answer.get("interrupt"):
                raise Interrupted

    def assistant(self, block: Frame) -> None:
        message = {"id": f"msg_{uuid.uuid4().hex}", "role": "assistant", "model": MODEL,
                   "content": [block], "stop_reason": None, "usage": USAGE}  # fmt: skip
        say(type="assistant", message=message, parent_tool_use_id=None, session_id=self.token,
            uuid=str(uuid.uuid4()))  # fmt: skip


def text_of(told: Frame) -> str:
    content = told["message"]["content"]
    return str(content if isinstance(content, str) else content[0]["text"])


def say_user(content: list[Frame]) -> None:
    say(type="user", message={"role": "user", "content": content}, parent_tool_use_id=None,
        uuid=str(uuid.uuid4()))  # fmt: skip


def say_result(call: str, text: Any, *, is_error: bool) -> None:
    say_user([{"type": "tool_result", "tool_use_id": call, "content": text, "is_error": is_error}])


def say_stream(event: Frame) -> None:
    say(type="stream_event", event=event, parent_tool_use_id=None, uuid=str(uuid.uuid4()))


if __name__ == "__main__":
    sys.exit(Cli(sys.argv[1:]).main())
