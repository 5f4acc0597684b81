"""Runs the tests with several pytest processes side by side.

Most of the time a test waits for the processes that it has started, so more workers than cores
finish sooner. The files are handed out in batches, the longest first, so that all workers end at
about the same time. `tests/durations.txt` has the measured seconds of the slow files; `--record`
writes it again. `--fast` runs only the quick files that start no daemon, with fewer examples of
each property. All other arguments go to pytest.
"""

import argparse
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).parents[1]
DURATIONS = ROOT / "tests" / "durations.txt"
WORKERS = 4
BATCH_SECONDS = 20.0
# A file that is not in the list of durations takes less than this.
SLOW_SECONDS = 1.0
FAST_SECONDS = 3.0
FAST_FOLDERS = ("tests/unit/", "tests/properties/", "tests/recordings/", "tests/docs/")
MEMORY_STORE = ["tests/conformance/test_stores.py", "-k", "Memory"]
NO_TESTS_COLLECTED = 5
SUMMARY = " short test summary info "
OUTCOMES = ("passed", "failed", "errors", "skipped")


def main() -> int:
    """Run all batches, print their output and the sums, and return the worst exit code."""
    options, pytest_arguments = _parse_arguments()
    files = sorted(str(file.relative_to(ROOT)) for file in (ROOT / "tests").rglob("test_*.py"))
    durations = _load_durations()
    if options.fast:
        files = [file for file in files if _is_fast(file, durations)]
        pytest_arguments = ["--hypothesis-profile=fast", *pytest_arguments]
    batches = list(_build_batches(files, durations))
    if options.fast:
        batches.append(MEMORY_STORE)
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        done = _run_batches(batches, pytest_arguments, Path(folder), options.workers)
        reports = [_read_report(file) for file in Path(folder).glob("*.xml")]
    for line in _find_failures(done):
        print(line)
    _print_sums(reports, time.monotonic() - start)
    if options.record:
        _record_durations(reports)
    return max(map(_find_code, done))


def _parse_arguments() -> tuple[argparse.Namespace, list[str]]:
    parser = argparse.ArgumentParser(description="Run the tests; other arguments go to pytest.")
    parser.add_argument("--fast", action="store_true", help="only the files that are quick")
    parser.add_argument("--workers", type=int, default=WORKERS, help="pytest processes at a time")
    parser.add_argument("--record", action="store_true", help=f"write {DURATIONS.name} again")
    return parser.parse_known_args()


def _is_fast(file: str, durations: Mapping[str, float]) -> bool:
    return file.startswith(FAST_FOLDERS) and durations.get(file, 0.0) <= FAST_SECONDS


def _load_durations() -> dict[str, float]:
    lines = DURATIONS.read_text().splitlines() if DURATIONS.exists() else []
    return {file: float(seconds) for seconds, file in map(str.split, lines)}


def _build_batches(files: Iterable[str], durations: Mapping[str, float]) -> Iterator[list[str]]:
    """Yield the files in batches of about `BATCH_SECONDS`, the slowest files first."""
    batch: list[str] = []
    seconds = 0.0
    for file in sorted(files, key=lambda file: -durations.get(file, 0.0)):
        if batch and seconds + durations.get(file, SLOW_SECONDS) > BATCH_SECONDS:
            yield batch
            batch, seconds = [], 0.0
        batch.append(file)
        seconds += durations.get(file, SLOW_SECONDS)
    if batch:
        yield batch


def _run_batches(
    batches: Sequence[Sequence[str]], arguments: Sequence[str], folder: Path, workers: int
) -> "list[subprocess.CompletedProcess[bytes]]":
    """Run all batches and print the output of each one when it ends."""
    with ThreadPoolExecutor(workers) as pool:
        started = [
            pool.submit(_run_batch, files, arguments, folder / f"{number}.xml")
            for number, files in enumerate(batches)
        ]
        return [_print_output(future.result()) for future in as_completed(started)]


def _run_batch(
    files: Sequence[str], arguments: Sequence[str], report: Path
) -> "subprocess.CompletedProcess[bytes]":
    fixed = ("-p", "no:cacheprovider", f"--junitxml={report}")
    return subprocess.run(
        [sys.executable, "-m", "pytest", *fixed, *arguments, *files],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
    )


def _print_output(
    done: "subprocess.CompletedProcess[bytes]",
) -> "subprocess.CompletedProcess[bytes]":
    sys.stdout.buffer.write(done.stdout)
    sys.stdout.buffer.flush()
    return done


def _find_failures(done: "Iterable[subprocess.CompletedProcess[bytes]]") -> Iterator[str]:
    """Yield the lines of all summaries that name a failed test. The output of other batches has
    moved them up, out of sight."""
    for each in done:
        _, _, summary = each.stdout.decode(errors="replace").rpartition(SUMMARY)
        yield from (line for line in summary.splitlines() if line.startswith(("FAILED", "ERROR")))


def _find_code(done: "subprocess.CompletedProcess[bytes]") -> int:
    # With `-k` a batch may have no test to run.
    return 0 if done.returncode == NO_TESTS_COLLECTED else abs(done.returncode)


def _read_report(file: Path) -> ElementTree.Element:
    return ElementTree.parse(file).getroot()  # noqa: S314 (written by pytest, a moment ago)


def _print_sums(reports: Iterable[ElementTree.Element], seconds: float) -> None:
    sums: Counter[str] = Counter()
    for suite in (suite for report in reports for suite in report.iter("testsuite")):
        counts = {name: int(suite.get(name, 0)) for name in ("errors", "failures", "skipped")}
        sums["failed"] += counts["failures"]
        sums["errors"] += counts["errors"]
        sums["skipped"] += counts["skipped"]
        sums["passed"] += int(suite.get("tests", 0)) - sum(counts.values())
    counted = ", ".join(f"{sums[name]} {name}" for name in OUTCOMES if sums[name])
    print(f"all: {counted or 'no tests'} in {seconds:.0f}s", flush=True)


def _record_durations(reports: Iterable[ElementTree.Element]) -> None:
    durations: dict[str, float] = {}
    for case in (case for report in reports for case in report.iter("testcase")):
        file = _find_file(case.get("classname", ""))
        durations[file] = durations.get(file, 0.0) + float(case.get("time", 0))
    slow = {file: seconds for file, seconds in durations.items() if seconds >= SLOW_SECONDS}
    lines = [f"{slow[file]:.0f} {file}\n" for file in sorted(slow, key=lambda file: -slow[file])]
    DURATIONS.write_text("".join(lines))


def _find_file(name: str) -> str:
    """Return the file of a module or of a class in it, by its dotted name."""
    path = name.replace(".", "/")
    while path and not (ROOT / f"{path}.py").exists():
        path = path.rpartition("/")[0]
    return f"{path}.py"


if __name__ == "__main__":
    sys.exit(main())
