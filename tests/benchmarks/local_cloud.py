"""`make bench-local`: measure the local cloud against its targets; a missed one is named and the exit code is 1.

    python -m tests.benchmarks.local_cloud [--warm] [--cycles N] [--write FILE]

Everything runs in a home of its own (.local-bench). The cold `make up` is a clone of this commit with empty caches of
the tools, of Go and of Python packages, which `--warm` leaves out. The seconds of downloads, as printed by those who
download, are taken out. `--cycles 20` measures the emulator's memory after so many cycles of `up`, a run and
`down`, and nothing else; a cycle takes about two minutes.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from local.cluster.supervisor import AWS
from local.home import Home
from tests.benchmarks.figures import Figure, verdict
from tests.shipped import shipped
from trainyard.cli.engine import ROOT

DEPLOY = [sys.executable, "-m", "trainyard.cli"]
IDLE_AFTER_SECONDS = 60
IDLE_WINDOW_SECONDS = 120
# Printed by local/bootstrap.py (Python packages) and local/tools (Go modules).
DOWNLOADS = re.compile(r"downloads apart: \d+ MB in (\d+) s")


def timed(command: list[str], environment: dict[str, str], directory: Path = ROOT) -> tuple[float, str]:
    """Seconds and output of a command that has to succeed."""
    started = time.monotonic()
    result = subprocess.run(
        command, cwd=directory, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    if result.returncode != 0:
        raise SystemExit(f"{' '.join(command)} failed:\n{result.stdout[-3000:]}")
    return time.monotonic() - started, result.stdout


def status() -> dict[str, Any]:
    """What the local cloud runs, with the processes of pods."""
    words = [sys.executable, "-m", "local", "status", "--json"]
    answer: dict[str, Any] = json.loads(
        subprocess.run(words, cwd=ROOT, capture_output=True, check=True).stdout
    )
    return answer


def idle_figures() -> list[Figure]:
    """Mean use over two minutes, from one minute after the job."""
    time.sleep(IDLE_AFTER_SECONDS)
    samples = [status()["total"]]
    started = time.monotonic()
    while time.monotonic() - started < IDLE_WINDOW_SECONDS:
        time.sleep(15)
        samples.append(status()["total"])
    seconds = time.monotonic() - started
    used = samples[-1]["cpuSeconds"] - samples[0]["cpuSeconds"]
    gigabytes = sum(each["rssBytes"] for each in samples) / len(samples) / 1e9
    return [
        Figure(name="local cloud idle, memory", value=gigabytes, limit=2.5, unit="GB"),
        Figure(name="local cloud idle, of one core", value=100 * used / seconds, limit=15, unit="%"),
    ]


def control_plane_seconds(home: Home) -> float:
    """What the supervisor wrote down when the control plane of the stack's cluster answered /readyz."""
    text = (home.logs / "supervisor.log").read_text()
    seconds = re.findall(r"ready after ([\d.]+) s", text)
    if not seconds:
        raise SystemExit(f"{home.logs / 'supervisor.log'} does not say how long the control plane took")
    return max(float(value) for value in seconds)


def cold_figures() -> list[Figure]:
    """`make up` in a fresh clone with nothing in any cache; the seconds of downloads do not count."""
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
    print(output)
    downloads = sum(float(value) for value in DOWNLOADS.findall(output))
    return [
        Figure(name="cold make up, without downloads", value=(seconds - downloads) / 60, limit=14, unit="min")
    ]


def warm_up_figures(home: Home, environment: dict[str, str]) -> Iterator[Figure]:
    """`make up` with the tools built, what the cloud then takes, and its end."""
    seconds, output = timed([*DEPLOY, "up", "--stack", "local"], environment)
    print(output)
    try:
        yield Figure(name="warm make up until the model is in S3", value=seconds, limit=180, unit="s")
        yield Figure(name="control plane ready", value=control_plane_seconds(home), limit=10, unit="s")
        yield from idle_figures()
    finally:
        timed([*DEPLOY, "down", "--stack", "local"], environment)


def cycle_figures(environment: dict[str, str], cycles: int) -> Iterator[Figure]:
    """The emulator's memory after cycles of `up`, a run and `down`; kept data keeps the local cloud running."""
    stack, size = "zz-cycles", 0
    file = ROOT / f"Pulumi.{stack}.yaml"
    document = yaml.safe_load((ROOT / "Pulumi.local.yaml").read_text())
    document["config"]["trainyard:protectData"] = True
    try:
        for number in range(1, cycles + 1):
            document["config"]["trainyard:training"]["runId"] = f"r{number}"
            file.write_text(yaml.safe_dump(document))
            timed([*DEPLOY, "up", "--stack", stack, "--cloud", "local"], environment)
            timed([*DEPLOY, "down", "--stack", stack, "--cloud", "local", "--keep-data", "yes"], environment)
            size = next(each["rssBytes"] for each in status()["processes"] if each["name"] == AWS)
            print(f"cycle {number} of {cycles}: the emulator has {size / 1e6:.0f} MB", flush=True)
        yield Figure(name=f"emulator after {cycles} cycles", value=size / 1e6, limit=500, unit="MB")
    finally:
        file.unlink(missing_ok=True)
        timed([sys.executable, "-m", "local", "reset"], environment)


def check_figures(environment: dict[str, str]) -> Iterator[Figure]:
    """`make check` with and without the caches of its tools."""
    check = ["make", "--no-print-directory", "check"]
    for cache in (".mypy_cache", ".ruff_cache", ".import_linter_cache"):
        shutil.rmtree(ROOT / cache, ignore_errors=True)
    seconds, _ = timed(check, environment)
    yield Figure(name="make check, cold", value=seconds, limit=240, unit="s")
    seconds, _ = timed(check, environment)
    yield Figure(name="make check, warm", value=seconds, limit=60, unit="s")


def suite_figures(environment: dict[str, str]) -> Iterator[Figure]:
    """`make test` with the tools built."""
    seconds, _ = timed(["make", "--no-print-directory", "test"], environment)
    yield Figure(name="make test, tools built", value=seconds / 60, limit=25, unit="min")


def preview_figures(environment: dict[str, str]) -> Iterator[Figure]:
    """`make preview` of each shipped stack file."""
    for stack in shipped():
        seconds, _ = timed([*DEPLOY, "preview", "--stack", stack], environment)
        yield Figure(name=f"make preview STACK={stack}", value=seconds, limit=20, unit="s")


def measure(warm: bool, cycles: int) -> Iterator[Figure]:
    """Run everything once, in this order; with `cycles` those alone."""
    os.environ["TRAINYARD_HOME"] = str(ROOT / ".local-bench")
    home, environment = Home(), dict(os.environ)
    timed([sys.executable, "-m", "local", "reset"], environment)
    timed([sys.executable, "-m", "local", "tools"], environment)
    if cycles:
        yield from cycle_figures(environment, cycles)
        return
    yield from warm_up_figures(home, environment)
    yield from preview_figures(environment)
    yield from check_figures(environment)
    yield from suite_figures(environment)
    if not warm:
        yield from cold_figures()


def main() -> int:
    """Measure, print, and name what was missed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--warm", action="store_true", help="leave out the cold `make up`")
    parser.add_argument(
        "--cycles", type=int, default=0, metavar="N", help="measure N cycles of up and down alone"
    )
    parser.add_argument("--write", type=Path, help="also write the figures to this file")
    arguments = parser.parse_args()
    figures = []
    for figure in measure(arguments.warm, arguments.cycles):
        print(figure, flush=True)
        figures.append(figure)
    report = "\n".join(str(figure) for figure in figures)
    print(f"\nall figures:\n{report}")
    if arguments.write:
        arguments.write.write_text(report + "\n")
    return verdict(figures)


if __name__ == "__main__":
    sys.exit(main())
