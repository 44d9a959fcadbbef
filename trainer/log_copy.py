"""A copy of what this machine's processes print, beside the model: it outlives the pod and its node. Needs no torch.

    <model URI>/<run id>/logs/<restart>/<worker>.log

`keep` is the entry point. The processes print into a pipe; a thread passes everything on at once, and remembers the
beginning and the end of it. Another thread writes that beside the model, after FIRST_SECONDS, then ever more seldom up
to once in LONGEST_SECONDS, and at the end. Whatever fails there is said once, and the training goes on.
"""

from __future__ import annotations

import os
import re
import selectors
import socket
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress

from trainer.config import Config
from trainer.stores import Store, destination

# Of a log of any size the first and the last bytes are kept.
HEAD_BYTES = 256 * 2**10
TAIL_BYTES = 2**20
# What was printed since the last copy is lost with a machine that is gone at once. The pauses double: a stack's bucket
# keeps what is written over for some days (components/storage.py), and a training may print for weeks.
FIRST_SECONDS, LONGEST_SECONDS = 30.0, 600.0
# A pod has 15 seconds for its own end after that of its processes (launcher/core/contract.py, SHUTDOWN_SPARE_SECONDS).
DRAIN_SECONDS, END_SECONDS = 2.0, 8.0
TEXT = "text/plain; charset=utf-8"
STDOUT, STDERR = 1, 2
_PIECE_BYTES = 65536
_ODD = re.compile(r"[^a-zA-Z0-9.-]+")


@contextmanager
def keep(config: Config, environ: Mapping[str, str]) -> Iterator[None]:
    """Keep a copy of what is printed meanwhile, where the run has a place for its model."""
    if config.model_uri is None:
        yield
        return
    copy = LogCopy(destination(config.model_uri), path(config, environ))
    copy.start()
    try:
        yield
    finally:
        copy.close()


def path(config: Config, environ: Mapping[str, str]) -> str:
    """Return where the log of this worker goes, below the model's URI. In a pod the host's name is the pod's."""
    rank = environ.get("PET_NODE_RANK", "")
    worker = f"{rank}-{socket.gethostname()}" if rank.isdecimal() else socket.gethostname()
    return f"{config.run_id}/logs/{config.restart}/{_ODD.sub('-', worker)}.log"


class Ends:
    """The beginning and the end of a text of any size."""

    def __init__(self, head: int = HEAD_BYTES, tail: int = TAIL_BYTES) -> None:
        self._most_head, self._most_tail = head, tail
        self._head, self._tail = bytearray(), bytearray()
        self._lock = threading.Lock()
        self.count = 0

    def add(self, data: bytes) -> None:
        """Take what comes next."""
        with self._lock:
            self.count += len(data)
            room = self._most_head - len(self._head)
            self._head += data[:room]
            self._tail += data[room:]
            if len(self._tail) > 2 * self._most_tail:
                del self._tail[: -self._most_tail]

    def read(self) -> bytes:
        """Return both, with a line between them that says how much is left out."""
        with self._lock:
            tail = bytes(self._tail[-self._most_tail :])
            left_out = self.count - len(self._head) - len(tail)
            gap = f"\n... {left_out} bytes are left out ...\n".encode() if left_out else b""
            return bytes(self._head) + gap + tail


class LogCopy:
    """Between `start` and `close`, what this process and its children print is passed on and copied to the store."""

    def __init__(
        self, store: Store, path: str, *, first: float = FIRST_SECONDS, most: Ends | None = None
    ) -> None:
        self._store, self._path, self._pause = store, path, first
        self._text = most or Ends()
        self._own: dict[int, int] = {}
        self._closing = threading.Event()
        self._copier = threading.Thread(target=self._copy, name="log", daemon=True)
        self._writer = threading.Thread(target=self._write, name="log-copy", daemon=True)
        self._pipes: dict[int, int] = {}
        self._failed = False

    def start(self) -> None:
        """From now on all goes through pipes: one where both streams are the same file, so that their order stays."""
        _flush()
        together = os.path.sameopenfile(STDOUT, STDERR)
        for streams in ((STDOUT, STDERR),) if together else ((STDOUT,), (STDERR,)):
            reading, writing = os.pipe()
            for stream in streams:
                self._own[stream] = os.dup(stream)
                os.dup2(writing, stream)
            os.close(writing)
            self._pipes[reading] = self._own[streams[0]]
        self._copier.start()
        self._writer.start()

    def close(self) -> None:
        """Print as before, and write the last copy. A process that goes on printing is not waited for."""
        _flush()
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
                    data = os.read(key.fd, _PIECE_BYTES)
                    if not data:
                        selector.unregister(key.fd)
                        continue
                    with suppress(OSError):  # nobody reads it any more
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
                self._store.put(self._path, self._text.read(), TEXT)
                written = count
            except Exception as error:  # a training is worth more than its log
                self._say(error)
            if last:
                return

    def _say(self, error: Exception) -> None:
        if not self._failed:
            self._failed = True
            line = f"log: its copy at {self._store.uri(self._path)} can't be written: {error}; training goes on\n"
            with suppress(OSError):
                _write_all(self._own[STDERR], line.encode(errors="replace"))


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()


def _write_all(target: int, data: bytes) -> None:
    left = memoryview(data)
    while left:
        left = left[os.write(target, left) :]
