"""The torchrun agent that started this process, seen from there."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping


def would_start_anew(environ: Mapping[str, str]) -> bool:
    """Whether the agent starts its processes again when they end now, whatever their exit code.

    It says so in their environment (torch/distributed/elastic/agent/server/local_elastic_agent.py, `_start_workers`).
    """
    done, most = environ.get("TORCHELASTIC_RESTART_COUNT", "0"), environ.get("TORCHELASTIC_MAX_RESTARTS", "0")
    return int(done) < int(most)


def stop_agent() -> None:
    """Tell the agent to end: it passes the signal on to its processes, waits for them, and starts none again."""
    os.kill(os.getppid(), signal.SIGTERM)
