"""How Codex is started, and what a thread and a turn of it hold."""

import base64
import json
import math
import subprocess
import sys
import tomllib
from datetime import date
from pathlib import Path
from typing import Any
from uuid import UUID

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from steadyrun.dialect import Image, Launch, LaunchRequest, Turn
from steadyrun.errors import InvalidUsage
from steadyrun.model.media import LARGEST_IMAGE_BYTES
from steadyrun.model.policy import Mode
from steadyrun.providers.codex.config_toml import check_toml, merge_tables, to_toml
from steadyrun.providers.codex.launch import (
    MODES,
    PROGRAM,
    RESUMED,
    CodexOptions,
    build_input,
    build_thread_params,
    build_turn_params,
    find_mode_note,
    launch,
)

PLACE = "/home/processes/prc_1"
REQUEST = LaunchRequest(Turn("run_1", "hello"), "/work", PLACE)
ONE_SHOT = CodexOptions(one_shot=True)
THREAD = "01a1e3f4-0000-7000-8000-000000000000"
PICTURE = Image("image/png", b"\x89PNG\r\n\x1a\n and more")
HOSTILE = 'a"b\\c\n\t\r\x7f\0\x1f é 😀 \'\'\' """ $(id) `id` {x=1} # =] -c'
SCHEMA = {"type": "object"}
BARE = {"--json", "--skip-git-repo-check"}
QUIET = {"analytics": {"enabled": False}, "check_for_update_on_startup": False}
SERVER = {"command": "uvx", "args": ["server"], "env": {"KEY.1": HOSTILE}}
PROVIDER = {
    "model_provider": "mine",
    "model_providers": {"mine": {"base_url": "http://127.0.0.1:1/v1", "env_key": "KEY"}},
}
EVERYTHING = CodexOptions(
    effort="low",
    base_instructions="-You are B.",
    add_dirs=("/a", "/b c"),
    mcp_servers={"s": SERVER},
    auto_compact_token_limit=50_000,
    instant_interrupt=False,
    enabled_features=("memories",),
    config={
        "model": "theirs",
        "approval_policy": "untrusted",
        "sandbox_mode": "danger-full-access",
        "developer_instructions": "theirs",
        "model_reasoning_effort": "high",
        "model_verbosity": "low",
        "mcp_servers": {"other": {"url": "http://127.0.0.1:2"}},
        "sandbox_workspace_write": {"network_access": True, "writable_roots": ["/c", "/a"]},
        **PROVIDER,
    },
)
ALL_ASKED = replace(
    REQUEST,
    turn=Turn("run_1", "hello", (PICTURE, PICTURE), schema=SCHEMA),
    model="gpt-5.4",
    system=HOSTILE,
)
# What is laid over Codex's own config by EVERYTHING, in either shape.
LAID = {
    "model_reasoning_effort": "low",
    "model_verbosity": "low",
    "model_auto_compact_token_limit": 50_000,
    "model_auto_compact_token_limit_scope": "total",
    "mcp_servers": {"other": {"url": "http://127.0.0.1:2"}, "s": SERVER},
    "sandbox_workspace_write": {"network_access": True, "writable_roots": ["/c", "/a", "/b c"]},
}


def flags_of(words: list[str]) -> dict[str, list[str]]:
    """Every option with its values, as Codex would read them; nothing is left over."""
    flags: dict[str, list[str]] = {}
    while words:
        flag = words.pop(0)
        assert flag.startswith("-"), f"{flag} is given by position"
        values = flags.setdefault(flag, [])
        if flag not in BARE:
            values.append(words.pop(0))
    return flags


def arguments_of(started: Launch) -> list[str]:
    return list(started.argv[started.argv.index(PROGRAM.name) + 1 :])


def settings_of(given: list[str]) -> dict[str, Any]:
    """The values of -c, read as Codex reads them: each is TOML by itself, each key stands once."""
    pairs = [each.partition("=") for each in given]
    settings = {key: tomllib.loads(f"x = {value}")["x"] for key, _, value in pairs}
    assert len(settings) == len(pairs)
    return settings


# -- many turns, one process


def test_an_app_server_is_quiet_and_sets_itself_no_goals() -> None:
    started = launch(REQUEST, CodexOptions())

    shape, *rest = arguments_of(started)
    flags = flags_of(rest)
    assert started.argv[0] == "codex"
    assert shape == "app-server"
    assert settings_of(flags.pop("-c")) == QUIET
    assert flags == {"--disable": ["goals"]}
    assert started.stdin == "pipe"
    assert started.files == {}
    assert [(rung.do, rung.wait_seconds) for rung in started.rungs] == [("will", 2), ("eof", 2)]


def test_an_app_server_is_given_nothing_long_or_secret_by_its_arguments() -> None:
    started = launch(ALL_ASKED, EVERYTHING)

    flags = flags_of(arguments_of(started)[1:])
    assert settings_of(flags.pop("-c")) == {**QUIET, **PROVIDER}
    assert flags == {"--disable": ["goals", "instant_interrupt"], "--enable": ["memories"]}
    assert started.files == {}


def test_a_thread_has_its_directory_and_its_policy() -> None:
    assert build_thread_params(REQUEST, CodexOptions()) == {
        "cwd": "/work",
        "approvalPolicy": "on-request",
        "approvalsReviewer": "user",
        "sandbox": "read-only",
    }


def test_what_was_asked_for_is_stronger_than_options_and_they_than_config() -> None:
    params = build_thread_params(ALL_ASKED, EVERYTHING)

    config = params.pop("config")
    assert params == {
        "cwd": "/work",
        "approvalPolicy": "on-request",
        "approvalsReviewer": "user",
        "sandbox": "read-only",
        "model": "gpt-5.4",
        "developerInstructions": HOSTILE,
        "baseInstructions": "-You are B.",
    }
    # Weaker than the same among the params: tried with Codex 0.166.0.
    weaker = {"model", "approval_policy", "sandbox_mode", "developer_instructions"}
    assert {key: value for key, value in config.items() if key not in weaker} == LAID


def test_what_a_turn_asks_for_is_stronger_than_what_the_process_has() -> None:
    turn = Turn("run_1", "hello", model="mini", mode="full_auto")

    params = build_thread_params(replace(REQUEST, turn=turn, model="gpt-5.4"), CodexOptions())

    assert params["model"] == "mini"
    assert params["approvalPolicy"] == "never"


@pytest.mark.parametrize(
    ("mode", "asks", "sandbox", "policy"),
    [
        ("default", "on-request", "workspace-write", "workspaceWrite"),
        ("accept_edits", "on-request", "workspace-write", "workspaceWrite"),
        ("plan", "never", "read-only", "readOnly"),
        ("full_auto", "never", "workspace-write", "workspaceWrite"),
        ("dangerously_skip_permissions", "never", "danger-full-access", "dangerFullAccess"),
    ],
)
def test_a_mode_sets_the_approval_policy_and_the_sandbox(
    mode: Mode, asks: str, sandbox: str, policy: str
) -> None:
    request = replace(REQUEST, mode=mode)

    thread = build_thread_params(request, CodexOptions())
    turn = build_turn_params(Turn("run_1", "x", mode=mode), CodexOptions())
    flags = flags_of(arguments_of(launch(request, ONE_SHOT))[1:-1])

    # A thread that may write makes Codex trust the project: what it may do is said with each turn.
    assert (thread["approvalPolicy"], thread["sandbox"]) == (asks, "read-only")
    assert (turn["approvalPolicy"], turn["sandboxPolicy"]["type"]) == (asks, policy)
    # No user can be asked.
    assert settings_of(flags["-c"])["approval_policy"] == "never"
    assert settings_of(flags["-c"])["sandbox_mode"] == sandbox


@pytest.mark.parametrize("mode", MODES)
def test_a_mode_that_codex_implements_differently_has_a_note(mode: Mode) -> None:
    assert (find_mode_note(mode) is not None) == (mode == "accept_edits")


def test_a_turn_adds_nothing_that_was_not_asked_for() -> None:
    assert build_turn_params(Turn("run_1", "x"), CodexOptions()) == {}


def test_a_turn_may_have_a_model_a_mode_and_a_schema_of_its_own() -> None:
    turn = Turn("run_1", "x", schema=SCHEMA, model="mini", mode="full_auto")

    assert build_turn_params(turn, EVERYTHING) == {
        "model": "mini",
        "effort": "low",
        "approvalPolicy": "never",
        "sandboxPolicy": {
            "type": "workspaceWrite",
            "writableRoots": ["/c", "/a", "/b c"],
            "networkAccess": True,
            "excludeSlashTmp": False,
            "excludeTmpdirEnvVar": False,
        },
        "outputSchema": SCHEMA,
    }


def test_a_configured_command_takes_the_place_of_the_usual_one() -> None:
    started = launch(replace(REQUEST, command=("/opt/codex", "--x")), CodexOptions())

    assert started.argv[:3] == ("/opt/codex", "--x", "app-server")


def test_what_is_enabled_is_not_disabled() -> None:
    options = CodexOptions(enabled_features=("goals",), disabled_features=("goals", "apps", "apps"))

    flags = flags_of(arguments_of(launch(REQUEST, options))[1:])

    assert flags["--enable"] == ["goals"]
    assert flags["--disable"] == ["apps"]


def test_being_quiet_can_be_undone() -> None:
    options = CodexOptions(config={"analytics": {"enabled": True}})

    flags = flags_of(arguments_of(launch(REQUEST, options))[1:])

    assert settings_of(flags["-c"]) == {**QUIET, "analytics": {"enabled": True}}
    assert "config" not in build_thread_params(REQUEST, options)


# -- one turn, one process


def test_exec_gets_all_thread_parameters_as_settings_and_files() -> None:
    started = launch(ALL_ASKED, replace(EVERYTHING, one_shot=True))

    shape, *rest, last = arguments_of(started)
    flags = flags_of(rest)
    assert (shape, last) == ("exec", "-")
    assert settings_of(flags.pop("-c")) == {
        **QUIET,
        **PROVIDER,
        **LAID,
        "model": "theirs",  # --model is stronger
        "approval_policy": "never",
        "sandbox_mode": "workspace-write",
        "projects": {REQUEST.cwd: {"trust_level": "untrusted"}},
        "developer_instructions": HOSTILE,
        "model_instructions_file": f"{PLACE}/base.md",
    }
    assert flags == {
        "--image": [f"{PLACE}/image-1.png", f"{PLACE}/image-2.png"],
        "--json": [],
        "--skip-git-repo-check": [],
        "--model": ["gpt-5.4"],
        "--output-schema": [f"{PLACE}/schema.json"],
        "--disable": ["goals", "instant_interrupt"],
        "--enable": ["memories"],
    }
    assert started.files == {
        "prompt": b"hello",
        "base.md": b"-You are B.",
        "schema.json": b'{"type":"object"}',
        "image-1.png": PICTURE.data,
        "image-2.png": PICTURE.data,
    }


def test_behind_a_picture_stands_another_option_and_not_the_prompt() -> None:
    words = arguments_of(launch(replace(ALL_ASKED, system=None), ONE_SHOT))

    last = max(place for place, each in enumerate(words) if each == "--image")
    assert words[last + 2].startswith("--")


def test_a_conversation_is_resumed_without_the_options_that_resuming_lacks() -> None:
    options = replace(EVERYTHING, one_shot=True)

    words = arguments_of(launch(replace(ALL_ASKED, resume=THREAD), options))

    assert words[:2] == ["exec", "resume"]
    assert words[-2:] == [THREAD, "-"]
    flags = flags_of(words[2:-2])
    assert not {"-s", "--sandbox", "-C", "--cd", "--add-dir", "-p", "--profile"} & set(flags)


def started_by(tmp_path: Path, turn: Turn, resume: str | None = None) -> tuple[list[str], bytes]:
    """Really start it, in place of Codex a program that tells what it was given."""
    told = "import sys, json; print(json.dumps(sys.argv[1:])); print(sys.stdin.read(), end='')"
    command = (sys.executable, "-c", told)
    place = str(tmp_path)
    request = replace(REQUEST, turn=turn, directory=place, command=command, resume=resume)
    started = launch(request, ONE_SHOT)
    for name, written in started.files.items():
        (tmp_path / name).write_bytes(written)

    done = subprocess.run(
        started.argv, stdin=subprocess.DEVNULL, capture_output=True, timeout=30, check=True
    )
    ours, _, printed = done.stdout.partition(b"\n") if resume else (b"", b"", done.stdout)
    if resume:
        assert json.loads(ours) == {"type": RESUMED, "thread_id": resume}
    arguments, _, stdin = printed.partition(b"\n")
    assert started.stdin == "null"
    assert [(rung.do, rung.number) for rung in started.rungs] == [("signal", 2)]
    return json.loads(arguments), stdin


@pytest.mark.parametrize("text", ["hello", "x" * 400_000, "--version", "ä\n$(id) `id` \"'", ""])
def test_one_turn_reads_its_prompt_of_any_length_from_a_file(tmp_path: Path, text: str) -> None:
    arguments, stdin = started_by(tmp_path, Turn("run_1", text))

    assert stdin.decode() == text
    assert arguments[:3] == ["exec", "--json", "--skip-git-repo-check"]
    assert arguments[-1] == "-"


def test_what_is_no_id_of_a_conversation_is_made_one_that_is_not_there() -> None:
    words = arguments_of(launch(replace(REQUEST, resume="no-id"), ONE_SHOT))

    assert UUID(words[-2]).version == 5
    assert words[-1] == "-"


@pytest.mark.parametrize("token", ["token", "a'b", 'a"b$(id)`id`\\'])
def test_a_resumed_exec_first_prints_the_conversation(tmp_path: Path, token: str) -> None:
    arguments, stdin = started_by(tmp_path, Turn("run_1", "hello"), resume=token)

    assert arguments[:2] == ["exec", "resume"]
    assert stdin == b"hello"


# -- what a message holds


def test_pictures_come_after_the_text_as_data() -> None:
    data = base64.b64encode(PICTURE.data).decode()

    assert build_input("/look", (PICTURE,)) == [
        {"type": "text", "text": "/look"},
        {"type": "image", "url": f"data:image/png;base64,{data}"},
    ]


# -- settings as TOML

NUMBERS = st.integers(-(2**63) + 1, 2**63 - 1) | st.floats(allow_nan=False, allow_infinity=False)
PLAIN = st.booleans() | NUMBERS | st.text()
VALUES = st.recursive(
    PLAIN, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=10
)


@given(VALUES)
def test_every_value_is_read_as_what_it_was(value: Any) -> None:
    check_toml("x", value)

    written = to_toml(value)

    assert tomllib.loads(f"x = {written}")["x"] == value
    assert not {"\n", "\0", "\x7f"} & set(written)


def test_tables_become_one_and_all_else_is_replaced() -> None:
    under = {"t": {"a": 1, "b": [1]}, "x": {"a": 1}, "y": 1}
    before = json.dumps(under)

    both = merge_tables(under, {"t": {"b": [2], "c": 3}, "x": 1, "y": {"a": 1}})

    assert both == {"t": {"a": 1, "b": [2], "c": 3}, "x": 1, "y": {"a": 1}}
    assert json.dumps(under) == before


# -- bad input


@pytest.mark.parametrize("options", [CodexOptions(), ONE_SHOT])
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
def test_too_many_or_too_large_pictures_are_refused(
    images: list[Image], problem: str, options: CodexOptions
) -> None:
    with pytest.raises(InvalidUsage, match=problem):
        launch(replace(REQUEST, turn=Turn("run_1", "x", tuple(images))), options)


@pytest.mark.parametrize("options", [CodexOptions(), ONE_SHOT])
@pytest.mark.parametrize(
    ("asked", "problem"),
    [
        ({"model": "--dangerous"}, "model: expected a name"),
        ({"model": " "}, "model: expected a name"),
        ({"model": "a\0b"}, "model: expected a name"),
        ({"turn": Turn("run_1", "x", model="-x")}, "model: expected a name"),
        ({"resume": "-x"}, "resume: expected a name"),
        ({"resume": ""}, "resume: expected a name"),
    ],
)
def test_what_would_be_taken_for_something_else_is_refused(
    asked: dict[str, Any], problem: str, options: CodexOptions
) -> None:
    with pytest.raises(InvalidUsage, match=problem):
        launch(replace(REQUEST, **asked), options)


def test_only_a_one_shot_needs_a_system_prompt_that_fits_an_argument() -> None:
    request = replace(REQUEST, system="é" * 70_000)

    assert build_thread_params(request, CodexOptions())["developerInstructions"] == request.system
    with pytest.raises(
        InvalidUsage, match=r"developer_instructions is too long .* 131071 bytes, found"
    ):
        launch(request, ONE_SHOT)


def test_instructions_and_a_schema_of_any_length_are_files() -> None:
    turn = Turn("run_1", "x", schema={"x": "y" * 200_000})
    options = CodexOptions(one_shot=True, base_instructions="z" * 200_000)

    started = launch(replace(REQUEST, turn=turn), options)

    assert max(map(len, started.argv)) < 1000
    assert len(started.files["schema.json"]) > 200_000
    assert len(started.files["base.md"]) == 200_000


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"effort": ""}, "effort: expected a name .* found ''"),
        ({"effort": "-x"}, "effort: expected a name .* found '-x'"),
        ({"base_instructions": " \n"}, "base_instructions: expected a text"),
        ({"add_dirs": ["/a", "b"]}, "add_dirs: expected a path that begins with /, found 'b'"),
        ({"add_dirs": ["~/x"]}, "add_dirs: expected a path .* found '~/x'"),
        ({"add_dirs": ["-x"]}, "add_dirs: expected a path"),
        ({"add_dirs": [""]}, "add_dirs: expected a path"),
        ({"add_dirs": ["/a\0b"]}, "add_dirs: expected a path"),
        ({"auto_compact_token_limit": 0}, "auto_compact_token_limit: expected .* found 0"),
        ({"auto_compact_token_limit": -1}, "auto_compact_token_limit: expected .* found -1"),
        ({"auto_compact_token_limit": 2**63}, "auto_compact_token_limit: expected"),
        ({"enabled_features": ["a", ""]}, "enabled_features: expected a name"),
        ({"disabled_features": ["--listen"]}, "disabled_features: .* found '--listen'"),
        ({"mcp_servers": {"a.b": {}}}, "mcp_servers: expected names of letters.* 'a.b'"),
        ({"mcp_servers": {"": {}}}, "mcp_servers: expected names"),
        ({"mcp_servers": {"a": "x"}}, "mcp_servers.a: expected an object, found str"),
        ({"mcp_servers": {"a": {"env": {"K": None}}}}, "mcp_servers.a.env.K: expected a text"),
        ({"config": {"a=b": 1}}, "config: expected names .* found 'a=b'"),
        ({"config": {"a.b": 1}}, "config: expected names .* found 'a.b'"),
        ({"config": {"a\n": 1}}, "config: expected names"),
        ({"config": {"a": [1, None]}}, "config.a: expected a text, a number, .* found None"),
        ({"config": {"a": {"b": math.nan}}}, "config.a.b: expected .* found nan"),
        ({"config": {"a": 2**63}}, "config.a: expected"),
        ({"config": {"a": date(2026, 1, 1)}}, "config.a: expected"),
        ({"config": {"sandbox_workspace_write": 1}}, "sandbox_workspace_write: expected an obj"),
        ({"config": {"sandbox_workspace_write": {"writable_roots": "/a"}}}, "a list of paths"),
        ({"config": {"sandbox_workspace_write": {"writable_roots": [{}]}}}, "a list of paths"),
        ({"config": "model=x"}, r"Expected `object`, got `str` - at `\$.config`"),
        ({"one_shot": "yes"}, r"Expected `bool`, got `str` - at `\$.one_shot`"),
        ({"profile": "x"}, "unknown field `profile`"),
    ],
)  # fmt: skip
def test_the_error_of_an_invalid_option_names_what_was_expected(
    options: dict[str, Any], problem: str
) -> None:
    with pytest.raises(msgspec.ValidationError, match=problem):
        msgspec.convert(options, CodexOptions)


def test_the_page_has_every_option_with_its_default() -> None:
    page = (Path(__file__).parents[4] / "docs/providers.md").read_text(encoding="utf-8")
    section = page.partition("\n## codex\n")[2].partition("\n## ")[0]
    table = section.partition("| option |")[2].partition("\n\n")[0]
    rows = [line.split("|")[1:3] for line in table.splitlines() if line.startswith("| `")]
    shown = {name.strip(" `"): default.strip(" `") for name, default in rows}

    defaults = msgspec.to_builtins(CodexOptions())
    assert list(shown) == list(defaults)
    for name, default in defaults.items():
        expected = json.dumps(default) if default not in (None, (), [], {}) else "none"
        assert shown[name] == expected, name
    assert all(f"`{mode}`" in section for mode in MODES)
