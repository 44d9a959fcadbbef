"""Writes a staged checkpoint in the background: in a thread of this process, or in a process of its own.

A thread starts without cost, but shares the interpreter's lock with the training. A process shares only the memory with
the staged state. It starts once, and ends with its trainer. The copies of all processes of a node must fit into
/dev/shm, which is often small in containers: 64 MiB in Docker (docs.docker.com/reference/cli/docker/container/run,
--shm-size). A process that writes more is killed by SIGBUS.

`Idle` measures how long a GPU had no work while its host waited.
"""

from __future__ import annotations

import os
import resource
import shutil
import signal
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Protocol

import torch
import torch.distributed as dist
import torch.multiprocessing
from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]
from torch.distributed.checkpoint.api import CheckpointException  # a BaseException
from torch.distributed.checkpoint.state_dict_saver import save

from trainer.checkpoint.state import State
from trainer.checkpoint.writer import Writer, one_line

START_SECONDS = 300.0
# Training goes first where both want the same cores.
NICE = 10


class SaveFailed(Exception):
    """Why a checkpoint was not written, in one line; the same in all processes of the group."""


class Engine(Protocol):
    """Writes checkpoints, all processes of a group together, one at a time."""

    def start(self) -> None:
        """Be ready, all processes together; it may take seconds. Raises SaveFailed."""

    def run(self, state: State, writer: Writer) -> int:
        """Write one; returns when it is durable, in rank 0 its bytes.

        Raises SaveFailed in all processes when one fails.
        """

    @property
    def is_dead(self) -> bool:
        """Whether it can write nothing any more."""

    def close(self) -> None:
        """End it."""


class InThread:
    """Writes in whichever thread calls; `group` (gloo) is used by nobody else."""

    is_dead = False

    def __init__(self, group: dist.ProcessGroup) -> None:
        self._group = group

    def start(self) -> None:
        """Nothing to do."""

    def run(self, state: State, writer: Writer) -> int:
        try:
            save(state, storage_writer=writer, process_group=self._group)
        except (Exception, CheckpointException) as error:
            raise SaveFailed(one_line(error)) from error
        finally:
            writer.discard()
        return writer.bytes

    def close(self) -> None:
        """Nothing to do."""


@dataclass(frozen=True)
class Meeting:
    """Where the background processes of all ranks meet: under `prefix` in the training's own store."""

    host: str
    port: int
    prefix: str
    rank: int
    size: int
    timeout: timedelta


class InProcess:
    """Writes in a process of its own, one beside each rank."""

    def __init__(self, meeting: Meeting) -> None:
        self._meeting = meeting
        self._process: Any = None
        self._pipe: Any = None
        self._broken = False

    @property
    def is_dead(self) -> bool:
        return self._broken or (self._process is not None and not self._process.is_alive())

    def start(self) -> None:
        if self._broken:
            raise SaveFailed("the background process is gone")
        if self._process is not None:
            return
        _allow_many_files()
        context = torch.multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        process = context.Process(
            target=_serve, args=(theirs, self._meeting), name="checkpoint writer", daemon=True
        )
        try:
            process.start()
        except Exception as error:
            self._broken = True
            raise SaveFailed(f"the background process cannot be started: {one_line(error)}") from error
        self._process = process
        theirs.close()  # else the end of the process would not end the pipe
        self._answer(START_SECONDS)

    def run(self, state: State, writer: Writer) -> int:
        self.start()
        try:
            self._pipe.send((state, writer))
        except OSError as error:
            self._broken = True
            raise SaveFailed(f"the background process is gone ({self._ended()})") from error
        return self._answer(None)

    def close(self) -> None:
        if self._process is None:
            return
        with suppress(OSError):
            self._pipe.send(None)
        self._process.join(5)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()

    def _answer(self, seconds: float | None) -> int:
        """What the process tells of its last work: a number, or in words why it could not do it."""
        try:
            if not self._pipe.poll(seconds):
                self._broken = True
                raise SaveFailed(f"the background process did not start in {seconds:.0f} s")
            told: int | str = self._pipe.recv()
        except (EOFError, OSError) as error:
            self._broken = True
            raise SaveFailed(f"the background process is gone ({self._ended()})") from error
        if isinstance(told, str):
            self._broken = self._broken or seconds is not None
            raise SaveFailed(told)
        return told

    def _ended(self) -> str:
        self._process.join(5)
        return f"exit code {self._process.exitcode}"


def _serve(pipe: Any, meeting: Meeting) -> None:
    """The background process: one save after the other, until the trainer says so or is gone."""
    # torchrun signals all processes of a worker, and what it then wants is this very save.
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    with suppress(OSError):
        os.nice(NICE)
    torch.set_num_threads(1)
    try:
        store = TCPStore(meeting.host, meeting.port, is_master=False, timeout=meeting.timeout)
        dist.init_process_group(
            "gloo",
            store=PrefixStore(meeting.prefix, store),
            rank=meeting.rank,
            world_size=meeting.size,
            timeout=meeting.timeout,
        )
        group = dist.group.WORLD
        assert group is not None  # noqa: S101 - it was just made
        engine = InThread(group)
        pipe.send(0)
    except Exception as error:  # whatever it is, the trainer has to know
        pipe.send(one_line(error))
        return
    while True:
        try:
            job = pipe.recv()
        except (EOFError, OSError):
            break
        if job is None:
            break
        try:
            told: int | str = engine.run(*job)
        except SaveFailed as error:
            told = str(error)
        del job  # else the staged memory stays mapped twice
        try:
            pipe.send(told)
        except OSError:
            break
    # Not by the interpreter's end: gloo's threads may outlive it, which aborts the process.
    os._exit(0)


def _allow_many_files() -> None:
    """Every tensor that two processes share is an open file in both; the usual limit of 1024 is soon reached."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


class Idle:
    """From its making on. Make it when the last work was given to `device`, just before the host begins to wait."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._last = self._mark() if device.type == "cuda" else None

    def seconds(self, waited: float) -> float:
        """Of the `waited` seconds until now those in which all work was done; on a CPU all of them."""
        if self._last is None:
            return waited
        if not self._last.query():  # type: ignore[no-untyped-call]
            return 0.0
        now = self._mark()
        now.synchronize()  # nothing is before it
        idle: float = self._last.elapsed_time(now) / 1000  # it tells milliseconds
        return min(waited, idle)

    def _mark(self) -> torch.cuda.Event:
        mark = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        mark.record(torch.cuda.current_stream(self._device))
        return mark


PLACE = Path("/dev/shm")  # noqa: S108 - it is what torch uses, not a place for files of ours
# Every tensor is a file there, and takes whole pages.
PAGE_BYTES = 4096
GIB = 2**30


@dataclass(frozen=True)
class Room:
    """What one process found: free bytes on its machine, and the bytes that all processes there need together."""

    free: int
    needed: int


def needed(sizes: Iterable[int], processes: int) -> int:
    """Bytes for a copy of tensors of these sizes in each of a machine's processes."""
    return processes * sum(-(-size // PAGE_BYTES) * PAGE_BYTES for size in sizes)


def free() -> int:
    """Bytes that are free in /dev/shm: none where there is no such place."""
    try:
        return shutil.disk_usage(PLACE).free
    except OSError:
        return 0


def too_small(rooms: Sequence[Room]) -> str | None:
    """Why not all machines have room, by the worst of them; None where they have. The same in all that ask alike."""
    worst = min(rooms, key=lambda room: room.free - room.needed)
    if worst.free >= worst.needed:
        return None
    return (
        f"{PLACE} has {worst.free / GIB:.2f} GiB free, the copies of a machine's processes need "
        f"{worst.needed / GIB:.2f} GiB: threads write, which slows the training; "
        "set training.sharedMemory (in Docker --shm-size) to more"
    )
