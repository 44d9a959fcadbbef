"""Add-ons: records with versions. What their pods do locally is up to `local.machines`; nothing is installed here."""

from __future__ import annotations

import json
import re
import uuid
from typing import Any

from moto.core.utils import utcnow

from local.aws.eks.store import Cluster, Document, arn, in_use, invalid, not_found
from local.aws.images import KUBERNETES_VERSIONS

# Name -> versions, newest first (describe-addon-versions for Kubernetes 1.35, and earlier ones).
ADDONS = {
    "vpc-cni": ("v1.21.1-eksbuild.3", "v1.20.4-eksbuild.2"),
    "coredns": ("v1.13.1-eksbuild.1", "v1.12.4-eksbuild.1"),
    "kube-proxy": ("v1.35.0-eksbuild.2", "v1.34.1-eksbuild.2"),
    "eks-pod-identity-agent": ("v1.3.10-eksbuild.2",),
    "eks-node-monitoring-agent": ("v1.5.1-eksbuild.1",),
    "aws-ebs-csi-driver": ("v1.55.0-eksbuild.1",),
    "aws-efs-csi-driver": ("v2.2.0-eksbuild.1",),
    "aws-fsx-csi-driver": ("v1.8.0-eksbuild.1",),
    "aws-mountpoint-s3-csi-driver": ("v2.3.0-eksbuild.1",),
    "snapshot-controller": ("v8.3.0-eksbuild.1",),
    "metrics-server": ("v0.8.0-eksbuild.6",),
    "amazon-cloudwatch-observability": ("v4.8.0-eksbuild.1",),
    "adot": ("v0.131.0-eksbuild.1",),
    "cert-manager": ("v1.19.2-eksbuild.1",),
    "kube-state-metrics": ("v2.17.0-eksbuild.4",),
    "prometheus-node-exporter": ("v1.10.2-eksbuild.2",),
}
CONFLICTS = ("OVERWRITE", "NONE", "PRESERVE")
_REFUSED = "ConfigurationValue provided in request is not supported"


def create(cluster: Cluster, params: Document) -> Document:
    """CreateAddon: active at once. Raises ResourceInUseException, InvalidParameterException."""
    name = params["addonName"]
    if name in cluster.addons:
        raise in_use(f"Addon already exists. ({name})")
    if name not in ADDONS:
        raise invalid(f"Addon {name} specified is not supported; supported are {', '.join(sorted(ADDONS))}")
    now = utcnow()
    document: Document = {
        "addonName": name,
        "clusterName": cluster.name,
        "status": "ACTIVE",
        "addonVersion": ADDONS[name][0],
        "health": {"issues": []},
        "addonArn": arn(cluster.region, "addon", cluster.name, name, str(uuid.uuid4())),
        "createdAt": now,
        "modifiedAt": now,
        "tags": dict(params.get("tags") or {}),
    }
    _apply(document, params)
    cluster.addons[name] = document
    return document


def find(cluster: Cluster, name: str) -> Document:
    """An add-on of a cluster. Raises ResourceNotFoundException."""
    document = cluster.addons.get(name)
    if document is None:
        raise not_found(f"No addon: {name} found in cluster: {cluster.name}")
    return document


def update(cluster: Cluster, params: Document) -> Document:
    """UpdateAddon. Returns the update's document."""
    document = find(cluster, params["addonName"])
    _apply(document, params)
    document["modifiedAt"] = utcnow()
    keys = ("addonVersion", "serviceAccountRoleArn", "configurationValues", "resolveConflicts")
    return cluster.record_update(
        "AddonUpdate", [(k[0].upper() + k[1:], params[k]) for k in keys if params.get(k)]
    )


def _apply(document: Document, params: Document) -> None:
    """Check everything, then change the document."""
    name, version = document["addonName"], params.get("addonVersion")
    # A version that this list does not know is taken if it has EKS's form: the list ages faster than programs do.
    if version and version not in ADDONS[name] and not re.fullmatch(r"v[\d.]+-eksbuild\.\d+", version):
        known = ", ".join(ADDONS[name])
        raise invalid(f"Addon version specified is not supported: {name} {version}; supported are {known}")
    conflicts = params.get("resolveConflicts")
    if conflicts and conflicts not in CONFLICTS:
        raise invalid(f"resolveConflicts: expected one of {', '.join(CONFLICTS)}, got {conflicts!r}")
    values = params.get("configurationValues")
    if values:
        _check_values(name, values)
    changes = {
        "addonVersion": version,
        "serviceAccountRoleArn": params.get("serviceAccountRoleArn"),
        "configurationValues": values,
    }
    document.update({k: v for k, v in changes.items() if v is not None})


def _check_values(name: str, values: str) -> None:
    """Of an add-on's schema its variables alone are known here: they are texts, numbers and flags too.

    `aws eks describe-addon-configuration --addon-name vpc-cni`, quoted in aws/amazon-vpc-cni-k8s#3059.
    """
    try:
        document = json.loads(values)
    except ValueError as error:
        raise invalid(f"ConfigurationValue provided is not valid JSON: {error}") from None
    variables = document.get("env", {}) if name == "vpc-cni" and isinstance(document, dict) else {}
    if not isinstance(variables, dict):
        raise invalid(f"{_REFUSED}: $.env: {json.dumps(variables)} is not an object")
    for variable, value in variables.items():
        if not isinstance(value, str):
            raise invalid(f"{_REFUSED}: $.env.{variable}: {json.dumps(value)} is not a text")


def versions(name: str | None, kubernetes_version: str | None) -> list[dict[str, Any]]:
    """DescribeAddonVersions: the first version is the default one."""
    if name and name not in ADDONS:
        return []
    clusters = [kubernetes_version] if kubernetes_version else list(KUBERNETES_VERSIONS)
    return [
        {
            "addonName": addon,
            "type": "networking" if addon in ("vpc-cni", "coredns", "kube-proxy") else "utility",
            "publisher": "eks",
            "owner": "aws",
            "addonVersions": [
                {
                    "addonVersion": version,
                    "architecture": ["amd64", "arm64"],
                    "computeTypes": ["ec2"],
                    "compatibilities": [
                        {"clusterVersion": c, "platformVersions": ["*"], "defaultVersion": i == 0}
                        for c in clusters
                    ],
                    "requiresConfiguration": False,
                    "requiresIamPermissions": addon == "vpc-cni" or addon.endswith("csi-driver"),
                }
                for i, version in enumerate(ADDONS[addon])
            ],
        }
        for addon in sorted(ADDONS)
        if not name or addon == name
    ]
