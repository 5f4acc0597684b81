"""Lines as Codex prints them, and a driver that sends them to its Dialect in order."""

from typing import Any

from steadyrun.dialect import DialectOutput, LaunchRequest, Turn
from steadyrun.providers.codex.dialect import Codex
from steadyrun.providers.codex.launch import CodexOptions
from tests.support.dialect_talker import Line, Talker

REQUEST = LaunchRequest(Turn("t1", "hello"), "/")
AGAIN = LaunchRequest(Turn("t1", "hello"), "/", resume="th1")
ONCE = CodexOptions(one_shot=True)


class Talk(Talker[Codex]):
    """A driver of Codex."""

    def __init__(self, options: CodexOptions | None = None) -> None:
        super().__init__(Codex(options))


def make_greeted(request: LaunchRequest = REQUEST, *answers: Line) -> Talk:
    """A driver after the handshake request, with this reply."""
    talk = Talk()
    talk.send(*talk.dialect.open(request))
    talk.receive(*answers)
    return talk


def ready(request: LaunchRequest = REQUEST) -> Talk:
    """A driver after the handshake; its thread is th1, its model m1."""
    return make_greeted(request, reply("open"), opened())


def working(turn: str = "turn1") -> Talk:
    """One with the turn t1 open, which Codex calls turn1."""
    talk = ready()
    talk.turn()
    talk.receive(reply("begin:t1", turn={"id": turn}), started(turn), user("t1"))
    return talk


# -- replies, and notifications of the turn


def reply(request: str, /, **result: Any) -> Line:
    return {"id": request, "result": result}


def refusal(request: str, message: str = "no", code: int = -32600, **more: Any) -> Line:
    return {"error": {"code": code, "message": message, **more}, "id": request}


def opened(thread: str = "th1", model: str = "m1", mode: str = "default") -> Line:
    return reply(f"thread:{mode}", thread={"id": thread}, model=model)


def make_notification(method: str, **params: Any) -> Line:
    return {"method": method, "params": {"threadId": "th1", **params}, "emittedAtMs": 1}


def started(turn: str = "turn1", **more: Any) -> Line:
    return make_notification("turn/started", turn={"id": turn, "status": "inProgress"}, **more)


def completed(
    words: str | None = None, *, turn: str = "turn1", thread: str = "th1", **fields: Any
) -> Line:
    items = [] if words is None else [{"type": "agentMessage", "id": "m0", "text": words}]
    body = {"id": turn, "status": "completed", "items": items, **fields}
    return make_notification("turn/completed", turn=body, threadId=thread)


def interrupted(turn: str = "turn1") -> Line:
    return completed(turn=turn, status="interrupted")


def failed(info: Any = None, message: str = "sorry", turn: str = "turn1") -> Line:
    error = {"message": message, "codexErrorInfo": info, "additionalDetails": None}
    return completed(turn=turn, status="failed", error=error)


def error(info: Any = None, *, will_retry: bool = True, turn: str = "turn1") -> Line:
    said = {"message": "sorry", "codexErrorInfo": info}
    return make_notification("error", error=said, willRetry=will_retry, turnId=turn)


def hook(status: str, *words: str, event: str = "userPromptSubmit", turn: str = "turn1") -> Line:
    entries = [{"kind": "feedback", "text": each} for each in words]
    run = {"id": "h1", "eventName": event, "status": status, "entries": entries}
    return make_notification("hook/completed", run=run, turnId=turn)


# -- its steps


def begun(kind: str, item: str = "i1", /, turn: str = "turn1", **fields: Any) -> Line:
    return make_notification("item/started", item={"type": kind, "id": item, **fields}, turnId=turn)


def done(kind: str, item: str = "i1", /, turn: str = "turn1", **fields: Any) -> Line:
    return make_notification(
        "item/completed", item={"type": kind, "id": item, **fields}, turnId=turn
    )


def user(client: str | None, words: str = "hello", turn: str = "turn1") -> Line:
    content = [{"type": "text", "text": words}]
    return begun("userMessage", f"u-{client}", turn, clientId=client, content=content)


def text(words: str, phase: str | None = None, **more: Any) -> Line:
    return done("agentMessage", "m1", text=words, phase=phase, **more)


def delta(words: str, **more: Any) -> Line:
    return make_notification(
        "item/agentMessage/delta", itemId="m1", delta=words, **{"turnId": "turn1", **more}
    )


def command(item: str = "c1", process: str | None = "7", **more: Any) -> Line:
    fields = {"command": "ls", "cwd": "/w", "processId": process, "status": "inProgress", **more}
    return begun("commandExecution", item, **fields)


def command_done(item: str = "c1", status: str = "completed", code: int | None = 0) -> Line:
    fields: dict[str, Any] = {"command": "ls", "exitCode": code, "aggregatedOutput": "a\n"}
    return done("commandExecution", item, status=status, **fields)


def tokens(given: int = 0, got: int = 0, cached: int = 0, written: int = 0) -> dict[str, int]:
    """Input, all of it, and output."""
    return {"inputTokens": given, "outputTokens": got, "cachedInputTokens": cached,
            "cacheWriteInputTokens": written, "totalTokens": given + got}  # fmt: skip


def usage(
    total: dict[str, int], last: dict[str, int] | None = None, turn: str = "turn1", **more: Any
) -> Line:
    found = {"total": total, "last": last or total, "modelContextWindow": 1000}
    return make_notification("thread/tokenUsage/updated", turnId=turn, tokenUsage=found, **more)


def limits(primary: Any = None, secondary: Any = None, limit: str | None = "codex") -> Line:
    found = {"limitId": limit, "primary": primary, "secondary": secondary}
    return {"method": "account/rateLimits/updated", "params": {"rateLimits": found}}


def window(percent: float, resets_at: float | None = None, minutes: int | None = 300) -> Any:
    return {"usedPercent": percent, "windowDurationMins": minutes, "resetsAt": resets_at}


# -- its questions

ASKS = ("commandExecution", "fileChange", "permissions")


def ask(request: Any = 0, kind: str = "commandExecution", item: str = "c1", **more: Any) -> Line:
    params = {"threadId": "th1", "turnId": "turn1", "itemId": item, **more}
    return {"id": request, "method": f"item/{kind}/requestApproval", "params": params}


def question(method: str, request: Any = 0, **params: Any) -> Line:
    return {"id": request, "method": method, "params": params}


def resolved(request: Any = 0) -> Line:
    return make_notification("serverRequest/resolved", requestId=request)


def approval_of(said: list[DialectOutput]) -> str:
    """The id of the approval that was requested last."""
    name = getattr(said[-1], "approval", None)
    assert isinstance(name, str)
    return name
