"""Train: `torchrun --standalone --nproc-per-node 2 -m trainer.train`. Reads top to bottom; rank 0 speaks for all."""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any, NoReturn, TextIO

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.elastic.multiprocessing.errors import record
from torch.nn.parallel import DistributedDataParallel

from trainer.config import Config
from trainer.contract import TrainerError
from trainer.data import CLASSES, Dataset, Images, load
from trainer.distributed import join, sum_over_ranks, together
from trainer.model import ConvNet, prepare, weights
from trainer.save import model_bytes, save
from trainer.shards import epoch_order, global_batches, shard
from trainer.world import World

# Test images per forward pass and process: bounds the memory of an evaluation, changes no result.
EVALUATION_BATCH = 1024


@dataclass(frozen=True)
class Outcome:
    """What a finished training tells."""

    steps: int
    seconds: float
    test_accuracy: float


def say(line: str, stream: TextIO | None = None) -> None:
    """One line of log, at once, and in one piece: torchrun's processes write unbuffered into one stream."""
    print(f"{line}\n", end="", file=stream, flush=True)


def on_device(images: Images, device: torch.device) -> tuple[Tensor, Tensor]:
    """Pixels (bytes) and labels on the device; these data sets are small enough to stay there."""
    return torch.from_numpy(images.pixels.copy()).to(device), torch.from_numpy(
        images.labels.astype("int64")
    ).to(device)


def measure(scores: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """The summed loss of these images, and (loss, correct, images) as numbers to add up over steps and processes."""
    loss = F.cross_entropy(scores, labels, reduction="sum")
    correct = (scores.argmax(1) == labels).sum()
    return loss, torch.stack(
        [loss.detach().double(), correct.double(), correct.new_tensor(len(labels)).double()]
    )


def own_part(loss: Tensor, world_size: int, batch_size: int) -> Tensor:
    """This process's part of the mean loss over the whole batch, given its summed loss.

    DDP averages gradients over processes, whatever their shares: hence the factor, which makes unequal shares exact.
    """
    return loss * world_size / batch_size


@torch.no_grad()
def evaluate(model: nn.Module, images: Images, world: World, device: torch.device) -> float:
    """Share of test images named rightly, exact: every image is judged by exactly one process."""
    pixels, labels = on_device(images, device)
    own = torch.arange(world.rank, len(images), world.size, device=device)
    total = torch.zeros(3, dtype=torch.float64, device=device)
    model.eval()
    for part in torch.split(own, EVALUATION_BATCH):
        total += measure(model(prepare(pixels[part], images.white)), labels[part])[1]
    model.train()
    _, correct, seen = sum_over_ranks(total).tolist()
    return float(correct / seen)


def train(config: Config, world: World, device: torch.device, data: Dataset) -> tuple[nn.Module, Outcome]:
    """The loop. The same seed and world size give the same weights, bit by bit, on the CPU."""
    torch.manual_seed(config.seed)
    network = ConvNet(data.image_size, CLASSES).to(device)
    model = DistributedDataParallel(
        network, device_ids=[device] if device.type == "cuda" else None, gradient_as_bucket_view=True
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=config.learning_rate)
    steps = config.epochs * math.ceil(len(data.train) / config.batch_size)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda done: 1 - done / steps)
    pixels, labels = on_device(data.train, device)
    chief = world.rank == 0
    if chief:
        say(
            f"data={data.source} train={len(data.train)} test={len(data.test)} image_size={data.image_size} "
            f"weights={weights(network)} batch_size={config.batch_size} seed={config.seed}"
        )

    step, accuracy = 0, 0.0
    window = torch.zeros(3, dtype=torch.float64, device=device)  # loss, correct, images since the last line
    began = last = time.perf_counter()
    for epoch in range(1, config.epochs + 1):
        for batch in global_batches(epoch_order(len(data.train), config.seed, epoch), config.batch_size):
            mine = torch.from_numpy(shard(batch, world.rank, world.size)).to(device)
            loss, sums = measure(model(prepare(pixels[mine], data.train.white)), labels[mine])
            own_part(loss, world.size, len(batch)).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            schedule.step()
            optimizer.zero_grad(set_to_none=True)
            window += sums
            step += 1
            if step % config.log_every == 0:
                total_loss, correct, seen = sum_over_ranks(window).tolist()
                now = time.perf_counter()
                if chief:
                    say(
                        f"step={step} epoch={epoch}/{config.epochs} loss={total_loss / seen:.4f} "
                        f"accuracy={correct / seen:.4f} samples_per_second={seen / (now - last):.1f} "
                        f"elapsed={now - began:.1f}s"
                    )
                window.zero_()
                last = now
        accuracy = evaluate(network, data.test, world, device)
        if chief:
            say(
                f"epoch={epoch}/{config.epochs} test_accuracy={accuracy:.4f} elapsed={time.perf_counter() - began:.1f}s"
            )
    return network, Outcome(step, time.perf_counter() - began, accuracy)


def describe(
    config: Config, world: World, device: torch.device, data: Dataset, outcome: Outcome
) -> dict[str, Any]:
    """What is kept beside the model: enough to tell how it came about."""
    return {
        "runId": config.run_id,
        "createdAt": datetime.now(UTC).isoformat(timespec="seconds"),
        "testAccuracy": outcome.test_accuracy,
        "steps": outcome.steps,
        "seconds": round(outcome.seconds, 3),
        "worldSize": world.size,
        "nodes": world.nodes,
        "processesPerNode": world.local_size,
        "device": device.type,
        "torch": torch.__version__,
        "data": {
            "source": data.source,
            "sha256": data.digest,
            "train": len(data.train),
            "test": len(data.test),
            "imageSize": data.image_size,
        },
        "settings": asdict(config),
    }


def run(config: Config, world: World) -> None:
    """Join, load, train, save. Raises TrainerError when one of them cannot be done."""
    device = join(config, world)
    say(
        f"rank={world.rank} world_size={world.size} nodes={world.nodes} processes_per_node={world.local_size} "
        f"device={device.type} backend={dist.get_backend()}"
        + (f" restart={config.restart}" if config.restart else "")
    )
    data = together(lambda: load(config.data), device)
    network, outcome = train(config, world, device, data)
    dist.destroy_process_group()
    if world.rank != 0:
        return
    saved = "none"
    if config.model_uri is not None:
        metadata = describe(config, world, device, data, outcome)
        saved = save(config.model_uri, config.run_id, model_bytes(network.state_dict()), metadata)
    say(
        f"result=succeeded test_accuracy={outcome.test_accuracy:.4f} steps={outcome.steps} "
        f"seconds={outcome.seconds:.1f} model={saved}"
    )


@record
def main(arguments: Sequence[str] | None = None) -> int:
    """One process of the training. Returns its exit code (`contract.Exit`)."""
    speaks = os.environ.get("LOCAL_RANK", "0") == "0"  # one process per machine tells what ails it
    try:
        config = Config.read(sys.argv[1:] if arguments is None else arguments, os.environ)
        run(config, World.read(os.environ))
    except TrainerError as error:
        if speaks:
            say(f"error: {error}", sys.stderr)
        return int(error.code)
    return 0


def end(code: int) -> NoReturn:
    """End the process now, with nothing left to do.

    The interpreter's own end would abort it (134) now and then: gloo's threads live on after `destroy_process_group`,
    and one that still holds a tensor's Python part finds no interpreter
    (https://github.com/pytorch/pytorch/pull/179291).
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    end(main() or 0)
