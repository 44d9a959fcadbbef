"""Record and summarise the durations of tests and set-ups, and the failures.

A pytest run with `TRAINYARD_DURATIONS=FILE` appends one line of JSON per test to FILE. `make test` prints `summary()`
at its end; `python -m tests.durations` writes the table of docs/development/testing.md.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.benchmarks.figures import Figure, Note

FILE = "TRAINYARD_DURATIONS"
ROOT = Path(__file__).resolve().parent.parent
RECORDED = ROOT / ".test-durations"
PAGE = ROOT / "docs" / "development" / "testing.md"
TABLE_BEGINS = "<!-- durations: written by `python -m tests.durations` -->"
SLOWEST = 5
PHASES = ("setup", "call", "teardown")
# The most characters of an error that the summary shows.
FAILURE_LENGTH = 150
# The least seconds of a test in the page's second table.
LISTED_SECONDS = 2.0


@dataclass(frozen=True, kw_only=True)
class Duration:
    """Seconds of one test: of its fixtures' set-up, of its call, and of the fixtures' teardown."""

    test: str
    setup: float = 0.0
    call: float = 0.0
    teardown: float = 0.0
    failure: str = ""
    """The first line of the test's error; empty if it passed."""

    @property
    def file(self) -> str:
        """The test's file."""
        return self.test.partition("::")[0]

    @property
    def total(self) -> float:
        """The sum of the three."""
        return self.setup + self.call + self.teardown


class Recorder:
    """A pytest plugin that appends the durations of a run to a file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seconds: dict[str, dict[str, float]] = {}
        self._failures: dict[str, str] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Store the duration of a phase and its failure; the report of a crashed worker has no phase."""
        seconds = self._seconds.setdefault(report.nodeid, {})
        if report.when in PHASES:
            seconds[report.when] = report.duration
        self._store_failure(report)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Store why a file could not be collected."""
        if report.failed:
            self._seconds.setdefault(report.nodeid, {})
        self._store_failure(report)

    def _store_failure(self, report: pytest.TestReport | pytest.CollectReport) -> None:
        if report.failed:
            crash = getattr(report.longrepr, "reprcrash", None)
            lines = (crash.message if crash else report.longreprtext).strip().splitlines() or ["no message"]
            # The first line of a test's error says most; the last line of an import error.
            self._failures.setdefault(report.nodeid, lines[0 if crash else -1])

    def pytest_sessionfinish(self) -> None:
        """Append all durations to the file, in one write: several runs may end at the same time."""
        lines = (
            json.dumps({"test": test, **seconds, "failure": self._failures.get(test, "")}) + "\n"
            for test, seconds in self._seconds.items()
        )
        with self._path.open("ab", buffering=0) as sink:
            sink.write("".join(lines).encode())


def register(config: pytest.Config) -> None:
    """Register the recorder if TRAINYARD_DURATIONS is set; workers of pytest-xdist report to their controller."""
    path = os.environ.get(FILE)
    if path and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Recorder(Path(path)), "durations")


def read(path: Path) -> list[Duration]:
    """Return the recorded durations; an empty list if the file is missing."""
    lines = path.read_text().splitlines() if path.is_file() else []
    return [Duration(**json.loads(line)) for line in lines]


def summary(durations: Sequence[Duration], tiers: Sequence[Figure | Note]) -> list[str]:
    """Return the slowest tests and set-ups, each tier against its budget, and the failed tests, as lines."""
    lines = ["slowest tests (without their set-up)"]
    lines += [f"{each.call:8.1f} s  {each.test}" for each in _largest(durations, "call")]
    lines += ["slowest set-ups"]
    lines += [f"{each.setup:8.1f} s  {each.test}" for each in _largest(durations, "setup")]
    lines += ["tiers", *(f"  {tier}" for tier in tiers)]
    failed = [each for each in durations if each.failure]
    if failed:
        lines += ["failed tests", *(f"  {each.test}: {each.failure[:FAILURE_LENGTH]}" for each in failed)]
    return lines


def _largest(durations: Sequence[Duration], phase: str) -> list[Duration]:
    return sorted(durations, key=lambda each: -getattr(each, phase))[:SLOWEST]


def table(durations: Iterable[Duration]) -> str:
    """Return all files with the seconds of their tests and set-ups, and each test that takes long."""
    files: dict[str, list[Duration]] = {}
    for each in durations:
        files.setdefault(each.file, []).append(each)
    rows = sorted(files.items(), key=lambda item: -sum(each.total for each in item[1]))
    lines = [
        "| File | Tests | Calls (s) | Set-ups and teardowns (s) | Longest test (s) |",
        "|---|---:|---:|---:|---:|",
    ]
    for file, tests in rows:
        calls, longest = sum(each.call for each in tests), max(each.call for each in tests)
        fixtures = sum(each.setup + each.teardown for each in tests)
        lines.append(f"| {file} | {len(tests)} | {calls:.1f} | {fixtures:.1f} | {longest:.1f} |")
    lines += ["", f"Tests of {LISTED_SECONDS:.0f} s and more, including set-up and teardown:", ""]
    lines += ["| Test | Set-up (s) | Call (s) | Teardown (s) |", "|---|---:|---:|---:|"]
    slow = (each for tests in files.values() for each in tests if each.total >= LISTED_SECONDS)
    for each in sorted(slow, key=lambda each: -each.total):
        name = each.test.replace("|", "\\|")
        lines.append(f"| {name} | {each.setup:.1f} | {each.call:.1f} | {each.teardown:.1f} |")
    return "\n".join(lines) + "\n"


def main() -> int:
    """Write the table of the last `make test` into the page."""
    durations = read(RECORDED)
    if not durations:
        print(f"{RECORDED.name}: no durations are recorded. Run `make test`.", file=sys.stderr)
        return 1
    before = PAGE.read_text().partition(TABLE_BEGINS)[0]
    PAGE.write_text(f"{before}{TABLE_BEGINS}\n\n{table(durations)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
