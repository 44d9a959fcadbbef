"""`make bench-local`: the figures of the local cloud, of previews, and of the test suite.

    python -m tests.benchmarks.local_cloud [ROW...]

Rows are printed with their limits. A figure over its limit is named at the end, and the exit code is 1. Everything runs
in a home of its own (.local-bench).
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import yaml

from local.cluster.supervisor import AWS
from local.home import Home
from tests.benchmarks.figures import Figure, Note, run
from tests.shipped import shipped
from trainyard.cli.engine import ROOT

ROWS = {
    "up": "`make up` and `make down` with the tools built, a second `make up`, and the idle local cloud (six minutes)",
    "previews": "`make preview` of each shipped stack file (three minutes)",
    "check": "`make check` with and without the caches of its tools (four minutes)",
    "test": "`make test` with the tools built (25 minutes)",
    "cold": "`make up` of a clone with empty caches, without its downloads (15 minutes)",
    "cycles": "the emulator's memory after 20 cycles of `up`, a run and `down` (40 minutes)",
}
# The result of "cycles" depends on the emulator alone.
USUAL = [row for row in ROWS if row != "cycles"]
CYCLES = 20
DEPLOY = [sys.executable, "-m", "trainyard.cli"]
IDLE_AFTER_SECONDS = 60
IDLE_WINDOW_SECONDS = 120
# Printed by local/bootstrap.py (Python packages) and local/tools (Go modules).
DOWNLOADS = re.compile(r"downloads: \d+ MB in (\d+) s")


def timed(command: list[str], environment: dict[str, str], directory: Path = ROOT) -> tuple[float, str]:
    """Run a command. Return its seconds and output; exit if it fails."""
    started = time.monotonic()
    result = subprocess.run(
        command, cwd=directory, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    if result.returncode != 0:
        raise SystemExit(f"{' '.join(command)} failed:\n{result.stdout[-3000:]}")
    return time.monotonic() - started, result.stdout


def status() -> dict[str, Any]:
    """Return what the local cloud runs, with the processes of pods."""
    words = [sys.executable, "-m", "local", "status", "--json"]
    answer: dict[str, Any] = json.loads(
        subprocess.run(words, cwd=ROOT, capture_output=True, check=True).stdout
    )
    return answer


def idle_figures() -> Iterator[Figure]:
    """Measure the mean use over two minutes, from one minute after the run."""
    time.sleep(IDLE_AFTER_SECONDS)
    samples = [status()["total"]]
    started = time.monotonic()
    while time.monotonic() - started < IDLE_WINDOW_SECONDS:
        time.sleep(15)
        samples.append(status()["total"])
    seconds = time.monotonic() - started
    used = samples[-1]["cpuSeconds"] - samples[0]["cpuSeconds"]
    gigabytes = sum(each["rssBytes"] for each in samples) / len(samples) / 1e9
    yield Figure(name="local cloud idle, memory", value=gigabytes, limit=0.9, unit="GB", digits=2)
    yield Figure(name="local cloud idle, of one core", value=100 * used / seconds, limit=6, unit="%")


def control_plane_seconds(home: Home) -> float:
    """Return the seconds that the supervisor logged when the cluster's control plane answered /readyz."""
    text = (home.logs / "supervisor.log").read_text()
    seconds = re.findall(r"ready after ([\d.]+) s", text)
    if not seconds:
        raise SystemExit(f"{home.logs / 'supervisor.log'} does not say how long the control plane took")
    return max(float(value) for value in seconds)


def cold_figures() -> Iterator[Figure]:
    """Measure `make up` in a clone with empty caches. The seconds of downloads do not count."""
    empty = Path(tempfile.mkdtemp(prefix="trainyard-cold-"))
    caches = {
        "TRAINYARD_CACHE": "tools",
        "GOCACHE": "go-build",
        "GOMODCACHE": "go-modules",
        "UV_CACHE_DIR": "uv",
        "PIP_CACHE_DIR": "pip",
    }
    environment = {
        **{
            name: value for name, value in os.environ.items() if name not in ("TRAINYARD_HOME", "VIRTUAL_ENV")
        },
        **{name: str(empty / folder) for name, folder in caches.items()},
        # Everything is built, as on a machine that can't reach the published binaries.
        "TRAINYARD_DOWNLOADS": "no",
        # Otherwise the module cache can't be deleted.
        "GOFLAGS": f"{os.environ.get('GOFLAGS', '')} -modcacherw".strip(),
    }
    checkout = empty / "checkout"
    make = ["make", "--no-print-directory"]
    try:
        timed(["git", "clone", "--quiet", str(ROOT), str(checkout)], environment)
        try:
            seconds, output = timed([*make, "up"], environment, checkout)
        finally:
            timed([*make, "down"], environment, checkout)
    finally:
        shutil.rmtree(empty, ignore_errors=True)
    downloads = sum(float(value) for value in DOWNLOADS.findall(output))
    minutes = (seconds - downloads) / 60
    yield Figure(name="cold make up, without downloads", value=minutes, limit=14, unit="min")


def up_figures(home: Home, environment: dict[str, str]) -> Iterator[Figure]:
    """Measure `make up` with the tools built, the local cloud after it, a second `make up`, and `make down`."""
    up, down = ([*DEPLOY, verb, "--stack", "local"] for verb in ("up", "down"))
    seconds, _ = timed(up, environment)
    try:
        yield Figure(name="warm make up until the model is in S3", value=seconds, limit=60, unit="s")
        yield Figure(name="control plane ready", value=control_plane_seconds(home), limit=4, unit="s")
        yield from idle_figures()
        yield Figure(name="second make up", value=timed(up, environment)[0], limit=8, unit="s")
    finally:
        seconds, _ = timed(down, environment)
    yield Figure(name="make down", value=seconds, limit=30, unit="s")


def cycle_figures(environment: dict[str, str]) -> Iterator[Figure]:
    """Measure the emulator's memory after cycles of `up`, a run and `down`. Kept data keeps the local cloud running."""
    stack, size = "zz-cycles", 0
    file = ROOT / f"Pulumi.{stack}.yaml"
    document = yaml.safe_load((ROOT / "Pulumi.local.yaml").read_text())
    document["config"]["trainyard:protectData"] = True
    try:
        for number in range(1, CYCLES + 1):
            document["config"]["trainyard:training"]["runId"] = f"r{number}"
            file.write_text(yaml.safe_dump(document))
            timed([*DEPLOY, "up", "--stack", stack, "--cloud", "local"], environment)
            timed([*DEPLOY, "down", "--stack", stack, "--cloud", "local", "--keep-data", "yes"], environment)
            size = next(each["rssBytes"] for each in status()["processes"] if each["name"] == AWS)
            print(f"cycle {number} of {CYCLES}: the emulator has {size / 1e6:.0f} MB", flush=True)
        yield Figure(name=f"emulator after {CYCLES} cycles", value=size / 1e6, limit=500, unit="MB")
    finally:
        file.unlink(missing_ok=True)
        timed([sys.executable, "-m", "local", "reset"], environment)


def check_figures(environment: dict[str, str]) -> Iterator[Figure]:
    """Measure `make check` with and without the caches of its tools."""
    check = ["make", "--no-print-directory", "check"]
    for cache in (".mypy_cache", ".ruff_cache", ".import_linter_cache"):
        shutil.rmtree(ROOT / cache, ignore_errors=True)
    seconds, _ = timed(check, environment)
    yield Figure(name="make check, cold", value=seconds, limit=240, unit="s")
    seconds, _ = timed(check, environment)
    yield Figure(name="make check, warm", value=seconds, limit=60, unit="s")


def suite_figures(environment: dict[str, str]) -> Iterator[Figure]:
    """Measure `make test` with the tools built."""
    seconds, _ = timed(["make", "--no-print-directory", "test"], environment)
    yield Figure(name="make test, tools built", value=seconds / 60, limit=25, unit="min")


def preview_figures(environment: dict[str, str]) -> Iterator[Figure]:
    """Measure `make preview` of each shipped stack file."""
    for stack in shipped():
        seconds, _ = timed([*DEPLOY, "preview", "--stack", stack], environment)
        yield Figure(name=f"make preview STACK={stack}", value=seconds, limit=12, unit="s")


def measure(rows: Collection[str]) -> Iterator[Figure | Note]:
    """Measure rows of ROWS, in their order."""
    os.environ["TRAINYARD_HOME"] = str(ROOT / ".local-bench")
    home, environment = Home(), dict(os.environ)
    timed([sys.executable, "-m", "local", "reset"], environment)
    timed([sys.executable, "-m", "local", "tools"], environment)
    if "up" in rows:
        yield from up_figures(home, environment)
    if "previews" in rows:
        yield from preview_figures(environment)
    if "check" in rows:
        yield from check_figures(environment)
    if "test" in rows:
        yield from suite_figures(environment)
    if "cold" in rows:
        yield from cold_figures()
    if "cycles" in rows:
        yield from cycle_figures(environment)


if __name__ == "__main__":
    sys.exit(run(__doc__, ROWS, measure, USUAL))
