"""The layout of checkpoints in a store, and the rules which of them count. Pure: no torch, no files.

    step-000001200/1f0c9a3e0001-0-0.distcp    data of rank 0 from save 1f0c9a3e0001, in the format of DCP
    step-000001200/.metadata                  the metadata of DCP
    step-000001200/manifest.json              written last: without it the checkpoint is incomplete

Each save uses new names for its data files, so files of an earlier save at the same step are never mixed with them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass
from hashlib import sha256
from typing import Any

FORMAT = 1
MANIFEST = "manifest.json"
SEAL = "sha256"  # the key of the manifest's own hash
STEP_DIGITS = 9
STEP = re.compile(rf"step-([0-9]{{{STEP_DIGITS}}})/(.+)", re.DOTALL)


@dataclass(frozen=True)
class File:
    """One file of a checkpoint, as it was written."""

    bytes: int
    sha256: str


@dataclass(frozen=True)
class Tensor:
    """Shape and dtype of a full tensor, also if it is sharded."""

    shape: tuple[int, ...]
    dtype: str

    def __str__(self) -> str:
        return f"{self.dtype}{list(self.shape)}"


Fingerprint = Mapping[str, Tensor]


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """The content of `manifest.json`. `position` counts samples since the start of the run."""

    step: int
    position: int
    world_size: int
    data_digest: str
    fingerprint: Fingerprint
    files: Mapping[str, File]
    notes: Mapping[str, Any]

    def encode(self) -> bytes:
        """Return the bytes of `manifest.json`."""
        return sealed({"format": FORMAT, **asdict(self)})

    @classmethod
    def decode(cls, body: bytes) -> Manifest:
        """Parse the bytes of `manifest.json`. Raise ValueError with the reason if they are invalid."""
        try:
            document = json.loads(body)
        except ValueError as error:
            raise ValueError(f"{MANIFEST} is not JSON ({len(body)} bytes)") from error
        found = document.get("format") if isinstance(document, dict) else None
        if found != FORMAT:
            raise ValueError(f"{MANIFEST} has format {found!r}, expected {FORMAT}")
        if document.get(SEAL) != (digest := _seal(document)):
            raise ValueError(f"{MANIFEST} has SHA-256 {digest[:12]}, expected {str(document.get(SEAL))[:12]}")
        return cls(
            step=document["step"],
            position=document["position"],
            world_size=document["world_size"],
            data_digest=document["data_digest"],
            fingerprint={
                name: Tensor(tuple(each["shape"]), each["dtype"])
                for name, each in document["fingerprint"].items()
            },
            files={_plain(name): File(**each) for name, each in document["files"].items()},
            notes=document["notes"],
        )


def sealed(document: Mapping[str, Any]) -> bytes:
    """Encode a manifest with its SHA-256, which detects any changed number."""
    content = json.loads(json.dumps(document))
    return (json.dumps({**content, SEAL: _seal(content)}, indent=1, sort_keys=True) + "\n").encode()


def name(step: int) -> str:
    """Return the folder of the checkpoint of this step."""
    return f"step-{step:0{STEP_DIGITS}}"


def by_step(listing: Mapping[str, int]) -> dict[int, dict[str, int]]:
    """Return the files (name in the folder: bytes) of each step in a listing, the newest step first."""
    steps: dict[int, dict[str, int]] = {}
    for path, size in listing.items():
        if found := STEP.fullmatch(path):
            steps.setdefault(int(found[1]), {})[found[2]] = size
    return dict(sorted(steps.items(), reverse=True))


def finished(listing: Mapping[str, int]) -> list[int]:
    """Return the steps with a manifest, the newest first. They may still be damaged."""
    return [step for step, files in by_step(listing).items() if MANIFEST in files]


def torn(files: Mapping[str, File], sizes: Mapping[str, int]) -> str | None:
    """Return the first file that is missing in a listing or has another size; None if all are there."""
    for each, file in sorted(files.items()):
        if each not in sizes:
            return f"{each} is missing"
        if sizes[each] != file.bytes:
            return f"{each} has {sizes[each]} bytes, expected {file.bytes}"
    return None


def difference(saved: Fingerprint, model: Fingerprint) -> str | None:
    """Return the first tensor by name in which a checkpoint and a model differ; None if they are equal."""
    for each in sorted(saved.keys() | model.keys()):
        if saved.get(each) != model.get(each):
            return (
                f"{each}: the checkpoint has {saved.get(each, 'none')}, the model {model.get(each, 'none')}"
            )
    return None


def surplus(
    listing: Mapping[str, int], newest_good: int, keep: int, damaged: Collection[int] = ()
) -> list[int]:
    """Return the steps to delete, the oldest first, so that `keep` good ones stay.

    It never returns `newest_good` or a newer step, which may be in progress. Older steps without a manifest, and
    damaged ones, are deleted.
    """
    older = [step for step in by_step(listing) if step < newest_good]
    good = [step for step in finished(listing) if step < newest_good and step not in damaged]
    return sorted(set(older) - set(good[: keep - 1]))


def _seal(content: Mapping[str, Any]) -> str:
    """Return the hash of the content, without the hash itself and independent of spaces."""
    hashed = {each: content[each] for each in content if each != SEAL}
    return sha256(json.dumps(hashed, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def _plain(value: str) -> str:
    """Return `value` if it is a plain file name. A path could make a load write outside of its directory.

    Raises:
        ValueError: It is a path.
    """
    if not value or "/" in value or value in (".", ".."):
        raise ValueError(f"{MANIFEST} is invalid: {value!r} is not a file name")
    return value
