"""The records of a run, each one line of JSON. Pure.

docs/training-metrics.md has the table of all fields. A reader only accepts lines with its FORMAT, and ignores unknown
fields. A field that is removed or changes its meaning needs a new FORMAT.
"""

from __future__ import annotations

import json
import math
from dataclasses import MISSING, asdict, dataclass, fields
from typing import Any, ClassVar, Final, Literal

FORMAT: Final = 1


@dataclass(frozen=True, kw_only=True)
class Record:
    """The fields of all records. `time` is in seconds since 1970, `position` in samples since the start of the run."""

    kind: ClassVar[str]

    time: float
    run: str
    restart: int
    step: int
    position: int


@dataclass(frozen=True, kw_only=True)
class Start(Record):
    """Training starts or resumes. `step` and `position` are those of the checkpoint, 0 without one."""

    kind = "start"

    workload: str
    unit: Literal["samples", "tokens"]
    units_per_sample: int
    parameters: int
    flops_per_sample: float | None
    batch_size: int
    steps: int
    world_size: int
    nodes: int
    device: str
    precision: str
    peak_flops: float | None


@dataclass(frozen=True, kw_only=True)
class Step(Record):
    """The steps since the previous record. `loss` is the mean per unit, `accuracy` the share of correct units.

    `seconds` is the time of these steps. Rates are of all processes together, `mfu` of each GPU.
    """

    kind = "step"

    loss: float
    accuracy: float | None
    learning_rate: float
    seconds: float
    samples_per_second: float
    units_per_second: float
    mfu: float | None
    data_wait_seconds: float
    checkpoint_stall_seconds: float
    goodput: float


@dataclass(frozen=True, kw_only=True)
class Evaluation(Record):
    """The model was evaluated on the test data."""

    kind = "evaluation"

    loss: float
    accuracy: float | None
    seconds: float


@dataclass(frozen=True, kw_only=True)
class Checkpoint(Record):
    """The checkpoint `name` was saved, failed, or was skipped because another was still in progress.

    Training waited for `blocked_seconds`. The checkpoint was complete after `durable_seconds`.
    """

    kind = "checkpoint"

    name: str
    outcome: Literal["saved", "failed", "skipped"]
    blocked_seconds: float
    durable_seconds: float | None
    size_bytes: int | None


@dataclass(frozen=True, kw_only=True)
class Alarm(Record):
    """A problem that does not stop training: `alarm` is its kind, `message` one line."""

    kind = "alarm"

    alarm: str
    message: str


@dataclass(frozen=True, kw_only=True)
class Stop(Record):
    """All processes agreed to stop; `reason` is a signal's name or the notice."""

    kind = "stop"

    reason: str


@dataclass(frozen=True, kw_only=True)
class End(Record):
    """This attempt ended, `seconds` after the start of its training.

    `failed_rank` is the process that failed, and `exit_code` its exit code. It is None if no process failed alone, or
    if it is unknown, as after a kill.
    """

    kind = "end"

    outcome: Literal["succeeded", "stopped", "failed"]
    exit_code: int
    seconds: float
    goodput: float
    failed_rank: int | None = None


KINDS: Final[dict[str, type[Record]]] = {
    each.kind: each for each in (Start, Step, Evaluation, Checkpoint, Alarm, Stop, End)
}


def to_line(record: Record) -> str:
    """Return one line of JSON with a line feed. Infinite and NaN become null, because JSON has neither."""
    values = {
        name: None if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in asdict(record).items()
    }
    document = {"format": FORMAT, "kind": record.kind, **values}
    return json.dumps(document, separators=(",", ":"), allow_nan=False) + "\n"


def from_line(line: str) -> Record:
    """Parse a line. Raise ValueError with the reason if it is not a record. Unknown fields are ignored."""
    try:
        document: Any = json.loads(line)
    except ValueError as error:
        raise ValueError(f"it is not JSON: {error}") from None
    if not isinstance(document, dict):
        raise ValueError("it must be a JSON object")
    if document.get("format") != FORMAT:
        raise ValueError(f"format is {document.get('format')}; it must be {FORMAT}")
    kind = KINDS.get(str(document.get("kind")))
    if kind is None:
        raise ValueError(f"kind is {document.get('kind')}; it must be one of {', '.join(KINDS)}")
    values: dict[str, Any] = {}
    for each in fields(kind):
        if each.name in document:
            value = document[each.name]
            values[each.name] = math.nan if value is None and each.type == "float" else value
        elif each.default is MISSING:  # those with a default were added later
            raise ValueError(f"{each.name} is missing")
    return kind(**values)
