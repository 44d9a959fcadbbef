"""The picture of runs: what is drawn, and what is said where there is nothing to draw."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.unit.trainer.records import EVALUATION, training
from trainer import plot
from trainer.contract import Exit
from trainer.metrics.files import History, read_history
from trainer.metrics.record import Record, Start, to_line

ROOT = Path(__file__).parents[3]


def text(*attempts: list[Record]) -> str:
    return "".join(to_line(record) for each in attempts for record in each)


def history(*attempts: list[Record]) -> History:
    return read_history(text(*attempts).splitlines(), "x")


def curves(axes: Any, opacity: float = 1.0) -> list[list[float]]:
    """The steps of each line with points on these axes that is drawn so strongly."""
    return [
        list(line.get_xdata())
        for line in axes.get_lines()
        if line.get_alpha() == opacity and line.get_linestyle() == "-" and len(line.get_xdata())
    ]


def dashed(axes: Any) -> list[float]:
    return [line.get_xdata()[0] for line in axes.get_lines() if line.get_linestyle() == "--"]


def legend(axes: Any) -> list[str]:
    return [entry.get_text() for entry in axes.get_legend().get_texts()]


def test_loss_and_speed_of_one_run() -> None:
    loss, speed = plot.draw([("r1", history(training(0, 50)))]).axes
    assert curves(loss) == curves(speed) == [[10, 20, 30, 40, 50]]
    assert loss.get_lines()[0].get_ydata() == pytest.approx([10, 5, 100 / 30, 2.5, 2])
    assert set(speed.get_lines()[0].get_ydata()) == {163_840.0}
    assert (loss.get_ylabel(), speed.get_ylabel(), speed.get_xlabel()) == (
        "loss per token",
        "tokens per second",
        "step",
    )
    assert legend(loss) == ["r1"]
    assert speed.get_ylim()[0] == 0
    assert dashed(loss) == []


def test_restarts_are_marked_and_lost_work_is_faint() -> None:
    later = training(30, 60, 1)
    assert isinstance(later[0], Start)
    later[0] = replace(later[0], world_size=3)
    evaluations = [replace(EVALUATION, step=20), replace(EVALUATION, step=50)]
    loss, speed = plot.draw([("r1", history([*training(0, 50), *evaluations], later))]).axes
    assert curves(loss) == [[10, 20, 30], [40, 50, 60]]
    assert curves(loss, plot.LOST_OPACITY) == [[30, 40, 50]]
    assert dashed(loss) == dashed(speed) == [30]
    assert [note.get_text() for note in speed.texts] == ["3 processes"]
    marks = {
        line.get_alpha(): list(line.get_xdata())
        for line in loss.get_lines()
        if line.get_marker() == "o" and len(line.get_xdata())
    }
    assert marks == {1.0: [20], plot.LOST_OPACITY: [50]}
    assert legend(loss) == ["r1", "test data", "restart", "lost, done again"]


def test_runs_of_different_units_share_samples() -> None:
    images = training(0, 50, run="r2")
    assert isinstance(images[0], Start)
    images[0] = replace(images[0], unit="samples")
    loss, speed = plot.draw([("r1", history(training(0, 50))), ("r2", history(images))]).axes
    assert (loss.get_ylabel(), speed.get_ylabel()) == ("loss", "samples per second")
    assert {value for line in speed.get_lines() for value in line.get_ydata()} == {160.0}
    assert legend(loss) == ["r1", "r2"]
    assert len({line.get_color() for line in loss.get_lines() if len(line.get_xdata())}) == 2


def test_twelve_runs_are_drawn() -> None:
    many = [(f"r{number}", history(training(0, 30, run=f"r{number}"))) for number in range(12)]
    assert len(curves(plot.draw(many).axes[0])) == 12


def test_a_training_of_one_record_is_a_point() -> None:
    line = plot.draw([("r1", history(training(0, 10)))]).axes[0].get_lines()[0]
    assert line.get_marker() == "."


def test_runs_of_one_name_are_named_by_their_files() -> None:
    files = [Path("a/r1.jsonl"), Path("b/r1.jsonl")]
    same = [history(training(0, 50))] * 2
    assert plot.names(files, same) == ["a/r1.jsonl", "b/r1.jsonl"]
    assert plot.names(files[:1], same[:1]) == ["r1"]


# -- the command


@pytest.mark.long
def test_plot_command_writes_a_png_and_names_bad_lines(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, output = tmp_path / "r1.jsonl", tmp_path / "run.png"
    file.write_text(text(training(0, 50)) + "torn\n" * 7)
    code = plot.main([str(file), "--output", str(output)])
    out, err = capsys.readouterr()
    assert (code, out) == (0, f"{output}\n"), err
    data = output.read_bytes()
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    assert (int.from_bytes(data[16:20]), int.from_bytes(data[20:24])) == (1296, 936)
    problems = err.splitlines()
    assert problems[0].startswith(f"{file} line 7 is skipped: it is not JSON")
    assert len(problems) == plot.MAX_PROBLEMS + 1
    assert problems[-1] == f"{file}: 2 more lines are skipped"


def refused(capsys: pytest.CaptureFixture[str], code: Exit, *arguments: str | Path) -> str:
    assert plot.main([str(argument) for argument in arguments]) == code
    message = capsys.readouterr().err
    assert message.startswith("error: ")
    assert message.count("\n") == 1
    return message.strip()


def test_a_file_without_records_or_no_file_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "run.png"
    missing, empty, binary = tmp_path / "missing.jsonl", tmp_path / "empty.jsonl", tmp_path / "model.pt"
    empty.touch()
    binary.write_bytes(bytes(range(256)))
    message = refused(capsys, Exit.DATA, missing, "--output", output)
    assert message == f"error: {missing} can't be read: No such file or directory"
    assert "has no records" in refused(capsys, Exit.DATA, empty, "--output", output)
    assert "has no records" in refused(capsys, Exit.DATA, binary, "--output", output)
    assert "can't be read" in refused(capsys, Exit.DATA, tmp_path, "--output", output)
    assert not output.exists()


@pytest.mark.long
def test_an_output_that_is_no_png_or_cant_be_written_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "r1.jsonl"
    file.write_text(text(training(0, 50)))
    assert refused(capsys, Exit.CONFIGURATION, file, "--output", tmp_path / "run.jpg") == (
        f"error: --output: {tmp_path / 'run.jpg'} does not end with .png"
    )
    output = tmp_path / "none" / "run.png"
    assert refused(capsys, Exit.SAVE, file, "--output", output) == (
        f"error: {output} can't be written: No such file or directory"
    )


def test_without_matplotlib_it_says_so(tmp_path: Path) -> None:
    file = tmp_path / "r1.jsonl"
    file.write_text(text(training(0, 50)))
    program = "import sys\nsys.modules['matplotlib'] = None\nfrom trainer.plot import main\nsys.exit(main())"
    command = [sys.executable, "-c", program, file, "--output", tmp_path / "run.png"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=120)
    assert done.returncode == Exit.CONFIGURATION
    assert done.stderr.startswith("error: plot needs matplotlib: ")
    assert done.stderr.count("\n") == 1
