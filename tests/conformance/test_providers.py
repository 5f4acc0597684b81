"""Every provider keeps every promise that applies to it: real library, real keepers, real children.

As a program, it keeps one promise in a home that was made for it: on a small disk.
"""

import shutil
import subprocess
import sys
from base64 import b64encode
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import anyio
import msgspec
import pytest

from steadyrun.config import ProviderSettings
from steadyrun.testing.provider_conformance import (
    FLOOD_BYTES,
    GO,
    LONG_BYTES,
    PROMISES,
    Prompt,
    ProviderPromise,
    Situation,
)
from tests.children import fake_claude, fake_codex
from tests.conformance.harness import CANARY, LibraryHarness
from tests.support.commands import ROOT
from tests.support.require import require

PATIENCE_SECONDS = 60
WORKERS = 3
# The keeper's reserve is 64 MiB.
DISK = "96m"
NOVEL = '{"type": "novelty", "n": 1}'
NO_TEXT = b'{"type":"text","text":"\xff\xfe"}'


def _script(*steps: object) -> str:
    return "script:" + msgspec.json.encode(steps).decode()


def _shell(command: str) -> str:
    return f"sh -c '{command}'"


def play_of(*steps: object) -> str:
    return "play:" + msgspec.json.encode(steps).decode()


def _telling(tool: object) -> Prompt:
    """A fake CLI that prints the secret in every kind of output."""
    return Prompt(
        play_of(
            {"text": f"it is {CANARY}."},
            {"tool": tool},
            {"thinking": CANARY},
            {"stderr": CANARY},
            {"raw": f'{{"type":"novelty","its":"{CANARY}"}}'},
            {"text": CANARY},
        )
    )


_WAITING = f"until test -e {GO}; do sleep 0.01; done"
_FLOOD = f"yes warning | head -c {FLOOD_BYTES} >&2"
# What every fake can play.
_PLAYED: dict[Situation, Prompt] = {
    "answers": Prompt(play_of({"delta": ["4", "2"]}), "42"),
    "learns": Prompt(play_of({"remember": "7f3a"})),
    "recalls": Prompt(play_of("recall"), "7f3a"),
    "is_long": Prompt("x" * LONG_BYTES),
    "waits": Prompt(play_of({"text": "one"}, {"until": GO}, {"text": "two"})),
    "hangs": Prompt(play_of({"text": "one"}, "hang")),
    "is_deaf": Prompt(play_of({"text": "one"}, "deaf", "hang")),
    "crashes": Prompt(play_of({"text": "one"}, {"stderr": "sorry"}, {"crash": 11})),
    "leaves_process": Prompt(play_of({"fork": 60}, {"text": "one"})),
    "is_novel": Prompt(play_of({"raw": NOVEL}), NOVEL),
    "is_no_json": Prompt(play_of({"raw": "not JSON {"}), "not JSON {"),
    "is_no_text": Prompt(play_of({"bytes": b64encode(NO_TEXT).decode()}), NO_TEXT),
    "floods_stderr": Prompt(play_of({"flood": FLOOD_BYTES}, {"text": "one"})),
    "tells_secret_in_pieces": Prompt(play_of({"delta": ["it is ", *CANARY, "."]})),
}
_CODEX_TOOL = Prompt(play_of({"tool": {"command": "ls", "leave_open": True}}, {"text": "one"}))
_CODEX_SECRET = _telling({"command": f"echo {CANARY}", "output": CANARY})
PROMPTS: dict[str, dict[Situation, Prompt]] = {
    "scripted": {
        "answers": Prompt(_script({"delta": ["4", "2"]}), "42"),
        "learns": Prompt("remember 7f3a"),
        "recalls": Prompt(_script("recall"), "7f3a"),
        "is_long": Prompt("x" * LONG_BYTES),
        "waits": Prompt(_script({"text": "one"}, {"until": GO}, {"text": "two"})),
        "hangs": Prompt(_script({"text": "one"}, "hang")),
        "is_deaf": Prompt(
            _script({"text": "one"}, "ignore_sigterm", {"hang": {"ignore_interrupt": True}})
        ),
        "crashes": Prompt(_script({"text": "one"}, {"stderr": "sorry"}, {"crash": 3})),
        "leaves_process": Prompt(_script({"background": 60}, {"text": "one"})),
        "leaves_tool": Prompt(
            _script({"tool": {"name": "Bash", "leave_open": True}}, {"text": "one"})
        ),
        "asks": Prompt(_script({"approval": {"name": "Write", "output": "written"}})),
        "is_novel": Prompt(_script({"unknown": {"fields": {"n": 1}}}), NOVEL),
        "is_no_json": Prompt(_script("garbage"), "not JSON {"),
        "is_no_text": Prompt(
            _script({"garbage": {"invalid_utf8": True}}), b'{"type":"text","text":"\xff\xfe"}'
        ),
        "floods_stderr": Prompt(
            _script(
                {"flood": {"count": 100, "bytes": FLOOD_BYTES // 100, "stderr": True}},
                {"text": "one"},
            )
        ),
        "tells_secret": Prompt(
            _script(
                {"text": f"it is {CANARY}."},
                {"tool": {"name": "Bash", "input": {CANARY: CANARY}, "output": [CANARY]}},
                {"thinking": CANARY},
                {"stderr": CANARY},
                {"unknown": {"fields": {"its": CANARY}}},
                {"result": CANARY},
            )
        ),
        "tells_secret_in_pieces": Prompt(
            _script({"delta": {"pieces": ["it is ", *CANARY, "."], "seconds": 0.005}})
        ),
    },
    "claude": {
        **_PLAYED,
        "leaves_tool": Prompt(play_of({"tool": {"name": "Bash", "leave_open": True}})),
        "asks": Prompt(play_of({"ask": {"name": "Write"}}, {"text": "one"})),
        "tells_secret": _telling({"name": "Bash", "input": {CANARY: CANARY}, "output": CANARY}),
    },
    "codex": {
        **_PLAYED,
        "hangs": Prompt(play_of({"text": "one"}, {"run": "sleep 60"})),
        "leaves_tool": _CODEX_TOOL,
        "asks": Prompt(play_of({"ask": {"command": "touch x"}}, {"text": "one"})),
        "tells_secret": _CODEX_SECRET,
    },
    "codex exec": {
        **_PLAYED,
        "leaves_tool": _CODEX_TOOL,
        "tells_secret": _CODEX_SECRET,
        "tells_secret_in_pieces": Prompt(play_of(*({"stderr": piece} for piece in CANARY))),
    },
    "shell": {
        "answers": Prompt("echo 42", "42"),
        "is_long": Prompt("echo " + "x" * LONG_BYTES),
        "waits": Prompt(_shell(f"echo one; {_WAITING}; echo two")),
        "hangs": Prompt(_shell("echo one; sleep 60")),
        "is_deaf": Prompt(_shell('trap "" TERM; echo one; while true; do sleep 1; done')),
        "crashes": Prompt(_shell("echo one; echo sorry >&2; kill -SEGV $$")),
        "leaves_process": Prompt(_shell("setsid sleep 60 >/dev/null 2>&1 & echo one")),
        "floods_stderr": Prompt(_shell(f"{_FLOOD}; echo one")),
        "tells_secret": Prompt("printenv CANARY_KEY"),
        "tells_secret_in_pieces": Prompt(
            _shell(
                "for at in 1 9 17 25; do"
                ' printf %s "$(echo "$CANARY_KEY" | cut -c$at-$((at+7)))" >&2; sleep 0.02;'
                " done; echo one"
            )
        ),
    },
}
_ALONE = (sys.executable, "-I", "-S")
_CODEX = (*_ALONE, fake_codex.__file__)
# A fake program with the protocol of the CLI, so that the CLI need not be installed.
SETTINGS = {
    "claude": ProviderSettings(command=(*_ALONE, fake_claude.__file__)),
    "codex": ProviderSettings(command=_CODEX),
    "codex exec": ProviderSettings(command=_CODEX, options={"one_shot": True}),
}
# Promises of a provider that reads input during a turn.
_LISTENING = {
    "check_the_fate_of_a_message_is_recorded",
    "check_any_program_can_steer",
    "check_a_message_of_a_cancelled_run_has_one_fate",
    "check_an_allowed_tool_runs",
    "check_a_denied_tool_does_not_run",
    "check_a_changed_input_is_refused_by_name",
    "check_a_denial_may_end_the_turn",
    "check_the_first_answer_counts",
    "check_a_run_can_be_cancelled_during_an_approval",
}
# Promises that do not apply to a provider, on purpose.
NOT_APPLICABLE = {
    "claude": {
        "check_a_changed_input_is_refused_by_name",
        "check_a_missing_ability_is_refused_by_name",
        "check_steering_is_refused_where_unsupported",
        "check_a_full_disk_ends_the_run",
    },
    "codex": {
        "check_steering_is_refused_where_unsupported",
        "check_a_full_disk_ends_the_run",
    },
    "codex exec": {*_LISTENING, "check_a_full_disk_ends_the_run"},
    "scripted": {
        "check_a_missing_ability_is_refused_by_name",
        "check_steering_is_refused_where_unsupported",
        "check_a_full_disk_ends_the_run",
    },
    "shell": {
        "check_a_conversation_is_resumed",
        "check_an_unknown_conversation_is_a_named_error",
        "check_a_full_disk_ends_the_run",
        *_LISTENING,
        "check_an_unknown_frame_is_kept",
        "check_a_line_without_json_is_kept",
        "check_a_line_of_invalid_utf8_is_kept",
        "check_an_open_tool_is_closed_at_the_end",
    },
}


def harness_of(provider: str, place: Path, *, has_small_disk: bool = False) -> LibraryHarness:
    """A provider by its name, and behind that the way it is used."""
    settings, prompts = SETTINGS.get(provider, ProviderSettings()), PROMPTS[provider]
    name = provider.partition(" ")[0]
    return LibraryHarness(name, place, settings, prompts, has_small_disk=has_small_disk)


PAIRS = [(provider, promise) for provider in PROMPTS for promise in PROMISES]


@pytest.fixture(scope="module")
def kept(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[dict[str, "Future[None]"]]:
    """Every promise that is wanted and applies, three at a time: most of it is waiting."""
    names = {item.name for item in request.session.items}
    with ThreadPoolExecutor(WORKERS) as pool:
        yield {
            _name(pair): pool.submit(keep, *pair, tmp_path_factory.mktemp("place"))
            for pair in PAIRS
            if f"{_TEST}[{_name(pair)}]" in names
        }


def _name(pair: tuple[str, ProviderPromise]) -> str:
    provider, promise = pair
    return f"{provider}-{promise.name}"


@pytest.mark.parametrize("pair", PAIRS, ids=_name)
def test_provider_keeps_its_promise(
    pair: tuple[str, ProviderPromise], kept: dict[str, "Future[None]"]
) -> None:
    provider, promise = pair
    why_not = promise.find_skip_reason(harness_of(provider, Path()))
    assert (promise.name in NOT_APPLICABLE[provider]) == (why_not is not None), why_not
    if why_not:
        pytest.skip(f"{provider}: {why_not}")

    kept[_name(pair)].result()


_TEST = test_provider_keeps_its_promise.__name__


@pytest.fixture(scope="module")
def on_small_disks(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[dict[str, "Future[subprocess.CompletedProcess[str]]"]]:
    """Both at once: a keeper looks at its disk once a second."""
    with ThreadPoolExecutor(len(PROMPTS)) as pool:
        yield {
            provider: pool.submit(_keep_on_small_disk, provider, tmp_path_factory.mktemp("disk"))
            for provider in PROMPTS
        }


@pytest.mark.parametrize("provider", PROMPTS)
def test_full_disk_ends_the_run(
    provider: str,
    on_small_disks: dict[str, "Future[subprocess.CompletedProcess[str]]"],
    tmp_path: Path,
) -> None:
    require("unshare", _can_mount(tmp_path), "no tmpfs can be mounted in a namespace of one's own")

    done = on_small_disks[provider].result()

    assert done.returncode == 0, done.stderr


def _keep_on_small_disk(provider: str, place: Path) -> "subprocess.CompletedProcess[str]":
    script = f'mount -t tmpfs -o size={DISK} none "$0" && exec "$@"'
    command = [sys.executable, "-m", __name__, "check_a_full_disk_ends_the_run", provider]
    return subprocess.run(
        ["unshare", "-rm", "sh", "-c", script, place, *command, place],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )


def keep(
    provider: str, promise: ProviderPromise, place: Path, *, has_small_disk: bool = False
) -> None:
    harness = harness_of(provider, place, has_small_disk=has_small_disk)
    if promise.find_skip_reason(harness) is None:
        anyio.run(promise.check, harness)


def _can_mount(place: Path) -> bool:
    if shutil.which("unshare") is None:
        return False
    attempt = ["unshare", "-rm", "mount", "-t", "tmpfs", "none", str(place)]
    return subprocess.run(attempt, capture_output=True, check=False).returncode == 0


if __name__ == "__main__":
    [wanted] = [each for each in PROMISES if each.name == sys.argv[1]]
    keep(sys.argv[2], wanted, Path(sys.argv[3]), has_small_disk=True)
