"""Run the test tiers in order and report their durations: `python -m tests.suite [TIER ...]`, by default all tiers.

The run stops at the first failed tier, and still prints the durations and the failed tests.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

from tests.benchmarks.figures import Figure, Note
from tests.durations import FILE, RECORDED, ROOT, read, summary

Command = tuple[str, ...]

PROGRAMS = Path(sys.executable).parent
PYTHON = (sys.executable, "-m")
PYTEST = (*PYTHON, "pytest")
# tests/conftest.py defines the groups and their order.
GROUPS = ("--dist", "loadgroup", "--no-loadscope-reorder")
# Three workers on two cores: live tests are idle half of the time.
LIVE_WORKERS = "3"
UNIT = ROOT / "tests" / "unit"
# Directories of tests/unit that one process tests. Together they import the Pulumi SDKs once, and torch and moto once;
# each worker of pytest-xdist would import all of them. One more process tests all other directories.
TOGETHER = (
    ("components", "graph", "infra", "plugins_eks", "plugins_kubernetes", "policies", "stacks"),
    ("k8s", "kubectl", "launcher", "operator", "workspace"),
)
# Not tests/unit: each worker would import all of it.
LIVE_DIRECTORIES = tuple(
    f"tests/integration/{each}" for each in ("local", "trainer", "graph", "policy", "sweeps")
)


def shards(names: Iterable[str]) -> list[list[str]]:
    """Distribute test directories and files to the processes that test them: TOGETHER, and one for the rest."""
    names = sorted(names)
    listed = [[name for name in names if name in shard] for shard in TOGETHER]
    return [*listed, [name for name in names if not any(name in shard for shard in listed)]]


def unit_tests() -> list[str]:
    """Return the directories and files of tests/unit that have tests."""
    return [
        each.name for each in UNIT.iterdir() if each.name.startswith("test_") or any(each.glob("test_*.py"))
    ]


@dataclass(frozen=True, kw_only=True)
class Tier:
    """Commands, and their budget in seconds on two quiet cores; None for no budget."""

    name: str
    commands: tuple[Command, ...]
    budget: float | None
    at_once: bool = False
    """Whether the commands run at the same time. By default, they run in order."""


TIERS = (
    Tier(
        name="check",
        commands=(
            (str(PROGRAMS / "ruff"), "format", "--check", "--quiet", "."),
            (str(PROGRAMS / "ruff"), "check", "--quiet", "."),
            (str(PROGRAMS / "mypy"),),
            (str(PROGRAMS / "lint-imports"), "--no-logo"),
            *(
                (*PYTEST, "-q", "-m", "not emulator and not long", *(f"tests/unit/{name}" for name in shard))
                for shard in shards(unit_tests())
            ),
        ),
        budget=60,
        at_once=True,
    ),
    Tier(
        name="emulator",
        commands=((*PYTEST, "-q", "-n", "auto", "--dist", "loadfile", "-m", "emulator or long", "tests/unit"),),
        budget=120,
    ),
    Tier(
        name="tools",
        commands=(
            (*PYTHON, "local", "tools"),
            (*PYTHON, "tests.tools"),
            (*PYTHON, "tests.integration.policy.environments"),
        ),
        budget=None,
    ),
    Tier(
        name="live",
        commands=(
            (
                *PYTHON, "tests.own_namespaces", "-m", "pytest", "-v", "-p", "no:randomly",
                "-n", LIVE_WORKERS, *GROUPS, "-m", "trainer or local", *LIVE_DIRECTORIES,
            ),
        ),
        budget=1260,
    ),
)  # fmt: skip


def run(tier: Tier, environment: dict[str, str]) -> dict[Command, int]:
    """Run the tier's commands, in order only until one fails; return the failed ones and their exit codes."""
    if tier.at_once:
        return run_at_once(tier.commands, environment)
    for command in tier.commands:
        code = subprocess.run(command, cwd=ROOT, env=environment).returncode
        if code != 0:
            return {command: code}
    return {}


def run_at_once(commands: Sequence[Command], environment: dict[str, str]) -> dict[Command, int]:
    """Run the commands at the same time, and print the output of each when it ends."""

    def output(command: Command) -> tuple[int, str]:
        answer = subprocess.run(
            command,
            cwd=ROOT,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
        return answer.returncode, answer.stdout

    failed = {}
    with ThreadPoolExecutor(max_workers=len(commands)) as threads:
        runs = {threads.submit(output, command): command for command in commands}
        for done in as_completed(runs):
            code, text = done.result()
            print(text, end="", flush=True)
            if code != 0:
                failed[runs[done]] = code
    return failed


def main(names: list[str]) -> int:
    """Run the named tiers, or all; return the exit code."""
    unknown = sorted(set(names) - {tier.name for tier in TIERS})
    if unknown:
        names_of_tiers = ", ".join(tier.name for tier in TIERS)
        print(f"tier: '{unknown[0]}' is unknown. It must be one of {names_of_tiers}.", file=sys.stderr)
        return 2
    # Only a run of all tiers replaces the record that the page's tables are written from.
    recorded = RECORDED.with_name(f"{RECORDED.name}-partial") if names else RECORDED
    recorded.unlink(missing_ok=True)
    # Always write byte code: to compile the tests again takes each worker ten seconds.
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "", FILE: str(recorded)}
    times: list[Figure | Note] = []
    failed: dict[Command, int] = {}
    for tier in TIERS:
        if names and tier.name not in names:
            continue
        started = time.monotonic()
        failed = run(tier, environment)
        seconds = time.monotonic() - started
        if tier.budget is None:
            times.append(Note(name=tier.name, text=f"{seconds:8.1f} s    no budget"))
        else:
            times.append(Figure(name=tier.name, value=seconds, limit=tier.budget, unit="s"))
        if failed:
            break
    lines = ["", *summary(read(recorded), times)]
    # The last lines, since a log of a run is often cut to its end.
    lines += [f"exit code {code}: {' '.join(command)[:150]}" for command, code in failed.items()]
    print("\n".join(lines), flush=True)
    return next(iter(failed.values()), 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
