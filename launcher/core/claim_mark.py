"""For whose placeholders Karpenter made a NodeClaim, as the NodeClaim itself says it. Pure.

Nothing in Kubernetes names the pods that a NodeClaim was made for but Events, and anybody who may write Events could
have a NodeClaim deleted by one. Karpenter does copy what pods require of node labels to `spec.requirements` of the
NodeClaim (sigs.k8s.io/karpenter v1.14.1, CanAdd in pkg/controllers/provisioning/scheduling/nodeclaim.go and ToNodeClaim
in nodeclaimtemplate.go), and takes `DoesNotExist` of a label that the NodePool does not know (Compatible in
pkg/scheduling/requirements.go). So each placeholder requires that its node lacks a label of a key of its own run. Every
node lacks it, so that the requirement excludes none, and Karpenter gives no node the label (Requirement.Any in
pkg/scheduling/requirement.go). Only Karpenter and administrators write NodeClaims.
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
    """Return the key of the placeholders of this run."""
    return _DOMAIN + hashlib.sha256(f"{namespace}/{run_id}".encode()).hexdigest()[:32]


def marked(affinity: Mapping[str, Any], key: str) -> JsonObject:
    """Return this nodeAffinity with the mark in it.

    Terms are alternatives, so that each gets it; an empty one matches no node, and stays so.
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


def marks_of(claim: Mapping[str, Any]) -> frozenset[str]:
    """Return the keys of all runs for whose placeholders this NodeClaim was made."""
    requirements = (claim.get("spec") or {}).get("requirements") or ()
    return frozenset(
        each["key"]
        for each in requirements
        if each.get("operator") == _OPERATOR and str(each.get("key")).startswith(_DOMAIN)
    )
