"""A cluster that somebody deleted behind the stack's back: what was in it went with it.

The Kubernetes provider fails if an API server does not answer, unless it may assume that the objects of such a cluster
are gone. It may do so only if EKS itself no longer has the cluster.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import boto3

# pulumi-kubernetes, provider setting `deleteUnreachable`.
FORGET_UNREACHABLE = "PULUMI_K8S_DELETE_UNREACHABLE"
CLUSTER = "aws:eks/cluster:Cluster"


def is_gone(name: str, region: str) -> bool:
    """Whether EKS knows no cluster of the name, in the account that the AWS variables lead to."""
    eks = boto3.client("eks", region_name=region)
    try:
        eks.describe_cluster(name=name)
    except eks.exceptions.ResourceNotFoundException:
        return True
    return False


def gone_cluster(deployment: Mapping[str, Any], region: str) -> str | None:
    """The name of the cluster that a state names and EKS does not know; None where there is none of that kind."""
    resources = deployment.get("resources") or []
    if not any(str(each["type"]).startswith("kubernetes:") for each in resources):
        return None
    for each in resources:
        if each["type"] == CLUSTER:
            name = str(each["id"])
            return name if is_gone(name, region) else None
    given = next(
        (each.get("outputs", {}).get("clusterName") for each in resources if "outputs" in each), None
    )
    return str(given) if given and is_gone(str(given), region) else None
