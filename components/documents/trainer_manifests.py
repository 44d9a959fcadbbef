"""The published manifests of Kubeflow Trainer and of JobSet, which it needs, and the changes to them. Pure: no
Pulumi.

Both managers run in a namespace of their own. So a stack can change its backend, or run MPIJobs beside TrainJobs,
without a conflict with the training operator. Each manager keeps its webhooks' certificate in a Secret and writes the
authority into its webhook configurations (github.com/open-policy-agent/cert-controller).
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any, Final

from trainyard.k8s.names import POD_USER, TRAINER_NAMESPACE

from . import pods
from .operator_manifests import FIRST, SECOND, without_descriptions

JsonObject = dict[str, Any]

TRAINER: Final = "kubeflow-trainer-controller-manager"
JOBSET: Final = "jobset-controller-manager"
# Parts of Trainer's kustomization (manifests/base). Its overlay also downloads JobSet's manifests.
PARTS: Final = ("crds", "manager", "rbac", "webhook")
DEFINITIONS: Final = (
    "jobsets.jobset.x-k8s.io",
    "clustertrainingruntimes.trainer.kubeflow.org",
    "trainingruntimes.trainer.kubeflow.org",
    "trainjobs.trainer.kubeflow.org",
)
# The Secret of Trainer's certificate, which its overlay generates; Trainer fills it.
CERTIFICATE: Final = "kubeflow-trainer-webhook-cert"
# The version for Trainer's SDK, which everybody may read.
_PUBLIC: Final = "kubeflow-trainer-public"
# JobSet's metrics behind kube-rbac-proxy, which its Deployment does not have.
_UNUSED: Final = ("jobset-metrics-reader", "jobset-proxy")
_WEBHOOK_PORT: Final = 9443
_NAMESPACED: Final = ("ServiceAccount", "Role", "RoleBinding", "ConfigMap", "Secret", "Service", "Deployment")
# They keep the Jobs and pods of the cluster in memory.
RESOURCES: Final = {"requests": {"cpu": "100m", "memory": "128Mi"}, "limits": {"memory": "512Mi"}}


def parts(base: str) -> list[str]:
    """Return the kustomizations in a directory or at an address such as `https://...//manifests/base?ref=<commit>`."""
    path, mark, query = base.partition("?")
    return [f"{path.rstrip('/')}/{part}{mark}{query}" for part in PARTS]


def waves(objects: Sequence[JsonObject], images: Mapping[str, str]) -> list[list[JsonObject]]:
    """Return the objects of both, in waves. A wave only depends on the waves before it.

    Args:
        objects: JobSet's kustomization `config/default`, and `PARTS` of Trainer's.
        images: The image of each Deployment.

    Raises:
        ValueError: The objects are not those of these kustomizations.
    """
    for each in objects:
        _check(each, images)
    chosen = [_changed(each, images) for each in objects if _is_needed(each)]
    found = {(each["kind"], each["metadata"]["name"]) for each in chosen}
    for kind, names in (("Deployment", images), ("CustomResourceDefinition", DEFINITIONS)):
        for name in names:
            if (kind, name) not in found:
                raise ValueError(f"the manifests of Kubeflow Trainer and JobSet hold no {kind} {name}")
    chosen += [
        _namespace(),
        _secret(),
        pods.policy("closed", TRAINER_NAMESPACE, pods.closed()),
        *(
            pods.policy(f"webhook-{each['metadata']['name']}", TRAINER_NAMESPACE, _webhook_open(each))
            for each in chosen
            if each["kind"] == "Deployment"
        ),
    ]
    last = [each for each in chosen if each["kind"] not in (*FIRST, *SECOND, *_RIGHTS)]
    groups = (FIRST, (*SECOND, *_RIGHTS))
    return [*([each for each in chosen if each["kind"] in group] for group in groups), last]


_RIGHTS: Final = ("Role", "RoleBinding")


def _check(manifest: JsonObject, images: Mapping[str, str]) -> None:
    """Check what `_changed` needs. Raises ValueError if this object belongs to another kustomization."""
    kind, name = manifest["kind"], manifest["metadata"]["name"]
    if kind == "Deployment" and name not in images:
        raise ValueError(f"Deployment {name} belongs neither to Kubeflow Trainer nor to JobSet")
    if kind == "Deployment" and len(manifest["spec"]["template"]["spec"]["containers"]) != 1:
        raise ValueError(f"Deployment {name} must have one container")
    if any("service" not in hook["clientConfig"] for hook in manifest.get("webhooks") or ()):
        raise ValueError(f"{kind} {name} has a webhook without a Service")


def _is_needed(manifest: JsonObject) -> bool:
    kind, name = manifest["kind"], manifest["metadata"]["name"]
    if kind == "CustomResourceDefinition":
        return name in DEFINITIONS
    return kind != "Namespace" and name != _PUBLIC and not name.startswith(_UNUSED)


def _changed(manifest: JsonObject, images: Mapping[str, str]) -> JsonObject:
    result = copy.deepcopy(manifest)
    # A status belongs to the API server.
    result.pop("status", None)
    kind, name = result["kind"], result["metadata"]["name"]
    if kind in _NAMESPACED:
        result["metadata"]["namespace"] = TRAINER_NAMESPACE
    for subject in result.get("subjects") or ():
        subject["namespace"] = TRAINER_NAMESPACE
    for webhook in result.get("webhooks") or ():
        webhook["clientConfig"]["service"]["namespace"] = TRAINER_NAMESPACE
    if kind == "CustomResourceDefinition":
        # The descriptions are most of 1.3 MB, and the stack's state contains each definition twice.
        result["spec"] = without_descriptions(result["spec"])
    if kind == "Deployment":
        _change_manager(result["spec"]["template"]["spec"], images[name])
    return result


def _change_manager(spec: JsonObject, image: str) -> None:
    (container,) = spec["containers"]
    container["image"] = image
    container["resources"] = RESOURCES
    spec["securityContext"] = {
        "runAsNonRoot": True,
        "runAsUser": POD_USER,
        "runAsGroup": POD_USER,
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def _namespace() -> JsonObject:
    return {
        "apiVersion": "v1",
        "kind": "Namespace",
        "metadata": {
            "name": TRAINER_NAMESPACE,
            "labels": {"pod-security.kubernetes.io/enforce": "restricted"},
        },
    }


def _secret() -> JsonObject:
    metadata = {"name": CERTIFICATE, "namespace": TRAINER_NAMESPACE}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "type": "Opaque"}


def _webhook_open(deployment: JsonObject) -> JsonObject:
    return pods.port_open(deployment["spec"]["selector"]["matchLabels"], _WEBHOOK_PORT)
