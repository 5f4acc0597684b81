"""The command `replay`: prints the events of a run or of a recording, without writing anything."""

from argparse import Namespace

from steadyrun.app.replay import replay_source
from steadyrun.cli.output.format import ShownEvent, format_event, to_json
from steadyrun.config import load
from steadyrun.model.event import TextDelta, ThinkingDelta
from steadyrun.model.event_json import to_public


def replay(args: Namespace) -> int:
    for seen in replay_source(load(), args.source, args.provider):
        _print(seen, as_json=args.jsonl)
    return 0


def _print(seen: ShownEvent, *, as_json: bool) -> None:
    if as_json:
        print(to_json({**to_public(seen), "cursor": None}))
    elif not isinstance(seen.event, TextDelta | ThinkingDelta):
        print(format_event(seen))
