"""Add-ons: records with versions. Nothing is installed here; `local.nodes` emulates what their pods do."""

from __future__ import annotations

import json
import re
import uuid
from typing import Any

from moto.core.utils import utcnow

from local.aws.eks.store import Cluster, Document, arn, in_use, invalid, not_found
from local.aws.eks.versions import SUPPORT_ENDS

# Name -> versions, newest first (describe-addon-versions for Kubernetes 1.35; CoreDNS and kube-proxy as the tables of
# https://docs.aws.amazon.com/eks/latest/userguide/managing-coredns.html and managing-kube-proxy.html had them in 2026).
ADDONS = {
    "vpc-cni": ("v1.21.1-eksbuild.3", "v1.20.4-eksbuild.2"),
    "coredns": (
        "v1.14.3-eksbuild.3",
        "v1.13.2-eksbuild.11",
        "v1.13.1-eksbuild.1",
        "v1.12.4-eksbuild.18",
        "v1.12.4-eksbuild.1",
        "v1.11.4-eksbuild.40",
    ),
    "kube-proxy": (
        "v1.36.0-eksbuild.14",
        "v1.35.3-eksbuild.13",
        "v1.35.0-eksbuild.2",
        "v1.34.6-eksbuild.13",
        "v1.34.1-eksbuild.2",
        "v1.33.10-eksbuild.13",
        "v1.32.13-eksbuild.16",
        "v1.31.14-eksbuild.20",
    ),
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
# Minor versions of CoreDNS -> the first and last minor version of Kubernetes that they support, by the same tables.
COREDNS = {14: (35, 99), 13: (33, 99), 12: (33, 99), 11: (0, 32)}
# A kube-proxy may be older than the control plane by this number of minor versions, and never newer
# (https://kubernetes.io/releases/version-skew-policy/#kube-proxy).
KUBE_PROXY_SKEW = 3
_VERSION = re.compile(r"v(\d+)\.(\d+)\.(\d+)-eksbuild\.(\d+)")
AGENT = "eks-node-monitoring-agent"
_REFUSED = "ConfigurationValue provided in request is not supported"


def serves(name: str, version: str, kubernetes: str) -> bool:
    """Return whether a version of an add-on supports a Kubernetes version."""
    addon, cluster = _numbers(version)[1], int(kubernetes.partition(".")[2])
    if name == "kube-proxy":
        return 0 <= cluster - addon <= KUBE_PROXY_SKEW
    if name == "coredns" and addon in COREDNS:
        first, last = COREDNS[addon]
        return first <= cluster <= last
    return True


def of_kubernetes(name: str, kubernetes: str) -> list[str]:
    """Return an add-on's versions for a Kubernetes version, newest first. The first is the default."""
    return [version for version in ADDONS[name] if serves(name, version, kubernetes)]


def _numbers(version: str) -> tuple[int, ...]:
    found = _VERSION.fullmatch(version)
    return tuple(int(each) for each in found.groups()) if found else ()


def _is_offered(name: str, version: str, kubernetes: str) -> bool:
    """Return whether EKS has a version for a cluster.

    A version newer than this list is accepted, because the list gets old faster than programs do. DescribeAddonVersions
    can't name it.
    """
    known = version in ADDONS[name] or _numbers(version) > _numbers(ADDONS[name][0])
    return known and serves(name, version, kubernetes)


def create(cluster: Cluster, params: Document) -> Document:
    """Answer CreateAddon: active at once.

    Raises:
        ResourceInUseException: The cluster has the add-on.
        InvalidParameterException: The request is not valid.
    """
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
        "addonVersion": of_kubernetes(name, cluster.document["version"])[0],
        "health": {"issues": []},
        "addonArn": arn(cluster.region, "addon", cluster.name, name, str(uuid.uuid4())),
        "createdAt": now,
        "modifiedAt": now,
        "tags": dict(params.get("tags") or {}),
    }
    _apply(cluster, document, params)
    cluster.addons[name] = document
    return document


def find(cluster: Cluster, name: str) -> Document:
    """Return an add-on of a cluster.

    Raises:
        ResourceNotFoundException: The cluster does not have it.
    """
    document = cluster.addons.get(name)
    if document is None:
        raise not_found(f"No addon: {name} found in cluster: {cluster.name}")
    return document


def update(cluster: Cluster, params: Document) -> Document:
    """Answer UpdateAddon, and return the update's document."""
    document = find(cluster, params["addonName"])
    _apply(cluster, document, params)
    document["modifiedAt"] = utcnow()
    return cluster.record_update("AddonUpdate")


def _apply(cluster: Cluster, document: Document, params: Document) -> None:
    """Check everything, then change the document."""
    name, version, kubernetes = document["addonName"], params.get("addonVersion"), cluster.document["version"]
    if version and not _is_offered(name, version, kubernetes):
        known = ", ".join(of_kubernetes(name, kubernetes))
        raise invalid(
            f"Addon version specified is not supported: {name} {version} for Kubernetes {kubernetes};"
            f" supported are {known}"
        )
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
    """Check the two parts of the add-ons' schemas that this module knows.

    All variables of vpc-cni are strings, also numbers and flags (`aws eks describe-addon-configuration --addon-name
    vpc-cni`, quoted in aws/amazon-vpc-cni-k8s#3059). Tolerations of the monitoring agent are lists of objects
    (github.com/aws/eks-node-monitoring-agent, charts/eks-node-monitoring-agent/values.schema.json).
    """
    try:
        document = json.loads(values)
    except ValueError as error:
        raise invalid(f"ConfigurationValue provided is not valid JSON: {error}") from None
    if not isinstance(document, dict):
        raise invalid(f"{_REFUSED}: $: it must be an object")
    if name == AGENT and not isinstance(_dcgm_tolerations(document), list):
        raise invalid(f"{_REFUSED}: $.dcgmAgent.tolerations: it must be a list of tolerations")
    variables = document.get("env", {}) if name == "vpc-cni" else {}
    for variable, value in variables.items():
        if not isinstance(value, str):
            raise invalid(f"{_REFUSED}: $.env.{variable}: {json.dumps(value)} is not a text")


def dcgm_tolerations(cluster: Cluster) -> list[Document]:
    """Return the tolerations of the agent's DaemonSet dcgm-server from the add-on's values."""
    values = cluster.addons[AGENT].get("configurationValues")
    found: list[Document] = _dcgm_tolerations(json.loads(values)) if values else []
    return found


def _dcgm_tolerations(document: Document) -> Any:
    return document.get("dcgmAgent", {}).get("tolerations", [])


def versions(name: str, kubernetes: str) -> list[Document]:
    """Answer DescribeAddonVersions for an add-on and a Kubernetes version. The first version is the default."""
    if name not in ADDONS or kubernetes not in SUPPORT_ENDS:
        return []
    served = of_kubernetes(name, kubernetes)
    described = [
        {
            "addonVersion": each,
            "compatibilities": [{"clusterVersion": kubernetes, "defaultVersion": each == served[0]}],
        }
        for each in served
    ]
    return [{"addonName": name, "addonVersions": described}]
