"""Fetch a finished run's model from its bucket."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlparse

import boto3


def fetch_model(uri: str, region: str, directory: Path) -> Path:
    """Copy the object `s3://bucket/key` into `directory`, under its own name."""
    address = urlparse(uri)
    directory.mkdir(parents=True, exist_ok=True)
    target = directory / Path(address.path).name
    boto3.client("s3", region_name=region).download_file(
        address.netloc, address.path.lstrip("/"), str(target)
    )
    return target
