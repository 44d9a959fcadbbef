"""How checkpoints lie in a store, and which of them count. Pure: no torch, no files.

    step-000001200/1f0c9a3e-0-0.distcp    what rank 0 wrote in save 1f0c9a3e, in DCP's format
    step-000001200/.metadata              DCP's: which tensor lies where
    step-000001200/manifest.json          written last: without it there is no checkpoint

Every save names its data files anew: the remains of an earlier one at the same step are never taken for its own.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from hashlib import sha256
from typing import Any

FORMAT = 1
MANIFEST = "manifest.json"
SEAL = "sha256"  # in the manifest: of all the rest
STEP_DIGITS = 9
STEP = re.compile(rf"step-([0-9]{{{STEP_DIGITS}}})/(.+)", re.DOTALL)
SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class File:
    """One file of a checkpoint, as it was written."""

    bytes: int
    sha256: str


@dataclass(frozen=True)
class Tensor:
    """What a tensor is, whole, however many processes share it."""

    shape: tuple[int, ...]
    dtype: str

    def __str__(self) -> str:
        return f"{self.dtype}{list(self.shape)}"


Fingerprint = Mapping[str, Tensor]


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """What a finished checkpoint says of itself. `position` counts samples since the start of the run."""

    step: int
    position: int
    world_size: int
    data_digest: str
    fingerprint: Fingerprint
    files: Mapping[str, File]
    notes: Mapping[str, Any]

    def encode(self) -> bytes:
        """The bytes of `manifest.json`."""
        return sealed({"format": FORMAT, **asdict(self)})

    @classmethod
    def decode(cls, body: bytes) -> Manifest:
        """The other way. Raises ValueError that says in what it is no manifest."""
        try:
            said = json.loads(body)
        except ValueError as error:
            raise ValueError(f"{MANIFEST} is not JSON ({len(body)} bytes)") from error
        found = said.get("format") if isinstance(said, dict) else None
        if found != FORMAT:
            raise ValueError(f"{MANIFEST} has format {found!r}, expected {FORMAT}")
        if said.get(SEAL) != (digest := _seal(said)):
            raise ValueError(f"{MANIFEST} has SHA-256 {digest[:12]}, expected {str(said.get(SEAL))[:12]}")
        try:
            manifest = cls(
                step=_count(said["step"]),
                position=_count(said["position"]),
                world_size=_count(said["world_size"]),
                data_digest=str(said["data_digest"]),
                fingerprint={
                    name: Tensor(tuple(map(_count, each["shape"])), str(each["dtype"]))
                    for name, each in said["fingerprint"].items()
                },
                files={
                    _plain(name): File(_count(each["bytes"]), _digest(each["sha256"]))
                    for name, each in said["files"].items()
                },
                notes=dict(said["notes"]),
            )
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise ValueError(f"{MANIFEST} does not hold what it should: {error!r}") from error
        if not manifest.files:
            raise ValueError(f"{MANIFEST} names no files")
        return manifest


def sealed(said: Mapping[str, Any]) -> bytes:
    """What a manifest says, with the SHA-256 of it: a number that flips must not look like another run's."""
    content = json.loads(json.dumps(said))
    return (json.dumps({**content, SEAL: _seal(content)}, indent=1, sort_keys=True) + "\n").encode()


def name(step: int) -> str:
    """The folder of the checkpoint of this step."""
    if not 0 <= step < 10**STEP_DIGITS:
        raise ValueError(f"step {step} is not between 0 and {10**STEP_DIGITS - 1}")
    return f"step-{step:0{STEP_DIGITS}}"


def by_step(listing: Mapping[str, int]) -> dict[int, dict[str, int]]:
    """The files (name in the folder, bytes) of every step that a store's listing shows, the newest step first."""
    steps: dict[int, dict[str, int]] = {}
    for path, size in listing.items():
        if found := STEP.fullmatch(path):
            steps.setdefault(int(found[1]), {})[found[2]] = size
    return dict(sorted(steps.items(), reverse=True))


def finished(listing: Mapping[str, int]) -> list[int]:
    """The steps with a manifest, the newest first. Whether they are whole is not known yet."""
    return [step for step, files in by_step(listing).items() if MANIFEST in files]


def torn(manifest: Manifest, step: int, sizes: Mapping[str, int]) -> str | None:
    """What is wrong as far as a listing tells, or None: a file that is not there, or has another size."""
    if manifest.step != step:
        return f"{MANIFEST} is of step {manifest.step}"
    for each, file in sorted(manifest.files.items()):
        if each not in sizes:
            return f"{each} is missing"
        if sizes[each] != file.bytes:
            return f"{each} has {sizes[each]} bytes, expected {file.bytes}"
    return None


def unseen(written: Sequence[Mapping[str, File]], sizes: Mapping[str, int]) -> str | None:
    """What a listing does not show of that which each process, by rank, says it wrote; None where all is there."""
    for rank, files in enumerate(written):
        for each, file in sorted(files.items()):
            whose = f"process {rank}'s file {each}"
            if each not in sizes:
                return f"{whose} is not there: the place must be one that all machines share"
            if sizes[each] != file.bytes:
                return f"{whose} has {sizes[each]} bytes, expected {file.bytes}"
    return None


def difference(saved: Fingerprint, wanted: Fingerprint) -> str | None:
    """The first tensor, by name, in which a checkpoint and a model differ; None where they agree."""
    for each in sorted(saved.keys() | wanted.keys()):
        if each not in saved:
            return f"{each}: the checkpoint has none, the model {wanted[each]}"
        if each not in wanted:
            return f"{each}: the checkpoint has {saved[each]}, the model none"
        if saved[each] != wanted[each]:
            return f"{each}: the checkpoint has {saved[each]}, the model {wanted[each]}"
    return None


def surplus(
    listing: Mapping[str, int], newest_good: int, keep: int, damaged: Collection[int] = ()
) -> list[int]:
    """The steps to delete, the oldest first, so that `keep` good ones stay.

    Never `newest_good`, which was seen to be whole, nor anything newer than it: that may be in the making. What is
    older and has no manifest, or is known to be damaged, is nobody's.
    """
    if keep < 1:
        raise ValueError(f"keep: {keep} is less than 1")
    older = [step for step in by_step(listing) if step < newest_good]
    good = [step for step in finished(listing) if step < newest_good and step not in damaged]
    return sorted(set(older) - set(good[: keep - 1]))


def in_order_of_deletion(step: int, files: Iterable[str]) -> list[str]:
    """The paths of one checkpoint, its manifest first: what is half deleted is no checkpoint any more."""
    return [f"{name(step)}/{each}" for each in sorted(files, key=lambda each: (each != MANIFEST, each))]


def _seal(content: Mapping[str, Any]) -> str:
    """Of the content alone, in one form: the file's spaces and the digest itself do not count."""
    counted = {each: content[each] for each in content if each != SEAL}
    return sha256(json.dumps(counted, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def _count(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ValueError(f"{value!r} is not a whole number from 0")
    return value


def _digest(value: object) -> str:
    if not isinstance(value, str) or not SHA256.fullmatch(value):
        raise ValueError(f"{value!r} is no SHA-256")
    return value


def _plain(value: str) -> str:
    if not value or "/" in value or value in (".", ".."):
        raise ValueError(f"{value!r} is no name of a file")
    return value
