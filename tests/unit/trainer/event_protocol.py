"""tensorboardX's decoder of event files.

tensorboardX imports torch if it is installed. That takes two seconds, and nothing here needs it.
"""

from __future__ import annotations

import sys

_hidden = "torch" not in sys.modules
if _hidden:
    sys.modules["torch"] = None  # type: ignore[assignment]
try:
    from tensorboardX.proto.event_pb2 import Event, SessionLog
    from tensorboardX.record_writer import masked_crc32c
finally:
    if _hidden:
        del sys.modules["torch"]

__all__ = ["Event", "SessionLog", "masked_crc32c"]
