"""How Codex is started, and what a thread and a turn of it hold."""

import base64
import json
import math
import tomllib
from datetime import date
from typing import Any
from uuid import UUID

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from steadyrun.dialect import Image, Launch, LaunchRequest, Turn
from steadyrun.errors import InvalidUsage
from steadyrun.model.json_object import merge_objects
from steadyrun.model.policy import Mode
from steadyrun.providers.codex.config_toml import check_toml, to_toml
from steadyrun.providers.codex.launch import (
    MODE_NOTES,
    MODES,
    PROGRAM,
    CodexOptions,
    build_input,
    build_thread_params,
    build_turn_params,
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


def test_app_server_is_started_without_analytics_and_goals() -> None:
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


def test_app_server_arguments_contain_nothing_long_or_secret() -> None:
    started = launch(ALL_ASKED, EVERYTHING)

    flags = flags_of(arguments_of(started)[1:])
    assert settings_of(flags.pop("-c")) == {**QUIET, **PROVIDER}
    assert flags == {"--disable": ["goals", "instant_interrupt"], "--enable": ["memories"]}
    assert started.files == {}


def test_thread_has_its_directory_and_its_policy() -> None:
    assert build_thread_params(REQUEST, CodexOptions()) == {
        "cwd": "/work",
        "approvalPolicy": "on-request",
        "approvalsReviewer": "user",
        "sandbox": "read-only",
    }


def test_request_overrides_options_and_options_override_config() -> None:
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


def test_model_and_mode_of_the_turn_override_those_of_the_request() -> None:
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
def test_mode_sets_the_approval_policy_and_the_sandbox(
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
def test_mode_that_codex_implements_differently_has_a_note(mode: Mode) -> None:
    assert (mode in MODE_NOTES) == (mode == "accept_edits")


def test_turn_without_requests_has_no_parameters() -> None:
    assert build_turn_params(Turn("run_1", "x"), CodexOptions()) == {}


def test_turn_has_its_model_mode_and_schema() -> None:
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


def test_enabled_feature_is_not_disabled() -> None:
    options = CodexOptions(enabled_features=("goals",), disabled_features=("goals", "apps", "apps"))

    flags = flags_of(arguments_of(launch(REQUEST, options))[1:])

    assert flags["--enable"] == ["goals"]
    assert flags["--disable"] == ["apps"]


def test_default_analytics_setting_can_be_overridden() -> None:
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


def test_image_flag_is_not_followed_by_the_prompt() -> None:
    words = arguments_of(launch(replace(ALL_ASKED, system=None), ONE_SHOT))

    last = max(place for place, each in enumerate(words) if each == "--image")
    assert words[last + 2].startswith("--")


def test_resumed_exec_has_no_flags_that_resume_lacks() -> None:
    options = replace(EVERYTHING, one_shot=True)

    words = arguments_of(launch(replace(ALL_ASKED, resume=THREAD), options))

    assert words[:2] == ["exec", "resume"]
    assert words[-2:] == [THREAD, "-"]
    flags = flags_of(words[2:-2])
    assert not {"-s", "--sandbox", "-C", "--cd", "--add-dir", "-p", "--profile"} & set(flags)


def test_invalid_thread_id_is_replaced_by_an_unknown_uuid() -> None:
    words = arguments_of(launch(replace(REQUEST, resume="no-id"), ONE_SHOT))

    assert UUID(words[-2]).version == 5
    assert words[-1] == "-"


# -- what a message holds


def test_images_come_after_the_text_as_data_urls() -> None:
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
def test_toml_value_is_read_back_unchanged(value: Any) -> None:
    check_toml("x", value)

    written = to_toml(value)

    assert tomllib.loads(f"x = {written}")["x"] == value
    assert not {"\n", "\0", "\x7f"} & set(written)


def test_merged_tables_are_combined_and_other_values_replaced() -> None:
    under = {"t": {"a": 1, "b": [1]}, "x": {"a": 1}, "y": 1}
    before = json.dumps(under)

    both = merge_objects(under, {"t": {"b": [2], "c": 3}, "x": 1, "y": {"a": 1}})

    assert both == {"t": {"a": 1, "b": [2], "c": 3}, "x": 1, "y": {"a": 1}}
    assert json.dumps(under) == before


# -- bad input


def test_system_prompt_length_is_limited_only_for_one_shot() -> None:
    request = replace(REQUEST, system="é" * 70_000)

    assert build_thread_params(request, CodexOptions())["developerInstructions"] == request.system
    with pytest.raises(
        InvalidUsage, match=r"developer_instructions is too long .* 131071 bytes, found"
    ):
        launch(request, ONE_SHOT)


def test_long_instructions_and_schema_are_passed_as_files() -> None:
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
def test_error_of_an_invalid_option_names_the_expected_value(
    options: dict[str, Any], problem: str
) -> None:
    with pytest.raises(msgspec.ValidationError, match=problem):
        msgspec.convert(options, CodexOptions)
