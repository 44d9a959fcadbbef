"""All options of the trainer, in one frozen dataclass.

A flag has precedence over its environment variable, and that over the default. This needs no torch, so that errors are
reported before the seconds that its import takes.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from trainer import contract
from trainer.contract import Exit, TrainerError
from trainer.stores import destination
from trainer.workloads import DIGITS, MODELS

# Three years. torch adds a timeout to the time since boot, in nanoseconds of 64 bits.
_MAX_SECONDS = 100_000_000
_CHOICES = {
    "device": ("cuda", "cpu"),
    "model": MODELS,
    "precision": ("auto", "bf16", "fp16", "fp32"),
    "compile": ("auto", "yes", "no"),
    "parallel": ("ddp", "fsdp"),
}
RUN_ID = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")


def _option(
    kind: type, default: object, help: str, env: str | None = None, minimum: int | None = None
) -> Any:
    minimum = 1 if kind is int and minimum is None else minimum
    return field(default=default, metadata={"kind": kind, "help": help, "env": env, "minimum": minimum})


@dataclass(frozen=True, kw_only=True)
class Config:
    """The options of one run. `Config.read` creates it from flags and environment, and checks each value."""

    epochs: int = _option(int, 20, "passes over the training data")
    steps: int | None = _option(int, None, "steps to train, in place of a number of epochs")
    batch_size: int = _option(int, 64, "samples per step, over all processes; independent of the world size")
    micro_batch_size: int | None = _option(
        int, None, "maximum samples per forward pass of a process; by default its whole share of a step"
    )
    data: str = _option(
        str,
        DIGITS,
        "digits (scikit-learn's), corpus (a book), or a directory: MNIST's IDX files, or train.bin and val.bin",
        contract.DATA,
    )
    model: str | None = _option(str, None, f"{', '.join(MODELS)}; the default depends on the data")
    workload: str | None = _option(
        str, None, "package.module:function that returns your own model and data, instead of --model"
    )
    sequence_length: int | None = _option(
        int, None, "tokens per sample of a language model; by default the model's own"
    )
    learning_rate: float | None = _option(
        float, None, "learning rate of AdamW after the warm-up; it decays linearly to 0. Default: by model"
    )
    warmup_steps: int | None = _option(
        int, None, "steps in which the learning rate rises. Default: by model", minimum=0
    )
    weight_decay: float | None = _option(
        float, None, "weight decay of matrices. Default: by model", minimum=0
    )
    gradient_clip: float | None = _option(
        float, None, "maximum norm of a step's gradient, 0 for no limit. Default: by model", minimum=0
    )
    seed: int = _option(
        int, 0, "seed of the initial weights, of the order of the data and of dropout", minimum=0
    )
    precision: str = _option(
        str, "auto", "bf16, fp16 or fp32; auto: fp32 on the CPU, bf16 on GPUs that support it, else fp16"
    )
    compile: str = _option(str, "auto", "yes or no: torch.compile; auto: on GPUs")
    parallel: str = _option(str, "ddp", "ddp (each process has the whole model) or fsdp (each has a part)")
    bucket_megabytes: int = _option(int, 25, "size of DDP's gradient buckets")
    log_every: int = _option(int, 20, "steps between two log lines with loss, accuracy and speed")
    evaluate_every: int | None = _option(
        int,
        None,
        "steps between two evaluations on the test data; by default one after each epoch. Always one at the end",
    )
    metrics_directory: str | None = _option(
        str, None, "directory for <run id>.jsonl and TensorBoard files; without it, none are written"
    )
    metrics_port: int = _option(
        int,
        0,
        "port of rank 0 that serves metrics for Prometheus; 0 for none",
        contract.METRICS_PORT,
        minimum=0,
    )
    checkpoint_uri: str | None = _option(
        str,
        None,
        "s3://bucket/prefix, file:///path or a path, for <run id>/step-...; without it, none are saved",
        contract.CHECKPOINT_URI,
    )
    checkpoint_every: int = _option(int, 100, "steps between two checkpoints")
    checkpoint_keep: int = _option(int, 2, "number of checkpoints to keep")
    owner: str | None = _option(
        str,
        None,
        "owner of the checkpoints: a run with the same owner resumes from them when the earlier run is gone",
    )
    notice_file: str | None = _option(
        str, None, "a path: if a file is written there, the run stops as after SIGTERM"
    )
    timeout_seconds: float = _option(
        float, 300.0, "seconds without a step after which a run counts as hung and ends"
    )
    start_timeout_seconds: float = _option(
        float, 1800.0, "the same until the first step is done, while models load and compile"
    )
    device: str | None = _option(
        str,
        None,
        "cuda or cpu; by default cuda if there is a GPU. With cuda, the CPU is never used",
        contract.DEVICE,
    )
    model_uri: str | None = _option(
        str,
        None,
        "s3://bucket/prefix, file:///path or a path, for <run id>/model.pt; without it, the model is not saved",
        contract.MODEL_URI,
    )
    run_id: str = _option(str, "run", "name of the run and its model", contract.RUN_ID)
    expected_nodes: int | None = _option(
        int, None, "expected nodes; another number ends the run", contract.EXPECTED_NODES
    )
    processes_per_node: int | None = _option(
        int, None, "expected processes per node", contract.PROCESSES_PER_NODE
    )
    restart: int = _option(
        int, 0, "earlier attempts of this run, for the log and the metadata", contract.RESTART, minimum=0
    )

    @classmethod
    def read(cls, arguments: Sequence[str], environ: Mapping[str, str]) -> Config:
        """Read the options from flags and environment.

        Raises:
            TrainerError: It lists all errors together.
        """
        parser = argparse.ArgumentParser(
            prog="trainer",
            description=__doc__,
            allow_abbrev=False,
            exit_on_error=False,
            formatter_class=_Help,
        )
        for each in fields(cls):
            env = each.metadata["env"]
            note = f" [{env}]" if env else ""
            default = f" (default: {each.default})" if each.default is not None else ""
            # argparse ends at the first flag without a value. With nargs="?", it stores None for each, and continues.
            parser.add_argument(
                _flag(each.name), nargs="?", action="append", help=each.metadata["help"] + default + note
            )
        try:
            given, unknown = parser.parse_known_args(list(arguments))
        except argparse.ArgumentError as error:
            raise TrainerError(Exit.CONFIGURATION, str(error)) from error

        problems = [f"{word}: no such option; --help lists them" for word in unknown]
        values: dict[str, Any] = {}
        for each in fields(cls):
            env = each.metadata["env"]
            place, texts = _flag(each.name), getattr(given, each.name)
            if not texts and env and environ.get(env):
                place, texts = env, [environ[env]]
            if not texts:
                continue
            if None in texts:
                problems.append(f"{place}: has no value; it must be followed by one")
                continue
            text = texts[-1]
            try:
                values[each.name] = each.metadata["kind"](text)
            except ValueError:
                kind = "a whole number" if each.metadata["kind"] is int else "a number"
                problems.append(f"{place}: {text!r} is not {kind}")
        config = cls(**values)
        problems += config._problems()
        if problems:
            raise TrainerError(Exit.CONFIGURATION, "; ".join(problems))
        return config

    def _problems(self) -> list[str]:
        found = []
        for each in fields(self):
            value, minimum = getattr(self, each.name), each.metadata["minimum"]
            if value is not None and minimum is not None and not minimum <= value < float("inf"):
                problem = f"less than {minimum}" if value < minimum else "not a finite number"
                found.append(f"{each.name}: {value} is {problem}")
        if self.learning_rate is not None and not 0 < self.learning_rate < float("inf"):
            found.append(f"learning_rate: {self.learning_rate} is not a positive number")
        for name in ("timeout_seconds", "start_timeout_seconds"):
            value = getattr(self, name)
            if not 0 < value <= _MAX_SECONDS:
                found.append(f"{name}: {value} is not a number of seconds above 0 and up to {_MAX_SECONDS}")
        for name, allowed in _CHOICES.items():
            value = getattr(self, name)
            if value is not None and value not in allowed:
                found.append(f"{name}: {value!r} is not one of {', '.join(allowed)}")
        if self.workload is not None:
            if not re.fullmatch(r"\w+(\.\w+)*:\w+", self.workload):
                found.append(f"workload: {self.workload!r} must be package.module:function")
            found += [
                f"{name}: {getattr(self, name)!r} is set beside workload, which has its own; remove one of them"
                for name in ("model", "sequence_length")
                if getattr(self, name) is not None
            ]
        if self.seed >= 2**63:
            found.append(f"seed: {self.seed} is not between 0 and 2^63 - 1")
        if self.metrics_port > 65535:
            found.append(f"metrics_port: {self.metrics_port} is not a port; it must be 0 to 65535")
        if not RUN_ID.fullmatch(self.run_id) or len(self.run_id) > contract.RUN_ID_MAX_LENGTH:
            found.append(
                f"run_id: {self.run_id!r} is not a name of lower-case letters, digits and hyphens "
                f"of at most {contract.RUN_ID_MAX_LENGTH} characters"
            )
        for name in ("model_uri", "checkpoint_uri"):
            uri = getattr(self, name)
            if uri is not None:
                try:
                    destination(uri)
                except ValueError as error:
                    found.append(f"{name}: {error}")
        return found


class _Help(argparse.HelpFormatter):
    def _format_args(self, action: argparse.Action, default_metavar: str) -> str:  # noqa: ARG002
        return "VALUE"  # not optional, as nargs="?" says


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")
