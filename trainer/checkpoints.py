"""The checkpoints of one run, from the training's side: go on from the newest, save now and then, end well."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import torch.distributed as dist

from trainer import contract
from trainer.checkpoint import layout
from trainer.checkpoint.load import Share, newest, read
from trainer.checkpoint.owner import Owner
from trainer.checkpoint.saver import Counts, Saver
from trainer.checkpoint.state import fingerprint, gather, model_tensors
from trainer.config import Config
from trainer.contract import Exit, TrainerError
from trainer.distributed import from_first, new_group
from trainer.metrics.throughput import Carried, Goodput
from trainer.stores import Store, StoreError, destination
from trainer.training import Training

# A file system that hangs must not keep a training from its end for ever. After a signal the deadline of
# `trainer.shutdown` comes first.
LONGEST_SAVE = timedelta(minutes=30)
LONGEST_WAIT_SECONDS = 600.0
# The names that torchrun gives a run without one: they say nothing of who goes on with what.
_NO_NAMES = ("", "none")


class Checkpoints:
    """Made by all processes together: claims the place, puts the newest checkpoint into `training`, then saves.

    Raises TrainerError in all of them: for a place that another run writes to, that cannot be read or written, and
    that holds checkpoints of another model or of other data.
    """

    def __init__(self, uri: str, training: Training, goodput: Goodput, say: Callable[[str], None]) -> None:
        config, world = training.config, training.world
        self._training, self._goodput, self._every = training, goodput, config.checkpoint_every
        self._say, self._warm = say, False
        store = destination(uri)
        group = new_group(LONGEST_SAVE)
        self._owner = _claim(store, config, group, say)
        share = Share(world.rank, world.size, world.local_rank, world.local_size)
        found = newest(
            store,
            group,
            share,
            model=fingerprint(model_tensors(training.model)),
            data_digest=training.workload.digest,
            say=say,
        )
        if found is not None:
            read(found, training.model, training.optimizer, group)
            dist.barrier(group=group)
            if world.local_rank == 0:
                found.forget()
            self._go_on(found.manifest.step, found.manifest.position, found.manifest.notes)
            if world.rank == 0:
                place = store.uri(layout.name(found.manifest.step))
                say(f"checkpoint=loaded step={training.step} position={training.position} place={place}")
        cuda = training.device.type == "cuda"
        self._saver = Saver(
            store,
            group,
            keep=config.checkpoint_keep,
            data_digest=training.workload.digest,
            device=training.device,
            background="process" if cuda else "thread",
            meeting=(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])) if cuda else None,
            local_size=world.local_size,
            owner=self._owner,
            last_good=found.manifest.step if found else None,
            damaged=found.damaged if found else (),
            scratch=Path(tempfile.gettempdir()),
            timeout=LONGEST_SAVE,
            say=say,
        )

    @property
    def counts(self) -> Counts:
        """What was saved so far, and what failed."""
        return self._saver.counts

    def before_update(self) -> float:
        """Wait until the copy is made that the weights may change after. Returns the seconds."""
        return self._saver.staged()

    def stepped(self) -> float:
        """A step is done: begin a save where one is due. Returns the seconds for which the training stood still.

        After the first step the memory for copies is made, whether a save is due or not. Raises DivergedError in all
        processes where a weight that would be saved is no number: the last good checkpoint must not be replaced.
        """
        is_due = self._training.step % self._every == 0
        if self._warm and not is_due:
            return 0.0
        self._training.wait_for_device()  # what it still computes is the step, and no stall
        began = time.perf_counter()
        if not self._warm:
            self._warm = True
            self._saver.warm(gather(self._training.model, self._training.optimizer))
        if is_due:
            self._training.check_weights()
            self._save(began)
        return time.perf_counter() - began

    def end(self) -> bool:
        """Save what there is, wait until it is durable, and let others have the place. Whether all is saved.

        A save that hangs is waited for LONGEST_WAIT_SECONDS: the model that is done has to be saved all the same.
        """
        well = True
        if self._training.step > 0:
            self._saver.finish(LONGEST_WAIT_SECONDS)
            if not self._saver.is_busy:
                self._save(time.perf_counter())
                well = self._saver.finish(LONGEST_WAIT_SECONDS)
            if self._saver.is_busy:
                well = False
                self._tell_hanging()
        self._saver.close()
        if (
            self._owner is not None and not self._saver.is_busy
        ):  # else it still writes, and a release would hang too
            self._owner.release()
        return well

    def _save(self, began: float) -> None:
        """Begin a save, for which the training stands still since `began`, in seconds of `time.perf_counter`."""
        training = self._training
        state = gather(training.model, training.optimizer)
        stood = time.perf_counter() - began
        self._saver.save(state, training.step, training.position, self._notes(), stood=stood)

    def _tell_hanging(self) -> None:
        if self._training.world.rank == 0:
            good = self._saver.counts.last_good_step
            self._say(
                f"alarm=checkpoint step={self._training.step} last_good_step={'none' if good is None else good} "
                f"reason=a save was not done after {LONGEST_WAIT_SECONDS:.0f} s; the training ends without it"
            )

    def _notes(self) -> dict[str, Any]:
        scaler = self._training.scaler.state_dict()
        return {
            "goodput": self._goodput.carried().document(),
            "scaler": scaler,
            "seed": self._training.config.seed,
        }

    def _go_on(self, step: int, position: int, notes: Mapping[str, Any]) -> None:
        seed = self._training.config.seed
        if notes.get("seed", seed) != seed:
            raise TrainerError(
                Exit.CONFIGURATION,
                f"seed: the checkpoint of step {step} is of a run with {notes['seed']}, this one has {seed}; another "
                "order of the data would repeat some samples and leave others out",
            )
        self._training.go_on(step, position)
        if notes.get("scaler"):
            self._training.scaler.load_state_dict(dict(notes["scaler"]))
        with suppress(ValueError):  # a figure, and not worth a training
            self._goodput.go_on_from(Carried.read(notes.get("goodput", {})))


def _claim(
    store: Store, config: Config, group: dist.ProcessGroup, say: Callable[[str], None]
) -> Owner | None:
    """Rank 0 claims the place for the run; None in the others. Raises TrainerError in all when that fails."""
    owner = Owner(store, _token(config), config.run_id, say=say) if dist.get_rank(group) == 0 else None

    def claimed() -> None:
        assert owner is not None  # noqa: S101 - only rank 0 comes here
        try:
            owner.claim()
        except StoreError as error:
            raise TrainerError(Exit.SAVE, f"checkpoint_uri: {error}") from error
        owner.start()

    from_first(claimed, group)
    return owner


def _token(config: Config) -> str:
    """Who goes on with a run: what is said, the launcher's run, or the processes that one torchrun starts anew.

    The launcher gives each training of a run a rendezvous of its own, so that torchrun's name says nothing there.
    """
    if config.owner:
        return config.owner
    if os.environ.get(contract.RUN_ID):
        return f"run-{config.run_id}"
    started = os.environ.get("TORCHELASTIC_RUN_ID", "")
    return uuid4().hex if started in _NO_NAMES else f"torchrun-{started}"
