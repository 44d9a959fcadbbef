"""Event files, read back as TensorBoard reads them: length, checksum, event, checksum."""

from __future__ import annotations

import errno
import math
import struct
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tensorboardX.proto.event_pb2 import Event, SessionLog
from tensorboardX.record_writer import masked_crc32c

from tests.unit.trainer.records import ALARM, BEGAN, CHECKPOINT, END, EVALUATION, START, STEP, STOP
from trainer.metrics.files import FLUSH_SECONDS, EventFile
from trainer.metrics.record import Record

ROOT = Path(__file__).parents[3]


def read(file: Path) -> list[Any]:
    """All events of a file but its first, which names the format."""
    data, events = file.read_bytes(), []
    while data:
        (length,) = struct.unpack("<Q", data[:8])
        assert struct.unpack("<I", data[8:12]) == (masked_crc32c(data[:8]),)
        body = data[12 : 12 + length]
        assert struct.unpack("<I", data[12 + length : 16 + length]) == (masked_crc32c(body),)
        events.append(Event.FromString(body))
        data = data[16 + length :]
    assert events[0].file_version == "brain.Event:2"
    return events[1:]


def written(directory: Path, *records: Record) -> list[Any]:
    file = EventFile(directory, "r1")
    for record in records:
        file.write(record)
    file.close()
    file.close()
    (path,) = (directory / "r1").iterdir()
    return read(path)


def scalars(event: Any) -> dict[str, float]:
    return {value.tag: value.simple_value for value in event.summary.value}


def test_each_record_is_an_event_at_its_step_and_time(tmp_path: Path) -> None:
    start, step, evaluation, checkpoint = written(tmp_path, START, STEP, EVALUATION, CHECKPOINT)
    assert start.session_log.status == SessionLog.START
    assert [event.step for event in (start, step, evaluation, checkpoint)] == [1, 20, 20, 20]
    assert {event.wall_time for event in (step, evaluation, checkpoint)} == {BEGAN}
    assert scalars(step) == pytest.approx(
        {
            "train/loss": 3.5,
            "train/accuracy": 0.25,
            "train/learning_rate": 0.001,
            "speed/samples_per_second": 160,
            "speed/units_per_second": 163_840,
            "speed/mfu": 0.4,
            "speed/data_wait_share": 0.25,
            "speed/goodput": 0.75,
        }
    )
    assert scalars(evaluation) == {"evaluation/loss": 3.75, "evaluation/accuracy": 0.125}
    assert scalars(checkpoint) == {"checkpoint/blocked_seconds": 0.5, "checkpoint/durable_seconds": 4}


def test_what_is_not_known_has_no_tag_and_a_lost_loss_is_shown(tmp_path: Path) -> None:
    _, step = written(tmp_path, START, replace(STEP, mfu=None, accuracy=None, loss=math.nan))
    found = scalars(step)
    assert {"speed/mfu", "train/accuracy"} & set(found) == set()
    assert math.isnan(found["train/loss"])


def test_what_has_no_number_is_no_event(tmp_path: Path) -> None:
    failed = replace(CHECKPOINT, outcome="failed")
    assert len(written(tmp_path, START, ALARM, STOP, END, failed)) == 1


def test_resumed_run_purges_events_after_its_step(tmp_path: Path) -> None:
    EventFile(tmp_path, "r1").write(START)
    file = EventFile(tmp_path, "r1")
    file.write(replace(START, step=600))
    file.close()
    paths = sorted((tmp_path / "r1").iterdir(), key=lambda path: path.suffix)
    assert [path.suffix for path in paths] == [".0", ".1"]
    assert all("tfevents" in path.name for path in paths)
    (start,) = read(paths[1])
    assert (start.step, start.session_log.status) == (601, SessionLog.START)


def test_events_are_on_the_disk_after_a_while_and_not_each_time(tmp_path: Path) -> None:
    now = 100.0
    file = EventFile(tmp_path, "r1", clock=lambda: now)
    file.write(START)
    (path,) = (tmp_path / "r1").iterdir()
    assert path.stat().st_size == 0
    now += FLUSH_SECONDS
    file.write(STEP)
    assert len(read(path)) == 2
    file.write(EVALUATION)
    assert len(read(path)) == 2
    file.close()
    assert len(read(path)) == 3


@pytest.mark.long
def test_full_disk_loses_one_event_file_only(tmp_path: Path) -> None:
    program = f"""
import errno, resource, signal, sys
sys.modules["torch"] = None  # tensorboardX would wait for it
from pathlib import Path
from tests.unit.trainer.records import STEP
from trainer.metrics.files import EventFile
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
file = EventFile(Path({str(tmp_path)!r}), "r1", clock=iter(range(0, 10000, 60)).__next__)
file.write(STEP)
resource.setrlimit(resource.RLIMIT_FSIZE, (400, resource.RLIM_INFINITY))
for _ in range(2):
    try:
        file.write(STEP)
    except OSError as error:
        print(errno.errorcode[error.errno])
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)
file.write(STEP)
file.close()
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT, timeout=60
    )
    assert done.stderr == ""
    assert done.stdout.split() == [errno.errorcode[errno.EFBIG]]
    first, second = sorted((tmp_path / "r1").iterdir(), key=lambda path: path.suffix)
    assert first.stat().st_size == 400
    assert len(read(second)) == 2, "whole, though the file before is not"
