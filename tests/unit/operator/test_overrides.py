"""Every field of a queue that a job may override has the effect that it has in the queue."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from tests.unit.operator.made import CLUSTER, attempt_spec
from trainyard.operator.api.fields import Field
from trainyard.operator.api.queue import QUEUE
from trainyard.operator.children import build_claim, build_jobs, build_service
from trainyard.operator.gang import build_pod_group
from trainyard.operator.resources import VolumeMissing

pytestmark = pytest.mark.unit

ON = {"enabled": True, "size": "1Gi", "storageClass": "fsx", "mountPath": "/data"}
PER_GPU = {"enabled": True, "sizePerGPU": "1Gi", "storageClass": "fsx", "mountPath": "/data"}
CLAIMED = {"enabled": True, "existingClaim": "data", "mountPath": "/data"}
CLAIMS = {"data": ("ReadWriteMany",), "other": ("ReadWriteMany",)}
# Each with what the queue itself says context, on which the field's effect depends.
OVERRIDES: list[tuple[str, Any, dict[str, Any]]] = [
    ("kaiQueue", "other", {}),
    ("image", "example.com/other", {}),
    ("workingDir", "/other", {}),
    ("nodeResources.gpus", 4, {}),
    ("nodeResources.cpus", 3, {}),
    ("nodeResources.memory", "3Gi", {}),
    ("nodeResources.gpuType", "a100", {}),
    ("podTemplate.spec", {"hostIPC": True}, {}),
    ("podTemplate.metadata.labels", {"a": "b"}, {}),
    ("podTemplate.metadata.annotations", {"c": "d"}, {}),
    *(
        (f"storage.{name}.{field}", value, {f"storage.{name}": context})
        for name in ("workspace", "datasets", "checkpoints")
        for field, value, context in (
            ("enabled", False, ON),
            ("size", "7Gi", ON),
            ("sizePerGPU", "7Gi", PER_GPU),
            ("storageClass", "efs", ON),
            ("accessMode", "ReadWriteOnce", ON),
            ("existingClaim", "other", CLAIMED),
            ("retain", True, ON),
            ("mountPath", "/other", ON),
        )
    ),
    ("storage.shmSizePerGPU", "3Gi", {}),
    ("scheduling.scheduler", "other", {}),
    ("scheduling.priorityClassName", "other", {}),
    ("scheduling.nodeSelector", {"other": "x"}, {}),
    ("scheduling.affinity.nodeAffinity", {"x": 1}, {}),
    ("scheduling.affinity.podAffinity", {"x": 1}, {}),
    ("scheduling.affinity.podAntiAffinity", {"x": 1}, {}),
    ("scheduling.tolerations", [{"key": "other"}], {}),
    ("scheduling.pool", "other", {}),
    ("networking.port", 30001, {}),
    ("networking.interface", "eth7", {}),
    ("jobDefaults.ttlSecondsAfterFinished", 9, {}),
    ("jobDefaults.activeDeadlineSeconds", 9, {}),
    ("jobDefaults.restartPolicy", "Never", {}),
    ("jobDefaults.maxRestarts", 9, {}),
    ("storage.workspace.bucket", "s3://other/place", {}),
]
# No job's: `overrides` has a rule that says so.
NOT_A_JOBS = {"parentKaiQueue"}
SENT = {"url": "s3://aaa/b", "digest": "sha256:" + "0" * 64, "sizeBytes": 5}


def leaves(place: str, field: Field) -> Iterator[str]:
    for name, each in field.fields.items():
        path = f"{place}.{name}".removeprefix(".")
        yield from leaves(path, each) if each.fields else (path,)


def effect(of_job: dict[str, Any], of_queue: dict[str, Any]) -> Any:
    """All that is made for a job, how long and how often it may run, and where its workspace is sent."""
    try:
        made = attempt_spec(of_job, of_queue, replace(CLUSTER, claims=CLAIMS))
    except VolumeMissing as missing:
        return str(missing)
    settings = made.settings
    return (
        [build_service(made), build_pod_group(made), *build_jobs(made)],
        [build_claim(made, each) for each in made.storage.claims],
        (settings.time_to_live, settings.deadline, settings.max_restarts, settings.queue.scheduling.pool),
        settings.queue.bucket,
    )


def test_overrides_cover_every_field_of_a_queue() -> None:
    assert {path for path, _, _ in OVERRIDES} | NOT_A_JOBS == set(leaves("", QUEUE))


@pytest.mark.parametrize(("path", "value", "context"), OVERRIDES, ids=[path for path, _, _ in OVERRIDES])
def test_override_has_the_effect_of_the_queue_field(path: str, value: Any, context: dict[str, Any]) -> None:
    job = {"numGPUs": 8, "workspace": SENT}
    overridden = effect({**job, f"overrides.{path}": value}, context)
    assert overridden == effect(job, {**context, path: value})
    assert overridden != effect(job, context), "without effect"
