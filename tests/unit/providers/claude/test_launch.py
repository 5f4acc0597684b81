"""How Claude Code is started, and what a message to it holds."""

import base64
import json
import uuid
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from steadyrun.dialect import Image, Launch, LaunchRequest, Turn
from steadyrun.errors import InvalidUsage
from steadyrun.model.policy import DENIED, Mode
from steadyrun.providers.claude.launch import (
    MODES,
    PROGRAM,
    ClaudeOptions,
    build_content,
    launch,
    to_uuid,
)

REQUEST = LaunchRequest(Turn("run_1", "hello"), "/work", "/home/processes/prc_1")
PICTURE = Image("image/png", b"\x89PNG\r\n\x1a\n and more")
# Flags that take no value, and those that take as many as come.
BARE = {"--verbose", "--replay-user-messages", "--include-partial-messages", "-p"}
BARE |= {"--strict-mcp-config"}
EVERYTHING = ClaudeOptions(
    effort="low",
    fallback_model="haiku",
    append_system_prompt="-be brief",
    add_dirs=("/a", "/b c"),
    disallowed_tools=("X", "Bash(git push:*)"),
    mcp_config={"mcpServers": {"s": {"type": "http", "url": "http://127.0.0.1:1"}}},
    strict_mcp_config=True,
    settings={"fastMode": True},
    setting_sources=("user", "project"),
    debug_file="/tmp/debug",
)
ALL_ASKED = replace(
    REQUEST,
    turn=Turn("run_1", "hello", schema={"type": "object"}),
    model="opus",
    mode="plan",
    tools=("Read", "Grep"),
    system="You are S.",
    max_turns=3,
    max_cost_usd=0.5,
)


def flags_of(started: Launch) -> dict[str, list[str]]:
    """Every flag with its values, as Claude Code would read them; nothing is left over."""
    words = list(started.argv[started.argv.index(PROGRAM.name) + 1 :])
    flags: dict[str, list[str]] = {}
    while words:
        flag = words.pop(0)
        assert flag.startswith("-"), f"{flag} is given by position"
        values = flags.setdefault(flag, [])
        if flag not in BARE:
            values.append(words.pop(0))
    return flags


def test_multi_turn_process_is_started_with_stream_json_and_echoes() -> None:
    started = launch(REQUEST, ClaudeOptions())

    flags = flags_of(started)
    assert started.argv[0] == "claude"
    assert flags == {
        "--output-format": ["stream-json"],
        "--verbose": [],
        "--input-format": ["stream-json"],
        "--replay-user-messages": [],
        "--include-partial-messages": [],
        "--permission-mode": ["default"],
        "--permission-prompt-tool": ["stdio"],
        "--disallowedTools": [",".join(DENIED)],
        "--session-id": [to_uuid("prc_1")],
    }
    assert started.stdin == "pipe"
    assert started.files == {}
    assert [(rung.do, rung.number) for rung in started.rungs] == [("will", None), ("signal", 2)]


def test_every_option_and_request_field_has_its_flag() -> None:
    started = launch(ALL_ASKED, EVERYTHING)

    flags = flags_of(started)
    place = "/home/processes/prc_1"
    assert {
        name: values for name, values in flags.items() if values and name != "--session-id"
    } == {
        "--output-format": ["stream-json"],
        "--input-format": ["stream-json"],
        "--permission-mode": ["plan"],
        "--permission-prompt-tool": ["stdio"],
        "--disallowedTools": [",".join((*DENIED, "X", "Bash(git push:*)"))],
        "--tools": ["Read,Grep"],
        "--model": ["opus"],
        "--fallback-model": ["haiku"],
        "--effort": ["low"],
        "--max-turns": ["3"],
        "--max-budget-usd": ["0.5"],
        "--json-schema": ['{"type":"object"}'],
        "--system-prompt-file": [f"{place}/system.md"],
        "--append-system-prompt": ["-be brief"],
        "--add-dir": ["/a", "/b c"],
        "--mcp-config": [f"{place}/mcp.json"],
        "--settings": [f"{place}/settings.json"],
        "--setting-sources": ["user,project"],
        "--debug-file": ["/tmp/debug"],
    }
    assert started.files["system.md"] == b"You are S."
    assert json.loads(started.files["mcp.json"]) == EVERYTHING.mcp_config
    assert json.loads(started.files["settings.json"]) == {"fastMode": True}


def test_appended_system_prompt_keeps_the_default_prompt() -> None:
    started = launch(replace(REQUEST, system="You are S.", adds_system=True), ClaudeOptions())

    flags = flags_of(started)
    assert flags["--append-system-prompt-file"] == ["/home/processes/prc_1/system.md"]
    assert "--system-prompt-file" not in flags
    assert started.files["system.md"] == b"You are S."


def test_appended_system_prompt_includes_the_option_text_once() -> None:
    # Claude Code refuses to be given both flags.
    started = launch(replace(REQUEST, system="You are S.", adds_system=True), EVERYTHING)

    flags = flags_of(started)
    assert "--append-system-prompt" not in flags
    assert started.files["system.md"] == b"You are S.\n\n-be brief"


def test_append_system_prompt_option_is_used_without_a_system_prompt() -> None:
    started = launch(replace(REQUEST, adds_system=True), EVERYTHING)

    flags = flags_of(started)
    assert flags["--append-system-prompt"] == ["-be brief"]
    assert "--append-system-prompt-file" not in flags
    assert "system.md" not in started.files


def test_user_files_are_passed_by_path_and_not_written() -> None:
    options = ClaudeOptions(mcp_config="/my/mcp.json", settings="mine.json")

    started = launch(REQUEST, options)

    assert flags_of(started)["--mcp-config"] == ["/my/mcp.json"]
    assert flags_of(started)["--settings"] == ["mine.json"]
    assert started.files == {}


@pytest.mark.parametrize("mode", MODES)
def test_planning_tools_are_denied_only_in_bypass_modes(mode: Mode) -> None:
    flags = flags_of(launch(replace(REQUEST, mode=mode), ClaudeOptions()))

    denied = flags["--disallowedTools"][0].split(",")
    is_bypassing = flags["--permission-mode"] == ["bypassPermissions"]
    assert is_bypassing == (mode in ("full_auto", "dangerously_skip_permissions"))
    assert ("ExitPlanMode" in denied) == is_bypassing


def test_empty_tools_and_setting_sources_are_passed_as_empty_values() -> None:
    started = launch(replace(REQUEST, tools=()), ClaudeOptions(setting_sources=()))

    assert flags_of(started)["--tools"] == [""]
    assert flags_of(started)["--setting-sources"] == [""]


def test_model_and_mode_of_the_turn_override_those_of_the_request() -> None:
    turn = Turn("run_1", "hello", model="haiku", mode="full_auto")

    flags = flags_of(launch(replace(REQUEST, turn=turn, model="opus"), ClaudeOptions()))

    assert flags["--model"] == ["haiku"]
    assert flags["--permission-mode"] == ["bypassPermissions"]


def test_resumed_session_has_its_model_and_no_session_id_flag() -> None:
    flags = flags_of(launch(replace(REQUEST, resume="token", model="opus"), ClaudeOptions()))

    assert flags["--resume"] == ["token"]
    assert flags["--model"] == ["opus"]
    assert "--session-id" not in flags


def test_every_process_has_a_different_session_id() -> None:
    other = replace(REQUEST, directory="/home/processes/prc_2")
    [one], [two] = (
        flags_of(launch(each, ClaudeOptions()))["--session-id"] for each in (REQUEST, other)
    )

    assert one != two
    assert uuid.UUID(one).version == 4


def test_options_set_environment_variables() -> None:
    options = ClaudeOptions(auto_compact_window=150_000, max_retries=0)

    assert launch(REQUEST, options).env == {
        "CLAUDE_CODE_EMIT_SESSION_STATE_EVENTS": "1",
        "CLAUDE_CODE_AUTO_COMPACT_WINDOW": "150000",
        "CLAUDE_CODE_MAX_RETRIES": "0",
        "DISABLE_AUTOUPDATER": "1",
    }


# -- what a message holds


def test_images_come_after_the_text() -> None:
    data = base64.b64encode(PICTURE.data).decode()

    assert build_content("look", (PICTURE,)) == [
        {"type": "text", "text": "look"},
        {
            "type": "image",
            "source": {"type": "base64", "media_type": "image/png", "data": data},
        },
    ]


@given(st.text())
def test_content_never_begins_with_a_slash_and_keeps_the_text(text: str) -> None:
    said = build_content(text)

    assert isinstance(said, str)
    assert not said.startswith("/")
    assert said == text or said == f" {text}"


# -- bad input


@pytest.mark.parametrize(
    ("asked", "problem"),
    [
        ({"tools": ("Read", "-x")}, "tools: expected a name"),
        ({"turn": Turn("run_1", "x", schema={"x": "y" * 200_000})}, "the schema is too long"),
    ],
)
def test_invalid_tools_and_long_schemas_are_refused(asked: dict[str, Any], problem: str) -> None:
    with pytest.raises(InvalidUsage, match=problem):
        launch(replace(REQUEST, **asked), ClaudeOptions())


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"auto_compact_window": 99_999}, "auto_compact_window: expected at least 100000 .* 99999"),
        ({"max_retries": 16}, "max_retries: expected 0 to 15, found 16"),
        ({"max_retries": -1}, "max_retries: expected 0 to 15, found -1"),
        ({"append_system_prompt": "x" * 4001}, "append_system_prompt: .* at most 4000 .* 4001"),
        ({"append_system_prompt": "\0"}, "append_system_prompt: expected a text"),
        ({"fallback_model": "-x"}, "fallback_model: expected a name .* found '-x'"),
        ({"disallowed_tools": ["Bash", ""]}, "disallowed_tools: expected a name .* found ''"),
        ({"add_dirs": ["~/x"]}, "add_dirs: expected a path .* found '~/x'"),
        ({"debug_file": "~/x"}, "debug_file: expected a path"),
        ({"mcp_config": ""}, "mcp_config: expected a path"),
        ({"settings": "-s"}, "settings: expected a path"),
        ({"effort": "much"}, r"Invalid enum value 'much' - at `\$.effort`"),
        ({"setting_sources": ["all"]}, r"Invalid enum value 'all' - at `\$.setting_sources"),
        ({"one_shot": "yes"}, r"Expected `bool`, got `str` - at `\$.one_shot`"),
        ({"oneshot": True}, "unknown field `oneshot`"),
    ],
)  # fmt: skip
def test_error_of_an_invalid_option_names_the_expected_value(
    options: dict[str, Any], problem: str
) -> None:
    with pytest.raises(msgspec.ValidationError, match=problem):
        msgspec.convert(options, ClaudeOptions)
