"""The records of a run, each one line of JSON. Pure.

docs/training-metrics.md has the table of all fields. A reader only accepts lines with its FORMAT, and ignores unknown
fields. A field that is removed or changes its meaning needs a new FORMAT.
"""

from __future__ import annotations

import json
import math
from dataclasses import MISSING, asdict, dataclass, fields
from typing import Any, ClassVar, Final, Literal, get_args, get_origin, get_type_hints

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
    """A checkpoint of this step was saved, failed, or was skipped because another was still in progress.

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
    """This attempt ended, after `seconds` since the start of the process.

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
# Kind -> field -> its type.
_HINTS: Final[dict[str, dict[str, Any]]] = {
    name: {each.name: get_type_hints(kind)[each.name] for each in fields(kind)}
    for name, kind in KINDS.items()
}

# Fields that were added later. Older lines are valid without them.
_LATER: Final[frozenset[str]] = frozenset(
    f"{kind.kind}.{each.name}"
    for kind in KINDS.values()
    for each in fields(kind)
    if each.default is not MISSING
)


def to_line(record: Record) -> str:
    """Return one line of JSON with a line feed. Infinite and NaN become null, because JSON has neither."""
    values = {
        name: None if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in asdict(record).items()
    }
    document = {"format": FORMAT, "kind": record.kind, **values}
    return json.dumps(document, separators=(",", ":"), allow_nan=False) + "\n"


def from_line(line: str) -> Record:
    """Parse a line. Raise ValueError with the reason if it is invalid."""
    try:
        document: Any = json.loads(line)
    except ValueError as error:
        raise ValueError(f"it is not JSON: {error}") from None
    if not isinstance(document, dict):
        raise ValueError(f"it must be a JSON object, not {_short(document)}")
    if document.get("format") != FORMAT:
        raise ValueError(f"format is {_short(document.get('format'))}; it must be {FORMAT}")
    kind = KINDS.get(str(document.get("kind")))
    if kind is None:
        raise ValueError(f"kind is {_short(document.get('kind'))}; it must be one of {', '.join(KINDS)}")
    values = {
        name: _value(name, hint, document)
        for name, hint in _HINTS[kind.kind].items()
        if name in document or f"{kind.kind}.{name}" not in _LATER
    }
    return kind(**values)


def _value(name: str, hint: Any, document: dict[str, Any]) -> Any:
    if name not in document:
        raise ValueError(f"{name} is missing")
    value = document[name]
    if get_origin(hint) is Literal:
        allowed, expected = value in get_args(hint), " or ".join(get_args(hint))
    else:
        kinds = get_args(hint) or (hint,)
        if value is None and float in kinds:
            return None if type(None) in kinds else math.nan
        expected = "a string" if str in kinds else "a number" if float in kinds else "a whole number"
        types = (*kinds, int) if float in kinds else kinds
        allowed = isinstance(value, types) and not isinstance(value, bool)
    if not allowed:
        raise ValueError(f"{name} is {_short(value)}; it must be {expected}")
    return float(value) if float in (get_args(hint) or (hint,)) else value


def _short(value: object) -> str:
    text = json.dumps(value)
    return text if len(text) <= 40 else f"{text[:37]}..."
