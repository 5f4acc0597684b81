"""The real Claude Code keeps the same promises, with a simulated model behind it."""

import os
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import anyio
import pytest

from steadyrun.config import ProviderSettings
from steadyrun.testing.provider_suite import GO, LONG_BYTES, PROMISES, Promise, Prompt, Situation
from steadyrun.testing.simulated.faults import Gate
from steadyrun.testing.simulated.messages import Ask, MessagesServer, answer, call, text
from tests.conformance.harness import CANARY, LibraryHarness
from tests.real_cli import claude_environment, real_claude

WORKERS = 3
PROMPTS: dict[Situation, Prompt] = {
    "answers": Prompt("answers", "42"),
    "learns": Prompt("learns 7f3a"),
    "recalls": Prompt("recalls", "7f3a"),
    "is_long": Prompt("x" * LONG_BYTES),
    "waits": Prompt("waits"),
    "hangs": Prompt("hangs"),
    "crashes": Prompt("crashes"),
    "leaves_process": Prompt("leaves_process"),
    "asks": Prompt("asks"),
    "tells_secret": Prompt("tells_secret"),
    "tells_secret_in_pieces": Prompt("tells_secret_in_pieces"),
}
# A model cannot make Claude Code do these.
NOT_APPLICABLE = {
    "check_what_it_cannot_do_is_refused_by_name",
    "check_who_cannot_be_steered_says_so",
    "check_a_full_disk_ends_the_run",
    "check_a_run_that_will_not_end_is_ended",
    "check_a_frame_that_nobody_knows_is_kept",
    "check_a_line_that_is_no_frame_is_kept",
    "check_a_line_that_is_no_text_is_kept",
    "check_a_tool_that_is_open_at_the_end_is_closed",
    "check_stderr_neither_blocks_nor_is_stored",
}
# What is asked for in words is done with the tools that need no leave here.
SETTINGS = {"permissions": {"allow": ["Bash"]}}
SHELL: dict[str, str] = {
    "waits": f"until test -e {GO}; do sleep 0.02; done",
    "crashes": "kill -SEGV $PPID; sleep 60",
    "leaves_process": "setsid sleep 60 >/dev/null 2>&1 & echo started",
    "tells_secret": 'echo "it is $CANARY_KEY."',
}


def model(ask: Ask) -> Any:
    """What a model says that does as it is told: the first word of the last prompt is the deed."""
    deed = _deed(ask)
    if ask.results:
        return answer(f"{deed} done, it is {CANARY}" if deed == "tells_secret" else f"{deed} done")
    match deed:
        case "answers":
            return answer(text("4", "2"))
        case "recalls":
            return answer("7f3a" if "learns 7f3a" in str(ask.messages) else "nothing")
        case "hangs":
            return answer(text("one", Gate()))
        case "asks":
            return answer(call("Write", file_path="written.txt", content="x"))
        case "tells_secret_in_pieces":
            return answer(text("it is ", *CANARY, "."))
        case _ if deed in SHELL:
            return answer("one", call("Bash", command=SHELL[deed]))
        case _:
            return answer("one")


def _deed(ask: Ask) -> str:
    """The words of the last prompt; reminders of Claude Code's own stand before it."""
    texts = [
        part
        for message in ask.messages
        if message["role"] == "user"
        for part in _texts(message["content"])
        if not part.startswith("<system-reminder>")
    ]
    return texts[-1].split()[0] if texts else ""


def _texts(content: Any) -> Iterator[str]:
    if isinstance(content, str):
        yield content
        return
    for block in content:
        if block["type"] == "text":
            yield block["text"]


@pytest.fixture(scope="module")
def server() -> Iterator[MessagesServer]:
    with MessagesServer(model) as server:
        yield server


def harness(place: Path, url: str) -> LibraryHarness:
    env = claude_environment(place, url)
    for inherited in ("PATH", "HOME", "LANG"):
        del env[inherited]
    settings = ProviderSettings(
        command=(str(real_claude()),), env=env, options={"settings": SETTINGS}
    )
    return LibraryHarness("claude", place, settings, PROMPTS)


@pytest.fixture(scope="module")
def kept(
    tmp_path_factory: pytest.TempPathFactory,
    request: pytest.FixtureRequest,
    server: MessagesServer,
) -> Iterator[dict[str, "Future[None]"]]:
    """Every promise that is wanted and applies, some at a time: most of it is waiting."""
    names = {item.name for item in request.session.items}
    with ThreadPoolExecutor(WORKERS) as pool:
        yield {
            promise.name: pool.submit(keep, promise, tmp_path_factory.mktemp("real"), server.url)
            for promise in PROMISES
            if f"{_TEST}[{promise.name}]" in names
        }


def keep(promise: Promise, place: Path, url: str) -> None:
    made = harness(place, url)
    if promise.why_not(made) is None:
        anyio.run(promise.check, made)


@pytest.mark.parametrize("promise", PROMISES, ids=lambda promise: promise.name)
def test_the_real_claude_code_keeps_its_promise(
    promise: Promise, kept: dict[str, "Future[None]"], server: MessagesServer
) -> None:
    real_claude()
    why_not = promise.why_not(harness(Path(os.devnull), server.url))
    assert (promise.name in NOT_APPLICABLE) == (why_not is not None), why_not
    if why_not:
        pytest.skip(f"claude: {why_not}")

    kept[promise.name].result()


_TEST = test_the_real_claude_code_keeps_its_promise.__name__
