"""`python -m tests.integration.graph [stack ...]`: record what the stack files deploy today, or all.

It writes what is not released yet (`tests/integration/graph/states/unreleased`);
`tests.integration.graph.recordings` says what a release does.
"""

from __future__ import annotations

import sys

from tests.integration.graph.recordings import recorded, save
from tests.previews import preview
from tests.shipped import shipped


def main() -> int:
    """Record and say where."""
    for stack in sys.argv[1:] or shipped():
        found = recorded(preview(stack))
        print(f"{len(found)} resources of {stack}: {save(stack, found)}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
