"""Runs as the settings would give them, and what is known once there are images and a bucket."""

from __future__ import annotations

from typing import Any

from components.documents.launch import Candidate, Resolved, Run, WorkerSize
from components.documents.pool import Pool
from tests.unit.components.pools import pool

RESOLVED = Resolved(
    launcher_image="l@sha256:1",
    trainer_image="t@sha256:2",
    placeholder_image="p@sha256:3",
    model_uri="s3://b/models",
    checkpoint_uri="s3://b/checkpoints",
)


def candidate(pool_: Pool | None = None, *, seconds: int = 1200, **change: Any) -> Candidate:
    size = {"processes_per_node": 4, "cpu": "40", "memory": "144Gi", "shared_memory": "8Gi", **change}
    return Candidate(pool=pool_ or pool(), size=WorkerSize(**size), capacity_deadline_seconds=seconds)


def run(**change: Any) -> Run:
    values: dict[str, Any] = {
        "candidates": (candidate(),),
        "run_id": "r1",
        "min_nodes": 2,
        "max_nodes": 4,
        "device": "cuda",
        "hold_seconds": 60,
        "node_start_seconds": 900,
        "attempts": 1,
        "retry_seconds": 240,
        "max_restarts": 3,
        "shape": "static",
        "backend": "pytorchjob",
        "active_deadline_seconds": None,
        "data": "digits",
        "args": ("--epochs", "3"),
        "env": {"NCCL_DEBUG": "WARN"},
        "region": "us-west-2",
        "mounts": {"lustre": "/fsx"},
        "writes": ("/fsx",),
    }
    return Run(**{**values, **change})
