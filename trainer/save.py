"""Where the trained model goes: S3, or a directory. torch and boto3 are imported when needed only."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import os
import re
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from trainer import contract
from trainer.contract import Exit, TrainerError

if TYPE_CHECKING:
    from torch import Tensor

# docs.aws.amazon.com/AmazonS3/latest/userguide/bucketnamingrules.html
BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
# One PutObject takes 5 GB at most; a small network is far below.
CONNECT_SECONDS, READ_SECONDS, ATTEMPTS = 10, 60, 5


@dataclass(frozen=True)
class Bucket:
    """s3://name/prefix"""

    name: str
    prefix: str

    def uri(self, path: str) -> str:
        """The full name of what `put` wrote."""
        return "s3://" + "/".join(part for part in (self.name, self.prefix, path) if part)

    def put(self, path: str, body: bytes, kind: str, notes: Mapping[str, str]) -> None:
        """Write one object, whole or not at all; S3 compares its SHA-256. Raises TrainerError."""
        import boto3
        from botocore.config import Config
        from botocore.exceptions import BotoCoreError, ClientError

        settings = Config(
            connect_timeout=CONNECT_SECONDS,
            read_timeout=READ_SECONDS,
            retries={"mode": "standard", "total_max_attempts": ATTEMPTS},
        )
        region = os.environ.get(contract.REGION) or os.environ.get("AWS_DEFAULT_REGION")
        try:
            boto3.client("s3", region_name=region, config=settings).put_object(
                Bucket=self.name,
                Key=f"{self.prefix}/{path}" if self.prefix else path,
                Body=body,
                ContentType=kind,
                ChecksumSHA256=base64.b64encode(hashlib.sha256(body).digest()).decode(),
                Metadata=dict(notes),
            )
        except (BotoCoreError, ClientError) as error:
            raise TrainerError(Exit.SAVE, f"cannot save {self.uri(path)}: {error}") from error


@dataclass(frozen=True)
class Directory:
    """A directory of this machine, made when it is not there."""

    path: Path

    def uri(self, path: str) -> str:
        """The full name of what `put` wrote."""
        return str(self.path / path)

    def put(self, path: str, body: bytes, kind: str, notes: Mapping[str, str]) -> None:  # noqa: ARG002
        """Write one file, whole or not at all: it gets its name when it is on the disk. Raises TrainerError."""
        target = self.path / path
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile(
                dir=target.parent, prefix=f".{target.name}.", delete=False
            ) as part:
                try:
                    part.write(body)
                    part.flush()
                    os.fsync(part.fileno())
                    Path(part.name).replace(target)
                except OSError:
                    Path(part.name).unlink(missing_ok=True)
                    raise
        except OSError as error:
            raise TrainerError(Exit.SAVE, f"cannot save {target}: {error.strerror or error}") from error


def destination(uri: str) -> Bucket | Directory:
    """What `uri` names: s3://bucket/prefix, file:///path or a path. Raises ValueError that says what is wrong."""
    scheme, host, path, _, _ = urlsplit(uri)
    if scheme == "s3":
        if not BUCKET.fullmatch(host):
            raise ValueError(f"{uri!r} names no valid bucket; expected s3://bucket/prefix")
        return Bucket(host, path.strip("/"))
    if scheme == "file":
        if host not in ("", "localhost") or not path.startswith("/"):
            raise ValueError(f"{uri!r} is not a file of this machine; expected file:///path")
        return Directory(Path(unquote(path)))
    if scheme or not uri:
        raise ValueError(f"{uri!r} is neither s3://bucket/prefix nor file:///path nor a path")
    return Directory(Path(uri))


def model_bytes(state: Mapping[str, Tensor]) -> bytes:
    """What `torch.load(..., weights_only=True)` reads: tensors on the CPU and nothing else."""
    import torch

    buffer = io.BytesIO()
    torch.save({name: tensor.detach().cpu() for name, tensor in state.items()}, buffer)
    return buffer.getvalue()


def save(uri: str, run_id: str, model: bytes, metadata: Mapping[str, Any]) -> str:
    """Write the model, then its metadata, under `<uri>/<run id>/`. Returns the model's URI; raises TrainerError."""
    target = destination(uri)
    digest = hashlib.sha256(model).hexdigest()
    place = f"{run_id}/{contract.MODEL_FILE}"
    notes = {"run-id": run_id, "sha256": digest, "world-size": str(metadata["worldSize"])}
    target.put(place, model, "application/octet-stream", notes)
    described = {**metadata, "model": {"uri": target.uri(place), "bytes": len(model), "sha256": digest}}
    text = json.dumps(described, indent=2, sort_keys=True) + "\n"
    target.put(f"{run_id}/{contract.METADATA_FILE}", text.encode(), "application/json", {"run-id": run_id})
    return target.uri(place)
