"""The workspace is packed in a process of its own, which is gone with its file when the verb is over."""

from __future__ import annotations

import argparse
import multiprocessing
import os
import signal
import tempfile
from pathlib import Path

import pytest

from trainyard.kubectl import packing as packing_module
from trainyard.kubectl.__main__ import main
from trainyard.kubectl.output import WORKSPACE, PluginError
from trainyard.kubectl.packing import packing
from trainyard.workspace import selection
from trainyard.workspace.archive import Archive, pack

pytestmark = pytest.mark.unit


def options(workspace: Path, **more: object) -> argparse.Namespace:
    return argparse.Namespace(workspace=str(workspace), max_size=512, **more)


def test_it_is_the_archive_of_the_directory_and_gone_afterwards(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("print()\n")
    expected = pack(tmp_path)
    expected.file.unlink()
    with packing(options(tmp_path)) as packed:
        archive = packed()
        assert isinstance(archive, Archive)
        assert (archive.digest, archive.size) == (expected.digest, expected.size)
        assert archive.file.stat().st_size == archive.size
    assert not archive.file.parent.exists()


def test_invalid_directory_raises_when_the_archive_is_requested(tmp_path: Path) -> None:
    with (
        packing(options(tmp_path / "none")) as packed,
        pytest.raises(PluginError, match=r"workspace: .*none does not exist") as reported,
    ):
        packed()
    assert reported.value.code == WORKSPACE


def test_nothing_is_packed_where_nothing_is_sent(tmp_path: Path) -> None:
    before = set(multiprocessing.active_children())
    with packing(options(tmp_path / "none", no_workspace=True)) as packed:
        assert set(multiprocessing.active_children()) == before
        assert packed() is None


def test_a_packing_process_that_is_killed_is_reported(tmp_path: Path) -> None:
    (tmp_path / "data").write_bytes(os.urandom(20_000_000))
    before = set(multiprocessing.active_children())
    with packing(options(tmp_path)) as packed:
        (process,) = set(multiprocessing.active_children()) - before
        assert process.pid is not None
        os.kill(process.pid, signal.SIGKILL)
        with pytest.raises(PluginError, match="workspace: the process that packs it was killed"):
            packed()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_what_interrupts_both_is_for_the_one_that_waits(tmp_path: Path, number: int) -> None:
    for each in range(200):
        (tmp_path / f"{each}").write_bytes(os.urandom(1000))
    before = set(multiprocessing.active_children())
    with packing(options(tmp_path)) as packed:
        (process,) = set(multiprocessing.active_children()) - before
        assert process.pid is not None
        os.kill(process.pid, number)
        assert isinstance(packed(), Archive)


def test_a_verb_that_fails_leaves_neither_process_nor_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code, scratch = tmp_path / "code", tmp_path / "scratch"
    code.mkdir()
    scratch.mkdir()
    (code / "data").write_bytes(os.urandom(20_000_000))
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))
    before = set(multiprocessing.active_children())

    def fail() -> None:
        with packing(options(code)):
            assert len(set(multiprocessing.active_children()) - before) == 1
            raise PluginError(1, "refused")

    with pytest.raises(PluginError, match="refused"):
        fail()
    assert set(multiprocessing.active_children()) == before
    assert list(scratch.iterdir()) == []


@pytest.mark.parametrize(
    ("home", "what"), [("", "is your home directory"), ("in/it", "is above your home directory")]
)
def test_a_home_directory_is_not_sent_by_mistake(
    code: Path, home: str, what: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HOME", str(code / home))
    words = ("submit", "--queue", "q", "--gpus", "1", "--dry-run")
    assert main([*words, "python train.py"], {}) == 65
    assert f"workspace: {code} {what}. Go to the directory" in capfd.readouterr().err
    assert main([*words, "--workspace", ".", "python train.py"], {}) == 0
    assert main([*words, "--no-workspace", "python train.py"], {}) == 0
    assert main(["sync", "one"], {}) == 65


def test_a_root_directory_is_not_sent_by_mistake(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir("/")
    with pytest.raises(PluginError, match="workspace: / is the root directory"), packing(options(Path())):
        pass


def test_a_long_search_says_how_far_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(selection, "_REPORT_EVERY", 2)
    monkeypatch.setattr(packing_module, "_SEARCH_SECONDS", 0.0)
    for each in range(5):
        (tmp_path / str(each)).write_text("1")
    with packing(options(tmp_path)) as packed:
        assert packed() is not None
    assert capfd.readouterr().err == f"workspace: {tmp_path}: 2 files, 2 B so far\n"
