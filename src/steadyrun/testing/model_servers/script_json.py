"""How is a script written down? As JSON, for a server that is a process of its own.

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

In a list of blocks a string is a text; a raw block is in the words of the wire. Gates are paths:
they open when the file appears; a gate that is null never opens.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from steadyrun.testing.model_servers.content import (
    Answer,
    Block,
    Call,
    Raw,
    Text,
    Thinking,
    Tokens,
)
from steadyrun.testing.model_servers.faults import Break, Cut, Gate, Hang, Pause, Refusal
from steadyrun.testing.model_servers.protocol import Step


def read_script(path: Path) -> list[Step]:
    """The steps that a file holds."""
    return [_step(written) for written in json.loads(path.read_text(encoding="utf-8"))]


def _step(written: Mapping[str, Any]) -> Step:
    held = _gate(written["held"]) if "held" in written else None
    headers = written.get("headers", {})
    match written:
        case {"answer": parts}:
            tokens = Tokens(**written.get("tokens", {}))
            blocks = tuple(_part(part) for part in parts)
            return Answer(blocks, tokens, written.get("stop", ""), headers, held)
        case {"refuse": fault}:
            detail = written.get("detail", {})
            return Refusal(fault, headers, written.get("message", ""), held, detail)
        case {"hang": gate}:
            return Hang(_gate(gate))
        case _:
            raise ValueError(f"a step is an answer, refuse or hang; found {written!r}")


def _part(written: Any) -> Block | Pause:
    match written:
        case str():
            return Text((written,))
        case {"text": _} | {"thinking": _}:
            return _words(written)
        case {"call": name}:
            ident, namespace = written.get("id", ""), written.get("namespace", "")
            return Call(name, written.get("input", {}), ident, namespace)
        case {"raw": fields}:
            return Raw(fields)
        case _:
            return _pause(written)


def _words(written: Mapping[str, Any]) -> Text | Thinking:
    if "text" in written:
        pieces = tuple(_piece(piece) for piece in written["text"])
        return Text(pieces, written.get("phase", ""))
    return Thinking(tuple(_piece(piece) for piece in written["thinking"]))


def _piece(written: Any) -> str | Pause:
    return written if isinstance(written, str) else _pause(written)


def _pause(written: Any) -> Pause:
    match written:
        case {"gate": path}:
            return _gate(path)
        case {"cut": _}:
            return Cut()
        case {"break": fault}:
            return Break(fault, written.get("message", ""))
        case _:
            raise ValueError(f"a pause is a gate, cut or break; found {written!r}")


def _gate(path: str | None) -> Gate:
    return Gate(None if path is None else Path(path))
