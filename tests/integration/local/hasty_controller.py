"""The controller in a hurry: it counts as stuck after eight seconds, and its heartbeat comes every second.

The real controller takes three minutes.
"""

from __future__ import annotations

import os
import sys

from trainyard.operator import __main__, controller

# More than the interval in which the event loop renews the Lease (5 s).
STUCK_SECONDS = 8.0

if __name__ == "__main__":
    controller.HEARTBEAT_SECONDS = 1.0
    __main__.STUCK_SECONDS = STUCK_SECONDS
    sys.exit(__main__.main(sys.argv[1:], os.environ))
