"""Find out whether the cluster of a stack was deleted outside of Pulumi, with all objects in it.

The Kubernetes provider fails if an API server does not respond, unless it may assume that the objects are gone. It
may do so only if EKS no longer has the cluster.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import boto3

from trainyard.cli.summary import stack_outputs

# pulumi-kubernetes, provider setting `deleteUnreachable`.
FORGET_UNREACHABLE = "PULUMI_K8S_DELETE_UNREACHABLE"
CLUSTER = "aws:eks/cluster:Cluster"


def is_gone(name: str, region: str) -> bool:
    """Return whether EKS has no cluster of this name in the account of the AWS variables."""
    eks = boto3.client("eks", region_name=region)
    try:
        eks.describe_cluster(name=name)
    except eks.exceptions.ResourceNotFoundException:
        return True
    return False


def gone_cluster(deployment: Mapping[str, Any], region: str) -> str | None:
    """Return the name of the cluster that the state has and EKS does not have; None if there is none."""
    resources = deployment.get("resources") or []
    if not any(str(each["type"]).startswith("kubernetes:") for each in resources):
        return None
    own = [each["id"] for each in resources if each["type"] == CLUSTER]
    name = own[0] if own else stack_outputs(deployment).get("clusterName")
    return str(name) if name and is_gone(str(name), region) else None
