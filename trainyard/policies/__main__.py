"""Entry point of the policy pack: `pulumi up --policy-pack trainyard/policies`. Every rule is mandatory.

The engine reads the port of the pack from standard output, so nothing else may be printed before.
"""

from __future__ import annotations

import sys
from pathlib import Path

if __name__ == "__main__":
    # The engine puts the directory of the pack first; its modules have names of libraries (kubernetes).
    here = Path(__file__).resolve().parent
    sys.path[:] = [str(here.parents[1]), *(entry for entry in sys.path if Path(entry).resolve() != here)]
    from trainyard.policies.pack import main

    main()
