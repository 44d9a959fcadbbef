"""For all tests: one seed for what is drawn by chance, and which of the live ones run one after the other."""

from __future__ import annotations

import gc
import os
import signal
from functools import cache
from pathlib import Path
from typing import Any

import hypothesis
import pytest

from tests import durations
from tests.figures import figures
from tests.seed import SEED, of_checkout

# A shell without job control starts what it puts into the background with SIGINT ignored, and every process that is
# started from there inherits that: tests of interrupts would then wait for nothing.
signal.signal(signal.SIGINT, signal.default_int_handler)
# And `nohup` leaves SIGHUP so: tests of a terminal that is closed would wait as long.
signal.signal(signal.SIGHUP, signal.SIG_DFL)
_HANDLERS = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}

# Pulumi brings gRPC with it, which writes to the stderr of whichever test forks while it works. Nobody here uses gRPC
# in a fork: https://github.com/grpc/grpc/blob/master/doc/fork_support.md
os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"

# What runs on one local cloud, or previews into one folder, by file or by folder: one worker of pytest-xdist has it.
TOGETHER = {
    "test_main_job": "main job",
    "test_made_stack": "main job",
    "test_identity": "main job",
    "test_updates": "main job",
    "test_ceiling": "main job",
    "test_submit": "main job",
    "test_spot": "main job",
    "test_elastic": "main job",
    "test_restarts": "main job",
    "test_no_capacity": "main job",
    "test_trainjob": "main job",
    "test_torchrun_inside": "second stack",
    "test_torchrun_queue": "second stack",
    "test_torchrun_training": "second stack",
    "test_torchrun_trouble": "second stack",
    "test_permissions": "main job",
    "test_destroy": "second stack",
    "test_torchrun_controller": "torchrun kinds",
    "test_torchrun_install": "torchrun kinds",
    "test_torchrun_kinds": "torchrun kinds",
    "test_torchrun_plugin": "torchrun kinds",
    "test_torchrun_rules": "torchrun kinds",
    "test_torchrun_walk": "torchrun kinds",
    "graph": "previews",
    "policy": "previews",
}
# Starting with the longest shortens the whole run; the order within the main job's story
# tests/integration/local/conftest.py sets.
LONGEST = (
    "second stack",
    "main job",
    "test_interruptions",
    "previews",
    "test_cpu_story",
    "test_given_cluster",
    "torchrun kinds",
    "test_volumes",
    "test_controller_kills",
)
# On a busy machine an example may take any time.
hypothesis.settings.register_profile("trainyard", deadline=None)
hypothesis.settings.load_profile("trainyard")


def pytest_configure(config: pytest.Config) -> None:
    os.environ.setdefault(SEED, str(of_checkout()))
    durations.register(config)


def pytest_runtest_teardown() -> None:
    """Restore the signal handlers that a program run in this process has changed."""
    for number, handler in _HANDLERS.items():
        signal.signal(number, handler)


def pytest_report_header() -> str:
    return f"{SEED}={os.environ[SEED]} draws the same by chance again"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run the live tests first, and of them the longest groups. Within a group the order stays."""
    rank = {name: index for index, name in enumerate(LONGEST)}

    def order(item: pytest.Item) -> int:
        is_live = item.get_closest_marker("local") is not None
        return rank.get(group(item.nodeid), len(rank)) if is_live else len(rank) + 1

    items.sort(key=order)


def pytest_collection_finish() -> None:
    """Freeze the objects of imported modules: they live to the end, so collection can skip them.

    Also collect less often than after each 700 new objects, Python's default: one stack registers 60,000.
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
    return _group_of(nodeid.partition("::")[0])


@cache
def _group_of(path: str) -> str:
    file = Path(path)
    return TOGETHER.get(file.stem) or TOGETHER.get(file.parent.name) or file.stem


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Show the figures that tests recorded, also of tests that passed: their own output is not shown."""
    found = figures(each for reports in terminalreporter.stats.values() for each in reports)
    if found:
        terminalreporter.section("figures")
        for line in found:
            terminalreporter.write_line(line)
