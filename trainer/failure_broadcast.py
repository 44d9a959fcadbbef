"""Report a failure of this process to all others.

If one process fails alone, the others wait in a collective operation that it never enters: gloo reports a lost
connection, NCCL nothing. So the process writes its exit code into the common store. A thread of each process reads the
store once a second, whatever the main thread waits for. The entry point is `FailureBroadcast`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial

from torch.distributed import Store  # type: ignore[attr-defined]

from trainer.contract import Exit, LocalError, SharedError, TrainerError
from trainer.process import Leave, leave
from trainer.world import World

POLL_SECONDS = 1.0
# A process that ends may be the one that serves the store. So it first waits until all others have read the failure;
# it waits no longer than this for processes that were killed or that hang.
ACKNOWLEDGE_SECONDS = 3.0
# The failed process must end first: torchrun reports the first one as the cause, and stops the others.
LINGER_SECONDS = 1.0
# If the store is gone, the main thread usually gets an error of its own within this time, which says more.
GONE_SECONDS = 5.0
_FAILURE, _ACKNOWLEDGED = "failure", "failure acknowledged"


def failure_message(rank: int) -> str:
    """Return the error line of a process that ends because process `rank` failed."""
    return f"process {rank} failed. See its log"


@contextmanager
def shared() -> Iterator[None]:
    """Raise errors of the body, which all processes have, as SharedError."""
    try:
        yield
    except TrainerError as error:
        raise SharedError(error.code, str(error)) from error


@contextmanager
def alone() -> Iterator[None]:
    """Raise errors of the body, which the other processes do not know, as LocalError, except SharedError."""
    try:
        yield
    except SharedError:
        raise
    except TrainerError as error:
        raise LocalError(error.code, str(error)) from error


class FailureBroadcast:
    """Send this process's failure to all others, and end this process when another one fails.

    Call `start(store)` when the process group exists, `send(code)` if this process fails alone, and `close()` when all
    processes end normally. A process that receives a failure ends with the same exit code, and one process of each node
    prints which rank failed. If the store is gone, it ends with Exit.FAILED. `last` is called before the end with the
    exit code and the failed rank (None if unknown).
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
        self._is_ending = False
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._listen, name="failure-broadcast", daemon=True)

    def start(self, store: Store) -> None:
        """Start to listen on `store`, the store of all processes, with a separate connection."""
        if self._world.size > 1:
            self._store = store.clone()
            self._thread.start()

    def send(self, code: Exit) -> None:
        """End all others with this code. Return when all have read it, after ACKNOWLEDGE_SECONDS at most."""
        if self._store is None or self._closed.is_set() or not self._claim_end():
            return
        with suppress(RuntimeError):  # the store is gone, and the others notice that
            self._store.compare_set(_FAILURE, "", f"{int(code)} {self._world.rank}")
            self._wait_for_all()

    def wait_for_end(self) -> None:
        """Return at once, unless another thread is ending this process because of another one's failure.

        An error such as a lost connection may only be a consequence of that failure.
        """
        if self._is_ending and not self._closed.is_set():
            time.sleep(2 * (ACKNOWLEDGE_SECONDS + LINGER_SECONDS))

    def close(self) -> None:
        """Stop to send and to listen, because each process now ends normally. Can be called again."""
        self._closed.set()

    def _claim_end(self) -> bool:
        """Return whether the calling thread is the first that ends this process."""
        with self._lock:
            is_first, self._is_ending = not self._is_ending, True
        return is_first

    def _wait_for_all(self) -> None:
        assert self._store is not None  # noqa: S101 - started
        until = time.monotonic() + ACKNOWLEDGE_SECONDS
        count = self._store.add(_ACKNOWLEDGED, 1)
        while count < self._world.size and time.monotonic() < until:
            time.sleep(0.05)
            count = self._store.add(_ACKNOWLEDGED, 0)

    def _listen(self) -> None:
        assert self._store is not None  # noqa: S101 - started
        while not self._closed.wait(POLL_SECONDS):
            try:
                if not self._store.check([_FAILURE]):
                    continue
                code, rank = map(int, self._store.get(_FAILURE).split())
            except RuntimeError:
                if not self._closed.wait(GONE_SECONDS) and self._claim_end():
                    self._leave(
                        Exit.FAILED,
                        f"error: rank {self._world.rank}: the rendezvous store on rank 0's node is not reachable: "
                        "its node or torchrun agent ended",
                        partial(self._last, Exit.FAILED, None),
                    )
                return
            if self._claim_end():
                with suppress(RuntimeError):
                    self._wait_for_all()
                self._leave(
                    Exit(code),
                    f"error: {failure_message(rank)}" if self._world.local_rank == 0 else "",
                    partial(self._last, Exit(code), rank),
                    linger=LINGER_SECONDS,
                )
            return
