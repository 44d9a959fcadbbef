"""Save checkpoints while training continues: copy the state, then write the copy in the background.

A failed save never stops training: it is logged and counted, and the next interval saves again. The entry point is
`Saver`. All processes call its constructor, `warm`, `save` and `finish` together, in the same order.
"""

from __future__ import annotations

import tempfile
import threading
import time
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal, cast
from uuid import uuid4

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions

from trainer.checkpoint import engines
from trainer.checkpoint.engines import Engine, Idle, InProcess, InThread, Meeting, SaveFailed
from trainer.checkpoint.layout import Manifest
from trainer.checkpoint.owner import Owner
from trainer.checkpoint.state import State, fingerprint, storage_sizes
from trainer.checkpoint.writer import Cleaner, Writer, one_line
from trainer.scratch import clear
from trainer.stores import Store, StoreError

Background = Literal["thread", "process"]
# A save that takes longer probably hangs.
SLOW_SECONDS = 600.0


@dataclass
class Counts:
    """Counts of this process. Training waits in `blocked_seconds`, and continues in `writing_seconds`.

    Attributes:
        last_size_bytes: The size of the last whole checkpoint, known in rank 0.
        owner_lost: Another run took over the place, so nothing is saved any more. Known in all ranks.
    """

    saved: int = 0
    failed: int = 0
    skipped: int = 0
    deletions_failed: int = 0
    blocked_seconds: float = 0.0
    writing_seconds: float = 0.0
    last_good_step: int | None = None
    last_ended_step: int = 0
    last_blocked_seconds: float = 0.0
    last_writing_seconds: float = 0.0
    last_size_bytes: int | None = None
    owner_lost: bool = False


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


class Saver:
    """Write checkpoints of one run to one store.

    Args:
        store: Where the checkpoints go.
        group: A gloo group of all processes, which no other thread uses.
        keep: How many checkpoints to keep.
        data_digest: The digest of the data, for the manifest.
        device: Where the state is.
        background: "process" is better on cuda, because a thread shares the interpreter's lock with kernel launches. If
            the copies of a node do not fit into /dev/shm, threads are used.
        meeting: Host and port of the TCPStore of the run, for background processes.
        local_size: Processes of this node.
        owner: The claim, in rank 0.
        last_good: The step that was loaded.
        damaged: The damaged steps that the load found.
        scratch: Where files wait for their upload.
        timeout: The timeout of the groups that write.
        log_line: Prints a line.
        clock: A monotonic clock.
    """

    def __init__(
        self,
        store: Store,
        group: dist.ProcessGroup,
        *,
        keep: int,
        data_digest: str,
        device: torch.device,
        background: Background = "thread",
        meeting: tuple[str, int] | None = None,
        local_size: int = 1,
        owner: Owner | None = None,
        last_good: int | None = None,
        damaged: Collection[int] = (),
        scratch: Path | None = None,
        timeout: timedelta = timedelta(minutes=30),
        log_line: Callable[[str], None] = print,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store, self._group, self._owner = store, group, owner
        self._data_digest, self._cleaner = data_digest, Cleaner(store, keep, owner)
        self._damaged = frozenset(damaged)
        self._log_line, self._clock = log_line, clock
        self._rank, self._size = dist.get_rank(group), dist.get_world_size(group)
        self._scratch = scratch or Path(tempfile.gettempdir())
        made = [uuid4().hex[:8]]
        dist.broadcast_object_list(made, src=dist.get_global_rank(group, 0), group=group)
        self._incarnation, self._attempts = made[0], 0
        ranks = dist.get_process_group_ranks(group)
        self._own_group = cast(dist.ProcessGroup, dist.new_group(ranks, backend="gloo", timeout=timeout))
        self._engine: Engine = InThread(self._own_group)
        if background == "process":
            if meeting is None:
                raise ValueError("background processes need the address of the training's store")
            self._engine = InProcess(
                Meeting(*meeting, f"checkpoints-{made[0]}", self._rank, self._size, timeout)
            )
        self._device, self._local_size = device, local_size
        self._stager, self._shared_is_checked = new_stager(device, shared=background == "process"), False
        self._thread: threading.Thread | None = None
        self._in_flight, self._in_flight_since, self._is_slow_logged = "", 0.0, False
        self._is_busy = False
        self._staging: Future[State] | None = None
        # Rank 0 reports the first two. The age of a loaded checkpoint counts from now.
        self._good, self._ended_well, self._good_at = last_good, True, clock()
        self._agreed_well = True
        self.counts = Counts(last_good_step=last_good)

    def warm(self, state: State) -> None:
        """Allocate the memory for copies and start the background process, after the first step.

        Otherwise the first save does this, and fresh memory costs more than the copy.
        """
        self._check_shared(state)
        staging = self._stage(state)
        self.staged()
        failure = staging.exception()
        gathered: list[str | None] = [None] * self._size
        dist.all_gather_object(gathered, one_line(failure) if failure else None, group=self._group)
        failed = [(rank, each) for rank, each in enumerate(gathered) if each]
        if failed:
            self._log_unready(f"no memory for copies: process {failed[0][0]}: {failed[0][1]}")
        if not isinstance(self._engine, InThread):
            self._start(self._start_engine, "the background process's start")

    def save(
        self,
        state: State,
        step: int,
        position: int,
        notes: Mapping[str, Any] | None = None,
        *,
        stalled: float = 0.0,
    ) -> float:
        """Start to save `state`, which must not change until `staged()`. Return the seconds that this blocked.

        Nothing starts while the last save is still running in a process, if this step is already saved, or after
        another run took over the store. `stalled` are the seconds that training already waited for this save.
        """
        began = self._clock()
        self.counts.last_blocked_seconds = 0.0
        self._blocked(stalled)
        busy, lost, dead = self._agree()
        if dead and not busy:
            self._log("alarm=checkpoint reason=a background process is gone; threads write from now on")
            self._engine.close()
            self._engine = InThread(self._own_group)
        if self.counts.last_good_step != step:
            if lost:
                self.counts.skipped += 1
            elif busy:
                self.counts.skipped += 1
                self._log_skipped(step)
            else:
                self._begin(state, step, position, notes)
        return self._blocked(self._clock() - began)

    def staged(self) -> float:
        """Wait until the state may change: before the next optimizer step.

        Return the seconds in which training waited. A device that still computes does not wait.
        """
        staging, self._staging = self._staging, None
        if staging is None:
            return 0.0
        idle, began = Idle(self._device), self._clock()
        staging.exception()  # wait only: the background thread reports an error
        return self._blocked(idle.seconds(self._clock() - began))

    def finish(self, timeout: float | None = None) -> bool:
        """Wait up to `timeout` seconds for the current save. Return whether the last save succeeded."""
        self.staged()
        if self._thread is not None:
            self._thread.join(timeout)
        busy, lost, _ = self._agree()
        return not busy and not lost and self._agreed_well

    @property
    def is_busy(self) -> bool:
        """Whether any process was still writing at the last `save` or `finish`."""
        return self._is_busy

    def close(self) -> None:
        """End the background process. Call this after `finish`."""
        self._engine.close()
        if self._thread is None or not self._thread.is_alive():
            self._stager.close()

    def _agree(self) -> tuple[bool, bool, bool]:
        """Return whether any process is busy, the store was lost, or any engine is dead. Update the counts."""
        busy = self._thread is not None and self._thread.is_alive()
        chief = self._rank == 0
        gathered = torch.tensor(
            [
                busy,
                chief and self._owner is not None and self._owner.lost,
                not busy and self._engine.is_dead,
                self._good if chief and self._good is not None else -1,
                chief and not self._ended_well,
            ],
            dtype=torch.int64,
        )
        dist.all_reduce(gathered, op=dist.ReduceOp.MAX, group=self._group)
        any_busy, lost, dead, good, failed = gathered.tolist()
        self.counts.last_good_step = good if good >= 0 else None
        self.counts.owner_lost = bool(lost)
        self._agreed_well, self._is_busy = not failed, bool(any_busy)
        return bool(any_busy), bool(lost), bool(dead)

    def _check_shared(self, state: State) -> None:
        """Before the first copy, switch to threads in all processes if a node has too little shared memory."""
        if self._shared_is_checked or isinstance(self._engine, InThread):
            return
        self._shared_is_checked = True
        needed = engines.needed(storage_sizes(state), self._local_size)
        own = engines.Room(engines.free(), needed)
        rooms = [own] * self._size
        dist.all_gather_object(rooms, own, group=self._group)
        if reason := engines.too_small(rooms):
            self._log(f"checkpoint=threads reason={reason}")
            self._engine = InThread(self._own_group)
            self._stager.close()
            self._stager = new_stager(self._device, shared=False)

    def _begin(self, state: State, step: int, position: int, notes: Mapping[str, Any] | None) -> None:
        self._attempts += 1
        save_id = f"{self._incarnation}{self._attempts:04x}"
        heading = Manifest(
            step=step,
            position=position,
            world_size=self._size,
            data_digest=self._data_digest,
            fingerprint=fingerprint(state),
            files={},
            notes=dict(notes or {}),
        )
        own_claim = self._owner.own_claim if self._owner else None
        writer = Writer(self._store, heading, save_id, self._scratch, own_claim)
        self._check_shared(state)
        staging = self._stage(state)
        self._start(lambda: self._work(staging, writer, step), f"step {step}")

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
        self._in_flight, self._in_flight_since, self._is_slow_logged = what, self._clock(), False
        self._thread = threading.Thread(target=work, name="checkpoint", daemon=True)
        self._thread.start()

    def _start_engine(self) -> None:
        try:
            self._engine.start()
        except SaveFailed as error:  # the engine is dead, and the next save uses threads
            self._log_unready(str(error))

    def _work(self, staging: Future[State], writer: Writer, step: int) -> None:
        """Write, in the background of all processes. Rank 0 logs the result and deletes surplus checkpoints."""
        began = self._clock()
        try:
            size = self._write(staging, writer, step)
        except Exception as error:
            self.counts.last_ended_step = step
            self.counts.failed += 1
            self._ended_well = False
            self._log_failure(step, str(error) if isinstance(error, SaveFailed) else one_line(error))
            if self._rank == 0:
                self._cleaner.clear_unfinished(step)
        else:
            seconds = self._clock() - began
            self.counts.last_ended_step = step
            self.counts.writing_seconds += seconds
            self.counts.last_writing_seconds = seconds
            self.counts.last_size_bytes = size if self._rank == 0 else None
            self.counts.saved += 1  # last: another thread reads the others when this has changed
            self._good, self._ended_well, self._good_at = step, True, self._clock()
            self._damaged -= {step}
            self._log(
                f"checkpoint=saved step={step} seconds={seconds:.2f} place={self._store.uri(writer.folder)}"
            )
            if self._rank == 0:
                self._delete_surplus(step)
        finally:
            if self._engine.is_dead:  # it did not remove its files
                clear(self._scratch)

    def _write(self, staging: Future[State], writer: Writer, step: int) -> int:
        """Write, and return the bytes in rank 0. If one process can't start, all raise, so that none waits for it."""
        failure: BaseException | None = staging.exception()
        if failure is None and self._rank == 0:
            try:
                self._cleaner.clear(step)  # files of a failed save, or a damaged checkpoint
            except StoreError as error:
                failure = error
        ready = torch.tensor(int(failure is None))
        dist.all_reduce(ready, op=dist.ReduceOp.MIN, group=self._own_group)
        if failure is not None:
            raise failure
        if not ready.item():
            raise SaveFailed("another process could not start")
        return self._engine.run(staging.result(), writer)

    def _delete_surplus(self, newest_good: int) -> None:
        """Delete surplus checkpoints. Failures are counted, and the next save tries again."""
        try:
            for step, error in self._cleaner.surplus(newest_good, self._damaged):
                self.counts.deletions_failed += 1
                self._log(f"checkpoint=kept step={step} reason={error}")
        except StoreError as error:
            self.counts.deletions_failed += 1
            self._log(f"checkpoint=kept reason={error}")

    def _log_skipped(self, step: int) -> None:
        """Log that nothing was saved. If the running save takes too long, raise an alarm once."""
        seconds = self._clock() - self._in_flight_since
        if seconds <= SLOW_SECONDS:
            self._log(f"checkpoint=skipped step={step} reason=the one before is still being written")
        elif not self._is_slow_logged:
            self._is_slow_logged = True
            good = "none" if self._good is None else str(self._good)
            reason = f"{self._in_flight} in flight for {seconds:.0f} s"
            self._log(f"alarm=checkpoint step={step} last_good_step={good} reason={reason}")

    def _log_failure(self, step: int, reason: str) -> None:
        good = "none" if self._good is None else str(self._good)
        age = self._clock() - self._good_at
        self._log(
            f"alarm=checkpoint step={step} failures={self.counts.failed} last_good_step={good} "
            f"last_good_age={age:.0f}s reason={reason}"
        )

    def _log_unready(self, reason: str) -> None:
        """Log and count a problem before the first save like a failed save."""
        self.counts.failed += 1
        good = "none" if self._good is None else str(self._good)
        self._log(f"alarm=checkpoint failures={self.counts.failed} last_good_step={good} reason={reason}")

    def _log(self, line: str) -> None:
        if self._rank == 0:
            self._log_line(line)

    def _blocked(self, seconds: float) -> float:
        self.counts.blocked_seconds += seconds
        self.counts.last_blocked_seconds += seconds
        return seconds
