"""Defines all errors, grouped by what the caller does next.

SteadyrunError
    InvalidUsage             correct what was typed or written, then call again       exit 2
        ConfigInvalid            a setting is unknown, of the wrong type or impossible
        ConfigUntrusted          a project's file sets what only a trusted one may
        VariableUnset            a ${VAR} that is needed now is not in the environment
        AbilityMissing           the provider does not have the ability
        RecordingInvalid         a file to replay is not a recording
        LaunchFailed             the provider's program could not be started
            KeeperFailed             the keeper ended before the start; try again
        HomePathTooLong          the path of the home has too many bytes
        MessageTooLong           a message has too many bytes
        FileUnusable             a required file cannot be used as it is
    NotFound                 check the name; nothing was changed                       exit 3
        RoleMissing              the role does not exist
        AgentHomeMissing         the home directory of an agent does not exist
    NotAllowed               a rule forbids it; change the rule, or do without it      exit 4
        CommandRefused           the command is not allowed, or is denied
        ReadOnly                 the configuration defines it; change it there
        PathRefused              the path leads out of the allowed directories
        AddressRefused           the address is not in the public network
    Conflict                 read the present state, then decide                       exit 5
        NameTaken                an agent of that name exists
        ChangeRefused            the step is not possible from the present state
        OffsetMismatch           continue to read from the stored offset
        ConversationBusy         another run works in the conversation; try again later
        DaemonRunning            the home has a running daemon
    ProviderClosed           the gate of the provider is closed; wait until it opens   exit 6
    LeaseLost                stop; write nothing more                                  exit 5
        HolderGone               this process is not a holder any more; end it
    KeeperGone               adopt the process again, or treat it as ended             exit 1
        KeeperSilent             the keeper is alive and does not answer; kill it to end the process
    JournalPoisoned          read it no more; the item may be sent again by a person   exit 1
    RpcFailed                a call to another process failed                          exit 1
        RpcRefused               the answer is an error; see its number
        RpcTimeout               no answer in time; the call may still be executed     exit 7
        RpcClosed                the connection has ended; connect again, then check
    StartFailed              the daemon ended before it could answer; see its log      exit 1
    DaemonUnreachable        the call was not sent; start the daemon, then call again  exit 69
        DaemonNotAnswering       the daemon runs but is stopped or hangs; continue or restart it
    VersionMismatch          the daemon has another version; restart it                exit 1
    StoreFailed              the store could not be read or written                    exit 1
        StoreBusy                another process locked the store too long; try again
        StoreFull                free space, then try again
        StoreUnusable            the directory or its permissions are wrong
        StoreForeign             the file does not belong to steadyrun
        StoreFromFuture          upgrade steadyrun
        StoreCorrupt             restore a backup

Every error states what was expected, what was found and what to try; its facts are attributes.
`retryable`: the same call may succeed later without any other change.
"""

TYPE_CHECKING = False
if TYPE_CHECKING:
    # For annotations only: every command imports this file, and pathlib alone would double the
    # time `steadyrun --help` takes.
    from datetime import datetime
    from pathlib import Path
    from typing import ClassVar


class SteadyrunError(Exception):
    """The base of all errors; `message` and `hint` are for people."""

    exit_code: "ClassVar[int]" = 1
    code: "ClassVar[str]" = "failed"
    retryable: "ClassVar[bool]" = False

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message}\n{self.hint}" if self.hint else self.message


class InvalidUsage(SteadyrunError):
    """The call or the configuration is wrong; nothing was done."""

    exit_code = 2
    code = "usage"


class ConfigInvalid(InvalidUsage):
    """A setting cannot be used as it is written."""

    code = "config_invalid"

    def __init__(
        self, problem: str, *, file: "Path | None", line: int | None = None, hint: str = ""
    ) -> None:
        place = "" if file is None else f"{file}: " if line is None else f"{file}:{line}: "
        super().__init__(f"{place}{problem}", hint=hint)
        self.problem, self.file, self.line = problem, file, line


class ConfigUntrusted(ConfigInvalid):
    """The file of a project sets what could run commands or redirect data."""

    code = "config_untrusted"


class HomePathTooLong(InvalidUsage):
    """The path of the home does not leave enough room for the files in it."""

    code = "home_path_too_long"

    def __init__(self, *, found: int, most: int, what: str = "the path of the home") -> None:
        hint = "Set STEADYRUN_HOME to a shorter path."
        super().__init__(f"{what} has {found} bytes, at most {most} are possible", hint=hint)
        self.found, self.most = found, most


class VariableUnset(InvalidUsage):
    """A `${VAR}` that is needed now has no value."""

    code = "variable_unset"

    def __init__(self, variable: str, *, setting: str) -> None:
        super().__init__(
            f"{setting} needs the environment variable {variable}, which is not set",
            hint=f"Set it before starting: export {variable}=…",
        )
        self.variable, self.setting = variable, setting


class RecordingInvalid(InvalidUsage):
    """A line of a recording cannot be read."""

    code = "recording_invalid"

    def __init__(self, file: "Path", *, line: int, problem: str) -> None:
        super().__init__(
            f"{file}:{line}: {problem}",
            hint='Each line must be like {"t":0.5,"dir":"in","msg":{…}}; dir is in, out or err.',
        )
        self.file, self.line, self.problem = file, line, problem


class AbilityMissing(InvalidUsage):
    """A request needs an ability that the provider does not have."""

    code = "ability_missing"

    def __init__(self, provider: str, ability: str, *, asked: str, why: str = "") -> None:
        super().__init__(
            f"the provider {provider} cannot do this: {ability}{why and f' ({why})'}",
            hint=f"Leave out {asked}, or use another provider: steadyrun providers",
        )
        self.provider, self.ability = provider, ability


_LAUNCH_HINTS = {
    "not_found": "Install it, or set providers.NAME.command in config.toml to its path.",
    "not_executable": "Make the file executable, or set providers.NAME.command to another one.",
    "no_directory": "Create the directory, or choose another one with --cwd.",
    "too_long": "Put the text into a file, and name that.",
}
# The reasons that belong to one request, not to the machine.
_OF_THE_REQUEST = frozenset({"no_directory", "too_long", "invalid"})


class LaunchFailed(InvalidUsage):
    """A provider's program could not be started."""

    code = "launch_failed"

    def __init__(self, program: str, *, code: str, problem: str, install: str = "") -> None:
        hint = _LAUNCH_HINTS.get(code, "")
        if install:
            hint = hint.replace("Install it", f"Install it ({install})")
        super().__init__(f"cannot start {program}: {problem}", hint=hint)
        self.program, self.reason, self.problem = program, code, problem

    def name_provider(self, provider: str) -> None:
        """Write the name of the provider into the hint."""
        self.hint = self.hint.replace("NAME", provider)

    @property
    def is_of_the_machine(self) -> bool:
        """Whether any other launch of this provider fails as well, until the machine is changed:
        the program is missing, or there is no memory, space or process left."""
        return self.reason not in _OF_THE_REQUEST


class KeeperFailed(LaunchFailed):
    """The keeper ended before it started the program; the program did not fail."""

    code = "keeper_failed"
    retryable = True

    def __init__(self, program: str, *, problem: str) -> None:
        super().__init__(program, code="failed", problem=f"the keeper did not start: {problem}")


class MessageTooLong(InvalidUsage):
    """A message is longer than what can be stored and sent."""

    code = "message_too_long"

    def __init__(self, *, found: int, most: int) -> None:
        hint = "Put the text into a file, and give the path of the file."
        super().__init__(f"expected a text of at most {most} bytes, found {found}", hint=hint)
        self.found, self.most = found, most


class FileUnusable(InvalidUsage):
    """A file is of the wrong kind, too large, in the wrong place or cannot be read."""

    code = "file_unusable"

    def __init__(self, file: "str | Path", problem: str, *, hint: str = "") -> None:
        super().__init__(f"{file}: {problem}", hint=hint)
        self.file, self.problem = str(file), problem


class NotFound(SteadyrunError):
    """The object does not exist."""

    exit_code = 3
    code = "not_found"

    def __init__(self, kind: str, name: str, *, hint: str = "") -> None:
        super().__init__(f"no {kind} {name!r}", hint=hint)
        self.kind, self.name = kind, name


class RoleMissing(NotFound):
    """The file of a role does not exist in the home."""

    code = "role_missing"

    def __init__(self, role: str, *, file: "Path") -> None:
        super().__init__("role", role, hint=f"Write it: {file}")
        self.file = file


class AgentHomeMissing(NotFound):
    """The directory of an agent does not exist, or is not a directory."""

    code = "agent_home_missing"

    def __init__(self, agent: str, *, home: str) -> None:
        hint = f"It is the home of {agent}: create it, or set another home."
        super().__init__("directory", home, hint=hint)
        self.agent, self.home = agent, home


class NotAllowed(SteadyrunError):
    """A rule of the configuration forbids the request; nothing was done."""

    exit_code = 4
    code = "not_allowed"


class CommandRefused(NotAllowed):
    """The shell provider may not run this command."""

    code = "command_refused"

    def __init__(self, command: str, *, rule: str, hint: str = "") -> None:
        super().__init__(f"the command {command!r} is refused: {rule}", hint=hint)
        self.command, self.rule = command, rule


class ReadOnly(NotAllowed):
    """An agent of the configuration can only be changed there."""

    code = "read_only"

    def __init__(self, agent: str) -> None:
        hint = f"Change [agents.{agent}] there: steadyrun config path"
        super().__init__(f"{agent} is defined in the configuration", hint=hint)
        self.agent = agent


class PathRefused(NotAllowed):
    """A path is invalid, or leads out of the allowed directories."""

    code = "path_refused"

    def __init__(self, path: str, problem: str) -> None:
        hint = "Use a path inside the allowed directories, or add its directory to them."
        super().__init__(f"the path {path} is refused: {problem}", hint=hint)
        self.path, self.problem = path, problem


class AddressRefused(NotAllowed):
    """A URL may not be requested. The message names only its host: the rest may be secret."""

    code = "address_refused"

    def __init__(self, problem: str, *, host: str = "") -> None:
        hint = "Name one that begins with https:// and is publicly reachable."
        super().__init__(f"the address {host or '…'!r} is refused: {problem}", hint=hint)
        self.host, self.problem = host, problem


class Conflict(SteadyrunError):
    """The present state does not allow the request."""

    exit_code = 5
    code = "conflict"


class NameTaken(Conflict):
    """The name of an agent is unique."""

    code = "name_taken"

    def __init__(self, name: str, *, hint: str = "Choose another name.") -> None:
        super().__init__(f"an agent named {name!r} exists already", hint=hint)
        self.name = name


class ChangeRefused(Conflict):
    """A step is not possible from the present state."""

    code = "change_refused"

    def __init__(self, change: str, *, found: str) -> None:
        super().__init__(f"cannot apply {change!r}: {found}")
        self.change, self.found = change, found


class OffsetMismatch(Conflict):
    """An append does not begin where the record ends."""

    code = "offset_mismatch"

    def __init__(self, process: str, *, stored: int, given: int) -> None:
        super().__init__(
            f"the record of {process} ends at offset {stored}, the append begins at {given}",
            hint="Read the journal again from the stored offset.",
        )
        self.process, self.stored, self.given = process, stored, given


class ConversationBusy(Conflict):
    """Another run works in the conversation: two at once would damage it."""

    code = "conversation_busy"
    retryable = True

    def __init__(self, token: str) -> None:
        super().__init__(
            f"another process works in the conversation {token}",
            hint="Wait until its run has ended and its process is closed, then try again.",
        )
        self.token = token


class DaemonRunning(Conflict):
    """The home has a daemon already."""

    code = "daemon_running"

    def __init__(self, home: "Path", *, pid: int | None = None) -> None:
        who = "a daemon" if pid is None else f"the daemon {pid}"
        super().__init__(f"{who} serves {home} already", hint="Look at it: steadyrun status")
        self.home, self.pid = home, pid


class ProviderClosed(SteadyrunError):
    """The gate of the provider is closed. Nothing was written."""

    exit_code = 6
    code = "rate_limited"
    retryable = True

    def __init__(self, provider: str, *, until: "datetime | None", reason: str | None) -> None:
        when = f" until {until:%Y-%m-%d %H:%M:%S %Z}" if until else ""
        super().__init__(
            f"the gate of {provider} is closed{when}: {reason or 'it was rate limited'}",
            hint="Try again then, or use another provider.",
        )
        self.provider, self.until, self.reason = provider, until, reason


class LeaseLost(SteadyrunError):
    """Another holder owns the lane now. Final: stop, write nothing more."""

    exit_code = 5
    code = "lease_lost"

    def __init__(self, agent: str, *, fence: int) -> None:
        super().__init__(f"the lease on {agent} with fence {fence} is not valid any more")
        self.agent, self.fence = agent, fence


class HolderGone(LeaseLost):
    """This process is not alive for others, which have taken over its lanes: it has to end."""

    code = "holder_gone"

    def __init__(self, holder: str) -> None:
        SteadyrunError.__init__(
            self,
            f"{holder} is not a holder any more: its lock was released, and its lanes were taken"
            " over",
            hint="Start it again.",
        )
        self.agent, self.fence, self.holder = "", 0, holder


class KeeperGone(SteadyrunError):
    """The keeper of a process cannot be reached."""

    code = "keeper_gone"

    def __init__(self, process: str, *, found: str) -> None:
        super().__init__(f"the keeper of {process} cannot be reached: {found}")
        self.process, self.found = process, found


class KeeperSilent(KeeperGone):
    """The keeper of a process is running, but does not answer, although it was continued."""

    code = "keeper_silent"

    def __init__(self, process: str) -> None:
        super().__init__(process, found="it does not answer")


class JournalPoisoned(SteadyrunError):
    """Several daemons ended while they read the output of a process. It is not read any more."""

    code = "poisoned"

    def __init__(self, process: str, *, offset: int, crashes: int) -> None:
        super().__init__(
            f"{crashes} daemons ended while they read {process}, after offset {offset} of its"
            " output",
            hint="The process is not used any more; its files are kept. Send the item again:"
            " steadyrun retry ITEM",
        )
        self.process, self.offset, self.crashes = process, offset, crashes


class RpcFailed(SteadyrunError):
    """A call to another process failed."""

    code = "rpc_failed"


class RpcRefused(RpcFailed):
    """The other side answered with an error. A handler that raises it sends that error."""

    code = "rpc_refused"

    def __init__(self, problem: str, *, number: int, data: object = None) -> None:
        super().__init__(f"{problem} (error {number})")
        self.problem, self.number, self.data = problem, number, data


class RpcTimeout(RpcFailed):
    """No answer came in time. The call may have been executed, or may still be."""

    exit_code = 7
    code = "rpc_timeout"

    def __init__(self, method: str, *, seconds: float, hint: str = "") -> None:
        super().__init__(f"no answer to {method} within {seconds:g} seconds", hint=hint)
        self.method, self.seconds = method, seconds


class RpcClosed(RpcFailed):
    """The connection ended before the answer came, or before the call."""

    code = "rpc_closed"

    def __init__(self, method: str) -> None:
        super().__init__(f"the connection ended before {method} was answered")
        self.method = method


class StartFailed(SteadyrunError):
    """A daemon was started and ended, or did not answer."""

    code = "start_failed"

    def __init__(self, output: str, *, log: "Path", code: int | None) -> None:
        how = "does not answer" if code is None else f"ended with code {code}"
        super().__init__(f"the daemon {how}: {output}", hint=f"Its whole output is in {log}")
        self.output, self.log, self.exited = output, log, code


class DaemonUnreachable(SteadyrunError):
    """No daemon answers. The operation was not sent."""

    exit_code = 69
    code = "daemon_unreachable"

    def __init__(self, home: "Path", *, found: str, hint: str = "Start one: steadyrun up") -> None:
        super().__init__(f"no daemon answers for {home}: {found}", hint=hint)
        self.home, self.found = home, found


class DaemonNotAnswering(DaemonUnreachable):
    """A daemon runs, but does not answer; nothing was asked of it."""

    code = "daemon_not_answering"

    def __init__(self, home: "Path", *, pid: int | None, is_stopped: bool, found: str) -> None:
        who = "the daemon" if pid is None else f"the daemon {pid}"
        why = f"it is stopped ({found})" if is_stopped else found
        SteadyrunError.__init__(
            self,
            f"{who} of {home} does not answer: {why}",
            hint=describe_silent_daemon(pid, is_stopped=is_stopped),
        )
        self.home, self.found, self.pid, self.is_stopped = home, found, pid, is_stopped


def describe_silent_daemon(pid: int | None, *, is_stopped: bool) -> str:
    """What a user can do about a daemon that does not answer."""
    if pid is None:
        return "Look at its log and its state: steadyrun doctor"
    if is_stopped:
        return f"Continue it: kill -CONT {pid}"
    return f"Look at its log. To end it: kill {pid}, then kill -KILL {pid}; its runs continue."


class VersionMismatch(SteadyrunError):
    """The daemon has another version. The operation was not sent."""

    code = "version_mismatch"

    def __init__(self, *, daemon: str, ours: str) -> None:
        super().__init__(
            f"the daemon is steadyrun {daemon}, this command is {ours}",
            hint="Restart the daemon with this version: steadyrun down, then steadyrun up",
        )
        self.daemon, self.ours = daemon, ours


class StoreFailed(SteadyrunError):
    """The record could not be read or written."""

    code = "store_failed"

    def __init__(self, problem: str, *, path: "Path", hint: str = "") -> None:
        super().__init__(f"{path}: {problem}", hint=hint)
        self.problem, self.path = problem, path


class StoreBusy(StoreFailed):
    """Another process held the store longer than the time limit."""

    code = "store_busy"
    retryable = True


class StoreFull(StoreFailed):
    """No room left on the device. What was acknowledged before is safe."""

    code = "store_full"
    retryable = True


class StoreUnusable(StoreFailed):
    """The place cannot be created, opened, read or written."""

    code = "store_unusable"


class StoreForeign(StoreFailed):
    """A database of another program."""

    code = "store_foreign"


class StoreFromFuture(StoreFailed):
    """Written by a later version; this version could lose data that it does not support."""

    code = "store_from_future"

    def __init__(self, path: "Path", *, found: int, known: int) -> None:
        super().__init__(
            f"the store has version {found}, this version of steadyrun supports up to {known}",
            path=path,
            hint="Upgrade steadyrun, or point STEADYRUN_HOME at another directory.",
        )
        self.found, self.known = found, known


class StoreCorrupt(StoreFailed):
    """The file is damaged."""

    code = "store_corrupt"
