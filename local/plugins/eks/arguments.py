"""The arguments that the components support. All others are refused by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

CLUSTER = frozenset(
    {
        "accessEntries",
        "authenticationMode",
        "bootstrapSelfManagedAddons",
        "clusterSecurityGroupTags",
        "clusterTags",
        "corednsAddonOptions",
        "createOidcProvider",
        "deletionProtection",
        "enabledClusterLogTypes",
        "encryptionConfigKeyArn",
        "endpointPrivateAccess",
        "endpointPublicAccess",
        "instanceRoles",
        "kubeProxyAddonOptions",
        "kubernetesServiceIpAddressRange",
        "name",
        "nodeAssociatePublicIpAddress",
        "nodeSecurityGroupTags",
        "privateSubnetIds",
        "providerCredentialOpts",
        "publicAccessCidrs",
        "publicSubnetIds",
        "skipDefaultNodeGroup",
        "skipDefaultSecurityGroups",
        "subnetIds",
        "tags",
        "upgradePolicy",
        "useDefaultVpcCni",
        "version",
        "vpcId",
    }
)
NODE_GROUP = frozenset(
    {
        "amiType",
        "capacityType",
        "cluster",
        "diskSize",
        "forceUpdateVersion",
        "gpu",
        "instanceTypes",
        "labels",
        "launchTemplate",
        "nodeGroupName",
        "nodeGroupNamePrefix",
        "nodeRole",
        "nodeRoleArn",
        "operatingSystem",
        "releaseVersion",
        "remoteAccess",
        "scalingConfig",
        "subnetIds",
        "tags",
        "taints",
        "version",
    }
)


def refusals(token: str, accepted: frozenset[str], inputs: Mapping[str, Any]) -> list[str]:
    """Return the errors of the arguments that are known when the component is created, one clause each."""
    found = [
        f"{key} is not served by the local EKS plugin"
        for key, value in sorted(inputs.items())
        if key not in accepted and value is not None
    ]
    if token == "eks:index:Cluster":
        mode = inputs.get("authenticationMode")
        if isinstance(mode, str) and mode != "API":
            found.append(f"authenticationMode is {mode}; the local EKS plugin serves API")
        if mode is None:
            found.append("authenticationMode is missing; the local EKS plugin serves API")
        if inputs.get("instanceRoles"):
            # A rule of the official component.
            found.append("instanceRoles cannot be set when authenticationMode is API")
        if inputs.get("skipDefaultNodeGroup") is not True:
            found.append(
                "skipDefaultNodeGroup must be true; the local EKS plugin makes no default node group"
            )
    return found


def ami_type(instance_types: list[str], gpu: bool | None, system: str | None) -> str | None:
    """Return the AMI type for an operating system; None for EKS's default.

    Graviton families have a `g` after their generation's number (https://docs.aws.amazon.com/ec2/latest/instancetypes).
    """
    if system is None:
        return None
    arms = {_is_graviton(kind) for kind in instance_types}
    if len(arms) > 1:
        raise ValueError(f"instanceTypes mixes processor architectures: {', '.join(instance_types)}")
    arm = arms == {True}
    accelerated = gpu is True or any(_is_gpu(kind) for kind in instance_types)
    if system.lower() in ("al2023", "recommended"):
        if accelerated:
            return f"AL2023_{'ARM_64' if arm else 'x86_64'}_NVIDIA"
        return f"AL2023_{'ARM_64' if arm else 'x86_64'}_STANDARD"
    if system.lower() == "bottlerocket":
        return f"BOTTLEROCKET_{'ARM_64' if arm else 'x86_64'}{'_NVIDIA' if accelerated else ''}"
    raise ValueError(f"operatingSystem is {system}; AL2023 or Bottlerocket are served")


def _is_graviton(kind: str) -> bool:
    family = kind.split(".")[0]
    letters = family.lstrip("abcdefghijklmnopqrstuvwxyz").lstrip("0123456789")
    return family.startswith("a1") or "g" in letters.split("-")[0]


def _is_gpu(kind: str) -> bool:
    return kind.split(".")[0].rstrip("0123456789abcdefghijklmnopqrstuvwxyz-") == "" and (
        kind[0] in "gp" and kind[1:2].isdigit()
    )
