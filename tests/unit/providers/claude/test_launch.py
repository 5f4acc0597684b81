"""How Claude Code is started, and what a message to it holds."""

import base64
import json
import subprocess
import sys
import uuid
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from steadyrun.dialect import Image, Launch, LaunchRequest, Turn
from steadyrun.errors import InvalidUsage
from steadyrun.model.media import LARGEST_IMAGE_BYTES
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


def test_a_process_for_many_turns_speaks_json_both_ways_and_echoes() -> None:
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


def test_everything_that_can_be_asked_for_has_its_flag() -> None:
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


def test_a_system_prompt_that_is_added_leaves_its_own_in_place() -> None:
    started = launch(replace(REQUEST, system="You are S.", adds_system=True), ClaudeOptions())

    flags = flags_of(started)
    assert flags["--append-system-prompt-file"] == ["/home/processes/prc_1/system.md"]
    assert "--system-prompt-file" not in flags
    assert started.files["system.md"] == b"You are S."


def test_it_is_added_once_with_what_the_options_add() -> None:
    # Claude Code refuses to be given both flags.
    started = launch(replace(REQUEST, system="You are S.", adds_system=True), EVERYTHING)

    flags = flags_of(started)
    assert "--append-system-prompt" not in flags
    assert started.files["system.md"] == b"You are S.\n\n-be brief"


def test_where_there_is_nothing_to_add_the_options_hold() -> None:
    started = launch(replace(REQUEST, adds_system=True), EVERYTHING)

    flags = flags_of(started)
    assert flags["--append-system-prompt"] == ["-be brief"]
    assert "--append-system-prompt-file" not in flags
    assert "system.md" not in started.files


def test_files_of_the_users_own_are_named_and_not_written() -> None:
    options = ClaudeOptions(mcp_config="/my/mcp.json", settings="mine.json")

    started = launch(REQUEST, options)

    assert flags_of(started)["--mcp-config"] == ["/my/mcp.json"]
    assert flags_of(started)["--settings"] == ["mine.json"]
    assert started.files == {}


@pytest.mark.parametrize("mode", MODES)
def test_only_a_mode_that_asks_nothing_has_no_tools_for_planning(mode: Mode) -> None:
    flags = flags_of(launch(replace(REQUEST, mode=mode), ClaudeOptions()))

    denied = flags["--disallowedTools"][0].split(",")
    is_bypassing = flags["--permission-mode"] == ["bypassPermissions"]
    assert is_bypassing == (mode in ("full_auto", "dangerously_skip_permissions"))
    assert ("ExitPlanMode" in denied) == is_bypassing


def test_no_tools_and_no_settings_are_said_as_such() -> None:
    started = launch(replace(REQUEST, tools=()), ClaudeOptions(setting_sources=()))

    assert flags_of(started)["--tools"] == [""]
    assert flags_of(started)["--setting-sources"] == [""]


def test_what_a_turn_asks_for_is_stronger_than_what_the_process_has() -> None:
    turn = Turn("run_1", "hello", model="haiku", mode="full_auto")

    flags = flags_of(launch(replace(REQUEST, turn=turn, model="opus"), ClaudeOptions()))

    assert flags["--model"] == ["haiku"]
    assert flags["--permission-mode"] == ["bypassPermissions"]


def test_a_conversation_is_resumed_with_its_model_and_without_an_id_of_ours() -> None:
    flags = flags_of(launch(replace(REQUEST, resume="token", model="opus"), ClaudeOptions()))

    assert flags["--resume"] == ["token"]
    assert flags["--model"] == ["opus"]
    assert "--session-id" not in flags


def test_every_process_has_an_id_of_its_own() -> None:
    other = replace(REQUEST, directory="/home/processes/prc_2")
    [one], [two] = (
        flags_of(launch(each, ClaudeOptions()))["--session-id"] for each in (REQUEST, other)
    )

    assert one != two
    assert uuid.UUID(one).version == 4


def test_the_environment_is_what_the_options_say() -> None:
    options = ClaudeOptions(auto_compact_window=150_000, max_retries=0)

    assert launch(REQUEST, options).env == {
        "CLAUDE_CODE_EMIT_SESSION_STATE_EVENTS": "1",
        "CLAUDE_CODE_AUTO_COMPACT_WINDOW": "150000",
        "CLAUDE_CODE_MAX_RETRIES": "0",
        "DISABLE_AUTOUPDATER": "1",
    }


def test_a_configured_command_takes_the_place_of_the_usual_one() -> None:
    started = launch(replace(REQUEST, command=("/opt/claude", "--x")), ClaudeOptions())

    assert started.argv[:3] == ("/opt/claude", "--x", "--output-format")


# -- one turn, one process


def started_by(tmp_path: Path, turn: Turn) -> tuple[list[str], bytes]:
    """Really start it, in place of Claude Code a program that tells what it was given."""
    told = "import sys, json; print(json.dumps(sys.argv[1:])); print(sys.stdin.read(), end='')"
    request = replace(
        REQUEST, turn=turn, directory=str(tmp_path), command=(sys.executable, "-c", told)
    )
    started = launch(request, ClaudeOptions(one_shot=True))
    for name, written in started.files.items():
        (tmp_path / name).write_bytes(written)

    done = subprocess.run(
        started.argv, stdin=subprocess.DEVNULL, capture_output=True, timeout=30, check=True
    )
    arguments, _, stdin = done.stdout.partition(b"\n")
    assert started.stdin == "null"
    assert [rung.do for rung in started.rungs] == ["signal"]
    return json.loads(arguments), stdin


@pytest.mark.parametrize("text", ["hello", "x" * 400_000, "--version", "ä\n$(id) `id` \"'"])
def test_one_turn_reads_its_prompt_of_any_length_from_a_file(tmp_path: Path, text: str) -> None:
    arguments, stdin = started_by(tmp_path, Turn("run_1", text))

    assert stdin.decode() == text
    assert arguments[:4] == ["--output-format", "stream-json", "--verbose", "-p"]
    assert not {"--input-format", "--permission-prompt-tool", text} & set(arguments)


@pytest.mark.parametrize("size", [10, 1_000_000])
def test_one_turn_with_pictures_reads_a_line_of_json_from_a_pipe(tmp_path: Path, size: int) -> None:
    picture = Image("image/png", PICTURE.data + b"p" * size)

    arguments, stdin = started_by(tmp_path, Turn("run_1", "/look", (picture,)))

    assert arguments[4:6] == ["--input-format", "stream-json"]
    assert json.loads(stdin) == {
        "type": "user",
        "message": {"role": "user", "content": build_content("/look", (picture,))},
    }
    assert stdin.count(b"\n") == 1


# -- what a message holds


def test_pictures_come_after_the_text() -> None:
    data = base64.b64encode(PICTURE.data).decode()

    assert build_content("look", (PICTURE,)) == [
        {"type": "text", "text": "look"},
        {
            "type": "image",
            "source": {"type": "base64", "media_type": "image/png", "data": data},
        },
    ]


@given(st.text())
def test_no_text_begins_with_a_slash_and_none_is_lost(text: str) -> None:
    said = build_content(text)

    assert isinstance(said, str)
    assert not said.startswith("/")
    assert said == text or said == f" {text}"


# -- bad input


@pytest.mark.parametrize(
    ("images", "problem"),
    [
        ([PICTURE] * 11, "at most 10 images, found 11"),
        ([PICTURE, Image("image/tiff", b"x")], "image 2: expected png, jpeg, webp or gif"),
        (
            [PICTURE, Image("image/gif", b"PNG")],
            "image 2: expected image/gif, found something else",
        ),
        (
            [Image("image/gif", b"GIF89a" + bytes(LARGEST_IMAGE_BYTES))],
            "image 1: expected at most 20",
        ),
        (
            [Image("image/gif", b"GIF89a" + bytes(LARGEST_IMAGE_BYTES - 6))] * 3,
            "at most 50.0 MB of images",
        ),
    ],
)
def test_too_many_or_too_large_pictures_are_refused(images: list[Image], problem: str) -> None:
    with pytest.raises(InvalidUsage, match=problem):
        launch(replace(REQUEST, turn=Turn("run_1", "x", tuple(images))), ClaudeOptions())


@pytest.mark.parametrize(
    ("asked", "problem"),
    [
        ({"model": "--dangerous"}, "model: expected a name"),
        ({"model": " "}, "model: expected a name"),
        ({"resume": "-x"}, "resume: expected a name"),
        ({"tools": ("Read", "-x")}, "tools: expected a name"),
        ({"turn": Turn("run_1", "x", schema={"x": "y" * 200_000})}, "the schema is too long"),
    ],
)
def test_what_would_be_taken_for_something_else_is_refused(
    asked: dict[str, Any], problem: str
) -> None:
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
def test_the_error_of_an_invalid_option_names_what_was_expected(
    options: dict[str, Any], problem: str
) -> None:
    with pytest.raises(msgspec.ValidationError, match=problem):
        msgspec.convert(options, ClaudeOptions)


def test_the_page_has_every_option_with_its_default() -> None:
    page = (Path(__file__).parents[4] / "docs/providers.md").read_text(encoding="utf-8")
    section = page.partition("\n## claude\n")[2].partition("\n## ")[0]
    table = section.partition("| option |")[2].partition("\n\n")[0]
    rows = [line.split("|")[1:3] for line in table.splitlines() if line.startswith("| `")]
    shown = {name.strip(" `"): default.strip(" `") for name, default in rows}

    defaults = msgspec.to_builtins(ClaudeOptions())
    assert list(shown) == list(defaults)
    for name, default in defaults.items():
        if isinstance(default, bool | int):
            assert shown[name] == json.dumps(default), name
    assert all(name in section for name in DENIED)
