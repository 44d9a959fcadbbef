"""Checkpoints in S3 on its bad days: training goes on, and a resume never begins at zero because S3 said nothing."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

from tests.integration.trainer.checkpoints import copied, load, network, resumed, same, saver, trained
from tests.integration.trainer.s3_proxy import KEYS, Fault, S3Proxy, emulated
from trainer import stores as module
from trainer.checkpoint import layout, state
from trainer.contract import Exit, TrainerError
from trainer.process import Process
from trainer.scratch import clear, find_abandoned
from trainer.stores import Bucket

pytestmark = pytest.mark.trainer


@pytest.fixture(scope="module")
def s3() -> Iterator[Any]:
    with emulated("of-checkpoints") as client:
        yield client


@pytest.fixture
def proxy(s3: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Proxy]:
    monkeypatch.setattr(module, "ATTEMPTS", 2)
    with S3Proxy(s3.meta.endpoint_url) as proxy:
        for name, value in {**KEYS, "AWS_ENDPOINT_URL": proxy.url}.items():
            monkeypatch.setenv(name, value)
        yield proxy


@pytest.fixture
def store(proxy: S3Proxy, tmp_path: Path) -> Bucket:
    return Bucket("of-checkpoints", tmp_path.name)


def test_a_checkpoint_goes_to_s3_manifest_last_and_comes_back_bit_by_bit(
    store: Bucket, proxy: S3Proxy, group: dist.ProcessGroup, tmp_path: Path
) -> None:
    model, optimizer = trained(3)
    own = saver(store, group, scratch=tmp_path, keep=1)
    for step in (2, 3):
        own.save(state.gather(model, optimizer), step, step * 16)
        assert own.finish()
    own.close()
    puts = [each for each in proxy.seen if each.startswith("PUT") and "step-000000003" in each]
    assert puts[-1].endswith("manifest.json")
    assert len(puts) == 3
    assert layout.finished(store.list()) == [3]  # and the older one is gone
    assert list(tmp_path.iterdir()) == []  # nothing stays on this machine
    step, other, its_optimizer = resumed(store, group)
    assert step == 3
    assert same(copied(other, its_optimizer), copied(model, optimizer))


def test_a_process_that_is_killed_while_it_sends_leaves_nothing_on_this_machine(
    store: Bucket, proxy: S3Proxy, group: dist.ProcessGroup, tmp_path: Path
) -> None:
    meeting = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    model, optimizer = trained(1)
    said: list[str] = []
    own = saver(
        store,
        group,
        meeting=("127.0.0.1", meeting.port),
        scratch=tmp_path,
        log_line=said.append,
    )
    own.warm(state.gather(model, optimizer))
    assert own.finish()
    assert own._process is not None
    process = own._process._process
    proxy.faults.append(Fault("PUT .*distcp", times=99, delay=60))
    own.save(state.gather(model, optimizer), 1, 16)
    while not list(tmp_path.glob("*/step-000000001/*.distcp")) or not proxy.count("PUT .*distcp"):
        assert not own.counts.failed
        time.sleep(0.05)
    (waiting,) = tmp_path.iterdir()
    assert f"-{process.pid}-" in waiting.name  # it is the background's, not this process's
    assert clear(tmp_path) == []
    process.kill()
    assert not own.finish()
    assert said[-1].endswith("reason=the background process is gone (exit code -9)")
    assert list(tmp_path.iterdir()) == []
    own.close()


@pytest.mark.parametrize(
    ("on", "status", "code"),
    [
        ("PUT .*distcp", 503, "SlowDown"),
        ("PUT .*manifest", 400, "ExpiredToken"),
        ("GET .*list-type", 403, "AccessDenied"),
    ],
)
def test_a_save_that_s3_refuses_is_alarmed_and_the_next_one_works(
    store: Bucket, proxy: S3Proxy, group: dist.ProcessGroup, tmp_path: Path, on: str, status: int, code: str
) -> None:
    model, optimizer = trained(1)
    said: list[str] = []
    own = saver(store, group, scratch=tmp_path, log_line=said.append)
    fault = Fault(on, times=99, status=status, code=code)
    proxy.faults.append(fault)
    own.save(state.gather(model, optimizer), 1, 16)
    assert not own.finish()
    assert said[0].startswith("alarm=checkpoint step=1 failures=1 last_good_step=none")
    assert code in said[0]
    assert "\n" not in said[0]
    fault.times = 0
    assert not [path for path in store.list() if path.endswith("manifest.json")]
    own.save(state.gather(model, optimizer), 2, 32)
    assert own.finish()
    assert layout.finished(store.list()) == [2]
    assert list(tmp_path.iterdir()) == []
    own.close()


def test_a_resume_for_which_s3_has_no_answer_is_no_start_from_zero(
    store: Bucket, proxy: S3Proxy, group: dist.ProcessGroup, tmp_path: Path
) -> None:
    model, optimizer = trained(1)
    own = saver(store, group, scratch=tmp_path)
    own.save(state.gather(model, optimizer), 1, 16)
    assert own.finish()
    own.close()
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


def test_an_object_that_is_damaged_or_gone_is_passed_over(
    store: Bucket, s3: Any, group: dist.ProcessGroup, tmp_path: Path
) -> None:
    model, optimizer = trained(1)
    own = saver(store, group, scratch=tmp_path, keep=3)
    for step in (1, 2, 3):
        own.save(state.gather(model, optimizer), step, step * 16)
        assert own.finish()
    own.close()
    paths = store.list()
    (third,) = [path for path in paths if path.startswith("step-000000003/") and path.endswith(".distcp")]
    (second,) = [path for path in paths if path.startswith("step-000000002/") and path.endswith(".distcp")]
    body = bytearray(store.read(third))
    body[100] ^= 1
    store.put(third, bytes(body))
    store.delete([second])
    said: list[str] = []
    found = load(store, group, network(), said, scratch=tmp_path)
    assert found is not None
    assert (found.manifest.step, found.damaged) == (1, (3, 2))
    assert "has SHA-256" in said[0]
    assert "is missing" in said[1]
    (copy,) = tmp_path.iterdir()
    assert copy == found.directory.parent
    assert find_abandoned([copy.name], Process.own(), lambda _pid: None) == [
        copy.name
    ]  # once this process is gone
    found.forget()
    assert list(tmp_path.iterdir()) == []
