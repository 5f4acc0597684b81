"""Checks the output of a CLI: no line is lost, and no secret is published."""

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
from steadyrun.model.event_json import to_data
from steadyrun.model.token_shapes import REDACTED
from steadyrun.testing.provider_conformance.fixtures import (
    PlayedRun,
    get_expected,
    get_prompt,
    play,
)
from steadyrun.testing.provider_conformance.harness import ProviderHarness, Situation, make_promise

STILL_RUNNING = "still_running"


async def _check_kept(harness: ProviderHarness, situation: Situation) -> None:
    played = await play(harness, situation)

    assert played.run.status == "completed"
    kept = [event.raw if event.text is None else event.text for event in played.select(Unknown)]
    assert get_expected(harness, situation) in kept


@make_promise("is_novel")
async def check_an_unknown_frame_is_kept(harness: ProviderHarness) -> None:
    await _check_kept(harness, "is_novel")


@make_promise("is_no_json")
async def check_a_line_without_json_is_kept(harness: ProviderHarness) -> None:
    await _check_kept(harness, "is_no_json")


@make_promise("is_no_text")
async def check_a_line_of_invalid_utf8_is_kept(harness: ProviderHarness) -> None:
    await _check_kept(harness, "is_no_text")


@make_promise("floods_stderr")
async def check_stderr_does_not_block_and_is_not_stored(harness: ProviderHarness) -> None:
    played = await play(harness, "floods_stderr")

    assert played.run.status == "completed"
    assert not any(type(entry.event) in LIVE_ONLY for entry in played.stored)
    assert any(isinstance(entry.event, OutputRaw) for entry in played.live)


@make_promise("leaves_tool")
async def check_an_open_tool_is_closed_at_the_end(harness: ProviderHarness) -> None:
    played = await play(harness, "leaves_tool")

    started = {tool.tool_call_id for tool in played.select(ToolStarted)}
    ended = [tool.tool_call_id for tool in played.select(ToolCompleted)]
    ended += [tool.tool_call_id for tool in played.select(ToolFailed)]
    assert sorted(started) == sorted(ended)
    assert STILL_RUNNING in {tool.error for tool in played.select(ToolFailed)}


@make_promise("tells_secret")
async def check_no_secret_is_published(harness: ProviderHarness) -> None:
    played = await play(harness, "tells_secret")

    _check_secrecy(harness, played)
    # A prompt is stored unchanged, because it is the user's own text.
    if harness.secret.reveal() not in get_prompt(harness, "tells_secret"):
        _check_files(harness)


@make_promise("tells_secret_in_pieces")
async def check_no_secret_is_published_in_pieces(harness: ProviderHarness) -> None:
    played = await play(harness, "tells_secret_in_pieces")

    assert played.live, "there were no pieces"
    _check_secrecy(harness, played)


def _check_secrecy(harness: ProviderHarness, played: PlayedRun) -> None:
    """Check that the secret is neither in one event nor in the joined pieces of several."""
    secret = harness.secret.reveal()
    assert played.run.status == "completed"
    texts = [msgspec.json.encode(to_data(entry.event)).decode() for entry in played.published]
    texts += [msgspec.json.encode(to_data(entry.event)).decode() for entry in played.stored]
    texts += [msgspec.json.encode(played.run).decode(), *_join_streams(played)]
    assert not [each for each in texts if secret in each]
    assert [each for each in texts if REDACTED in each], "the secret never came"


def _check_files(harness: ProviderHarness) -> None:
    files = list(harness.home.glob("*.db*"))
    assert files
    for file in files:
        assert harness.secret.reveal().encode() not in file.read_bytes(), file


def _join_streams(played: PlayedRun) -> list[str]:
    """Join the pieces of each kind, as a subscriber would."""
    streams: dict[str, str] = defaultdict(str)
    for entry in played.live:
        fields = to_data(entry.event)
        streams[f"{type(entry.event)} {fields.get('stream')}"] += fields.get("text", "")
    return list(streams.values())
