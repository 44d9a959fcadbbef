"""Saves checkpoints while the training goes on: copy the state, then write the copy in the background.

A save that fails never stops the training: it is told in one line, counted, and tried again at the next interval.
`save`, `finish` and the constructor are called by all processes together, in the same order.
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
# A save that takes longer has most likely stopped: a file system or a process that hangs.
SLOW_SECONDS = 600.0


@dataclass
class Counts:
    """What happened so far, as this process sees it: `blocked` is what training waited, `writing` went on beside.

    `last_size_bytes` is that of the whole checkpoint that was saved last, known in rank 0. `owner_lost` tells all that
    another run took the place over: nothing is saved any more.
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
    """Copies a state from `device` into the CPU's memory, `shared` with other processes or not.

    On a GPU its thread stays on that one. It would begin on the machine's first, and come back there after each copy
    (torch.Stream's `with`), where CUDA from 12 on makes a context: half a gigabyte of that GPU for each other process.
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
    """Writes checkpoints of one run into one store.

    `group` is a gloo group of all processes that no other thread uses; the saver makes another one for itself. `device`
    is where the state lies; on cuda `background` should be "process": a thread takes the interpreter from the launches.
    `meeting` (host, port) is the training's TCPStore, for background processes; where the copies of a machine's
    `local_size` processes do not fit into /dev/shm, threads write after all. `owner` is rank 0's claim, None in the
    others. `last_good` and `damaged` are the steps that the load found. `scratch` is where files wait for their upload.
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
        say: Callable[[str], None] = print,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store, self._group, self._owner = store, group, owner
        self._data_digest, self._cleaner = data_digest, Cleaner(store, keep, owner)
        self._damaged = frozenset(damaged)
        self._say, self._clock = say, clock
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
        self._in_flight, self._in_flight_since, self._slow_is_told = "", 0.0, False
        self._is_busy = False
        self._staging: Future[State] | None = None
        # The first two are rank 0's to tell. The age of what was loaded counts from here.
        self._good, self._ended_well, self._good_at = last_good, True, clock()
        self._agreed_well = True
        self.counts = Counts(last_good_step=last_good)

    def warm(self, state: State) -> None:
        """Make the memory for copies now and begin to start the process: after the first step, before what is timed.

        Fresh memory costs more than the copy into it. The first save does it otherwise.
        """
        self._check_shared(state)
        staging = self._stage(state)
        self.staged()
        failure = staging.exception()
        told: list[str | None] = [None] * self._size
        dist.all_gather_object(told, one_line(failure) if failure else None, group=self._group)
        failed = [(rank, each) for rank, each in enumerate(told) if each]
        if failed:
            self._tell_unready(f"no memory for copies: process {failed[0][0]}: {failed[0][1]}")
        if not isinstance(self._engine, InThread):
            self._start(self._start_engine, "the background process's start")

    def save(
        self,
        state: State,
        step: int,
        position: int,
        notes: Mapping[str, Any] | None = None,
        *,
        stood: float = 0.0,
    ) -> float:
        """Begin to save `state`, which has to stay as it is until `staged()`. Returns the seconds for which it blocked.

        `stood` are seconds for which the training has stood still for this save already; they are told with it. Nothing
        begins while the last save is not done in all processes, when this step is saved already, or after another run
        took the store over.
        """
        began = self._clock()
        self.counts.last_blocked_seconds = 0.0
        self._blocked(stood)
        busy, lost, dead = self._agree()
        if dead and not busy:
            self._tell("alarm=checkpoint reason=a background process is gone; threads write from now on")
            self._engine.close()
            self._engine = InThread(self._own_group)
        if self.counts.last_good_step != step:
            if lost:
                self.counts.skipped += 1
            elif busy:
                self.counts.skipped += 1
                self._tell_skipped(step)
            else:
                self._begin(state, step, position, notes)
        return self._blocked(self._clock() - began)

    def staged(self) -> float:
        """Wait until the state may change again: before the next optimizer step.

        Returns the seconds for which that kept the training: a device that still computes is not kept.
        """
        staging, self._staging = self._staging, None
        if staging is None:
            return 0.0
        idle, began = Idle(self._device), self._clock()
        staging.exception()  # what went wrong is told by the background
        return self._blocked(idle.seconds(self._clock() - began))

    def finish(self, timeout: float | None = None) -> bool:
        """Wait, at most so many seconds, for the save that is under way. True when the last save ended well."""
        self.staged()
        if self._thread is not None:
            self._thread.join(timeout)
        busy, lost, _ = self._agree()
        return not busy and not lost and self._agreed_well

    @property
    def is_busy(self) -> bool:
        """Whether, when all last asked each other in `save` or `finish`, any was still at work."""
        return self._is_busy

    def close(self) -> None:
        """End the background process; comes after `finish`."""
        self._engine.close()
        if self._thread is None or not self._thread.is_alive():
            self._stager.close()

    def _agree(self) -> tuple[bool, bool, bool]:
        """Whether any process is busy, the store was lost, or any engine is dead; and rank 0's last outcome."""
        busy = self._thread is not None and self._thread.is_alive()
        chief = self._rank == 0
        told = torch.tensor(
            [
                busy,
                chief and self._owner is not None and self._owner.lost,
                not busy and self._engine.is_dead,
                self._good if chief and self._good is not None else -1,
                chief and not self._ended_well,
            ],
            dtype=torch.int64,
        )
        dist.all_reduce(told, op=dist.ReduceOp.MAX, group=self._group)
        any_busy, lost, dead, good, failed = told.tolist()
        self.counts.last_good_step = good if good >= 0 else None
        self.counts.owner_lost = bool(lost)
        self._agreed_well, self._is_busy = not failed, bool(any_busy)
        return bool(any_busy), bool(lost), bool(dead)

    def _check_shared(self, state: State) -> None:
        """Before the first copy: all processes together take threads where one machine has too little shared memory."""
        if self._shared_is_checked or isinstance(self._engine, InThread):
            return
        self._shared_is_checked = True
        needed = engines.needed(storage_sizes(state), self._local_size)
        own = engines.Room(engines.free(), needed)
        rooms = [own] * self._size
        dist.all_gather_object(rooms, own, group=self._group)
        if reason := engines.too_small(rooms):
            self._tell(f"checkpoint=threads reason={reason}")
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
        held = self._owner.held if self._owner else None
        writer = Writer(self._store, heading, save_id, self._scratch, held)
        self._check_shared(state)
        staging = self._stage(state)
        self._start(lambda: self._work(staging, writer, step), f"step {step}")

    def _stage(self, state: State) -> Future[State]:
        staging: Future[State] = Future()
        try:
            if self._device.type == "cuda":
                # The stager copies on a stream of its own, which does not wait for what is still to be computed.
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
        self._in_flight, self._in_flight_since, self._slow_is_told = what, self._clock(), False
        self._thread = threading.Thread(target=work, name="checkpoint", daemon=True)
        self._thread.start()

    def _start_engine(self) -> None:
        try:
            self._engine.start()
        except SaveFailed as error:  # it is dead then, and the next save takes threads
            self._tell_unready(str(error))

    def _work(self, staging: Future[State], writer: Writer, step: int) -> None:
        """In the background, in all processes: write, and in rank 0 say how it went and delete what is too much."""
        began = self._clock()
        try:
            size = self._write(staging, writer, step)
        except Exception as error:
            self.counts.last_ended_step = step
            self.counts.failed += 1
            self._ended_well = False
            self._tell_failure(step, str(error) if isinstance(error, SaveFailed) else one_line(error))
            if self._rank == 0:
                self._cleaner.clear_unfinished(step)
        else:
            seconds = self._clock() - began
            self.counts.last_ended_step = step
            self.counts.writing_seconds += seconds
            self.counts.last_writing_seconds = seconds
            self.counts.last_size_bytes = size if self._rank == 0 else None
            self.counts.saved += 1  # last: another thread looks at the rest when this has changed
            self._good, self._ended_well, self._good_at = step, True, self._clock()
            self._damaged -= {step}
            self._tell(
                f"checkpoint=saved step={step} seconds={seconds:.2f} place={self._store.uri(writer.folder)}"
            )
            if self._rank == 0:
                self._delete_surplus(step)
        finally:
            if self._engine.is_dead:  # it could not remove its files
                clear(self._scratch)

    def _write(self, staging: Future[State], writer: Writer, step: int) -> int:
        """In rank 0 the bytes. Raises in all when one fails: a process that could not begin must not be waited for."""
        failure: BaseException | None = staging.exception()
        if failure is None and self._rank == 0:
            try:
                self._cleaner.clear(step)  # what a failed save left, or damage that the load found
            except StoreError as error:
                failure = error
        ready = torch.tensor(int(failure is None))
        dist.all_reduce(ready, op=dist.ReduceOp.MIN, group=self._own_group)
        if failure is not None:
            raise failure
        if not ready.item():
            raise SaveFailed("another process could not begin")
        return self._engine.run(staging.result(), writer)

    def _delete_surplus(self, newest_good: int) -> None:
        """What cannot be deleted is counted, and tried again after the next save."""
        try:
            for step, error in self._cleaner.surplus(newest_good, self._damaged):
                self.counts.deletions_failed += 1
                self._tell(f"checkpoint=kept step={step} reason={error}")
        except StoreError as error:
            self.counts.deletions_failed += 1
            self._tell(f"checkpoint=kept reason={error}")

    def _tell_skipped(self, step: int) -> None:
        """Nothing is begun now. Once per save that is in the way it is an alarm, when that takes suspiciously long."""
        seconds = self._clock() - self._in_flight_since
        if seconds <= SLOW_SECONDS:
            self._tell(f"checkpoint=skipped step={step} reason=the one before is still being written")
        elif not self._slow_is_told:
            self._slow_is_told = True
            good = "none" if self._good is None else str(self._good)
            reason = f"{self._in_flight} in flight for {seconds:.0f} s"
            self._tell(f"alarm=checkpoint step={step} last_good_step={good} reason={reason}")

    def _tell_failure(self, step: int, reason: str) -> None:
        good = "none" if self._good is None else str(self._good)
        age = self._clock() - self._good_at
        self._tell(
            f"alarm=checkpoint step={step} failures={self.counts.failed} last_good_step={good} "
            f"last_good_age={age:.0f}s reason={reason}"
        )

    def _tell_unready(self, reason: str) -> None:
        """What went wrong before any save: counted and told like one that failed."""
        self.counts.failed += 1
        good = "none" if self._good is None else str(self._good)
        self._tell(f"alarm=checkpoint failures={self.counts.failed} last_good_step={good} reason={reason}")

    def _tell(self, line: str) -> None:
        if self._rank == 0:
            self._say(line)

    def _blocked(self, seconds: float) -> float:
        self.counts.blocked_seconds += seconds
        self.counts.last_blocked_seconds += seconds
        return seconds
