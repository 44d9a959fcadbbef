"""What torchrun's agents do, for tests that aren't about torchrun: the processes are forks and need not import torch.

    tests.trainer.gang NODES PROCESSES RESTARTS MODULE ARGUMENT...

It starts PROCESSES of MODULE for each of NODES with torchrun's variables, and passes SIGTERM and SIGINT on. When one
fails it ends the others, and starts all again RESTARTS times. It ends with the code of trainer.entrypoint.
`PATCH` in the environment is Python that each process runs before anything else.
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
from tests.trainer.forks import run_words
from trainer.entrypoint import pod_exit_code

# torchrun's agent looks after its processes so often.
MONITOR_SECONDS = 0.1
# linux/prctl.h
PR_SET_PDEATHSIG, PR_SET_NAME = 1, 15


def main(nodes: int, processes: int, restarts: int, module: str, arguments: list[str]) -> int:
    """Run the processes to their end, and return the exit code of all."""
    signalled = False
    ranks: dict[int, int] = {}

    def forward(number: int, _frame: FrameType | None) -> None:
        nonlocal signalled
        signalled = True
        for pid in ranks:
            os.kill(pid, number)

    handlers = {number: signal.signal(number, forward) for number in (signal.SIGTERM, signal.SIGINT)}
    for attempt in range(restarts + 1):
        (port,) = free_ports(1)
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
                os.environ.update({name: str(value) for name, value in variables.items()})
                run(module, arguments)
            ranks[pid] = rank
        codes: list[int] = []
        while ranks:
            pid, status = os.wait()
            codes.append(os.waitstatus_to_exitcode(status))
            rank = ranks.pop(pid)
            if codes[-1] == 0:
                continue
            print(f"gang: process {rank} ended with {codes[-1]}", flush=True)
            if not signalled and not any(codes[:-1]):
                time.sleep(MONITOR_SECONDS)
                for other in ranks:
                    os.kill(other, signal.SIGTERM)
        if signalled or not any(codes):
            break
    return pod_exit_code(codes) if any(codes) else 0


def run(module: str, arguments: list[str]) -> NoReturn:
    """Be one of the processes."""
    libc = ctypes.CDLL(None)
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    libc.prctl(PR_SET_NAME, f"rank {os.environ['RANK']}".encode())
    # Else the threads of backward passes make OpenMP's pool anew, several at once, and one of them aborts.
    torch.set_num_threads(torch.get_num_threads())
    exec(os.environ.get("PATCH", ""), {})  # noqa: S102 - the test's own
    code = run_words(["-m", module, *arguments])
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:4]), sys.argv[4], sys.argv[5:]))
