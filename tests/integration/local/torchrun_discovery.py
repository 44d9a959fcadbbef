"""The controller with discovery every second: an installation of KAI is noticed at once.

Of the controller as it is, that takes up to a minute.
"""

from __future__ import annotations

import os
import sys

from trainyard.operator import __main__, handlers
from trainyard.operator.cluster_reader import CLUSTER_SECONDS

FRESH_SECONDS = 1.0

if __name__ == "__main__":
    CLUSTER_SECONDS = handlers.FRESH_SECONDS = FRESH_SECONDS
    sys.exit(__main__.main(sys.argv[1:], os.environ))
