"""The controller in haste: it is stuck without a look for three seconds, and looks at nothing every second.

Of the controller as it is, that takes three minutes.
"""

from __future__ import annotations

import os
import sys

from trainyard.operator import __main__, handlers
from trainyard.operator.controller import BEAT_SECONDS

STUCK_SECONDS = 3.0

if __name__ == "__main__":
    BEAT_SECONDS = 1.0
    handlers.STUCK_SECONDS = STUCK_SECONDS
    sys.exit(__main__.main(sys.argv[1:], os.environ))
