"""The rules of the torchrun kinds, as their schema has them, each with a spec that it refuses and one that it takes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from tests.torchrun_numbers import numbers
from trainyard.operator import names as n
from trainyard.operator.api.fields import FORBIDDEN, Field, Rule
from trainyard.operator.api.job import JOB
from trainyard.operator.api.queue import QUEUE

Changes = Mapping[str, Any]
DIGEST = "sha256:" + "0123456789abcdef" * 4


@dataclass(frozen=True, kw_only=True)
class Refusal:
    """A refusal: the field that the API server names and what it says of it."""

    field: str
    message: str


@dataclass(frozen=True, kw_only=True)
class Case:
    """Changes of a spec that is right: with `wrong` the rule of `field` whose message holds `says` refuses it."""

    kind: str
    field: str
    says: str
    wrong: Changes
    right: Changes

    def refusal(self) -> Refusal:
        """The one rule that this is a case of."""
        (found,) = [
            each for each in rules(self.kind) if each.field == self.field and self.says in each.message
        ]
        return found

    def overriding(self) -> Case | None:
        """The same below a job's `overrides`; None for rules of whole queues."""
        field = f"overrides.{self.field}"
        message = self.refusal().message
        if Refusal(field=field, message=message) not in overridden() or self.field == NOT_OVERRIDDEN:
            return None
        wrong, right = (
            {f"overrides.{path}": value for path, value in changes.items()}
            for changes in (self.wrong, self.right)
        )
        return Case(kind=n.JOB_KIND, field=field, says=message, wrong=wrong, right=right)


# A job has none, right or wrong.
NOT_OVERRIDDEN = "parentKaiQueue"


def rules(kind: str) -> list[Refusal]:
    """All of a kind's rules but those on changes; of a job without those below `overrides`."""
    return list(_below("", QUEUE if kind == n.QUEUE_KIND else JOB))


def overridden() -> list[Refusal]:
    """Those below a job's `overrides`."""
    return list(_below("overrides", JOB.fields["overrides"]))


def _below(place: str, each: Field) -> Iterator[Refusal]:
    yield from (
        Refusal(field=_field(place, rule), message=rule.message)
        for rule in each.rules
        if rule.reason != FORBIDDEN
    )
    for name, field in each.fields.items():
        if (place, name) != ("", "overrides"):
            yield from _below(f"{place}.{name}".removeprefix("."), field)
    if each.item is not None:
        yield from _below(f"{place}[0]", each.item)


def _field(place: str, rule: Rule) -> str:
    return f"{place}{rule.path}".removeprefix(".")


def _queue(field: str, says: str, wrong: Any, right: Any) -> Case:
    return _case(n.QUEUE_KIND, field, says, wrong, right)


def _job(field: str, says: str, wrong: Any, right: Any) -> Case:
    return _case(n.JOB_KIND, field, says, wrong, right)


def _case(kind: str, field: str, says: str, wrong: Any, right: Any) -> Case:
    """Values stand for changes of the field itself."""
    changes = [each if isinstance(each, Mapping) else {field: each} for each in (wrong, right)]
    return Case(kind=kind, field=field, says=says, wrong=changes[0], right=changes[1])


def _volume(name: str) -> list[Case]:
    place = f"storage.{name}"

    def of(**values: Any) -> Changes:
        return {f"{place}.{key}": value for key, value in values.items()}

    claimed = of(enabled=True, existingClaim="data", mountPath="/data")
    return [
        _queue(f"{place}.sizePerGPU", "exclude", of(size="9Gi", sizePerGPU="1Gi"), of(sizePerGPU="1Gi")),
        _queue(f"{place}.existingClaim", "used unchanged", claimed | of(size="9Gi"), claimed),
        _queue(f"{place}.existingClaim", "used unchanged", claimed | of(sizePerGPU="9Gi"), claimed),
        _queue(
            f"{place}.existingClaim",
            "used unchanged",
            claimed | of(storageClass="fast"),
            of(storageClass="fast"),
        ),
        _queue(f"{place}.enabled", "enabled: give", of(enabled=True), of(enabled=True, size="9Gi")),
        _queue(f"{place}.size", "quantity", "100GB", "100G"),
        _queue(f"{place}.sizePerGPU", "quantity", "-1Gi", "1.5e3"),
        _queue(f"{place}.storageClass", "name of an object", "Fast_One", "fast.one"),
        _queue(f"{place}.existingClaim", "name of an object", "-data", "data-2"),
        _queue(f"{place}.mountPath", "absolute path", "data", "/data"),
    ]


def _both(one: str, other: str, path: str) -> Changes:
    return {
        f"storage.{one}.enabled": True,
        f"storage.{one}.size": "9Gi",
        f"storage.{other}": {"enabled": True, "size": "9Gi", "mountPath": path},
    }


QUEUE_CASES = [
    _queue("kaiQueue", "name of an object", "GPU queue", "gpu-queue"),
    _queue("parentKaiQueue", "name of an object", "", "default"),
    _queue("nodeResources.cpus", "quantity", 0, "7500m"),
    _queue("nodeResources.memory", "quantity", "512 GB", 549755813888),
    _queue("nodeResources.gpuType", "label's value", "h100 80GB", "h100-80gb"),
    _queue(
        "nodeResources.gpuType",
        "gpus must be above 0",
        {"nodeResources.gpus": None, "nodeResources.gpuType": "h100-80gb"},
        {"nodeResources.gpus": None},
    ),
    _queue("image", "without spaces", "two words", "pytorch/pytorch:latest"),
    _queue("workingDir", "absolute path", "/app:/data", "/app/of/mine"),
    *(case for name in ("workspace", "datasets", "checkpoints") for case in _volume(name)),
    _queue("storage.workspace.bucket", "s3://", "https://models.example.com", "s3://models/queues/one"),
    _queue("storage.shmSizePerGPU", "quantity", "8GiB", "8Gi"),
    _queue("storage.datasets.mountPath", "different", _both("workspace", "datasets", "/app"),
           _both("workspace", "datasets", "/app/data")),
    _queue("storage.checkpoints.mountPath", "workspace and", _both("workspace", "checkpoints", "/app"),
           _both("workspace", "checkpoints", "/saved")),
    _queue("storage.checkpoints.mountPath", "datasets and", _both("datasets", "checkpoints", "/datasets"),
           _both("datasets", "checkpoints", "/saved")),
    _queue("scheduling.scheduler", "name of an object", "KAI", "kai-scheduler"),
    _queue("scheduling.priorityClassName", "name of an object", "high!", "gpu-priority"),
    _queue("scheduling.pool", "name of an object", "a/b", "small"),
    _queue("scheduling.tolerations[0].operator", "must be Exists",
           {"scheduling.tolerations": [{"effect": "NoSchedule"}]},
           {"scheduling.tolerations": [{"operator": "Exists"}]}),
    _queue("scheduling.tolerations[0].value", "must be empty",
           {"scheduling.tolerations": [{"key": "a", "operator": "Exists", "value": "b"}]},
           {"scheduling.tolerations": [{"key": "a", "operator": "Equal", "value": "b"}]}),
    _queue("scheduling.tolerations[0].tolerationSeconds", "NoExecute",
           {"scheduling.tolerations": [{"key": "a", "effect": "NoSchedule", "tolerationSeconds": 9}]},
           {"scheduling.tolerations": [{"key": "a", "effect": "NoExecute", "tolerationSeconds": 9}]}),
    _queue("networking.interface", "NCCL_SOCKET_IFNAME", "eth0 eth1", "^lo,docker0"),
]  # fmt: skip


def _environment(field: str, says: str, wrong: Changes, right: Changes) -> Case:
    return _job(f"env[0]{field}", says, {"env": [wrong]}, {"env": [right]})


def _key(**values: Any) -> Changes:
    return {"name": "A", "valueFrom": values}


JOB_CASES = [
    _job("jobQueue", "name of an object", "My Queue", "my.queue"),
    _job("command", "such as python train.py", " \t", " python train.py"),
    _job("numNodes", "must divide", {"numNodes": 3}, {"numNodes": 4}),
    _job("numNodes", "must divide", {"numNodes": 32}, {"numGPUs": 0, "numNodes": 3}),
    _job("numNodes", "exclude", {"numNodes": 2, "elastic": {"minNodes": 1, "maxNodes": 2}}, {"numNodes": 2}),
    _job("elastic.maxNodes", "must divide", {"elastic": {"minNodes": 2, "maxNodes": 3}},
         {"elastic": {"minNodes": 3, "maxNodes": 4}}),
    _job("elastic.minNodes", "must not be above", {"elastic": {"minNodes": 4, "maxNodes": 2}},
         {"elastic": {"minNodes": 2, "maxNodes": 2}}),
    _job("distributed.backend", "needs GPUs", {"numGPUs": 0, "distributed.backend": "nccl"},
         {"numGPUs": 0, "distributed.backend": "gloo"}),
    _job("distributed.rdzvBackend", "elastic needs",
         {"elastic": {"minNodes": 1, "maxNodes": 2}, "distributed.rdzvBackend": "static"},
         {"distributed.rdzvBackend": "static"}),
    _job("distributed.rdzvEndpoint", "<host>:<port>", "http://etcd:2379", "etcd.training.svc:2379"),
    _job("distributed.rdzvEndpoint", "<host>:<port>", "etcd", "[fd00::1]:2379"),
    _job("distributed.rdzvEndpoint", "1 to 65535", "etcd:99999", "etcd:1"),
    _job("distributed.rdzvEndpoint", "1 to 65535", "etcd:65536", "etcd:65535"),
    _job("distributed.rdzvEndpoint", "1 to 65535", "etcd:0", "etcd:60000"),
    _job("workspace.digest", "64 hexadecimal", {"workspace": {"digest": DIGEST[:-1], "sizeBytes": 1}},
         {"workspace": {"digest": DIGEST, "sizeBytes": 1}}),
    _job("workspace.url", "s3://bucket/key", {"workspace": {"digest": DIGEST, "sizeBytes": 1, "url": "s3://models/"}},
         {"workspace": {"digest": DIGEST, "sizeBytes": 1, "url": "s3://models/a.tar.zst"}}),
    _environment(".name", "no digit first", {"name": "1A"}, {"name": "A_1"}),
    _environment(".valueFrom", "exclude", {"value": "1", **_key(fieldRef={"fieldPath": "status.podIP"})},
                 _key(fieldRef={"fieldPath": "status.podIP"})),
    _environment(".valueFrom", "exactly one", _key(), _key(configMapKeyRef={"name": "a", "key": "b"})),
    _environment(".valueFrom", "exactly one",
                 _key(fieldRef={"fieldPath": "status.podIP"}, configMapKeyRef={"name": "a", "key": "b"}),
                 _key(secretKeyRef={"name": "a", "key": "b", "optional": True})),
    _environment(".valueFrom.configMapKeyRef.name", "name of an object",
                 _key(configMapKeyRef={"name": "A", "key": "b"}),
                 _key(configMapKeyRef={"name": "a", "key": "b"})),
    _environment(".valueFrom.secretKeyRef.name", "name of an object", _key(secretKeyRef={"name": "A", "key": "b"}),
                 _key(secretKeyRef={"name": "a", "key": "b"})),
    _environment(".valueFrom.resourceFieldRef.divisor", "quantity",
                 _key(resourceFieldRef={"resource": "limits.cpu", "divisor": "-1"}),
                 _key(resourceFieldRef={"resource": "limits.cpu", "divisor": "1m"})),
]  # fmt: skip

CASES = [*QUEUE_CASES, *JOB_CASES]
OVERRIDING = [made for case in QUEUE_CASES if (made := case.overriding())]
# Ends of every whole number, which no rule in CEL says.
RANGES = numbers()
