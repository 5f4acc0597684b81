"""Builds the command line, the files and the environment of Claude Code. See docs/providers.md.

Some options of Claude Code take all values up to the next option. So each is followed by another
option, and no argument is positional. Values that may be long or secret are passed as files.
"""

import base64
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal
from uuid import UUID

import msgspec
from msgspec import Struct

from steadyrun.dialect import EnforcedRights, Image, Launch, LaunchRequest, Program, Rung, Turn
from steadyrun.errors import InvalidUsage
from steadyrun.model.event import JsonObject
from steadyrun.model.policy import TOOLS, Mode, Rights
from steadyrun.model.quotation import quote
from steadyrun.providers.shared.arguments import (
    LONGEST_ARGUMENT_BYTES,
    check_argument,
    check_images,
    check_option_names,
    is_argument,
    refuse_option,
)
from steadyrun.providers.shared.prompt_file import PROMPT_FILE, READ_FILE, build_prompt_prefix

PROGRAM = Program(
    name="claude",
    tested=("2.1.197", "2.1.197"),
    install="npm install -g @anthropic-ai/claude-code",
    login_env=("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN", "CLAUDE_CODE_OAUTH_TOKEN"),
    login="`claude` and /login",
    login_file=".credentials.json",
    login_folder=("CLAUDE_CONFIG_DIR", ".claude"),
)
_BYPASS = "bypassPermissions"
# The modes of steadyrun, and their names in Claude Code.
MODES: Mapping[Mode, str] = {
    "default": "default",
    "accept_edits": "acceptEdits",
    "plan": "plan",
    "full_auto": _BYPASS,
    "dangerously_skip_permissions": _BYPASS,
}
# In a mode without approvals, the agent would enter plan mode without approval, but would need one
# to leave it.
PLANNING = ("EnterPlanMode", "ExitPlanMode")
LONGEST_APPENDED = 4000
SMALLEST_WINDOW = 100_000
MOST_RETRIES = 15

_SYSTEM, _MCP, _SETTINGS = "system.md", "mcp.json", "settings.json"
_PRINTS_JSON = ("--output-format", "stream-json", "--verbose")
_READS_JSON = ("--input-format", "stream-json")
# `READ_FILE` through a pipe: Claude Code 2.1.197 exits without output if its JSON input is a short
# file.
_READ_PIPE = 'mkfifo -m 600 "$0.pipe" && { cat "$0" >"$0.pipe" & exec "$@" <"$0.pipe"; }'
_SIGINT = 2
_STOP_STEPS = (Rung("will", 2.0), Rung("signal", 2.0, _SIGINT))

PromptContent = str | list[JsonObject]
Effort = Literal["low", "medium", "high", "xhigh", "max"]
SettingSource = Literal["user", "project", "local"]


class ClaudeOptions(Struct, frozen=True, forbid_unknown_fields=True):
    """The options of `providers.claude`; docs/providers.md describes each one.

    An invalid value raises ValueError, which msgspec adds to its own error.
    """

    one_shot: bool = False
    effort: Effort | None = None
    fallback_model: str | None = None
    append_system_prompt: str | None = None
    add_dirs: tuple[str, ...] = ()
    disallowed_tools: tuple[str, ...] = ()
    mcp_config: JsonObject | str | None = None
    strict_mcp_config: bool = False
    settings: JsonObject | str | None = None
    setting_sources: tuple[SettingSource, ...] | None = None
    debug_file: str | None = None
    include_partial_messages: bool = True
    auto_compact_window: int = 200_000
    max_retries: int = 2

    def __post_init__(self) -> None:
        self._check_names()
        self._check_appended()
        if self.auto_compact_window < SMALLEST_WINDOW:
            # Claude Code silently raises a smaller value to this minimum.
            expected = f"at least {SMALLEST_WINDOW} tokens"
            refuse_option("auto_compact_window", expected, self.auto_compact_window)
        if not 0 <= self.max_retries <= MOST_RETRIES:
            refuse_option("max_retries", f"0 to {MOST_RETRIES}", self.max_retries)

    def _check_names(self) -> None:
        names = [("fallback_model", self.fallback_model)]
        names += [("disallowed_tools", each) for each in self.disallowed_tools]
        check_option_names(names)
        paths = [(name, getattr(self, name)) for name in ("mcp_config", "settings", "debug_file")]
        paths += [("add_dirs", each) for each in self.add_dirs]
        for name, path in paths:
            if isinstance(path, str) and (not is_argument(path) or path.startswith("~")):
                expected = "a path without ~ that does not begin with -"
                refuse_option(name, expected, quote(path))

    def _check_appended(self) -> None:
        text = self.append_system_prompt or ""
        if len(text) > LONGEST_APPENDED:
            refuse_option(
                "append_system_prompt", f"at most {LONGEST_APPENDED} characters", len(text)
            )
        if "\0" in text:
            refuse_option("append_system_prompt", "a text", "a zero byte in it")


def enforce(rights: Rights, options: ClaudeOptions) -> EnforcedRights:
    """Tools are removed by name, tools of MCP servers only one by one."""
    notes = []
    if rights.tools is not None and options.mcp_config is not None:
        notes.append(
            "the list of tools does not apply to the tools of mcp_config: deny those by name"
        )
    by_command = [name for name in TOOLS if name in rights.deny and name != "WebSearch"]
    if by_command and "Bash" in rights.allowed:
        denied = ", ".join(by_command)
        notes.append(f"a command can do the same as the denied tools ({denied}): deny Bash, too")
    return EnforcedRights(rights.mode, tuple(notes))


def launch(request: LaunchRequest, options: ClaudeOptions) -> Launch:
    """Return how to start Claude Code, or raise a named error that explains why not."""
    check_images(request.turn.images)
    command = (*(request.command or (PROGRAM.name,)), *_build_arguments(request, options))
    return Launch(
        argv=(*_build_prompt_prefix(request), *command) if options.one_shot else command,
        env=_build_env(options),
        files=dict(_build_files(request, options)),
        stdin="null" if options.one_shot else "pipe",
        # Closing stdin is no step: Claude Code would continue with queued messages.
        rungs=_STOP_STEPS[1:] if options.one_shot else _STOP_STEPS,
    )


def build_content(text: str, images: Sequence[Image] = ()) -> PromptContent:
    """Build the content of a message: the text, followed by the images.

    A space is put before a leading slash, because Claude Code would run the text as a command.
    """
    escaped = f" {text}" if text.startswith("/") else text
    if not images:
        return escaped
    return [{"type": "text", "text": escaped}, *map(_build_image_block, images)]


def to_uuid(name: str) -> str:
    """Derive a uuid from a name. Claude Code accepts only uuids as ids."""
    return str(UUID(bytes=hashlib.sha256(name.encode()).digest()[:16], version=4))


def _build_prompt_prefix(request: LaunchRequest) -> tuple[str, ...]:
    script = _READ_PIPE if request.turn.images else READ_FILE
    return build_prompt_prefix(request.directory, script)


def _build_arguments(request: LaunchRequest, options: ClaudeOptions) -> Iterator[str]:
    yield from _PRINTS_JSON
    if options.one_shot:
        yield from ("-p", *(_READS_JSON if request.turn.images else ()))
    else:
        yield from (*_READS_JSON, "--replay-user-messages")
    if options.include_partial_messages:
        yield "--include-partial-messages"
    yield from _build_rights(request, options)
    yield from _build_conversation(request, options)
    yield from _build_prompts(request, options)
    yield from _build_settings(request, options)


def _build_rights(request: LaunchRequest, options: ClaudeOptions) -> Iterator[str]:
    mode = MODES[request.turn.mode or request.mode]
    yield from ("--permission-mode", mode)
    # Set in every mode, because the mode may change. A process for one turn cannot receive
    # answers, and refuses by itself.
    if not options.one_shot:
        yield from ("--permission-prompt-tool", "stdio")
    planning = PLANNING if mode == _BYPASS else ()
    denied = dict.fromkeys((*request.deny, *options.disallowed_tools, *planning))
    if denied:
        yield from ("--disallowedTools", ",".join(check_argument("deny", each) for each in denied))
    if request.tools is not None:
        yield from ("--tools", ",".join(check_argument("tools", each) for each in request.tools))


def _build_conversation(request: LaunchRequest, options: ClaudeOptions) -> Iterator[str]:
    if request.resume is None:
        # Each process has a directory of its own, so its id is unique.
        yield from ("--session-id", to_uuid(Path(request.directory).name))
    else:
        yield from ("--resume", check_argument("resume", request.resume))
    model = request.turn.model or request.model
    if model is not None:
        check_argument("model", model)
    yield from _build_options(
        {
            "--model": model,
            "--fallback-model": options.fallback_model,
            "--effort": options.effort,
            "--max-turns": request.max_turns,
            "--max-budget-usd": request.max_cost_usd,
        }
    )
    if request.turn.schema is not None:
        yield from ("--json-schema", _encode_schema(request.turn.schema))


def _build_options(values: Mapping[str, str | float | None]) -> Iterator[str]:
    """Build options with their values, without those that have no value."""
    for option, value in values.items():
        if value is not None:
            yield from (option, str(value))


def _build_prompts(request: LaunchRequest, options: ClaudeOptions) -> Iterator[str]:
    file, is_added = str(Path(request.directory) / _SYSTEM), request.adds_system
    if request.system is not None:
        yield from ("--append-system-prompt-file" if is_added else "--system-prompt-file", file)
    if options.append_system_prompt and not (is_added and request.system is not None):
        yield from ("--append-system-prompt", options.append_system_prompt)


def _build_settings(request: LaunchRequest, options: ClaudeOptions) -> Iterator[str]:
    directory, sources = Path(request.directory), options.setting_sources
    for each in options.add_dirs:
        yield from ("--add-dir", each)
    if options.strict_mcp_config:
        yield "--strict-mcp-config"
    yield from _build_options(
        {
            "--mcp-config": _choose_path(options.mcp_config, directory / _MCP),
            "--settings": _choose_path(options.settings, directory / _SETTINGS),
            "--setting-sources": None if sources is None else ",".join(sources),
            "--debug-file": options.debug_file,
        }
    )


def _build_files(request: LaunchRequest, options: ClaudeOptions) -> Iterator[tuple[str, bytes]]:
    if request.system is not None:
        yield _SYSTEM, _build_system(request.system, request, options).encode()
    for name, given in ((_MCP, options.mcp_config), (_SETTINGS, options.settings)):
        if isinstance(given, dict):
            yield name, msgspec.json.encode(given)
    if options.one_shot:
        yield PROMPT_FILE, _build_prompt(request.turn)


def _build_system(system: str, request: LaunchRequest, options: ClaudeOptions) -> str:
    """Join the appended texts, because Claude Code accepts only one."""
    if request.adds_system and options.append_system_prompt:
        return f"{system}\n\n{options.append_system_prompt}"
    return system


def _build_prompt(turn: Turn) -> bytes:
    """Encode the prompt as plain text, or as one line of JSON if it has images."""
    content = build_content(turn.text, turn.images)
    if isinstance(content, str):
        return content.encode()
    message = {"role": "user", "content": content}
    return msgspec.json.encode({"type": "user", "message": message}) + b"\n"


def _build_env(options: ClaudeOptions) -> dict[str, str]:
    return {
        "CLAUDE_CODE_EMIT_SESSION_STATE_EVENTS": "1",
        "CLAUDE_CODE_AUTO_COMPACT_WINDOW": str(options.auto_compact_window),
        "CLAUDE_CODE_MAX_RETRIES": str(options.max_retries),
        "DISABLE_AUTOUPDATER": "1",
    }


def _encode_schema(schema: JsonObject) -> str:
    given = msgspec.json.encode(schema)
    if len(given) > LONGEST_ARGUMENT_BYTES:
        expected = f"expected at most {LONGEST_ARGUMENT_BYTES} bytes"
        raise InvalidUsage(f"the schema is too long: {expected}, found {len(given)}")
    return given.decode()


def _choose_path(given: JsonObject | str | None, ours: Path) -> str | None:
    """Choose the path of the user, or the file that is written for a given object."""
    return str(ours) if isinstance(given, dict) else given


def _build_image_block(image: Image) -> JsonObject:
    data = base64.b64encode(image.data).decode()
    source = {"type": "base64", "media_type": image.media_type, "data": data}
    return {"type": "image", "source": source}
