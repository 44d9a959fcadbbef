"""Torchrun queues as the settings would give them."""

from __future__ import annotations

import dataclasses
from typing import Any

from components.documents.torchrun_queue import JobDefaults, Queue
from tests.unit.components.pools import G5

PLAIN = Queue(
    name="research",
    namespace="training",
    pool=G5,
    gpus=4,
    cpus="40",
    memory="144Gi",
    image=None,
    service_account="trainer",
    own_bucket=False,
    bucket=None,
    volumes={},
    shared_memory_per_gpu="2Gi",
    priority_class=None,
    job_defaults=JobDefaults(),
)


def queue(**changes: Any) -> Queue:
    """A queue on whole machines of four GPUs, with some fields changed."""
    return dataclasses.replace(PLAIN, **changes)
