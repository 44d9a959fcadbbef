"""`python -m trainer.plot RUN.jsonl [RUN2.jsonl ...] --output run.png` draws loss and speed of one or more runs.

The files are those that a training writes to its metrics directory (docs/training-metrics.md). A dashed line marks
where a training began anew and with how many processes; what was lost and done again is drawn faintly.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from trainer.contract import Exit, TrainerError
from trainer.metrics.files import History, Training, read_history
from trainer.metrics.record import Record

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

# A file of another kind has as many bad lines as lines.
PROBLEMS_TOLD: Final = 5
LOST_OPACITY: Final = 0.3
PIXELS_PER_INCH: Final = 144
_TEST_MARK: Final[dict[str, Any]] = {"marker": "o", "markerfacecolor": "none", "markersize": 5}


def read(file: Path) -> History:
    """The history in this file; its bad lines are told. Raises TrainerError when there is nothing to draw."""
    try:
        with file.open(encoding="utf-8", errors="replace") as lines:
            history = read_history(lines, str(file))
    except OSError as error:
        raise TrainerError(Exit.DATA, f"{file} can't be read: {error.strerror or error}") from error
    except ValueError as error:
        raise TrainerError(Exit.DATA, str(error)) from error
    for problem in history.problems[:PROBLEMS_TOLD]:
        print(problem, file=sys.stderr)
    if len(history.problems) > PROBLEMS_TOLD:
        print(f"{file}: {len(history.problems) - PROBLEMS_TOLD} more lines are skipped", file=sys.stderr)
    return history


def draw(histories: Sequence[tuple[str, History]]) -> Figure:
    """One figure of these runs, each with the name that its legend has: loss above, speed below, over the step."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import EngFormatter

    trainings = [training for _, history in histories for training in history.trainings]
    units = {training.start.unit for training in trainings}
    alike = len(units) == 1
    unit = units.pop() if alike else "samples"
    rate = "units_per_second" if unit == "tokens" else "samples_per_second"

    figure = Figure(figsize=(9, 6.5), layout="constrained")
    loss, speed = figure.subplots(2, 1, sharex=True)
    colours = [f"C{number % 10}" for number in range(len(histories))]
    for (_, history), colour in zip(histories, colours, strict=True):
        for number, training in enumerate(history.trainings):
            _curve(loss, training, "loss", colour)
            _curve(speed, training, rate, colour)
            _evaluations(loss, training, colour)
            if number:
                for axes in (loss, speed):
                    axes.axvline(training.start.step, color=colour, linestyle="--", linewidth=0.8)
                _mark(speed, training, colour)
    loss.set_ylabel(f"loss per {unit.removesuffix('s')}" if alike else "loss")
    speed.set_ylabel(f"{unit} per second")
    speed.set_xlabel("step")
    speed.set_ylim(bottom=0)
    speed.yaxis.set_major_formatter(EngFormatter(sep=""))
    for axes in (loss, speed):
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
    runs = [(name, colour) for (name, _), colour in zip(histories, colours, strict=True)]
    loss.legend(handles=list(_legend(runs, trainings)), frameon=False)
    return figure


def _legend(runs: Sequence[tuple[str, str]], trainings: Sequence[Training]) -> Iterator[Line2D]:
    """A line for each run (name, colour), and one for each other kind of mark that is there."""
    from matplotlib.lines import Line2D

    for name, colour in runs:
        yield Line2D([], [], color=colour, label=name)
    if any(training.evaluations for training in trainings):
        yield Line2D([], [], color="grey", linestyle="", label="test data", **_TEST_MARK)
    if len(trainings) > len(runs):
        yield Line2D([], [], color="grey", linestyle="--", linewidth=0.8, label="begun anew")
    if any(not training.kept(record) for training in trainings for record in training.steps):
        yield Line2D([], [], color="grey", alpha=LOST_OPACITY, label="lost, done again")


def _curve(axes: Axes, training: Training, value: str, colour: str) -> None:
    kept = [record for record in training.steps if training.kept(record)]
    lost = [record for record in training.steps if not training.kept(record)]
    marker = "." if len(training.steps) < 3 else ""  # a line of one point is none
    # The line of what was lost begins where that of what was kept ends.
    for records, opacity in ((kept, 1.0), ([*kept[-1:], *lost] if lost else [], LOST_OPACITY)):
        steps, values = _points(records, value)
        axes.plot(steps, values, color=colour, linewidth=1.4, marker=marker, alpha=opacity)


def _evaluations(axes: Axes, training: Training, colour: str) -> None:
    for kept, opacity in ((True, 1.0), (False, LOST_OPACITY)):
        records = [record for record in training.evaluations if training.kept(record) == kept]
        steps, values = _points(records, "loss")
        axes.plot(steps, values, color=colour, linestyle="", alpha=opacity, **_TEST_MARK)


def _points(records: Iterable[Record], value: str) -> tuple[list[int], list[float]]:
    pairs = [(record.step, float(getattr(record, value))) for record in records]
    return [step for step, _ in pairs], [number for _, number in pairs]


def _mark(axes: Axes, training: Training, colour: str) -> None:
    """At the foot of the line of a restart: how many processes went on."""
    count = training.start.world_size
    axes.annotate(
        f"{count} process{'es' if count > 1 else ''}",
        (training.start.step, 0),
        xycoords=("data", "axes fraction"),
        xytext=(3, 4),
        textcoords="offset points",
        color=colour,
        fontsize=8,
    )


def names(files: Sequence[Path], histories: Sequence[History]) -> list[str]:
    """The runs' own names; the files' where two runs have the same one."""
    runs = [history.run for history in histories]
    return runs if len(set(runs)) == len(runs) else [str(file) for file in files]


def plot(files: Sequence[Path], output: Path) -> None:
    """Draw the runs of these files into the PNG `output`. Raises TrainerError when that can't be done."""
    if output.suffix.lower() != ".png":
        raise TrainerError(Exit.CONFIGURATION, f"--output: {output} does not end with .png")
    try:
        import matplotlib  # noqa: F401 - told before the files are read
    except ImportError as error:
        raise TrainerError(
            Exit.CONFIGURATION, f"plot needs matplotlib: {error}; `pip install matplotlib` brings it"
        ) from error
    histories = [read(file) for file in files]
    figure = draw(list(zip(names(files, histories), histories, strict=True)))
    try:
        figure.savefig(output, dpi=PIXELS_PER_INCH)
    except OSError as error:
        raise TrainerError(Exit.SAVE, f"{output} can't be written: {error.strerror or error}") from error


def main(arguments: Sequence[str] | None = None) -> int:
    """The command. Returns its exit code (`contract.Exit`)."""
    parser = argparse.ArgumentParser(prog="python -m trainer.plot", description=__doc__)
    parser.add_argument("files", nargs="+", type=Path, metavar="RUN.jsonl", help="the records of one run")
    parser.add_argument("--output", required=True, type=Path, metavar="FILE.png", help="what is written")
    given = parser.parse_args(arguments)
    try:
        plot(given.files, given.output)
    except TrainerError as error:
        print(f"error: {error}", file=sys.stderr, flush=True)
        return int(error.code)
    print(given.output)
    return 0


if __name__ == "__main__":
    sys.exit(main())
