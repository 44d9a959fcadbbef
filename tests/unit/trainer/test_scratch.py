"""Whose a directory for temporary files is, and which of them a later training removes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from trainer import process
from trainer.process import Process
from trainer.scratch import clear, find_abandoned, folder, name

HERE = Process(host="pod-0", boot="b1", namespace="pid:[1]", pid=7, started="100")
MAKER = (
    "import sys, time; from pathlib import Path; from trainer.scratch import folder;"
    "made = folder(Path(sys.argv[1]), 'restore'); (made / 'step-000000001').mkdir();"
    "(made / 'step-000000001' / 'a.distcp').write_bytes(bytes(1000)); print(made.name, flush=True); time.sleep(600)"
)


@pytest.fixture
def maker(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A process that lives, and the name of the directory that it made in `tmp_path`."""
    root = Path(__file__).parents[3]
    process = subprocess.Popen(
        [sys.executable, "-c", MAKER, str(tmp_path)], stdout=subprocess.PIPE, text=True, cwd=root
    )
    assert process.stdout is not None
    yield process, process.stdout.readline().strip()
    process.kill()
    process.wait()


def test_leftovers_are_those_of_dead_processes_of_this_node() -> None:
    alive = {7: "100", 8: "200", 9: "301"}
    own, neighbour = name("save", HERE), name("restore", replace(HERE, pid=8, started="200"))
    dead, reused = (name("model", replace(HERE, pid=6)), name("save", replace(HERE, pid=9, started="300")))
    elsewhere = [
        name("save", replace(HERE, pid=6, **{what: "other"})) for what in ("host", "boot", "namespace")
    ]
    strangers = ["restore-0a1b2c3d", "tmpabc", "trainyard-save-x-6-100-00000000", f"{dead}.old"]
    names = [own, neighbour, dead, reused, *elsewhere, *strangers]
    assert find_abandoned(names, HERE, alive.get) == sorted([dead, reused])


def test_without_host_identity_nothing_counts_as_abandoned() -> None:
    unknown = replace(HERE, boot="", namespace="", started="")
    assert find_abandoned([name("save", unknown)], unknown, {}.get) == []


def test_clear_removes_leftovers_of_killed_processes_only(
    maker: tuple[subprocess.Popen[str], str], tmp_path: Path
) -> None:
    process, left = maker
    own = folder(tmp_path, "save")
    (tmp_path / "somebody's").mkdir()
    assert clear(tmp_path) == []
    assert (tmp_path / left / "step-000000001" / "a.distcp").exists()
    process.send_signal(signal.SIGKILL)
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # its parent has not asked yet
    assert clear(tmp_path) == [left]
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([own.name, "somebody's"])


def test_clear_keeps_files_of_process_with_unknown_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = folder(tmp_path, "model")
    monkeypatch.setattr(process, "PROC", tmp_path / "no-proc")
    assert clear(tmp_path) == []
    assert own.is_dir()


def test_a_link_of_such_a_name_leads_nowhere(tmp_path: Path) -> None:
    kept, place = tmp_path / "kept", tmp_path / "place"
    (kept / "data").mkdir(parents=True)
    place.mkdir()
    (place / name("save", replace(Process.own(), started="1"))).symlink_to(kept)
    assert clear(place) == []
    assert (kept / "data").is_dir()
