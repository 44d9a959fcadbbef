"""Tags of a stack's AWS resources. Pure: no Pulumi."""

from __future__ import annotations

from typing import Final

# Prefixes of tags that the stack, EKS, Karpenter, the VPC CNI and the EBS CSI driver set or select by, in lower case.
# AWS reserves `aws:` in any case. Karpenter refuses others of them in an EC2NodeClass (v1.14.1,
# pkg/apis/v1/ec2nodeclass.go, Tags); the CNI drops those of k8s.amazonaws.com (amazon-vpc-cni-k8s, README.md,
# ADDITIONAL_ENI_TAGS).
RESERVED_PREFIXES: Final = (
    *("aws:", "trainyard:", "eks:", "karpenter.", "kubernetes.io/", "k8s.io/", "ebs.csi.aws.com/"),
    *("k8s.amazonaws.com/", "cluster.k8s.amazonaws.com/", "node.k8s.amazonaws.com/"),
)
# `Name` is what consoles show. The EBS CSI driver does not start with the others as extra tags (its
# pkg/driver/validation.go).
RESERVED_KEYS: Final = frozenset({"Name", "CSIVolumeName", "CSIVolumeSnapshotName"})


def stack_tags(project: str, stack: str) -> dict[str, str]:
    """Return the tags that mark a resource as the stack's; `destroy` searches for leftovers by exactly these."""
    return {"trainyard:project": project, "trainyard:stack": stack}


def named(tags: dict[str, str], name: str, **more: str) -> dict[str, str]:
    """Return `tags` with the name that AWS consoles show."""
    return {**tags, "Name": name, **more}


def is_reserved(key: str) -> bool:
    """Return whether a tag is set by the stack or a controller, and not by the user."""
    return key in RESERVED_KEYS or key.lower().startswith(RESERVED_PREFIXES)
