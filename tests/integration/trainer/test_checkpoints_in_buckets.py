"""Checkpoints in a failing S3: training continues, and a resume never starts from zero because S3 does not answer."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

from tests.integration.trainer.checkpoints import (
    copy_tensors,
    create_saver,
    create_trained_model,
    load,
    network,
    resume,
)
from tests.integration.trainer.s3_proxy import Fault, S3Proxy
from tests.integration.trainer.trained import are_tensors_equal
from trainer import stores as module
from trainer.checkpoint import layout, state
from trainer.contract import Exit, TrainerError
from trainer.process import Process
from trainer.scratch import clear, find_abandoned
from trainer.stores import Bucket

pytestmark = pytest.mark.trainer

BUCKET = "of-checkpoints"


@pytest.fixture(autouse=True)
def limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ATTEMPTS", 2)


@pytest.fixture
def store(proxy: S3Proxy, tmp_path: Path) -> Bucket:
    return Bucket("of-checkpoints", tmp_path.name)


def test_checkpoint_in_s3_is_saved_manifest_last_and_restored(
    store: Bucket, proxy: S3Proxy, group: dist.ProcessGroup, tmp_path: Path
) -> None:
    model, optimizer = create_trained_model(3)
    saver = create_saver(store, group, scratch=tmp_path, keep=1)
    for step in (2, 3):
        saver.save(state.gather(model, optimizer), step, step * 16)
        assert saver.finish()
    saver.close()
    puts = [each for each in proxy.seen if each.startswith("PUT") and "step-000000003" in each]
    assert puts[-1].endswith("manifest.json")
    assert len(puts) == 3
    assert layout.finished(store.list()) == [3]  # the older one is deleted
    assert list(tmp_path.iterdir()) == []  # no local files remain
    step, other, its_optimizer = resume(store, group)
    assert step == 3
    assert are_tensors_equal(copy_tensors(other, its_optimizer), copy_tensors(model, optimizer))


def test_process_killed_in_an_upload_leaves_no_local_files(
    store: Bucket, proxy: S3Proxy, group: dist.ProcessGroup, tmp_path: Path
) -> None:
    tcp_store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    model, optimizer = create_trained_model(1)
    lines: list[str] = []
    saver = create_saver(
        store,
        group,
        store_address=("127.0.0.1", tcp_store.port),
        scratch=tmp_path,
        log_line=lines.append,
    )
    saver.allocate(state.gather(model, optimizer))
    assert saver.finish()
    assert saver._process is not None
    process = saver._process._process
    proxy.faults.append(Fault("PUT .*distcp", times=99, delay=60))
    saver.save(state.gather(model, optimizer), 1, 16)
    while not list(tmp_path.glob("*/step-000000001/*.distcp")) or not proxy.count("PUT .*distcp"):
        assert not saver.counts.failed
        time.sleep(0.05)
    (waiting,) = tmp_path.iterdir()
    assert f"-{process.pid}-" in waiting.name  # the background process owns it
    assert clear(tmp_path) == []
    process.kill()
    assert not saver.finish()
    assert lines[-1].endswith("reason=the background process is gone (exit code -9)")
    assert list(tmp_path.iterdir()) == []
    saver.close()


@pytest.mark.parametrize(
    ("on", "status", "code"),
    [
        ("PUT .*distcp", 503, "SlowDown"),
        ("PUT .*manifest", 400, "ExpiredToken"),
        ("GET .*list-type", 403, "AccessDenied"),
    ],
)
def test_save_refused_by_s3_raises_an_alarm_and_the_next_works(
    store: Bucket, proxy: S3Proxy, group: dist.ProcessGroup, tmp_path: Path, on: str, status: int, code: str
) -> None:
    model, optimizer = create_trained_model(1)
    lines: list[str] = []
    saver = create_saver(store, group, scratch=tmp_path, log_line=lines.append)
    fault = Fault(on, times=99, status=status, code=code)
    proxy.faults.append(fault)
    saver.save(state.gather(model, optimizer), 1, 16)
    assert not saver.finish()
    assert lines[0].startswith("alarm=checkpoint step=1 failures=1 last_good_step=none")
    assert code in lines[0]
    assert "\n" not in lines[0]
    fault.times = 0
    assert not [path for path in store.list() if path.endswith("manifest.json")]
    saver.save(state.gather(model, optimizer), 2, 32)
    assert saver.finish()
    assert layout.finished(store.list()) == [2]
    assert list(tmp_path.iterdir()) == []
    saver.close()


def test_resume_without_an_answer_of_s3_fails(
    store: Bucket, proxy: S3Proxy, group: dist.ProcessGroup, tmp_path: Path
) -> None:
    model, optimizer = create_trained_model(1)
    saver = create_saver(store, group, scratch=tmp_path)
    saver.save(state.gather(model, optimizer), 1, 16)
    assert saver.finish()
    saver.close()
    for on, status, code in (
        ("GET .*list-type", 503, "SlowDown"),
        ("GET .*list-type", 400, "ExpiredToken"),
        ("GET .*manifest", 403, "AccessDenied"),
        ("GET .*distcp", 503, "SlowDown"),
    ):
        fault = Fault(on, times=99, status=status, code=code)
        proxy.faults.append(fault)
        with pytest.raises(
            TrainerError, match=f"checkpoints: cannot .* s3://of-checkpoints/.*{code}"
        ) as caught:
            load(store, group, network(), scratch=tmp_path)
        assert caught.value.code == Exit.SAVE
        fault.times = 0
        assert list(tmp_path.iterdir()) == []
    found = load(store, group, network(), scratch=tmp_path)
    assert found is not None
    assert found.manifest.step == 1


def test_load_skips_damaged_and_missing_objects(
    store: Bucket, s3: Any, group: dist.ProcessGroup, tmp_path: Path
) -> None:
    model, optimizer = create_trained_model(1)
    saver = create_saver(store, group, scratch=tmp_path, keep=3)
    for step in (1, 2, 3):
        saver.save(state.gather(model, optimizer), step, step * 16)
        assert saver.finish()
    saver.close()
    paths = store.list()
    (third,) = [path for path in paths if path.startswith("step-000000003/") and path.endswith(".distcp")]
    (second,) = [path for path in paths if path.startswith("step-000000002/") and path.endswith(".distcp")]
    body = bytearray(store.read(third))
    body[100] ^= 1
    store.put(third, bytes(body))
    store.delete([second])
    lines: list[str] = []
    found = load(store, group, network(), lines, scratch=tmp_path)
    assert found is not None
    assert (found.manifest.step, found.damaged) == (1, (3, 2))
    assert "has SHA-256" in lines[0]
    assert "is missing" in lines[1]
    (copy,) = tmp_path.iterdir()
    assert copy == found.directory.parent
    assert find_abandoned([copy.name], Process.own(), lambda _pid: None) == [
        copy.name
    ]  # after this process has exited
    found.forget()
    assert list(tmp_path.iterdir()) == []
