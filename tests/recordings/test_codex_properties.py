"""Tests properties of every recording of Codex, also of changed ones."""

import json
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

import pytest
from msgspec.structs import replace

from steadyrun.drivers.replay import RecordedLine
from steadyrun.model import event as ev
from steadyrun.model.usage import Usage
from tests.recordings.played import (
    Fate,
    events_of,
    is_sound,
    outcomes,
    played,
    raw_of,
    texts,
    told,
    unknown,
)
from tests.recordings.recorded import Recording, recordings
from tests.recordings.shape_codex import CODEX
from tests.recordings.shapes import GARBAGE, Json, changed, get, in_strings, put

RECORDINGS = recordings("codex")
APP_SERVER = [each for each in RECORDINGS if not each.one_shot]
by_name = pytest.mark.parametrize("recording", RECORDINGS, ids=str)
by_server = pytest.mark.parametrize("recording", APP_SERVER, ids=str)
ELSEWHERE = "00000000-0000-7000-8000-000000000000"
# What our launch prints before a turn that is to go on with a conversation.
RESUMED = RecordedLine("out", {"type": "steadyrun.resumed"})


# -- ids


def _ours(number: int) -> list[Any]:
    return [number - 1, str(number), f"begin:{number}", 1000 - number, 2**53 + number, number]


@by_server
@pytest.mark.parametrize("way", range(6))
def test_request_ids_do_not_matter(recording: Recording, way: int) -> None:
    lines = recording.lines()
    # Theirs are numbers of their own: they may well be the same as ours.
    others = [_renumbered(line, lambda number: _ours(number)[way]) for line in lines]

    assert told(recording, others) == told(recording, lines)


def _renumbered(line: RecordedLine, other: Callable[[int], Any]) -> RecordedLine:
    message = line.msg
    if isinstance(message, str):
        return line
    for path in (("id",), ("params", "requestId")):
        number = get(message, path)
        if isinstance(number, int):
            # Theirs begin with 0, ours with 1.
            is_theirs = (line.dir == "out") == ("method" in message)
            message = put(message, path, other(number + is_theirs))
    return replace(line, msg=message)


# -- whose is it?


@by_server
def test_output_of_another_thread_is_ignored(recording: Recording) -> None:
    lines = recording.lines()
    more = [each for line in lines for each in (*_of_another(line), line, *_of_another(line))]

    assert told(recording, more) == told(recording, lines)


def _of_another(line: RecordedLine) -> Iterator[RecordedLine]:
    """The same in another thread, once with the turn's own id."""
    if line.dir == "out" and isinstance(line.msg, dict) and "id" not in line.msg:
        thread = ("params", "threadId")
        if get(line.msg, thread) and line.msg["method"] not in _OF_ALL:
            other = put(line.msg, thread, ELSEWHERE)
            if get(other, _ROOT):
                other = put(other, _ROOT, ELSEWHERE)
            yield replace(line, msg=other)
            yield replace(line, msg=CODEX.renamed(other))


_ROOT = ("params", "turn", "rootTurnId")
# A question of any thread may be withdrawn, and a warning of any thread counts.
_OF_ALL = ("serverRequest/resolved", "warning", "deprecationNotice")


@by_server
def test_sub_agent_changes_only_the_usage(recording: Recording) -> None:
    """What it does belongs to our turn by its root; only its usage is reported."""
    lines = recording.lines()
    more = [each for line in lines for each in (line, *_of_a_sub_agent(line))]

    before, after = told(recording, lines), told(recording, more)

    assert [_apart_from_counters(event) for event in after if event[1] != "usage.updated"] == [
        _apart_from_counters(event) for event in before if event[1] != "usage.updated"
    ]


def _of_a_sub_agent(line: RecordedLine) -> Iterator[RecordedLine]:
    for each in list(_of_another(line))[:1]:
        assert isinstance(each.msg, dict)
        if isinstance(line.msg, dict) and get(line.msg, _ROOT):
            yield replace(each, msg=put(each.msg, _ROOT, get(line.msg, _ROOT)))
        else:
            yield each


def _apart_from_counters(event: list[Any]) -> Any:
    if len(event) == 2:
        return event
    counters = ("usage", "usd", "cache_read_tokens", "cache_write_tokens", "output_tokens")
    return [*event[:2], {key: each for key, each in event[2].items() if key not in counters}]


@by_server
def test_end_of_another_turn_does_not_end_the_turn(recording: Recording) -> None:
    lines: list[RecordedLine] = []
    for line in recording.lines():
        lines.append(line)
        if isinstance(line.msg, dict) and line.msg.get("method") == "item/completed":
            turn = {"id": ELSEWHERE, "status": "failed", "error": {"message": "x"}, "items": []}
            params = {"threadId": line.msg["params"]["threadId"], "turn": turn}
            lines.append(RecordedLine("out", {"method": "turn/completed", "params": params}))

    seen = played(recording, lines)

    assert texts(seen) == texts(recording.play())
    assert outcomes(seen) == outcomes(recording.play())


@by_server
def test_end_without_a_status_is_not_a_success(recording: Recording) -> None:
    lines = changed(recording.lines(), _without_status)

    assert "run.completed" not in {type_ for type_, _ in texts(played(recording, lines))}


def _without_status(message: Json) -> Json:
    if message.get("method") != "turn/completed":
        return message
    return put(message, ("params", "turn"), {"id": message["params"]["turn"]["id"]})


# -- unknown items and frames


@by_name
def test_unknown_item_is_kept_and_changes_nothing(recording: Recording) -> None:
    lines, before = recording.lines(), told(recording, recording.lines())
    places = [n for n, line in enumerate(lines) if _item_of(line)]
    for place in places:
        line = lines[place]
        strange = replace(line, msg=in_item(line.msg, {"type": "noSuchItem", "id": "x"}))
        after = told(recording, [*lines[:place], strange, *lines[place:]])
        assert [event for event in after if event[1] != "unknown"] == before
        is_late = any(_ends_turn(each) for each in lines[:place]) and not _is_in_turn(lines, place)
        kept = [] if is_late else [{"text": raw_of(strange).decode()}]
        assert [event[2] for event in after if event[1] == "unknown"] == kept


def _item_of(line: RecordedLine) -> Any:
    found = get(line.msg, ("params", "item")) or get(line.msg, ("item",))
    return found if line.dir == "out" else None


def in_item(message: Any, new: Json) -> Json:
    """The same frame about another item."""
    return put(message, ("params", "item") if "params" in message else ("item",), new)


def _ends_turn(line: RecordedLine) -> bool:
    return isinstance(line.msg, dict) and line.msg.get("method") == "turn/completed"


def _is_in_turn(lines: list[RecordedLine], place: int) -> bool:
    turn = get(lines[place].msg, ("params", "turnId"))
    ended = [get(line.msg, ("params", "turn", "id")) for line in lines[:place] if _ends_turn(line)]
    return turn not in ended


# -- words


@by_name
def test_other_words_change_only_the_texts(recording: Recording) -> None:
    lines = recording.lines()

    before, after = told(recording, lines), told(recording, [_swapped(line) for line in lines])

    assert [event[:2] for event in after] == [event[:2] for event in before]
    for one, other in zip(before, after, strict=True):
        if one[1] in ("text.final", "text.delta", "thinking.delta", "run.completed"):
            assert other == in_words(one, str.swapcase)
        assert _apart_from_words(other) == _apart_from_words(one)


def _swapped(line: RecordedLine) -> RecordedLine:
    """The line with all texts of both sides in swapped case."""
    if isinstance(line.msg, str) or line.dir == "err":
        return line
    message = CODEX.reworded(line.msg, str.swapcase)
    for path in (("params", "input"), ("params", "item", "content"), ("params", "item", "summary")):
        if get(message, path):
            message = put(message, path, in_words(get(message, path), str.swapcase))
    return replace(line, msg=message)


def in_words(value: Any, change: Callable[[str], str]) -> Any:
    """The same with a change to what is called a text, or stands for itself."""
    match value:
        case [str(), *_]:
            return [in_strings(each, change) for each in value]
        case list():
            return [in_words(each, change) for each in value]
        case dict():
            return {
                key: change(each) if key == "text" and isinstance(each, str) else each
                for key, each in value.items()
            }
        case _:
            return value


def _apart_from_words(event: list[Any]) -> Any:
    said = ("text", "message", "reason", "tool_output")
    data = event[2] if len(event) > 2 else {}
    kept = {key: value for key, value in data.items() if key not in said}
    if "error" in kept and isinstance(kept["error"], dict):
        kept["error"] = {key: each for key, each in kept["error"].items() if key != "message"}
    return kept


@by_name
def test_stderr_does_not_matter_after_any_output(recording: Recording) -> None:
    lines = recording.lines()
    if any(line.dir == "out" for line in lines):
        for prose in CODEX.prose:
            others = [replace(line, msg=prose) if line.dir == "err" else line for line in lines]
            assert outcomes(played(recording, others)) == outcomes(recording.play())


@pytest.mark.parametrize("value", GARBAGE, ids=str)
def test_any_api_error_body_fails_the_turn(value: Any) -> None:
    recording = next(each for each in RECORDINGS if each.name == "16-http-400-context-window")
    answers = [value, {"error": value}, {"error": {"code": value, "message": value}}]
    for said in [*map(json.dumps, answers), "[" * 100_000, '{"error":']:
        lines = changed(recording.lines(), _complained, said)

        seen = played(recording, lines)

        assert is_sound(seen)
        assert outcomes(seen)[0][0] == "failed"


def _complained(message: Json, words: str) -> Json:
    path = ("params", "turn", "error", "message")
    return put(message, path, words) if get(message, path) else message


# -- follow-ups


@by_server
def test_text_of_a_named_follow_up_does_not_matter(recording: Recording) -> None:
    lines = recording.lines()

    named = played(recording, list(_named(lines)))

    assert _fates(named) == _fates(recording.play())
    assert outcomes(named) == outcomes(recording.play())


def _named(lines: list[RecordedLine]) -> Iterator[RecordedLine]:
    """Every message with a name, and all in the same words."""
    names = (f"client{n}" for n in count())
    told_so_far: list[tuple[str, str]] = []
    for line in lines:
        message = line.msg
        if isinstance(message, dict) and line.dir == "in" and get(message, ("params", "input")):
            told_so_far.append((_words(message["params"]["input"]), next(names)))
            more = {"clientUserMessageId": told_so_far[-1][1], "input": _ALIKE}
            yield replace(line, msg=put(message, ("params",), message["params"] | more))
        elif isinstance(message, dict) and get(message, ("params", "item", "type")) == _SHOWN:
            item = message["params"]["item"]
            name = next((name for text, name in told_so_far if text == _words(item["content"])), "")
            shown = item | {"clientId": name, "content": _ALIKE}
            if message["method"] == "item/completed":
                told_so_far = [each for each in told_so_far if each[1] != name]
            yield replace(line, msg=put(message, ("params", "item"), shown))
        else:
            yield line


_SHOWN = "userMessage"
_ALIKE = [{"type": "text", "text": "the same for all"}]


def _words(content: list[Json]) -> str:
    return " ".join(part.get("text", "") for part in content)


def _fates(seen: Any) -> list[str]:
    return [f"{ev.get_type(e)} {e.item}" for e in events_of(seen) if isinstance(e, Fate)]


@by_server
@pytest.mark.parametrize("name", [None, "unknown"])
def test_message_of_another_client_settles_no_offer(recording: Recording, name: str | None) -> None:
    lines: list[RecordedLine] = []
    for line in recording.lines():
        if _item_of(line):
            content = [{"type": "text", "text": "from another client"}]
            item = {"type": _SHOWN, "id": "x", "clientId": name, "content": content}
            shown = in_item(line.msg, item) | {"method": "item/started"}
            lines.append(replace(line, msg=shown))
        lines.append(line)

    assert told(recording, lines) == told(recording, recording.lines())


# -- limits


def test_limit_ends_when_all_full_windows_are_reset() -> None:
    recording = next(each for each in RECORDINGS if each.name == "24-rate-limit-headers")
    path = ("params", "rateLimits")

    def times(primary: int, secondary: int) -> list[float | None]:
        def use(message: Json) -> Json:
            if message.get("method") != "account/rateLimits/updated":
                return message
            message = put(message, (*path, "primary", "usedPercent"), primary)
            return put(message, (*path, "secondary", "usedPercent"), secondary)

        ends = events_of(played(recording, changed(recording.lines(), use)))
        facts = [end.error for end in ends if isinstance(end, ev.RunRateLimited) and end.error]
        return [each.retry_at.timestamp() if each.retry_at else None for each in facts]

    assert times(88, 41) == [None]
    assert times(100, 41) == [1794785599]
    assert times(100, 100) == [1794868399]


# -- exec


@by_name
def test_usage_before_the_resume_is_not_counted(recording: Recording) -> None:
    if recording.one_shot:
        seen = played(recording, [RESUMED, *recording.lines()])

        assert [usage for _, _, usage, *_ in outcomes(seen)] == [Usage()]
        assert unknown(seen) == set()


@by_name
def test_resumed_turn_ends_like_any_other(recording: Recording) -> None:
    if recording.one_shot:
        seen = played(recording, [RESUMED, *recording.lines()])

        assert is_sound(seen)
        assert texts(seen) == texts(recording.play())
        assert [each[-1] for each in outcomes(seen)] == [
            each[-1] for each in outcomes(recording.play())
        ]
