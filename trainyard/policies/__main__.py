"""Entry point of the policy pack: `pulumi up --policy-pack trainyard/policies`. Every rule is mandatory.

Nothing may be printed before the pack serves: the engine reads its port from standard output.
"""

from __future__ import annotations

import sys
from pathlib import Path

if __name__ == "__main__":
    # The engine puts the pack's own directory first, whose modules have names of others (kubernetes).
    here = Path(__file__).resolve().parent
    sys.path[:] = [str(here.parents[1]), *(entry for entry in sys.path if Path(entry).resolve() != here)]
    from trainyard.policies.pack import main

    main()
