"""Measures how fast a message reaches a warm process, against claude-agent-sdk's client in memory.

steadyrun does the whole work: the daemon stores the message, starts its run, and the keeper writes
the turn to the process. This path has two synced commits, the path of the SDK has none. The parts
are shown as well: the SDK after one commit of its own, synced or not, a keeper's frame without a
store, and a pipe. All use the same agent program, which reports when it had read its input. The
contenders take turns, one message each.
"""

import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager

from bench.measure import (
    Failed,
    Rounds,
    Row,
    compute_percentile,
    expect,
    format_seconds,
    measure_steadily,
)
from bench.warm_turns import WAYS

ROUNDS = 5
# Turns of a round; all rounds together have 200.
TURNS = 40
_WARM_UP = 20
# Long enough for the effects of the last turn to end.
_REST_SECONDS = 0.005
_WAIT_SECONDS = 60.0


def rows() -> list[Row]:
    return measure_steadily(_measure, _build_rows, controls=["sdk"])


def _measure() -> Rounds:
    found: Rounds = {way: [] for way in WAYS}
    with ExitStack() as stack:
        others = {way: stack.enter_context(_start_process(way)) for way in WAYS}
        for number in range(ROUNDS):
            taken: Rounds = {way: [] for way in WAYS}
            for turn in range(TURNS + (0 if number else _WARM_UP)):
                _turn(others, taken, turn)
            for way in WAYS:
                found[way].append(compute_percentile(taken[way][-TURNS:], 0.5))
    return found


def _turn(others: "Mapping[str, subprocess.Popen[str]]", taken: Rounds, number: int) -> None:
    for way in WAYS if number % 2 == 0 else reversed(WAYS):
        time.sleep(_REST_SECONDS)  # noqa: TID251 (see there)
        taken[way].append(int(_read_answer(others[way], way)) / 1e9)


def _read_answer(other: "subprocess.Popen[str]", way: str) -> str:
    assert other.stdin
    assert other.stdout
    other.stdin.write("\n")
    other.stdin.flush()
    answer = other.stdout.readline()
    expect(bool(answer), f"{way}: it has failed")
    return answer


@contextmanager
def _start_process(way: str) -> Iterator["subprocess.Popen[str]"]:
    command, pipe = [sys.executable, "-m", "bench.warm_turns", way], subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as other:
        try:
            yield other
        except Failed:
            other.kill()
            raise
        assert other.stdin
        assert other.stdout
        other.stdin.close()
        expect(other.stdout.readline() == "checked\n", f"{way}: its counts are wrong")
        expect(other.wait(_WAIT_SECONDS) == 0, f"{way}: it has failed")


def _build_rows(found: Rounds) -> list[Row]:
    best = {way: min(rounds) for way, rounds in found.items()}
    sdk = best["sdk"]
    for way, shown in _PARTS.items():
        print(f"warm: {shown} {format_seconds(best[way])}, {best[way] / sdk:.2f} of the SDK's")
    ours = best["ours"]
    return [
        Row("warm: accept to input, durable / SDK, p50", format_seconds(ours), format_seconds(sdk),
            ours / sdk, floor=1, goal=0.5),
        _build_peer_row("sdk, commit", "SDK and one commit", best),
        _build_peer_row("sdk, synced", "SDK and one synced commit", best),
        _build_peer_row("raw", "pipe", best),
    ]  # fmt: skip


_PARTS = {
    "raw": "a pipe",
    "frame": "a keeper's frame, without a store",
    "sdk, commit": "the SDK and one commit",
    "sdk, synced": "the SDK and one synced commit",
}


def _build_peer_row(way: str, shown: str, best: Mapping[str, float]) -> Row:
    ours, its = best["ours"], best[way]
    return Row(f"warm: the same / {shown}", format_seconds(ours), format_seconds(its), ours / its)
