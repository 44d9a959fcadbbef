"""Save checkpoints while training continues: copy the state, then write the copy in the background.

A failed save never stops training: it is logged and counted, and the next interval saves again. The entry point is
`Saver`. All processes call its constructor, `allocate`, `save` and `finish` together, in the same order.

A thread writes on CPUs: it starts without cost, but shares the interpreter's lock with the loop. On GPUs, where the
loop launches kernels, a separate process writes (docs/decisions/0036-background-process-of-checkpoints.md).
"""

from __future__ import annotations

import atexit
import multiprocessing
import os
import resource
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.connection import wait
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import torch
import torch.distributed as dist
import torch.multiprocessing
from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
from torch.distributed.tensor import DTensor

from trainer.checkpoint import layout
from trainer.checkpoint.layout import Manifest
from trainer.checkpoint.owner import Owner
from trainer.checkpoint.state import State, fingerprint
from trainer.checkpoint.write import (
    SaveFailed,
    Writer,
    delete_surplus,
    delete_unfinished,
    one_line,
    write,
)
from trainer.contract import Exit, SharedError
from trainer.distributed import gather_objects, new_group
from trainer.metrics.record import Alarm, Checkpoint
from trainer.scratch import clear
from trainer.stores import Store, StoreError

if TYPE_CHECKING:  # the background process needs neither
    from trainer.checkpoint.load import Found
    from trainer.trainer import Trainer

# A file system that hangs must not keep a run from its end. After a signal, the deadline of `trainer.shutdown` is
# shorter.
LONGEST_SAVE = timedelta(minutes=30)
# A save that takes longer probably hangs.
SLOW_SECONDS = 600.0
START_SECONDS, EXIT_SECONDS = 300.0, 5.0
# Training has priority over the background process.
NICE = 10
SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - torch uses it
# Each shared tensor is a file there, with whole pages.
PAGE_BYTES = 4096
GIB = 2**30


@dataclass
class Counts:
    """Counts of this process.

    `last_writing_seconds` is the time until the last checkpoint was durable, in which training continued.
    """

    saved: int = 0
    failed: int = 0
    skipped: int = 0
    last_good_step: int | None = None
    last_writing_seconds: float = 0.0


# Writes a record of this kind with these values (`trainer.reporter.Reporter.write_record`).
Report = Callable[..., object]


class Saver:
    """Write checkpoints of one run to one store.

    No other thread uses `group`, a gloo group of all processes. `found` is the checkpoint that was loaded. Background
    processes join at `store_address`, host and port of the TCPStore of the run. Without it, or if the copies of a node
    do not fit into /dev/shm, threads write. `is_busy` is True if any process was still writing at the last `save` or
    `finish`. `report` gets a record of each save.
    """

    def __init__(
        self,
        store: Store,
        group: dist.ProcessGroup,
        trainer: Trainer,
        owner: Owner | None = None,
        found: Found | None = None,
        *,
        store_address: tuple[str, int] | None = None,
        log_line: Callable[[str], None] = print,
    ) -> None:
        self._store, self._group, self._owner, self._log_line = store, group, owner, log_line
        self._keep, self._data_digest = trainer.config.checkpoint_keep, trainer.workload.digest
        self._rank, self._size = trainer.world.rank, trainer.world.size
        self._damaged = frozenset(found.damaged if found else ())
        last_good = found.manifest.step if found else None
        self.clock, self.scratch = time.monotonic, Path(tempfile.gettempdir())
        self._incarnation, self._attempts = gather_objects(uuid4().hex[:8], group)[0], 0
        self._own_group = new_group(LONGEST_SAVE)
        self._process: BackgroundProcess | None = None
        if store_address is not None:
            self._process = BackgroundProcess(
                *store_address, f"checkpoints-{self._incarnation}", self._rank, self._size
            )
        self._device, self._local_size = trainer.device, trainer.world.local_size
        self._stager = new_stager(trainer.device, shared=store_address is not None)
        self._thread: threading.Thread | None = None
        self._in_flight, self._in_flight_since, self._is_slow_logged = "", 0.0, False
        self.is_busy = False
        self._staging: Future[State] | None = None
        # Rank 0 reports the first two. The age of a loaded checkpoint counts from now.
        self._good, self._ended_well, self._good_at = last_good, True, self.clock()
        self._agreed_well = True
        self._save_blocked = 0.0  # by the current save
        self.report: Report = lambda *_, **__: None
        self.counts = Counts(last_good_step=last_good)

    def allocate(self, state: State) -> None:
        """Allocate the memory for copies and start the background process, after the first step.

        Otherwise the first save does this, and fresh memory costs more than the copy.
        """
        self._check_shared(state)
        staging = self._stage(state)
        self.staged()
        failure = staging.exception()
        failures = gather_objects(one_line(failure) if failure else None, self._group)
        first = next((f"process {rank}: {each}" for rank, each in enumerate(failures) if each), None)
        if first:
            self._failed(f"no memory for copies: {first}")
        if self._process is not None:
            self._start(self._start_process, "the start of the background process")

    def save(
        self,
        state: State,
        step: int,
        position: int,
        notes: Mapping[str, Any] | None = None,
        *,
        stalled: float = 0.0,
    ) -> None:
        """Start to save `state`, which must not change until `staged()`.

        Nothing starts while the last save is still running in a process, or if this step is already saved. `stalled`
        are the seconds that training already waited for this save.

        Raises:
            SharedError: Another run took over the store. All processes raise this.
        """
        began = self.clock() - stalled
        is_dead = self._agree()
        if self._process is not None and is_dead and not self.is_busy:
            self._log("alarm=checkpoint reason=a background process is gone; threads write from now on")
            self._process.close()
            self._process = None
        if self.counts.last_good_step == step:
            return
        if self.is_busy:
            self.counts.skipped += 1
            self._log_skipped(step)
            self._report_save(step, "skipped", self.clock() - began)
            return
        writer = self._new_writer(state, step, position, notes)
        staging = self._stage(state)
        self._save_blocked = self.clock() - began
        self._start(lambda: self._work(staging, writer), f"the save of step {step}")

    def staged(self) -> float:
        """Wait until the state may change: before the next optimizer step.

        Return the seconds in which training waited. A device that still computes does not wait.
        """
        staging, self._staging = self._staging, None
        if staging is None:
            return 0.0
        idle, began = Idle(self._device), self.clock()
        staging.exception()  # wait only: the background thread reports an error
        waited = idle.seconds(self.clock() - began)
        self._save_blocked += waited
        return waited

    def finish(self, timeout: float | None = None) -> bool:
        """Wait up to `timeout` seconds for the current save. Return whether the last save succeeded.

        Raises:
            SharedError: Another run took over the store. All processes raise this.
        """
        self.staged()
        if self._thread is not None:
            self._thread.join(timeout)
        self._agree()
        return not self.is_busy and self._agreed_well

    def close(self) -> None:
        """End the background process. Call this after `finish`."""
        if self._process is not None:
            self._process.close()
        if self._thread is None or not self._thread.is_alive():
            self._stager.close()

    def _agree(self) -> bool:
        """Agree on `is_busy` and the counts of all ranks. Return whether any background process is dead.

        Raises:
            SharedError: Another run took over the store, so that this run must not write there any more.
        """
        busy = self._thread is not None and self._thread.is_alive()
        chief = self._rank == 0
        takeover = self._owner.takeover if chief and self._owner is not None else ""
        gathered = torch.tensor(
            [
                busy,
                bool(takeover),
                not busy and self._process is not None and self._process.is_dead,
                self._good if chief and self._good is not None else -1,
                chief and not self._ended_well,
            ],
            dtype=torch.int64,
        )
        dist.all_reduce(gathered, op=dist.ReduceOp.MAX, group=self._group)
        any_busy, lost, dead, good, failed = gathered.tolist()
        if lost:
            raise SharedError(
                Exit.CONFIGURATION,
                f"checkpoints: {takeover or 'the place was taken over'}. This run ends; stop the other run before you "
                "start it again",
            )
        self.counts.last_good_step = good if good >= 0 else None
        self.is_busy, self._agreed_well = bool(any_busy), not failed
        return bool(dead)

    def _check_shared(self, state: State) -> None:
        """Before the first copy, switch to threads in all processes if a node has too little shared memory."""
        if self._process is None:
            return
        room = (free_shared_memory(), needed_shared_memory(state, self._local_size))
        if reason := too_small(gather_objects(room, self._group)):
            self._log(f"checkpoint=threads reason={reason}")
            self._process = None
            self._stager.close()
            self._stager = new_stager(self._device, shared=False)

    def _new_writer(self, state: State, step: int, position: int, notes: Mapping[str, Any] | None) -> Writer:
        self._attempts += 1
        manifest = Manifest(
            step=step,
            position=position,
            world_size=self._size,
            data_digest=self._data_digest,
            fingerprint=fingerprint(state),
            files={},
            notes=dict(notes or {}),
        )
        generation = self._owner.generation if self._owner else None
        save_id = f"{self._incarnation}{self._attempts:04x}"
        return Writer(self._store, manifest, save_id, self.scratch, generation)

    def _stage(self, state: State) -> Future[State]:
        staging: Future[State] = Future()
        try:
            if self._device.type == "cuda":
                # The stager copies on a separate stream, which does not wait for the current computation.
                torch.cuda.current_stream(self._device).synchronize()
            staged: Any = self._stager.stage(state)
        except Exception as error:
            staging.set_exception(error)
        else:
            if isinstance(staged, Future):
                staging = staged
            else:
                staging.set_result(staged)
        self._staging = staging
        return staging

    def _start(self, work: Callable[[], None], what: str) -> None:
        self._in_flight, self._in_flight_since, self._is_slow_logged = what, self.clock(), False
        self._thread = threading.Thread(target=work, name="checkpoint", daemon=True)
        self._thread.start()

    def _start_process(self) -> None:
        assert self._process is not None  # noqa: S101 - only `allocate` starts this
        try:
            self._process.start()
        except SaveFailed as error:  # it is dead, and the next save uses threads
            self._failed(str(error))

    def _work(self, staging: Future[State], writer: Writer) -> None:
        """Write, in the background of all processes. Rank 0 logs the result and deletes surplus checkpoints."""
        began, step, process = self.clock(), writer.manifest.step, self._process
        try:
            failure = staging.exception()
            writer.failure = one_line(failure) if failure else None
            state = {} if failure else staging.result()
            size = process.write(state, writer) if process else write(state, writer, self._own_group)
        except Exception as error:
            self._ended_well = False
            self._failed(one_line(error), step)
            if self._rank == 0:
                if self._owner is not None:
                    self._owner.renew()  # a takeover is one of the reasons
                delete_unfinished(self._store, step, writer.generation)
        else:
            seconds = self.clock() - began
            self.counts.last_writing_seconds = seconds
            self.counts.saved += 1  # last: tests/benchmarks/saves.py reads the others when this has changed
            self._good, self._ended_well, self._good_at = step, True, self.clock()
            self._damaged -= {step}
            place = self._store.uri(writer.folder)
            self._log(f"checkpoint=saved step={step} seconds={seconds:.2f} place={place}")
            self._report_save(step, "saved", self._save_blocked, seconds, size)
            if self._rank == 0:
                self._delete_surplus(writer)
        finally:
            if process is not None and process.is_dead:  # it did not remove its files
                clear(self.scratch)

    def _delete_surplus(self, writer: Writer) -> None:
        # The next save tries again what fails.
        step, generation = writer.manifest.step, writer.generation
        try:
            for failed, error in delete_surplus(self._store, step, self._keep, self._damaged, generation):
                self._log(f"checkpoint=kept step={failed} reason={error}")
        except StoreError as error:
            self._log(f"checkpoint=kept reason={error}")

    def _log_skipped(self, step: int) -> None:
        """Log that nothing was saved. If the work in flight takes too long, raise an alarm once."""
        seconds = self.clock() - self._in_flight_since
        if seconds <= SLOW_SECONDS:
            self._log(f"checkpoint=skipped step={step} reason={self._in_flight} is not done")
        elif not self._is_slow_logged:
            self._is_slow_logged = True
            self._alarm(f"{self._in_flight} is not done after {seconds:.0f} s", f"step={step}")

    def _failed(self, reason: str, step: int | None = None) -> None:
        """Count and log a failed save or, without a step, a problem before the first one.

        Rank 0 logs it. A rank whose background process is dead logs it too, because rank 0 does not know that reason.
        """
        self.counts.failed += 1
        facts = [] if step is None else [f"step={step}"]
        facts.append(f"failures={self.counts.failed}")
        age = None if step is None else self.clock() - self._good_at
        if self._rank and self._process is not None and self._process.is_dead:
            self._log_line(f"alarm=checkpoint rank={self._rank} {' '.join(facts)} reason={reason}")
        self._alarm(reason, *facts, age=age)
        self._report_save(step or 0, "failed", self._save_blocked)
        self.report(Alarm, alarm="checkpoint", message="a checkpoint failed. See the log")

    def _report_save(
        self, step: int, outcome: str, blocked: float, seconds: float | None = None, size: int | None = None
    ) -> None:
        self.report(
            Checkpoint,
            name=layout.name(step),
            outcome=outcome,
            blocked_seconds=blocked,
            durable_seconds=seconds,
            size_bytes=size,
        )

    def _alarm(self, reason: str, *facts: str, age: float | None = None) -> None:
        good = "none" if self._good is None else str(self._good)
        known = [*facts, f"last_good_step={good}", *([] if age is None else [f"last_good_age={age:.0f}s"])]
        self._log(f"alarm=checkpoint {' '.join(known)} reason={reason}")

    def _log(self, line: str) -> None:
        if self._rank == 0:
            self._log_line(line)


def new_stager(device: torch.device, shared: bool) -> DefaultStager:
    """Return a stager that copies a state from `device` to CPU memory, which can be `shared` with other processes.

    On CUDA, the current device of its thread is set to `device`. By default this is the first GPU of the node, where
    CUDA 12 and later would create a context: half a gigabyte of that GPU for each other process.
    """
    cuda = device.type == "cuda"
    stager = DefaultStager(
        StagingOptions(
            use_pinned_memory=cuda,
            use_shared_memory=shared,
            use_async_staging=cuda,
            use_non_blocking_copy=cuda,
        )
    )
    if stager._staging_executor is not None:
        stager._staging_executor.submit(torch.cuda.set_device, device).result()
    return stager


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


class BackgroundProcess:
    """A process beside this one that writes checkpoints. It only shares the memory of the staged state.

    It starts once, and ends with its trainer. Those of all ranks join under `prefix` in the TCPStore of the run.
    """

    def __init__(self, host: str, port: int, prefix: str, rank: int, size: int) -> None:
        self._store_address = (host, port, prefix, rank, size)
        self._pool: ProcessPoolExecutor | None = None
        self._process: multiprocessing.process.BaseProcess | None = None
        self._failed = False

    @property
    def is_dead(self) -> bool:
        """Whether it can't write any more."""
        # Not `is_alive`: the thread of the pool may just have collected the exit code without having stored it.
        return self._failed or (self._process is not None and bool(wait([self._process.sentinel], timeout=0)))

    def start(self) -> None:
        """Start and join the processes of the other ranks, which takes seconds. Raise SaveFailed."""
        if self._pool is not None:
            return
        # Each shared tensor is an open file in both processes, and the limit is usually 1024.
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        context = torch.multiprocessing.get_context("spawn")
        self._pool = ProcessPoolExecutor(1, context, initializer=_init_process)
        try:
            pid = self._pool.submit(_join, *self._store_address).result(START_SECONDS)
        except Exception as error:
            self._failed = True
            late = isinstance(error, TimeoutError)
            reason = f"not ready after {START_SECONDS:.0f} s" if late else one_line(error)
            raise SaveFailed(f"the background process cannot be started: {reason}") from error
        self._process = next((each for each in multiprocessing.active_children() if each.pid == pid), None)

    def write(self, state: State, writer: Writer) -> int:
        """Write one checkpoint. Return its bytes in rank 0. Raise SaveFailed."""
        self.start()
        assert self._pool is not None  # noqa: S101 - it was just started
        try:
            return self._pool.submit(write, state, writer).result()
        except SaveFailed:
            raise
        except BrokenProcessPool as error:
            self._failed = True
            raise SaveFailed(f"the background process is gone (exit code {self._exit_code()})") from error
        except Exception as error:
            self._failed = True
            if self._process is not None:
                self._process.kill()  # the processes of the other ranks would wait for it, up to LONGEST_SAVE
            reason = f"the state could not be sent to the background process: {one_line(error)}"
            raise SaveFailed(reason) from error

    def close(self) -> None:
        """Let the process end after its last save."""
        if self._pool is not None:
            self._pool.shutdown(wait=False)

    def _exit_code(self) -> int | None:
        """Return the exit code of a process that ended. The thread of the pool sets it in a moment."""
        until = time.monotonic() + EXIT_SECONDS
        while self._process is not None and time.monotonic() < until:
            if self._process.exitcode is not None:
                return self._process.exitcode
            time.sleep(0.05)
        return None


def _init_process() -> None:
    """Set up the background process. It ends with its trainer."""
    # torchrun signals all processes of a worker, and the last save comes after that signal.
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    with suppress(OSError):
        os.nice(NICE)
    torch.set_num_threads(1)
    # Without the shutdown of the interpreter: gloo's threads may outlive it, which aborts the process.
    atexit.register(os._exit, 0)
    threading.Thread(target=_end_with_trainer, daemon=True).start()


def _end_with_trainer() -> None:
    trainer = multiprocessing.parent_process()
    if trainer is not None:
        trainer.join()
    os._exit(0)


def _join(host: str, port: int, prefix: str, rank: int, size: int) -> int:
    """Create the process group of the background processes, whose world they are. Return the process id."""
    store = PrefixStore(prefix, TCPStore(host, port, is_master=False, timeout=LONGEST_SAVE))
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size, timeout=LONGEST_SAVE)
    return os.getpid()


def needed_shared_memory(state: State, processes: int) -> int:
    """Return the bytes of a copy of the storages of these tensors in each process of a node."""
    locals_ = (each.to_local() if isinstance(each, DTensor) else each for each in state.values())
    storages = {each.data_ptr(): each.nbytes() for each in (tensor.untyped_storage() for tensor in locals_)}
    return processes * sum(-(-size // PAGE_BYTES) * PAGE_BYTES for size in storages.values())


def free_shared_memory() -> int:
    """Return the free bytes in /dev/shm, 0 if it does not exist."""
    try:
        return shutil.disk_usage(SHARED_MEMORY).free
    except OSError:
        return 0


def too_small(rooms: Sequence[tuple[int, int]]) -> str | None:
    """Return why the node with the least room has too little shared memory; None if all have enough.

    `rooms` has the free bytes of the node of each process, and the bytes that all processes of that node need. A
    process that writes more than there is would be killed by SIGBUS. It is 64 MiB in Docker
    (docs.docker.com/reference/cli/docker/container/run, --shm-size).
    """
    free, needed = min(rooms, key=lambda room: room[0] - room[1])
    if free >= needed:
        return None
    return (
        f"{SHARED_MEMORY} has {free / GIB:.2f} GiB free, the copies of the processes of a node need "
        f"{needed / GIB:.2f} GiB. Threads write checkpoints, which is slower. "
        "Increase training.sharedMemory (in Docker --shm-size)"
    )
