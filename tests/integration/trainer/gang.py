"""Start and supervise worker processes as torchrun's agents do, for tests that are not about torchrun.

    tests.integration.trainer.gang NODES PROCESSES RESTARTS MODULE ARGUMENT...

It forks PROCESSES workers of MODULE for each of NODES, with torchrun's variables, and forwards SIGTERM and SIGINT. If
a worker fails, it stops the others and restarts all, at most RESTARTS times. It exits as trainer.entrypoint does, but
after a signal with the code of a worker. Each worker first runs the Python code in `PATCH`.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
from types import FrameType
from typing import NoReturn

import torch

from local.ports import free_ports
from tests.integration.trainer.forks import run_python
from trainer.entrypoint import pod_exit_code

# torchrun's default of --monitor-interval.
MONITOR_SECONDS = 0.1
FORWARDED = (signal.SIGTERM, signal.SIGINT)
# linux/prctl.h
PR_SET_PDEATHSIG, PR_SET_NAME = 1, 15


def main(nodes: int, processes: int, restarts: int, module: str, arguments: list[str]) -> int:
    """Run all workers; return the exit code."""
    is_signalled = False
    ranks: dict[int, int] = {}

    def forward(number: int, _frame: FrameType | None) -> None:
        nonlocal is_signalled
        is_signalled = True
        for pid in ranks:
            os.kill(pid, number)

    handlers = {number: signal.signal(number, forward) for number in FORWARDED}
    codes: list[int] = []
    for attempt in range(restarts + 1):
        (port,) = free_ports(1)
        # A signal that comes while workers are forked goes to all of them.
        signal.pthread_sigmask(signal.SIG_BLOCK, FORWARDED)
        for rank in range(nodes * processes):
            variables = {
                "RANK": rank,
                "LOCAL_RANK": rank % processes,
                "WORLD_SIZE": nodes * processes,
                "LOCAL_WORLD_SIZE": processes,
                "GROUP_RANK": rank // processes,
                "GROUP_WORLD_SIZE": nodes,
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": port,
                "TORCHELASTIC_RUN_ID": "none",
                "TORCHELASTIC_RESTART_COUNT": attempt,
                "TORCHELASTIC_MAX_RESTARTS": restarts,
            }
            pid = os.fork()
            if pid == 0:
                for number, handler in handlers.items():
                    signal.signal(number, handler)
                signal.pthread_sigmask(signal.SIG_UNBLOCK, FORWARDED)
                os.environ.update({name: str(value) for name, value in variables.items()})
                run_worker(module, arguments)
            ranks[pid] = rank
        signal.pthread_sigmask(signal.SIG_UNBLOCK, FORWARDED)
        codes = []
        while ranks:
            # The worker stays a zombie until it is in no handler's list.
            ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT)
            assert ended is not None
            rank = ranks.pop(ended.si_pid)
            _, status = os.waitpid(ended.si_pid, 0)
            codes.append(os.waitstatus_to_exitcode(status))
            if codes[-1] == 0:
                continue
            print(f"gang: process {rank} ended with {codes[-1]}", flush=True)
            if not is_signalled and not any(codes[:-1]):
                time.sleep(MONITOR_SECONDS)
                for other in ranks:
                    os.kill(other, signal.SIGTERM)
        if is_signalled or not any(codes):
            break
    return pod_exit_code(codes) if any(codes) else 0


def run_worker(module: str, arguments: list[str]) -> NoReturn:
    """Run the module as one worker, and exit with its code."""
    libc = ctypes.CDLL(None)
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    libc.prctl(PR_SET_NAME, f"rank {os.environ['RANK']}".encode())
    # Create OpenMP's pool in the main thread: threads of a backward pass that create it together abort.
    torch.set_num_threads(torch.get_num_threads())
    exec(os.environ.get("PATCH", ""), {})  # noqa: S102 - code of the test
    code = run_python(["-m", module, *arguments])
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:4]), sys.argv[4], sys.argv[5:]))
