"""For all tests: one seed for what is drawn by chance, and which of the live ones run one after the other."""

from __future__ import annotations

import gc
import os
import signal
from pathlib import Path
from typing import Any

import hypothesis
import pytest

from tests.figures import figures
from tests.seed import SEED, of_checkout

# A shell without job control starts what it puts into the background with SIGINT ignored, and every process that is
# started from there inherits that: tests of interrupts would then wait for nothing.
signal.signal(signal.SIGINT, signal.default_int_handler)

# What runs on one local cloud, or previews into one folder, by file or by folder: one worker of pytest-xdist has it.
TOGETHER = {
    "test_main_job": "main job",
    "test_restarts": "main job",
    "test_made_stack": "main job",
    "test_identity": "main job",
    "test_permissions": "main job",
    "graph": "previews",
    "policy": "previews",
}
# Whoever begins with the longest ends first; the order within the main job's story tests/local/conftest.py sets.
LONGEST = (
    "test_interruptions",
    "main job",
    "test_cpu_story",
    "test_lives",
    "test_sweep",
    "test_given_cluster",
)
# On a busy machine an example may take any time.
hypothesis.settings.register_profile("trainyard", deadline=None)
hypothesis.settings.load_profile("trainyard")


def pytest_configure() -> None:
    os.environ.setdefault(SEED, str(of_checkout()))


def pytest_report_header() -> str:
    return f"{SEED}={os.environ[SEED]} draws the same by chance again"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The live tests with the longest groups first; within a group the order stays."""
    rank = {name: index for index, name in enumerate(LONGEST)}
    live = [item for item in items if item.get_closest_marker("local")]
    live.sort(key=lambda item: rank.get(group(item.nodeid), len(LONGEST)))
    chosen = set(live)
    items[:] = live + [item for item in items if item not in chosen]


def pytest_collection_finish() -> None:
    """Half a million objects of imported modules stay to the end: the garbage collector need not look at them again.

    Nor need it look after each 700 new objects, Python's default: the registrations of one stack are 60,000.
    """
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """With `--dist loadgroup`, our groups. The plugin's own come of markers, which it loses with this pytest."""
    if config.getoption("dist") != "loadgroup":
        return None
    from xdist.scheduler import LoadScopeScheduling

    class Groups(LoadScopeScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            return group(nodeid)

    return Groups(config, log)


def group(nodeid: str) -> str:
    """The tests that a test runs in one row with: its file's, where nothing else is said."""
    file = Path(nodeid.partition("::")[0])
    return TOGETHER.get(file.stem) or TOGETHER.get(file.parent.name) or file.stem


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Show the figures that tests recorded, also of tests that passed: their own output is not shown."""
    found = figures(each for reports in terminalreporter.stats.values() for each in reports)
    if found:
        terminalreporter.section("figures")
        for line in found:
            terminalreporter.write_line(line)
