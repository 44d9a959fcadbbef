"""Train: `torchrun --standalone --nproc-per-node 2 -m trainer.train`. Reads top to bottom; rank 0 speaks for all."""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.elastic.multiprocessing.errors import record

from trainer import hang
from trainer.compile_check import is_compiled, report_compile_errors
from trainer.config import Config
from trainer.consistency import Expected, check_same, described, gather, table
from trainer.consistency import describe as describe_process
from trainer.contract import Exit, TrainerError
from trainer.distributed import OwnError, join, together
from trainer.failure_broadcast import LoneError, Others, SharedError, alone, shared, told_by
from trainer.hang import Watch
from trainer.metrics.hub import Metrics, open_metrics
from trainer.metrics.throughput import Goodput, peak
from trainer.parallel import prepare, whole
from trainer.process import say
from trainer.reporter import Last, Reporter
from trainer.revision import revision
from trainer.save import probe, save
from trainer.scratch import clear
from trainer.shutdown import Stop, patience
from trainer.training import Training
from trainer.workloads import Workload, load
from trainer.world import World, stop_agent, would_start_anew

# The silent processes of a machine leave it so long to the first one to say what ails them all.
WAIT_FOR_WORD_SECONDS = 60.0
# What gloo's transport says of a process that ended (third_party/gloo, gloo/transport/tcp/pair.cc).
PEER_IS_GONE = ("Connection closed by peer", "Connection reset by peer")


def run(config: Config, world: World, stop: Stop, watch: Watch, others: Others, last: Last) -> Exit:
    """Join, load, train, save. Raises TrainerError when one of them cannot be done."""
    goodput = Goodput()
    watch.enter("joining the other processes", long=True)
    device, store = join(config, world)
    others.join(store)
    stop.join(hang.timeout(config.start_timeout_seconds))
    say(
        f"rank={world.rank} world_size={world.size} nodes={world.nodes} processes_per_node={world.local_size} "
        f"device={device.type} backend={dist.get_backend()}"
        + (f" restart={config.restart}" if config.restart else "")
    )
    tell_world(config, world, device, stop)
    watch.enter("loading the data and the model", long=True)
    if world.local_rank == 0 and (left := clear()):
        say(
            f"scratch=removed count={len(left)} place={tempfile.gettempdir()} reason=their processes were killed"
        )
    # What the end of a training needs is asked for at its beginning.
    if (uri := config.model_uri) is not None:
        together(lambda: probe(uri, config.run_id) if world.rank == 0 else uri, device)
    workload: Workload = together(lambda: load(config.data, config.model, config.sequence_length), device)
    with shared():
        check_same(store, world, "data", described(workload), Exit.DATA)
    precision = together(lambda: prepare(config.precision, device), device)
    watch.enter("checking torch.compile", long=True)
    compiled = is_compiled(config, world, device)
    training = Training(config, world, device, precision, workload, stop, watch, compiled=compiled)
    checkpoints = None
    if config.checkpoint_uri is not None:
        from trainer.checkpoints import Checkpoints  # importing it takes a second or two

        watch.enter("looking for a checkpoint", long=True)
        place = f"{config.checkpoint_uri.rstrip('/')}/{config.run_id}"
        with shared():
            checkpoints = Checkpoints(place, training, goodput, say)
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
    # What stays float32 on a GPU is multiplied as TF32 (`trainer.parallel.prepare`).
    best = peak(name, "tf32" if precision.name == "fp32" else precision.name)
    reporter = Reporter(training, checkpoints, metrics_of(config, world), goodput, best)
    last.of(reporter)
    reporter.start()
    done = False
    if not stop.agreed_at_once():
        with alone(), report_compile_errors():
            done = training.run(reporter)
        training.check_weights()
    saved = True
    if checkpoints is not None:
        watch.enter("saving the last checkpoint", long=True)
        saved = checkpoints.end()
    others.close()
    stop.settle()
    if not done:
        return stopped(training, stop, reporter, checkpoints.counts.last_good_step if checkpoints else None)
    stop.at_stake(checkpoints is None or not saved)
    watch.enter("saving the model", long=True)
    weights = model_weights(training) if config.model_uri is not None else {}
    dist.destroy_process_group()
    if world.rank == 0:
        place = "none"
        if config.model_uri is not None:
            with alone():
                place = save(config.model_uri, config.run_id, weights, describe(training, reporter))
        say(
            f"result=succeeded test_accuracy={reporter.accuracy:.4f} steps={training.step} "
            f"seconds={reporter.seconds:.1f} model={place}"
        )
    reporter.end("succeeded", Exit.SUCCEEDED)
    return Exit.SUCCEEDED


def tell_world(config: Config, world: World, device: torch.device, stop: Stop) -> None:
    """Rank 0 shows which machines there are, with what, against what was expected; all processes tell of themselves."""
    process = describe_process(world, int(os.environ["GROUP_RANK"]), device.type)
    processes = gather(process, stop.groups[0] if stop.groups else None)
    if world.rank == 0:
        expected = Expected(nodes=config.expected_nodes, processes_per_node=config.processes_per_node)
        for line in table(processes, expected):
            say(line)


def stopped(training: Training, stop: Stop, reporter: Reporter, good: int | None) -> Exit:
    """All processes agreed to stop: say why and where, and from which checkpoint whoever goes on will."""
    reason = stop.wish.reason
    if training.world.local_rank == 0 and stop.is_noticed() and would_start_anew(os.environ):
        stop_agent()
    dist.barrier()  # no process is at its end before its agent knows
    dist.destroy_process_group()
    if training.world.rank == 0:
        say(
            f"result=stopped reason={reason} steps={training.step} position={training.position} "
            f"checkpoint={'none' if good is None else good}"
        )
    reporter.stop(reason)
    reporter.end("stopped", Exit.STOPPED)
    return Exit.STOPPED


def metrics_of(config: Config, world: World) -> Metrics:
    """Rank 0 writes and serves them; the others have none."""
    if world.rank != 0:
        return Metrics([])
    directory = Path(config.metrics_directory) if config.metrics_directory else None
    return open_metrics(
        config.run_id, directory=directory, tensorboard=directory is not None, port=config.metrics_port
    )


def model_weights(training: Training) -> dict[str, Tensor]:
    """In rank 0 the model's own tensors by name, whole and on the CPU, as a single process would have them; else none.

    All processes together, one tensor after another: no device has to hold the whole of a sharded model.
    """
    chief = training.world.rank == 0
    gathered: dict[str, Tensor] = {}
    for name, tensor in training.network.state_dict().items():
        full = whole(tensor)
        if chief:
            gathered[name] = full.cpu()
        del full  # before the next one is made
    return gathered


def describe(training: Training, reporter: Reporter) -> dict[str, Any]:
    """What is kept beside the model: enough to tell how it came about."""
    config, world, workload = training.config, training.world, training.workload
    known = revision(os.environ)
    return {
        "runId": config.run_id,
        "createdAt": datetime.now(UTC).isoformat(timespec="seconds"),
        "testAccuracy": reporter.accuracy,
        "testLoss": reporter.loss,
        "steps": training.step,
        "seconds": round(reporter.seconds, 3),
        "worldSize": world.size,
        "nodes": world.nodes,
        "processesPerNode": world.local_size,
        "device": training.device.type,
        "precision": training.precision.name,
        "torch": torch.__version__,
        **({"revision": known} if known else {}),
        "workload": {"name": workload.name, "weights": workload.parameters},
        "data": workload.describe(),
        "settings": asdict(config),
    }


@record
def main(arguments: Sequence[str] | None = None) -> int:
    """One process of the training. Returns its exit code (`contract.Exit`)."""
    speaks = os.environ.get("LOCAL_RANK", "0") == "0"  # one process per machine tells what ails it
    try:
        config = Config.read(sys.argv[1:] if arguments is None else arguments, os.environ)
        world = World.read(os.environ)
        last = Last()

        def told_to_stop() -> None:
            others.tell(Exit.STOPPED)
            last.tell(Exit.STOPPED, world.rank)

        watch = watch_over(config, world, last)
        others = Others(world, last=last.tell)
        stop = Stop(
            patience=patience(os.environ),
            phase=lambda: watch.phase,
            notice=Path(config.notice_file) if config.notice_file else None,
            last=told_to_stop,
        )
    except TrainerError as error:
        if speaks:
            say(f"error: {error}", sys.stderr)
        else:  # torchrun ends all when one has ended, and the one that speaks may still be starting
            time.sleep(WAIT_FOR_WORD_SECONDS)
        return int(error.code)
    stop.listen()
    watch.start()
    try:
        return int(run(config, world, stop, watch, others, last))
    except TrainerError as error:
        elsewhere = isinstance(error, SharedError) and world.rank != 0
        if speaks or isinstance(error, OwnError | LoneError):
            say(f"error: {told_by(0) if elsewhere else error}", sys.stderr)
        if isinstance(error, LoneError):
            others.tell(error.code)
        last.tell(error.code, world.rank if isinstance(error, LoneError) else None)
        return int(error.code)
    except RuntimeError as error:
        others.wait_for_end()
        if watch.hung or hang.timed_out(error):
            say(f"error: rank {world.rank}: another process did not come on: {error}", sys.stderr)
            last.tell(Exit.HUNG)
            return int(Exit.HUNG)
        if stop.wish.urgency:  # and another process was sooner at its end
            say(f"error: told to stop by {stop.wish.reason}; without another checkpoint: {error}", sys.stderr)
            last.tell(Exit.STOPPED)
            return int(Exit.STOPPED)
        if any(words in str(error) for words in PEER_IS_GONE):
            say(f"error: rank {world.rank}: another process is gone; its log says why: {error}", sys.stderr)
            last.tell(Exit.FAILED)
            return int(Exit.FAILED)
        others.tell(Exit.FAILED)
        last.tell(Exit.FAILED, world.rank)
        raise
    except Exception:
        others.tell(Exit.FAILED)
        last.tell(Exit.FAILED, world.rank)
        raise
    finally:
        others.close()
        watch.close()
        stop.close()


def watch_over(config: Config, world: World, last: Last) -> Watch:
    """What ends a training that hangs, and writes down where, beside the metrics."""
    directory = None
    if config.metrics_directory:
        directory = Path(config.metrics_directory) / "hangs" / config.run_id
        hang.prepare(directory)
    return Watch(
        limit=config.timeout_seconds,
        long_limit=config.start_timeout_seconds,
        rank=world.rank,
        directory=directory,
        last=lambda: last.tell(Exit.HUNG),
    )


def process() -> NoReturn:
    """One process of the training, from its start to its end. The process ends at once, with nothing left to do.

    The interpreter's own end takes a second, in which torchrun's signal may come before what there is to say, and would
    abort it (134) now and then: gloo's threads live on after `destroy_process_group`, and one that still holds a
    tensor's Python part finds no interpreter (https://github.com/pytorch/pytorch/pull/179291).
    """
    try:
        code = main() or 0
    except Exception:
        sys.excepthook(*sys.exc_info())
        code = int(Exit.FAILED)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    process()
