"""The training loop. `Trainer.run` trains step by step until the run is done or all processes agree to stop."""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from trainer.config import Config
from trainer.contract import Exit, SharedError, TrainerError
from trainer.data import Cursor, Prefetcher, Step, evaluation_steps, training_steps
from trainer.hang import Watch, set_timeouts
from trainer.metrics.throughput import Lap, StepClock
from trainer.optimizer import learning_rate, make, recipe
from trainer.parallel import FP32, Precision, accumulating, distribute
from trainer.shutdown import Stop
from trainer.workloads import Workload
from trainer.world import World

# Units per forward pass and process in an evaluation. It limits the memory, and does not change the result.
EVALUATION_UNITS = 4096


class Reached(NamedTuple):
    """Optimizer steps done, and samples that all processes together have used, since the start of the run."""

    step: int
    position: int


@dataclass(frozen=True)
class Progress:
    """The steps since the last log line, over all processes. `loss` and `correct` are sums over `units`."""

    epoch: int
    loss: float
    correct: float
    units: float
    learning_rate: float
    lap: Lap


@dataclass(frozen=True)
class EvaluationResult:
    """The mean loss per unit, and the share of correct units, over all test data."""

    loss: float
    accuracy: float
    seconds: float


class DivergedError(SharedError):
    """The loss or a weight is infinite or NaN. All processes raise it.

    It has the exit code of wrong settings, so that the run does not restart: the same samples in the same order would
    diverge again. Another learning rate helps.
    """

    def __init__(self, what: str, step: int, learning_rate: float) -> None:
        super().__init__(
            Exit.CONFIGURATION,
            f"{what} at step {step}: the loss diverged, and would diverge again after a resume from the last "
            f"checkpoint. Use a lower learning_rate (it is {learning_rate:g}), a smaller gradient_clip or a longer "
            "warm-up",
        )


@torch.no_grad()
def are_finite(tensors: Iterable[Tensor], device: torch.device) -> bool:
    """Return whether all numbers in these tensors are finite, in all processes. Wait for the device.

    All processes call this together, and each checks its part of a sharded tensor. The maximum norm of a tensor is NaN
    if one of its numbers is.
    """
    own = (each.to_local() if hasattr(each, "to_local") else each for each in tensors)
    norms = [torch.linalg.vector_norm(each, math.inf).float() for each in own if each.numel()]
    finite = torch.stack(norms).isfinite().all() if norms else torch.tensor(True, device=device)
    bad = (~finite).to(torch.int32)
    dist.all_reduce(bad, dist.ReduceOp.MAX)
    return not bad.item()


class Observer:
    """Hooks of the loop. All processes call each hook at the same steps; by default a hook does nothing."""

    def stepped(self, trainer: Trainer) -> None:
        """Run after each step."""

    def logged(self, trainer: Trainer, progress: Progress) -> None:
        """Run every `log_every` steps."""

    def evaluated(self, trainer: Trainer, result: EvaluationResult) -> None:
        """Run after each evaluation: after each epoch or every `evaluate_every` steps, and at the end."""


class Checkpointer(Protocol):
    """Saves checkpoints in the loop. Each method returns the seconds that it waited."""

    def wait_for_copy(self) -> float: ...

    def save_if_due(self) -> float: ...


class Trainer:
    """A model, its optimizer and its position in the data. `run` trains it.

    On a CPU, the same seed and world size give identical weights, also if the run was stopped and resumed.

    Attributes:
        reached: The current step and position. Other threads read both at once.
        checkpointer: Saves checkpoints, if it is set before `run`.
    """

    checkpointer: Checkpointer | None = None

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
            compiled=compiled,
            precision=precision,
            device=device,
            bucket_megabytes=config.bucket_megabytes,
        )
        self.cursor = Cursor(workload.train_samples, config.seed, config.batch_size)
        self.resume(0, 0)
        self.optimizer = make(self.model, self.recipe, device)
        self.scaler = torch.amp.GradScaler(device.type, enabled=precision.scaled)
        # FSDP2 has its own precision, which `distribute` has set.
        self._casting = precision if not sharded else FP32
        self._bad_losses = 0  # infinite or NaN, in a row
        self._has_evaluated = False
        # Step sizes (samples of all processes) that are compiled. The last step of an epoch has another size.
        self._sizes: set[int] = set()

    @property
    def step(self) -> int:
        return self.reached.step

    @property
    def position(self) -> int:
        return self.reached.position

    def resume(self, step: int, position: int) -> None:
        """Continue from a checkpoint. The rest of the epochs is counted in steps of the current batch size."""
        config, samples = self.config, self.cursor.samples
        self.reached, self._start = Reached(step, position), step
        epochs, rest = divmod(max(0, config.epochs * samples - position), samples)
        left = math.ceil(rest / config.batch_size) + epochs * self.cursor.steps_per_epoch
        self.steps = config.steps or step + left
        self.recipe = recipe(config, self.workload.unit, self.steps)

    @property
    def _is_first_step(self) -> bool:
        """Whether the next step is the first one of this process. It compiles, and allocates memory."""
        return self.step == self._start

    def run(self, observer: Observer, steps: int | None = None) -> bool:
        """Train to the end, or `steps` more steps. Return False if all processes agreed to stop earlier."""
        is_first = self._is_first_step
        self.watch.enter("compiling and the first step" if is_first else "training", long=is_first)
        if self._is_evaluation_due() and not self._evaluate(observer):
            return False
        count = self.steps - self.step if steps is None else steps
        if is_first and count > 0 and self.world.size > 2:
            self._lay_out_buckets()
        source = training_steps(
            self.workload, self.cursor, self.world, self._micro_batch, self.position, count
        )
        window = torch.zeros(3, dtype=torch.float64, device=self.device)
        with Prefetcher(source, self.device) as steps_ahead:
            clock = StepClock(steps_ahead.take_waited)
            for step in steps_ahead:
                if self.stop.agreed():
                    return False
                with self._compiling(step.samples):
                    sums = self._train_step(step, clock)
                if sums is None:
                    return False
                window += sums
                clock.add(step.samples)
                observer.stepped(self)
                if self.checkpointer is not None:
                    clock.stall(self.checkpointer.save_if_due())
                if self.step == self._start + 1:  # the first step does not count as speed
                    clock.lap()
                if self.step % self.config.log_every == 0:
                    self._log(observer, step.epoch, window, clock)
                if self._is_evaluation_due():
                    with clock.paused():
                        if not self._evaluate(observer):
                            return False
        return True

    def _log(self, observer: Observer, epoch: int, window: Tensor, clock: StepClock) -> None:
        loss, correct, units = self.sum(window).tolist()  # waits for the device
        rate = self.optimizer.param_groups[0]["lr"]
        observer.logged(self, Progress(epoch, loss, correct, units, rate, clock.lap()))
        self._check_loss(loss / units)
        window.zero_()

    def _check_loss(self, loss: float) -> None:
        """Raise DivergedError if the mean loss since the last log line is infinite or NaN.

        Such a loss makes every weight NaN with the next update. It is allowed once with a gradient scaler: float16
        sometimes overflows in the forward pass, and the scaler then skips the update.
        """
        self._bad_losses = 0 if math.isfinite(loss) else self._bad_losses + 1
        if self._bad_losses > (1 if self.precision.scaled else 0):
            raise DivergedError(f"loss: {loss}", self.step, self.recipe.learning_rate)

    def check_weights(self) -> None:
        """Check the weights before they are saved. All processes call this together.

        Raises:
            DivergedError: A weight is infinite or NaN.
        """
        if not are_finite(self.model.parameters(), self.device):
            raise DivergedError("weights: not all are numbers", self.step, self.recipe.learning_rate)

    def wait_for_device(self) -> None:
        """Wait until the GPU has finished all its work."""
        if self.device.type == "cuda":
            torch.cuda.current_stream(self.device).synchronize()

    @torch.no_grad()
    def evaluate(self) -> EvaluationResult | None:
        """Evaluate the model on all test samples, each in one process. Return None if the processes agreed to stop."""
        began = time.perf_counter()
        total = torch.zeros(3, dtype=torch.float64, device=self.device)
        # Without DDP, which would exchange buffers: each process evaluates other samples.
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
        return EvaluationResult(loss / units, correct / units, time.perf_counter() - began)

    def sum(self, values: Tensor) -> Tensor:
        """Sum `values` over all processes, in place."""
        dist.all_reduce(values)
        return values

    @property
    def _micro_batch(self) -> int:
        return self.config.micro_batch_size or self.config.batch_size

    def _is_evaluation_due(self) -> bool:
        every = self.config.evaluate_every
        now = self.step % every == 0 if every else self.position % self.cursor.samples == 0
        return self.step > 0 and (now or self.step >= self.steps)

    def _evaluate(self, observer: Observer) -> bool:
        self._enter_phase("evaluation", long=not self._has_evaluated)
        self._has_evaluated = True
        result = self.evaluate()
        if result is None:
            return False
        observer.evaluated(self, result)
        if not math.isfinite(result.loss):
            self.check_weights()
        self._enter_phase("training", long=self._is_first_step)
        return True

    def _enter_phase(self, phase: str, long: bool) -> None:
        """Set the timeouts of a phase in all processes: some wait for those that compile or open data."""
        self.watch.enter(phase, long=long)
        config = self.config
        set_timeouts(config.start_timeout_seconds if long else config.timeout_seconds, self.stop.groups)

    def _lay_out_buckets(self) -> None:
        """Let DDP build its final gradient buckets before the first step. This changes no weights.

        DDP rebuilds its buckets before the second forward pass of a process, in the order in which gradients arrived
        (torch/nn/parallel/distributed.py, `_rebuild_buckets`). With three or more processes, a sum depends on the place
        of a gradient in its bucket. A resumed process would compute its first step with other buckets than a process
        that never stopped, and end with different weights. The sum of two does not depend on their order.
        """
        if not isinstance(self.model, DistributedDataParallel):
            return
        only = training_steps(self.workload, self.cursor, self.world, self._micro_batch, self.position, 1)
        inputs, targets = (each.to(self.device) for each in next(only).parts[0])
        buffers = self._copy_buffers()
        self._seed_step()
        with self._casting.autocast(self.device):
            loss, _ = self.model(inputs, targets)
        loss.backward()
        self._check_gradients()
        self.optimizer.zero_grad(set_to_none=True)
        self._restore_buffers(buffers)

    def _copy_buffers(self) -> list[tuple[nn.Module, str, Tensor, Tensor]]:
        """Copy the buffers, such as the statistics of BatchNorm: module, name, tensor and copy of each."""
        return [
            (module, name, each, each.clone())
            for module in self.model.modules()
            for name, each in module.named_buffers(recurse=False)
        ]

    @torch.no_grad()
    def _restore_buffers(self, copies: list[tuple[nn.Module, str, Tensor, Tensor]]) -> None:
        """Undo what forward passes did to the buffers, which they change in place or replace."""
        for module, name, each, before in copies:
            setattr(module, name, each.copy_(before))

    def _check_gradients(self) -> None:
        """Check after a backward pass of DDP that each parameter has a gradient.

        DDP waits for all of them, so its next forward pass would fail, after a step with gradients of one process.

        Raises:
            TrainerError: A parameter has none.
        """
        names = [
            name for name, each in self.network.named_parameters() if each.requires_grad and each.grad is None
        ]
        if names and isinstance(self.model, DistributedDataParallel):
            raise TrainerError(
                Exit.CONFIGURATION,
                f"model: {len(names)} parameters have no gradient, the first is {names[0]!r}; with several processes "
                "the loss must depend on each parameter. Remove them, set their requires_grad to False, or use "
                "--parallel fsdp",
            )

    def _seed_step(self) -> None:
        """Seed torch's generators for the next step.

        They only depend on the seed of the run, the step and the rank. So a resumed run draws the same numbers, for
        dropout for instance, and a checkpoint need not contain generators. Each process has its own samples, also with
        FSDP, so each draws its own numbers.
        """
        text = f"{self.config.seed} {self.step} {self.world.rank}"
        seed = int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest())
        # Not torch.manual_seed: without a GPU it formats a stack trace, which takes longer than a small step.
        torch.default_generator.manual_seed(seed)
        if self.device.type == "cuda":
            torch.cuda.manual_seed(seed)

    @contextmanager
    def _compiling(self, samples: int) -> Iterator[None]:
        """Give a step the long timeouts if it compiles: the first one and, with torch.compile, one of another size.

        `samples` are those of all processes, which all know: one of them may have a share of a new size.
        """
        compiles = self._is_first_step or (self._compiled and samples not in self._sizes)
        if compiles and not self._is_first_step:
            self._enter_phase("compiling for steps of another size", long=True)
        before = self.step
        yield
        if compiles and self.step > before:
            self._sizes.add(samples)
            if self._compiled:  # the short timeouts begin when all processes have compiled
                self.sum(torch.zeros(1, device=self.device)).item()
            self.stop.set_unsaved_work(True)
            self._enter_phase("training", long=False)
        self.watch.beat()

    def _train_step(self, step: Step, clock: StepClock) -> Tensor | None:
        """Do one optimizer step.

        Returns:
            Sums over this process's samples: loss, correct units, units. None if the processes agreed to stop between
            two micro-batches; then the model is as before the step, because a resumed run repeats it.
        """
        buffers = self._copy_buffers() if len(step.parts) > 1 else []
        self._seed_step()
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate(self.step, self.steps, self.recipe)
        # DDP and FSDP take the mean over processes, whatever their shares. This factor makes it the mean over all
        # units of the step.
        scale = self.world.size / (step.samples * self.workload.units_per_sample)
        total = torch.zeros(3, dtype=torch.float64, device=self.device)
        for number, (inputs, targets) in enumerate(step.parts, start=1):
            if number > 1 and self.stop.agreed():
                self._restore_buffers(buffers)
                self.optimizer.zero_grad(set_to_none=True)
                return None
            with accumulating(self.model, last=number == len(step.parts)):
                with self._casting.autocast(self.device):
                    loss, sums = self.model(inputs, targets)
                self.scaler.scale(loss * scale).backward()
            total += sums
        if self._is_first_step:
            self._check_gradients()
        if self.recipe.gradient_clip:
            self.scaler.unscale_(self.optimizer)
            nn.utils.clip_grad_norm_(self.model.parameters(), self.recipe.gradient_clip)
        if self.checkpointer is not None:
            clock.stall(self.checkpointer.wait_for_copy())
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad(set_to_none=True)
        self.reached = Reached(self.step + 1, step.end)
        return total
