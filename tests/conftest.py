"""For all tests."""

from __future__ import annotations

import signal

import pytest

from tests.figures import figures

# A shell without job control starts what it puts into the background with SIGINT ignored, and every process that is
# started from there inherits that: tests of interrupts would then wait for nothing.
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Show the figures that tests recorded, also of tests that passed: their own output is not shown."""
    found = figures(each for reports in terminalreporter.stats.values() for each in reports)
    if found:
        terminalreporter.section("figures")
        for line in found:
            terminalreporter.write_line(line)
