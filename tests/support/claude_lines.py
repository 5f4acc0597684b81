"""Lines as Claude Code prints them, and a driver that sends them to its Dialect in order."""

from collections.abc import Mapping
from typing import Any

from steadyrun.dialect import LaunchRequest, Turn
from steadyrun.providers.claude.dialect import Claude
from steadyrun.providers.claude.launch import ClaudeOptions, to_uuid
from tests.support.dialect_talker import Line, Talker, get_end, told

__all__ = ["Line", "get_end", "told"]
T1 = to_uuid("t1")
REQUEST = LaunchRequest(Turn("t1", "hello"), "/")


class Talk(Talker[Claude]):
    """A driver of Claude Code."""

    def __init__(self, options: ClaudeOptions | None = None) -> None:
        super().__init__(Claude(options))


def ready() -> Talk:
    """A driver after the handshake."""
    talk = Talk()
    talk.send(*talk.dialect.open(REQUEST))
    talk.receive(reply("open"))
    return talk


def working() -> Talk:
    """One with the turn t1 open, and its first words of the turn printed."""
    talk = ready()
    talk.turn()
    talk.receive(state("running"), init())
    return talk


def system(subtype: str, **fields: Any) -> Line:
    return {"type": "system", "subtype": subtype, "session_id": "s1", "uuid": "own", **fields}


def init(session: str = "s1", model: str = "m1", **fields: Any) -> Line:
    mode = {"permissionMode": "default"}
    return system("init", model=model, tools=["Bash"], **{**mode, **fields, "session_id": session})


def state(name: str) -> Line:
    return system("session_state_changed", state=name)


def assistant(*blocks: Mapping[str, Any], parent: str | None = None, **fields: Any) -> Line:
    message = {"id": "msg1", "model": "m1", "role": "assistant", "content": blocks}
    return {"type": "assistant", "message": message, "parent_tool_use_id": parent, **fields}


def text(words: str, **fields: Any) -> Line:
    return assistant({"type": "text", "text": words}, **fields)


def tool(call: str = "c1", name: str = "Bash", given: Any = None, **fields: Any) -> Line:
    block = {"type": "tool_use", "id": call, "name": name, "input": given or {"command": "ls"}}
    return assistant(block, **fields)


def user(*blocks: Mapping[str, Any], parent: str | None = None, **fields: Any) -> Line:
    message = {"role": "user", "content": blocks}
    return {"type": "user", "message": message, "parent_tool_use_id": parent, **fields}


def tool_result(call: str = "c1", content: Any = "done", **fields: Any) -> Line:
    block = {"type": "tool_result", "tool_use_id": call, "content": content}
    about = {name: fields.pop(name) for name in ("is_error",) if name in fields}
    return user({**block, **about}, **fields)


def echo(uuid: str, *texts: str) -> Line:
    return user(*({"type": "text", "text": each} for each in texts), uuid=uuid, isReplay=True)


def stream(kind: str, parent: str | None = None, **fields: Any) -> Line:
    return {"type": "stream_event", "event": {"type": kind, **fields}, "parent_tool_use_id": parent}


def delta(words: str, **fields: Any) -> Line:
    return stream("content_block_delta", delta={"type": "text_delta", "text": words}, **fields)


def result(words: str | None = "done", **fields: Any) -> Line:
    usual = {"subtype": "success", "is_error": False, "num_turns": 1, "session_id": "s1"}
    said = {"terminal_reason": "completed", "total_cost_usd": 0.0, "modelUsage": {}}
    return {"type": "result", **usual, **said, "result": words, **fields}


def used(model: str = "m1", **tokens: int) -> dict[str, Any]:
    """What `modelUsage` holds for one model."""
    none = {"inputTokens": 0, "outputTokens": 0}
    cache = {"cacheReadInputTokens": 0, "cacheCreationInputTokens": 0}
    return {model: {**none, **cache, "contextWindow": 200000, **tokens}}


def aborted(**fields: Any) -> Line:
    how = {"subtype": "error_during_execution", "is_error": True, "errors": ["[ede_diagnostic] x"]}
    return result(None, **{**how, "terminal_reason": "aborted_streaming", **fields})


def ask(request: str = "q1", call: str = "c1", **fields: Any) -> Line:
    asked = {"subtype": "can_use_tool", "tool_name": "Bash", "tool_use_id": call}
    given = {"input": {"command": "ls"}, **fields}
    return {"type": "control_request", "request_id": request, "request": {**asked, **given}}


def reply(request: str, response: Any = None, error: str | None = None) -> Line:
    answer = {"subtype": "error", "error": error} if error else {"subtype": "success"}
    said = {**answer, "request_id": request, "response": response}
    return {"type": "control_response", "response": said}
