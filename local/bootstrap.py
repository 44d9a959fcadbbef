"""Create the virtual environment in which everything else runs. `install` is the entry point.

It uses the standard library only, because it runs before anything is installed.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
LOCK = ROOT / "requirements.lock"
# uv, which pip installs, with the hashes of its wheels for Linux. For another version:
# `echo uv==VERSION | .venv/bin/uv pip compile --generate-hashes --no-header --no-annotate -`.
UV_LOCK = ROOT / "local" / "requirements-uv.lock"
STAMP = VENV / "trainyard-lock.sha256"
# Starts the command line of this checkout, from every directory and by every link to the script.
PROGRAM = VENV / "bin" / "trainyard"
SCRIPT = """#!/bin/sh
# Written by local/bootstrap.py.
export PYTHONPATH={root} TRAINYARD_STARTED=yes
exec {python} -P -m trainyard.cli "$@"
"""
OLDEST, NEWEST = (3, 11), (3, 13)
NEEDED_GIGABYTES = 7
# The interval of progress lines of a long step.
QUIET_SECONDS = 60.0
# The C library's messages for ENOSPC and EDQUOT, which pip and uv print.
FULL = re.compile("no space left on device|disk quota exceeded", re.IGNORECASE)
# uv's line about downloads: `Prepared 148 packages in 1m 05s`, `in 25.31s`, `in 731ms`.
PREPARED = re.compile(r"^Prepared \d+ packages? in (?:(\d+)m )?([\d.]+)(ms|s)$", re.MULTILINE)


def received_bytes() -> int:
    """Return the bytes that all network interfaces except loopback received since boot, from /proc/net/dev."""
    lines = Path("/proc/net/dev").read_text().splitlines()[2:]
    counters = (line.split(":", 1) for line in lines if ":" in line)
    return sum(int(values.split()[0]) for name, values in counters if name.strip() != "lo")


def full_disk() -> str:
    """Return the message about a full disk."""
    free = shutil.disk_usage(ROOT).free / 1e9
    return (
        f"the disk is full ({free:.1f} GB free on the disk of {ROOT}; .venv needs {NEEDED_GIGABYTES} GB); "
        "free some and start again"
    )


def run(step: str, command: list[str]) -> str:
    """Run one step and return its output, which goes to .venv.log. The error names the step and that file."""
    log = ROOT / ".venv.log"
    with log.open("ab") as sink:
        before = sink.tell()
        with subprocess.Popen(command, cwd=ROOT, stdout=sink, stderr=subprocess.STDOUT) as process:
            try:
                code = waited_for(step, process)
            except BaseException:
                process.kill()
                raise
    output = log.read_bytes()[before:].decode(errors="replace")
    if code != 0:
        if FULL.search(output):
            raise SystemExit(f"{step} failed: {full_disk()}; log: {log}")
        tail = "\n".join(output.splitlines()[-5:])
        raise SystemExit(f"{step} failed with exit code {code}; the whole output is in {log}\n{tail}")
    return output


def waited_for(step: str, process: subprocess.Popen[bytes]) -> int:
    """Wait for a step and return its exit code. Print a line each QUIET_SECONDS while it runs."""
    started = time.monotonic()
    while True:
        try:
            return process.wait(timeout=QUIET_SECONDS)
        except subprocess.TimeoutExpired:
            print(f"python environment: still {step}, {time.monotonic() - started:.0f} s", flush=True)


def preparing_seconds(output: str) -> float:
    """Return the seconds in which uv downloaded and unpacked packages, which it does at the same time.

    It is 0 if uv's cache had all of them.
    """
    found = PREPARED.search(output)
    if found is None:
        return 0.0
    minutes, number, unit = found.groups()
    return 60 * int(minutes or 0) + float(number) / (1000 if unit == "ms" else 1)


def install() -> None:
    """Install exactly the packages of requirements.lock in .venv. Return at once if they are already installed."""
    if not OLDEST <= sys.version_info[:2] <= NEWEST:
        found = ".".join(map(str, sys.version_info[:3]))
        raise SystemExit(
            f"PYTHON: Python {found} must be 3.11, 3.12 or 3.13. Install one, or set PYTHON=/path/to/python3.11"
        )
    version = ".".join(map(str, sys.version_info[:2]))
    stamp = f"{hashlib.sha256(LOCK.read_bytes()).hexdigest()} {version}"
    if is_installed(stamp):
        return
    with locked():
        # Another command may have installed it meanwhile.
        if not is_installed(stamp):
            install_packages(stamp)


def is_installed(stamp: str) -> bool:
    """Return whether .venv has the packages that a stamp stands for."""
    try:
        return STAMP.read_text() == stamp
    except FileNotFoundError:
        return False


@contextlib.contextmanager
def locked() -> Iterator[None]:
    """Hold the lock of .venv. Wait while another command installs it."""
    descriptor = os.open(ROOT / ".venv.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print("python environment: another command installs it; waiting ...", flush=True)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def install_packages(stamp: str) -> None:
    """Create .venv if it is missing or of another Python, install the packages, and write the stamp."""
    version = stamp.split()[1]
    if STAMP.is_file() and STAMP.read_text().split()[1:] != [version]:
        shutil.rmtree(VENV)
    started, before = time.monotonic(), received_bytes()
    print(
        "python environment: installing the packages of requirements.lock, a minute or more ...", flush=True
    )
    (ROOT / ".venv.log").unlink(missing_ok=True)
    python = VENV / "bin" / "python"
    # `venv` installs pip last. An environment without pip was interrupted, and nothing can be installed in
    # it.
    if not (python.exists() and (VENV / "bin" / "pip").exists()):
        shutil.rmtree(VENV, ignore_errors=True)
        run("making the virtual environment (.venv)", [sys.executable, "-m", "venv", str(VENV)])
    run(
        "installing uv",
        [str(python), "-m", "pip", "install", "--quiet", "--require-hashes", "--requirement", str(UV_LOCK)],
    )
    output = run(
        "installing requirements.lock",
        [
            str(VENV / "bin" / "uv"),
            "pip",
            "sync",
            "--compile-bytecode",
            "--require-hashes",
            # Source distributions are built with the setuptools of the lock, not with the newest one.
            "--build-constraints",
            str(LOCK),
            "--python",
            str(python),
            str(LOCK),
        ],
    )
    STAMP.write_text(stamp)
    megabytes, downloading = (received_bytes() - before) / 1e6, preparing_seconds(output)
    installing = time.monotonic() - started - downloading
    # `make bench-local` reads the second half of this line, and of the tools' line.
    print(
        f"python environment: installed in {installing:.0f} s; "
        f"downloads: {megabytes:.0f} MB in {downloading:.0f} s",
        flush=True,
    )


def write_program() -> None:
    """Write `.venv/bin/trainyard`. Do nothing if it has the right text already."""
    text = SCRIPT.format(root=shlex.quote(str(ROOT)), python=shlex.quote(str(VENV / "bin" / "python")))
    if PROGRAM.is_file() and PROGRAM.read_text() == text:
        return
    draft = PROGRAM.with_name(f".trainyard-{os.getpid()}")
    draft.write_text(text)
    draft.chmod(0o755)
    draft.replace(PROGRAM)


def main() -> int:
    """Install. An error that the user can fix is one line."""
    try:
        install()
        write_program()
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise SystemExit(f"python environment: {full_disk()}") from None
        raise SystemExit(f"python environment: {error.strerror or error}: {error.filename or ROOT}") from None
    except KeyboardInterrupt:
        print("\ninterrupted; the same command goes on from here", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    # As a script, whose directory is on sys.path.
    import standard_output  # type: ignore[import-not-found]

    sys.exit(standard_output.run(main))
