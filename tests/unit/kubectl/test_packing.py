"""The workspace is packed in a process of its own, which is gone with its file when the verb is over."""

from __future__ import annotations

import argparse
import errno
import multiprocessing
import os
import signal
import tempfile
from pathlib import Path
from typing import Any

import pytest

from trainyard.kubectl import packing as packing_module
from trainyard.kubectl.__main__ import main
from trainyard.kubectl.output import WORKSPACE, PluginError
from trainyard.kubectl.packing import packing
from trainyard.workspace import selection
from trainyard.workspace.archive import Archive, pack


def options(workspace: Path | None, **more: object) -> argparse.Namespace:
    return argparse.Namespace(workspace=None if workspace is None else str(workspace), max_size=512, **more)


@pytest.fixture
def large(tmp_path: Path) -> Path:
    """A directory that is not packed at once."""
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "data").write_bytes(os.urandom(20_000_000))
    return tmp_path / "code"


def test_packing_yields_the_archive_and_removes_it(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("print()\n")
    expected = pack(tmp_path)
    expected.file.unlink()
    with packing(options(tmp_path)) as packed:
        archive = packed()
        assert isinstance(archive, Archive)
        assert (archive.digest, archive.size) == (expected.digest, expected.size)
        assert archive.file.stat().st_size == archive.size
    assert not archive.file.parent.exists()


def test_packing_without_a_workspace_starts_no_process(tmp_path: Path) -> None:
    before = set(multiprocessing.active_children())
    with packing(options(tmp_path / "none", no_workspace=True)) as packed:
        assert set(multiprocessing.active_children()) == before
        assert packed() is None


@pytest.mark.parametrize(("module", "name"), [(tempfile, "mkdtemp"), (os, "fork")])
def test_machine_that_can_not_pack_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: Any, name: str
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OSError(errno.ENOMEM, "Cannot allocate memory")

    monkeypatch.setattr(module, name, fail)
    why = "workspace: can't be packed on this machine: Cannot allocate memory"
    with pytest.raises(PluginError, match=why) as reported, packing(options(tmp_path)):
        pass
    assert reported.value.code == WORKSPACE


def test_a_packing_process_that_is_killed_is_reported(large: Path) -> None:
    before = set(multiprocessing.active_children())
    with packing(options(large)) as packed:
        (process,) = set(multiprocessing.active_children()) - before
        assert process.pid is not None
        os.kill(process.pid, signal.SIGKILL)
        with pytest.raises(PluginError, match="workspace: the process that packs it was killed"):
            packed()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_packing_process_ignores_interrupts(tmp_path: Path, number: int) -> None:
    for each in range(200):
        (tmp_path / f"{each}").write_bytes(os.urandom(1000))
    before = set(multiprocessing.active_children())
    with packing(options(tmp_path)) as packed:
        (process,) = set(multiprocessing.active_children()) - before
        assert process.pid is not None
        os.kill(process.pid, number)
        assert isinstance(packed(), Archive)


def test_packing_of_a_failed_verb_leaves_nothing(
    large: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))
    before = set(multiprocessing.active_children())
    with pytest.raises(PluginError, match="refused"), packing(options(large)):
        raise PluginError(1, "refused")
    assert set(multiprocessing.active_children()) == before
    assert list(scratch.iterdir()) == []


@pytest.mark.parametrize(
    ("home", "what"), [("", "is your home directory"), ("in/it", "is above your home directory")]
)
def test_submit_from_the_home_directory_is_refused(
    code: Path, home: str, what: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HOME", str(code / home))
    words = ("submit", "--queue", "q", "--gpus", "1", "--dry-run")
    assert main([*words, "python train.py"], {}) == 65
    assert f"workspace: {code} {what}. Go to the directory" in capfd.readouterr().err
    assert main([*words, "--workspace", ".", "python train.py"], {}) == 0
    assert main([*words, "--no-workspace", "python train.py"], {}) == 0
    assert main(["sync", "one"], {}) == 65


def test_packing_of_the_root_directory_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir("/")
    with pytest.raises(PluginError, match="workspace: / is the root directory"), packing(options(None)):
        pass


def test_long_search_reports_its_progress(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(selection, "_REPORT_EVERY", 2)
    monkeypatch.setattr(packing_module, "_SEARCH_SECONDS", 0.0)
    for each in range(5):
        (tmp_path / str(each)).write_text("1")
    with packing(options(tmp_path)) as packed:
        assert packed() is not None
    assert capfd.readouterr().err == f"workspace: {tmp_path}: 2 files, 2 B so far\n"
