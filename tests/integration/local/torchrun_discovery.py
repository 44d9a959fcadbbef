"""The controller with discovery every second: it notices an installation of KAI Scheduler at once.

The real controller takes up to a minute.
"""

from __future__ import annotations

import os
import sys

from trainyard.operator import __main__, cluster_reader

FRESH_SECONDS = 1.0

if __name__ == "__main__":
    cluster_reader.CLUSTER_SECONDS = FRESH_SECONDS
    sys.exit(__main__.main(sys.argv[1:], os.environ))
