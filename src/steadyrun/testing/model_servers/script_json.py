"""Reads a script from a JSON file, for a server that runs as a process.

    [
      {"answer": ["Look.", {"call": "Bash", "input": {"command": "ls"}}], "tokens": {"output": 9}},
      {"answer": [{"text": ["Hel", {"gate": "/tmp/go"}, "lo"]}, {"thinking": ["hm"]}]},
      {"refuse": "rate_limit", "headers": {"retry-after": "1"}},
      {"answer": [{"text": ["Hel", {"break": "overloaded"}]}]},
      {"answer": [{"text": ["Hel", {"cut": true}]}], "held": "/tmp/headers"},
      {"answer": [{"call": "exec", "input": "text(1)"}, {"raw": {"type": "web_search_call"}}]},
      {"refuse": "usage_limit", "detail": {"resets_at": 1794830000}},
      {"hang": null}
    ]

In a list of blocks a string is a text, and a raw block has the format of the API. A gate is a path:
it opens when the file appears. A gate that is null never opens.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from steadyrun.testing.model_servers.content import (
    AnswerBlock,
    AnswerTokens,
    CallBlock,
    ModelAnswer,
    RawBlock,
    TextBlock,
    ThinkingBlock,
)
from steadyrun.testing.model_servers.faults import Break, Cut, Hang, Pause, Refusal, StreamGate
from steadyrun.testing.model_servers.protocol import ServerStep


def read_script(path: Path) -> list[ServerStep]:
    """Read the steps of a file."""
    return [_parse_step(written) for written in json.loads(path.read_text(encoding="utf-8"))]


def _parse_step(written: Mapping[str, Any]) -> ServerStep:
    held = _build_gate(written["held"]) if "held" in written else None
    headers = written.get("headers", {})
    match written:
        case {"answer": parts}:
            tokens = AnswerTokens(**written.get("tokens", {}))
            blocks = tuple(_parse_part(part) for part in parts)
            return ModelAnswer(blocks, tokens, written.get("stop", ""), headers, held)
        case {"refuse": fault}:
            detail = written.get("detail", {})
            return Refusal(fault, headers, written.get("message", ""), held, detail)
        case {"hang": gate}:
            return Hang(_build_gate(gate))
        case _:
            raise ValueError(f"a step is an answer, refuse or hang; found {written!r}")


def _parse_part(written: Any) -> AnswerBlock | Pause:
    match written:
        case str():
            return TextBlock((written,))
        case {"text": _} | {"thinking": _}:
            return _parse_text(written)
        case {"call": name}:
            ident, namespace = written.get("id", ""), written.get("namespace", "")
            return CallBlock(name, written.get("input", {}), ident, namespace)
        case {"raw": fields}:
            return RawBlock(fields)
        case _:
            return _parse_pause(written)


def _parse_text(written: Mapping[str, Any]) -> TextBlock | ThinkingBlock:
    if "text" in written:
        pieces = tuple(_parse_piece(piece) for piece in written["text"])
        return TextBlock(pieces, written.get("phase", ""))
    return ThinkingBlock(tuple(_parse_piece(piece) for piece in written["thinking"]))


def _parse_piece(written: Any) -> str | Pause:
    return written if isinstance(written, str) else _parse_pause(written)


def _parse_pause(written: Any) -> Pause:
    match written:
        case {"gate": path}:
            return _build_gate(path)
        case {"cut": _}:
            return Cut()
        case {"break": fault}:
            return Break(fault, written.get("message", ""))
        case _:
            raise ValueError(f"a pause is a gate, cut or break; found {written!r}")


def _build_gate(path: str | None) -> StreamGate:
    return StreamGate(None if path is None else Path(path))
