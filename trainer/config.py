"""Everything that can be set, in one frozen dataclass.

A flag wins over its environment variable, that over the default. Needs no torch, so that a mistake is told before the
seconds that importing it takes.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from trainer import contract
from trainer.contract import Exit, TrainerError
from trainer.save import destination

DIGITS = "digits"
RUN_ID = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")


def _option(kind: type, default: object, help: str, env: str | None = None) -> Any:
    return field(default=default, metadata={"kind": kind, "help": help, "env": env})


@dataclass(frozen=True, kw_only=True)
class Config:
    """One training run. `Config.read` makes it from flags and environment and checks every value."""

    epochs: int = _option(int, 20, "passes over the training images")
    batch_size: int = _option(
        int, 64, "images per step, over all processes: it stays when the world size changes"
    )
    learning_rate: float = _option(
        float, 0.001, "of AdamW at the first step; it falls evenly to 0 at the last"
    )
    seed: int = _option(int, 0, "of the model's first weights and of the order of the images")
    log_every: int = _option(int, 20, "steps between two lines of loss, accuracy and speed")
    timeout_seconds: float = _option(float, 300.0, "seconds after which a collective that hangs ends the run")
    data: str = _option(
        str, DIGITS, "digits (scikit-learn's), or a directory of MNIST's IDX files", contract.DATA
    )
    device: str | None = _option(
        str,
        None,
        "cuda or cpu; by default cuda where there is one. Told cuda, it never uses the CPU",
        contract.DEVICE,
    )
    model_uri: str | None = _option(
        str,
        None,
        "s3://bucket/prefix, file:///path or a path, for <run id>/model.pt; none saves none",
        contract.MODEL_URI,
    )
    run_id: str = _option(str, "run", "names the run and its model", contract.RUN_ID)
    expected_nodes: int | None = _option(
        int, None, "machines that were promised; another number ends the run", contract.EXPECTED_NODES
    )
    processes_per_node: int | None = _option(
        int, None, "processes per machine that were promised", contract.PROCESSES_PER_NODE
    )

    restart: int = _option(
        int,
        0,
        "trainings of this run that came before this one, for the log and the metadata",
        contract.RESTART,
    )

    @classmethod
    def read(cls, arguments: Sequence[str], environ: Mapping[str, str]) -> Config:
        """The run that flags and environment describe. Raises TrainerError that names every mistake at once."""
        parser = argparse.ArgumentParser(
            prog="trainer", description=__doc__, allow_abbrev=False, exit_on_error=False
        )
        for each in fields(cls):
            env = each.metadata["env"]
            note = f" [{env}]" if env else ""
            default = f" (default: {each.default})" if each.default is not None else ""
            parser.add_argument(
                _flag(each.name), help=each.metadata["help"] + default + note, metavar="VALUE"
            )
        try:
            given, unknown = parser.parse_known_args(list(arguments))
        except argparse.ArgumentError as error:
            raise TrainerError(Exit.CONFIGURATION, str(error)) from error

        problems = [f"{word}: no such option; --help lists them" for word in unknown]
        values: dict[str, Any] = {}
        for each in fields(cls):
            env = each.metadata["env"]
            place, text = _flag(each.name), getattr(given, each.name)
            if text is None and env and environ.get(env):
                place, text = env, environ[env]
            if text is None:
                continue
            try:
                values[each.name] = each.metadata["kind"](text)
            except ValueError:
                wanted = "a whole number" if each.metadata["kind"] is int else "a number"
                problems.append(f"{place}: {text!r} is not {wanted}")
        config = cls(**values)
        problems += config._problems()
        if problems:
            raise TrainerError(Exit.CONFIGURATION, "; ".join(problems))
        return config

    def _problems(self) -> list[str]:
        found = []
        for name in ("epochs", "batch_size", "log_every", "expected_nodes", "processes_per_node"):
            value = getattr(self, name)
            if value is not None and value < 1:
                found.append(f"{name}: {value} is less than 1")
        for name in ("learning_rate", "timeout_seconds"):
            value = getattr(self, name)
            if not 0 < value < float("inf"):
                found.append(f"{name}: {value} is not a positive number")
        if self.restart < 0:
            found.append(f"restart: {self.restart} is less than 0")
        if not 0 <= self.seed < 2**63:
            found.append(f"seed: {self.seed} is not between 0 and 2^63 - 1")
        if self.device not in (None, "cuda", "cpu"):
            found.append(f"device: {self.device!r} is neither cuda nor cpu")
        if not RUN_ID.fullmatch(self.run_id) or len(self.run_id) > contract.RUN_ID_MAX_LENGTH:
            found.append(
                f"run_id: {self.run_id!r} is not a name of lower-case letters, digits and hyphens "
                f"of at most {contract.RUN_ID_MAX_LENGTH} characters"
            )
        if self.model_uri is not None:
            try:
                destination(self.model_uri)
            except ValueError as error:
                found.append(f"model_uri: {error}")
        return found


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")
