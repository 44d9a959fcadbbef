"""Invalid objects of the API give an error with the path of the field, never an exception."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from tests.unit.operator.api import copied
from tests.unit.operator.made import DIGEST, job, queue
from trainyard.operator.api.job import parse_job
from trainyard.operator.api.queue import parse_queue

INVALID: list[Any] = [
    None, True, -1, 0, 10**30, 1.5, "", " ", "x" * 300, "-1Gi", "1Zi", [], [None], [1], [[]], {}, {"": 1},
]  # fmt: skip
FULL_QUEUE = queue(
    yaml.safe_load("""
kaiQueue: a
parentKaiQueue: b
nodeResources.gpuType: h100
workingDir: /app
podTemplate:
  metadata: {labels: {a: b}, annotations: {a: b}}
  spec:
    nodeSelector: {a: b}
    tolerations: [{key: a}]
    affinity:
      nodeAffinity:
        requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [{matchExpressions: [{key: a}]}]}
    containers:
    - name: torchrun
      env: [{name: A}]
      volumeMounts: [{name: v, mountPath: /v}]
      resources: {requests: {cpu: 1}, limits: {}}
    initContainers: [{name: a}]
    volumes: [{name: v}]
storage:
  workspace: {enabled: true, size: 1Gi, storageClass: ebs, bucket: "s3://aaa/b"}
  datasets: {enabled: true, existingClaim: shared, accessMode: ReadWriteMany, mountPath: /d}
  checkpoints: {enabled: true, sizePerGPU: 1Gi, accessMode: ReadWriteMany, retain: true}
  shmSizePerGPU: 1Gi
scheduling:
  scheduler: kai-scheduler
  priorityClassName: a
  nodeSelector: {a: b}
  affinity: {nodeAffinity: {}}
  tolerations: [{key: a}]
  pool: p
networking: {port: 3000, interface: eth0}
jobDefaults: {ttlSecondsAfterFinished: 1, activeDeadlineSeconds: 1, restartPolicy: Never, maxRestarts: 1}
""")
)
FULL_JOB = job(
    yaml.safe_load(f"""
args: [a]
env: [{{name: A, value: b}}]
workspace: {{digest: "{DIGEST}", sizeBytes: 3, url: "s3://aaa/b", restartOnSync: true}}
distributed: {{backend: nccl, rdzvBackend: etcd, rdzvEndpoint: "a:1", port: 2000}}
elastic: {{minNodes: 1, maxNodes: 2}}
suspend: false
ttlSecondsAfterFinished: 1
activeDeadlineSeconds: 1
restartPolicy: Never
maxRestarts: 1
persistCheckpoints: true
overrides: {{image: a}}
""")
)


def paths(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield path
    below: Any = ()
    if isinstance(value, dict | list):
        below = value.items() if isinstance(value, dict) else enumerate(value)
    for key, child in below:
        yield from paths(child, (*path, key))


def with_value(item: Any, path: tuple[Any, ...], value: Any) -> Any:
    if not path:
        return value
    result = copied(item)
    place = result
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    return result


def test_parse_full_specs_have_no_problems() -> None:
    assert parse_queue(FULL_QUEUE["spec"])[1] == ()
    assert parse_job(FULL_JOB["spec"])[1] == ()


@pytest.mark.long
def test_parse_invalid_value_at_each_path_is_reported() -> None:
    """What a plan does with such a spec is in test_poison.py."""
    for parse, item in ((parse_queue, FULL_QUEUE), (parse_job, FULL_JOB)):
        for path in paths(item["spec"]):
            for value in INVALID:
                parsed, problems = parse(with_value(item["spec"], path, value))
                assert (parsed is None) == bool(problems)
                assert all(each.startswith("spec") for each in problems), problems


OTHER_POLICY = 'spec.jobDefaults.restartPolicy is "Always"; it must be Never or OnFailure'
OTHER_BACKEND = 'spec.distributed.rdzvBackend is "mpi"; it must be c10d or etcd or etcd-v2 or static'


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"nodeResources.memory": "512Zi"}, 'spec.nodeResources.memory is "512Zi"; it must be a quantity'),
        ({"nodeResources.memory": None}, "spec.nodeResources.memory is missing"),
        ({"image": 5}, "spec.image is 5"),
        ({"storage.datasets": {"enabled": True}}, "spec.storage.datasets is enabled: give size"),
        ({"networking.port": 80}, "spec.networking.port is 80; it must be a whole number from 1024 to 65535"),
        ({"jobDefaults.restartPolicy": "Always"}, OTHER_POLICY),
    ],
)
def test_parse_queue_invalid_field_has_its_path(changes: dict[str, Any], message: str) -> None:
    parsed, (problem,) = parse_queue(queue(changes)["spec"])
    assert parsed is None
    assert problem.startswith(message)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"distributed.rdzvBackend": "mpi"}, OTHER_BACKEND),
        ({"workspace": {"digest": "md5:1", "sizeBytes": 1}}, "spec.workspace.digest"),
        ({"env": [{"value": "a"}]}, "spec.env[0].name is missing"),
        ({"env": [{"name": "1a"}]}, 'spec.env[0].name is "1a"; it must be letters'),
        ({"args": ["a\0b"]}, "spec.args"),
        ({"env": [{"name": "A", "value": "a\0b"}]}, 'spec.env[0].value is "a\\u0000b"'),
        ({"command": " "}, 'spec.command is " "; it must be a command'),
        ({"jobQueue": "a\n"}, "spec.jobQueue"),
    ],
)
def test_parse_job_invalid_field_has_its_path(changes: dict[str, Any], message: str) -> None:
    parsed, (problem,) = parse_job(job(changes)["spec"])
    assert parsed is None
    assert problem.startswith(message)
