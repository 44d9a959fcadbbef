"""The command of the trainer's image: `python -m trainer.entrypoint`, with the options of the trainer.

It checks settings and device before it starts a process. Then it runs torchrun's agent with the PET_* variables of the
training operator (github.com/kubeflow/training-operator, pkg/controller.v1/pytorch/envvar.go). The command `torchrun`
always exits with 1 on a failure; this one exits with the code of the failed process.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections.abc import Iterable, Mapping, Sequence
from types import FrameType

from trainer import log_copy
from trainer.config import Config
from trainer.contract import Exit, TrainerError
from trainer.process import resume_collection, run_and_exit


def launch_options(processes: int | None, environ: Mapping[str, str]) -> list[str]:
    """Return the options of torchrun that no PET_* variable sets: all on a laptop, none under the operator."""
    options = []
    if not environ.get("PET_NNODES"):
        options.append("--standalone")
    # The operator's default is `auto`, which on a CPU machine means one process per core.
    if not environ.get("PET_NPROC_PER_NODE", "").isdecimal():
        options.append(f"--nproc-per-node={processes or 1}")
    return options


def pod_exit_code(codes: Iterable[int]) -> int:
    """Return the exit code of the pod for several failed processes.

    `codes` are in the order of failure. The first code of the trainer that names a cause wins, else the first code.
    STOPPED names no cause, because torchrun stops the other processes after a failure. A negative code is a signal, and
    becomes 128 + signal as in shells.
    """
    ours = {int(code) for code in Exit} - {Exit.SUCCEEDED, Exit.FAILED, Exit.STOPPED}
    failed = [code for code in codes if code != 0]
    for code in failed:
        if code in ours:
            return code
    first = failed[0] if failed else int(Exit.FAILED)
    return 128 - first if first < 0 else first


def check_device(config: Config, processes: int) -> None:
    """Raise TrainerError if the settings require cuda and there are fewer GPUs than processes."""
    if config.device != "cuda":
        return
    # Ask NVML. The usual check creates a CUDA context, which holds 300 MB of GPU memory as long as the agent runs.
    os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")
    from trainer.distributed import find_device

    find_device(config.device, 0, processes)


def _refused(error: TrainerError) -> int:
    print(f"error: {error}", file=sys.stderr, flush=True)
    return int(error.code)


def _stop(_number: int, _frame: FrameType | None) -> None:
    sys.exit(int(Exit.STOPPED))


def prepare_agent() -> None:
    """Set the signals and the variables of torchrun's agent, which is the first process of the container."""
    # The first process of a container ignores signals that it does not handle. torchrun sets its own handlers later,
    # which forward the signal to the processes and wait.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _stop)
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.setdefault("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1")  # see trainer.distributed
    # Without warnings of torch's C++ code, which prints a page of stack for each lost process.
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the processes of this node. Return the exit code of the pod."""
    prepare_agent()
    own = list(sys.argv[1:] if arguments is None else arguments)
    try:
        config = Config.read(own, os.environ)
    except TrainerError as error:
        return _refused(error)
    with log_copy.copy_output(config, os.environ):
        return run_all(config, own)


def run_all(config: Config, own: Sequence[str]) -> int:
    """Check the device, and run the processes of this node under torchrun's agent. Return the pod's exit code."""
    try:
        options = launch_options(config.processes_per_node, os.environ)
        processes = os.environ.get("PET_NPROC_PER_NODE", "")
        check_device(config, int(processes) if processes.isdecimal() else config.processes_per_node or 1)
    except TrainerError as error:
        return _refused(error)
    if forks_are_safe():
        import_training(config)
    return run_agent("training", "trainer.train", own, options)


def forks_are_safe() -> bool:
    """Return whether a worker can be a fork of the agent.

    On GPU nodes, torch's agent initializes CUDA (`LaunchConfig` in torch/distributed/launcher/api.py), which a forked
    process could not use.
    """
    gc.disable()  # until `run_agent` has imported the rest; see trainer.train
    import torch

    return sys.platform == "linux" and torch.cuda.device_count() == 0


def import_training(config: Config) -> None:
    """Import what each worker needs, and let the agent fork its workers."""
    import torch._dynamo  # noqa: F401 - by DDP and the optimizer

    from trainer import train
    from trainer.forked_workers import fork_workers

    if config.checkpoint_uri is not None:
        import trainer.checkpoint.checkpointer  # noqa: F401
    fork_workers("trainer.train", train.main)


def run_agent(what: str, module: str, arguments: Sequence[str], options: Sequence[str]) -> int:
    """Run `module` in the processes of this node under torchrun's agent. Return the pod's exit code.

    The error message says that `what` ended. `options` are those of torchrun.
    """
    gc.disable()  # see trainer.train
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.run import parse_args, run

    resume_collection()
    try:
        run(parse_args([*options, "-m", module, *arguments]))  # type: ignore[no-untyped-call]
    except ChildFailedError as error:
        failures = sorted(error.failures.values(), key=lambda failure: failure.timestamp)
        code = pod_exit_code(failure.exitcode for failure in failures)
        details = ", ".join(f"process {failure.local_rank} with {failure.exitcode}" for failure in failures)
        print(f"error: {what} ended with exit code {code} ({details})", file=sys.stderr, flush=True)
        return code
    except SignalException:
        return int(Exit.STOPPED)
    return int(Exit.SUCCEEDED)


if __name__ == "__main__":
    run_and_exit(main)
