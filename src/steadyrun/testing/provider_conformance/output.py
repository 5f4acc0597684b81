"""Promises about what a CLI prints: nothing is lost, nothing is told that must not be."""

from collections import defaultdict

import msgspec

from steadyrun.model.event import (
    LIVE_ONLY,
    OutputRaw,
    ToolCompleted,
    ToolFailed,
    ToolStarted,
    Unknown,
)
from steadyrun.model.event_json import data_of
from steadyrun.model.secret import REDACTED
from steadyrun.testing.provider_conformance.fixtures import (
    Played,
    check_order,
    play,
    said_in,
    text_of,
)
from steadyrun.testing.provider_conformance.harness import ProviderHarness, Situation, promised

STILL_RUNNING = "still_running"


async def _check_kept(harness: ProviderHarness, situation: Situation) -> None:
    played = await play(harness, situation)

    check_order(played)
    assert played.run.status == "completed"
    kept = [event.raw if event.text is None else event.text for event in played.of(Unknown)]
    assert said_in(harness, situation) in kept


@promised("is_novel")
async def check_a_frame_that_nobody_knows_is_kept(harness: ProviderHarness) -> None:
    await _check_kept(harness, "is_novel")


@promised("is_no_json")
async def check_a_line_that_is_no_frame_is_kept(harness: ProviderHarness) -> None:
    await _check_kept(harness, "is_no_json")


@promised("is_no_text")
async def check_a_line_that_is_no_text_is_kept(harness: ProviderHarness) -> None:
    await _check_kept(harness, "is_no_text")


@promised("floods_stderr")
async def check_stderr_neither_blocks_nor_is_stored(harness: ProviderHarness) -> None:
    played = await play(harness, "floods_stderr")

    check_order(played)
    assert played.run.status == "completed"
    assert not any(type(seen.event) in LIVE_ONLY for seen in played.stored)
    assert any(isinstance(seen.event, OutputRaw) for seen in played.live)


@promised("leaves_tool")
async def check_a_tool_that_is_open_at_the_end_is_closed(harness: ProviderHarness) -> None:
    played = await play(harness, "leaves_tool")

    check_order(played)
    started = {tool.tool_call_id for tool in played.of(ToolStarted)}
    ended = [tool.tool_call_id for tool in played.of(ToolCompleted)]
    ended += [tool.tool_call_id for tool in played.of(ToolFailed)]
    assert sorted(started) == sorted(ended)
    assert STILL_RUNNING in {tool.error for tool in played.of(ToolFailed)}


@promised("tells_secret")
async def check_no_secret_is_told(harness: ProviderHarness) -> None:
    played = await play(harness, "tells_secret")

    _check_secrecy(harness, played)
    # A prompt is kept as it was given: it is what the user said.
    if harness.secret.reveal() not in text_of(harness, "tells_secret"):
        _check_files(harness)


@promised("tells_secret_in_pieces")
async def check_no_secret_is_told_piece_by_piece(harness: ProviderHarness) -> None:
    played = await play(harness, "tells_secret_in_pieces")

    assert played.live, "there were no pieces"
    _check_secrecy(harness, played)


def _check_secrecy(harness: ProviderHarness, played: Played) -> None:
    """Neither in an event nor in the pieces of several."""
    secret = harness.secret.reveal()
    check_order(played)
    assert played.run.status == "completed"
    told = [msgspec.json.encode(data_of(seen.event)).decode() for seen in played.published]
    told += [msgspec.json.encode(data_of(seen.event)).decode() for seen in played.stored]
    told += [msgspec.json.encode(played.run).decode(), *_streams(played)]
    assert not [each for each in told if secret in each]
    assert [each for each in told if REDACTED in each], "the secret never came"


def _check_files(harness: ProviderHarness) -> None:
    files = list(harness.home.glob("*.db*"))
    assert files
    for file in files:
        assert harness.secret.reveal().encode() not in file.read_bytes(), file


def _streams(played: Played) -> list[str]:
    """What a listener has when it puts the pieces of one kind together."""
    streams: dict[str, str] = defaultdict(str)
    for seen in played.live:
        fields = data_of(seen.event)
        streams[f"{type(seen.event)} {fields.get('stream')}"] += fields.get("text", "")
    return list(streams.values())
