"""Builds the preloaded library (podbind.c) once, into the tool cache."""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from local.tools import cache_directory

SOURCE = Path(__file__).with_name("podbind.c")
COMPILERS = ("cc", "gcc", "clang", "c++", "g++")

log = logging.getLogger(__name__)


def library() -> Path | None:
    """Path of the library, built if it is not there yet. None, with one line in the log, without a compiler."""
    digest = hashlib.sha256(SOURCE.read_bytes()).hexdigest()[:12]
    path = cache_directory() / "tools" / f"podbind-{digest}" / "podbind.so"
    if path.exists():
        return path
    compiler = next((name for name in COMPILERS if shutil.which(name)), None)
    if compiler is None:
        log.warning("no C compiler (%s): two pods can't listen on the same port", ", ".join(COMPILERS))
        return None
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, suffix=".so")
    os.close(descriptor)
    command = [compiler, "-shared", "-fPIC", "-O2", "-o", temporary, str(SOURCE), "-ldl"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode != 0:
        os.unlink(temporary)
        log.warning(
            "%s: build failed, two pods can't listen on the same port: %s", SOURCE, result.stderr.strip()
        )
        return None
    os.chmod(temporary, 0o755)  # noqa: S103 a library that every pod loads
    os.replace(temporary, path)
    return path
