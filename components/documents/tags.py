"""Tags of a stack's AWS resources and of network interfaces that the VPC CNI leaves behind."""

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

# The VPC CNI adds interfaces to a node. If a node ends before an interface is attached, or while it is detached, the
# interface remains, `available`, and uses its subnet and security groups (aws/amazon-vpc-cni-k8s#608, #1223). The
# CNI of another node of the same cluster removes it later, but the last node has none. Tags as in
# pkg/awsutils/awsutils.go of the CNI, read 2026-11-21; the EKS add-on sets the cluster's.
CNI_CLUSTER: Final = "cluster.k8s.amazonaws.com/name"
CNI_INSTANCE: Final = "node.k8s.amazonaws.com/instance_id"


def stack_tags(project: str, stack: str) -> dict[str, str]:
    """Return the tags that mark a resource as the stack's.

    No component requires them. `make verify-clean` searches for leftovers by exactly these tags, and the policies
    require them.
    """
    return {"trainyard:project": project, "trainyard:stack": stack}


def named(tags: dict[str, str], name: str, **more: str) -> dict[str, str]:
    """Return `tags` with the name that AWS consoles show."""
    return {**tags, "Name": name, **more}


def is_reserved(key: str) -> bool:
    """Return whether a tag is set by the stack or a controller, and not by the user."""
    return key in RESERVED_KEYS or key.lower().startswith(RESERVED_PREFIXES)
