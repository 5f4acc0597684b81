"""The real Codex as `make ci-deps` installs it: configured, started in a clean environment,
and ended with all child processes.

with ResponsesServer(script) as server, StartedExec(tmp_path, server.url, "hi") as codex:
    frames = codex.read_all()
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from tests.support.real_cli import Frame, StartedCli, is_kind, real_program

# Of no model that it knows, so that its tools are plain functions.
MODEL = "simulated-model"
CONFIG = """
model = "{model}"
model_provider = "simulated"
check_for_update_on_startup = false

[model_providers.simulated]
name = "simulated"
base_url = "{base_url}/v1"
wire_api = "responses"
env_key = "SIMULATED_KEY"
request_max_retries = {retries}
stream_max_retries = {retries}
stream_idle_timeout_ms = {idle_ms}

[analytics]
enabled = false
"""
BYPASS = ("--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox")


def real_codex() -> Path:
    """Codex's program: the native one, not the node script around it."""
    return real_program("codex")


def codex_home(
    folder: Path, base_url: str, *, retries: int = 2, idle_ms: int = 30_000, model: str = MODEL
) -> Path:
    """Create an empty folder of Codex, with a config that has the server of one model."""
    home = folder / "codex"
    home.mkdir(exist_ok=True)
    config = CONFIG.format(model=model, base_url=base_url, retries=retries, idle_ms=idle_ms)
    (home / "config.toml").write_text(config)
    return home


def codex_environment(folder: Path) -> dict[str, str]:
    """The whole environment of the CLI: a dummy key, and the server of its config as only peer."""
    home = folder / "home"
    home.mkdir(exist_ok=True)
    return {
        "PATH": "/usr/local/bin:/usr/bin:/bin",
        "HOME": str(home),
        "CODEX_HOME": str(folder / "codex"),
        "LANG": "C.UTF-8",
        "SHELL": "/bin/bash",
        "SIMULATED_KEY": "sk-dummy",
        "RUST_LOG": "error",
    }


class StartedExec(StartedCli):
    """A Codex that does one thing and ends; it has no input but its arguments."""

    def __init__(
        self,
        folder: Path,
        base_url: str,
        *arguments: str,
        retries: int = 2,
        idle_ms: int = 30_000,
        env: Mapping[str, str] | None = None,
    ) -> None:
        codex_home(folder, base_url, retries=retries, idle_ms=idle_ms)
        argv = (str(real_codex()), "exec", "--json", *BYPASS, *arguments)
        super().__init__(folder, argv, {**codex_environment(folder), **(env or {})})
        self.end_input()


class StartedAppServer(StartedCli):
    """`codex app-server` over pipes. Entering the block does the handshake."""

    def __init__(
        self, folder: Path, base_url: str, *flags: str, retries: int = 2, idle_ms: int = 30_000
    ) -> None:
        codex_home(folder, base_url, retries=retries, idle_ms=idle_ms)
        super().__init__(
            folder, (str(real_codex()), "app-server", *flags), codex_environment(folder)
        )
        self._last_id = 0

    def __enter__(self) -> Self:
        self.read_reply("initialize", clientInfo={"name": "steadyrun-tests", "version": "0"})
        self.send({"method": "initialized"})
        return self

    def ask(self, method: str, **params: Any) -> int:
        """Send a request without waiting for the reply; return its id."""
        self._last_id += 1
        self.send({"id": self._last_id, "method": method, "params": params})
        return self._last_id

    def read_reply(self, method: str, **params: Any) -> Frame:
        """Ask for something; the answer's result."""
        ident = self.ask(method, **params)
        *_, answer = self.read_until(
            lambda frame: frame.get("id") == ident and "method" not in frame
        )
        result: Frame = answer["result"]
        return result

    def start_thread(self, **more: Any) -> str:
        """The id of a new thread that may do anything."""
        free = {"approvalPolicy": "never", "sandbox": "danger-full-access"}
        started = self.read_reply("thread/start", cwd=str(self.cwd), **{**free, **more})
        return str(started["thread"]["id"])

    def start_turn(self, thread: str, text: str, **more: Any) -> str:
        """The id of a turn with this prompt."""
        words = [{"type": "text", "text": text}]
        started = self.read_reply("turn/start", threadId=thread, input=words, **more)
        return str(started["turn"]["id"])


is_turn_end = is_kind("turn/completed")
