"""`python -m local.tools.lock DIRECTORY PACKAGE...`: bring a lock directory's go.sum up to date with its go.mod.

Without arguments: those of all tools of the local cloud.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from local.tools.go import find_go
from local.tools.pins import TOOLS


def update(lock: Path, packages: list[str]) -> None:
    """Write the hashes of everything that the packages are built of."""
    go = find_go("go.sum")
    (lock / "go.sum").write_bytes(b"")
    command = [go.program, "list", "-mod=mod", "-deps", *packages]
    subprocess.run(command, cwd=lock, env=go.environment, stdout=subprocess.DEVNULL, check=True)


def main() -> None:
    """Update one lock directory, or all of them."""
    if sys.argv[1:]:
        update(Path(sys.argv[1]), sys.argv[2:])
        return
    for lock in {tool.lock for tool in TOOLS.values()}:
        update(lock, [path for tool in TOOLS.values() if tool.lock == lock for path in tool.package_paths])


if __name__ == "__main__":
    main()
