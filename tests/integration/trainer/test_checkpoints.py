"""Checkpoints in one process: what is saved comes back bit by bit, and nothing that goes wrong stops the training."""

from __future__ import annotations

import json
import multiprocessing
import os
import pickle
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from tests.integration.trainer.checkpoints import (
    copied,
    load,
    network,
    optimizer_of,
    resumed,
    same,
    saver,
    train,
    trained,
)
from tests.integration.trainer.test_stopping import wait_for
from tests.integration.trainer.together import fork_server
from trainer.checkpoint import layout, state
from trainer.checkpoint import save as module
from trainer.checkpoint.load import read
from trainer.checkpoint.owner import Owner
from trainer.checkpoint.write import SaveFailed
from trainer.contract import Exit, TrainerError
from trainer.process import start_of
from trainer.stores import Directory, StoreError

pytestmark = pytest.mark.trainer

NOT_WHOLE = r"all 1 in .* are damaged"


@pytest.fixture(scope="module")
def meeting() -> Iterator[dist.TCPStore]:
    """One process's world."""
    store = dist.TCPStore("127.0.0.1", 0, is_master=True)
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield store
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def group(meeting: dist.TCPStore) -> dist.ProcessGroup:
    return dist.new_group(backend="gloo")


@pytest.fixture
def store(tmp_path: Path) -> Directory:
    return Directory(tmp_path / "checkpoints")


def saved(
    store: Directory, group: dist.ProcessGroup, steps: Iterable[int], **more: object
) -> dict[str, torch.Tensor]:
    """Checkpoints of these steps in the store; returns the last one's tensors."""
    model, optimizer = network(), optimizer_of(network())
    optimizer = optimizer_of(model)
    own = saver(store, group, log_line=lambda _line: None, **more)
    done = 0
    for step in steps:
        train(model, optimizer, done + 1, step)
        done = step
        own.save(state.gather(model, optimizer), step, step * 16)
        assert own.finish()
    own.close()
    return copied(model, optimizer)


@pytest.mark.parametrize("background", ["thread", "process"])
def test_a_run_that_is_resumed_ends_bit_by_bit_as_one_that_was_not(
    store: Directory, group: dist.ProcessGroup, meeting: dist.TCPStore, background: str
) -> None:
    model, optimizer = trained(5)
    said: list[str] = []
    address = ("127.0.0.1", meeting.port) if background == "process" else None
    own = saver(store, group, meeting=address, log_line=said.append)
    own.warm(state.gather(model, optimizer))
    assert own.finish()
    expected = copied(model, optimizer)
    own.save(state.gather(model, optimizer), 5, 80)
    own.staged()
    train(model, optimizer, 6, 9)  # while it is written
    assert own.finish()
    assert (own._process is not None) == (background == "process")
    assert own.counts.last_size_bytes == sum(store.list(f"{layout.name(5)}/").values())
    own.close()

    step, other, its_optimizer = resumed(store, group)
    assert step == 5
    assert same(copied(other, its_optimizer), expected)
    train(other, its_optimizer, 6, 9)
    assert same(copied(other, its_optimizer), copied(model, optimizer))
    assert [line.split(" seconds=")[0] for line in said] == ["checkpoint=saved step=5"]


def test_the_memory_for_copies_is_made_once(store: Directory, group: dist.ProcessGroup) -> None:
    model, optimizer = trained(1)
    own = saver(store, group)
    first = own._stage(state.gather(model, optimizer)).result()
    train(model, optimizer, 2, 2)
    second = own._stage(state.gather(model, optimizer)).result()
    assert [each.data_ptr() for each in first.values()] == [each.data_ptr() for each in second.values()]
    assert same(second, state.gather(model, optimizer))
    own.close()


def test_a_checkpoint_is_tensors_under_plain_names_tied_weights_once() -> None:
    model, optimizer = trained(1)
    names = state.gather(model, optimizer)
    assert {"model.0.weight", "model.1.running_mean", "optimizer.0.weight.exp_avg"} <= names.keys()
    assert "model.3.weight" not in names
    assert names["model.0.weight"].data_ptr() == model[0].weight.data_ptr()  # type: ignore[index, union-attr, operator]


def test_the_names_are_the_same_under_ddp_and_compile(group: dist.ProcessGroup) -> None:
    plain = state.model_tensors(network())
    assert state.model_tensors(DistributedDataParallel(network())).keys() == plain.keys()
    assert state.model_tensors(torch.compile(network())).keys() == plain.keys()  # type: ignore[arg-type]


def test_before_the_first_step_there_is_nothing_to_gather_and_the_optimizer_is_left_alone() -> None:
    model = network()
    optimizer = optimizer_of(model)
    with pytest.raises(ValueError, match="no state before its first step"):
        state.gather(model, optimizer)
    assert not optimizer.state


def test_what_is_no_tensor_is_refused() -> None:
    class Odd(nn.Linear):
        def get_extra_state(self) -> object:
            return {"a": 1}

    with pytest.raises(
        TypeError, match=r"model\._extra_state: a checkpoint can only have tensors, found dict"
    ):
        state.model_tensors(Odd(2, 2))


def test_no_checkpoint_at_all_is_none_and_an_unfinished_one_is_none(
    store: Directory, group: dist.ProcessGroup
) -> None:
    assert load(store, group, network()) is None
    saved(store, group, [3])
    (store.path / "step-000000003" / "manifest.json").unlink()
    assert load(store, group, network()) is None


def data_file(folder: Path) -> Path:
    return max(folder.glob("*.distcp"), key=lambda each: each.stat().st_size)


def flip(file: Path, place: int) -> None:
    body = bytearray(file.read_bytes())
    body[place] ^= 1
    file.write_bytes(body)


def swap(file: Path, was: bytes, becomes: bytes) -> None:
    body = file.read_bytes()
    assert body.count(was) == 1
    file.write_bytes(body.replace(was, becomes))


DAMAGE: dict[str, tuple[Callable[[Path], object], str]] = {
    "truncated": (lambda at: os.truncate(data_file(at), 100), "has 100 bytes, expected"),
    "zero length": (lambda at: os.truncate(data_file(at), 0), "has 0 bytes, expected"),
    "flipped": (lambda at: flip(data_file(at), data_file(at).stat().st_size // 2), "has SHA-256"),
    "missing": (lambda at: data_file(at).unlink(), "is missing"),
    "table flipped": (lambda at: flip(at / ".metadata", 50), ".metadata has SHA-256"),
    "manifest empty": (lambda at: os.truncate(at / "manifest.json", 0), "is not JSON"),
    "manifest torn": (lambda at: os.truncate(at / "manifest.json", 200), "is not JSON"),
    "position flipped": (
        lambda at: swap(at / "manifest.json", b'"position": 96', b'"position": 97'),
        "manifest.json has SHA-256",
    ),
    "digest of the data flipped": (
        lambda at: swap(at / "manifest.json", b'"data_digest": "d', b'"data_digest": "c'),
        "manifest.json has SHA-256",
    ),
    "of another step": (lambda at: at.rename(at.with_name("step-000000099")), "is of step 6"),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_a_damaged_checkpoint_is_named_and_the_one_before_is_loaded(
    store: Directory, group: dist.ProcessGroup, kind: str
) -> None:
    do, told = DAMAGE[kind]
    saved(store, group, [3, 6])
    do(store.path / "step-000000006")
    said: list[str] = []
    found = load(store, group, network(), said)
    assert found is not None
    assert found.manifest.step == 3
    assert len(said) == len(found.damaged) == 1
    assert said[0].startswith(f"checkpoint=damaged step={found.damaged[0]} reason=")
    assert told in said[0]
    step, model, optimizer = resumed(store, group)
    assert step == 3
    assert same(copied(model, optimizer), copied(*trained(3)))


def test_where_all_are_damaged_training_does_not_begin_at_zero(
    store: Directory, group: dist.ProcessGroup
) -> None:
    saved(store, group, [3])
    flip(data_file(store.path / "step-000000003"), 10)
    with pytest.raises(TrainerError, match=NOT_WHOLE) as caught:
        load(store, group, network())
    assert caught.value.code == Exit.CONFIGURATION


def test_a_checkpoint_of_another_model_or_other_data_ends_the_run(
    store: Directory, group: dist.ProcessGroup
) -> None:
    saved(store, group, [3])
    with pytest.raises(
        TrainerError, match=r"of another model: model\.0\.weight: the checkpoint has float32\[8, 8\]"
    ) as one:
        load(store, group, network(width=4))
    with pytest.raises(TrainerError, match=r"of other data: SHA-256 dddd.*, this run's is e") as other:
        load(store, group, network(), data_digest="e")
    assert one.value.code == other.value.code == Exit.CONFIGURATION
    model = network()
    found = load(store, group, model)
    assert found is not None
    with pytest.raises(
        TrainerError, match=r"optimizer\..*exp_avg: the checkpoint has float32.*, the model none"
    ):
        read(found, model, torch.optim.SGD(model.parameters(), momentum=0.9), group)


def test_a_listing_that_fails_ends_the_run_and_does_not_begin_at_zero(
    store: Directory, group: dist.ProcessGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved(store, group, [3])

    def fail(_self: Directory, prefix: str = "") -> dict[str, int]:
        raise StoreError("cannot list s3://b/p: 503")

    monkeypatch.setattr(Directory, "list", fail)
    with pytest.raises(TrainerError, match="checkpoints: cannot list s3://b/p: 503") as caught:
        load(store, group, network())
    assert caught.value.code == Exit.SAVE


def test_a_table_of_contents_that_runs_something_is_refused(
    store: Directory, group: dist.ProcessGroup
) -> None:
    """Also where its hash is the manifest's: whoever can write a file can write both."""

    class Evil:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return os.mkdir, (str(store.path / "harm"),)

    saved(store, group, [3])
    folder = store.path / "step-000000003"
    (folder / ".metadata").write_bytes(pickle.dumps(Evil()))
    model = network()
    said = json.loads((folder / "manifest.json").read_text())
    del said["files"][".metadata"]
    (folder / "manifest.json").write_bytes(layout.sealed(said))
    found = load(store, group, model)
    assert found is not None
    with pytest.raises(TrainerError, match=r"a table of contents does not need posix\.mkdir") as caught:
        read(found, model, optimizer_of(model), group)
    assert caught.value.code == Exit.SAVE
    assert not (store.path / "harm").exists()


def test_old_ones_go_and_so_do_remains(store: Directory, group: dist.ProcessGroup) -> None:
    store.put("step-000000001/0-0.distcp", b"of a save that was killed")
    store.put("step-000000099/0-0.distcp", b"newer than all")
    saved(store, group, [2, 4, 6])
    assert sorted(each.name for each in store.path.iterdir()) == [
        "step-000000004",
        "step-000000006",
        "step-000000099",
    ]


class Undeletable(Directory):
    works = False

    def delete(self, paths: Iterable[str]) -> None:
        paths = list(paths)
        if not self.works and any("step-000000002/" in path for path in paths):
            raise StoreError("cannot delete: 503")
        super().delete(paths)


def test_a_deletion_that_fails_is_reported_and_the_others_go_on(
    tmp_path: Path, group: dist.ProcessGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Undeletable(tmp_path)
    for step in (2, 3):
        store.put(f"{layout.name(step)}/0-0.distcp", b"remains")
    model, optimizer = trained(1)
    said: list[str] = []
    own = saver(store, group, keep=1, log_line=said.append)
    own.save(state.gather(model, optimizer), 4, 0)
    assert own.finish()
    assert sorted(each.name for each in tmp_path.iterdir()) == ["step-000000002", "step-000000004"]
    assert said[1:] == ["checkpoint=kept step=2 reason=cannot delete: 503"]
    monkeypatch.setattr(Undeletable, "works", True)
    own.save(state.gather(model, optimizer), 5, 0)
    assert own.finish()
    assert [each.name for each in tmp_path.iterdir()] == ["step-000000005"]
    own.close()


def test_a_step_whose_remains_are_there_is_written_anew(store: Directory, group: dist.ProcessGroup) -> None:
    saved(store, group, [3])
    flip(data_file(store.path / "step-000000003"), 10)
    store.put("step-000000003/old-0-0.distcp", b"remains")
    expected = saved(store, group, [3], damaged=[3])
    step, model, optimizer = resumed(store, group)
    assert step == 3
    assert same(copied(model, optimizer), expected)
    assert len(store.list("step-000000003/")) == 3  # data, table and manifest of the new one


class Gate(Directory):
    """A store that is slow while `open` is not set."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        object.__setattr__(self, "open", threading.Event())

    def list(self, prefix: str = "") -> dict[str, int]:
        self.open.wait(60)  # type: ignore[attr-defined]
        return super().list(prefix)


def test_while_one_save_is_under_way_another_is_skipped_and_counted(
    tmp_path: Path, group: dist.ProcessGroup
) -> None:
    store = Gate(tmp_path)
    model, optimizer = trained(1)
    said: list[str] = []
    own = saver(store, group, log_line=said.append)
    own.save(state.gather(model, optimizer), 1, 16)
    own.save(state.gather(model, optimizer), 2, 32)
    assert own.counts.skipped == 1
    assert said == ["checkpoint=skipped step=2 reason=the one before is still being written"]
    assert not own.finish(timeout=0.1)
    store.open.set()  # type: ignore[attr-defined]
    assert own.finish()
    assert layout.finished(store.list()) == [1]
    own.save(state.gather(model, optimizer), 1, 16)  # is there already
    assert own.finish()
    assert own.counts.saved == 1
    own.close()


def test_a_save_that_does_not_end_becomes_one_alarm(tmp_path: Path, group: dist.ProcessGroup) -> None:
    store = Gate(tmp_path)
    model, optimizer = trained(1)
    said: list[str] = []
    now = [0.0]
    own = saver(store, group, last_good=0, log_line=said.append, clock=lambda: now[0])
    own.save(state.gather(model, optimizer), 1, 16)
    for step, seconds in ((2, 600.0), (3, 601.0), (4, 900.0)):
        now[0] = seconds
        own.save(state.gather(model, optimizer), step, step * 16)
    assert said == [
        "checkpoint=skipped step=2 reason=the one before is still being written",
        "alarm=checkpoint step=3 last_good_step=0 reason=step 1 in flight for 601 s",
    ]
    assert own.counts.skipped == 3
    assert not own.finish(timeout=0.1)
    assert own.is_busy
    store.open.set()  # type: ignore[attr-defined]
    assert own.finish()
    assert not own.is_busy
    store.open.clear()  # type: ignore[attr-defined]
    own.save(state.gather(model, optimizer), 5, 80)
    now[0] = 1600.0
    own.save(state.gather(model, optimizer), 6, 96)
    assert said[-1].endswith("reason=step 5 in flight for 700 s")  # and anew for another one
    store.open.set()  # type: ignore[attr-defined]
    assert own.finish()
    own.close()


class Full(Directory):
    """A store that has no room for a while."""

    rooms = 0

    def put(self, path: str, body: bytes, *more: object, **named: object) -> None:
        if not type(self).rooms and path.endswith("manifest.json"):
            raise StoreError(f"cannot save {path}: No space left on device")
        super().put(path, body)


def test_a_save_that_fails_is_alarmed_and_tried_again_and_the_old_one_stays(
    tmp_path: Path, group: dist.ProcessGroup
) -> None:
    saved(Directory(tmp_path), group, [1])
    before = Directory(tmp_path).list()
    model, optimizer = trained(2)
    said: list[str] = []
    now = iter(range(0, 100_000, 10))
    own = saver(Full(tmp_path), group, last_good=1, log_line=said.append, clock=lambda: float(next(now)))
    own.save(state.gather(model, optimizer), 2, 32)
    assert not own.finish()
    assert (own.counts.failed, own.counts.last_good_step) == (1, 1)
    age = said[0].partition("last_good_age=")[2].partition("s ")[0]
    assert said == [
        f"alarm=checkpoint step=2 failures=1 last_good_step=1 last_good_age={age}s "
        "reason=process 0: cannot save step-000000002/manifest.json: No space left on device"
    ]
    assert int(age) > 0
    assert Directory(tmp_path).list() == before  # and nothing of the failed one fills the disk
    Full.rooms = 1
    own.save(state.gather(model, optimizer), 2, 32)
    assert own.finish()
    assert layout.finished(Directory(tmp_path).list()) == [2, 1]
    own.close()


def no_room(_state: object) -> object:
    """In place of a copy."""
    raise MemoryError("no room for a copy")


def test_a_copy_that_cannot_be_made_is_a_failed_save(
    store: Directory, group: dist.ProcessGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, optimizer = trained(1)
    said: list[str] = []
    own = saver(store, group, log_line=said.append)

    monkeypatch.setattr(own._stager, "stage", no_room)
    own.save(state.gather(model, optimizer), 1, 16)
    assert not own.finish()
    assert said[0].endswith("reason=process 0: MemoryError: no room for a copy")
    own.close()


def test_memory_for_copies_that_cannot_be_made_is_told_at_once(
    store: Directory, group: dist.ProcessGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, optimizer = trained(1)
    said: list[str] = []
    own = saver(store, group, log_line=said.append)

    with monkeypatch.context() as patched:
        patched.setattr(own._stager, "stage", no_room)
        own.warm(state.gather(model, optimizer))
    assert own.counts.failed == 1
    assert said == [
        "alarm=checkpoint failures=1 last_good_step=none "
        "reason=no memory for copies: process 0: MemoryError: no room for a copy"
    ]
    own.save(state.gather(model, optimizer), 1, 16)
    assert own.finish()
    own.close()


def test_a_background_process_that_cannot_be_started_is_told_with_its_reason(
    store: Directory, group: dist.ProcessGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, optimizer = trained(1)
    said: list[str] = []
    own = saver(store, group, meeting=("127.0.0.1", 1), log_line=said.append)

    def fail() -> None:
        raise SaveFailed("no process for you")

    monkeypatch.setattr(own._process, "start", fail)
    own.warm(state.gather(model, optimizer))
    own.finish()
    assert said == ["alarm=checkpoint failures=1 last_good_step=none reason=no process for you"]
    own.close()


def test_where_the_copies_do_not_fit_into_shared_memory_threads_write(
    store: Directory, group: dist.ProcessGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, optimizer = trained(1)
    tensors = state.gather(model, optimizer)
    needed = 8 * 4096 * len(tensors)  # each smaller than a page
    for free, by_process in ((needed, True), (needed - 1, False)):
        monkeypatch.setattr(module, "free_shared_memory", lambda free=free: free)
        said: list[str] = []
        own = saver(store, group, meeting=("127.0.0.1", 1), local_size=8, log_line=said.append)
        own._check_shared(tensors)
        assert (own._process is not None) == own._stager._config.use_shared_memory == by_process
    own.save(tensors, 1, 16)
    assert own.finish()
    assert [line.split()[0] for line in said] == ["checkpoint=threads", "checkpoint=saved"]
    assert said[0].startswith("checkpoint=threads reason=/dev/shm has ")
    own.close()


def test_who_was_taken_over_finishes_nothing_and_then_saves_no_more(
    store: Directory, group: dist.ProcessGroup
) -> None:
    said: list[str] = []
    owner = Owner(store, "same", "r1", log_line=said.append)
    owner.claim()
    model, optimizer = trained(1)
    own = saver(store, group, owner=owner, log_line=said.append)
    own.save(state.gather(model, optimizer), 1, 16)
    assert own.finish()
    Owner(store, "same", "r1").claim()
    assert not own.counts.owner_lost  # nobody has looked yet
    own.save(state.gather(model, optimizer), 2, 32)
    assert not own.finish()
    assert said[-1].endswith(f"reason=process 0: cannot save {store.path}/step-000000002: it was taken over")
    owner.renew()
    own.save(state.gather(model, optimizer), 3, 48)
    assert not own.finish()
    assert (own.counts.skipped, own.counts.owner_lost) == (1, True)
    assert layout.finished(store.list()) == [1]
    own.close()


def test_the_background_process_outlives_the_signals_that_stop_a_worker(
    store: Directory, group: dist.ProcessGroup, meeting: dist.TCPStore
) -> None:
    model, optimizer = trained(1)
    own = saver(store, group, meeting=("127.0.0.1", meeting.port))
    own.warm(state.gather(model, optimizer))
    assert own.finish()
    assert own._process is not None
    process = own._process._process
    for number in (signal.SIGTERM, signal.SIGINT):
        os.kill(process.pid, number)
    own.save(state.gather(model, optimizer), 1, 16)
    assert own.finish()
    own.close()
    process.join(20)
    assert process.exitcode == 0


def save_and_report(path: Path, report: Any) -> None:
    """One save by a background process, whose id is reported; then wait."""
    meeting = dist.TCPStore("127.0.0.1", 0, is_master=True)
    dist.init_process_group("gloo", store=meeting, rank=0, world_size=1)
    model, optimizer = trained(1)
    own = saver(Directory(path), dist.new_group(backend="gloo"), meeting=("127.0.0.1", meeting.port))
    own.save(state.gather(model, optimizer), 1, 16)
    assert own.finish()
    assert own._process is not None
    assert own._process._process is not None
    report.send(own._process._process.pid)
    time.sleep(600)


def test_background_process_ends_with_killed_trainer(tmp_path: Path) -> None:
    reports, report = multiprocessing.Pipe(duplex=False)
    trainer = fork_server().Process(target=save_and_report, args=(tmp_path, report))
    trainer.start()
    pid = reports.recv()
    assert start_of(pid) is not None
    trainer.kill()
    trainer.join()
    wait_for(lambda: start_of(pid) is None)


def test_where_the_background_process_is_gone_a_thread_writes_on(
    store: Directory, group: dist.ProcessGroup, meeting: dist.TCPStore
) -> None:
    model, optimizer = trained(1)
    said: list[str] = []
    own = saver(store, group, meeting=("127.0.0.1", meeting.port), log_line=said.append)
    own.warm(state.gather(model, optimizer))
    assert own.finish()
    assert own._process is not None
    own._process._process.kill()
    own._process._process.join(20)
    own.save(state.gather(model, optimizer), 1, 16)
    assert own.finish()
    assert said[0] == "alarm=checkpoint reason=a background process is gone; threads write from now on"
    own.save(state.gather(model, optimizer), 2, 32)
    assert own.finish()
    assert layout.finished(store.list()) == [2, 1]
    own.close()


def test_a_process_that_is_killed_while_it_writes_is_a_failed_save(
    tmp_path: Path, group: dist.ProcessGroup, meeting: dist.TCPStore
) -> None:
    model, optimizer = trained(1)
    said: list[str] = []
    store = Directory(tmp_path)
    own = saver(store, group, meeting=("127.0.0.1", meeting.port), log_line=said.append)
    own.warm(state.gather(model, optimizer))
    assert own.finish()
    assert own._process is not None
    process = own._process._process
    os.kill(process.pid, signal.SIGSTOP)
    own.save(state.gather(model, optimizer), 1, 16)
    time.sleep(0.2)
    os.kill(process.pid, signal.SIGKILL)
    assert not own.finish()
    assert said[0].endswith("reason=the background process is gone (exit code -9)")
    own.save(state.gather(model, optimizer), 1, 16)
    assert own.finish()
    own.close()
