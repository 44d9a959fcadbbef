"""The torchrun agent that started this process, seen from there."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping

from trainer.contract import Exit, TrainerError


def would_start_anew(environ: Mapping[str, str]) -> bool:
    """Whether the agent starts its processes again when they end now, whatever their exit code.

    It says so in their environment (torch/distributed/elastic/agent/server/local_elastic_agent.py, `_start_workers`).
    """
    done, most = environ.get("TORCHELASTIC_RESTART_COUNT", "0"), environ.get("TORCHELASTIC_MAX_RESTARTS", "0")
    return int(done) < int(most)


def check_restarts(nodes: int, environ: Mapping[str, str]) -> None:
    """Raises TrainerError where agents on several machines may start processes anew, and these could not meet.

    Their one store, where it is shared by all attempts, holds the addresses of the processes before them. It is with
    the static rendezvous, and with c10d unless TORCH_DISABLE_SHARE_RDZV_TCP_STORE is 1; the agents tell their processes
    (`use_agent_store` in torch/distributed/elastic/rendezvous, static_tcp_rendezvous.py and dynamic_rendezvous.py).
    """
    most = int(environ.get("TORCHELASTIC_MAX_RESTARTS", "0"))
    if nodes > 1 and most > 0 and environ.get("TORCHELASTIC_USE_AGENT_STORE") == str(True):
        raise TrainerError(
            Exit.CONFIGURATION,
            f"max-restarts: {most} on {nodes} machines, whose processes could not meet again once started anew; "
            "expected --rdzv-backend c10d and TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1, which "
            "python -m trainer.entrypoint sets, or --max-restarts 0",
        )


def stop_agent() -> None:
    """Tell the agent to end: it passes the signal on to its processes, waits for them, and starts none again."""
    os.kill(os.getppid(), signal.SIGTERM)
