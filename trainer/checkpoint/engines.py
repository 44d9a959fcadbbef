"""Write a staged checkpoint in the background: in a thread of this process, or in a separate process.

A thread starts without cost, but shares the interpreter's lock with the loop. A process shares only the memory of the
staged state. It starts once, and ends with its trainer. The copies of all processes of a node must fit into
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
# Training has priority over the background process.
NICE = 10


class SaveFailed(Exception):
    """A checkpoint was not written. The message is one line, and all processes of the group raise this."""


class Engine(Protocol):
    """Write checkpoints, one at a time. All processes of a group call each method together."""

    def start(self) -> None:
        """Start, which may take seconds. Raise SaveFailed."""

    def run(self, state: State, writer: Writer) -> int:
        """Write one checkpoint. Return its bytes in rank 0 when it is durable.

        Raises:
            SaveFailed: It failed in one process. All processes raise this.
        """

    @property
    def is_dead(self) -> bool:
        """Whether the engine can't write any more."""

    def close(self) -> None:
        """Stop the engine."""


class InThread:
    """Write in the calling thread. Only this engine uses the gloo `group`."""

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
    """How the background processes of all ranks meet: in the store of the run, under `prefix`."""

    host: str
    port: int
    prefix: str
    rank: int
    size: int
    timeout: timedelta


class InProcess:
    """Write in a separate process, one for each rank."""

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
        theirs.close()  # otherwise the pipe stays open when the process ends
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
        """Return the result of the process for its last job: a number. A string is an error, raised as SaveFailed."""
        try:
            if not self._pipe.poll(seconds):
                self._broken = True
                raise SaveFailed(f"the background process did not start in {seconds:.0f} s")
            answer: int | str = self._pipe.recv()
        except (EOFError, OSError) as error:
            self._broken = True
            raise SaveFailed(f"the background process is gone ({self._ended()})") from error
        if isinstance(answer, str):
            self._broken = self._broken or seconds is not None
            raise SaveFailed(answer)
        return answer

    def _ended(self) -> str:
        self._process.join(5)
        return f"exit code {self._process.exitcode}"


def _serve(pipe: Any, meeting: Meeting) -> None:
    """Run the background process: one save after the other, until the trainer closes the pipe."""
    # torchrun signals all processes of a worker, and the last save comes after that signal.
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
        assert group is not None  # noqa: S101 - it was just created
        engine = InThread(group)
        pipe.send(0)
    except Exception as error:  # the trainer must get any error
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
            answer: int | str = engine.run(*job)
        except SaveFailed as error:
            answer = str(error)
        del job  # otherwise the staged memory stays mapped twice
        try:
            pipe.send(answer)
        except OSError:
            break
    # Without the shutdown of the interpreter: gloo's threads may outlive it, which aborts the process.
    os._exit(0)


def _allow_many_files() -> None:
    """Raise the limit of open files, usually 1024: each shared tensor is an open file in both processes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


class Idle:
    """Measure how long `device` has no work. Create it after the last launch, just before the host waits."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._last = self._mark() if device.type == "cuda" else None

    def seconds(self, waited: float) -> float:
        """Return how many of the last `waited` seconds the device had no work; on a CPU, all of them."""
        if self._last is None:
            return waited
        if not self._last.query():  # type: ignore[no-untyped-call]
            return 0.0
        now = self._mark()
        now.synchronize()  # returns at once
        idle: float = self._last.elapsed_time(now) / 1000  # from milliseconds
        return min(waited, idle)

    def _mark(self) -> torch.cuda.Event:
        mark = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        mark.record(torch.cuda.current_stream(self._device))
        return mark


PLACE = Path("/dev/shm")  # noqa: S108 - torch uses it for shared memory
# Each tensor is a file there, with whole pages.
PAGE_BYTES = 4096
GIB = 2**30


@dataclass(frozen=True)
class Room:
    """Free bytes of shared memory on a node, and the bytes that all processes of the node need together."""

    free: int
    needed: int


def needed(sizes: Iterable[int], processes: int) -> int:
    """Return the bytes of a copy of tensors of these sizes in each process of a node."""
    return processes * sum(-(-size // PAGE_BYTES) * PAGE_BYTES for size in sizes)


def free() -> int:
    """Return the free bytes in /dev/shm, 0 if it does not exist."""
    try:
        return shutil.disk_usage(PLACE).free
    except OSError:
        return 0


def too_small(rooms: Sequence[Room]) -> str | None:
    """Return why the node with the least room has too little; None if all have enough. Pure."""
    worst = min(rooms, key=lambda room: room.free - room.needed)
    if worst.free >= worst.needed:
        return None
    return (
        f"{PLACE} has {worst.free / GIB:.2f} GiB free, the copies of the processes of a node need "
        f"{worst.needed / GIB:.2f} GiB. Threads write checkpoints, which is slower. "
        "Increase training.sharedMemory (in Docker --shm-size)"
    )
