"""Access entries and access policies: the Kubernetes identity of an IAM principal.

https://docs.aws.amazon.com/eks/latest/userguide/access-entries.html. Each access policy corresponds to a group that the
control plane binds to a ClusterRole at its start. Policies for single namespaces are refused, because nothing would
enforce them.
"""

from __future__ import annotations

import re
import uuid
from typing import Any

from moto.core.utils import utcnow
from moto.iam.models import iam_backends

from local.aws.account import ACCOUNT_ID, PARTITION
from local.aws.eks.store import AccessEntry, Cluster, Document, arn, in_use, invalid, not_found

POLICY_PREFIX = "arn:aws:eks::aws:cluster-access-policy/"
# Access policy -> the Kubernetes group that has its permissions.
POLICY_GROUPS = {
    "AmazonEKSClusterAdminPolicy": "eks:cluster-admin",
    "AmazonEKSAdminPolicy": "eks:admin",
    "AmazonEKSEditPolicy": "eks:edit",
    "AmazonEKSViewPolicy": "eks:view",
}
_PRINCIPAL = re.compile(r"arn:aws[a-z-]*:iam::(?P<account>[0-9]{12}):(?P<kind>user|role)/.+")


def bootstrap_creator(cluster: Cluster, principal: str) -> None:
    """Make the creator of a cluster its administrator, unless the request disables it."""
    create(cluster, {"principalArn": principal})
    associate(
        cluster,
        principal,
        {"policyArn": POLICY_PREFIX + "AmazonEKSClusterAdminPolicy", "accessScope": {"type": "cluster"}},
    )


def require_principal(principal: str, kind: str) -> None:
    """Check that a principal exists.

    A principal of another account can have a STANDARD entry only, and can't be looked up here.

    https://docs.aws.amazon.com/eks/latest/userguide/creating-access-entries.html; the message is one that EKS was
    observed to return (github.com/terraform-aws-modules/terraform-aws-eks, issue 2969).

    Raises:
        InvalidParameterException: The principal does not exist, or is not allowed.
    """
    found = _PRINCIPAL.fullmatch(principal)
    if found is not None and found["account"] != ACCOUNT_ID and kind == "STANDARD":
        return
    iam = iam_backends[ACCOUNT_ID][PARTITION]
    there = {str(each.arn) for each in (*iam.roles.values(), *iam.users.values())}
    if found is None or principal not in there:
        raise invalid("The specified principalArn is invalid: invalid principal.")


def create(cluster: Cluster, params: Document) -> AccessEntry:
    """Answer CreateAccessEntry.

    Raises:
        ResourceInUseException: The principal has an entry.
        InvalidParameterException: The request is not valid.
    """
    principal, kind = params["principalArn"], params.get("type") or "STANDARD"
    if principal in cluster.entries:
        raise in_use("The specified access entry resource is already in use on this cluster.")
    require_principal(principal, kind)
    now = utcnow()
    principal_kind, _, name = principal.split(":", 5)[5].partition("/")
    document = {
        "clusterName": cluster.name,
        "principalArn": principal,
        "kubernetesGroups": params.get("kubernetesGroups") or [] if kind == "STANDARD" else ["system:nodes"],
        "accessEntryArn": arn(
            cluster.region, "access-entry", cluster.name, principal_kind, ACCOUNT_ID, name, str(uuid.uuid4())
        ),
        "createdAt": now,
        "modifiedAt": now,
        "tags": dict(params.get("tags") or {}),
        "username": params.get("username") or _default_username(principal, kind),
        "type": kind,
    }
    entry = AccessEntry(document)
    cluster.entries[principal] = entry
    return entry


def _default_username(principal: str, kind: str) -> str:
    if kind != "STANDARD":
        return "system:node:{{EC2PrivateDNSName}}"
    if ":role/" in principal:
        return f"arn:aws:sts::{ACCOUNT_ID}:assumed-role/{principal.rsplit('/', 1)[-1]}/{{{{SessionName}}}}"
    return principal


def find(cluster: Cluster, principal: str) -> AccessEntry:
    """Return an access entry.

    Raises:
        ResourceNotFoundException: It does not exist.
    """
    entry = cluster.entries.get(principal)
    if entry is None:
        raise not_found(f"The specified principalArn could not be found: {principal}")
    return entry


def associate(cluster: Cluster, principal: str, params: Document) -> Document:
    """Answer AssociateAccessPolicy, for the whole cluster."""
    policy = params["policyArn"]
    if policy.removeprefix(POLICY_PREFIX) not in POLICY_GROUPS or not policy.startswith(POLICY_PREFIX):
        known = ", ".join(POLICY_PREFIX + name for name in POLICY_GROUPS)
        raise invalid(f"The policyArn {policy!r} is not supported here; supported are {known}")
    entry = find(cluster, principal)
    scope = params.get("accessScope") or {}
    if scope.get("type") != "cluster":
        raise invalid(f"accessScope.type: {scope.get('type')!r} must be 'cluster' on the local cloud")
    now = utcnow()
    document = {
        "policyArn": policy,
        "accessScope": {"type": "cluster", "namespaces": []},
        "associatedAt": now,
        "modifiedAt": now,
    }
    entry.policies[policy] = document
    return document


def kubernetes_identity(entry: AccessEntry, session_name: str) -> tuple[str, list[str]]:
    """Return the user name and groups in Kubernetes of a principal with this entry."""
    user = str(entry.document["username"]).replace("{{SessionName}}", session_name)
    groups: list[Any] = list(entry.document["kubernetesGroups"])
    groups += [POLICY_GROUPS[policy.removeprefix(POLICY_PREFIX)] for policy in entry.policies]
    return user, groups
