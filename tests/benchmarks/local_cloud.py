"""`make bench-local`: measure the local cloud against its targets; a missed one is named and the exit code is 1.

    python -m tests.benchmarks.local_cloud [--cold] [--write FILE]

Everything runs in a home of its own (.local-bench). `--cold` also builds every tool into an empty cache, with empty
caches of Go, which takes the better part of half an hour; the seconds of downloads are taken out, as printed by the
tools' builder.
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
from dataclasses import dataclass
from pathlib import Path

from local.deploy.engine import ROOT
from local.home import Home

IDLE_AFTER_SECONDS = 60
IDLE_WINDOW_SECONDS = 120
TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, kw_only=True)
class Figure:
    """One measured figure, its limit and its unit."""

    name: str
    value: float
    limit: float
    unit: str

    @property
    def missed(self) -> bool:
        return self.value > self.limit

    def __str__(self) -> str:
        verdict = "MISSED" if self.missed else "ok"
        return (
            f"{self.name:<52} {self.value:8.1f} {self.unit:<4} limit {self.limit:g} {self.unit:<4} {verdict}"
        )


def timed(command: list[str], environment: dict[str, str]) -> tuple[float, str]:
    """Seconds and output of a command that has to succeed."""
    started = time.monotonic()
    result = subprocess.run(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    if result.returncode != 0:
        raise SystemExit(f"{' '.join(command)} failed:\n{result.stdout[-3000:]}")
    return time.monotonic() - started, result.stdout


def namespace_processes(supervisor: int) -> list[Path]:
    """The processes of the local cloud: those in the supervisor's PID namespace, and the supervisor's parent."""
    children = {
        int(pid) for pid in Path(f"/proc/{supervisor}/task/{supervisor}/children").read_text().split()
    }
    members = {supervisor, *children}
    inside = {os.readlink(f"/proc/{pid}/ns/pid") for pid in children} - {os.readlink("/proc/self/ns/pid")}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if os.readlink(entry / "ns" / "pid") in inside:
                    members.add(int(entry.name))
            except OSError:
                continue  # it ended meanwhile
    return [Path(f"/proc/{pid}") for pid in sorted(members)]


def cpu_ticks(processes: list[Path]) -> int:
    """User and system time of the processes and of their children that have ended and were waited for."""
    total = 0
    for process in processes:
        try:
            fields = (process / "stat").read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue
        total += sum(int(value) for value in fields[11:15])
    return total


def resident_bytes(processes: list[Path]) -> int:
    """Sum of the resident sizes; pages that two processes share count twice."""
    total = 0
    for process in processes:
        try:
            total += int((process / "statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        except OSError:
            continue
    return total


def idle_figures(home: Home) -> list[Figure]:
    """Mean use over two minutes, from one minute after the job."""
    supervisor = json.loads(home.cloud_file.read_text())["pid"]
    time.sleep(IDLE_AFTER_SECONDS)
    samples: list[int] = []
    before, started = cpu_ticks(namespace_processes(supervisor)), time.monotonic()
    while time.monotonic() - started < IDLE_WINDOW_SECONDS:
        samples.append(resident_bytes(namespace_processes(supervisor)))
        time.sleep(5)
    seconds = time.monotonic() - started
    used = (cpu_ticks(namespace_processes(supervisor)) - before) / TICKS
    gigabytes = sum(samples) / len(samples) / 1e9
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


def cold_figures(environment: dict[str, str]) -> list[Figure]:
    """Build every tool from nothing; the downloads' seconds, printed by the builder, do not count."""
    empty = Path(tempfile.mkdtemp(prefix="trainyard-cold-"))
    caches = {
        "TRAINYARD_CACHE": str(empty / "tools"),
        "GOCACHE": str(empty / "go-build"),
        "GOMODCACHE": str(empty / "go-modules"),
        "TRAINYARD_HOME": str(empty / "home"),
        "GOFLAGS": f"{os.environ.get('GOFLAGS', '')} -modcacherw".strip(),
    }
    try:
        seconds, output = timed([sys.executable, "-m", "local", "tools"], {**environment, **caches})
    finally:
        shutil.rmtree(empty, ignore_errors=True)
    print(output)
    downloads = sum(float(value) for value in re.findall(r"downloads apart: \d+ MB in (\d+) s", output))
    return [
        Figure(
            name="cold: tools built, without downloads",
            value=(seconds - downloads) / 60,
            limit=25,
            unit="min",
        )
    ]


def measure(cold: bool) -> list[Figure]:
    """Run everything once, in this order."""
    os.environ["TRAINYARD_HOME"] = str(ROOT / ".local-bench")
    home, environment = Home(), dict(os.environ)
    figures = cold_figures(environment) if cold else []
    deploy = [sys.executable, "-m", "local.deploy"]
    timed([sys.executable, "-m", "local", "reset"], environment)
    timed([sys.executable, "-m", "local", "tools"], environment)
    seconds, output = timed([*deploy, "up", "--stack", "local"], environment)
    print(output)
    try:
        figures.append(
            Figure(name="warm make up until the model is in S3", value=seconds, limit=180, unit="s")
        )
        figures.append(
            Figure(name="control plane ready", value=control_plane_seconds(home), limit=10, unit="s")
        )
        figures.extend(idle_figures(home))
    finally:
        timed([*deploy, "down", "--stack", "local"], environment)
    seconds, _ = timed([*deploy, "preview", "--stack", "dev"], environment)
    figures.append(Figure(name="make preview STACK=dev", value=seconds, limit=20, unit="s"))
    check = ["make", "--no-print-directory", "check"]
    timed(check, environment)
    seconds, _ = timed(check, environment)
    figures.append(Figure(name="make check, warm", value=seconds, limit=60, unit="s"))
    for cache in (".mypy_cache", ".ruff_cache", ".import_linter_cache"):
        shutil.rmtree(ROOT / cache, ignore_errors=True)
    seconds, _ = timed(check, environment)
    figures.append(Figure(name="make check, cold", value=seconds, limit=240, unit="s"))
    return figures


def main() -> int:
    """Measure, print, and name what was missed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cold", action="store_true", help="also build every tool from nothing")
    parser.add_argument("--write", type=Path, help="also write the figures to this file")
    arguments = parser.parse_args()
    figures = measure(arguments.cold)
    report = "\n".join(str(figure) for figure in figures)
    print(report)
    if arguments.write:
        arguments.write.write_text(report + "\n")
    missed = [figure.name for figure in figures if figure.missed]
    if missed:
        print(f"missed: {', '.join(missed)}", file=sys.stderr)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
