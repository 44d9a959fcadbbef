"""Find and run the Go toolchain on this machine. `find_go` is the entry point."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from local.tools.tool import ToolError, Version, parse_version

# The newest `go` line among the pinned modules (karpenter-provider-aws 1.14.1).
NEEDED: Version = (1, 26, 6)
# Flags of the user's GOFLAGS that are kept, because they do not change the result.
KEPT_FLAGS = frozenset({"modcacherw", "p"})
# The installation directory of https://go.dev/doc/install, which may not be on PATH of a new shell.
USUAL_PLACE = "/usr/local/go/bin"


@dataclass(frozen=True, kw_only=True)
class Go:
    """A usable toolchain and its environment."""

    program: str
    version: str
    environment: dict[str, str]

    def query(self, *arguments: str, directory: Path) -> Any:
        """Run `go` and parse the JSON that it prints.

        Raises:
            ToolError: Go failed; the message includes Go's own.
        """
        result = subprocess.run(
            [self.program, *arguments], cwd=directory, env=self.environment, capture_output=True, text=True
        )
        if result.returncode != 0:
            reason = " ".join((result.stderr or result.stdout).split())
            raise ToolError(f"`go {' '.join(arguments)}` failed: {reason}")
        return json.loads(result.stdout)

    def module_cache(self) -> Path:
        """Return the directory in which Go keeps downloaded modules."""
        return Path(self.query("env", "-json", "GOMODCACHE", directory=Path("/"))["GOMODCACHE"])


def _flags(given: str) -> str:
    """Return our flags, and those flags of the user that do not change the result."""
    kept = [flag for flag in given.split() if flag.lstrip("-").partition("=")[0] in KEPT_FLAGS]
    return " ".join([*kept, "-buildvcs=false"])


def find_go(purpose: str) -> Go:
    """Return the toolchain for building `purpose`.

    Raises:
        ToolError: There is no Go, or it is too old.
    """
    needed = ".".join(map(str, NEEDED))
    install = f"Go {needed} or newer is needed to build {purpose}; install it from https://go.dev/dl"
    path = os.pathsep.join([os.environ.get("PATH", ""), USUAL_PLACE])
    program = shutil.which("go", path=path)
    if program is None:
        raise ToolError(f"{install} (no `go` on PATH)")
    # GOTOOLCHAIN=local uses this toolchain, and never downloads another one during a build.
    environment = {
        **os.environ,
        "GOTOOLCHAIN": "local",
        "GOFLAGS": _flags(os.environ.get("GOFLAGS", "")),
        "GOWORK": "off",
        "GO111MODULE": "on",
    }
    result = subprocess.run(
        [program, "env", "GOVERSION"], capture_output=True, text=True, env=environment, cwd="/"
    )
    match = re.search(r"go(\d+(?:\.\d+)*)", result.stdout)
    if result.returncode != 0 or match is None:
        raise ToolError(
            f"{install} ({program} does not say its version: {(result.stderr or result.stdout).strip()})"
        )
    if parse_version(match.group(1)) < NEEDED:
        raise ToolError(f"{install} (found {match.group(1)} at {program})")
    return Go(program=program, version=match.group(1), environment=environment)
