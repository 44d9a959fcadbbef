"""The tags of network interfaces that the VPC CNI leaves behind. Pure: no Pulumi.

The CNI adds interfaces to a node. If a node ends before an interface is attached, or while it is detached, the
interface remains, `available`, and uses its subnet and security groups (aws/amazon-vpc-cni-k8s#608, #1223). The
CNI of another node of the same cluster removes it later, but the last node has none. Tags as in
pkg/awsutils/awsutils.go of the CNI, read 2026-11-21; the EKS add-on sets the cluster's.
"""

from __future__ import annotations

from typing import Final

CLUSTER_TAG: Final = "cluster.k8s.amazonaws.com/name"
INSTANCE_TAG: Final = "node.k8s.amazonaws.com/instance_id"
