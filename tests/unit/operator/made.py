"""What tests of a torchrun job's children are made of: a job in a queue, whose specs are changed by dotted paths."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from launcher.manifests import REQUIRED
from tests.torchrun_manifests import manifest
from trainyard.operator import names as n
from trainyard.operator.api.job import parse_job
from trainyard.operator.api.resolve import resolve
from trainyard.operator.children import build_claim, build_jobs
from trainyard.operator.context import AttemptSpec
from trainyard.operator.observe import ClusterState
from trainyard.operator.resources import distribute, plan_storage

JsonObject = dict[str, Any]
DIGEST = "sha256:" + "a" * 64
TOOLS = "example.com/trainyard/launcher:1"
CLUSTER = ClusterState(
    tools_image=TOOLS,
    provisioners={"ebs": "ebs.csi.aws.com", "fsx": "fsx.csi.aws.com", "efs": "efs.csi.aws.com"},
    default_class="ebs",
    claims={"shared": ("ReadWriteMany",), "single": ("ReadWriteOnce",)},
    policy_since=0.0,
)


def queue(changes: Mapping[str, Any] | None = None) -> JsonObject:
    return in_team(manifest(n.QUEUE_KIND, "research", changes))


def job(changes: Mapping[str, Any] | None = None) -> JsonObject:
    return in_team(manifest(n.JOB_KIND, "vit", changes))


def in_team(item: JsonObject) -> JsonObject:
    item["metadata"]["namespace"] = "team"
    return item


def attempt_spec(
    of_job: Mapping[str, Any] | None = None,
    of_queue: Mapping[str, Any] | None = None,
    cluster: ClusterState = CLUSTER,
    attempt: int = 0,
) -> AttemptSpec:
    spec, wrong = parse_job(job(of_job)["spec"])
    assert spec is not None, wrong
    settings, wrong = resolve(queue(of_queue)["spec"], spec)
    assert settings is not None, wrong
    size = distribute(spec, settings.queue)
    storage = plan_storage("vit", spec, settings, size, cluster, {})
    return AttemptSpec(
        name="vit",
        namespace="team",
        uid="u1",
        spec=spec,
        settings=settings,
        size=size,
        storage=storage,
        cluster=cluster,
        number=attempt,
    )


def pod(of_job: Mapping[str, Any] | None = None, of_queue: Mapping[str, Any] | None = None) -> JsonObject:
    """The workers' pod template."""
    template: JsonObject = build_jobs(attempt_spec(of_job, of_queue))[0]["spec"]["template"]
    return template


def container(
    of_job: Mapping[str, Any] | None = None, of_queue: Mapping[str, Any] | None = None
) -> JsonObject:
    """The workers' container."""
    containers = pod(of_job, of_queue)["spec"]["containers"]
    return next(each for each in containers if each["name"] == n.WORKER_CONTAINER)


def env(of_job: Mapping[str, Any] | None = None, of_queue: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The workers' variables: texts, or where they come from."""
    variables = container(of_job, of_queue)["env"]
    assert len({each["name"] for each in variables}) == len(variables)
    return {each["name"]: each.get("value", each.get("valueFrom")) for each in variables}


def mounted(template: dict[str, Any], path: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """A mount of the workers and its volume."""
    worker = next(each for each in template["spec"]["containers"] if each["name"] == n.WORKER_CONTAINER)
    mount = next(each for each in worker["volumeMounts"] if each["mountPath"] == path)
    return mount, next(each for each in template["spec"]["volumes"] if each["name"] == mount["name"])


def claims(of_job: dict[str, Any], of_queue: dict[str, Any]) -> dict[str, dict[str, Any]]:
    made = attempt_spec(of_job, of_queue)
    return {each.name: build_claim(made, each) for each in made.storage.claims}


def flag(name: str, of_job: dict[str, Any], of_queue: dict[str, Any] | None = None) -> str:
    words = container(of_job, of_queue)["command"]
    return next(each for each in words if each.startswith(f"--{name}=")).partition("=")[2]


_OPERATORS: dict[str, Callable[[str | None, list[str]], bool]] = {
    "In": lambda value, values: value in values,
    "NotIn": lambda value, values: value not in values,
    "Exists": lambda value, _: value is not None,
    "DoesNotExist": lambda value, _: value is None,
    "Gt": lambda value, values: value is not None and int(value) > int(values[0]),
    "Lt": lambda value, values: value is not None and int(value) < int(values[0]),
}


def affinity_allows(affinity: dict[str, Any], **labels: str) -> bool:
    """Return whether a required nodeAffinity matches a node with these labels, as the scheduler decides."""
    return any(
        all(
            _OPERATORS[each["operator"]](labels.get(each["key"]), each.get("values", []))
            for each in term["matchExpressions"]
        )
        for term in affinity[REQUIRED]["nodeSelectorTerms"]
    )
