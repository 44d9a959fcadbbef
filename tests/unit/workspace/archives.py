"""Helpers: packed archives, stores that have them, and servers of these stores."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import pytest

from trainyard.operator.api.job import Workspace
from trainyard.operator.children import archive_annotation
from trainyard.workspace.__main__ import main
from trainyard.workspace.archive import Archive, pack
from trainyard.workspace.sidecar import follow
from trainyard.workspace.sync_pod import Pointer, Store, server

ROOT = Path(__file__).parents[3]
_MEMORY = Path("/dev/shm")


@contextmanager
def memory_directory() -> Iterator[Path]:
    """Yield an empty directory in memory, where the machine has one: many small files take a fifth of the time."""
    with tempfile.TemporaryDirectory(dir=_MEMORY if _MEMORY.is_dir() else None) as name:
        yield Path(name)


def fill(root: Path, files: Mapping[str, str | bytes] | Iterable[str]) -> Path:
    """Write files by their paths; of paths alone, each file has one letter."""
    contents = files if isinstance(files, Mapping) else dict.fromkeys(files, "x")
    for name, content in contents.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(content.encode() if isinstance(content, str) else content)
    return root


def packed(root: Path, **files: str) -> Archive:
    return pack(fill(root, files), directory=root.parent)


def received(store: Store, archive: Archive) -> None:
    with archive.file.open("rb") as file:
        store.receive(archive.digest, archive.size, file.read)
    store.point(Pointer(archive.digest, archive.size))


def pointing(file: Path, archive: Archive, url: str = "") -> Path:
    """Write the file by which a pod sees its annotation, as the controller writes that."""
    workspace = Workspace(digest=archive.digest, size_bytes=archive.size, url=url, restart_on_sync=False)
    file.write_text(archive_annotation(workspace))
    return file


@contextmanager
def serving(
    store: Store, port: int = 0, expected: Pointer | None = None, address: str = "127.0.0.1"
) -> Iterator[str]:
    served = server(store, address, port, expected)
    thread = threading.Thread(target=served.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{served.server_port}"
    finally:
        served.shutdown()
        served.server_close()
        thread.join()


@contextmanager
def following(source: Any, into: Path) -> Iterator[None]:
    """Run the sidecar of this source in a thread."""
    stopping = threading.Event()
    thread = threading.Thread(target=follow, args=(source, into, stopping), kwargs={"every": 0.005})
    thread.start()
    try:
        yield
    finally:
        stopping.set()
        thread.join()


class Killed(BaseException):
    """The process ends here."""


@contextmanager
def killed_at(call: int) -> Iterator[list[int]]:
    """Raise Killed at this call of a function that renames or removes a file. Yield the number of calls left."""
    left = [call]

    def counted(function: Callable[..., Any]) -> Callable[..., Any]:
        def replacement(*arguments: object, **more: object) -> Any:
            left[0] -= 1
            if left[0] == 0:
                raise Killed
            return function(*arguments, **more)

        return replacement

    with pytest.MonkeyPatch.context() as patch:
        for name in ("replace", "unlink", "rename"):
            patch.setattr(os, name, counted(getattr(os, name)))
        yield left


def until(holds: Callable[[], object], seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, "timeout"
        time.sleep(0.01)


def receive(
    root: Path,
    archive: Archive,
    environment: dict[str, str] | None = None,
    nearby: Sequence[str] = (),
    keep: str = "",
) -> tuple[int, str]:
    """Run the verb that the plugin runs by exec. With `nearby` pods, nothing is sent.

    Returns:
        The exit code and the text of standard error.
    """
    words = ["receive", "--root", str(root), "--digest", archive.digest, "--size", str(archive.size)]
    words += ["--keep", keep] if keep else []
    words += [word for address in nearby for word in ("--nearby", address)]
    with (
        Path(os.devnull if nearby else archive.file).open() as sent,
        pytest.MonkeyPatch.context() as patch,
        redirect_stdout(io.StringIO()),
        redirect_stderr(io.StringIO()) as said,
    ):
        patch.setattr(sys, "stdin", sent)
        for name, value in (environment or {}).items():
            patch.setenv(name, value)
        return main(words), said.getvalue()


def started(*words: str, **more: Any) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "trainyard.workspace", *words],
        cwd=ROOT,
        text=True,
        stderr=subprocess.PIPE,
        **more,
    )
