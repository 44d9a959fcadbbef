"""Tools of the tests alone, which `make up` does not need: built once, and kept beside those of the local cloud.

`python -m tests.tools` has them all, the optional tools of the local cloud, and KAI Scheduler's kinds: the tests of an
ordinary user run in a network of their own, from which Go's module proxy is not reached.
"""

from __future__ import annotations

import sys
from pathlib import Path

from local.tools import OPTIONAL_TOOLS, ToolError, ensure_other
from local.tools.tool import Tool
from tests.integration.local import kai

# The local cloud's etcd is of release 3.6, which has no v2 API any more; torch knows no other one.
ETCD_WITH_V2 = Tool(
    name="etcd-with-v2",
    module="go.etcd.io/etcd/server/v3",
    packages=("",),
    binaries={"server": "etcd"},
    lock=Path(__file__).with_name("modules") / "etcd-with-v2",
)


def etcd_with_v2() -> Path:
    """Build etcd with the v2 API (which needs `--enable-v2`) and return the program.

    Raises:
        ToolError: it can't be built.
    """
    return ensure_other(ETCD_WITH_V2)["etcd"]


def main() -> int:
    """Have them; what a person can mend is one line."""
    try:
        etcd_with_v2()
        ensure_other(*OPTIONAL_TOOLS.values())
        kai.files()
    except ToolError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\ninterrupted; the same command goes on from here", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
