"""Reports a failure of this process to all others, and stops a run whose loss is infinite or NaN.

A process that fails alone leaves the others in a collective operation that it never enters: gloo reports a lost
connection, NCCL nothing. So it writes its exit code into the common store. A thread of each process reads the store
once a second, independent of what the main thread waits for. The steps of the training have no extra cost.

A loss that is infinite or NaN makes every weight NaN with the next update, and no later step repairs that. The loss is
checked where the training waits for the device anyway.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import Store  # type: ignore[attr-defined]

from trainer.contract import Exit, TrainerError
from trainer.process import Leave, leave
from trainer.world import World

LOOK_SECONDS = 1.0
# The store may be kept by the process that fails, or by one that hears of it: it stays until the last has heard. One
# that was killed or hangs is not waited for any longer.
HEARD_SECONDS = 3.0
# Who failed ends first, with all that it has to say: torchrun takes the first for the cause, and stops the rest.
LINGER_SECONDS = 1.0
# When the store is gone, the main thread mostly knows by itself, and says more; else its machine is gone, too.
GONE_SECONDS = 5.0
_FAILURE, _HEARD = "failure", "failure heard"


def told_by(rank: int) -> str:
    """What other machines' logs say of an end that process `rank` explains in its own."""
    return f"process {rank} could not go on; its log says why"


class SharedError(TrainerError):
    """What all processes raise alike, so that none has to tell the others: rank 0 says it for all."""


class LoneError(TrainerError):
    """What this process alone could not do: the others are to be told."""


@contextmanager
def shared() -> Iterator[None]:
    """What cannot be done inside all processes know alike: raised as SharedError."""
    try:
        yield
    except TrainerError as error:
        raise SharedError(error.code, str(error)) from error


@contextmanager
def alone() -> Iterator[None]:
    """What cannot be done inside is not known to the other processes: raised as LoneError, if not as SharedError."""
    try:
        yield
    except SharedError:
        raise
    except TrainerError as error:
        raise LoneError(error.code, str(error)) from error


class Others:
    """The processes of this training, from one of them.

    - `join(store)` once the process group is there; `tell(code)` where this process fails alone; `close()` when all
      come to their end by themselves.
    - A process that hears of a failure ends with the failed one's exit code, whatever it is at, and one process of each
      machine (`world.local_rank` 0) says which failed. When the store is gone it ends with Exit.FAILED.
    - Before its end it does `last`, given the code and the rank of the one that failed, None where nobody knows.
    """

    def __init__(
        self,
        world: World,
        leave: Leave = leave,
        last: Callable[[Exit, int | None], object] = lambda _code, _rank: None,
    ) -> None:
        self._world, self._leave, self._last = world, leave, last
        self._store: Store | None = None
        self._lock = threading.Lock()
        self._told = False
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._listen, name="others", daemon=True)

    def join(self, store: Store) -> None:
        """Begin to listen. `store` is the one in which all met; it gets a connection of its own."""
        if self._world.size > 1:
            self._store = store.clone()
            self._thread.start()

    def tell(self, code: Exit) -> None:
        """End all others with this code. Comes back when all have heard it, after HEARD_SECONDS at most."""
        if self._store is None or self._closed.is_set() or not self._first():
            return
        with suppress(RuntimeError):  # the store is gone, which the others notice
            self._store.compare_set(_FAILURE, "", f"{int(code)} {self._world.rank}")
            self._wait_for_all()

    def wait_for_end(self) -> None:
        """Come back at once, or never where this process is being ended by another one's failure.

        For errors that may follow from that, such as a lost connection: they mean nothing then.
        """
        if self._told and not self._closed.is_set():
            time.sleep(2 * (HEARD_SECONDS + LINGER_SECONDS))

    def close(self) -> None:
        """No process tells or hears any more: each is at its own end. Can be repeated."""
        self._closed.set()

    def _first(self) -> bool:
        """Whether neither the main thread nor the one that listens has begun to end this process."""
        with self._lock:
            first, self._told = not self._told, True
        return first

    def _wait_for_all(self) -> None:
        assert self._store is not None  # noqa: S101 - joined
        until = time.monotonic() + HEARD_SECONDS
        heard = self._store.add(_HEARD, 1)
        while heard < self._world.size and time.monotonic() < until:
            time.sleep(0.05)
            heard = self._store.add(_HEARD, 0)

    def _listen(self) -> None:
        assert self._store is not None  # noqa: S101 - joined
        while not self._closed.wait(LOOK_SECONDS):
            try:
                if not self._store.check([_FAILURE]):
                    continue
                code, rank = map(int, self._store.get(_FAILURE).split())
            except RuntimeError:
                if not self._closed.wait(GONE_SECONDS) and self._first():
                    self._leave(
                        Exit.FAILED,
                        f"error: rank {self._world.rank}: the machine where all processes met is gone, or its torchrun",
                        partial(self._last, Exit.FAILED, None),
                    )
                return
            if self._first():
                with suppress(RuntimeError):
                    self._wait_for_all()
                said = f"error: {told_by(rank)}"
                self._leave(
                    Exit(code),
                    said if self._world.local_rank == 0 else "",
                    partial(self._last, Exit(code), rank),
                    linger=LINGER_SECONDS,
                )
            return


class DivergedError(SharedError):
    """Loss or weights are no numbers any more. All processes raise it alike.

    Its code is that of wrong settings, which nobody begins anew: from the last good checkpoint the same samples in the
    same order lead to the same place, and what helps is another learning rate.
    """

    def __init__(self, what: str, step: int, learning_rate: float) -> None:
        super().__init__(
            Exit.CONFIGURATION,
            f"{what} at step {step}: the training diverged, and would again if it went on from its last checkpoint, "
            f"which stays; expected a lower learning_rate (it is {learning_rate:g}), a smaller gradient_clip or a "
            "longer warm-up",
        )


class Losses:
    """The losses of one interval after another.

    With a gradient scaler (`scaled`) one interval may be no number: float16 overflows at times in the forward pass, the
    scaler leaves out that update, and the weights stay as they were.
    """

    def __init__(self, *, scaled: bool) -> None:
        self._forgiven = 1 if scaled else 0
        self._in_a_row = 0

    def diverged(self, loss: float) -> bool:
        """Whether this interval's loss, after those before it, means that nothing is learnt any more."""
        self._in_a_row = 0 if math.isfinite(loss) else self._in_a_row + 1
        return self._in_a_row > self._forgiven


@torch.no_grad()
def are_finite(tensors: Iterable[Tensor], device: torch.device) -> bool:
    """Whether every number in these tensors is finite, in all processes, which call it together. Waits for the device.

    Of a sharded tensor each process looks at its part. The greatest magnitude of a tensor is NaN when one number is.
    """
    own = (each.to_local() if hasattr(each, "to_local") else each for each in tensors)
    greatest = [torch.linalg.vector_norm(each, math.inf).float() for each in own if each.numel()]
    found = torch.stack(greatest).isfinite().all() if greatest else torch.tensor(True, device=device)
    unsound = (~found).to(torch.int32)
    if dist.is_initialized() and dist.get_world_size() > 1:
        dist.all_reduce(unsound, dist.ReduceOp.MAX)
    return not unsound.item()
