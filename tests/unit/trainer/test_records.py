"""Records as lines, and the file that they are appended to."""

from __future__ import annotations

import errno
import json
import math
import os
import re
import signal
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from tests.unit.trainer.records import COMMON, END, EVERY, STEP
from trainer.metrics.files import RecordFile
from trainer.metrics.record import KINDS, Record, from_line, to_line

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize("record", EVERY, ids=lambda record: record.kind)
def test_a_record_comes_back_from_its_line(record: Record) -> None:
    line = to_line(record)
    assert line.count("\n") == 1
    assert line.endswith("\n")
    assert from_line(line) == record
    assert json.loads(line)["kind"] == record.kind


def test_every_kind_is_tried_here() -> None:
    assert {type(record) for record in EVERY} == set(KINDS.values())


def test_a_loss_that_is_no_number_is_null_and_none_stays_none() -> None:
    line = to_line(replace(STEP, loss=math.nan, accuracy=None, mfu=math.inf))
    assert json.loads(line)["loss"] is None
    back = from_line(line)
    assert math.isnan(back.loss)  # type: ignore[attr-defined]
    assert back.accuracy is None  # type: ignore[attr-defined]
    assert back.mfu is None  # type: ignore[attr-defined]


def test_a_later_field_is_ignored() -> None:
    assert from_line(json.dumps({**json.loads(to_line(STEP)), "later": 1})) == STEP


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("", "it is not JSON"),
        ('{"format":1,"ki', "it is not JSON"),
        ("[1]", "it must be a JSON object"),
        ('{"format": 2}', "format is 2; it must be 1"),
        ('{"format": 1, "kind": "steps"}', "kind is steps; it must be one of start, step, evaluation, "),
    ],
)
def test_line_without_a_record_is_refused(line: str, problem: str) -> None:
    with pytest.raises(ValueError, match=re.escape(problem)):
        from_line(line)


def test_a_field_that_is_missing_is_named() -> None:
    document = json.loads(to_line(STEP))
    document.pop("goodput")
    with pytest.raises(ValueError, match=r"^goodput is missing$"):
        from_line(json.dumps(document))


def test_the_page_has_each_field_of_each_record() -> None:
    page = (ROOT / "docs" / "training-metrics.md").read_text()
    rows = re.findall(r"^\| `(\w+)` \| ([^|]+) \|", page, re.MULTILINE)
    documented = {kind: set(re.findall(r"`(\w+)`", text)) for kind, text in rows if kind in KINDS}
    assert documented == {record.kind: set(asdict(record)) - set(COMMON) for record in EVERY}
    common = re.search(r"^Each line has (.+?)\.\n", page, re.MULTILINE | re.DOTALL)
    assert common
    assert set(re.findall(r"`(\w+)`", common[1])) == {"format", "kind", *COMMON}


# -- the file


def lines(file: RecordFile) -> list[str]:
    return file.path.read_text().splitlines()


def test_each_training_appends_to_the_runs_file(tmp_path: Path) -> None:
    for record in EVERY:
        file = RecordFile(tmp_path / "new" / "place", "r1")
        file.write(record)
        file.close()
        file.close()
    assert file.path == tmp_path / "new" / "place" / "r1.jsonl"
    assert [from_line(line) for line in lines(file)] == list(EVERY)


@pytest.mark.parametrize("torn", ["", to_line(STEP)[:40]], ids=["whole", "of a lost node"])
def test_next_record_begins_a_line_of_its_own(tmp_path: Path, torn: str) -> None:
    line = to_line(STEP)
    (tmp_path / "r1.jsonl").write_text(line + torn)
    file = RecordFile(tmp_path, "r1")
    file.write(STEP)
    assert lines(file) == [line.strip(), *([torn] if torn else []), line.strip()]


def test_full_disk_leaves_whole_record_lines(tmp_path: Path) -> None:
    """The limit on a file's size stands in for the disk: the kernel takes a part of the line, then refuses."""
    line = to_line(STEP)
    program = f"""
import errno, resource, signal
from pathlib import Path
from tests.unit.trainer.records import STEP
from trainer.metrics.files import RecordFile
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
file = RecordFile(Path({str(tmp_path)!r}), "r1")
file.write(STEP)
resource.setrlimit(resource.RLIMIT_FSIZE, ({len(line) + 100}, resource.RLIM_INFINITY))
try:
    file.write(STEP)
except OSError as error:
    print(errno.errorcode[error.errno])
print(file.path.stat().st_size)
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)
file.write(STEP)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT, timeout=60
    )
    assert done.stderr == ""
    assert done.stdout.split() == [errno.errorcode[errno.EFBIG], str(len(line))]
    assert (tmp_path / "r1.jsonl").read_text() == line * 2


def test_a_record_outlives_a_process_that_is_killed(tmp_path: Path) -> None:
    program = f"""
import os, signal
from pathlib import Path
from tests.unit.trainer.records import STEP
from trainer.metrics.files import RecordFile
RecordFile(Path({str(tmp_path)!r}), "r1").write(STEP)
os.kill(os.getpid(), signal.SIGKILL)
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, timeout=60)
    assert done.returncode == -signal.SIGKILL
    assert (tmp_path / "r1.jsonl").read_text() == to_line(STEP)


def test_a_place_that_is_no_directory_is_an_error_that_names_it(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match="file"):
        RecordFile(tmp_path / "file", "r1")
    assert os.listdir(tmp_path) == ["file"]


def test_a_line_from_before_a_field_came_is_whole() -> None:
    document = json.loads(to_line(replace(END, failed_rank=3)))
    assert from_line(json.dumps(document)) == replace(END, failed_rank=3)
    assert document.pop("failed_rank") == 3
    assert from_line(json.dumps(document)) == END
