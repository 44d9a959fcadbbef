"""The checkpoints of one run: resume from the newest, save at intervals, and save at the end."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any
from uuid import uuid4

import torch
import torch.distributed as dist

from trainer import contract
from trainer.checkpoint import layout
from trainer.checkpoint.load import newest, read
from trainer.checkpoint.owner import Owner
from trainer.checkpoint.save import LONGEST_SAVE, Counts, Report, Saver
from trainer.checkpoint.state import MODEL, State, fingerprint, gather, model_tensors
from trainer.config import Config
from trainer.contract import Exit, TrainerError
from trainer.distributed import from_first, new_group
from trainer.metrics.throughput import Carried, Goodput
from trainer.stores import Store, StoreError, destination
from trainer.trainer import Trainer

# A save that hangs must not keep a run from its end.
LONGEST_WAIT_SECONDS = 600.0
# torchrun's run ids if the user sets none. They do not identify a run.
_DEFAULT_IDS = ("", "none")


class Checkpointer:
    """Claim the place, load the newest checkpoint into `trainer`, and save later. All processes create it together.

    The loop calls `wait_for_copy` before and `save_if_due` after each update of the weights. `train.run` calls `close`.

    Raises:
        TrainerError: Another run writes to the place, it can't be read or written, or it has checkpoints of another
            model or other data. All processes raise this.
    """

    def __init__(self, uri: str, trainer: Trainer, goodput: Goodput, log_line: Callable[[str], None]) -> None:
        config, world = trainer.config, trainer.world
        self._trainer, self._goodput, self._every = trainer, goodput, config.checkpoint_every
        self._log_line, self._has_allocated = log_line, False
        self._buffers: State = {}
        store = destination(uri)
        group = new_group(LONGEST_SAVE)
        self._owner = _claim(store, config, group, log_line)
        found = newest(
            store,
            group,
            world,
            model=fingerprint(model_tensors(trainer.model)),
            data_digest=trainer.workload.digest,
            log_line=log_line,
        )
        if found is not None:
            read(found, trainer.model, trainer.optimizer, group)
            dist.barrier(group=group)
            if world.local_rank == 0:
                found.forget()
            self._resume(found.manifest.step, found.manifest.position, found.manifest.notes)
            if world.rank == 0:
                place = store.uri(layout.name(found.manifest.step))
                log_line(f"checkpoint=loaded step={trainer.step} position={trainer.position} place={place}")
        cuda = trainer.device.type == "cuda"
        store_address = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])) if cuda else None
        self._saver = Saver(
            store, group, trainer, self._owner, found, store_address=store_address, log_line=log_line
        )

    @property
    def counts(self) -> Counts:
        """How many saves succeeded and failed."""
        return self._saver.counts

    def report_to(self, report: Report) -> None:
        """Let `report` write a record of each save and alarm."""
        self._saver.report = report

    def wait_for_copy(self) -> float:
        """Wait until the last save has copied the state and the weights may change. Return the seconds."""
        return self._pause(self._saver.staged())

    def save_if_due(self) -> float:
        """Start a save after a step, if one is due. Return the seconds in which training waited.

        After the first step, allocate the memory for copies.

        Raises:
            SharedError: Another run took over the place, or a weight is infinite or NaN, which must not replace the
                last good checkpoint.
        """
        is_due = self._trainer.step % self._every == 0
        if self._has_allocated and not is_due:
            return 0.0
        self._trainer.wait_for_device()  # the rest of the step is not a stall
        began = time.perf_counter()
        if not self._has_allocated:
            self._has_allocated = True
            self._saver.allocate(self._gather())
        if is_due:
            self._trainer.check_weights()
            self._save(began)
        return self._pause(time.perf_counter() - began)

    def close(self) -> bool:
        """Save the last step, wait until it is durable, and release the place. Return whether all is saved.

        A save that hangs gets LONGEST_WAIT_SECONDS, because the finished model must be saved after it.

        Raises:
            SharedError: Another run took over the place, and may have saved its model meanwhile.
        """
        is_saved = True
        if self._trainer.step > 0:
            self._saver.finish(LONGEST_WAIT_SECONDS)
            if not self._saver.is_busy:
                self._save(time.perf_counter())
                is_saved = self._saver.finish(LONGEST_WAIT_SECONDS)
            if self._saver.is_busy:
                is_saved = False
                if self._trainer.world.rank == 0:
                    good = self._saver.counts.last_good_step
                    self._log_line(
                        f"alarm=checkpoint step={self._trainer.step} "
                        f"last_good_step={'none' if good is None else good} reason=a save was not done after "
                        f"{LONGEST_WAIT_SECONDS:.0f} s; the run ends without it"
                    )
        self._saver.close()
        # A busy saver still writes, and a release would hang too.
        if self._owner is not None and not self._saver.is_busy:
            self._owner.release()
        return is_saved

    def _pause(self, seconds: float) -> float:
        self._goodput.pause(seconds)
        return seconds

    def _save(self, began: float) -> None:
        """Start a save. Training waits for it since `began`, in seconds of `time.perf_counter`."""
        trainer = self._trainer
        state = self._gather()
        stalled = time.perf_counter() - began
        self._saver.save(state, trainer.step, trainer.position, self._notes(), stalled=stalled)

    def _gather(self) -> State:
        """Return the tensors to save. The buffers are copies of those of rank 0.

        A forward pass may change buffers, such as the statistics of BatchNorm, in each rank from its own samples. DDP
        then replaces them with those of rank 0, and the next one may begin while the state is copied.
        """
        trainer = self._trainer
        state = gather(trainer.model, trainer.optimizer)
        for name, buffer in trainer.network.named_buffers():
            key = MODEL + name
            if key in state:
                if key not in self._buffers:
                    self._buffers[key] = torch.empty_like(buffer, memory_format=torch.contiguous_format)
                state[key] = self._buffers[key].copy_(buffer)
                # As bytes, since gloo does not support all dtypes.
                dist.broadcast(state[key].flatten().view(torch.uint8), src=0)
        return state

    def _notes(self) -> dict[str, Any]:
        return {
            "goodput": asdict(self._goodput.carried()),
            "scaler": self._trainer.scaler.state_dict(),
            "seed": self._trainer.config.seed,
        }

    def _resume(self, step: int, position: int, notes: Mapping[str, Any]) -> None:
        seed = self._trainer.config.seed
        if notes["seed"] != seed:
            raise TrainerError(
                Exit.CONFIGURATION,
                f"seed: the checkpoint of step {step} has seed {notes['seed']}, this run has {seed}; another order of "
                f"the data would repeat some samples and skip others. Use --seed {notes['seed']}",
            )
        self._trainer.resume(step, position)
        if notes["scaler"]:  # it is empty without a scaler
            self._trainer.scaler.load_state_dict(dict(notes["scaler"]))
        self._goodput.resume_from(Carried(**notes["goodput"]))


def _claim(
    store: Store, config: Config, group: dist.ProcessGroup, log_line: Callable[[str], None]
) -> Owner | None:
    """Claim the place in rank 0. Return None in the others. All raise TrainerError if it fails."""
    owner = (
        Owner(store, _token(config), config.run_id, log_line=log_line) if dist.get_rank(group) == 0 else None
    )

    def claimed() -> None:
        assert owner is not None  # noqa: S101 - rank 0
        try:
            owner.claim()
        except StoreError as error:
            raise TrainerError(error.code, f"checkpoint_uri: {error}") from error
        owner.start()

    from_first(claimed, group)
    return owner


def _token(config: Config) -> str:
    """Return what identifies the run after a restart: the setting, the launcher's run, or torchrun's run id.

    The launcher uses another rendezvous for each attempt of a run, so torchrun's id does not identify the run there.
    """
    if config.owner:
        return config.owner
    if os.environ.get(contract.RUN_ID):
        return f"run-{config.run_id}"
    run_id = os.environ.get("TORCHELASTIC_RUN_ID", "")
    return uuid4().hex if run_id in _DEFAULT_IDS else f"torchrun-{run_id}"
