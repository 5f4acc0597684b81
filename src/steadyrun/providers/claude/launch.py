"""How is Claude Code started, and what does a message to it hold? See docs/providers.md.

Its options that take several values would eat whatever stands behind them: each is followed by
another option, and nothing here is given by position. What may be long or secret goes into files.
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
from steadyrun.providers.shared.arguments import (
    LONGEST_ARGUMENT_BYTES,
    check_argument,
    check_images,
    is_argument,
    refuse_option,
)

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
# Ours, and what Claude Code calls them.
MODES: Mapping[Mode, str] = {
    "default": "default",
    "accept_edits": "acceptEdits",
    "plan": "plan",
    "full_auto": _BYPASS,
    "dangerously_skip_permissions": _BYPASS,
}
# Where nothing is asked for, entering would go unasked, too, and only leaving would be asked for.
PLANNING = ("EnterPlanMode", "ExitPlanMode")
LONGEST_APPENDED = 4000
SMALLEST_WINDOW = 100_000
MOST_RETRIES = 15

_SYSTEM, _MCP, _SETTINGS, _PROMPT = "system.md", "mcp.json", "settings.json", "prompt"
_PRINTS_JSON = ("--output-format", "stream-json", "--verbose")
_READS_JSON = ("--input-format", "stream-json")
# Become their arguments, with the file that comes first as standard input.
_FROM_FILE = ("/bin/sh", "-c", 'exec "$@" <"$0"')
# Claude Code 2.1.197 ends without a word if its lines of JSON come from a short file itself.
_FROM_PIPE = (
    "/bin/sh",
    "-c",
    'mkfifo -m 600 "$0.pipe" && { cat "$0" >"$0.pipe" & exec "$@" <"$0.pipe"; }',
)
_SIGINT = 2
_STOP_STEPS = (Rung("will", 2.0), Rung("signal", 2.0, _SIGINT))

PromptContent = str | list[JsonObject]
Effort = Literal["low", "medium", "high", "xhigh", "max"]
SettingSource = Literal["user", "project", "local"]


class ClaudeOptions(Struct, frozen=True, forbid_unknown_fields=True):
    """The options of `providers.claude`; docs/providers.md says what each one means.

    What is wrong is a ValueError: msgspec makes it a part of its own error.
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
            # Claude Code takes less than that as if it were that.
            expected = f"at least {SMALLEST_WINDOW} tokens"
            refuse_option("auto_compact_window", expected, self.auto_compact_window)
        if not 0 <= self.max_retries <= MOST_RETRIES:
            refuse_option("max_retries", f"0 to {MOST_RETRIES}", self.max_retries)

    def _check_names(self) -> None:
        words = [("fallback_model", self.fallback_model)]
        words += [("disallowed_tools", each) for each in self.disallowed_tools]
        for name, given in words:
            if given is not None and not is_argument(given):
                expected = "a name that is not empty and does not begin with -"
                refuse_option(name, expected, repr(given[:80]))
        paths = [(name, getattr(self, name)) for name in ("mcp_config", "settings", "debug_file")]
        paths += [("add_dirs", each) for each in self.add_dirs]
        for name, path in paths:
            if isinstance(path, str) and (not is_argument(path) or path.startswith("~")):
                expected = "a path that is written out, without ~, and does not begin with -"
                refuse_option(name, expected, repr(path[:80]))

    def _check_appended(self) -> None:
        text = self.append_system_prompt or ""
        if len(text) > LONGEST_APPENDED:
            refuse_option(
                "append_system_prompt", f"at most {LONGEST_APPENDED} characters", len(text)
            )
        if "\0" in text:
            refuse_option("append_system_prompt", "a text", "a zero byte in it")


def enforce(rights: Rights, options: ClaudeOptions) -> EnforcedRights:
    """Its tools are taken away by name, those of MCP servers only one by one."""
    notes = []
    if rights.tools is not None and options.mcp_config is not None:
        notes.append("the list of tools does not hold for those of mcp_config: deny them by name")
    by_command = [name for name in TOOLS if name in rights.deny and name != "WebSearch"]
    if by_command and "Bash" in rights.allowed:
        denied = ", ".join(by_command)
        notes.append(f"commands can do what is denied ({denied}): deny Bash, too")
    return EnforcedRights(rights.mode, tuple(notes))


def launch(request: LaunchRequest, options: ClaudeOptions) -> Launch:
    """How to start it for this request, or a named error that says why not."""
    check_images(request.turn.images)
    command = (*(request.command or (PROGRAM.name,)), *_build_arguments(request, options))
    return Launch(
        argv=(*_build_prompt_prefix(request), *command) if options.one_shot else command,
        env=_build_env(options),
        files=dict(_build_files(request, options)),
        stdin="null" if options.one_shot else "pipe",
        # Not the end of input: it would go on with what is queued.
        rungs=_STOP_STEPS[1:] if options.one_shot else _STOP_STEPS,
    )


def build_content(text: str, images: Sequence[Image] = ()) -> PromptContent:
    """What a message says: the text, and after it the pictures.

    A text that begins with a slash would be taken for a command of Claude Code, and not be told.
    """
    said = f" {text}" if text.startswith("/") else text
    if not images:
        return said
    return [{"type": "text", "text": said}, *map(_build_image_block, images)]


def to_uuid(name: str) -> str:
    """A name as a uuid: Claude Code takes nothing else for an id."""
    return str(UUID(bytes=hashlib.sha256(name.encode()).digest()[:16], version=4))


def _build_prompt_prefix(request: LaunchRequest) -> tuple[str, ...]:
    """What gives a prompt of any length to the one turn of a process."""
    start = _FROM_PIPE if request.turn.images else _FROM_FILE
    return (*start, str(Path(request.directory) / _PROMPT))


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
    yield from _build_limits(request)
    yield from _build_prompts(request, options)
    yield from _build_settings(request, options)


def _build_rights(request: LaunchRequest, options: ClaudeOptions) -> Iterator[str]:
    mode = MODES[request.turn.mode or request.mode]
    yield from ("--permission-mode", mode)
    # Also where nothing is asked for now: the mode may change. Who is started for one turn cannot
    # be answered, and refuses by itself.
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
        # Another process has another directory: none finds its id in use.
        yield from ("--session-id", to_uuid(Path(request.directory).name))
    else:
        yield from ("--resume", check_argument("resume", request.resume))
    model = request.turn.model or request.model
    if model is not None:
        yield from ("--model", check_argument("model", model))
    if options.fallback_model is not None:
        yield from ("--fallback-model", options.fallback_model)
    if options.effort is not None:
        yield from ("--effort", options.effort)


def _build_limits(request: LaunchRequest) -> Iterator[str]:
    if request.max_turns is not None:
        yield from ("--max-turns", str(request.max_turns))
    if request.max_cost_usd is not None:
        yield from ("--max-budget-usd", str(request.max_cost_usd))
    if request.turn.schema is not None:
        yield from ("--json-schema", _encode_schema(request.turn.schema))


def _build_prompts(request: LaunchRequest, options: ClaudeOptions) -> Iterator[str]:
    file, is_added = str(Path(request.directory) / _SYSTEM), request.adds_system
    if request.system is not None:
        yield from ("--append-system-prompt-file" if is_added else "--system-prompt-file", file)
    if options.append_system_prompt and not (is_added and request.system is not None):
        yield from ("--append-system-prompt", options.append_system_prompt)


def _build_settings(request: LaunchRequest, options: ClaudeOptions) -> Iterator[str]:
    directory = Path(request.directory)
    for each in options.add_dirs:
        yield from ("--add-dir", each)
    if options.mcp_config is not None:
        yield from ("--mcp-config", _choose_path(options.mcp_config, directory / _MCP))
    if options.strict_mcp_config:
        yield "--strict-mcp-config"
    if options.settings is not None:
        yield from ("--settings", _choose_path(options.settings, directory / _SETTINGS))
    if options.setting_sources is not None:
        yield from ("--setting-sources", ",".join(options.setting_sources))
    if options.debug_file is not None:
        yield from ("--debug-file", options.debug_file)


def _build_files(request: LaunchRequest, options: ClaudeOptions) -> Iterator[tuple[str, bytes]]:
    if request.system is not None:
        yield _SYSTEM, _build_system(request.system, request, options).encode()
    for name, given in ((_MCP, options.mcp_config), (_SETTINGS, options.settings)):
        if isinstance(given, dict):
            yield name, msgspec.json.encode(given)
    if options.one_shot:
        yield _PROMPT, _build_prompt(request.turn)


def _build_system(told: str, request: LaunchRequest, options: ClaudeOptions) -> str:
    """Claude Code takes one text that is added, not two."""
    if request.adds_system and options.append_system_prompt:
        return f"{told}\n\n{options.append_system_prompt}"
    return told


def _build_prompt(turn: Turn) -> bytes:
    """The text itself, or one line of JSON where pictures go with it."""
    said = build_content(turn.text, turn.images)
    if isinstance(said, str):
        return said.encode()
    message = {"role": "user", "content": said}
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


def _choose_path(given: JsonObject | str, ours: Path) -> str:
    return given if isinstance(given, str) else str(ours)


def _build_image_block(image: Image) -> JsonObject:
    data = base64.b64encode(image.data).decode()
    source = {"type": "base64", "media_type": image.media_type, "data": data}
    return {"type": "image", "source": source}
