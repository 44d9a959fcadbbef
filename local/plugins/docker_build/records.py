"""The file from which the nodes of the local cloud learn the build context of an image reference."""

from __future__ import annotations

import fcntl
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from local.home import write_atomically

Records = dict[str, dict[str, Any]]


@contextmanager
def changing(file: Path) -> Iterator[Records]:
    """Yield the records, and write them back in one step if the block succeeds. Other processes wait."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.with_name(f"{file.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        records = read(file)
        yield records
        write_atomically(file, json.dumps(records, indent=1, sort_keys=True))


def read(file: Path) -> Records:
    """Return all records by image reference; none if there is no file yet."""
    try:
        found: Records = json.loads(file.read_text())
    except FileNotFoundError:
        return {}
    return found
