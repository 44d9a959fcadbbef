"""How long the services take to create a thing, and what they themselves need for it. Not derived from the program.

A *kind* is a resource type, with a word more where one type has several lives (an add-on that is there before any
node is not the one that needs a node). The long times are the figures that this project plans with (control plane 9
minutes, node group 3, file system 8, NAT gateway 2); what takes moments is one second. They decide which chain is
the longest, so that only the long ones have to be right.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from tests.integration.graph.model import UNKNOWN, Node

EKS = "https://docs.aws.amazon.com/eks/latest/userguide"
EC2 = "https://docs.aws.amazon.com/vpc/latest/userguide"
FSX = "https://docs.aws.amazon.com/fsx/latest/LustreGuide"
KARPENTER = "https://karpenter.sh/v1.14"
KUBERNETES = "https://kubernetes.io/docs"

CLUSTER = "aws:eks/cluster:Cluster"
NODES = "aws:eks/nodeGroup:NodeGroup"
ADDON = "aws:eks/addon:Addon"
ROLE = "aws:iam/role:Role"
ATTACHMENT = "aws:iam/rolePolicyAttachment:RolePolicyAttachment"
ROUTE = "aws:ec2/route:Route"
ENDPOINT = "aws:ec2/vpcEndpoint:VpcEndpoint"
RELEASE = "kubernetes:helm.sh/v3:Release"
IMAGE = "docker-build:index:Image"
FILE_SYSTEM = "aws:fsx/lustreFileSystem:LustreFileSystem"
DATA_LINK = "aws:fsx/dataRepositoryAssociation:DataRepositoryAssociation"
NAT = "aws:ec2/natGateway:NatGateway"
ENTRY = "aws:eks/accessPolicyAssociation:AccessPolicyAssociation"
LOG_GROUP = "aws:cloudwatch/logGroup:LogGroup"
WEB_ROLE = f"{ROLE} web identity"
OWN_ATTACHMENT = f"{ATTACHMENT} own policy"
# AWS's policy for the role of a service account, which needs the cluster that the cluster's own attachments precede.
WEB_ATTACHMENT = f"{ATTACHMENT} web identity"
POD = "kubernetes:core/v1:Pod"
CLAIM = "kubernetes:core/v1:PersistentVolumeClaim"


@dataclass(frozen=True, kw_only=True)
class Needed:
    """What a service refuses, or fails, to do without; and where that is said."""

    kind: str
    source: str


# Add-ons that run pods of a Deployment: EKS reports them DEGRADED, and the creation waits, until a node takes one.
ADDONS_THAT_NEED_NODES: Final = frozenset(
    {"coredns", "aws-ebs-csi-driver", "aws-fsx-csi-driver", "metrics-server"}
)


def kind_of(node: Node) -> str:
    """The kind of a resource: its type, and what tells its lives apart."""
    given = node.inputs
    if node.type == ADDON:
        return f"{ADDON} {given['addonName']}"
    if node.type == ROLE:
        trust = str(given.get("assumeRolePolicy", UNKNOWN))
        return WEB_ROLE if trust == UNKNOWN or "AssumeRoleWithWebIdentity" in trust else ROLE
    if node.type == ATTACHMENT and "-vpc-cni-" in node.urn:
        return WEB_ATTACHMENT
    if node.type == ATTACHMENT:
        return ATTACHMENT if ":aws:policy/" in str(given.get("policyArn")) else OWN_ATTACHMENT
    if node.type == ROUTE:
        return f"{ROUTE} by NAT" if given.get("natGatewayId") else ROUTE
    if node.type == ENDPOINT:
        return f"{ENDPOINT} {str(given.get('vpcEndpointType', 'Gateway')).lower()}"
    if node.type == LOG_GROUP:
        return f"{LOG_GROUP} control plane" if str(given.get("name")).startswith("/aws/eks/") else LOG_GROUP
    if node.type == RELEASE:
        return f"{RELEASE} {given.get('name')}"
    notes = (given.get("metadata") or {}).get("annotations") if node.type.startswith("kubernetes:") else None
    if isinstance(notes, Mapping) and notes.get("pulumi.com/skipAwait") == "true":
        return f"{node.type} not awaited"
    return node.type


SECONDS: Final[Mapping[str, float]] = {
    CLUSTER: 540,  # EKS/create-cluster.html: several minutes
    NODES: 180,  # EC2 start, kubelet, CNI
    f"{ADDON} vpc-cni": 15,
    f"{ADDON} kube-proxy": 15,
    f"{ADDON} eks-pod-identity-agent": 15,
    f"{ADDON} eks-node-monitoring-agent": 30,
    f"{ADDON} coredns": 30,
    f"{ADDON} aws-ebs-csi-driver": 45,
    f"{ADDON} aws-fsx-csi-driver": 45,
    f"{ADDON} metrics-server": 45,
    NAT: 120,  # EC2/vpc-nat-gateway.html: pending until it is available
    f"{ENDPOINT} interface": 90,
    f"{ENDPOINT} gateway": 10,
    FILE_SYSTEM: 480,  # FSX/getting-started.html: several minutes
    DATA_LINK: 300,  # with an empty prefix; the import of metadata comes on top and blocks nothing
    IMAGE: 300,  # 3 to 5 GB of layers over an ordinary connection
    "aws:sqs/queue:Queue": 25,  # the provider waits until the attributes have spread
    "aws:sqs/queuePolicy:QueuePolicy": 25,
    "aws:s3/bucketLifecycleConfiguration:BucketLifecycleConfiguration": 15,
    "aws:kms/key:Key": 10,
    RELEASE: 60,  # two replicas of the controller, ready
    f"{RELEASE} karpenter": 60,
    f"{RELEASE} karpenter-crd": 10,
    "kubernetes:apps/v1:Deployment": 30,
    "kubernetes:apps/v1:DaemonSet": 10,
    POD: 30,
    CLAIM: 5,
}
# What takes a moment, and what exists in the engine alone.
MOMENT: Final = 1.0
NOTHING: Final = ("pulumi:", "pulumi-python:", "trainyard:", "eks:")
MOMENTARY: Final = (
    "aws:cloudwatch/",
    "aws:ec2/",
    "aws:ecr/",
    "aws:eks/access",
    "aws:iam/",
    "aws:kms/",
    "aws:s3/",
    "aws:vpc/",
    "kubernetes:",
)


class UnknownKind(Exception):
    """A kind whose creation time nobody has looked up; which one."""


def seconds(kind: str) -> float:
    """Creation time of a kind in seconds.

    Raises:
        UnknownKind: the tables have nothing on it.
    """
    if kind in SECONDS:
        return SECONDS[kind]
    if kind.startswith(NOTHING):
        return 0.0
    if kind.startswith(MOMENTARY):
        return MOMENT
    raise UnknownKind(
        f"{kind}: look up how long its creation takes and what it needs (tests/integration/graph/services.py)"
    )


def _all(source: str, *kinds: str) -> list[Needed]:
    return [Needed(kind=kind, source=source) for kind in kinds]


VPC, SUBNET, GROUP = "aws:ec2/vpc:Vpc", "aws:ec2/subnet:Subnet", "aws:ec2/securityGroup:SecurityGroup"
LINK = "aws:ec2/routeTableAssociation:RouteTableAssociation"
CRD_RELEASE = f"{RELEASE} karpenter-crd"
CONTROLLER = f"{RELEASE} karpenter"
IN_CLUSTER = (
    f"{EKS}/access-entries.html: with authentication mode API nobody else may do anything in a cluster"
)

NEEDS: Final[Mapping[str, list[Needed]]] = {
    SUBNET: _all(f"{EC2}/configure-subnets.html", VPC),
    GROUP: _all(f"{EC2}/vpc-security-groups.html", VPC),
    "aws:ec2/internetGateway:InternetGateway": _all(f"{EC2}/VPC_Internet_Gateway.html", VPC),
    "aws:ec2/routeTable:RouteTable": _all(f"{EC2}/VPC_Route_Tables.html", VPC),
    NAT: _all(
        f"{EC2}/vpc-nat-gateway.html: a public gateway has an address, and a way out or it fails",
        SUBNET,
        "aws:ec2/eip:Eip",
        "aws:ec2/internetGateway:InternetGateway",
    ),
    ROUTE: _all(
        f"{EC2}/VPC_Route_Tables.html",
        "aws:ec2/routeTable:RouteTable",
        "aws:ec2/internetGateway:InternetGateway",
    ),
    f"{ROUTE} by NAT": _all(f"{EC2}/VPC_Route_Tables.html", "aws:ec2/routeTable:RouteTable", NAT),
    LINK: _all(f"{EC2}/VPC_Route_Tables.html", "aws:ec2/routeTable:RouteTable", SUBNET),
    f"{ENDPOINT} gateway": _all(f"{EC2}/VPC_Route_Tables.html", "aws:ec2/routeTable:RouteTable"),
    f"{ENDPOINT} interface": _all(
        "https://docs.aws.amazon.com/vpc/latest/privatelink/create-interface-endpoint.html", SUBNET, GROUP
    ),
    "aws:ec2/flowLog:FlowLog": _all(f"{EC2}/flow-logs.html", VPC),
    ATTACHMENT: _all("https://docs.aws.amazon.com/IAM/latest/UserGuide/access_policies.html", ROLE),
    CLUSTER: [
        *_all(f"{EKS}/network-reqs.html", SUBNET, GROUP),
        *_all(f"{EKS}/cluster-iam-role.html: the creation checks the role and its policy", ROLE, ATTACHMENT),
        *_all(f"{EKS}/enable-kms.html: the key is given at creation", "aws:kms/key:Key"),
    ],
    NODES: [
        *_all(f"{EKS}/create-managed-node-group.html", CLUSTER, SUBNET, ROLE, ATTACHMENT),
        *_all(f"{EKS}/launch-templates.html", "aws:ec2/launchTemplate:LaunchTemplate"),
        *_all(
            f"{EKS}/private-clusters.html: nodes join and pull images by a NAT gateway or by endpoints",
            f"{ROUTE} by NAT",
            LINK,
            f"{ENDPOINT} interface",
        ),
        *_all(f"{EKS}/managing-vpc-cni.html: a node without the CNI is never Ready", f"{ADDON} vpc-cni"),
    ],
    f"{ADDON} vpc-cni": [
        *_all(f"{EKS}/eks-add-ons.html", CLUSTER),
        *_all(f"{EKS}/cni-iam-role.html: it changes interfaces by its role", WEB_ROLE, WEB_ATTACHMENT),
    ],
    f"{ADDON} kube-proxy": _all(f"{EKS}/eks-add-ons.html", CLUSTER),
    f"{ADDON} eks-pod-identity-agent": _all(f"{EKS}/eks-add-ons.html", CLUSTER),
    f"{ADDON} eks-node-monitoring-agent": _all(f"{EKS}/eks-add-ons.html", CLUSTER),
    **{
        f"{ADDON} {name}": _all(f"{EKS}/eks-add-ons.html: DEGRADED until a node takes its pods", NODES)
        for name in sorted(ADDONS_THAT_NEED_NODES)
    },
    "aws:eks/accessEntry:AccessEntry": _all(f"{EKS}/access-entries.html", CLUSTER),
    ENTRY: _all(f"{EKS}/access-policies.html", "aws:eks/accessEntry:AccessEntry"),
    "aws:iam/openIdConnectProvider:OpenIdConnectProvider": _all(
        f"{EKS}/enable-iam-roles-for-service-accounts.html: the issuer is the cluster's", CLUSTER
    ),
    WEB_ROLE: _all(
        f"{EKS}/associate-service-account-role.html: the trust names the provider",
        "aws:iam/openIdConnectProvider:OpenIdConnectProvider",
    ),
    WEB_ATTACHMENT: _all("https://docs.aws.amazon.com/IAM/latest/UserGuide/access_policies.html", WEB_ROLE),
    OWN_ATTACHMENT: _all(
        "https://docs.aws.amazon.com/IAM/latest/UserGuide/access_policies.html", "aws:iam/policy:Policy"
    ),
    FILE_SYSTEM: _all(f"{FSX}/getting-started.html", SUBNET, GROUP),
    DATA_LINK: _all(f"{FSX}/create-dra-linked-data-repo.html", FILE_SYSTEM, "aws:s3/bucket:Bucket"),
    "aws:ecr/lifecyclePolicy:LifecyclePolicy": _all(
        "https://docs.aws.amazon.com/AmazonECR/latest/userguide/LifecyclePolicies.html",
        "aws:ecr/repository:Repository",
    ),
    IMAGE: _all(
        "https://docs.aws.amazon.com/AmazonECR/latest/userguide/docker-push-ecr-image.html",
        "aws:ecr/repository:Repository",
    ),
    "aws:sqs/queuePolicy:QueuePolicy": _all(
        "https://docs.aws.amazon.com/AWSSimpleQueueService/latest/APIReference/API_SetQueueAttributes.html",
        "aws:sqs/queue:Queue",
    ),
    CRD_RELEASE: _all(IN_CLUSTER, CLUSTER, ENTRY),
    CONTROLLER: [
        *_all(IN_CLUSTER, ENTRY),
        *_all(
            f"{KARPENTER}/upgrading/upgrade-guide: the controller ends without its definitions", CRD_RELEASE
        ),
        *_all(f"{KARPENTER}/getting-started: it never runs on nodes of its own", NODES),
        *_all(
            f"{KARPENTER}/troubleshooting: its pods resolve AWS names by the cluster's DNS",
            f"{ADDON} coredns",
        ),
        *_all(
            f"{KARPENTER}/reference/settings: it ends where the queue does not exist", "aws:sqs/queue:Queue"
        ),
        *_all(f"{KARPENTER}/troubleshooting: without its role it ends", WEB_ROLE, OWN_ATTACHMENT),
    ],
    "kubernetes:karpenter.k8s.aws/v1:EC2NodeClass": _all(f"{KARPENTER}/concepts/nodeclasses", CRD_RELEASE),
    "kubernetes:karpenter.sh/v1:NodePool": _all(f"{KARPENTER}/concepts/nodepools", CRD_RELEASE),
    "kubernetes:torchrun.ai/v1alpha1:TorchrunQueue": _all(
        f"{KUBERNETES}/concepts/extend-kubernetes/api-extension/custom-resources",
        "kubernetes:apiextensions.k8s.io/v1:CustomResourceDefinition",
    ),
    "kubernetes:apps/v1:Deployment": _all(
        f"{KUBERNETES}/concepts/workloads/controllers/deployment: ready when a node runs its pods",
        NODES,
        ENTRY,
    ),
    "kubernetes:core/v1:PersistentVolume": [
        *_all(f"{FSX}/mount-on-eks.html: the volume names the file system", FILE_SYSTEM),
        *_all(IN_CLUSTER, CLUSTER, ENTRY),
    ],
    CLAIM: _all(
        f"{KUBERNETES}/concepts/storage/persistent-volumes: a static claim is bound to its volume",
        "kubernetes:core/v1:PersistentVolume",
    ),
    POD: _all(
        f"{KUBERNETES}/concepts/workloads/pods",
        NODES,
        f"{ADDON} coredns",
        ENTRY,
    ),
}


def needs(kind: str) -> list[Needed]:
    """What the services force to be there before a kind can be created."""
    if kind in NEEDS:
        return NEEDS[kind]
    return _all(IN_CLUSTER, CLUSTER, ENTRY) if kind.startswith("kubernetes:") else []
