"""Builds the command line, the files and the settings of Codex. See docs/providers.md.

The app server receives most settings as parameters of threads and turns; its arguments hold only
the settings of the process. `codex exec` receives all settings as arguments and files. In both
cases the settings override Codex's own config. The request overrides named options, and named
options override the option `config`.
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
from steadyrun.model.json_object import merge_objects
from steadyrun.model.policy import MCP, Mode, Rights
from steadyrun.model.quotation import quote
from steadyrun.providers.codex.config_toml import LARGEST_INTEGER, check_toml, to_toml
from steadyrun.providers.shared.arguments import (
    LONGEST_ARGUMENT_BYTES,
    check_argument,
    check_images,
    check_option_names,
    refuse_option,
)
from steadyrun.providers.shared.prompt_file import PROMPT_FILE, READ_FILE, build_prompt_prefix

PROGRAM = Program(
    name="codex",
    tested=("0.166.0", "0.166.0"),
    install="npm install -g @openai/codex",
    login="`codex login`",
    login_file="auth.json",
    login_folder=("CODEX_HOME", ".codex"),
)
# With this feature a model may begin turn after turn without a request.
DISABLED = ("goals",)
# The modes of steadyrun, with the approval policy and the sandbox of Codex.
MODES: Mapping[Mode, tuple[str, str]] = {
    "default": ("on-request", "workspace-write"),
    "accept_edits": ("on-request", "workspace-write"),
    "plan": ("never", "read-only"),
    "full_auto": ("never", "workspace-write"),
    "dangerously_skip_permissions": ("never", "danger-full-access"),
}
# The notes about modes that Codex implements differently.
MODE_NOTES: Mapping[str, str] = {
    "accept_edits": "Codex has no mode accept_edits: default edits in its working directory anyway."
}
# The type of the line that is printed before a one-shot process resumes a conversation. It marks
# the usage as a total of the conversation, and names the conversation that must be resumed.
RESUMED = "steadyrun.resumed"

_POLICIES = {
    "workspace-write": "workspaceWrite",
    "read-only": "readOnly",
    "danger-full-access": "dangerFullAccess",
}
_QUIET: JsonObject = {"analytics": {"enabled": False}, "check_for_update_on_startup": False}
# The settings of the process. Codex refuses turns of a thread whose model provider differs from
# that of its process.
_PROCESS_SETTINGS = (*_QUIET, "model_provider", "model_providers")
_ENV = {"RUST_LOG": "error"}
_READING, _WRITING = frozenset({"Read", "Glob", "Grep"}), frozenset({"Write", "Edit"})
_WORKSPACE = "sandbox_workspace_write"
_BASE, _SCHEMA, _FIRST_LINE = "base.md", "schema.json", "prompt.first"
# Executes the arguments, with the file $0 as standard input.
_STOP_STEPS = (Rung("will", 2.0), Rung("eof", 2.0))
_SIGINT = 2
_ONE_SHOT_STOP_STEPS = (Rung("signal", 2.0, _SIGINT),)
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")


class CodexOptions(Struct, frozen=True, forbid_unknown_fields=True):
    """The options of `providers.codex`; docs/providers.md describes each one.

    An invalid value raises ValueError, which msgspec adds to its own error.
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
                refuse_option("add_dirs", "a path that begins with /", quote(each))
        limit = self.auto_compact_token_limit
        if limit is not None and not 0 < limit <= LARGEST_INTEGER:
            refuse_option("auto_compact_token_limit", "a number of tokens above 0", limit)
        self._check_tables()

    def _check_names(self) -> None:
        names = [("effort", self.effort)]
        for name in ("enabled_features", "disabled_features"):
            names += [(name, each) for each in getattr(self, name)]
        check_option_names(names)
        if self.base_instructions is not None and not self.base_instructions.strip():
            refuse_option("base_instructions", "a text", quote(self.base_instructions))

    def _check_tables(self) -> None:
        for option in ("config", "mcp_servers"):
            for key, value in getattr(self, option).items():
                if not _BARE_KEY.fullmatch(key):
                    expected = "names of letters, digits, - and _"
                    refuse_option(option, expected, quote(key))
                check_toml(f"{option}.{key}", value)
        for key, server in self.mcp_servers.items():
            if not isinstance(server, dict):
                refuse_option(f"mcp_servers.{key}", "an object", type(server).__name__)
        table = self.config.get(_WORKSPACE, {})
        if not isinstance(table, dict):
            refuse_option(f"config.{_WORKSPACE}", "an object", type(table).__name__)
        roots = table.get("writable_roots", [])
        if not isinstance(roots, list) or not all(isinstance(each, str) for each in roots):
            refuse_option(f"config.{_WORKSPACE}.writable_roots", "a list of paths", quote(roots))


def enforce(rights: Rights, options: CodexOptions) -> EnforcedRights | Refused:
    """Codex works by commands, and its sandbox limits them. Only web search can be removed."""
    problem = next((why for is_so, why in _find_unenforceable(rights) if is_so), None)
    if problem:
        return Refused(problem)
    notes = []
    writes = bool(rights.allowed & _WRITING)
    if not writes:
        notes.append("Codex can still run commands, in a sandbox in which they cannot write")
    has_servers = bool(options.mcp_servers) or "mcp_servers" in options.config
    is_asked = any(name.startswith(MCP) for name in rights.deny)
    if is_asked or (has_servers and rights.tools is not None):
        notes.append("Codex has all tools of its MCP servers: steadyrun cannot remove any of them")
    return EnforcedRights(rights.mode if writes else "plan", tuple(notes))


def _find_unenforceable(rights: Rights) -> Iterator[tuple[bool, str]]:
    """Yield each right that Codex cannot enforce, and whether it was requested."""
    allowed, denied = rights.allowed, set(rights.deny)
    yield "Bash" in denied, "it does everything by commands, so Bash cannot be denied"
    problem = "its commands read, so Read, Glob and Grep cannot be denied"
    yield bool(_READING & denied), problem
    problem = "it has one tool to write and to edit: allow both, or none"
    yield len(allowed & _WRITING) == 1, problem
    problem = "an agent that may write has commands, too: allow Bash, or neither Write nor Edit"
    yield bool(allowed & _WRITING) and "Bash" not in allowed, problem
    problem = "it always has commands, which read: allow one of Read, Glob, Grep, Bash"
    yield not allowed & (_READING | {"Bash"}), problem


def launch(request: LaunchRequest, options: CodexOptions) -> Launch:
    """Return how to start Codex, or raise a named error that explains why not."""
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
    """Build the parameters that start or resume a thread.

    A thread that may write would make Codex trust the directory and obey the settings of the
    project, commands included. So each thread starts read-only, and each turn sets its sandbox.
    """
    asks, _ = MODES[request.turn.mode or request.mode]
    params: JsonObject = {
        "cwd": request.cwd,
        "approvalPolicy": asks,
        # This overrides the reviewing agent that the user's own config may name.
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
    thread_settings = {
        key: value for key, value in settings.items() if key not in _PROCESS_SETTINGS
    }
    if thread_settings:
        params["config"] = thread_settings
    return params


def build_turn_params(turn: Turn, options: CodexOptions) -> JsonObject:
    """Build the parameters of a turn. All but the schema also apply to later turns."""
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
    """Build the input of a message: the text, followed by the images."""
    return [{"type": "text", "text": text}, *map(_build_image_part, images)]


def _check_request(request: LaunchRequest) -> None:
    check_images(request.turn.images)
    for what, value in (("model", _choose_model(request)), ("resume", request.resume)):
        if value is not None:
            check_argument(what, value)


def _choose_model(request: LaunchRequest) -> str | None:
    return request.turn.model or request.model


def _build_settings(request: LaunchRequest, options: CodexOptions) -> JsonObject:
    """Build the settings that override Codex's own config for a thread."""
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
    return merge_objects(options.config, named)


def _list_writable_roots(options: CodexOptions) -> list[str]:
    roots = options.config.get(_WORKSPACE, {}).get("writable_roots", [])
    return list(dict.fromkeys((*roots, *options.add_dirs)))


def _build_sandbox_policy(sandbox: str, options: CodexOptions) -> JsonObject:
    """Build the sandbox policy of a turn from the settings of the thread."""
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
    """Build the settings of the process. Analytics and update checks are off by default."""
    given = {key: value for key, value in options.config.items() if key in _PROCESS_SETTINGS}
    return merge_objects(_QUIET, given)


def _build_feature_arguments(options: CodexOptions) -> Iterator[str]:
    slow = () if options.instant_interrupt else ("instant_interrupt",)
    for each in dict.fromkeys((*options.disabled_features, *slow)):
        if each not in options.enabled_features:
            yield from ("--disable", each)
    for each in dict.fromkeys(options.enabled_features):
        yield from ("--enable", each)


def _build_prompt_prefix(request: LaunchRequest) -> tuple[str, ...]:
    first = "" if request.resume is None else 'cat "$0.first" && '
    return build_prompt_prefix(request.directory, first + READ_FILE)


def _build_arguments(request: LaunchRequest, options: CodexOptions) -> Iterator[str]:
    directory = Path(request.directory)
    if request.resume is not None:
        yield "resume"
    # This option takes all values up to the next option.
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
    """Make sure that the token is a uuid.

    Codex looks up any other text as a name, and begins a new conversation if there is none.
    """
    try:
        return str(UUID(token))
    except ValueError:
        return str(uuid5(NAMESPACE_OID, token))


def _build_exec_settings(request: LaunchRequest, options: CodexOptions) -> JsonObject:
    """Build the settings of a thread for `exec`, which cannot request approvals."""
    _, sandbox = MODES[request.turn.mode or request.mode]
    asked: JsonObject = {"approval_policy": "never", "sandbox_mode": sandbox}
    if "projects" not in options.config:
        # See `build_thread_params`.
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
    yield PROMPT_FILE, request.turn.text.encode()
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
