"""Plays the steps that answer: text, results, and facts about the turn."""

import json

from steadyrun.providers.scripted.child.open_turn import OpenTurn, PlayStep
from steadyrun.providers.scripted.child.schema_sample import build_sample
from steadyrun.providers.scripted.child.script import TurnFailed
from steadyrun.providers.scripted.child.wire import Args, print_frame


def play_text(_: OpenTurn, args: Args) -> None:
    print_frame("text", text=args["text"])


def play_delta(turn: OpenTurn, args: Args) -> None:
    for piece in args["pieces"]:
        print_frame("delta", text=piece)
        turn.wait(args["seconds"])
    print_frame("text", text="".join(args["pieces"]))


def play_thinking(_: OpenTurn, args: Args) -> None:
    print_frame("thinking", text=args["text"])


def play_result(turn: OpenTurn, args: Args) -> None:
    turn.result = args["text"]


def play_structured(turn: OpenTurn, _: Args) -> None:
    schema = turn.request.schema
    if schema is None:
        raise TurnFailed("schema_missing", "structured: expected a turn with a schema, found none")
    try:
        turn.result = json.dumps(build_sample(schema, schema), ensure_ascii=False)
    except (TypeError, LookupError, AttributeError) as error:
        raise TurnFailed("schema_invalid", f"cannot read the schema: {error!r}") from error
    print_frame("text", text=turn.result)


def play_recall(turn: OpenTurn, _: Args) -> None:
    settings = turn.queue.settings
    facts: Args = {"earlier": [text for texts in turn.queue.memory.turns for text in texts]}
    facts |= {"system": settings.system, "model": settings.model, "mode": settings.mode}
    facts["images"] = [
        {"media_type": image["media_type"], "bytes": len(image["data"].rstrip("=")) * 3 // 4}
        for image in turn.request.images
    ]
    print_frame("text", text=json.dumps(facts, ensure_ascii=False))


def play_usage(turn: OpenTurn, args: Args) -> None:
    cost_usd = args["cost_usd"]
    for name, count in args.items():
        if name != "cost_usd" and count is not None:
            turn.usage[name] = turn.usage.get(name, 0) + count
    if cost_usd is not None:
        turn.cost_usd = (turn.cost_usd or 0.0) + cost_usd
    print_frame("usage", usage=turn.usage, cost_usd=turn.cost_usd)
    allowed = turn.queue.settings.max_cost_usd
    if allowed is not None and (turn.cost_usd or 0.0) > allowed:
        raise TurnFailed("max_cost", f"the turn may cost ${allowed} and costs ${turn.cost_usd}")


def play_stats(turn: OpenTurn, args: Args) -> None:
    print_frame("stats", **{**args, "model": args["model"] or turn.queue.settings.model})


def play_image(_: OpenTurn, args: Args) -> None:
    print_frame("image", name=args["name"], media_type=args["media_type"], size_bytes=args["bytes"])


def play_compaction(_: OpenTurn, args: Args) -> None:
    print_frame("compacting", trigger=args["trigger"])
    print_frame("compacted", **args)


def play_retrying(_: OpenTurn, args: Args) -> None:
    print_frame("retrying", **args)


OUTPUT_STEPS: dict[str, PlayStep] = {
    "text": play_text,
    "delta": play_delta,
    "thinking": play_thinking,
    "result": play_result,
    "structured": play_structured,
    "recall": play_recall,
    "usage": play_usage,
    "stats": play_stats,
    "image": play_image,
    "compaction": play_compaction,
    "retrying": play_retrying,
}
