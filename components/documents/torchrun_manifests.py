"""The objects of the torchrun controller: the files in crd/ and config/, with a stack's changes. Pure."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import Any, Final

from trainyard.k8s import names

from .pool import off_the_pools

JsonObject = dict[str, Any]

# The files of the checkout, in the order in which users apply them.
FILES: Final = (
    "crd/torchrunqueues.torchrun.ai.yaml",
    "crd/torchrunjobs.torchrun.ai.yaml",
    "config/deployment.yaml",
    "config/admission.yaml",
    "config/network.yaml",
)
JOB_NAMESPACE_FILE: Final = "config/network-jobs.yaml"
RIGHTS: Final = "config/rbac/role.yaml"
# As for EKS's add-ons and Karpenter: it is evicted from a full node last
# (https://kubernetes.io/docs/tasks/administer-cluster/guaranteed-scheduling-critical-addon-pods/).
PRIORITY_CLASS: Final = "system-cluster-critical"
# The order: first the namespace, last the Deployment.
FIRST: Final = ("Namespace",)
LAST: Final = ("Deployment",)
_SCRAPED: Final = {
    "prometheus.io/scrape": "true",
    "prometheus.io/port": str(names.METRICS_PORT),
    "prometheus.io/path": names.METRICS_PATH,
}


def waves(documents: Iterable[JsonObject], image: Any) -> list[list[JsonObject]]:
    """Return the objects, in waves. A wave only depends on the waves before it.

    `image` replaces the image of the Deployment; it may be an output of another resource. There is no
    PodDisruptionBudget: with one replica, it would block the drain of every system node, and a controller that
    starts on another node continues the work of the old one.

    Raises:
        ValueError: The Deployment of the controller, or the definition of queues or of jobs, is missing.
    """
    objects = [copy.deepcopy(each) for each in documents]
    found = {(each["kind"], each["metadata"]["name"]) for each in objects}
    definitions = [
        f"{plural}.{names.TORCHRUN_GROUP}" for plural in (names.TORCHRUN_QUEUES, names.TORCHRUN_JOBS)
    ]
    needed = [
        ("Deployment", names.TORCHRUN_CONTROLLER),
        *(("CustomResourceDefinition", name) for name in definitions),
    ]
    for kind, name in needed:
        if (kind, name) not in found:
            raise ValueError(f"the files of the torchrun controller hold no {kind} {name}")
    changed = [_deployment(each, image) if each["kind"] in LAST else each for each in objects]
    return [
        [each for each in changed if each["kind"] in FIRST],
        [each for each in changed if each["kind"] not in (*FIRST, *LAST)],
        [each for each in changed if each["kind"] in LAST],
    ]


def with_namespace(documents: Iterable[JsonObject], namespace: str) -> list[JsonObject]:
    """Return the objects with this namespace."""
    return [{**each, "metadata": {**each["metadata"], "namespace": namespace}} for each in documents]


def _deployment(manifest: JsonObject, image: Any) -> JsonObject:
    template = manifest["spec"]["template"]
    pod = template["spec"]
    published = {container["image"] for container in pod["containers"]}
    metadata = template.setdefault("metadata", {})
    metadata["annotations"] = {**_SCRAPED, **(metadata.get("annotations") or {})}
    # It creates pods that wait for nodes of the pools, so it does not run on these nodes.
    pod.setdefault("affinity", off_the_pools())
    pod.setdefault("priorityClassName", PRIORITY_CLASS)
    for container in pod["containers"]:
        # `up` continues when the controller is ready, not when it was started.
        container.setdefault("readinessProbe", {**container["livenessProbe"], "initialDelaySeconds": 1})
    # Also in its argument with its own image, which contains the tools of the jobs.
    manifest["spec"]["template"] = _with_image(template, published, image)
    return manifest


def _with_image(value: Any, published: set[str], image: Any) -> Any:
    if isinstance(value, dict):
        return {key: _with_image(entry, published, image) for key, entry in value.items()}
    if isinstance(value, list):
        return [_with_image(entry, published, image) for entry in value]
    return image if isinstance(value, str) and value in published else value
