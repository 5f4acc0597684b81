"""Runs the benchmarks and fails if one of them misses its floor.

`python -m bench` runs all but the large one, `python -m bench NAME...` runs the named ones.
"""

import sys
from collections.abc import Callable, Sequence

from bench import (
    adoption,
    append,
    big_lines,
    claims,
    keeper_start,
    keeper_weight,
    large,
    latency,
    pipeline,
    prune,
    recovery,
    sessions,
    start,
    wake,
    warm,
)
from bench.measure import Failed, Row, format_table

_ALL: dict[str, Callable[[], list[Row]]] = {
    "append": append.rows,
    "claims": claims.rows,
    "wake": wake.rows,
    "start": start.rows,
    "pipeline": pipeline.rows,
    "latency": latency.rows,
    "big_lines": big_lines.rows,
    "keeper_weight": keeper_weight.rows,
    "keeper_start": keeper_start.rows,
    "recovery": recovery.rows,
    "warm": warm.rows,
    "sessions": sessions.rows,
    "adoption": adoption.rows,
    "large": large.rows,
    "prune": prune.rows,
}
_ONLY_BY_NAME = {"large", "prune"}


def main(names: Sequence[str]) -> int:
    unknown = [name for name in names if name not in _ALL]
    if unknown:
        print(f"no benchmark {', '.join(unknown)}; there are: {', '.join(_ALL)}", file=sys.stderr)
        return 2
    rows: list[Row] = []
    failures: list[str] = []
    for name in names or [name for name in _ALL if name not in _ONLY_BY_NAME]:
        try:
            rows += _ALL[name]()
        except Failed as failed:
            failures.append(f"{name} FAILED: {failed}")
    if rows:
        print(format_table(rows))
    for failure in failures:
        print(failure)
    return 1 if failures or any(row.is_failed for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
