"""`python -m tests.integration.graph.spans [stack ...]`: how long `up` takes at least, a row of a table per stack file.

The same figures as those of `make test` (tests/integration/graph/test_critical_path.py).
"""

from __future__ import annotations

import sys

from tests.integration.graph.model import graph_of
from tests.integration.graph.schedule import Chain, forced, make_span
from tests.previews import every, preview

HEAD = "| Stack | Program | Services | Ratio | The program's longest chain |\n|---|---|---|---|---|"


def row(stack: str, program: Chain, least: Chain) -> str:
    """One row; times in seconds."""
    chain = ", ".join(f"{label} {own:g}" for label, own in program.links if own >= 10)
    ratio = program.length / least.length
    return f"| {stack} | {program.length:g} s | {least.length:g} s | {ratio:.3f} | {chain} |"


def main() -> int:
    """Print the table."""
    print(HEAD)
    for stack in sys.argv[1:] or every():
        graph = graph_of(preview(stack))
        print(row(stack, make_span(graph), forced(graph)), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
