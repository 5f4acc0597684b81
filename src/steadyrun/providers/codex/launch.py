"""How is Codex started, and what do a thread and a turn of it hold? See docs/providers.md.

The app-server is told everything over its pipe; its arguments say only what holds for the process.
`codex exec` has nothing but arguments and files. Either way there is one object of settings, laid
over Codex's own config: what was asked for is stronger than an option with a name of its own, and
that is stronger than the option `config`.
"""

import base64
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from uuid import NAMESPACE_OID, UUID, uuid5

import msgspec
from msgspec import Struct

from steadyrun.dialect import (
    EnforcedRights,
    Image,
    Launch,
    LaunchRequest,
    Program,
    Refused,
    Rung,
    Turn,
)
from steadyrun.errors import InvalidUsage
from steadyrun.model.event import JsonObject
from steadyrun.model.policy import MCP, Mode, Rights
from steadyrun.providers.codex.config_toml import LARGEST_INTEGER, check_toml, merge_tables, to_toml
from steadyrun.providers.shared.arguments import (
    LONGEST_ARGUMENT_BYTES,
    check_argument,
    check_images,
    is_argument,
    refuse_option,
)

PROGRAM = Program(
    name="codex",
    tested=("0.166.0", "0.166.0"),
    install="npm install -g @openai/codex",
    login="`codex login`",
    login_file="auth.json",
    login_folder=("CODEX_HOME", ".codex"),
)
# A model that sets itself a goal has turns without end that nobody has asked for.
DISABLED = ("goals",)
# Ours, and what Codex calls them: who is asked, and what a command may touch.
MODES: Mapping[Mode, tuple[str, str]] = {
    "default": ("on-request", "workspace-write"),
    "accept_edits": ("on-request", "workspace-write"),
    "plan": ("never", "read-only"),
    "full_auto": ("never", "workspace-write"),
    "dangerously_skip_permissions": ("never", "danger-full-access"),
}
# The type of the first line of the journal of a one-shot that goes on with a conversation: what it
# says it has used is then what the whole conversation has, and another one is not what was wanted.
RESUMED = "steadyrun.resumed"

_POLICIES = {
    "workspace-write": "workspaceWrite",
    "read-only": "readOnly",
    "danger-full-access": "dangerFullAccess",
}
_QUIET: JsonObject = {"analytics": {"enabled": False}, "check_for_update_on_startup": False}
# Settings of the process: a thread that has another provider than its process is refused a turn.
_PROCESS_SETTINGS = (*_QUIET, "model_provider", "model_providers")
_ENV = {"RUST_LOG": "error"}
_READING, _WRITING = frozenset({"Read", "Glob", "Grep"}), frozenset({"Write", "Edit"})
_WORKSPACE = "sandbox_workspace_write"
_BASE, _SCHEMA, _PROMPT, _FIRST_LINE = "base.md", "schema.json", "prompt", "prompt.first"
# Become their arguments, with the file that comes first as standard input.
_FROM_FILE = 'exec "$@" <"$0"'
_STOP_STEPS = (Rung("will", 2.0), Rung("eof", 2.0))
_SIGINT = 2
_ONE_SHOT_STOP_STEPS = (Rung("signal", 2.0, _SIGINT),)
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")


class CodexOptions(Struct, frozen=True, forbid_unknown_fields=True):
    """The options of `providers.codex`; docs/providers.md says what each one means.

    What is wrong is a ValueError: msgspec makes it a part of its own error.
    """

    one_shot: bool = False
    effort: str | None = None
    base_instructions: str | None = None
    add_dirs: tuple[str, ...] = ()
    mcp_servers: JsonObject = {}
    auto_compact_token_limit: int | None = None
    instant_interrupt: bool = True
    enabled_features: tuple[str, ...] = ()
    disabled_features: tuple[str, ...] = DISABLED
    config: JsonObject = {}

    def __post_init__(self) -> None:
        self._check_names()
        for each in self.add_dirs:
            if not each.startswith("/") or "\0" in each:
                refuse_option("add_dirs", "a path that begins with /", repr(each[:80]))
        limit = self.auto_compact_token_limit
        if limit is not None and not 0 < limit <= LARGEST_INTEGER:
            refuse_option("auto_compact_token_limit", "a number of tokens above 0", limit)
        self._check_tables()

    def _check_names(self) -> None:
        words = [("effort", self.effort)]
        for name in ("enabled_features", "disabled_features"):
            words += [(name, each) for each in getattr(self, name)]
        for name, given in words:
            if given is not None and not is_argument(given):
                expected = "a name that is not empty and does not begin with -"
                refuse_option(name, expected, repr(given[:80]))
        if self.base_instructions is not None and not self.base_instructions.strip():
            refuse_option("base_instructions", "a text", repr(self.base_instructions[:80]))

    def _check_tables(self) -> None:
        for option in ("config", "mcp_servers"):
            for key, value in getattr(self, option).items():
                if not _BARE_KEY.fullmatch(key):
                    expected = "names of letters, digits, - and _"
                    refuse_option(option, expected, repr(key[:80]))
                check_toml(f"{option}.{key}", value)
        for key, server in self.mcp_servers.items():
            if not isinstance(server, dict):
                refuse_option(f"mcp_servers.{key}", "an object", type(server).__name__)
        table = self.config.get(_WORKSPACE, {})
        if not isinstance(table, dict):
            refuse_option(f"config.{_WORKSPACE}", "an object", type(table).__name__)
        roots = table.get("writable_roots", [])
        if not isinstance(roots, list) or not all(isinstance(each, str) for each in roots):
            refuse_option(
                f"config.{_WORKSPACE}.writable_roots", "a list of paths", repr(roots)[:80]
            )


def enforce(rights: Rights, options: CodexOptions) -> EnforcedRights | Refused:
    """It runs commands, and its sandbox says what they may touch: there is no other switch, but for
    the search of the web."""
    problem = next((why for is_so, why in _find_unenforceable(rights) if is_so), None)
    if problem:
        return Refused(problem)
    notes = []
    writes = bool(rights.allowed & _WRITING)
    if not writes:
        notes.append("Codex has commands all the same, in a sandbox where they cannot write")
    has_servers = bool(options.mcp_servers) or "mcp_servers" in options.config
    is_asked = any(name.startswith(MCP) for name in rights.deny)
    if is_asked or (has_servers and rights.tools is not None):
        notes.append("Codex has all tools of its MCP servers: none can be taken away here")
    return EnforcedRights(rights.mode if writes else "plan", tuple(notes))


def _find_unenforceable(rights: Rights) -> Iterator[tuple[bool, str]]:
    """What it cannot keep to, and whether that is asked for."""
    allowed, denied = rights.allowed, set(rights.deny)
    yield "Bash" in denied, "it does everything by commands, so Bash cannot be denied"
    problem = "its commands read, so Read, Glob and Grep cannot be denied"
    yield bool(_READING & denied), problem
    problem = "it has one tool to write and to edit: allow both, or none"
    yield len(allowed & _WRITING) == 1, problem
    problem = "who may write has commands, too: allow Bash, or neither Write nor Edit"
    yield bool(allowed & _WRITING) and "Bash" not in allowed, problem
    problem = "it always has commands, which read: allow one of Read, Glob, Grep, Bash"
    yield not allowed & (_READING | {"Bash"}), problem


def launch(request: LaunchRequest, options: CodexOptions) -> Launch:
    """How to start it for this request, or a named error that says why not."""
    _check_request(request)
    command = request.command or (PROGRAM.name,)
    if not options.one_shot:
        argv = (
            *command,
            "app-server",
            *_build_config_arguments(_build_process_settings(options)),
            *_build_feature_arguments(options),
        )
        return Launch(argv=argv, env=_ENV, stdin="pipe", rungs=_STOP_STEPS)
    return Launch(
        argv=(
            *_build_prompt_prefix(request),
            *command,
            "exec",
            *_build_arguments(request, options),
        ),
        env=_ENV,
        files=dict(_build_files(request, options)),
        stdin="null",
        rungs=_ONE_SHOT_STOP_STEPS,
    )


def build_thread_params(request: LaunchRequest, options: CodexOptions) -> JsonObject:
    """What a thread is started or resumed with.

    Allowed to write, a thread would make Codex trust the directory by itself, and obey what the
    project says there, commands included. So it begins without, and each turn is given its own.
    """
    asks, _ = MODES[request.turn.mode or request.mode]
    params: JsonObject = {
        "cwd": request.cwd,
        "approvalPolicy": asks,
        # Not the reviewing agent that the user's own config may name.
        "approvalsReviewer": "user",
        "sandbox": "read-only",
    }
    if (model := _choose_model(request)) is not None:
        params["model"] = model
    if request.system is not None:
        params["developerInstructions"] = request.system
    if options.base_instructions is not None:
        params["baseInstructions"] = options.base_instructions
    settings = _build_settings(request, options)
    told = {key: value for key, value in settings.items() if key not in _PROCESS_SETTINGS}
    if told:
        params["config"] = told
    return params


def build_turn_params(turn: Turn, options: CodexOptions) -> JsonObject:
    """What a turn is started with beside its thread and its input. All but the schema hold on."""
    params: JsonObject = {}
    if turn.model is not None:
        params["model"] = turn.model
    if options.effort is not None:
        params["effort"] = options.effort
    if turn.mode is not None:
        asks, sandbox = MODES[turn.mode]
        params["approvalPolicy"] = asks
        params["sandboxPolicy"] = _build_sandbox_policy(sandbox, options)
    if turn.schema is not None:
        params["outputSchema"] = turn.schema
    return params


def build_input(text: str, images: Sequence[Image] = ()) -> list[JsonObject]:
    """What a message says: the text, and after it the pictures."""
    return [{"type": "text", "text": text}, *map(_build_image_part, images)]


def find_mode_note(mode: str) -> str | None:
    """What whoever asked for this mode has to know; None if it does what its name says."""
    if mode == "accept_edits":
        return "Codex has no mode accept_edits: default edits in its working directory unasked."
    return None


def _check_request(request: LaunchRequest) -> None:
    check_images(request.turn.images)
    for what, value in (("model", _choose_model(request)), ("resume", request.resume)):
        if value is not None:
            check_argument(what, value)


def _choose_model(request: LaunchRequest) -> str | None:
    return request.turn.model or request.model


def _build_settings(request: LaunchRequest, options: CodexOptions) -> JsonObject:
    """What is laid over Codex's own config for a thread."""
    named: JsonObject = {}
    if options.effort is not None:
        named["model_reasoning_effort"] = options.effort
    if options.auto_compact_token_limit is not None:
        limit = "model_auto_compact_token_limit"
        named |= {limit: options.auto_compact_token_limit, f"{limit}_scope": "total"}
    if options.mcp_servers:
        named["mcp_servers"] = options.mcp_servers
    if options.add_dirs:
        named[_WORKSPACE] = {"writable_roots": _list_writable_roots(options)}
    if not Rights(tools=request.tools, deny=request.deny).allowed & {"WebSearch"}:
        named["web_search"] = "disabled"
    return merge_tables(options.config, named)


def _list_writable_roots(options: CodexOptions) -> list[str]:
    roots = options.config.get(_WORKSPACE, {}).get("writable_roots", [])
    return list(dict.fromkeys((*roots, *options.add_dirs)))


def _build_sandbox_policy(sandbox: str, options: CodexOptions) -> JsonObject:
    """The same as the thread's settings say, in the words of a turn."""
    policy: JsonObject = {"type": _POLICIES[sandbox]}
    if sandbox != "workspace-write":
        return policy
    table = options.config.get(_WORKSPACE, {})
    policy["writableRoots"] = _list_writable_roots(options)
    policy["networkAccess"] = table.get("network_access", False)
    policy["excludeSlashTmp"] = table.get("exclude_slash_tmp", False)
    policy["excludeTmpdirEnvVar"] = table.get("exclude_tmpdir_env_var", False)
    return policy


def _build_process_settings(options: CodexOptions) -> JsonObject:
    """What holds for the whole process. It does nothing for others than the user unless told to."""
    given = {key: value for key, value in options.config.items() if key in _PROCESS_SETTINGS}
    return merge_tables(_QUIET, given)


def _build_feature_arguments(options: CodexOptions) -> Iterator[str]:
    slow = () if options.instant_interrupt else ("instant_interrupt",)
    for each in dict.fromkeys((*options.disabled_features, *slow)):
        if each not in options.enabled_features:
            yield from ("--disable", each)
    for each in dict.fromkeys(options.enabled_features):
        yield from ("--enable", each)


def _build_prompt_prefix(request: LaunchRequest) -> tuple[str, ...]:
    """What gives a prompt of any length to the one turn of a process."""
    first = "" if request.resume is None else 'cat "$0.first" && '
    return ("/bin/sh", "-c", first + _FROM_FILE, str(Path(request.directory) / _PROMPT))


def _build_arguments(request: LaunchRequest, options: CodexOptions) -> Iterator[str]:
    directory = Path(request.directory)
    if request.resume is not None:
        yield "resume"
    # It takes as many as come: another option must stand behind.
    for name, _ in _build_image_files(request.turn):
        yield from ("--image", str(directory / name))
    yield from ("--json", "--skip-git-repo-check")
    if (model := _choose_model(request)) is not None:
        yield from ("--model", model)
    if request.turn.schema is not None:
        yield from ("--output-schema", str(directory / _SCHEMA))
    yield from _build_config_arguments(_build_exec_settings(request, options))
    yield from _build_feature_arguments(options)
    if request.resume is not None:
        yield _to_thread_id(request.resume)
    yield "-"


def _to_thread_id(token: str) -> str:
    """What is no id would be taken for a name, and for want of it a new conversation begun."""
    try:
        return str(UUID(token))
    except ValueError:
        return str(uuid5(NAMESPACE_OID, token))


def _build_exec_settings(request: LaunchRequest, options: CodexOptions) -> JsonObject:
    """All that a thread of the app-server is told, as settings; nobody can be asked."""
    _, sandbox = MODES[request.turn.mode or request.mode]
    asked: JsonObject = {"approval_policy": "never", "sandbox_mode": sandbox}
    if "projects" not in options.config:
        # See `thread_params`.
        asked["projects"] = {request.cwd: {"trust_level": "untrusted"}}
    if request.system is not None:
        asked["developer_instructions"] = request.system
    if options.base_instructions is not None:
        asked["model_instructions_file"] = str(Path(request.directory) / _BASE)
    return {**_build_settings(request, options), **_build_process_settings(options), **asked}


def _build_config_arguments(settings: JsonObject) -> Iterator[str]:
    for key, value in settings.items():
        argument = f"{key}={to_toml(value)}"
        size = len(argument.encode())
        if size > LONGEST_ARGUMENT_BYTES:
            found = f"expected at most {LONGEST_ARGUMENT_BYTES} bytes, found {size}"
            hint = "Start Codex without one_shot, or use its own config file."
            raise InvalidUsage(f"{key} is too long for an argument: {found}", hint=hint)
        yield from ("-c", argument)


def _build_files(request: LaunchRequest, options: CodexOptions) -> Iterator[tuple[str, bytes]]:
    yield _PROMPT, request.turn.text.encode()
    if request.resume is not None:
        line = {"type": RESUMED, "thread_id": request.resume}
        yield _FIRST_LINE, msgspec.json.encode(line) + b"\n"
    if options.base_instructions is not None:
        yield _BASE, options.base_instructions.encode()
    if request.turn.schema is not None:
        yield _SCHEMA, msgspec.json.encode(request.turn.schema)
    yield from _build_image_files(request.turn)


def _build_image_files(turn: Turn) -> Iterator[tuple[str, bytes]]:
    for number, image in enumerate(turn.images, 1):
        yield f"image-{number}.{image.media_type.rpartition('/')[2]}", image.data


def _build_image_part(image: Image) -> JsonObject:
    data = base64.b64encode(image.data).decode()
    return {"type": "image", "url": f"data:{image.media_type};base64,{data}"}
