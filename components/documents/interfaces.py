"""Network interfaces that VPC CNI leaves behind: the tags that tell them. Pure: no Pulumi.

The CNI gives a node further interfaces. Where a node ends between an interface's creation and its attachment, or while
it is detached, the interface stays, `available`, and holds its subnet and security groups
(aws/amazon-vpc-cni-k8s#608, #1223). The CNI of another node of the same cluster removes it after a while, but the
last node has none. Tags as in pkg/awsutils/awsutils.go of the CNI, read 2026-11-21; the EKS add-on sets the cluster's.
"""

from __future__ import annotations

from typing import Final

CLUSTER_TAG: Final = "cluster.k8s.amazonaws.com/name"
INSTANCE_TAG: Final = "node.k8s.amazonaws.com/instance_id"
