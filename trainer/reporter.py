"""What a training tells while it runs: lines of log, and records for the metrics. Rank 0 speaks for all."""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from trainer.contract import Exit
from trainer.metrics import record
from trainer.metrics.hub import Metrics
from trainer.metrics.throughput import Goodput, Interval, speed
from trainer.process import say
from trainer.training import Judged, Observer, Progress, Training

if TYPE_CHECKING:
    from trainer.checkpoints import Checkpoints


class Reporter(Observer):
    """Saves checkpoints when they are due, and tells how it goes.

    `peak` is what the device could do, in FLOP/s, None where that is not known.
    """

    def __init__(
        self,
        training: Training,
        checkpoints: Checkpoints | None,
        metrics: Metrics,
        goodput: Goodput,
        peak: float | None,
    ) -> None:
        self._training, self._checkpoints, self._metrics = training, checkpoints, metrics
        self._goodput, self._peak = goodput, peak
        self._chief = training.world.rank == 0
        self._began = time.perf_counter()
        self._saved = self._failed = self._skipped = 0
        self._lost = self._ended = False
        self._ending = threading.Lock()
        self.accuracy, self.loss = 0.0, 0.0

    @property
    def seconds(self) -> float:
        """Since the training began."""
        return time.perf_counter() - self._began

    def before_update(self) -> float:
        stalled = self._checkpoints.before_update() if self._checkpoints else 0.0
        self._goodput.stand(stalled)
        return stalled

    def stepped(self, training: Training) -> None:
        self._goodput.step()
        if self._checkpoints is not None:
            stalled = self._checkpoints.stepped()
            training.stall_seconds += stalled
            self._goodput.stand(stalled)
            self._tell_checkpoints()

    def logged(self, training: Training, progress: Progress) -> None:
        workload, config = training.workload, training.config
        interval = Interval(
            seconds=progress.seconds,
            samples=progress.samples,
            data_wait_seconds=progress.data_wait_seconds,
            checkpoint_stall_seconds=progress.stall_seconds,
        )
        self._goodput.add(interval.useful_seconds)
        rates = speed(
            interval,
            units_per_sample=workload.units_per_sample,
            flops_per_sample=workload.flops_per_sample,
            processes=training.world.size,
            peak=self._peak,
        )
        images = workload.unit == "samples"
        accuracy = progress.correct / progress.units if images else None
        if self._chief:
            say(
                f"step={training.step} epoch={progress.epoch}"
                + ("" if config.steps else f"/{config.epochs}")
                + f" loss={progress.loss / progress.units:.4f}"
                + ("" if accuracy is None else f" accuracy={accuracy:.4f}")
                + f" {workload.unit}_per_second={rates.units_per_second:.1f}"
                + ("" if rates.mfu is None else f" mfu={rates.mfu:.4f}")
                + f" data_wait={rates.data_wait_share:.3f} elapsed={self.seconds:.1f}s"
            )
        self._tell(
            record.Step,
            loss=progress.loss / progress.units,
            accuracy=accuracy,
            learning_rate=progress.learning_rate,
            seconds=progress.seconds,
            samples_per_second=rates.samples_per_second,
            units_per_second=rates.units_per_second,
            mfu=rates.mfu,
            data_wait_seconds=progress.data_wait_seconds,
            checkpoint_stall_seconds=progress.stall_seconds,
            goodput=self._goodput.share(),
        )

    def judged(self, training: Training, judged: Judged) -> None:
        self.loss, self.accuracy = judged.loss, judged.accuracy
        self._goodput.stand(judged.seconds)
        epoch = training.position // training.cursor.samples
        if self._chief:
            say(
                f"epoch={epoch}"
                + ("" if training.config.steps else f"/{training.config.epochs}")
                + f" step={training.step}"
                + f" test_loss={judged.loss:.4f} test_accuracy={judged.accuracy:.4f} elapsed={self.seconds:.1f}s"
            )
        self._tell(record.Evaluation, loss=judged.loss, accuracy=judged.accuracy, seconds=judged.seconds)

    def start(self) -> None:
        """Tell what is trained on what, and from where."""
        training, workload = self._training, self._training.workload
        if self._chief:
            described = " ".join(
                f"{name}={value}" for name, value in workload.describe().items() if name != "sha256"
            )
            say(
                f"model={workload.name} weights={workload.parameters} data={described} "
                f"batch_size={training.config.batch_size} precision={training.precision.name} "
                f"seed={training.config.seed} step={training.step}/{training.steps}"
            )
            if training.step >= training.steps:
                say(
                    f"nothing left to train: the checkpoint is of step {training.step}, and this run's last one is "
                    f"{training.steps}; the model is judged and saved as it is"
                )
        self._tell(
            record.Start,
            workload=workload.name,
            unit=workload.unit,
            units_per_sample=workload.units_per_sample,
            parameters=workload.parameters,
            flops_per_sample=workload.flops_per_sample,
            batch_size=training.config.batch_size,
            steps=training.steps,
            world_size=training.world.size,
            nodes=training.world.nodes,
            device=training.device.type,
            precision=training.precision.name,
            peak_flops=self._peak,
        )
        self._began = time.perf_counter()

    def stop(self, reason: str) -> None:
        """All processes agreed to stop."""
        self._tell(record.Stop, reason=reason)

    def end(self, outcome: str, exit_code: int, failed_rank: int | None = None) -> None:
        """The last record; a second one is none, whichever thread tells it. `failed_rank` is as in `record.End`."""
        with self._ending:
            if self._ended:
                return
            self._ended = True
        self._tell_checkpoints()
        self._tell(
            record.End,
            outcome=outcome,
            exit_code=exit_code,
            seconds=self.seconds,
            goodput=self._goodput.share(),
            failed_rank=failed_rank,
        )
        self._metrics.close()

    def _tell_checkpoints(self) -> None:
        """A record of each save that came to an end since the last look."""
        if self._checkpoints is None:
            return
        counts = self._checkpoints.counts
        for outcome, now, before in (
            ("saved", counts.saved, self._saved),
            ("failed", counts.failed, self._failed),
            ("skipped", counts.skipped, self._skipped),
        ):
            if now == before:
                continue
            self._tell(
                record.Checkpoint,
                name=f"step-{self._training.step if outcome == 'skipped' else counts.last_ended_step:09d}",
                outcome=outcome,
                blocked_seconds=counts.last_blocked_seconds,
                durable_seconds=counts.last_writing_seconds if outcome == "saved" else None,
                size_bytes=counts.last_size_bytes if outcome == "saved" else None,
            )
            if outcome == "failed":
                self._tell(record.Alarm, alarm="checkpoint", message="a checkpoint failed; the log says why")
        self._saved, self._failed, self._skipped = counts.saved, counts.failed, counts.skipped
        if counts.owner_lost and not self._lost:
            self._lost = True
            message = "another run took the place of the checkpoints over; nothing is saved any more"
            self._tell(record.Alarm, alarm="checkpoint", message=message)

    def _tell(self, kind: type[record.Record], **values: Any) -> None:
        training = self._training
        self._metrics.tell(
            kind(
                time=time.time(),
                run=training.config.run_id,
                restart=training.config.restart,
                step=training.step,
                position=training.position,
                **values,
            )
        )


class Last:
    """How a process that can't go on tells the end of its training, from whichever thread finds that out.

    Before `of(reporter)` there is no training to end, and nothing is told. Raises nothing.
    """

    def __init__(self) -> None:
        self._reporter: Reporter | None = None

    def of(self, reporter: Reporter) -> None:
        """From now on it is this one's training."""
        self._reporter = reporter

    def tell(self, code: Exit, failed_rank: int | None = None) -> None:
        """It ends with `code`, which is that of process `failed_rank` where one failed alone and is known."""
        if self._reporter is not None:
            with suppress(Exception):  # nothing of the metrics may stand in for the failure itself
                self._reporter.end("stopped" if code == Exit.STOPPED else "failed", int(code), failed_rank)
