"""Archives that were packed, stores that have them and servers of those."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from launcher.workspace.pack import Archive, pack
from launcher.workspace.serve import server
from launcher.workspace.store import Pointer, Store

ROOT = Path(__file__).parents[3]


def packed(root: Path, **files: str) -> Archive:
    root.mkdir(exist_ok=True)
    for name, content in files.items():
        (root / name).write_text(content)
    return pack(root, directory=root.parent)


def received(store: Store, archive: Archive) -> None:
    with archive.file.open("rb") as file:
        store.receive(archive.digest, archive.size, file)
    store.point(Pointer(archive.digest, archive.size))


@contextmanager
def serving(store: Store, port: int = 0) -> Iterator[str]:
    served = server(store, "127.0.0.1", port)
    thread = threading.Thread(target=served.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{served.server_port}"
    finally:
        served.shutdown()
        served.server_close()
        thread.join()


def until(holds: Callable[[], object], seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, "it never came"
        time.sleep(0.01)


def receive(
    root: Path, archive: Archive, environment: dict[str, str] | None = None, nearby: Sequence[str] = ()
) -> tuple[int, str]:
    """As the plugin does by exec; where pods are `nearby`, nothing is sent."""
    words = (
        "receive",
        "--current",
        "--root",
        str(root),
        "--digest",
        archive.digest,
        "--size",
        str(archive.size),
        *(word for address in nearby for word in ("--nearby", address)),
    )
    with archive.file.open("rb") as file:
        process = started(
            *words,
            stdin=subprocess.DEVNULL if nearby else file,
            stdout=subprocess.DEVNULL,
            env={**os.environ, **(environment or {})},
        )
        return process.wait(), process.communicate()[1]


def started(*words: str, **more: Any) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "launcher.workspace", *words],
        cwd=ROOT,
        text=True,
        stderr=subprocess.PIPE,
        **more,
    )
