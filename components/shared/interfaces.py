"""Network interfaces that VPC CNI leaves behind. Pure: what to look for, as filters of EC2.

The CNI gives a node further interfaces. Where a node ends between an interface's creation and its attachment, or while
it is detached, the interface stays, `available`, and holds its subnet and security groups
(aws/amazon-vpc-cni-k8s#608, #1223). The CNI of another node of the same cluster removes it after a while, but the
last node has none. Tags as in pkg/awsutils/awsutils.go of the CNI, read 2026-11-21; the EKS add-on sets the cluster's.
"""

from __future__ import annotations

from typing import Final

CLUSTER_TAG: Final = "cluster.k8s.amazonaws.com/name"
OWNER_TAG: Final = "eks:eni:owner"
OWNER: Final = "amazon-vpc-cni"
INSTANCE_TAG: Final = "node.k8s.amazonaws.com/instance_id"
CREATED_TAG: Final = "node.k8s.amazonaws.com/createdAt"
# A new interface is `available` for some seconds, until its node has it; that long the CNI itself leaves it alone, too.
SETTLED_SECONDS: Final = 300


def leftover_filters(cluster: str) -> list[dict[str, object]]:
    """Filters of DescribeNetworkInterfaces for exactly one cluster's interfaces that nothing uses.

    While machines of the cluster run, one that was made within `SETTLED_SECONDS` (`CREATED_TAG`, RFC 3339) may be
    on its way to its machine. Once no machine is left, all of them can go.
    """
    return [
        {"Name": "status", "Values": ["available"]},
        {"Name": f"tag:{CLUSTER_TAG}", "Values": [cluster]},
        {"Name": f"tag:{OWNER_TAG}", "Values": [OWNER]},
    ]
