"""Kubernetes objects as Pulumi inputs: names, ids, manifests, secrets. Pure."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Mapping
from typing import Any

from local.plugins.sdk import split_names
from local.plugins.values import UNKNOWN, Props, Secret, is_unknown

AUTONAMED = "pulumi.com/autonamed"
PATCH_FORCE = "pulumi.com/patchForce"
SKIP_AWAIT = "pulumi.com/skipAwait"

# Outputs of this plugin. The engine shows no property with two leading underscores.
FIELD_MANAGER = "__fieldManager"

CLUSTER_SCOPED = split_names(
    """
    APIService CertificateSigningRequest ClusterRole ClusterRoleBinding ClusterTrustBundle ComponentStatus
    CSIDriver CSINode CustomResourceDefinition DeviceClass FlowSchema IngressClass IPAddress
    MutatingAdmissionPolicy MutatingAdmissionPolicyBinding MutatingWebhookConfiguration Namespace Node
    PersistentVolume PriorityClass PriorityLevelConfiguration ResourceSlice RuntimeClass SelfSubjectReview
    ServiceCIDR StorageClass StorageVersion StorageVersionMigration SubjectAccessReview TokenReview
    ValidatingAdmissionPolicy ValidatingAdmissionPolicyBinding ValidatingWebhookConfiguration
    VolumeAttachment VolumeAttributesClass
    """
)


def api_version_and_kind(token: str) -> tuple[str, str]:
    """Return the API version and kind of a token.

    `kubernetes:core/v1:Pod` is (`v1`, `Pod`), `kubernetes:apps/v1:DeploymentPatch` is (`apps/v1`, `Deployment`).
    """
    _, group_version, kind = token.split(":")
    return group_version.removeprefix("core/"), kind.removesuffix("Patch") if is_patch(token) else kind


def is_patch(token: str) -> bool:
    """Return whether a resource sets only some fields of an object that someone else may have created.

    https://www.pulumi.com/registry/packages/kubernetes/how-to-guides/managing-resources-with-server-side-apply/
    """
    _, group_version, kind = token.split(":")
    return kind.endswith("Patch") and is_builtin(group_version.removeprefix("core/"))


def is_builtin(api_version: str) -> bool:
    """Return whether an API group belongs to Kubernetes itself, as far as its name shows."""
    group = api_version.split("/")[0] if "/" in api_version else ""
    return "." not in group or group.endswith(".k8s.io")


def object_id(namespace: str | None, name: str) -> str:
    """Return `<namespace>/<name>`, or `<name>` if cluster-scoped."""
    return f"{namespace}/{name}" if namespace else name


def split_id(text: str) -> tuple[str | None, str]:
    """Return the namespace and name of an id."""
    namespace, _, name = text.rpartition("/")
    return namespace or None, name


def _annotations(props: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the annotations of an object; {} if they are not known yet."""
    metadata = props.get("metadata")
    annotations = metadata.get("annotations") if isinstance(metadata, Mapping) else None
    return annotations if isinstance(annotations, Mapping) else {}


def flag(props: Mapping[str, Any], key: str) -> bool:
    """Return whether the annotation is `true`."""
    value = _annotations(props).get(key)
    return not is_unknown(value) and str(value).lower() == "true"


def unserved_annotations(props: Mapping[str, Any]) -> list[str]:
    """Return the annotations that have an effect in the official plugin and none in this one."""
    served = (AUTONAMED, PATCH_FORCE, SKIP_AWAIT)
    return sorted(key for key in _annotations(props) if key.startswith("pulumi.com/") and key not in served)


def field_manager(urn: str) -> str:
    """Return the field manager of a resource. Each has its own, as in the official plugin, but not random."""
    return f"pulumi-kubernetes-{hashlib.sha256(urn.encode()).hexdigest()[:8]}"


def with_defaults(
    inputs: Props,
    api_version: str,
    kind: str,
    *,
    auto_name: str,
    namespace: str | None,
    old_inputs: Props | None,
) -> Props:
    """Return the inputs with apiVersion, kind, a name and, if `namespace` is not None, a namespace.

    An automatic name stays as long as the program sets none.
    """
    result = {"apiVersion": api_version, "kind": kind, **copy.deepcopy(inputs)}
    metadata = result.setdefault("metadata", {})
    if is_unknown(metadata) or not isinstance(metadata, dict):
        return result
    old_metadata = (old_inputs or {}).get("metadata") or {}
    if metadata.get("name") is None and metadata.get("generateName") is None:
        was_named = flag(old_inputs or {}, AUTONAMED) and old_metadata.get("name")
        metadata["name"] = old_metadata["name"] if was_named else auto_name
        annotations = metadata.get("annotations")
        metadata["annotations"] = (
            annotations if is_unknown(annotations) else {**(annotations or {}), AUTONAMED: "true"}
        )
    if namespace is not None and metadata.get("namespace") is None:
        metadata["namespace"] = namespace
    return result


def manifest(inputs: Props) -> Props:
    """Return the object for the API server: the inputs without fields that users can't set."""
    sent = {key: value for key, value in inputs.items() if not key.startswith("__") and key != "status"}
    result: Props = without_null(sent)
    return result


def outputs(live: Props, manager: str, inputs: Props | None = None) -> Props:
    """Return the live object as outputs, without data of server-side apply, and with its secrets marked."""
    result = copy.deepcopy(live)
    result.get("metadata", {}).pop("managedFields", None)
    if result.get("kind") == "Secret" and not str(result.get("apiVersion", "")).count("/"):
        for key in ("data", "stringData"):
            if key in result:
                result[key] = Secret(result[key])
        if inputs and "stringData" in inputs:
            result["stringData"] = Secret(inputs["stringData"])
    if result.get("kind") == "CustomResourceDefinition":
        # Leave out schemas: they are most of a state's size, the engine writes the state at every step, and the
        # inputs have them.
        for version in (result.get("spec") or {}).get("versions") or []:
            version.pop("schema", None)
    result[FIELD_MANAGER] = manager
    return result


def describe(inputs: Mapping[str, Any]) -> str:
    """Return a name for messages, such as `Deployment training/web`."""
    metadata = inputs.get("metadata") or {}
    return f"{inputs.get('kind')} {object_id(metadata.get('namespace'), str(metadata.get('name')))}"


def foreseen(inputs: Props) -> Props:
    """Return the outputs of an object in a preview. Values that the API server will set are unknown."""
    result: Props = {"status": UNKNOWN, **copy.deepcopy(inputs)}
    if isinstance(result.get("metadata"), dict):
        result["metadata"] = {"uid": UNKNOWN, "resourceVersion": UNKNOWN, **result["metadata"]}
    if result.get("kind") == "Service" and isinstance(result.get("spec"), dict):
        result["spec"] = {"clusterIP": UNKNOWN, "clusterIPs": UNKNOWN, **result["spec"]}
    return result


def merged(base: Any, over: Any) -> Any:
    """Return `base` with `over` merged in, object by object. Any other value of `over` replaces."""
    if not isinstance(base, Mapping) or not isinstance(over, Mapping):
        return over
    return {**base, **{key: merged(base.get(key), item) for key, item in over.items()}}


def without_null(value: Any) -> Any:
    """Return the value without the null entries of its objects."""
    if isinstance(value, Mapping):
        return {key: without_null(item) for key, item in value.items() if item is not None}
    return [without_null(item) for item in value] if isinstance(value, list) else value
