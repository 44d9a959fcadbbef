"""`python -m tests.graph [stack ...]`: record what the stack files deploy today; all of them where none is named.

It writes what is not released yet (`tests/graph/states/unreleased`); `tests.graph.recordings` says what a release does.
"""

from __future__ import annotations

import sys

from tests.graph.recordings import recorded, save
from tests.previews import preview, shipped


def main() -> int:
    """Record and say where."""
    for stack in sys.argv[1:] or shipped():
        found = recorded(preview(stack))
        print(f"{len(found)} resources of {stack}: {save(stack, found)}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
