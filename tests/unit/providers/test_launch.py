"""Tests what the launches of Claude Code and Codex have in common."""

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from steadyrun.dialect import Image, Launch, LaunchRequest, Turn
from steadyrun.errors import InvalidUsage
from steadyrun.model.media import LARGEST_IMAGE_BYTES
from steadyrun.model.policy import DENIED
from steadyrun.providers.claude import launch as claude
from steadyrun.providers.codex import launch as codex

REQUEST = LaunchRequest(Turn("run_1", "hello"), "/work", "/home/processes/prc_1")
PICTURE = Image("image/png", b"\x89PNG\r\n\x1a\n and more")
# Prints its arguments as JSON, and then its input.
PRINT_INPUT = "import sys, json; print(json.dumps(sys.argv[1:])); print(sys.stdin.read(), end='')"


@dataclass(frozen=True)
class Launcher:
    """How a CLI is launched with its default options."""

    name: str
    options: type[claude.ClaudeOptions] | type[codex.CodexOptions]
    launch: Callable[..., Launch]
    first_arguments: list[str]
    documented: tuple[str, ...]


CLAUDE = Launcher(
    "claude",
    claude.ClaudeOptions,
    claude.launch,
    ["--output-format", "stream-json", "--verbose", "-p"],
    DENIED,
)
CODEX = Launcher(
    "codex",
    codex.CodexOptions,
    codex.launch,
    ["exec", "--json", "--skip-git-repo-check"],
    tuple(f"`{mode}`" for mode in codex.MODES),
)
each_launcher = pytest.mark.parametrize("cli", [CLAUDE, CODEX], ids=lambda cli: cli.name)
each_shape = pytest.mark.parametrize("is_one_shot", [False, True], ids=["many turns", "one shot"])


@each_launcher
def test_configured_command_replaces_the_program(cli: Launcher) -> None:
    argv = cli.launch(REQUEST, cli.options()).argv
    configured = replace(REQUEST, command=("/opt/cli", "--x"))

    assert argv[0] == cli.name
    assert cli.launch(configured, cli.options()).argv == ("/opt/cli", "--x", *argv[1:])


def launch_one_shot(
    folder: Path, cli: Launcher, turn: Turn, resume: str | None = None
) -> list[bytes]:
    """Launch a program that prints its arguments and input, and return the lines before its input.

    The last part is the input.
    """
    command = (sys.executable, "-c", PRINT_INPUT)
    request = replace(REQUEST, turn=turn, directory=str(folder), command=command, resume=resume)
    launch = cli.launch(request, cli.options(one_shot=True))
    for name, content in launch.files.items():
        (folder / name).write_bytes(content)
    assert launch.stdin == "null"
    assert [rung.do for rung in launch.rungs] == ["signal"]

    done = subprocess.run(
        launch.argv, stdin=subprocess.DEVNULL, capture_output=True, timeout=30, check=True
    )
    return done.stdout.split(b"\n", 2 if resume and cli is CODEX else 1)


@each_launcher
@pytest.mark.parametrize("text", ["hello", "x" * 400_000, "--version", "ä\n$(id) `id` \"'", ""])
def test_one_shot_prompt_of_any_length_is_read_from_a_file(
    tmp_path: Path, cli: Launcher, text: str
) -> None:
    arguments, stdin = launch_one_shot(tmp_path, cli, Turn("run_1", text))

    assert stdin.decode() == text
    given = json.loads(arguments)
    assert given[: len(cli.first_arguments)] == cli.first_arguments
    assert not {"--input-format", "--permission-prompt-tool", text or None} & set(given)


@pytest.mark.parametrize("size", [10, 1_000_000])
def test_one_shot_prompt_with_images_of_claude_is_one_json_line_on_stdin(
    tmp_path: Path, size: int
) -> None:
    picture = Image("image/png", PICTURE.data + b"p" * size)

    arguments, stdin = launch_one_shot(tmp_path, CLAUDE, Turn("run_1", "/look", (picture,)))

    assert json.loads(arguments)[4:6] == ["--input-format", "stream-json"]
    content = claude.build_content("/look", (picture,))
    assert json.loads(stdin) == {"type": "user", "message": {"role": "user", "content": content}}
    assert stdin.count(b"\n") == 1


@pytest.mark.parametrize("token", ["token", "a'b", 'a"b$(id)`id`\\'])
def test_resumed_codex_exec_first_prints_the_thread(tmp_path: Path, token: str) -> None:
    turn = Turn("run_1", "hello")
    thread, arguments, stdin = launch_one_shot(tmp_path, CODEX, turn, resume=token)

    assert json.loads(thread) == {"type": codex.RESUMED, "thread_id": token}
    assert json.loads(arguments)[:2] == ["exec", "resume"]
    assert stdin == b"hello"


# -- bad input


def build_gif(size: int) -> Image:
    return Image("image/gif", b"GIF89a" + bytes(size - 6))


@each_launcher
@each_shape
@pytest.mark.parametrize(
    ("images", "problem"),
    [
        ([PICTURE] * 11, "at most 10 images, found 11"),
        ([PICTURE, Image("image/tiff", b"x")], "image 2: expected png, jpeg, webp or gif"),
        ([PICTURE, Image("image/gif", b"PNG")], "image 2: expected image/gif, found something els"),
        ([build_gif(LARGEST_IMAGE_BYTES + 6)], "image 1: expected at most 20"),
        ([build_gif(LARGEST_IMAGE_BYTES)] * 3, "at most 50.0 MB of images"),
    ],
    ids=["eleven", "other kind", "other bytes", "too large", "too large together"],
)
def test_too_many_or_too_large_images_are_refused(
    cli: Launcher, is_one_shot: bool, images: list[Image], problem: str
) -> None:
    request = replace(REQUEST, turn=Turn("run_1", "x", tuple(images)))
    with pytest.raises(InvalidUsage, match=problem):
        cli.launch(request, cli.options(one_shot=is_one_shot))


@each_launcher
@each_shape
@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"model": "--dangerous"}, "model: expected a name"),
        ({"model": " "}, "model: expected a name"),
        ({"model": "a\0b"}, "model: expected a name"),
        ({"turn": Turn("run_1", "x", model="-x")}, "model: expected a name"),
        ({"resume": "-x"}, "resume: expected a name"),
        ({"resume": ""}, "resume: expected a name"),
    ],
)
def test_request_values_that_look_like_flags_are_refused(
    cli: Launcher, is_one_shot: bool, fields: dict[str, Any], problem: str
) -> None:
    with pytest.raises(InvalidUsage, match=problem):
        cli.launch(replace(REQUEST, **fields), cli.options(one_shot=is_one_shot))


@each_launcher
def test_providers_page_lists_every_option_with_its_default(cli: Launcher) -> None:
    page = (Path(__file__).parents[3] / "docs/providers.md").read_text(encoding="utf-8")
    section = page.partition(f"\n## {cli.name}\n")[2].partition("\n## ")[0]
    table = section.partition("| option |")[2].partition("\n\n")[0]
    rows = [line.split("|")[1:3] for line in table.splitlines() if line.startswith("| `")]
    shown = {name.strip(" `"): default.strip(" `") for name, default in rows}

    defaults = msgspec.to_builtins(cli.options())
    assert list(shown) == list(defaults)
    for name, default in defaults.items():
        if isinstance(default, bool | int):
            assert shown[name] == json.dumps(default), name
        elif cli is CODEX:
            assert shown[name] == (json.dumps(default) if default else "none"), name
    assert all(word in section for word in cli.documented)
