"""Checkpoints of several processes: every rank writes its part, any number of ranks reads it, and all agree."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
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
from tests.integration.trainer.together import fork_server, together
from trainer.checkpoint import layout, state, write
from trainer.checkpoint.load import read
from trainer.contract import Exit, TrainerError
from trainer.distributed import from_first
from trainer.stores import Directory, StoreError

pytestmark = pytest.mark.trainer


def group() -> dist.ProcessGroup:
    return dist.new_group(backend="gloo")


def sharded(width: int = 8) -> nn.Module:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(width, width), nn.Linear(width, width))
    for layer in model:
        fully_shard(layer)
    return fully_shard(model)


def save_of_two(path: Path, background: str) -> tuple[int, list[str]]:
    """Two steps under DDP, one save, two more while it is written; returns what this rank's files hold."""
    own_group = group()
    model = network()
    optimizer = optimizer_of(model)
    wrapped = DistributedDataParallel(model)
    train(wrapped, optimizer, 1, 2)
    port = int(os.environ["MASTER_PORT"])
    said: list[str] = []
    meeting = ("127.0.0.1", port) if background == "process" else None
    own = saver(Directory(path), own_group, meeting=meeting, log_line=said.append)
    own.save(state.gather(wrapped, optimizer), 2, 32)
    own.staged()
    train(wrapped, optimizer, 3, 4)
    assert own.finish()
    assert own.counts.last_good_step == 2
    own.close()
    return own.counts.saved, said


@pytest.mark.parametrize(("background", "readers"), [("thread", 3), ("process", 1)])
def test_two_processes_write_one_checkpoint_that_any_number_reads(
    tmp_path: Path, background: str, readers: int
) -> None:
    answers = together(2, save_of_two, tmp_path, background)
    assert [saved for saved, _ in answers] == [1, 1]
    assert [len(said) for _, said in answers] == [1, 0]  # rank 0 speaks for all
    names = sorted(name.partition("-")[2] for name in layout.by_step(Directory(tmp_path).list())[2])
    assert names == ["", "", "0-0.distcp", "1-0.distcp"]
    sizes = [each.stat().st_size for each in (tmp_path / "step-000000002").glob("*.distcp")]
    assert max(sizes) < 3 * min(sizes)  # and neither process all of it
    assert together(readers, read_and_compare, tmp_path) == [True] * readers


def read_and_compare(path: Path) -> bool:
    step, model, optimizer = resumed(Directory(path), group())
    return step == 2 and same(copied(model, optimizer), copied(*trained(2)))


def save_sharded(path: Path) -> bool:
    own_group = group()
    model = sharded()
    optimizer = optimizer_of(model)
    train(model, optimizer, 1, 2)
    own = saver(Directory(path), own_group)
    tensors = state.gather(model, optimizer)
    assert isinstance(tensors["model.0.weight"], DTensor)
    own.save(tensors, 2, 32)
    own.staged()
    whole = {
        name: each.full_tensor() if isinstance(each, DTensor) else each for name, each in tensors.items()
    }
    torch.save({name: each.clone() for name, each in whole.items()}, path / f"whole-{dist.get_rank()}.pt")
    train(model, optimizer, 3, 3)  # the copy must not change with it
    return own.finish()


def load_both(path: Path) -> list[dict[str, torch.Tensor]]:
    """What a plain model and one that is shared out get of the checkpoint."""
    own_group = group()
    loaded = []
    for model in (nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8)), sharded()):
        optimizer = optimizer_of(model)
        found = load(Directory(path), own_group, model)
        assert found is not None
        read(found, model, optimizer, own_group)
        tensors = state.gather(model, optimizer).items()
        loaded.append(
            {name: each.full_tensor() if isinstance(each, DTensor) else each for name, each in tensors}
        )
    return loaded


def test_fsdp_and_plain_models_have_the_same_checkpoints(tmp_path: Path) -> None:
    assert together(2, save_sharded, tmp_path) == [True, True]
    expected = torch.load(tmp_path / "whole-0.pt", weights_only=True)
    for plain, shared in together(3, load_both, tmp_path):
        assert same(plain, expected)
        assert same(shared, expected)


class Second(Directory):
    """A store that has no room for what the second process writes."""

    def local(self, path: str) -> Path | None:
        return None

    def send(self, file: Path, path: str) -> None:
        if dist.get_rank() == 1:
            raise StoreError(f"cannot save {path}: No space left on device")
        super().send(file, path)


def fail_in_one(path: Path) -> tuple[int, list[str], list[str]]:
    model, optimizer = trained(1)
    said: list[str] = []
    (path / "scratch").mkdir(exist_ok=True)
    own = saver(Second(path / "store"), group(), log_line=said.append, scratch=path / "scratch")
    own.save(state.gather(model, optimizer), 1, 16)
    assert not own.finish()
    dist.barrier()
    left = [each.name for each in (path / "scratch").iterdir()]
    return own.counts.failed, said, sorted(Directory(path / "store").list()) + left


def test_a_save_that_fails_in_one_process_fails_in_all_and_leaves_nothing(tmp_path: Path) -> None:
    first, second = together(2, fail_in_one, tmp_path)
    assert first[0] == second[0] == 1
    assert first[1][0].startswith("alarm=checkpoint step=1 failures=1 last_good_step=none")
    assert "reason=process 1: cannot save step-000000001/" in first[1][0]
    assert second[1] == []
    assert first[2] == second[2] == []


def save_apart(path: Path) -> tuple[list[str], list[int], list[str]]:
    """Every process into a directory of its own, as where each machine has its own disk."""
    write.SEEN_SECONDS = write.POLL_SECONDS = 0.1
    model, optimizer = trained(1)
    said: list[str] = []
    store = Directory(path / str(dist.get_rank()))
    own = saver(store, group(), log_line=said.append)
    own.save(state.gather(model, optimizer), 1, 16)
    assert not own.finish()
    return said, layout.finished(store.list()), list(store.list())


def test_a_place_that_the_machines_do_not_share_is_a_failed_save(tmp_path: Path) -> None:
    first, second = together(2, save_apart, tmp_path)
    reason = first[0][0].partition("reason=")[2]
    assert reason.startswith(f"process 0: cannot save {tmp_path}/0/step-000000001: process 1's file ")
    assert reason.endswith("-1-0.distcp is missing: all nodes must share this place")
    assert (len(first[0]), second[0]) == (1, [])
    assert first[1] == second[1] == []
    assert first[2] == []  # what it could see is removed again


def load_damaged(path: Path) -> tuple[int, list[str], str]:
    said: list[str] = []
    own_group = group()
    found = load(Directory(path), own_group, network(), said)
    assert found is not None
    try:
        load(Directory(path), own_group, network(width=4))
    except TrainerError as error:
        return found.manifest.step, said, str(error)
    raise AssertionError("another model was taken")


def test_all_processes_pass_the_same_damaged_checkpoint_over(tmp_path: Path) -> None:
    together(2, save_two_steps, tmp_path)
    file = next((tmp_path / "step-000000004").glob("*-1-0.distcp"))
    body = bytearray(file.read_bytes())
    body[len(body) // 2] ^= 1
    file.write_bytes(body)
    answers = together(2, load_damaged, tmp_path)
    assert [step for step, _, _ in answers] == [2, 2]
    assert [len(said) for _, said, _ in answers] == [1, 0]
    assert "checkpoint=damaged step=4 reason=" in answers[0][1][0]
    assert answers[0][2] == answers[1][2]
    assert "of another model" in answers[0][2]


def save_two_steps(path: Path) -> None:
    model, optimizer = trained(2)
    own = saver(Directory(path), group())
    for step in (2, 4):
        own.save(state.gather(model, optimizer), step, step * 16)
        assert own.finish()


def save_on_and_on(path: Path) -> None:
    """One save, and then more until this process is killed."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    model, optimizer = trained(1, width=1024)
    own = saver(Directory(path), group(), keep=3)
    for step in range(1, 1000):
        own.save(state.gather(model, optimizer), step, 16 * step)
        assert own.finish()


def killed_then_resumed(path: Path) -> int:
    step, _, _ = resumed(Directory(path), group(), width=1024)
    return step


def test_a_writer_that_is_killed_at_any_moment_leaves_a_checkpoint_that_loads(tmp_path: Path) -> None:
    process = fork_server().Process(target=save_on_and_on, args=(tmp_path,))
    process.start()
    wait_for(lambda: layout.finished(Directory(tmp_path).list()))
    until = time.monotonic() + 60
    while not unfinished_steps(tmp_path) and time.monotonic() < until:
        time.sleep(0.002)
    process.kill()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    unfinished = unfinished_steps(tmp_path)
    finished = layout.finished(Directory(tmp_path).list())
    assert finished
    assert together(1, killed_then_resumed, tmp_path) == [finished[0]]
    assert all(step > finished[0] for step in unfinished)


def unfinished_steps(path: Path) -> list[int]:
    steps = layout.by_step(Directory(path).list())
    return [step for step, files in steps.items() if layout.MANIFEST not in files]


def save_into_full(path: Path, limit: int) -> tuple[list[str], list[int]]:
    """One save that fits; then one for which there is no room, and training goes on."""
    if limit:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
    own_group = group()
    said: list[str] = []
    small, its_optimizer = trained(1, width=8)
    own = saver(Directory(path), own_group, log_line=said.append)
    own.save(state.gather(small, its_optimizer), 1, 16)
    assert own.finish()
    large, its_optimizer = trained(1, width=1024)
    own.save(state.gather(large, its_optimizer), 2, 32)
    assert not own.finish()
    return said, layout.finished(Directory(path).list()) + unfinished_steps(path)


@pytest.mark.parametrize("by", ["tmpfs", "limit"])
def test_a_full_disk_keeps_the_old_checkpoint_and_is_told(tmp_path: Path, by: str) -> None:
    """On a file system of 4 MB, where one may be mounted, and where files may not be larger than that."""
    mount = ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(tmp_path)]
    if by == "tmpfs" and subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("nobody may mount a tmpfs here; the limit stands in")
    try:
        ((said, steps),) = together(1, save_into_full, tmp_path, 4 * 2**20 if by == "limit" else 0)
        assert steps == [1]
        assert said[1].startswith("alarm=checkpoint step=2 failures=1 last_good_step=1 last_good_age=")
        reason = "No space left on device" if by == "tmpfs" else "File too large"
        assert said[1].endswith(f"cannot save {tmp_path}/step-000000002: {reason}")
    finally:
        if by == "tmpfs":
            subprocess.run(["umount", str(tmp_path)], check=True)


def from_the_first() -> tuple[str, str, int, int]:
    """What all have of work that the first process does, and of work that it cannot do."""
    own_group, done = group(), []

    def name() -> str:
        done.append(1)
        return f"by process {dist.get_rank()}"

    def fail() -> str:
        done.append(1)
        raise TrainerError(Exit.CONFIGURATION, f"process {dist.get_rank()} cannot")

    result = from_first(name, own_group)
    try:
        from_first(fail, own_group)
    except TrainerError as error:
        return result, str(error), error.code, len(done)
    raise AssertionError("nobody was told")


def test_what_the_first_process_does_or_cannot_do_all_have_alike() -> None:
    told = ("by process 0", "process 0 cannot", Exit.CONFIGURATION)
    assert together(2, from_the_first) == [(*told, 2), (*told, 0)]
