"""Update the go.sum of a lock directory: `python -m local.tools.lock DIRECTORY PACKAGE...`, with all of its packages.

Without arguments it updates the directories of all tools of the local cloud.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from local.tools.go import find_go
from local.tools.pins import OPTIONAL_TOOLS, TOOLS
from local.tools.tool import ToolError


def update(lock: Path, packages: list[str]) -> None:
    """Write the hashes of all modules that the packages import.

    Raises:
        ToolError: Go failed; go.mod and go.sum are unchanged.
    """
    go, module, sums = find_go(f"{lock / 'go.sum'}"), lock / "go.mod", lock / "go.sum"
    before = {file: file.read_bytes() for file in (module, sums) if file.exists()}
    try:
        sums.write_bytes(b"")
        command = [go.program, "list", "-mod=mod", "-deps", *packages]
        answer = subprocess.run(command, cwd=lock, env=go.environment, capture_output=True, text=True)
        if answer.returncode != 0:
            reason = " ".join(answer.stderr.split())
            raise ToolError(
                f"{sums}: Go could not resolve {module}: {reason}. Fix go.mod and run `make locks`."
            )
    except BaseException:
        for file, content in before.items():
            file.write_bytes(content)
        raise


def main() -> int:
    """Update one or all lock directories; return the exit code."""
    packages: dict[Path, list[str]] = {}
    if sys.argv[1:]:
        packages[Path(sys.argv[1])] = sys.argv[2:]
    else:
        for tool in (*TOOLS.values(), *OPTIONAL_TOOLS.values()):
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
