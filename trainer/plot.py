"""`python -m trainer.plot RUN.jsonl [RUN2.jsonl ...] --output run.png` draws loss and speed of one or more runs.

A run writes these files to its metrics directory (docs/training-metrics.md). A dashed line marks a restart and the
number of processes after it. Steps that were lost and done again are drawn faintly.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from trainer.contract import Exit, TrainerError
from trainer.metrics.files import Attempt, History, read_history
from trainer.metrics.record import Record

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

# In a file of another kind, every line is bad.
MAX_PROBLEMS: Final = 5
LOST_OPACITY: Final = 0.3
PIXELS_PER_INCH: Final = 144
_TEST_MARK: Final[dict[str, Any]] = {"marker": "o", "markerfacecolor": "none", "markersize": 5}


def read(file: Path) -> History:
    """Read the history in a file, and print its bad lines. Raise TrainerError if there is nothing to draw."""
    try:
        with file.open(encoding="utf-8", errors="replace") as lines:
            history = read_history(lines, str(file))
    except OSError as error:
        raise TrainerError(Exit.DATA, f"{file} can't be read: {error.strerror or error}") from error
    except ValueError as error:
        raise TrainerError(Exit.DATA, str(error)) from error
    for problem in history.problems[:MAX_PROBLEMS]:
        print(problem, file=sys.stderr)
    if len(history.problems) > MAX_PROBLEMS:
        print(f"{file}: {len(history.problems) - MAX_PROBLEMS} more lines are skipped", file=sys.stderr)
    return history


def draw(histories: Sequence[tuple[str, History]]) -> Figure:
    """Draw loss and speed over the step for these runs. Each has its name in the legend."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import EngFormatter

    attempts = [attempt for _, history in histories for attempt in history.attempts]
    units = {attempt.start.unit for attempt in attempts}
    same_unit = len(units) == 1
    unit = units.pop() if same_unit else "samples"
    rate = "units_per_second" if unit == "tokens" else "samples_per_second"

    figure = Figure(figsize=(9, 6.5), layout="constrained")
    loss, speed = figure.subplots(2, 1, sharex=True)
    colours = [f"C{number % 10}" for number in range(len(histories))]
    for (_, history), colour in zip(histories, colours, strict=True):
        for number, attempt in enumerate(history.attempts):
            _curve(loss, attempt, "loss", colour)
            _curve(speed, attempt, rate, colour)
            _evaluations(loss, attempt, colour)
            if number:
                for axes in (loss, speed):
                    axes.axvline(attempt.start.step, color=colour, linestyle="--", linewidth=0.8)
                _mark(speed, attempt, colour)
    loss.set_ylabel(f"loss per {unit.removesuffix('s')}" if same_unit else "loss")
    speed.set_ylabel(f"{unit} per second")
    speed.set_xlabel("step")
    speed.set_ylim(bottom=0)
    speed.yaxis.set_major_formatter(EngFormatter(sep=""))
    for axes in (loss, speed):
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
    runs = [(name, colour) for (name, _), colour in zip(histories, colours, strict=True)]
    loss.legend(handles=list(_legend(runs, attempts)), frameon=False)
    return figure


def _legend(runs: Sequence[tuple[str, str]], attempts: Sequence[Attempt]) -> Iterator[Line2D]:
    """Yield a legend entry for each run (name, colour), and for each kind of mark in the figure."""
    from matplotlib.lines import Line2D

    for name, colour in runs:
        yield Line2D([], [], color=colour, label=name)
    if any(attempt.evaluations for attempt in attempts):
        yield Line2D([], [], color="grey", linestyle="", label="test data", **_TEST_MARK)
    if len(attempts) > len(runs):
        yield Line2D([], [], color="grey", linestyle="--", linewidth=0.8, label="restart")
    if any(not attempt.is_kept(record) for attempt in attempts for record in attempt.steps):
        yield Line2D([], [], color="grey", alpha=LOST_OPACITY, label="lost, done again")


def _curve(axes: Axes, attempt: Attempt, value: str, colour: str) -> None:
    kept = [record for record in attempt.steps if attempt.is_kept(record)]
    lost = [record for record in attempt.steps if not attempt.is_kept(record)]
    marker = "." if len(attempt.steps) < 3 else ""  # a line with one point is invisible
    # The line of the lost steps begins where the line of the others ends.
    for records, opacity in ((kept, 1.0), ([*kept[-1:], *lost] if lost else [], LOST_OPACITY)):
        steps, values = _points(records, value)
        axes.plot(steps, values, color=colour, linewidth=1.4, marker=marker, alpha=opacity)


def _evaluations(axes: Axes, attempt: Attempt, colour: str) -> None:
    for kept, opacity in ((True, 1.0), (False, LOST_OPACITY)):
        records = [record for record in attempt.evaluations if attempt.is_kept(record) == kept]
        steps, values = _points(records, "loss")
        axes.plot(steps, values, color=colour, linestyle="", alpha=opacity, **_TEST_MARK)


def _points(records: Iterable[Record], value: str) -> tuple[list[int], list[float]]:
    pairs = [(record.step, float(getattr(record, value))) for record in records]
    return [step for step, _ in pairs], [number for _, number in pairs]


def _mark(axes: Axes, attempt: Attempt, colour: str) -> None:
    """Write the number of processes at the foot of the line of a restart."""
    count = attempt.start.world_size
    axes.annotate(
        f"{count} process{'es' if count > 1 else ''}",
        (attempt.start.step, 0),
        xycoords=("data", "axes fraction"),
        xytext=(3, 4),
        textcoords="offset points",
        color=colour,
        fontsize=8,
    )


def names(files: Sequence[Path], histories: Sequence[History]) -> list[str]:
    """Return the names of the runs, or of the files if two runs have the same name."""
    runs = [history.run for history in histories]
    return runs if len(set(runs)) == len(runs) else [str(file) for file in files]


def plot(files: Sequence[Path], output: Path) -> None:
    """Draw the runs of these files into the PNG `output`. Raise TrainerError on a failure."""
    if output.suffix.lower() != ".png":
        raise TrainerError(Exit.CONFIGURATION, f"--output: {output} does not end with .png")
    try:
        import matplotlib  # noqa: F401 - an error comes before the files are read
    except ImportError as error:
        raise TrainerError(
            Exit.CONFIGURATION, f"plot needs matplotlib: {error}. Run `pip install matplotlib`"
        ) from error
    histories = [read(file) for file in files]
    figure = draw(list(zip(names(files, histories), histories, strict=True)))
    try:
        figure.savefig(output, dpi=PIXELS_PER_INCH)
    except OSError as error:
        raise TrainerError(Exit.SAVE, f"{output} can't be written: {error.strerror or error}") from error


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command. Return its exit code (`contract.Exit`)."""
    parser = argparse.ArgumentParser(prog="python -m trainer.plot", description=__doc__)
    parser.add_argument("files", nargs="+", type=Path, metavar="RUN.jsonl", help="the records of one run")
    parser.add_argument("--output", required=True, type=Path, metavar="FILE.png", help="the file to write")
    options = parser.parse_args(arguments)
    try:
        plot(options.files, options.output)
    except TrainerError as error:
        print(f"error: {error}", file=sys.stderr, flush=True)
        return int(error.code)
    print(options.output)
    return 0


if __name__ == "__main__":
    sys.exit(main())
