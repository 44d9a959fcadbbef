"""Mark placeholders, so that a NodeClaim says for which run Karpenter created it. Pure.

In Kubernetes, only Events name the pods of a NodeClaim. If the launcher trusted Events, anybody who may write Events
could make it delete a NodeClaim. So each placeholder carries a mark: its node affinity requires that the node lacks a
label whose key belongs to the run.

- Karpenter copies the requirement to `spec.requirements` of the NodeClaim (sigs.k8s.io/karpenter v1.14.1, CanAdd in
  pkg/controllers/provisioning/scheduling/nodeclaim.go and ToNodeClaim in nodeclaimtemplate.go).
- It accepts `DoesNotExist` for a label that the NodePool does not know (Compatible in pkg/scheduling/requirements.go).
- No node has the label, and Karpenter adds it to none (Requirement.Any in pkg/scheduling/requirement.go). So the
  requirement excludes no node.

Only Karpenter and administrators write NodeClaims.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any, Final

JsonObject = dict[str, Any]

_DOMAIN: Final = "hold.trainyard.dev/"
_OPERATOR: Final = "DoesNotExist"
_REQUIRED: Final = "requiredDuringSchedulingIgnoredDuringExecution"


def mark(namespace: str, run_id: str) -> str:
    """Return the label key that marks the placeholders of this run."""
    return _DOMAIN + hashlib.sha256(f"{namespace}/{run_id}".encode()).hexdigest()[:32]


def add_mark(affinity: Mapping[str, Any], key: str) -> JsonObject:
    """Return this nodeAffinity with the mark added.

    The terms are alternatives, so each gets the mark. An empty term matches no node and stays empty.
    """
    own = {"key": key, "operator": _OPERATOR}
    required = affinity.get(_REQUIRED) or {}
    terms = [
        {**each, "matchExpressions": [*(each.get("matchExpressions") or []), own]}
        if any(each.values())
        else each
        for each in required.get("nodeSelectorTerms") or []
    ]
    return {
        **affinity,
        _REQUIRED: {**required, "nodeSelectorTerms": terms or [{"matchExpressions": [own]}]},
    }


def read_marks(claim: Mapping[str, Any]) -> frozenset[str]:
    """Return the marks in this NodeClaim: one for each run whose placeholders Karpenter created it for."""
    requirements = (claim.get("spec") or {}).get("requirements") or ()
    return frozenset(
        each["key"]
        for each in requirements
        if each.get("operator") == _OPERATOR and str(each.get("key")).startswith(_DOMAIN)
    )
