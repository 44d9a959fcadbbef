"""Which of the training operator's published manifests we deploy, and with what changes. Pure: no Pulumi."""

from __future__ import annotations

import copy
from typing import Any, Final

JsonObject = dict[str, Any]

OPERATOR: Final = "training-operator"
# One kind of job only, and several at a time: with its one default thread the operator makes pods one after another.
ARGUMENTS: Final = ("--enable-scheme=pytorchjob", "--controller-threads=4")
DEFINITIONS: Final = ("pytorchjobs.kubeflow.org",)
WEBHOOK: Final = "validator.pytorchjob.training-operator.kubeflow.org"
# What the others need: first the namespace, then the rest of these.
FIRST: Final = ("Namespace",)
SECOND: Final = ("CustomResourceDefinition", "ServiceAccount", "ClusterRole", "ClusterRoleBinding", "Secret")


def waves(objects: list[JsonObject], image: str | None) -> list[list[JsonObject]]:
    """The objects for PyTorchJobs alone; those of one wave need only what is in the waves before it.

    `image` replaces the operator's image where it is given.

    Raises:
        ValueError: the manifests lack the operator, its definition or its webhook.
    """
    chosen = [_changed(each, image) for each in objects if _wanted(each)]
    kinds = {(each["kind"], each["metadata"]["name"]) for each in chosen}
    for kind, name in (("Deployment", OPERATOR), ("CustomResourceDefinition", DEFINITIONS[0])):
        if (kind, name) not in kinds:
            raise ValueError(f"the training operator's manifests hold no {kind} {name}")
    for each in chosen:
        if each["kind"] == "ValidatingWebhookConfiguration" and not each["webhooks"]:
            raise ValueError(f"the training operator's manifests hold no webhook {WEBHOOK}")
    last = [each for each in chosen if each["kind"] not in (*FIRST, *SECOND)]
    return [*([each for each in chosen if each["kind"] in group] for group in (FIRST, SECOND)), last]


def token(manifest: JsonObject) -> str:
    """Pulumi's type token of an object, such as kubernetes:core/v1:Service."""
    version = manifest["apiVersion"]
    return f"kubernetes:{version if '/' in version else 'core/' + version}:{manifest['kind']}"


def _wanted(manifest: JsonObject) -> bool:
    return manifest["kind"] != "CustomResourceDefinition" or manifest["metadata"]["name"] in DEFINITIONS


def _changed(manifest: JsonObject, image: str | None) -> JsonObject:
    result = copy.deepcopy(manifest)
    # A status belongs to the API server.
    result.pop("status", None)
    if result["kind"] == "Deployment" and result["metadata"]["name"] == OPERATOR:
        for container in result["spec"]["template"]["spec"]["containers"]:
            if container["name"] == OPERATOR:
                container["args"] = [*(container.get("args") or []), *ARGUMENTS]
                container["image"] = image or container["image"]
    if result["kind"] == "Namespace":
        # The operator asks for no privileges, so that nothing else in its namespace gets any.
        result["metadata"].setdefault("labels", {})["pod-security.kubernetes.io/enforce"] = "baseline"
    if result["kind"] == "ValidatingWebhookConfiguration":
        result["webhooks"] = [hook for hook in result["webhooks"] if hook["name"] == WEBHOOK]
    return result
