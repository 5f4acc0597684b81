"""Wherever a text is cut, no part of a secret is left, and the rest of the text stays."""

import io
import json
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from steadyrun.app.archive import copy_scrubbed
from steadyrun.dialect import ProcessExit, TurnEnded
from steadyrun.drivers import keeper
from steadyrun.drivers.journal.json_cutter import JsonCutter
from steadyrun.drivers.journal.output_lines import OutputLines
from steadyrun.drivers.journal.process_output import ProcessOutput, ReadSetup
from steadyrun.drivers.keeper_client import STDERR_EXCERPT_CHARS, read_exit
from steadyrun.drivers.turn_tracker import TurnTracker
from steadyrun.lib.clock import SystemClock
from steadyrun.lib.file_follower import FileWatches
from steadyrun.lib.framing import CutFrame, Frame
from steadyrun.model.event import Diagnostic, Emitted, get_type
from steadyrun.model.ids import AgentId, ItemId, RunId
from steadyrun.model.item import Item
from steadyrun.model.quotation import LONGEST_QUOTE, quote
from steadyrun.model.run import (
    STDERR_EXCERPT_CHARS as EXCERPT_CHARS,
)
from steadyrun.model.run import (
    Created,
    Finished,
    Run,
    build_status_events,
    scrub_run,
    step,
)
from steadyrun.model.secret import Scrubber, Secret
from steadyrun.providers.shell import Shell, ShellOptions
from steadyrun.runtime.prompt.briefing import Handover, MissedRun, write_briefing
from steadyrun.runtime.prompt.recovery import write_recovery_context
from tests.support.planted_secrets import KNOWN, SECRETS, SHAPED, find_part

AT = datetime(2026, 1, 1, tzinfo=UTC)
SCRUBBER = Scrubber([Secret(each) for each in KNOWN])
secrets = st.sampled_from(SECRETS)
# How much of the secret is before the cut, in hundredths.
shares = st.integers(0, 100)
fillers = st.sampled_from(["x ", "ordinary words, ", "{}[]", "grüße "])


def plant(secret: str, share: int, filler: str, limit: int, *, rest: int = 500) -> str:
    """A text with a secret across its limit."""
    before = limit - len(secret) * share // 100
    return f"{fill(filler, before - 1)} {secret} {fill(filler, rest)}"


def fill(filler: str, length: int) -> str:
    return (filler * (length // len(filler) + 1))[: max(0, length)]


@given(secrets, shares, fillers)
def test_excerpt_of_a_run_has_no_part_of_a_secret(secret: str, share: int, filler: str) -> None:
    stderr = plant(secret, share, filler, 1000, rest=EXCERPT_CHARS - len(secret) // 2)
    created = Created(RunId("run_1"), AgentId("agt_1"), None, "shell", AT)
    before = step(None, created)
    run = scrub_run(
        step(before, Finished(AT, "failed", diagnostic=Diagnostic(1, stderr))), SCRUBBER
    )

    assert run.diagnostic
    assert len(run.diagnostic.stderr_excerpt) <= EXCERPT_CHARS
    [ended] = build_status_events(before, run)
    assert find_part(f"{run} {ended}") is None


@pytest.mark.parametrize("size", [STDERR_EXCERPT_CHARS, 64 << 10, (64 << 10) + 4096, 200_000])
@pytest.mark.parametrize("secret", SECRETS)
@pytest.mark.parametrize("share", [1, 30, 50, 70, 99])
def test_end_of_stderr_has_no_part_of_a_secret(
    tmp_path: Path, secret: str, share: int, size: int
) -> None:
    """The secret begins before the last `size` bytes, where a cut may be."""
    tail = len(secret) * share // 100
    text = "word " * 60_000 + secret + fill(" y", size - tail)
    (tmp_path / "stderr").write_text(text)

    stderr = read_exit(tmp_path, SCRUBBER).stderr

    assert len(stderr) > STDERR_EXCERPT_CHARS // 2
    assert find_part(stderr) is None
    if size >= keeper.STDERR_KEPT_BYTES:
        # The keeper has cut the file there.
        (tmp_path / "stderr").write_bytes(text.encode()[-size:])
        assert find_part(read_exit(tmp_path, SCRUBBER).stderr) is None


@given(secrets, shares, fillers, st.integers(80, 300))
def test_capped_output_of_a_command_has_no_part_of_a_secret(
    secret: str, share: int, filler: str, cap: int
) -> None:
    turns = TurnTracker(Shell(ShellOptions(output_cap_bytes=cap)), SCRUBBER)
    text = plant(secret, share, filler, cap).encode()
    told = [*turns.on_received(Frame(text, len(text) + 1), AT)]
    told = [*told, *turns.on_exited(ProcessExit(0), AT)]

    kept = [
        str(each)
        for each in told
        if not (isinstance(each, Emitted) and get_type(each.event) == "output.raw")
    ]
    assert any(isinstance(each, TurnEnded) for each in told)
    cleaned = [SCRUBBER.clean(each) for each in kept]
    assert [each for each in cleaned if find_part(each)] == []


@given(secrets, shares, fillers, st.booleans())
def test_cut_text_of_a_json_line_has_no_part_of_a_secret(
    secret: str, share: int, filler: str, is_ascii: bool
) -> None:
    text = plant(secret, share, filler, 400)
    raw = json.dumps({"a": text, "b": [text, 1]}, ensure_ascii=is_ascii).encode()
    cutter = JsonCutter(400, 100_000, SCRUBBER)
    for at in range(0, len(raw), 7):
        cutter.feed(raw[at : at + 7])

    assert cutter.result
    document = json.loads(cutter.result)
    assert "bytes cut by steadyrun]" in document["a"]
    assert find_part(SCRUBBER.clean(document["a"])) is None
    assert document["b"][1] == 1


@given(secrets, shares)
def test_beginning_of_a_long_line_has_no_part_of_a_secret(secret: str, share: int) -> None:
    text = plant(secret, share, "words ", 64 << 10, rest=200_000)
    lines = OutputLines(0, 400_000, scrubber=SCRUBBER, has_parts=False)
    [frame] = lines.feed(b"[" * 5 + text.encode() + b"\n")

    assert isinstance(frame, CutFrame)
    assert find_part(SCRUBBER.clean(frame.raw).decode(errors="replace")) is None


@given(secrets, shares, fillers)
def test_quoted_request_has_no_part_of_a_secret(secret: str, share: int, filler: str) -> None:
    text = plant(secret, share, filler, 2048)
    item = Item(
        ItemId("itm_1"), AgentId("agt_1"), 1, "message", text, "resume", AT, status="completed"
    )

    assert find_part(write_recovery_context([item], SCRUBBER) or "") is None


@given(secrets, shares, fillers)
def test_briefing_has_no_part_of_a_secret(secret: str, share: int, filler: str) -> None:
    item = Item(
        ItemId("itm_1"), AgentId("agt_1"), 1, "message", plant(secret, share, filler, 1000),
        "resume", AT, status="completed",
    )  # fmt: skip
    run = Run(RunId("run_1"), AgentId("agt_1"), item.id, "claude", AT, status="completed")
    handover = Handover("you continue", ItemId("itm_2"), (MissedRun(item, run),))

    briefing = write_briefing(handover, SCRUBBER)

    assert find_part(briefing) is None
    assert "Asked:" in briefing


@pytest.mark.parametrize("secret", SECRETS)
@pytest.mark.parametrize("share", [1, 30, 50, 70, 99])
async def test_live_stderr_after_a_cut_of_the_file_has_no_part_of_a_secret(
    tmp_path: Path, secret: str, share: int
) -> None:
    (tmp_path / "journal").touch()
    stderr = tmp_path / "stderr"
    stderr.write_bytes(b"words " * 1000)
    with (
        FileWatches() as watches,
        ProcessOutput(
            tmp_path, 0, ReadSetup(watches, SystemClock(), SCRUBBER), has_parts=False
        ) as output,
    ):
        assert b"".join(output.read_stderr()) == b"words " * 1000
        stderr.write_text(f"{secret[len(secret) * share // 100 :]} after")
        [chunk] = output.read_stderr()

    assert chunk.endswith(b" after")
    assert find_part(chunk.decode(errors="replace")) is None


@given(st.sampled_from(SHAPED), shares, fillers)
def test_quotation_of_an_input_has_no_part_of_a_secret(
    secret: str, share: int, filler: str
) -> None:
    quoted = quote(plant(secret, share, filler, LONGEST_QUOTE))

    assert len(quoted) <= 2 * LONGEST_QUOTE
    assert find_part(SCRUBBER.clean(quoted)) is None


@given(secrets, shares, st.integers(50, 200))
def test_copy_in_chunks_has_no_part_of_a_secret(secret: str, share: int, chunk: int) -> None:
    source, target = io.BytesIO(plant(secret, share, "words ", chunk * 3).encode()), io.BytesIO()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("steadyrun.app.archive.CHUNK_BYTES", chunk)
        copy_scrubbed(SCRUBBER, source, target)

    assert find_part(target.getvalue().decode()) is None
    assert b"words" in target.getvalue()


@given(secrets, shares)
def test_both_parts_of_a_text_that_is_cut_anywhere_have_no_part_of_a_secret(
    secret: str, share: int
) -> None:
    text, at = f"before {secret} after", 7 + len(secret) * share // 100

    assert find_part(SCRUBBER.clean_beginning(text[:at])) is None
    assert find_part(SCRUBBER.clean_end(text[at:])) is None
