"""Report a run: log lines, and records for the metrics, in rank 0. The entry point is `Reporter`."""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from typing import Any

from trainer.contract import Exit
from trainer.metrics import record
from trainer.metrics.hub import Metrics
from trainer.metrics.throughput import Goodput, mfu
from trainer.process import log_line
from trainer.trainer import EvaluationResult, Observer, Progress, Trainer


class Reporter(Observer):
    """Report the progress. `peak` is the device's peak in FLOP/s, if known."""

    def __init__(self, trainer: Trainer, metrics: Metrics, goodput: Goodput, peak: float | None) -> None:
        self._trainer, self._metrics = trainer, metrics
        self._goodput, self._peak = goodput, peak
        self._chief = trainer.world.rank == 0
        self._began = time.perf_counter()
        self._ended = False
        self._ending = threading.Lock()
        self.accuracy, self.loss = 0.0, 0.0

    @property
    def seconds(self) -> float:
        """Seconds since the start of the training."""
        return time.perf_counter() - self._began

    def stepped(self, trainer: Trainer) -> None:  # noqa: ARG002
        self._goodput.step()

    def logged(self, trainer: Trainer, progress: Progress) -> None:
        workload, config, lap = trainer.workload, trainer.config, progress.lap
        self._goodput.add(max(0.0, lap.seconds - lap.data_wait_seconds - lap.stall_seconds))
        samples_per_second = lap.samples / lap.seconds
        units_per_second = samples_per_second * workload.units_per_sample
        utilisation = None
        if self._peak is not None:
            utilisation = mfu(samples_per_second, workload.flops_per_sample, trainer.world.size, self._peak)
        images = workload.unit == "samples"
        accuracy = progress.correct / progress.units if images else None
        if self._chief:
            log_line(
                f"step={trainer.step} epoch={progress.epoch}"
                + ("" if config.steps else f"/{config.epochs}")
                + f" loss={progress.loss / progress.units:.4f}"
                + ("" if accuracy is None else f" accuracy={accuracy:.4f}")
                + f" {workload.unit}_per_second={units_per_second:.1f}"
                + ("" if utilisation is None else f" mfu={utilisation:.4f}")
                + f" data_wait={lap.data_wait_seconds / lap.seconds:.3f} elapsed={self.seconds:.1f}s"
            )
        self.write_record(
            record.Step,
            loss=progress.loss / progress.units,
            accuracy=accuracy,
            learning_rate=progress.learning_rate,
            seconds=lap.seconds,
            samples_per_second=samples_per_second,
            units_per_second=units_per_second,
            mfu=utilisation,
            data_wait_seconds=lap.data_wait_seconds,
            checkpoint_stall_seconds=lap.stall_seconds,
            goodput=self._goodput.share(),
        )

    def evaluated(self, trainer: Trainer, result: EvaluationResult) -> None:
        self.loss, self.accuracy = result.loss, result.accuracy
        self._goodput.pause(result.seconds)
        epoch = trainer.position // trainer.cursor.samples
        if self._chief:
            log_line(
                f"epoch={epoch}"
                + ("" if trainer.config.steps else f"/{trainer.config.epochs}")
                + f" step={trainer.step}"
                + f" test_loss={result.loss:.4f} test_accuracy={result.accuracy:.4f} elapsed={self.seconds:.1f}s"
            )
        self.write_record(
            record.Evaluation, loss=result.loss, accuracy=result.accuracy, seconds=result.seconds
        )

    def start(self) -> None:
        """Report the model, the data, the device and the first step."""
        trainer, workload = self._trainer, self._trainer.workload
        if self._chief:
            data = " ".join(
                f"{name}={value}" for name, value in workload.describe().items() if name != "sha256"
            )
            log_line(
                f"model={workload.name} weights={workload.parameters} data={data} "
                f"batch_size={trainer.config.batch_size} precision={trainer.precision.name} "
                f"seed={trainer.config.seed} step={trainer.step}/{trainer.steps}"
            )
            if trainer.step >= trainer.steps:
                log_line(
                    f"nothing left to train: the checkpoint is of step {trainer.step}, and the last step of this run "
                    f"is {trainer.steps}; the model is evaluated and saved"
                )
        self.write_record(
            record.Start,
            workload=workload.name,
            unit=workload.unit,
            units_per_sample=workload.units_per_sample,
            parameters=workload.parameters,
            flops_per_sample=workload.flops_per_sample,
            batch_size=trainer.config.batch_size,
            steps=trainer.steps,
            world_size=trainer.world.size,
            nodes=trainer.world.nodes,
            device=trainer.device.type,
            precision=trainer.precision.name,
            peak_flops=self._peak,
        )
        self._began = time.perf_counter()

    def stop(self, reason: str) -> None:
        self.write_record(record.Stop, reason=reason)

    def end(self, outcome: str, exit_code: int, failed_rank: int | None = None) -> None:
        """Write the last record. Only the first call from any thread counts. `failed_rank` is as in `record.End`."""
        with self._ending:
            if self._ended:
                return
            self._ended = True
        self.write_record(
            record.End,
            outcome=outcome,
            exit_code=exit_code,
            seconds=self.seconds,
            goodput=self._goodput.share(),
            failed_rank=failed_rank,
        )
        self._metrics.close()

    def write_record(self, kind: type[record.Record], **values: Any) -> None:
        """Write a record with the current step and position. Any thread may call this."""
        config, reached = self._trainer.config, self._trainer.reached
        self._metrics.write(
            kind(
                time=time.time(),
                run=config.run_id,
                restart=config.restart,
                step=reached.step,
                position=reached.position,
                **values,
            )
        )


class EndReport:
    """Write the last record of a process that fails, from any thread. Before `attach`, `report` does nothing."""

    def __init__(self) -> None:
        self._reporter: Reporter | None = None

    def attach(self, reporter: Reporter) -> None:
        self._reporter = reporter

    def report(self, code: Exit, failed_rank: int | None = None) -> None:
        """Write the last record, with the process that failed if it is known. Never raise."""
        if self._reporter is not None:
            with suppress(Exception):  # an error of the metrics must not hide the failure
                self._reporter.end("stopped" if code == Exit.STOPPED else "failed", int(code), failed_rank)
