"""Entry point of each training process: `torchrun --standalone --nproc-per-node 2 -m trainer.train`.

`run` lists the steps of a run in order. Rank 0 prints what holds for all processes.
"""

from __future__ import annotations

import gc
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    # The collector would look through the objects of torch's imports again and again, for a second in each process.
    gc.disable()  # until `run` has loaded everything

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.elastic.multiprocessing.errors import record

from trainer import contract, hang
from trainer.config import Config
from trainer.consistency import check_equal, describe_workload, show
from trainer.contract import AgreedError, Exit, LocalError, SharedError, TrainerError
from trainer.distributed import init_distributed, together
from trainer.failure_broadcast import FailureBroadcast, alone, failure_message, shared
from trainer.hang import Watch
from trainer.metrics.hub import Metrics, open_metrics
from trainer.metrics.throughput import Goodput, peak
from trainer.parallel import is_compiled, report_compile_errors, set_precision
from trainer.process import log_line, resume_collection, run_and_exit
from trainer.reporter import EndReport, Reporter
from trainer.save import check_tensors, probe, save
from trainer.scratch import clear
from trainer.shutdown import Stop, patience
from trainer.trainer import Trainer
from trainer.workloads import Workload, load
from trainer.world import World, describe_expected, stop_agent, will_restart_processes

# How long the other processes of a node wait, so that the first one can print an error that all of them have.
WAIT_FOR_ERROR_SECONDS = 60.0
# What gloo's transport says of a process that ended (third_party/gloo, gloo/transport/tcp/pair.cc).
PEER_IS_GONE = ("Connection closed by peer", "Connection reset by peer")


def run(
    config: Config, world: World, stop: Stop, watch: Watch, broadcast: FailureBroadcast, end: EndReport
) -> Exit:
    """Join the other processes, load, train and save.

    Raises:
        TrainerError: One of these steps failed.
    """
    goodput = Goodput()
    watch.enter("joining the other processes", long=True)
    device, store = init_distributed(config, world)
    broadcast.start(store)
    stop.create_group(hang.timeout(config.start_timeout_seconds))
    log_line(
        f"rank={world.rank} world_size={world.size} nodes={world.nodes} processes_per_node={world.local_size} "
        f"device={device.type} backend={dist.get_backend()}"
        + (f" restart={config.restart}" if config.restart else "")
    )
    show(store, world, describe_expected(config.expected_nodes, config.processes_per_node), device.type)
    watch.enter("loading the data and the model", long=True)
    if world.local_rank == 0 and (left := clear()):
        log_line(
            f"scratch=removed count={len(left)} place={tempfile.gettempdir()} reason=their processes were killed"
        )
    # Check before the training that the model can be saved after it.
    if (uri := config.model_uri) is not None:
        together(lambda: probe(uri, config.run_id) if world.rank == 0 else None, device)
    workload: Workload = together(lambda: load_workload(config), device)
    with shared():
        check_equal(store, world, "data", describe_workload(workload), Exit.DATA)
    precision = together(lambda: set_precision(config.precision, device), device)
    watch.enter("checking torch.compile", long=True)
    compiled = is_compiled(config, world, device)
    trainer = Trainer(config, world, device, precision, workload, stop, watch, compiled=compiled)
    if config.model_uri is not None or config.checkpoint_uri is not None:
        with shared():
            check_tensors(trainer.network.state_dict())
    checkpointer = None
    if config.checkpoint_uri is not None:
        from trainer.checkpoint.checkpointer import Checkpointer  # this import takes one or two seconds

        watch.enter("looking for a checkpoint", long=True)
        place = f"{config.checkpoint_uri.rstrip('/')}/{config.run_id}"
        with shared():
            trainer.checkpointer = checkpointer = Checkpointer(place, trainer, goodput, log_line)
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
    # On a GPU, float32 products use TF32 (`trainer.parallel.set_precision`).
    peak_flops = peak(name, "tf32" if precision.name == "fp32" else precision.name)
    reporter = Reporter(trainer, metrics_of(config, world), goodput, peak_flops)
    end.attach(reporter)
    reporter.start()
    if checkpointer is not None:
        checkpointer.report_to(reporter.write_record)
    resume_collection()
    done = False
    if not stop.agreed_now():
        with alone(), report_compile_errors():
            done = trainer.run(reporter)
        trainer.check_weights()
    is_saved = False
    if checkpointer is not None:
        watch.enter("saving the last checkpoint", long=True)
        is_saved = checkpointer.close()
    broadcast.close()
    stop.settle()
    if not done:
        return end_stopped(
            trainer, stop, reporter, checkpointer.counts.last_good_step if checkpointer else None
        )
    stop.set_unsaved_work(not is_saved)
    watch.enter("saving the model", long=True)
    weights = model_weights(trainer) if config.model_uri is not None else {}
    dist.destroy_process_group()
    if world.rank == 0:
        place = "none"
        if config.model_uri is not None:
            with alone():
                place = save(config.model_uri, config.run_id, weights, describe(trainer, reporter))
        log_line(
            f"result=succeeded test_accuracy={reporter.accuracy:.4f} steps={trainer.step} "
            f"seconds={reporter.seconds:.1f} model={place}"
        )
    reporter.end("succeeded", Exit.SUCCEEDED)
    return Exit.SUCCEEDED


def load_workload(config: Config) -> Workload:
    """Load the user's own workload, or one of the trainer's. Raise TrainerError."""
    if config.workload is not None:
        from trainer.workloads import custom

        # The user's code may load for hours, leave cycles, and fork processes.
        resume_collection()
        return custom.load(config.workload, config.data)
    return load(config.data, config.model, config.sequence_length)


def end_stopped(trainer: Trainer, stop: Stop, reporter: Reporter, last_good_step: int | None) -> Exit:
    """End the run after all processes agreed to stop. Print the reason and the checkpoint to resume from."""
    reason = stop.request.reason
    if trainer.world.local_rank == 0 and stop.is_noticed() and will_restart_processes(os.environ):
        stop_agent()
    dist.barrier()  # no process ends before its agent knows
    dist.destroy_process_group()
    if trainer.world.rank == 0:
        log_line(
            f"result=stopped reason={reason} steps={trainer.step} position={trainer.position} "
            f"checkpoint={'none' if last_good_step is None else last_good_step}"
        )
    reporter.stop(reason)
    reporter.end("stopped", Exit.STOPPED)
    return Exit.STOPPED


def metrics_of(config: Config, world: World) -> Metrics:
    """Return the metrics of this process. Only rank 0 writes and serves any."""
    if world.rank != 0:
        return Metrics([])
    directory = Path(config.metrics_directory) if config.metrics_directory else None
    return open_metrics(config.run_id, directory=directory, port=config.metrics_port)


def model_weights(trainer: Trainer) -> dict[str, Tensor]:
    """Return the full tensors of the model on the CPU, by name, in rank 0; an empty dict in other ranks.

    All processes call this together. It gathers one tensor after another, so no device holds a whole sharded model.
    """
    weights = {}
    for name, tensor in trainer.network.state_dict().items():
        full = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
        if trainer.world.rank == 0:
            weights[name] = full.cpu()
    return weights


def describe(trainer: Trainer, reporter: Reporter) -> dict[str, Any]:
    """Return the metadata that is saved with the model: its data, settings and results."""
    config, world, workload = trainer.config, trainer.world, trainer.workload
    commit = revision(os.environ)
    return {
        "runId": config.run_id,
        "createdAt": datetime.now(UTC).isoformat(timespec="seconds"),
        "testAccuracy": reporter.accuracy,
        "testLoss": reporter.loss,
        "steps": trainer.step,
        "seconds": round(reporter.seconds, 3),
        "worldSize": world.size,
        "nodes": world.nodes,
        "processesPerNode": world.local_size,
        "device": trainer.device.type,
        "precision": trainer.precision.name,
        "torch": torch.__version__,
        **({"revision": commit} if commit else {}),
        "workload": {"name": workload.name, "weights": workload.parameters},
        "data": workload.describe(),
        "settings": asdict(config),
    }


def revision(environ: Mapping[str, str], checkout: Path = Path(__file__).parents[1]) -> str | None:
    """Return the git revision of the code, of the build of the image or of this checkout; None if it is unknown."""
    found = environ.get(contract.REVISION, "")
    if not found and (checkout / ".git").exists():  # not the revision of a repository around it
        # Without tags, so that this is the full hash, with the suffix "-dirty" if files differ from it.
        command = (
            "git",
            "-C",
            str(checkout),
            "describe",
            "--always",
            "--dirty",
            "--abbrev=40",
            "--exclude=*",
        )
        try:
            found = subprocess.run(command, capture_output=True, text=True, timeout=10).stdout.strip()
        except (OSError, subprocess.TimeoutExpired):
            return None
    return found if re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._/+-]{0,127}", found) else None


@record
def main(arguments: Sequence[str] | None = None) -> int:
    """Run one training process. Return its exit code (`contract.Exit`)."""
    is_first_of_node = os.environ.get("LOCAL_RANK", "0") == "0"
    try:
        config = Config.read(sys.argv[1:] if arguments is None else arguments, os.environ)
        world = World.read(os.environ)
        end = EndReport()
        watch = make_watch(config, world, end)
        broadcast = FailureBroadcast(world, last=end.report)

        def report_stop() -> None:
            broadcast.send(Exit.STOPPED)
            end.report(Exit.STOPPED, world.rank)

        stop = Stop(
            patience=patience(os.environ),
            phase=lambda: watch.phase,
            notice=Path(config.notice_file) if config.notice_file else None,
            last=report_stop,
        )
    except TrainerError as error:
        if is_first_of_node:
            log_line(f"error: {error}", sys.stderr)
        else:  # torchrun stops all processes when one has ended, and the first one may still be starting
            time.sleep(WAIT_FOR_ERROR_SECONDS)
        return int(error.code)
    stop.listen()
    watch.start()
    try:
        return int(run(config, world, stop, watch, broadcast, end))
    except TrainerError as error:
        is_local = isinstance(error, LocalError)
        if is_first_of_node or isinstance(error, AgreedError | LocalError):
            elsewhere = isinstance(error, SharedError) and world.rank != 0
            log_line(f"error: {failure_message(0) if elsewhere else error}", sys.stderr)
        if is_local:
            broadcast.send(error.code)
        end.report(error.code, world.rank if is_local else None)
        return int(error.code)
    except Exception as error:
        code = explain(error, world, stop, watch, broadcast) if isinstance(error, RuntimeError) else None
        if code is None:
            broadcast.send(Exit.FAILED)
            end.report(Exit.FAILED, world.rank)
            raise
        end.report(code)
        return int(code)
    finally:
        broadcast.close()
        watch.close()
        stop.close()


def explain(
    error: RuntimeError, world: World, stop: Stop, watch: Watch, broadcast: FailureBroadcast
) -> Exit | None:
    """Print the cause of an error of torch that followed from another process. Return None if it did not."""
    broadcast.wait_for_end()
    if watch.hung or hang.timed_out(error):
        reason = "a collective timed out: another process made no progress"
        log_line(f"error: rank {world.rank}: {reason}: {error}", sys.stderr)
        return Exit.HUNG
    if stop.request.urgency:  # and another process ended earlier
        reason = f"stop requested by {stop.request.reason}"
        log_line(f"error: {reason}; without another checkpoint: {error}", sys.stderr)
        return Exit.STOPPED
    if any(text in str(error) for text in PEER_IS_GONE):
        log_line(f"error: rank {world.rank}: another process ended (see its log): {error}", sys.stderr)
        return Exit.FAILED
    return None


def make_watch(config: Config, world: World, end: EndReport) -> Watch:
    """Return the watch that ends this process on a hang, and writes the stacks beside the metrics."""
    directory = None
    if config.metrics_directory:
        directory = Path(config.metrics_directory) / "hangs" / config.run_id
        hang.set_dump_directory(directory)
    return Watch(
        limit=config.timeout_seconds,
        long_limit=config.start_timeout_seconds,
        rank=world.rank,
        directory=directory,
        last=lambda: end.report(Exit.HUNG),
    )


if __name__ == "__main__":
    run_and_exit(main)
