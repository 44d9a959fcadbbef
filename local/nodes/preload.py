"""Build the preloaded library (podbind.c) once, into the tool cache. `library` is the entry point."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from local.tools import ToolError, cache_directory

SOURCE = Path(__file__).with_name("podbind.c")
COMPILERS = ("cc", "gcc", "clang", "c++", "g++")


def library() -> Path:
    """Return the path of the library. Build it if it does not exist yet.

    Raises:
        ToolError: There is no compiler, or it failed. Without the library two pods can't listen on the same port.
        OSError: The cache can't be written.
    """
    key = f"podbind-{hashlib.sha256(SOURCE.read_bytes()).hexdigest()[:12]}"
    path = cache_directory() / "tools" / key / "podbind.so"
    if path.exists():
        return path
    compiler = next((name for name in COMPILERS if shutil.which(name)), None)
    if compiler is None:
        raise ToolError(
            f"a C or C++ compiler is needed to build {SOURCE.name}, which gives pods addresses of their own; install "
            f"one (Debian and Ubuntu: `apt-get install gcc`, Fedora: `dnf install gcc`); none of "
            f"{', '.join(COMPILERS)} is on PATH"
        )
    log = cache_directory() / "logs" / f"{key}.log"
    for directory in (path.parent, log.parent):
        directory.mkdir(parents=True, exist_ok=True)
    # Several processes may do this at the same time. Each builds its own file and renames it.
    with tempfile.TemporaryDirectory(dir=path.parent) as own:
        built = Path(own) / path.name
        command = [compiler, "-shared", "-fPIC", "-O2", "-o", str(built), str(SOURCE), "-ldl"]
        with log.open("wb") as sink:
            code = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=sink, stderr=sink).returncode
        if code != 0:
            lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
            reason = next(
                (line for line in lines if "error" in line), lines[-1] if lines else "it says nothing"
            )
            raise ToolError(
                f"building {SOURCE.name} with {compiler} failed (exit code {code}): {reason}; log: {log}"
            )
        built.chmod(0o755)
        os.replace(built, path)
    return path
