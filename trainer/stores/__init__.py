"""Where models and checkpoints are kept: a directory or a bucket, behind one small protocol. Needs no torch.

Whatever is written gets its name when it is whole and durable, so that a reader never sees a part of it.
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
