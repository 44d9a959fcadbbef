"""Copy the output of this node's processes to the run's model store, where it outlives the pod. Needs no torch.

    <model URI>/<run id>/logs/<restart>/<worker>.log

The entry point is `copy_output`. The processes print to a pipe. One thread forwards all output at once, and keeps its
beginning and end. Another thread writes these to the store after FIRST_SECONDS, then at doubling intervals up to
LONGEST_SECONDS, and at the end. The first error is printed, and training continues.
"""

from __future__ import annotations

import os
import re
import selectors
import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress

from trainer.config import Config
from trainer.process import flush_output
from trainer.stores import Store, destination

# The sizes of the beginning and the end that are kept of a log.
HEAD_BYTES = 256 * 2**10
TAIL_BYTES = 2**20
# If a node disappears, the output since the last copy is lost. The intervals double, because a run may print for weeks
# and a stack's bucket keeps overwritten versions for some days (components/storage.py).
FIRST_SECONDS, LONGEST_SECONDS = 30.0, 600.0
# After its processes have ended, a pod has 15 seconds to end (trainyard/k8s/names.py, SHUTDOWN_MARGIN_SECONDS).
DRAIN_SECONDS, END_SECONDS = 2.0, 8.0
TEXT = "text/plain; charset=utf-8"
STDOUT, STDERR = 1, 2
# Held while a thread uses the store. A fork at that moment would inherit the store's own locks, which nobody releases.
using_store = threading.Lock()
_READ_BYTES = 65536
_INVALID_CHARACTERS = re.compile(r"[^a-zA-Z0-9.-]+")


@contextmanager
def copy_output(config: Config, environ: Mapping[str, str]) -> Iterator[None]:
    """Copy the output of the body to the model store, if the run has one."""
    if config.model_uri is None:
        yield
        return
    copy = LogCopy(destination(config.model_uri), log_path(config, environ))
    copy.start()
    try:
        yield
    finally:
        copy.close()


def log_path(config: Config, environ: Mapping[str, str]) -> str:
    """Return the path of this worker's log below the model URI. In a pod, the host name is the pod's name."""
    rank = environ.get("PET_NODE_RANK", "")
    worker = f"{rank}-{socket.gethostname()}" if rank.isdecimal() else socket.gethostname()
    return f"{config.run_id}/logs/{config.restart}/{_INVALID_CHARACTERS.sub('-', worker)}.log"


class HeadAndTail:
    """Keep the beginning and the end of a stream of any size."""

    def __init__(self, head: int = HEAD_BYTES, tail: int = TAIL_BYTES) -> None:
        self._max_head, self._max_tail = head, tail
        self._head, self._tail = bytearray(), bytearray()
        self._lock = threading.Lock()
        self.count = 0

    def add(self, data: bytes) -> None:
        """Add the next bytes of the stream."""
        with self._lock:
            self.count += len(data)
            room = self._max_head - len(self._head)
            self._head += data[:room]
            self._tail += data[room:]
            if len(self._tail) > 2 * self._max_tail:
                del self._tail[: -self._max_tail]

    def read(self) -> bytes:
        """Return the beginning and the end, with a line about the missing bytes between."""
        with self._lock:
            tail = bytes(self._tail[-self._max_tail :])
            left_out = self.count - len(self._head) - len(tail)
            gap = f"\n... {left_out} bytes are missing ...\n".encode() if left_out else b""
            return bytes(self._head) + gap + tail


class LogCopy:
    """Forward the output of this process and its children, and copy it to the store, from `start` to `close`."""

    def __init__(
        self, store: Store, path: str, *, first: float = FIRST_SECONDS, text: HeadAndTail | None = None
    ) -> None:
        self._store, self._path, self._pause = store, path, first
        self._text = text or HeadAndTail()
        self._own: dict[int, int] = {}
        self._closing = threading.Event()
        self._copier = threading.Thread(target=self._copy, name="log", daemon=True)
        self._writer = threading.Thread(target=self._write, name="log-copy", daemon=True)
        self._pipes: dict[int, int] = {}
        self._failed = False

    def start(self) -> None:
        """Redirect the output through pipes. Streams to the same file share a pipe, which keeps their order."""
        flush_output()
        share_pipe = os.path.sameopenfile(STDOUT, STDERR)
        for streams in ((STDOUT, STDERR),) if share_pipe else ((STDOUT,), (STDERR,)):
            reading, writing = os.pipe()
            for stream in streams:
                self._own[stream] = os.dup(stream)
                os.dup2(writing, stream)
            os.close(writing)
            self._pipes[reading] = self._own[streams[0]]
        self._copier.start()
        self._writer.start()

    def close(self) -> None:
        """Restore the streams, and write the last copy. Do not wait for processes that still print."""
        flush_output()
        for stream, own in self._own.items():
            os.dup2(own, stream)
        self._copier.join(DRAIN_SECONDS)
        self._closing.set()
        self._writer.join(END_SECONDS)

    def _copy(self) -> None:
        with selectors.DefaultSelector() as selector:
            for reading in self._pipes:
                selector.register(reading, selectors.EVENT_READ)
            while selector.get_map():
                for key, _ in selector.select():
                    data = os.read(key.fd, _READ_BYTES)
                    if not data:
                        selector.unregister(key.fd)
                        continue
                    with suppress(OSError):  # the reader is gone
                        _write_all(self._pipes[key.fd], data)
                    self._text.add(data)

    def _write(self) -> None:
        written = 0
        while not (last := self._closing.wait(self._pause)) or written != self._text.count:
            if written == self._text.count:
                continue
            self._pause = min(2 * self._pause, LONGEST_SECONDS)
            count = self._text.count
            try:
                with using_store:
                    self._store.put(self._path, self._text.read(), TEXT)
                written = count
            except Exception as error:  # a log error must not end the run
                self._report_once(error)
            if last:
                return

    def _report_once(self, error: Exception) -> None:
        if not self._failed:
            self._failed = True
            line = f"log: can't write the copy {self._store.uri(self._path)}: {error}\n"
            with suppress(OSError):
                _write_all(self._own[STDERR], line.encode(errors="replace"))


def _write_all(target: int, data: bytes) -> None:
    left = memoryview(data)
    while left:
        left = left[os.write(target, left) :]
