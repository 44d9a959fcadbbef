"""For all tests."""

from __future__ import annotations

import signal

# A shell without job control starts what it puts into the background with SIGINT ignored, and every process that is
# started from there inherits that: tests of interrupts would then wait for nothing.
signal.signal(signal.SIGINT, signal.default_int_handler)
