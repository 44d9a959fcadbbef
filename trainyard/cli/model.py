"""Fetch a finished run's model from its bucket."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlparse

import boto3
from botocore.exceptions import BotoCoreError, ClientError


class ModelError(Exception):
    """The model of a finished run can't be read."""


def fetch_model(uri: str, region: str, directory: Path) -> Path:
    """Copy the object `s3://bucket/key` into `directory` under its own name.

    Raises:
        ModelError: It does not exist or can't be read.
    """
    address = urlparse(uri)
    directory.mkdir(parents=True, exist_ok=True)
    target = directory / Path(address.path).name
    try:
        boto3.client("s3", region_name=region).download_file(
            address.netloc, address.path.lstrip("/"), str(target)
        )
    except (ClientError, BotoCoreError) as error:
        raise ModelError(f"the run's model {uri} can't be read: {error}") from error
    return target
