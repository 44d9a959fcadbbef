"""`python -m local.tools.lock DIRECTORY PACKAGE...`: bring a lock directory's go.sum up to date with its go.mod.

Without arguments: those of all tools of the local cloud.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from local.tools.errors import ToolError
from local.tools.go import find_go
from local.tools.pins import TOOLS


def update(lock: Path, packages: list[str]) -> None:
    """Write the hashes of everything that the packages are built of.

    Raises:
        ToolError: Go failed; go.sum is what it was.
    """
    go, sums = find_go("go.sum"), lock / "go.sum"
    before = sums.read_bytes()
    sums.write_bytes(b"")
    command = [go.program, "list", "-mod=mod", "-deps", *packages]
    answer = subprocess.run(command, cwd=lock, env=go.environment, capture_output=True, text=True)
    if answer.returncode != 0:
        sums.write_bytes(before)
        raise ToolError(f"{sums}: Go could not resolve {lock / 'go.mod'}: {' '.join(answer.stderr.split())}")


def main() -> int:
    """Update one lock directory, or all of them."""
    packages: dict[Path, list[str]] = {}
    if sys.argv[1:]:
        packages[Path(sys.argv[1])] = sys.argv[2:]
    else:
        for tool in TOOLS.values():
            packages.setdefault(tool.lock, []).extend(tool.package_paths)
    try:
        for lock, paths in packages.items():
            update(lock, paths)
    except ToolError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
