"""The launcher's one line of state."""

from __future__ import annotations

import json

from launcher.actions import Report


def line(report: Report, elapsed: float) -> str:
    """The line for this report; `elapsed` in seconds since this launcher began."""
    return (
        f"launcher state={report.state} nodes={report.nodes}/{report.of} claims={report.claims} "
        f"reason={json.dumps(report.reason, ensure_ascii=False)} elapsed={elapsed:.0f}s"
    )
