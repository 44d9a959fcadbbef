"""Checkpoints in one process: what is saved comes back bit by bit, and nothing that goes wrong stops the training."""

from __future__ import annotations

import errno
import io
import itertools
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
    copy_tensors,
    create_found,
    create_optimizer,
    create_saver,
    create_trained_model,
    load,
    network,
    resume,
    train,
)
from tests.integration.trainer.test_stopping import wait_for
from tests.integration.trainer.together import fork_server
from tests.integration.trainer.trained import are_tensors_equal
from trainer.checkpoint import layout, state
from trainer.checkpoint import save as module
from trainer.checkpoint.load import read
from trainer.checkpoint.owner import Owner
from trainer.checkpoint.save import Saver
from trainer.checkpoint.write import SaveFailed
from trainer.contract import Exit, SharedError, TrainerError
from trainer.metrics.record import Checkpoint, Record
from trainer.process import start_of
from trainer.stores import Directory, StoreError

pytestmark = pytest.mark.trainer

NOT_WHOLE = r"all 1 in .* are damaged"


@pytest.fixture(scope="module")
def tcp_store() -> Iterator[dist.TCPStore]:
    """The store of a world of one process."""
    store = dist.TCPStore("127.0.0.1", 0, is_master=True)
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield store
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def group(tcp_store: dist.TCPStore) -> dist.ProcessGroup:
    return dist.new_group(backend="gloo")


@pytest.fixture
def store(tmp_path: Path) -> Directory:
    return Directory(tmp_path / "checkpoints")


class Savers:
    """Create savers. `lines` is their log, `tensors` are those of a model after one step."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        self._group, self._savers = group, list[Saver]()
        self.lines: list[str] = []
        self.tensors = state.gather(*create_trained_model(1))

    def new(self, store: Directory, **more: Any) -> Saver:
        self._savers.append(create_saver(store, self._group, log_line=self.lines.append, **more))
        return self._savers[-1]

    def close(self) -> None:
        for saver in self._savers:
            saver.close()


@pytest.fixture
def savers(group: dist.ProcessGroup) -> Iterator[Savers]:
    found = Savers(group)
    yield found
    found.close()


def save_steps(
    store: Directory, group: dist.ProcessGroup, steps: Iterable[int], **more: object
) -> dict[str, torch.Tensor]:
    """Save checkpoints of these steps; return the last one's tensors."""
    model = network()
    optimizer = create_optimizer(model)
    saver = create_saver(store, group, log_line=lambda _line: None, **more)
    done = 0
    for step in steps:
        train(model, optimizer, done + 1, step)
        done = step
        saver.save(state.gather(model, optimizer), step, step * 16)
        assert saver.finish()
    saver.close()
    return copy_tensors(model, optimizer)


@pytest.mark.parametrize("background", ["thread", "process"])
def test_resumed_run_ends_bitwise_as_uninterrupted(
    store: Directory, group: dist.ProcessGroup, tcp_store: dist.TCPStore, background: str, savers: Savers
) -> None:
    model, optimizer = create_trained_model(5)
    address = ("127.0.0.1", tcp_store.port) if background == "process" else None
    saver = savers.new(store, store_address=address)
    sizes: list[int] = []
    saver.report = lambda _kind, **values: sizes.append(values["size_bytes"])
    saver.allocate(state.gather(model, optimizer))
    assert saver.finish()
    expected = copy_tensors(model, optimizer)
    saver.save(state.gather(model, optimizer), 5, 80)
    saver.staged()
    train(model, optimizer, 6, 9)  # during the write
    assert saver.finish()
    assert (saver._process is not None) == (background == "process")
    assert sizes == [sum(store.list(f"{layout.name(5)}/").values())]
    saver.close()

    step, other, its_optimizer = resume(store, group)
    assert step == 5
    assert are_tensors_equal(copy_tensors(other, its_optimizer), expected)
    train(other, its_optimizer, 6, 9)
    assert are_tensors_equal(copy_tensors(other, its_optimizer), copy_tensors(model, optimizer))
    assert [line.split(" seconds=")[0] for line in savers.lines] == ["checkpoint=saved step=5"]


def test_stager_allocates_its_memory_once(store: Directory, savers: Savers) -> None:
    model, optimizer = create_trained_model(1)
    saver = savers.new(store)
    first = saver._stage(state.gather(model, optimizer)).result()
    train(model, optimizer, 2, 2)
    second = saver._stage(state.gather(model, optimizer)).result()
    assert [each.data_ptr() for each in first.values()] == [each.data_ptr() for each in second.values()]
    assert are_tensors_equal(second, state.gather(model, optimizer))


def test_checkpoint_has_plain_names_and_tied_weights_once() -> None:
    model, optimizer = create_trained_model(1)
    names = state.gather(model, optimizer)
    assert {"model.0.weight", "model.1.running_mean", "optimizer.0.weight.exp_avg"} <= names.keys()
    assert "model.3.weight" not in names
    assert names["model.0.weight"].data_ptr() == model[0].weight.data_ptr()  # type: ignore[index, union-attr, operator]


def test_names_under_ddp_and_compile_are_the_plain_ones(group: dist.ProcessGroup) -> None:
    plain = state.model_tensors(network())
    assert state.model_tensors(DistributedDataParallel(network())).keys() == plain.keys()
    assert state.model_tensors(torch.compile(network())).keys() == plain.keys()  # type: ignore[arg-type]


class Unused(nn.Module):
    """A model whose second layer gets a gradient only if `is_used`."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second, self.is_used = nn.Linear(8, 8), nn.Linear(8, 8), False

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        outputs: torch.Tensor = self.first(inputs)
        return self.second(outputs) if self.is_used else outputs


@pytest.mark.parametrize("saves_all", [True, False], ids=["all saved", "learning ones saved"])
@pytest.mark.parametrize("steps", [0, 3])
def test_parameter_without_gradient_resumes_bitwise(
    store: Directory,
    group: dist.ProcessGroup,
    monkeypatch: pytest.MonkeyPatch,
    saves_all: bool,
    steps: int,
    savers: Savers,
) -> None:
    model = Unused()
    optimizer = create_optimizer(model)
    train(model, optimizer, 1, steps)
    saver = savers.new(store)
    with monkeypatch.context() as patch:
        if not saves_all:
            patch.setattr(state, "_initialize", lambda _optimizer: None)
        tensors = state.gather(model, optimizer) if steps or saves_all else state.model_tensors(model)
        saver.save(tensors, steps, 0)
        assert saver.finish()
    saver.close()
    assert any(name.startswith("optimizer.second.") for name in tensors) == saves_all

    other = Unused()
    its_optimizer = create_optimizer(other)
    found = load(store, group, other)
    assert found is not None
    read(found, other, its_optimizer, group)
    never_saved = Unused()
    plain = create_optimizer(never_saved)
    train(never_saved, plain, 1, steps)
    for each, its in ((model, optimizer), (other, its_optimizer), (never_saved, plain)):
        train(each, its, steps + 1, steps + 2)
        each.is_used = True  # its state must begin at this step
        train(each, its, steps + 3, steps + 4)
    expected = copy_tensors(never_saved, plain)
    assert are_tensors_equal(copy_tensors(model, optimizer), expected)
    assert are_tensors_equal(copy_tensors(other, its_optimizer), expected)


def test_load_without_finished_checkpoint_returns_none(store: Directory, group: dist.ProcessGroup) -> None:
    assert load(store, group, network()) is None
    save_steps(store, group, [3])
    (store.path / "step-000000003" / "manifest.json").unlink()
    assert load(store, group, network()) is None


def data_file(folder: Path) -> Path:
    return max(folder.glob("*.distcp"), key=lambda each: each.stat().st_size)


def flip(file: Path, place: int) -> None:
    body = bytearray(file.read_bytes())
    body[place] ^= 1
    file.write_bytes(body)


DAMAGE: dict[str, tuple[Callable[[Path], object], str]] = {
    "truncated": (lambda at: os.truncate(data_file(at), 100), "has 100 bytes, expected"),
    "flipped": (lambda at: flip(data_file(at), data_file(at).stat().st_size // 2), "has SHA-256"),
    "missing": (lambda at: data_file(at).unlink(), "is missing"),
    "metadata flipped": (lambda at: flip(at / ".metadata", 50), ".metadata has SHA-256"),
    "manifest torn": (lambda at: os.truncate(at / "manifest.json", 200), "is not JSON"),
    "of another step": (lambda at: at.rename(at.with_name("step-000000099")), "is of step 6"),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_damaged_checkpoint_is_logged_and_the_older_one_loaded(
    store: Directory, group: dist.ProcessGroup, kind: str
) -> None:
    damage, reason = DAMAGE[kind]
    save_steps(store, group, [3, 6])
    damage(store.path / "step-000000006")
    lines: list[str] = []
    found = load(store, group, network(), lines)
    assert found is not None
    assert found.manifest.step == 3
    assert len(lines) == len(found.damaged) == 1
    assert lines[0].startswith(f"checkpoint=damaged step={found.damaged[0]} reason=")
    assert reason in lines[0]
    step, model, optimizer = resume(store, group)
    assert step == 3
    assert are_tensors_equal(copy_tensors(model, optimizer), copy_tensors(*create_trained_model(3)))


def break_reads(monkeypatch: pytest.MonkeyPatch, *files: str) -> None:
    """Let the disk fail for each file whose path ends with one of `files`."""
    opened = io.open

    def fail(file: Any, *arguments: Any, **options: Any) -> Any:
        if str(file).endswith(files):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return opened(file, *arguments, **options)

    monkeypatch.setattr(io, "open", fail)  # of pathlib


@pytest.mark.parametrize("file", [".distcp", ".metadata", "manifest.json"])
def test_unreadable_newest_checkpoint_is_skipped(
    store: Directory, group: dist.ProcessGroup, monkeypatch: pytest.MonkeyPatch, file: str
) -> None:
    save_steps(store, group, [3, 6])
    (name,) = (each for each in store.list("step-000000006/") if each.endswith(file))
    break_reads(monkeypatch, name)
    lines: list[str] = []
    found = load(store, group, network(), lines)
    assert found is not None
    assert (found.manifest.step, found.damaged) == (3, (6,))
    assert lines == [
        f"checkpoint=unreadable step=6 reason=cannot read {store.path}/{name}: {os.strerror(errno.EIO)}"
    ]


@pytest.mark.parametrize("others", ["unreadable", "damaged"])
def test_load_with_an_unreadable_checkpoint_only_is_retried(
    store: Directory, group: dist.ProcessGroup, monkeypatch: pytest.MonkeyPatch, others: str
) -> None:
    """The advice to remove checkpoints would destroy those that the disk can read a moment later."""
    save_steps(store, group, [3, 6])
    if others == "damaged":
        flip(data_file(store.path / "step-000000003"), 10)
        break_reads(monkeypatch, "step-000000006/manifest.json")
    else:
        break_reads(monkeypatch, ".distcp")
    with pytest.raises(TrainerError, match=r"none of the 2 in .* can be loaded: cannot read ") as caught:
        load(store, group, network())
    assert caught.value.code == Exit.SAVE
    assert "remove" not in str(caught.value)


def test_load_with_all_checkpoints_damaged_fails(store: Directory, group: dist.ProcessGroup) -> None:
    save_steps(store, group, [3])
    flip(data_file(store.path / "step-000000003"), 10)
    with pytest.raises(TrainerError, match=NOT_WHOLE) as caught:
        load(store, group, network())
    assert caught.value.code == Exit.CONFIGURATION


def test_checkpoint_of_another_model_or_other_data_fails(store: Directory, group: dist.ProcessGroup) -> None:
    save_steps(store, group, [3])
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


def test_load_with_a_failed_listing_fails(
    store: Directory, group: dist.ProcessGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_steps(store, group, [3])

    def fail(_self: Directory, prefix: str = "") -> dict[str, int]:
        raise StoreError("cannot list s3://b/p: 503")

    monkeypatch.setattr(Directory, "list", fail)
    with pytest.raises(TrainerError, match="checkpoints: cannot list s3://b/p: 503") as caught:
        load(store, group, network())
    assert caught.value.code == Exit.SAVE


def test_load_from_a_linked_step_folder_is_a_mistake(store: Directory, group: dist.ProcessGroup) -> None:
    save_steps(store, group, [3])
    folder = store.path / "step-000000003"
    folder.rename(store.path / "elsewhere")
    folder.symlink_to(store.path / "elsewhere")
    with pytest.raises(TrainerError, match=f"cannot list {folder}: it is a link; it must be") as caught:
        load(store, group, network())
    assert caught.value.code == Exit.CONFIGURATION


def test_metadata_that_runs_code_is_refused(store: Directory, group: dist.ProcessGroup) -> None:
    """The manifest's hash does not help: an attacker who can write a file can write both."""

    class Evil:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return os.mkdir, (str(store.path / "harm"),)

    save_steps(store, group, [3])
    folder = store.path / "step-000000003"
    (folder / ".metadata").write_bytes(pickle.dumps(Evil()))
    model = network()
    manifest = json.loads((folder / "manifest.json").read_text())
    del manifest["files"][".metadata"]
    (folder / "manifest.json").write_bytes(layout.sealed(manifest))
    found = load(store, group, model)
    assert found is not None
    with pytest.raises(TrainerError, match=r"the metadata contains posix\.mkdir; it must") as caught:
        read(found, model, create_optimizer(model), group)
    assert caught.value.code == Exit.SAVE
    assert not (store.path / "harm").exists()


def test_save_deletes_old_checkpoints_and_partial_files(store: Directory, group: dist.ProcessGroup) -> None:
    store.put("step-000000001/0-0.distcp", b"of a save that was killed")
    store.put("step-000000099/0-0.distcp", b"newer than all")
    save_steps(store, group, [2, 4, 6])
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


def test_failed_deletion_is_reported_and_others_continue(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, savers: Savers
) -> None:
    store = Undeletable(tmp_path)
    for step in (2, 3):
        store.put(f"{layout.name(step)}/0-0.distcp", b"remains")
    saver = savers.new(store, keep=1)
    saver.save(savers.tensors, 4, 0)
    assert saver.finish()
    assert sorted(each.name for each in tmp_path.iterdir()) == ["step-000000002", "step-000000004"]
    assert savers.lines[1:] == ["checkpoint=kept step=2 reason=cannot delete: 503"]
    monkeypatch.setattr(Undeletable, "works", True)
    saver.save(savers.tensors, 5, 0)
    assert saver.finish()
    assert [each.name for each in tmp_path.iterdir()] == ["step-000000005"]


def test_step_with_partial_files_is_written_again(store: Directory, group: dist.ProcessGroup) -> None:
    save_steps(store, group, [3])
    flip(data_file(store.path / "step-000000003"), 10)
    store.put("step-000000003/old-0-0.distcp", b"remains")
    expected = save_steps(store, group, [3], found=create_found(1, damaged=(3,)))
    step, model, optimizer = resume(store, group)
    assert step == 3
    assert are_tensors_equal(copy_tensors(model, optimizer), expected)
    assert len(store.list("step-000000003/")) == 3  # data, metadata and manifest of the new checkpoint


class Gate(Directory):
    """A store whose listing blocks until `open` is set."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        object.__setattr__(self, "open", threading.Event())

    def list(self, prefix: str = "") -> dict[str, int]:
        self.open.wait(60)  # type: ignore[attr-defined]
        return super().list(prefix)


def record_of(saver: Saver) -> list[tuple[str, str]]:
    """Return the list of the records that the saver will write: names and outcomes, or alarms and messages."""
    records: list[tuple[str, str]] = []

    def report(kind: type[Record], **values: Any) -> None:
        names = ("name", "outcome") if kind is Checkpoint else ("alarm", "message")
        records.append((values[names[0]], values[names[1]]))

    saver.report = report
    return records


def test_save_during_another_save_is_skipped_and_counted(tmp_path: Path, savers: Savers) -> None:
    store = Gate(tmp_path)
    saver = savers.new(store)
    records = record_of(saver)
    saver.save(savers.tensors, 1, 16)
    saver.save(savers.tensors, 2, 32)
    assert saver.counts.skipped == 1
    assert savers.lines == ["checkpoint=skipped step=2 reason=the save of step 1 is not done"]
    assert not saver.finish(timeout=0.1)
    store.open.set()  # type: ignore[attr-defined]
    assert saver.finish()
    assert layout.finished(store.list()) == [1]
    saver.save(savers.tensors, 1, 16)  # exists already
    assert saver.finish()
    assert saver.counts.saved == 1
    assert records == [("step-000000002", "skipped"), ("step-000000001", "saved")], "one for each save"


def test_save_during_the_start_of_the_process_is_skipped(
    store: Directory, monkeypatch: pytest.MonkeyPatch, savers: Savers
) -> None:
    saver = savers.new(store, store_address=("127.0.0.1", 1))
    started = threading.Event()
    monkeypatch.setattr(saver._process, "start", lambda: started.wait(60))
    saver.allocate(savers.tensors)
    saver.save(savers.tensors, 1, 16)
    assert savers.lines == [
        "checkpoint=skipped step=1 reason=the start of the background process is not done"
    ]
    started.set()
    assert saver.finish()


def test_save_that_hangs_raises_one_alarm(tmp_path: Path, savers: Savers) -> None:
    store = Gate(tmp_path)
    now = [0.0]
    saver = savers.new(store, found=create_found(0))
    saver.clock = lambda: now[0]
    saver.save(savers.tensors, 1, 16)
    for step, seconds in ((2, 600.0), (3, 601.0), (4, 900.0)):
        now[0] = seconds
        saver.save(savers.tensors, step, step * 16)
    assert savers.lines == [
        "checkpoint=skipped step=2 reason=the save of step 1 is not done",
        "alarm=checkpoint step=3 last_good_step=0 reason=the save of step 1 is not done after 601 s",
    ]
    assert saver.counts.skipped == 3
    assert not saver.finish(timeout=0.1)
    assert saver.is_busy
    store.open.set()  # type: ignore[attr-defined]
    assert saver.finish()
    assert not saver.is_busy
    store.open.clear()  # type: ignore[attr-defined]
    saver.save(savers.tensors, 5, 80)
    now[0] = 1600.0
    saver.save(savers.tensors, 6, 96)
    # Each save that hangs has its own alarm.
    assert savers.lines[-1].endswith("reason=the save of step 5 is not done after 700 s")
    store.open.set()  # type: ignore[attr-defined]
    assert saver.finish()


class Full(Directory):
    """A store without space for a manifest until `rooms` is set."""

    rooms = 0

    def put(self, path: str, body: bytes, *more: object, **named: object) -> None:
        if not type(self).rooms and path.endswith("manifest.json"):
            raise StoreError(f"cannot save {path}: No space left on device")
        super().put(path, body)


def test_failed_save_raises_an_alarm_and_keeps_the_old_one(
    tmp_path: Path, group: dist.ProcessGroup, savers: Savers
) -> None:
    save_steps(Directory(tmp_path), group, [1])
    before = Directory(tmp_path).list()
    now = itertools.count(1e9, 10.0)
    saver = savers.new(Full(tmp_path), found=create_found(1))
    saver.clock = lambda: next(now)
    records = record_of(saver)
    saver.save(savers.tensors, 2, 32)
    assert not saver.finish()
    assert (saver.counts.failed, saver.counts.last_good_step) == (1, 1)
    age = savers.lines[0].partition("last_good_age=")[2].partition("s ")[0]
    assert savers.lines == [
        f"alarm=checkpoint step=2 failures=1 last_good_step=1 last_good_age={age}s "
        "reason=process 0: cannot save step-000000002/manifest.json: No space left on device"
    ]
    assert int(age) > 0
    assert Directory(tmp_path).list() == before  # no files of the failed save remain
    Full.rooms = 1
    saver.save(savers.tensors, 2, 32)
    assert saver.finish()
    assert layout.finished(Directory(tmp_path).list()) == [2, 1]
    step = "step-000000002"
    assert records == [
        (step, "failed"),
        ("checkpoint", "a checkpoint failed. See the log"),
        (step, "saved"),
    ]


def no_room(_state: object) -> object:
    """Fail in place of a copy."""
    raise MemoryError("no room for a copy")


def test_copy_without_memory_is_a_failed_save(
    store: Directory, monkeypatch: pytest.MonkeyPatch, savers: Savers
) -> None:
    saver = savers.new(store)
    monkeypatch.setattr(saver._stager, "stage", no_room)
    saver.save(savers.tensors, 1, 16)
    assert not saver.finish()
    assert savers.lines[0].endswith("reason=process 0: MemoryError: no room for a copy")


def test_allocate_without_memory_raises_an_alarm(
    store: Directory, monkeypatch: pytest.MonkeyPatch, savers: Savers
) -> None:
    saver = savers.new(store)
    with monkeypatch.context() as patched:
        patched.setattr(saver._stager, "stage", no_room)
        saver.allocate(savers.tensors)
    assert saver.counts.failed == 1
    assert savers.lines == [
        "alarm=checkpoint failures=1 last_good_step=none "
        "reason=no memory for copies: process 0: MemoryError: no room for a copy"
    ]
    saver.save(savers.tensors, 1, 16)
    assert saver.finish()


def test_background_process_start_failure_raises_an_alarm(
    store: Directory, monkeypatch: pytest.MonkeyPatch, savers: Savers
) -> None:
    saver = savers.new(store, store_address=("127.0.0.1", 1))

    def fail() -> None:
        raise SaveFailed("no process for you")

    monkeypatch.setattr(saver._process, "start", fail)
    saver.allocate(savers.tensors)
    saver.finish()
    assert savers.lines == ["alarm=checkpoint failures=1 last_good_step=none reason=no process for you"]


def test_copies_beyond_shared_memory_are_written_by_threads(
    store: Directory, monkeypatch: pytest.MonkeyPatch, savers: Savers
) -> None:
    needed = 8 * 4096 * len(savers.tensors)  # each smaller than a page
    for free, by_process in ((needed, True), (needed - 1, False)):
        monkeypatch.setattr(module, "free_shared_memory", lambda free=free: free)
        saver = savers.new(store, store_address=("127.0.0.1", 1), local_size=8)
        saver._check_shared(savers.tensors)
        assert (saver._process is not None) == saver._stager._config.use_shared_memory == by_process
    saver.save(savers.tensors, 1, 16)
    assert saver.finish()
    assert [line.split()[0] for line in savers.lines] == ["checkpoint=threads", "checkpoint=saved"]
    assert savers.lines[0].startswith("checkpoint=threads reason=/dev/shm has ")


@pytest.mark.parametrize("noticed_by", ["save", "renewal"])
def test_save_after_a_takeover_ends_the_run(store: Directory, noticed_by: str, savers: Savers) -> None:
    owner = Owner(store, "same", "r1")
    owner.claim()
    saver = savers.new(store, owner=owner)
    saver.save(savers.tensors, 1, 16)
    assert saver.finish()
    Owner(store, "same", "r2").claim()
    if noticed_by == "renewal":
        owner.renew()
    else:
        saver.save(savers.tensors, 2, 32)
        assert saver._thread is not None
        saver._thread.join()
    with pytest.raises(SharedError, match=r" was taken over by run r2 .*\. This run ends; stop ") as caught:
        saver.save(savers.tensors, 3, 48)
    assert caught.value.code == Exit.CONFIGURATION
    assert saver.counts.failed == (1 if noticed_by == "save" else 0)
    assert layout.finished(store.list()) == [1]


def test_background_process_survives_a_workers_stop_signals(
    store: Directory, tcp_store: dist.TCPStore, savers: Savers
) -> None:
    saver = savers.new(store, store_address=("127.0.0.1", tcp_store.port))
    saver.allocate(savers.tensors)
    assert saver.finish()
    assert saver._process is not None
    process = saver._process._process
    for number in (signal.SIGTERM, signal.SIGINT):
        os.kill(process.pid, number)
    saver.save(savers.tensors, 1, 16)
    assert saver.finish()
    saver.close()
    process.join(20)
    assert process.exitcode == 0


def save_and_report(path: Path, report: Any) -> None:
    """Save once by a background process, send its process id, then wait."""
    tcp_store = dist.TCPStore("127.0.0.1", 0, is_master=True)
    dist.init_process_group("gloo", store=tcp_store, rank=0, world_size=1)
    model, optimizer = create_trained_model(1)
    saver = create_saver(
        Directory(path), dist.new_group(backend="gloo"), store_address=("127.0.0.1", tcp_store.port)
    )
    saver.save(state.gather(model, optimizer), 1, 16)
    assert saver.finish()
    assert saver._process is not None
    assert saver._process._process is not None
    report.send(saver._process._process.pid)
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


def test_thread_replaces_a_lost_background_process(
    store: Directory, tcp_store: dist.TCPStore, savers: Savers
) -> None:
    saver = savers.new(store, store_address=("127.0.0.1", tcp_store.port))
    saver.allocate(savers.tensors)
    assert saver.finish()
    assert saver._process is not None
    saver._process._process.kill()
    saver._process._process.join(20)
    saver.save(savers.tensors, 1, 16)
    assert saver.finish()
    assert (
        savers.lines[0] == "alarm=checkpoint reason=a background process is gone; threads write from now on"
    )
    saver.save(savers.tensors, 2, 32)
    assert saver.finish()
    assert layout.finished(store.list()) == [2, 1]


def test_background_process_killed_in_a_save_fails_the_save(
    tmp_path: Path, tcp_store: dist.TCPStore, savers: Savers
) -> None:
    store = Directory(tmp_path)
    saver = savers.new(store, store_address=("127.0.0.1", tcp_store.port))
    saver.allocate(savers.tensors)
    assert saver.finish()
    assert saver._process is not None
    process = saver._process._process
    os.kill(process.pid, signal.SIGSTOP)
    saver.save(savers.tensors, 1, 16)
    time.sleep(0.2)
    os.kill(process.pid, signal.SIGKILL)
    assert not saver.finish()
    assert savers.lines[0].endswith("reason=the background process is gone (exit code -9)")
    saver.save(savers.tensors, 1, 16)
    assert saver.finish()
