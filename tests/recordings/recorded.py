"""Finds the recordings and replays them. See README.md beside this file."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Literal, get_args

from steadyrun.dialect import Dialect, ProcessExit
from steadyrun.drivers.replay import RecordedLine, read_recording, replay
from steadyrun.model.event import (
    AnyEvent,
    ApprovalRequested,
    ApprovalResolved,
    Event,
    FollowupAbsorbed,
    FollowupOffered,
    FollowupOwnTurn,
    FollowupReturned,
    Foreign,
    RunEnded,
    ToolCompleted,
    ToolFailed,
    get_type,
)
from steadyrun.model.event_json import to_data
from steadyrun.providers.claude.dialect import Claude
from steadyrun.providers.claude.launch import ClaudeOptions
from steadyrun.providers.codex.dialect import Codex
from steadyrun.providers.codex.launch import CodexOptions

HERE = Path(__file__).parent
LONGEST_TEXT = 160

# An event as the expectations have it: the number of its run, its type, its telling data.
Telling = list[Any]


Cli = Literal["claude", "codex"]
CLIS: tuple[Cli, ...] = get_args(Cli)


@dataclass(frozen=True)
class Recording:
    """A recording of a CLI: its lines, and how the process ended."""

    cli: Cli
    name: str
    shows: str
    code: int | None = None
    signal: int | None = None
    one_shot: bool = False

    def __str__(self) -> str:
        return f"{self.cli}-{self.name}"

    @property
    def path(self) -> Path:
        return HERE / self.cli / f"{self.name}.jsonl"

    @property
    def expected(self) -> Path:
        return HERE / self.cli / "expected" / f"{self.name}.jsonl"

    def lines(self) -> list[RecordedLine]:
        return list(read_recording(self.path))

    def exit(self) -> ProcessExit:
        """How it ended; its last words are in the recording."""
        return ProcessExit(self.code, self.signal)

    def dialect(self) -> Dialect:
        match self.cli:
            case "claude":
                return Claude(ClaudeOptions(one_shot=self.one_shot))
            case "codex":
                return Codex(CodexOptions(one_shot=self.one_shot))

    def play(self) -> list[AnyEvent]:
        return list(replay(self.dialect(), self.lines(), self.exit()))


def recordings(*clis: Cli) -> list[Recording]:
    """All recordings of these CLIs, or of every one."""
    return [
        Recording(cli, name, **about)
        for cli in clis or CLIS
        for name, about in index(cli)["recordings"].items()
    ]


def index(cli: Cli) -> dict[str, dict[str, Any]]:
    """What there is of a CLI, and what was left out."""
    found: dict[str, dict[str, Any]] = json.loads((HERE / cli / "index.json").read_text("utf-8"))
    return found


def telling(seen: list[AnyEvent], longest_text: int = LONGEST_TEXT) -> Iterator[Telling]:
    """What is telling of each event. What only says where or when is left out; names that are ours
    are counted, so that it does not matter how we make them."""
    runs, names = _Counted(""), _Counted("#")
    for each in seen:
        run = int(runs[each.run]) if each.run else None
        assert not isinstance(each.event, Foreign)
        data = _short(_telling_data(each.event, names), longest_text)
        yield [run, get_type(each.event), data] if data else [run, get_type(each.event)]


class _Counted(dict[str, str]):
    """A number for each name, in the order in which they come."""

    def __init__(self, mark: str) -> None:
        self._mark = mark

    def __missing__(self, name: str) -> str:
        self[name] = f"{self._mark}{len(self) + 1}"
        return self[name]


def _telling_data(event: Event, names: _Counted) -> dict[str, Any]:
    data = to_data(event)
    match event:
        case ToolCompleted() | ToolFailed():
            # The same as when it was started: a property holds that.
            del data["tool_name"], data["tool_input"]
        case FollowupOffered() | FollowupAbsorbed() | FollowupOwnTurn() | FollowupReturned():
            data["item"] = names[event.item]
        case ApprovalRequested() | ApprovalResolved():
            data["approval"] = names[event.approval]
        case _:
            pass
    if isinstance(event, RunEnded):
        data = _ending(data)
    # The last one that was told: the check of the raw frames holds that.
    data.pop("resume_token", None)
    data.pop("provider", None)
    if "usage" in data:
        data["usage"] = _tokens(data["usage"])
    if "cost" in data:
        data["usd"] = _usd(data.pop("cost"))
    return {name: value for name, value in data.items() if value not in _NOTHING}


_NOTHING: tuple[Any, ...] = (None, [], (), {})


def _ending(data: dict[str, Any]) -> dict[str, Any]:
    del data["status"], data["duration_ms"]
    error = data.get("error")
    if error:
        kept = ("code", "message", "retryable", "retry_at")
        data["error"] = {name: error[name] for name in kept if error[name] is not None}
    return data


def _usd(cost: dict[str, Any]) -> float | str:
    return float(cost["usd"]) if cost["kind"] == "known" else str(cost["kind"])


def _tokens(usage: dict[str, Any]) -> list[int] | None:
    tokens = list(usage.values())
    return None if tokens == [None] * 4 else tokens


def _short(value: Any, longest: int) -> Any:
    match value:
        case str() if len(value) > longest:
            return f"{value[:longest]}… {len(value)} in all"
        case dict():
            return {name: _short(each, longest) for name, each in value.items()}
        case list() | tuple():
            return [_short(each, longest) for each in value]
        case datetime():
            return value.isoformat()
        case _:
            return value
