"""The figures that a run of the tests shows at its end."""

from __future__ import annotations

from typing import Any

import pytest

from tests.conftest import pytest_terminal_summary
from tests.figures import FIGURE


class Reporter:
    """pytest's own, as far as the summary uses it."""

    def __init__(self, **stats: list[Any]) -> None:
        self.stats = stats
        self.lines: list[str] = []

    def section(self, title: str) -> None:
        self.lines.append(f"-- {title}")

    def write_line(self, line: str) -> None:
        self.lines.append(line)


def report(outcome: Any, *properties: tuple[str, object]) -> pytest.TestReport:
    """A test's report as a parallel worker sends it."""
    made = pytest.TestReport(
        "a::b", ("a", 1, "b"), {}, outcome, None, "call", user_properties=list(properties)
    )
    return pytest.TestReport._from_json(made._to_json())


def shown(**stats: list[Any]) -> list[str]:
    reporter = Reporter(**stats)
    pytest_terminal_summary(reporter)
    return reporter.lines


def test_tests_that_pass_and_tests_that_fail_show_theirs() -> None:
    passed = [report("passed", (FIGURE, "stack b: 2 s")), report("passed", (FIGURE, "stack b: 2 s"))]
    failed = [report("failed", ("other", "no figure"), (FIGURE, "stack a: 1 s"))]
    lines = shown(passed=passed, failed=failed, warnings=["a warning is no report"])
    assert lines == ["-- figures", "stack a: 1 s", "stack b: 2 s"]


def test_without_figures_there_is_no_section() -> None:
    assert shown(passed=[report("passed")]) == []
