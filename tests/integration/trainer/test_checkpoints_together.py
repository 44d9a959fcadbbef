"""Checkpoints of several processes: each rank writes its part, and any number of ranks can load them."""

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
    copy_tensors,
    create_optimizer,
    create_saver,
    create_trained_model,
    load,
    network,
    resume,
    train,
)
from tests.integration.trainer.test_stopping import wait_for
from tests.integration.trainer.together import fork_server, run_processes
from tests.integration.trainer.trained import are_tensors_equal
from trainer.checkpoint import layout, state, write
from trainer.checkpoint.load import read
from trainer.contract import TrainerError
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
    """Train two steps under DDP, save, and train two more during the write; return the count of saves and the log."""
    own_group = group()
    model = network()
    optimizer = create_optimizer(model)
    wrapped = DistributedDataParallel(model)
    train(wrapped, optimizer, 1, 2)
    port = int(os.environ["MASTER_PORT"])
    lines: list[str] = []
    store_address = ("127.0.0.1", port) if background == "process" else None
    saver = create_saver(Directory(path), own_group, store_address=store_address, log_line=lines.append)
    saver.save(state.gather(wrapped, optimizer), 2, 32)
    saver.staged()
    train(wrapped, optimizer, 3, 4)
    assert saver.finish()
    assert saver.counts.last_good_step == 2
    saver.close()
    return saver.counts.saved, lines


@pytest.mark.parametrize(("background", "readers"), [("thread", 3), ("process", 1)])
def test_checkpoint_of_two_processes_loads_at_any_world_size(
    tmp_path: Path, background: str, readers: int
) -> None:
    answers = run_processes(2, save_of_two, tmp_path, background)
    assert [saved for saved, _ in answers] == [1, 1]
    assert [len(lines) for _, lines in answers] == [1, 0]  # only rank 0 logs
    names = sorted(name.partition("-")[2] for name in layout.by_step(Directory(tmp_path).list())[2])
    assert names == ["", "", "0-0.distcp", "1-0.distcp"]
    sizes = [each.stat().st_size for each in (tmp_path / "step-000000002").glob("*.distcp")]
    assert max(sizes) < 3 * min(sizes)  # both processes write a part
    assert run_processes(readers, read_and_compare, tmp_path) == [True] * readers


def read_and_compare(path: Path) -> bool:
    step, model, optimizer = resume(Directory(path), group())
    return step == 2 and are_tensors_equal(
        copy_tensors(model, optimizer), copy_tensors(*create_trained_model(2))
    )


def full_tensors(tensors: state.State) -> state.State:
    return {
        name: each.full_tensor() if isinstance(each, DTensor) else each.clone()
        for name, each in tensors.items()
    }


def save_sharded(path: Path, background: str) -> tuple[list[bool], list[str]]:
    """Save twice, with a step between, and train during each write; write the full tensors to a file."""
    with (path / f"stderr-{dist.get_rank()}").open("wb") as errors:
        os.dup2(errors.fileno(), 2)  # the background processes inherit it
    model = sharded()
    optimizer = create_optimizer(model)
    lines: list[str] = []
    store_address = ("127.0.0.1", int(os.environ["MASTER_PORT"])) if background == "process" else None
    saver = create_saver(Directory(path), group(), store_address=store_address, log_line=lines.append)
    done = []
    for step in (1, 2):
        train(model, optimizer, step, step)
        tensors = state.gather(model, optimizer)
        assert isinstance(tensors["model.0.weight"], DTensor)
        if step == 1:
            saver.allocate(tensors)
        saver.finish()  # the process has started
        saver.save(tensors, step, 16 * step)
        saver.staged()
        torch.save(full_tensors(tensors), path / f"whole-{dist.get_rank()}.pt")
        train(model, optimizer, 3, 3)  # the copy must not change
        done.append(saver.finish())
    saver.close()
    return done, lines


def load_both(path: Path) -> list[dict[str, torch.Tensor]]:
    """Load the checkpoint into a plain and a sharded model; return the tensors of both."""
    own_group = group()
    loaded = []
    for model in (nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8)), sharded()):
        optimizer = create_optimizer(model)
        found = load(Directory(path), own_group, model)
        assert found is not None
        read(found, model, optimizer, own_group)
        loaded.append(full_tensors(state.gather(model, optimizer)))
    return loaded


@pytest.mark.parametrize("background", ["thread", "process"])
def test_fsdp_and_plain_models_have_the_same_checkpoints(tmp_path: Path, background: str) -> None:
    answers = run_processes(2, save_sharded, tmp_path, background)
    assert [done for done, _ in answers] == [[True, True]] * 2
    assert [line.split()[0] for line in answers[0][1]] == ["checkpoint=saved"] * 2
    expected = torch.load(tmp_path / "whole-0.pt", weights_only=True)
    for plain, shared in run_processes(3, load_both, tmp_path):
        assert are_tensors_equal(plain, expected)
        assert are_tensors_equal(shared, expected)
    assert [(tmp_path / f"stderr-{rank}").read_text() for rank in range(2)] == ["", ""]


class FullForRankOne(Directory):
    """A store that is full for the second process."""

    def local(self, path: str) -> Path | None:
        return None

    def send(self, file: Path, path: str) -> None:
        if dist.get_rank() == 1:
            raise StoreError(f"cannot save {path}: No space left on device")
        super().send(file, path)


def fail_in_one(path: Path) -> tuple[int, list[str], list[str]]:
    model, optimizer = create_trained_model(1)
    lines: list[str] = []
    (path / "scratch").mkdir(exist_ok=True)
    saver = create_saver(
        FullForRankOne(path / "store"), group(), log_line=lines.append, scratch=path / "scratch"
    )
    saver.save(state.gather(model, optimizer), 1, 16)
    assert not saver.finish()
    dist.barrier()
    left = [each.name for each in (path / "scratch").iterdir()]
    return saver.counts.failed, lines, sorted(Directory(path / "store").list()) + left


def test_save_that_fails_in_one_process_fails_in_all(tmp_path: Path) -> None:
    first, second = run_processes(2, fail_in_one, tmp_path)
    assert first[0] == second[0] == 1
    assert first[1][0].startswith("alarm=checkpoint step=1 failures=1 last_good_step=none")
    assert "reason=process 1: cannot save step-000000001/" in first[1][0]
    assert second[1] == []
    assert first[2] == second[2] == []


class UnsendableForRankOne(Directory):
    """A store that the second process cannot send to its background process."""

    def __getstate__(self) -> object:
        if dist.get_rank() == 1:
            raise TypeError("cannot pickle this")
        return super().__getstate__()


def fail_to_send(path: Path) -> list[str]:
    """Save by background processes, which fails, and then by threads."""
    model, optimizer = create_trained_model(1)
    lines: list[str] = []
    store_address = ("127.0.0.1", int(os.environ["MASTER_PORT"]))
    saver = create_saver(
        UnsendableForRankOne(path), group(), store_address=store_address, log_line=lines.append
    )
    saver.allocate(state.gather(model, optimizer))
    assert saver.finish()
    saver.save(state.gather(model, optimizer), 1, 16)
    assert not saver.finish(60)
    assert not saver.is_busy, "the other process still waits"
    saver.save(state.gather(model, optimizer), 1, 16)
    assert saver.finish()
    saver.close()
    return lines


def test_save_with_unsendable_state_in_one_rank_fails_in_all(tmp_path: Path) -> None:
    first, second = run_processes(2, fail_to_send, tmp_path)
    assert [line.partition(" ")[0] for line in first] == ["alarm=checkpoint"] * 2 + ["checkpoint=saved"]
    assert second == [
        "alarm=checkpoint rank=1 step=1 failures=1 reason=the state could not be sent to the background process: "
        "TypeError: cannot pickle this"
    ]


def save_to_own_directories(path: Path) -> tuple[list[str], list[int], list[str]]:
    """Save to a separate directory in each process, as on nodes without a shared disk."""
    write.SEEN_SECONDS = write.POLL_SECONDS = 0.1
    model, optimizer = create_trained_model(1)
    lines: list[str] = []
    store = Directory(path / str(dist.get_rank()))
    saver = create_saver(store, group(), log_line=lines.append)
    saver.save(state.gather(model, optimizer), 1, 16)
    assert not saver.finish()
    return lines, layout.finished(store.list()), list(store.list())


def test_save_to_a_place_that_nodes_do_not_share_fails(tmp_path: Path) -> None:
    first, second = run_processes(2, save_to_own_directories, tmp_path)
    reason = first[0][0].partition("reason=")[2]
    assert reason.startswith(f"process 0: cannot save {tmp_path}/0/step-000000001: process 1's file ")
    assert reason.endswith("-1-0.distcp is missing: all nodes must share this place")
    assert (len(first[0]), second[0]) == (1, [])
    assert first[1] == second[1] == []
    assert first[2] == []  # its own files are removed


def load_damaged(path: Path) -> tuple[int, list[str], str]:
    lines: list[str] = []
    own_group = group()
    found = load(Directory(path), own_group, network(), lines)
    assert found is not None
    try:
        load(Directory(path), own_group, network(width=4))
    except TrainerError as error:
        return found.manifest.step, lines, str(error)
    raise AssertionError("another model was loaded")


def test_all_processes_skip_the_same_damaged_checkpoint(tmp_path: Path) -> None:
    run_processes(2, save_two_steps, tmp_path)
    file = next((tmp_path / "step-000000004").glob("*-1-0.distcp"))
    body = bytearray(file.read_bytes())
    body[len(body) // 2] ^= 1
    file.write_bytes(body)
    answers = run_processes(2, load_damaged, tmp_path)
    assert [step for step, _, _ in answers] == [2, 2]
    assert [len(lines) for _, lines, _ in answers] == [1, 0]
    assert "checkpoint=damaged step=4 reason=" in answers[0][1][0]
    assert answers[0][2] == answers[1][2]
    assert "of another model" in answers[0][2]


def save_two_steps(path: Path) -> None:
    model, optimizer = create_trained_model(2)
    saver = create_saver(Directory(path), group())
    for step in (2, 4):
        saver.save(state.gather(model, optimizer), step, step * 16)
        assert saver.finish()


def save_until_killed(path: Path) -> None:
    """Save checkpoints until this process is killed."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    model, optimizer = create_trained_model(1, width=1024)
    saver = create_saver(Directory(path), group(), keep=3)
    for step in range(1, 1000):
        saver.save(state.gather(model, optimizer), step, 16 * step)
        assert saver.finish()


def resume_step(path: Path) -> int:
    step, _, _ = resume(Directory(path), group(), width=1024)
    return step


def test_killed_writer_leaves_a_checkpoint_that_loads(tmp_path: Path) -> None:
    process = fork_server().Process(target=save_until_killed, args=(tmp_path,))
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
    assert run_processes(1, resume_step, tmp_path) == [finished[0]]
    assert all(step > finished[0] for step in unfinished)


def unfinished_steps(path: Path) -> list[int]:
    steps = layout.by_step(Directory(path).list())
    return [step for step, files in steps.items() if layout.MANIFEST not in files]


def save_into_full(path: Path, limit: int) -> tuple[list[str], list[int]]:
    """Save a small checkpoint, then one that does not fit."""
    if limit:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
    own_group = group()
    lines: list[str] = []
    small, its_optimizer = create_trained_model(1, width=8)
    saver = create_saver(Directory(path), own_group, log_line=lines.append)
    saver.save(state.gather(small, its_optimizer), 1, 16)
    assert saver.finish()
    large, its_optimizer = create_trained_model(1, width=1024)
    saver.save(state.gather(large, its_optimizer), 2, 32)
    assert not saver.finish()
    return lines, layout.finished(Directory(path).list()) + unfinished_steps(path)


@pytest.mark.parametrize("by", ["tmpfs", "limit"])
def test_full_disk_keeps_the_old_checkpoint_and_alarms(tmp_path: Path, by: str) -> None:
    """The file system has 4 MiB (if a mount is permitted), or the size of a file is limited to that."""
    mount = ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(tmp_path)]
    if by == "tmpfs" and subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("a tmpfs cannot be mounted here; the other case limits the size of a file")
    try:
        ((lines, steps),) = run_processes(1, save_into_full, tmp_path, 4 * 2**20 if by == "limit" else 0)
        assert steps == [1]
        assert lines[1].startswith("alarm=checkpoint step=2 failures=1 last_good_step=1 last_good_age=")
        reason = "No space left on device" if by == "tmpfs" else "File too large"
        assert lines[1].endswith(f"cannot save {tmp_path}/step-000000002: {reason}")
    finally:
        if by == "tmpfs":
            subprocess.run(["umount", str(tmp_path)], check=True)
