"""Register EKS add-ons: the version that the stack file pins, or EKS's default for the Kubernetes version."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pulumi
import pulumi_aws as aws

from .documents import eks


@dataclass(frozen=True, kw_only=True)
class AddonArgs:
    """What all add-ons of one cluster share."""

    cluster: str
    kubernetes: pulumi.Input[str]
    """The Kubernetes version, an output that resolves after the control plane was updated to it."""
    versions: Mapping[str, str]
    """The pinned versions, by add-on. Others have EKS's default for the Kubernetes version."""
    tags: dict[str, str]


def addon(
    name: str, prefix: str, args: AddonArgs, opts: pulumi.ResourceOptions, **further: Any
) -> aws.eks.Addon:
    """Register the add-on `name`; `further` are other arguments of `aws.eks.Addon`.

    The inputs always contain a version. Otherwise the add-on keeps its first version, because EKS does not update
    add-ons with the control plane (https://docs.aws.amazon.com/eks/latest/userguide/update-cluster.html, step 4).
    """
    version: pulumi.Input[str] | None = args.versions.get(name)
    if version is None:
        version = aws.eks.get_addon_version_output(
            addon_name=name,
            kubernetes_version=args.kubernetes,
            most_recent=False,
            opts=pulumi.InvokeOutputOptions(parent=opts.parent),
        ).version
    return aws.eks.Addon(
        f"{prefix}-{name}",
        cluster_name=args.cluster,
        addon_name=name,
        addon_version=version,
        configuration_values=further.pop("configuration_values", eks.VALUES.get(name)),
        resolve_conflicts_on_create="OVERWRITE",
        resolve_conflicts_on_update="OVERWRITE",
        tags=args.tags,
        opts=opts,
        **further,
    )
