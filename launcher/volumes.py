"""Shared volumes of a worker, as the request names them. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from launcher import forms
from launcher.reader import Reader

SHARED_MEMORY = "/dev/shm"  # noqa: S108 (not a temporary file)
# A worker's volumes have the names of their claims, but for this one.
SHARED_MEMORY_VOLUME = "shared-memory"


def read_mounts(reader: Reader) -> dict[str, str]:
    """Claims and the directories where a worker sees them; none where nothing is said."""
    mounts = reader.table("mounts") if "mounts" in reader.values else {}
    for claim, path in mounts.items():
        named = forms.LABEL.fullmatch(claim) and len(claim) <= forms.LABEL_LENGTH
        if not named or claim == SHARED_MEMORY_VOLUME:
            reader.problems.append(
                f"{reader.place}.mounts has {claim!r}; it must be the name of a claim, a DNS label of at most"
                f" {forms.LABEL_LENGTH} characters and not {SHARED_MEMORY_VOLUME}"
            )
        if (
            ":" in path
            or not path.startswith("/")
            or path == SHARED_MEMORY
            or list(mounts.values()).count(path) > 1
        ):
            reader.problems.append(
                f"{reader.place}.mounts.{claim} is {path!r}; it must be an absolute path of its own"
                f" without a colon and not {SHARED_MEMORY}"
            )
    return mounts


def read_writes(reader: Reader, mounts: Mapping[str, str]) -> tuple[str, ...]:
    """The directories of these mounts that workers write to; none where nothing is said."""
    writes = reader.texts("writes") if "writes" in reader.values else ()
    for path in writes:
        if not any(path == mounted or path.startswith(f"{mounted}/") for mounted in mounts.values()):
            reader.problems.append(
                f"{reader.place}.writes has {path!r}; it must be a directory of a mounted volume"
            )
    return writes
