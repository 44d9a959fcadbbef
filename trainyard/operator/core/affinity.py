"""Whether a pod's node affinity lets it on a node, as Kubernetes' scheduler decides it. Pure.

https://kubernetes.io/docs/concepts/scheduling-eviction/assign-pod-node/#node-affinity
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from launcher.observe import Node
from trainyard.operator.core.reading import JsonObject

REQUIRED: Final = "requiredDuringSchedulingIgnoredDuringExecution"
_NAME: Final = "metadata.name"


def allows(affinity: Mapping[str, Any], node: Node) -> bool:
    """Whether the required part of this nodeAffinity holds on the node. What can't be read leaves no node out."""
    try:
        required = affinity.get(REQUIRED)
        return required is None or any(_holds(term, node) for term in required["nodeSelectorTerms"])
    except (AttributeError, KeyError, TypeError, IndexError):  # the API server refuses such pods
        return True


def _holds(term: JsonObject, node: Node) -> bool:
    """An empty term holds nowhere."""
    labels, fields = term.get("matchExpressions") or [], term.get("matchFields") or []
    asked = [(each, node.labels) for each in labels] + [(each, {_NAME: node.name}) for each in fields]
    return bool(asked) and all(_is_so(each, values) for each, values in asked)


def _is_so(asked: JsonObject, labels: Mapping[str, str]) -> bool:
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
            return _compared(value, values[0], operator)
    return True


def _compared(value: str | None, bound: str, operator: str) -> bool:
    try:
        mine, theirs = int(value or ""), int(bound)
    except ValueError:
        return False
    return mine > theirs if operator == "Gt" else mine < theirs
