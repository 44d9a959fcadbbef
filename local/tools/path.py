"""Find tools of the right version on PATH. `find` is the entry point."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

from local.tools.tool import OnPath, Tool, Version, parse_version

VERSION = re.compile(r"\bv?(\d+\.\d+\.\d+)\b")
PROBE_SECONDS = 10.0


def find(tool: Tool, path: str, ignored: tuple[Path, ...]) -> dict[str, Path] | None:
    """Return all programs of the tool from PATH, or None if one is missing or has an unacceptable version.

    Programs whose real path is below one of the `ignored` directories do not count: the local cloud's own links and
    builds may be on PATH too.
    """
    if tool.on_path is None:
        return None
    found: dict[str, Path] = {}
    for program, probe in tool.on_path.items():
        candidate = _first(program, path, ignored)
        if candidate is None:
            return None
        version = version_of(candidate, probe)
        if version is None or not probe.accepts(version, parse_version(tool.version)):
            return None
        found[program] = candidate
    return found


def _first(program: str, path: str, ignored: tuple[Path, ...]) -> Path | None:
    for directory in path.split(os.pathsep):
        candidate = Path(directory or ".") / program
        if candidate.is_file() and os.access(candidate, os.X_OK):
            real = candidate.resolve()
            if not any(real.is_relative_to(parent) for parent in ignored):
                return real
    return None


def version_of(program: Path, probe: OnPath) -> Version | None:
    """Return the version that a program prints. It is None if it prints none, fails, or hangs."""
    try:
        result = subprocess.run(
            [str(program), *probe.arguments],
            capture_output=True,
            text=True,
            timeout=PROBE_SECONDS,
            stdin=subprocess.DEVNULL,
            env={**os.environ, "PULUMI_SKIP_UPDATE_CHECK": "true"},
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = VERSION.search(result.stdout)
    return parse_version(match.group(1)) if match and result.returncode == 0 else None
