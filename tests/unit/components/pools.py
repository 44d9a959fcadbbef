"""Pools as the settings would give them."""

from __future__ import annotations

import dataclasses
from typing import Any

from components.documents.pool import Pool

G5 = Pool(
    name="small",
    instance_type="g5.12xlarge",
    zone="us-west-2b",
    max_nodes=4,
    purchase="on-demand",
    capacity_reservation_ids=(),
    root_volume_gib=200,
    idle_seconds=600,
    resource="nvidia.com/gpu",
    accelerators=4,
    vcpus=48,
    memory_gib=192,
    nvme_gb=3800,
)


def pool(**changes: Any) -> Pool:
    """A pool of four g5.12xlarge without EFA, with some fields changed."""
    return dataclasses.replace(G5, **changes)


CPU = pool(
    name="cpu", instance_type="m5.large", resource="cpu", accelerators=0, vcpus=2, memory_gib=8, nvme_gb=0
)
TRAINIUM = pool(
    name="trn", instance_type="trn1.32xlarge", resource="aws.amazon.com/neuron", accelerators=16, efa=8
)
