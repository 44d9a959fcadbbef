"""The loop: one step after another, from wherever the run is, until it is done or all are told to stop."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from trainer.config import Config
from trainer.data import Cursor, Prefetcher, Step, evaluation_steps, training_steps
from trainer.failure_broadcast import DivergedError, Losses, are_finite
from trainer.hang import Watch, set_timeouts
from trainer.optimizer import learning_rate, make, recipe, set_learning_rate
from trainer.parallel import FP32, Precision, accumulating, distribute
from trainer.shutdown import Stop
from trainer.workloads import Workload
from trainer.world import World

# Test samples per forward pass and process: bounds the memory of an evaluation, changes no result.
EVALUATION_UNITS = 4096


@dataclass(frozen=True)
class Progress:
    """What the steps since the last line gave, over all processes, and how long they took.

    `loss` and `correct` are sums over `units`, of which each sample has the workload's number.
    """

    epoch: int
    loss: float
    correct: float
    units: float
    samples: int
    learning_rate: float
    seconds: float
    data_wait_seconds: float
    stall_seconds: float


@dataclass(frozen=True)
class Judged:
    """The test data's mean loss per unit and the share of units that were named rightly, exact."""

    loss: float
    accuracy: float
    seconds: float


class Observer:
    """What happens beside the steps: nothing, here. All processes call each method alike, at the same steps."""

    def before_update(self) -> float:
        """The weights are about to change. Returns the seconds that this waited."""
        return 0.0

    def stepped(self, training: Training) -> None:
        """A step is done."""

    def logged(self, training: Training, progress: Progress) -> None:
        """Every `log_every` steps."""

    def judged(self, training: Training, judged: Judged) -> None:
        """After each epoch, and at the end."""


class Training:
    """A model, its optimizer and its place in the data, on all processes alike.

    `step` and `position` say where it is: steps done, and samples that all processes together have used. The same seed
    and world size give the same weights, bit by bit, on the CPU, also when it was stopped and went on in between.
    """

    def __init__(
        self,
        config: Config,
        world: World,
        device: torch.device,
        precision: Precision,
        workload: Workload,
        stop: Stop,
        watch: Watch,
        *,
        compiled: bool = False,
    ) -> None:
        self.config, self.world, self.device, self.workload = config, world, device, workload
        self.precision, self.stop, self.watch = precision, stop, watch
        torch.manual_seed(config.seed)
        self.network = workload.model().to(device)
        sharded = config.parallel == "fsdp" and world.size > 1
        self._compiled = compiled
        self.model = distribute(
            self.network,
            sharded=sharded,
            compiled=self._compiled,
            precision=self.precision,
            device=device,
            bucket_megabytes=config.bucket_megabytes,
        )
        self.cursor = Cursor(workload.train_samples, config.seed, config.batch_size)
        self.steps = config.steps or config.epochs * self.cursor.steps_per_epoch
        self.recipe = recipe(config, workload.unit, self.steps)
        self.optimizer = make(self.model, self.recipe, device)
        self.scaler = torch.amp.GradScaler(device.type, enabled=self.precision.scaled)
        # FSDP2 has a precision of its own, given when the model was distributed.
        self._casting = precision if not sharded else FP32
        self._losses = Losses(scaled=self.precision.scaled)
        self.step = self.position = 0
        self.stall_seconds = 0.0
        self._first, self._has_judged = True, False
        # Steps of these sizes (samples of all processes) are compiled. An epoch's last one is of another size.
        self._sizes: set[int] = set()

    def go_on(self, step: int, position: int) -> None:
        """Be where a checkpoint was made. What is left of the epochs is counted in batches of this run's size."""
        self.step, self.position = step, position
        if self.config.steps is None:
            left = max(0, self.config.epochs * self.cursor.samples - position)
            begun = left % self.cursor.samples
            in_epoch = -(-begun // self.config.batch_size)
            self.steps = step + in_epoch + left // self.cursor.samples * self.cursor.steps_per_epoch
            self.recipe = recipe(self.config, self.workload.unit, self.steps)

    def run(self, observer: Observer, steps: int | None = None) -> bool:
        """Train to the end, or so many steps more: True. False when all processes agreed to stop before."""
        self.watch.enter("compiling and the first step" if self._first else "training", long=self._first)
        if self._judgement_is_due() and not self._judge(observer):
            return False
        window = torch.zeros(3, dtype=torch.float64, device=self.device)
        began, samples = time.perf_counter(), 0
        self.stall_seconds = 0.0
        starting = self._first
        count = self.steps - self.step if steps is None else steps
        if self._first and count > 0:
            self._lay_out_buckets()
        made = training_steps(self.workload, self.cursor, self.world, self._micro_batch, self.position, count)
        with Prefetcher(made, self.device) as prefetched:
            for step in prefetched:
                if self.stop.agreed():
                    return False
                learnt = self._learn(step, observer)
                if learnt is None:
                    return False
                window += learnt
                samples += step.samples
                observer.stepped(self)
                if starting:  # what compiles and allocates is no measure of speed, nor are waits before it
                    starting, began, samples = False, time.perf_counter(), 0
                    self.stall_seconds = 0.0
                    prefetched.take_waited()
                if self.step % self.config.log_every == 0:
                    loss, correct, units = self.sum(window).tolist()
                    now = time.perf_counter()
                    observer.logged(
                        self,
                        Progress(
                            epoch=step.epoch,
                            loss=loss,
                            correct=correct,
                            units=units,
                            samples=samples,
                            learning_rate=self.optimizer.param_groups[0]["lr"],
                            seconds=now - began,
                            data_wait_seconds=prefetched.take_waited(),
                            stall_seconds=self.stall_seconds,
                        ),
                    )
                    if self._losses.diverged(loss / units):
                        raise DivergedError(f"loss: {loss / units}", self.step, self.recipe.learning_rate)
                    window.zero_()
                    began, samples, self.stall_seconds = now, 0, 0.0
                if self._judgement_is_due():
                    paused = time.perf_counter()
                    if not self._judge(observer):
                        return False
                    began += time.perf_counter() - paused
        return True

    def check_weights(self) -> None:
        """Before they are saved; all processes together. Raises DivergedError where one is no number any more."""
        if not are_finite(self.model.parameters(), self.device):
            raise DivergedError("weights: not all are numbers", self.step, self.recipe.learning_rate)

    def wait_for_device(self) -> None:
        """Until it has done all that it was given; a CPU has."""
        if self.device.type == "cuda":
            torch.cuda.current_stream(self.device).synchronize()

    @torch.no_grad()
    def evaluate(self) -> Judged | None:
        """Judge the model on all test samples, each by exactly one process; None when told to stop meanwhile."""
        began = time.perf_counter()
        total = torch.zeros(3, dtype=torch.float64, device=self.device)
        # Past DDP, which would exchange buffers: each process judges samples of its own.
        model = self.model.module if isinstance(self.model, DistributedDataParallel) else self.model
        size = max(1, EVALUATION_UNITS // self.workload.units_per_sample)
        model.eval()
        try:
            with Prefetcher(evaluation_steps(self.workload, self.world, size), self.device) as steps:
                for step in steps:
                    if self.stop.agreed():
                        return None
                    for inputs, targets in step.parts:
                        with self._casting.autocast(self.device):
                            total += model(inputs, targets)[1]
                    self.watch.beat()
        finally:
            model.train()
        loss, correct, units = self.sum(total).tolist()
        return Judged(loss / units, correct / units, time.perf_counter() - began)

    def sum(self, values: Tensor) -> Tensor:
        """The sum over all processes, in place."""
        dist.all_reduce(values)
        return values

    @property
    def _micro_batch(self) -> int:
        return self.config.micro_batch_size or self.config.batch_size

    def _judgement_is_due(self) -> bool:
        every = self.config.evaluate_every
        now = self.step % every == 0 if every else self.position % self.cursor.samples == 0
        return self.step > 0 and (now or self.step >= self.steps)

    def _judge(self, observer: Observer) -> bool:
        self._begin("evaluation", compiles=not self._has_judged)
        self._has_judged = True
        found = self.evaluate()
        if found is None:
            return False
        observer.judged(self, found)
        if not math.isfinite(found.loss):
            self.check_weights()
        self._begin("training", compiles=self._first)
        return True

    def _begin(self, phase: str, compiles: bool) -> None:
        """A phase that compiles has time for it, in all processes: those that do not compile wait for those that do."""
        long = compiles and (self._compiled or self._first)
        self.watch.enter(phase, long=compiles)
        config = self.config
        set_timeouts(config.start_timeout_seconds if long else config.timeout_seconds, self.stop.groups)

    def _lay_out_buckets(self) -> None:
        """Have DDP lay out its buckets as they stay, before the first step; nothing is learnt.

        DDP puts its gradients into other buckets, in the order in which they came, before the second forward pass of
        a process (torch/nn/parallel/distributed.py, `_rebuild_buckets`), and a sum over three processes or more
        depends on where in a bucket a gradient is. A process that goes on from a checkpoint would sum once as no other
        step does, and end with other weights than one that never stopped.
        """
        if not isinstance(self.model, DistributedDataParallel):
            return
        only = training_steps(self.workload, self.cursor, self.world, self._micro_batch, self.position, 1)
        inputs, targets = (each.to(self.device) for each in next(only).parts[0])
        with torch.random.fork_rng([self.device] if self.device.type == "cuda" else []):
            with self._casting.autocast(self.device):
                loss, _ = self.model(inputs, targets)
            loss.backward()
        self.optimizer.zero_grad(set_to_none=True)

    def _learn(self, step: Step, observer: Observer) -> Tensor | None:
        """One step of the optimizer. Returns this process's sums of loss, units named rightly and units.

        None when all agreed to stop between two of its micro-batches, of which every process has as many: then the
        step's gradients are dropped, and it is as if it had not begun.
        """
        # Every process knows of all: whether one of them has a share of a size that is not compiled yet.
        compiles = self._first or (self._compiled and step.samples not in self._sizes)
        if compiles and not self._first:
            self._begin("compiling for steps of another size", compiles=True)
        set_learning_rate(self.optimizer, learning_rate(self.step, self.steps, self.recipe))
        # DDP and FSDP take the mean over processes, whatever their shares; hence the factor, which makes it the mean
        # over all units of the step.
        scale = self.world.size / (step.samples * self.workload.units_per_sample)
        total = torch.zeros(3, dtype=torch.float64, device=self.device)
        for number, (inputs, targets) in enumerate(step.parts, start=1):
            if number > 1 and self.stop.agreed():
                self.optimizer.zero_grad(set_to_none=True)
                return None
            with accumulating(self.model, last=number == len(step.parts)):
                with self._casting.autocast(self.device):
                    loss, sums = self.model(inputs, targets)
                self.scaler.scale(loss * scale).backward()
            total += sums
        if self.recipe.gradient_clip:
            self.scaler.unscale_(self.optimizer)
            nn.utils.clip_grad_norm_(self.model.parameters(), self.recipe.gradient_clip)
        self.stall_seconds += observer.before_update()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad(set_to_none=True)
        self.step += 1
        self.position = step.end
        if compiles:
            self._sizes.add(step.samples)
            if self._compiled:  # the short limits hold for none before all are through
                self.sum(torch.zeros(1, device=self.device)).item()
            if self._first:
                self._first = False
                self.stop.at_stake(True)
            self._begin("training", compiles=False)
        self.watch.beat()
        return total
