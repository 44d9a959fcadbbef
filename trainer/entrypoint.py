"""What the trainer's image runs: `python -m trainer.entrypoint`, the arguments being the trainer's.

It checks settings and device before any process starts, then is torchrun's agent itself, with what the training
operator says in PET_* (github.com/kubeflow/training-operator, pkg/controller.v1/pytorch/envvar.go). torchrun's own
command ends with 1 whatever failed; this one ends with the code of the process that failed, so that the pod tells.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterable, Mapping, Sequence
from types import FrameType

from trainer import log_copy
from trainer.config import Config
from trainer.contract import Exit, TrainerError


def launch_options(config: Config, environ: Mapping[str, str]) -> list[str]:
    """torchrun's options that PET_* does not say: everything on a laptop, nothing beside the operator."""
    options = []
    if not environ.get("PET_NNODES"):
        options.append("--standalone")
    # The operator's default is `auto`, which on a CPU machine means one process per core.
    if not environ.get("PET_NPROC_PER_NODE", "").isdecimal():
        options.append(f"--nproc-per-node={config.processes_per_node or 1}")
    return options


def pod_exit_code(codes: Iterable[int]) -> int:
    """The one code for several failed processes: one of ours that says why, before what merely followed from it.

    A process that was told to stop says why only when it is the first: torchrun stops those that a failure leaves.

    `codes` are in the order of failure; a negative one is a signal, told as shells do (128 + signal).
    """
    ours = {int(code) for code in Exit} - {Exit.SUCCEEDED, Exit.FAILED, Exit.STOPPED}
    failed = [code for code in codes if code != 0]
    for code in failed:
        if code in ours:
            return code
    first = failed[0] if failed else int(Exit.FAILED)
    return 128 - first if first < 0 else first


def check_device(config: Config, processes: int) -> None:
    """Raises TrainerError when cuda is told and this machine has not one device per process."""
    if config.device != "cuda":
        return
    # Ask the driver's library: the usual way makes a CUDA context, 300 MB of GPU memory for as long as the agent lives.
    os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")
    from trainer.distributed import find_device

    find_device(config.device, 0, processes)


def _refused(error: TrainerError) -> int:
    print(f"error: {error}", file=sys.stderr, flush=True)
    return int(error.code)


def _stop(_number: int, _frame: FrameType | None) -> None:
    sys.exit(int(Exit.STOPPED))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the processes of this machine to their end. Returns the pod's exit code."""
    # A container's first process ignores signals that it does not handle. torchrun puts its own handlers in place
    # once processes run: it passes the signal on to them and waits.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _stop)
    own = list(sys.argv[1:] if arguments is None else arguments)
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.setdefault("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1")  # see trainer.distributed
    # Without the warnings of its C++ part: of a process that is gone they tell by a page of stack, and we by a line.
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    try:
        config = Config.read(own, os.environ)
    except TrainerError as error:
        return _refused(error)
    with log_copy.copy_output(config, os.environ):
        return run_all(config, own)


def run_all(config: Config, own: Sequence[str]) -> int:
    """Check the device, and run the processes of this node under torchrun's agent. Return the pod's exit code."""
    try:
        options = launch_options(config, os.environ)
        processes = os.environ.get("PET_NPROC_PER_NODE", "")
        check_device(config, int(processes) if processes.isdecimal() else config.processes_per_node or 1)
    except TrainerError as error:
        return _refused(error)

    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.run import parse_args, run

    try:
        run(parse_args([*options, "-m", "trainer.train", *own]))  # type: ignore[no-untyped-call]
    except ChildFailedError as error:
        failures = sorted(error.failures.values(), key=lambda failure: failure.timestamp)
        code = pod_exit_code(failure.exitcode for failure in failures)
        told = ", ".join(f"process {failure.local_rank} with {failure.exitcode}" for failure in failures)
        print(f"error: training ended with exit code {code} ({told})", file=sys.stderr, flush=True)
        return code
    except SignalException:
        return int(Exit.STOPPED)
    return int(Exit.SUCCEEDED)


if __name__ == "__main__":
    sys.exit(main())
