"""Make the virtual environment that everything else runs in.

Standard library only: it runs before anything is installed.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
LOCK = ROOT / "requirements.lock"
STAMP = VENV / "trainyard-lock.sha256"
UV = "uv==0.13.9"
OLDEST = (3, 11)


def received_bytes() -> int:
    """Bytes that all network interfaces but the loopback have received since boot, from /proc/net/dev."""
    lines = Path("/proc/net/dev").read_text().splitlines()[2:]
    counters = (line.split(":", 1) for line in lines if ":" in line)
    return sum(int(values.split()[0]) for name, values in counters if name.strip() != "lo")


def run(step: str, command: list[str]) -> None:
    """Run one step; its output goes to .venv.log, and a failure names the step and that file."""
    log = ROOT / ".venv.log"
    with log.open("ab") as sink:
        code = subprocess.run(command, cwd=ROOT, stdout=sink, stderr=subprocess.STDOUT).returncode
    if code != 0:
        tail = "\n".join(log.read_text(errors="replace").splitlines()[-5:])
        raise SystemExit(f"{step} failed with exit code {code}; the whole output is in {log}\n{tail}")


def main() -> None:
    """Bring .venv to exactly what requirements.lock says; at once when it already is."""
    if sys.version_info < OLDEST:
        found = ".".join(map(str, sys.version_info[:3]))
        raise SystemExit(
            f"Python {found} is too old: install Python 3.11 or newer, or set PYTHON=/path/to/python3.11"
        )
    digest = hashlib.sha256(LOCK.read_bytes()).hexdigest()
    if STAMP.is_file() and STAMP.read_text() == digest:
        return
    started, before = time.monotonic(), received_bytes()
    print("python environment: installing what requirements.lock names ...", flush=True)
    (ROOT / ".venv.log").unlink(missing_ok=True)
    python = VENV / "bin" / "python"
    # `venv` makes the program pip last: an environment without it was interrupted, and nothing can be put into it.
    if not (python.exists() and (VENV / "bin" / "pip").exists()):
        shutil.rmtree(VENV, ignore_errors=True)
        run("making the virtual environment (.venv)", [sys.executable, "-m", "venv", str(VENV)])
    run(f"installing {UV}", [str(python), "-m", "pip", "install", "--quiet", UV])
    run(
        "installing requirements.lock",
        [
            str(VENV / "bin" / "uv"),
            "pip",
            "sync",
            "--compile-bytecode",
            "--require-hashes",
            "--python",
            str(python),
            str(LOCK),
        ],
    )
    STAMP.write_text(digest)
    megabytes = (received_bytes() - before) / 1e6
    print(
        f"python environment: ready after {time.monotonic() - started:.0f} s, {megabytes:.0f} MB downloaded",
        flush=True,
    )


if __name__ == "__main__":
    main()
