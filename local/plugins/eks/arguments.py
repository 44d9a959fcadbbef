"""The arguments that the components support. All others are refused by name."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from local.plugins.sdk import split_names

CLUSTER = split_names(
    """authenticationMode corednsAddonOptions createOidcProvider deletionProtection enabledClusterLogTypes
    encryptionConfigKeyArn endpointPrivateAccess endpointPublicAccess kubeProxyAddonOptions name
    nodeAssociatePublicIpAddress privateSubnetIds providerCredentialOpts publicAccessCidrs publicSubnetIds
    skipDefaultNodeGroup skipDefaultSecurityGroups subnetIds tags upgradePolicy useDefaultVpcCni version vpcId"""
)
NODE_GROUP = split_names(
    """amiType cluster instanceTypes labels launchTemplate nodeGroupName nodeRole nodeRoleArn operatingSystem
    releaseVersion scalingConfig subnetIds tags version"""
)
# What the official component makes in addition to the cluster, unless these are set. A program makes it with resources.
REQUIRED = {
    "authenticationMode": "API",
    "skipDefaultNodeGroup": True,
    "skipDefaultSecurityGroups": True,
    "useDefaultVpcCni": True,
    "kubeProxyAddonOptions": {"enabled": False},
    "corednsAddonOptions": {"enabled": False},
}


def refusals(token: str, accepted: frozenset[str], inputs: Mapping[str, Any]) -> list[str]:
    """Return the errors of the arguments that are known when the component is created, one clause each."""
    found = [
        f"{key} is not served by the local EKS plugin"
        for key, value in sorted(inputs.items())
        if key not in accepted and value is not None
    ]
    if token == "eks:index:Cluster":
        found += [
            f"{key} must be {json.dumps(value)}; the local EKS plugin serves nothing else"
            for key, value in REQUIRED.items()
            if not _has(inputs.get(key), value)
        ]
    return found


def _has(given: Any, wanted: Any) -> bool:
    """Return whether an argument has the value. The SDK adds defaults of its own to the options of an add-on."""
    if isinstance(wanted, dict):
        return isinstance(given, Mapping) and wanted.items() <= given.items()
    return bool(given == wanted)


def ami_type(instance_types: list[str], system: str | None) -> str | None:
    """Return the AMI type for an operating system; None for EKS's default.

    Graviton families have a `g` after their generation's number (https://docs.aws.amazon.com/ec2/latest/instancetypes).
    """
    if system is None:
        return None
    if system.lower() not in ("al2023", "recommended"):
        raise ValueError(
            f"operatingSystem is {system}; it must be AL2023, which alone the local EKS plugin serves"
        )
    arms = {re.match(r"a1|[a-z]+\d+[a-z]*g", kind) is not None for kind in instance_types}
    if len(arms) > 1:
        raise ValueError(f"instanceTypes mixes processor architectures: {', '.join(instance_types)}")
    has_gpus = any(re.match(r"[gp]\d", kind) for kind in instance_types)
    return f"AL2023_{'ARM_64' if True in arms else 'x86_64'}_{'NVIDIA' if has_gpus else 'STANDARD'}"
