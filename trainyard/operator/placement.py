"""Place the workers' pods: node selector, affinity, tolerations. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from launcher.observe import Node
from launcher.request import GPU_RESOURCE
from trainyard.k8s import names
from trainyard.operator import names as n
from trainyard.operator.api.fields import JsonObject
from trainyard.operator.api.queue import QueueSpec

# A node that does not answer ends the attempt. Kubernetes' default is 300 s.
LOST_NODE_SECONDS: Final = 30
LOST_NODE_TAINTS: Final = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
# Set by NVIDIA's GPU feature discovery (https://docs.nvidia.com/datacenter/cloud-native/gpu-operator/latest/).
LABEL_GPU_PRODUCT: Final = "nvidia.com/gpu.product"
# Set by Karpenter on AWS (https://karpenter.sh/docs/concepts/scheduling/): a name such as h100, and MiB of one GPU.
LABEL_GPU_NAME: Final = "karpenter.k8s.aws/instance-gpu-name"
LABEL_GPU_MEMORY: Final = "karpenter.k8s.aws/instance-gpu-memory"
_GPU_TYPE: Final = re.compile(r"([a-z][a-z0-9]*)(?:-(\d{1,4})gb?)?", re.ASCII)


def placement_fields(template: Mapping[str, Any], queue: QueueSpec) -> JsonObject:
    """Return the PodSpec fields for the placement, from the queue's template and its `scheduling`."""
    selector = {**(template.get("nodeSelector") or {}), **queue.scheduling.node_selector}
    if queue.scheduling.pool:
        selector[names.LABEL_NODEPOOL] = queue.scheduling.pool
    affinity = {**(template.get("affinity") or {}), **queue.scheduling.affinity}
    if queue.node_resources.gpu_type:
        affinity["nodeAffinity"] = _with_gpus(
            affinity.get("nodeAffinity") or {}, queue.node_resources.gpu_type
        )
    given = [*(template.get("tolerations") or []), *queue.scheduling.tolerations]
    if queue.scheduling.pool:
        given += _pool_tolerations(given)
    result: JsonObject = {"tolerations": _tolerations(given)}
    if selector:
        result["nodeSelector"] = selector
    if affinity:
        result["affinity"] = affinity
    if queue.scheduling.priority_class_name:
        result["priorityClassName"] = queue.scheduling.priority_class_name
    if queue.scheduling.scheduler:
        result["schedulerName"] = queue.scheduling.scheduler
    return result


def gpu_terms(gpu_type: str) -> list[JsonObject]:
    """Return alternative node selector terms for GPUs of this type, such as h100-80gb.

    A node has the type by an administrator's label, NVIDIA's product name, or Karpenter's data. The memory may differ
    by 15 % from the type's name, because nodes report a little more or less.
    """
    terms = [[_in_expression(n.LABEL_GPU_TYPE, gpu_type)], [_in_expression(LABEL_GPU_PRODUCT, gpu_type)]]
    sold = _GPU_TYPE.fullmatch(gpu_type.lower())
    if sold is not None:
        expressions = [_in_expression(LABEL_GPU_NAME, sold[1])]
        if sold[2] is not None:
            mebibytes = int(sold[2]) * 1024
            expressions += [
                {"key": LABEL_GPU_MEMORY, "operator": "Gt", "values": [str(mebibytes * 85 // 100)]},
                {"key": LABEL_GPU_MEMORY, "operator": "Lt", "values": [str(mebibytes * 115 // 100)]},
            ]
        terms.append(expressions)
    return [{"matchExpressions": each} for each in terms]


def _in_expression(key: str, value: str) -> JsonObject:
    return {"key": key, "operator": "In", "values": [value]}


def _with_gpus(affinity: Mapping[str, Any], gpu_type: str) -> JsonObject:
    """Add the terms of a GPU type. Terms are alternatives, so each one of the user is joined with each of the type."""
    required = affinity.get(REQUIRED) or {}
    theirs: Sequence[Mapping[str, Any]] = required.get("nodeSelectorTerms") or [{}]
    terms = [
        {**term, "matchExpressions": [*(term.get("matchExpressions") or []), *more["matchExpressions"]]}
        for term in theirs
        for more in gpu_terms(gpu_type)
    ]
    return {**affinity, REQUIRED: {**required, "nodeSelectorTerms": terms}}


def _pool_tolerations(given: list[JsonObject]) -> list[JsonObject]:
    """Return tolerations for the usual taints of a pool.

    The key of the taint is the resource's name on GPU nodes, and the label's name in a stack's CPU pools.
    """
    keys = {each.get("key") or "" for each in given}
    if "" in keys:
        return []
    return [
        {"key": key, "operator": "Exists", "effect": "NoSchedule"}
        for key in (GPU_RESOURCE, names.LABEL_POOL)
        if key not in keys
    ]


def _tolerations(given: list[JsonObject]) -> list[JsonObject]:
    """Add short tolerations for a lost node, unless the user has set some."""
    said = {each.get("key") for each in given}
    if None in said or "" in said:
        return given
    return given + [
        {"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": LOST_NODE_SECONDS}
        for key in LOST_NODE_TAINTS
        if key not in said
    ]


REQUIRED: Final = "requiredDuringSchedulingIgnoredDuringExecution"
_NAME_FIELD: Final = "metadata.name"


def affinity_allows(affinity: Mapping[str, Any], node: Node) -> bool:
    """Return whether the required part of a nodeAffinity matches the node, as Kubernetes' scheduler decides.

    An unreadable affinity excludes no node.
    https://kubernetes.io/docs/concepts/scheduling-eviction/assign-pod-node/#node-affinity
    """
    try:
        required = affinity.get(REQUIRED)
        return not required or any(_term_matches(term, node) for term in required["nodeSelectorTerms"])
    except (AttributeError, KeyError, TypeError, IndexError):  # the API server refuses such pods
        return True


def _term_matches(term: JsonObject, node: Node) -> bool:
    """Return whether a term matches the node. An empty term matches none."""
    labels, fields = term.get("matchExpressions") or [], term.get("matchFields") or []
    asked = [(each, node.labels) for each in labels] + [(each, {_NAME_FIELD: node.name}) for each in fields]
    return bool(asked) and all(_matches(each, values) for each, values in asked)


def _matches(asked: JsonObject, labels: Mapping[str, str]) -> bool:
    value, values = labels.get(asked["key"]), asked.get("values") or []
    match asked["operator"]:
        case "In":
            return value in values
        case "NotIn":
            return value not in values
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
        case "Gt" | "Lt" as operator:
            return _compare(value, values[0], operator)
    return True


def _compare(value: str | None, bound: str, operator: str) -> bool:
    try:
        mine, theirs = int(value or ""), int(bound)
    except ValueError:
        return False
    return mine > theirs if operator == "Gt" else mine < theirs
