"""Figures that a run of the tests has to show, whether its tests pass or not.

A test records one with `record_property(FIGURE, "a line")`; properties reach the summary from parallel workers, too,
which what a test prints does not.
"""

from __future__ import annotations

from collections.abc import Iterable

FIGURE = "figure"


def figures(reports: Iterable[object]) -> list[str]:
    """The lines of a run's reports, each once, in order of their text. What is no report of a test has none."""
    found = {
        str(value)
        for report in reports
        for name, value in getattr(report, "user_properties", ())
        if name == FIGURE
    }
    return sorted(found)
