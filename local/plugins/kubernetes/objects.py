"""Kubernetes objects as Pulumi inputs: names, ids, what to send, what is secret. Pure."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Mapping
from typing import Any

from local.plugins.values import UNKNOWN, Props, Secret, is_unknown

AUTONAMED = "pulumi.com/autonamed"
DELETION_PROPAGATION = "pulumi.com/deletionPropagationPolicy"
PATCH_FORCE = "pulumi.com/patchForce"
REPLACE_UNREADY = "pulumi.com/replaceUnready"
SKIP_AWAIT = "pulumi.com/skipAwait"
TIMEOUT_SECONDS = "pulumi.com/timeoutSeconds"
WAIT_FOR = "pulumi.com/waitFor"

# Outputs of our own; the engine shows no property with two leading underscores.
FIELD_MANAGER = "__fieldManager"

CLUSTER_SCOPED = frozenset(
    [
        "APIService",
        "CertificateSigningRequest",
        "ClusterRole",
        "ClusterRoleBinding",
        "ClusterTrustBundle",
        "ComponentStatus",
        "CSIDriver",
        "CSINode",
        "CustomResourceDefinition",
        "DeviceClass",
        "FlowSchema",
        "IngressClass",
        "IPAddress",
        "MutatingAdmissionPolicy",
        "MutatingAdmissionPolicyBinding",
        "MutatingWebhookConfiguration",
        "Namespace",
        "Node",
        "PersistentVolume",
        "PriorityClass",
        "PriorityLevelConfiguration",
        "ResourceSlice",
        "RuntimeClass",
        "SelfSubjectReview",
        "ServiceCIDR",
        "StorageClass",
        "StorageVersion",
        "StorageVersionMigration",
        "SubjectAccessReview",
        "TokenReview",
        "ValidatingAdmissionPolicy",
        "ValidatingAdmissionPolicyBinding",
        "ValidatingWebhookConfiguration",
        "VolumeAttachment",
        "VolumeAttributesClass",
    ]
)


def api_version_and_kind(token: str) -> tuple[str, str]:
    """`kubernetes:core/v1:Pod` is (`v1`, `Pod`), `kubernetes:apps/v1:DeploymentPatch` (`apps/v1`, `Deployment`)."""
    _, group_version, kind = token.split(":")
    return group_version.removeprefix("core/"), kind.removesuffix("Patch") if is_patch(token) else kind


def is_patch(token: str) -> bool:
    """True for a resource that sets some fields of an object that somebody else may have made.

    https://www.pulumi.com/registry/packages/kubernetes/how-to-guides/managing-resources-with-server-side-apply/
    """
    _, group_version, kind = token.split(":")
    return kind.endswith("Patch") and is_builtin(group_version.removeprefix("core/"))


def token_of(api_version: str, kind: str) -> str:
    """The token of the resource that makes such an object."""
    return f"kubernetes:{api_version if '/' in api_version else f'core/{api_version}'}:{kind}"


def is_builtin(api_version: str) -> bool:
    """True for API groups of Kubernetes itself, as far as a name can tell."""
    group = api_version.split("/")[0] if "/" in api_version else ""
    return "." not in group or group.endswith(".k8s.io")


def object_id(namespace: str | None, name: str) -> str:
    """`<namespace>/<name>`, or `<name>` where cluster-scoped."""
    return f"{namespace}/{name}" if namespace else name


def split_id(text: str) -> tuple[str | None, str]:
    """The other way round."""
    namespace, _, name = text.rpartition("/")
    return namespace or None, name


def annotation(props: Mapping[str, Any], key: str) -> str | None:
    """One annotation of an object, as text; None where absent or not known yet."""
    metadata = props.get("metadata")
    annotations = metadata.get("annotations") if isinstance(metadata, Mapping) else None
    value = annotations.get(key) if isinstance(annotations, Mapping) else None
    return None if value is None or is_unknown(value) else str(value).lower()


def flag(props: Mapping[str, Any], key: str) -> bool:
    """True when the annotation reads `true`."""
    return annotation(props, key) == "true"


def field_manager(urn: str) -> str:
    """The field manager of a resource: one of its own each, as the official plugin has, but no random one."""
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
    """The inputs with apiVersion, kind, a name and, where `namespace` is not None, a namespace.

    An object that was named automatically keeps its name as long as the program gives none.
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
    """What is sent to the API server: the inputs without what is not the user's to set."""
    sent = {key: value for key, value in inputs.items() if not key.startswith("__") and key != "status"}
    result: Props = _without_null(sent)
    return result


def outputs(live: Props, manager: str, inputs: Props | None = None) -> Props:
    """The live object as outputs: without the bookkeeping of server-side apply, its secrets marked."""
    result = copy.deepcopy(live)
    result.get("metadata", {}).pop("managedFields", None)
    if result.get("kind") == "Secret" and not str(result.get("apiVersion", "")).count("/"):
        for key in ("data", "stringData"):
            if key in result:
                result[key] = Secret(result[key])
        if inputs and "stringData" in inputs:
            result["stringData"] = Secret(inputs["stringData"])
    if result.get("kind") == "CustomResourceDefinition":
        # Schemas are most of a state's size, and the engine writes the state at every step: the inputs have them.
        for version in (result.get("spec") or {}).get("versions") or []:
            version.pop("schema", None)
    result[FIELD_MANAGER] = manager
    return result


def describe(inputs: Mapping[str, Any]) -> str:
    """`Deployment training/web` for messages."""
    metadata = inputs.get("metadata") or {}
    return f"{inputs.get('kind')} {object_id(metadata.get('namespace'), str(metadata.get('name')))}"


def with_schema_keys(value: Any) -> Any:
    """A CustomResourceDefinition as the API spells it: the SDK writes `x-kubernetes-...` and `$ref` as identifiers."""
    if isinstance(value, Mapping):
        return {_dash(key): with_schema_keys(item) for key, item in value.items()}
    return [with_schema_keys(item) for item in value] if isinstance(value, list) else value


def foreseen(inputs: Props) -> Props:
    """Outputs of an object that a preview would create: what the API server will fill in is unknown."""
    result: Props = {"status": UNKNOWN, **copy.deepcopy(inputs)}
    if isinstance(result.get("metadata"), dict):
        result["metadata"] = {"uid": UNKNOWN, "resourceVersion": UNKNOWN, **result["metadata"]}
    if result.get("kind") == "Service" and isinstance(result.get("spec"), dict):
        result["spec"] = {"clusterIP": UNKNOWN, "clusterIPs": UNKNOWN, **result["spec"]}
    return result


def merged(base: Any, over: Any) -> Any:
    """`over` laid on `base`, object by object; anything else of `over` replaces."""
    if not isinstance(base, Mapping) or not isinstance(over, Mapping):
        return over
    return {**base, **{key: merged(base.get(key), item) for key, item in over.items()}}


def _dash(key: str) -> str:
    if key.startswith("x_kubernetes_"):
        return key.replace("_", "-")
    return {"_ref": "$ref", "_schema": "$schema", "_default": "default", "not_": "not"}.get(key, key)


def _without_null(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _without_null(item) for key, item in value.items() if item is not None}
    return [_without_null(item) for item in value] if isinstance(value, list) else value
