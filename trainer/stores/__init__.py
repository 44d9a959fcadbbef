"""Stores for models and checkpoints: a directory or an S3 bucket. Needs no torch.

A file only gets its name when it is complete and durable, so that a reader never sees a part of it. The entry point is
`destination`.
"""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import unquote, urlsplit

from trainer.stores.bucket import Bucket
from trainer.stores.directory import Directory
from trainer.stores.protocol import BYTES, Store, StoreError

__all__ = ["BYTES", "Bucket", "Directory", "Store", "StoreError", "destination"]

# docs.aws.amazon.com/AmazonS3/latest/userguide/bucketnamingrules.html
BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")


def destination(uri: str) -> Bucket | Directory:
    """Return the store of a URI: s3://bucket/prefix, file:///path or a path. Raise ValueError if it is invalid."""
    scheme, host, path, _, _ = urlsplit(uri)
    if scheme == "s3":
        if not BUCKET.fullmatch(host):
            raise ValueError(f"{uri!r} has no valid bucket; it must be s3://bucket/prefix")
        return Bucket(host, path.strip("/"))
    if scheme == "file":
        if host not in ("", "localhost") or not path.startswith("/"):
            raise ValueError(f"{uri!r} is not a local file; it must be file:///path")
        return Directory(Path(unquote(path)))
    if scheme or not uri:
        raise ValueError(f"{uri!r} must be s3://bucket/prefix, file:///path or a path")
    return Directory(Path(uri))
