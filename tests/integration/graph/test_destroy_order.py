"""What must outlive what when a stack is destroyed: deletion runs against the waiting of creation.

The order is that of docs/destroying.md; each pair says what breaks where the second goes before the first is done.
"""

from __future__ import annotations

from functools import cache

import pytest

from tests.integration.graph.model import Graph, Node, graph_of
from tests.integration.graph.services import POD, kind_of
from tests.previews import every, preview, sample

# A preview is a minute where many run beside it.
pytestmark = [pytest.mark.local, pytest.mark.timeout(300)]

DRAIN, REMAINS = "pulumi-python:dynamic/drain:Drain", "pulumi-python:dynamic/drain:Remains"
KARPENTER, DEFINITIONS = (
    "kubernetes:helm.sh/v3:Release karpenter",
    "kubernetes:helm.sh/v3:Release karpenter-crd",
)
CLUSTER, NODES = "aws:eks/cluster:Cluster", "aws:eks/nodeGroup:NodeGroup"
LOGS = "aws:cloudwatch/logGroup:LogGroup control plane"
POOL, CLASS = "kubernetes:karpenter.sh/v1:NodePool", "kubernetes:karpenter.k8s.aws/v1:EC2NodeClass"
ENTRY = "aws:eks/accessPolicyAssociation:AccessPolicyAssociation"
FILES, LINK = (
    "aws:fsx/lustreFileSystem:LustreFileSystem",
    "aws:fsx/dataRepositoryAssociation:DataRepositoryAssociation",
)
CRD = "kubernetes:apiextensions.k8s.io/v1:CustomResourceDefinition"
DEPLOYMENT, GROUP = "kubernetes:apps/v1:Deployment", "aws:ec2/securityGroup:SecurityGroup"
STACKS = sample(every())
QUEUE = "kubernetes:torchrun.ai/v1alpha1:TorchrunQueue"
BINDING = "kubernetes:rbac.authorization.k8s.io/v1:ClusterRoleBinding"
PROOF = f"{POD} not awaited"
DISKS, CNI = "aws:eks/addon:Addon aws-ebs-csi-driver", "aws:eks/addon:Addon vpc-cni"
# All that is in the cluster, whatever its kind.
INSIDE = "kubernetes:"
# Of a kind those alone whose names have this in them.
ATTACHMENT = "aws:iam/rolePolicyAttachment:RolePolicyAttachment own policy"
RIGHTS, DISK_RIGHTS, OPERATOR = "rights of Karpenter", "rights of the driver of disks", "training operator"
OPERATOR_KINDS = "kinds of the training operator"
TRAINER, TRAINER_KINDS = "Kubeflow Trainer and JobSet", "kinds of Kubeflow Trainer and JobSet"
CONTROLLER, CONTROLLER_KINDS = "controller of torchrun jobs", "kinds of that controller"
CONTROLLER_RIGHTS, WORKSPACE_RIGHTS = "rights of that controller", "rights on workspaces"
MODEL_RIGHTS = "rights of the trainer on models"
WORKERS = "group of the machines"
NAMED = {
    WORKERS: (GROUP, "-workers"),
    RIGHTS: (ATTACHMENT, "-karpenter-"),
    DISK_RIGHTS: (ATTACHMENT, "-ebs-csi-"),
    OPERATOR: (DEPLOYMENT, "training-operator:"),
    OPERATOR_KINDS: (CRD, "training-operator:"),
    TRAINER: (DEPLOYMENT, "kubeflow-trainer:"),
    TRAINER_KINDS: (CRD, "kubeflow-trainer:"),
    CONTROLLER: (DEPLOYMENT, "torchrun-controller:"),
    CONTROLLER_KINDS: (CRD, ".torchrun.ai"),
    CONTROLLER_RIGHTS: (BINDING, "torchrun-controller:"),
    WORKSPACE_RIGHTS: (ATTACHMENT, "-workspaces"),
    MODEL_RIGHTS: (ATTACHMENT, "-trainer-models"),
}

# (deleted first, deleted after it): where a stack has both, each of the first waits for each of the second.
ORDER = [
    (DRAIN, KARPENTER),  # only Karpenter gives machines back
    (DRAIN, RIGHTS),  # and only with its rights
    (DRAIN, "aws:sqs/queue:Queue"),
    (DRAIN, POOL),
    (DRAIN, CLASS),
    (DRAIN, NODES),  # where the controllers run
    (DRAIN, "aws:eks/addon:Addon coredns"),  # by which they find AWS
    (DRAIN, ENTRY),  # the drain itself is somebody's
    (DRAIN, "aws:ec2/route:Route by NAT"),  # without a way out the controller can't call EC2
    (DRAIN, "aws:ec2/route:Route"),
    (DRAIN, "aws:ec2/vpcEndpoint:VpcEndpoint gateway"),
    (DRAIN, "aws:ec2/vpcEndpoint:VpcEndpoint interface"),
    (DRAIN, CRD),  # jobs go while their kind is known
    (DRAIN, OPERATOR),  # and their operator runs
    (DRAIN, DISKS),  # a claim's disk stays for ever without its driver
    (DRAIN, DISK_RIGHTS),
    (DRAIN, "aws:ec2/placementGroup:PlacementGroup"),  # it stays while a machine is in it
    (DRAIN, WORKERS),  # and so does this one
    (DRAIN, "aws:iam/instanceProfile:InstanceProfile"),  # with it machines sign their calls to the end
    (DRAIN, "kubernetes:core/v1:PersistentVolumeClaim"),
    (POOL, DEFINITIONS),
    (CLASS, DEFINITIONS),
    (KARPENTER, DEFINITIONS),
    (OPERATOR, OPERATOR_KINDS),  # without its kinds it fails, and whatever it had to finish stays
    (DRAIN, TRAINER),
    (TRAINER, TRAINER_KINDS),
    (DRAIN, QUEUE),  # jobs and queues end
    (DRAIN, CONTROLLER),  # while the one runs that has to release them
    (DRAIN, WORKSPACE_RIGHTS),
    (DRAIN, MODEL_RIGHTS),  # workers save models until they end, also those of a run from the manifest
    (QUEUE, CONTROLLER),
    (QUEUE, POOL),
    (CONTROLLER, CONTROLLER_KINDS),
    (CONTROLLER, CONTROLLER_RIGHTS),
    (DEPLOYMENT, NODES),
    (PROOF, "kubernetes:core/v1:PersistentVolumeClaim"),  # a claim stays while a pod has it
    (PROOF, "aws:eks/addon:Addon aws-fsx-csi-driver"),  # which unmounts
    ("kubernetes:core/v1:PersistentVolumeClaim", "aws:eks/addon:Addon aws-fsx-csi-driver"),
    ("kubernetes:core/v1:PersistentVolume", FILES),
    (LINK, FILES),
    (NODES, "aws:ec2/route:Route by NAT"),
    (NODES, CNI),  # pods of the last minute end by it, and their interfaces with them
    (CLUSTER, REMAINS),  # what a cluster leaves is looked for when it is gone
    (NODES, REMAINS),
    (CLUSTER, LOGS),  # a control plane would recreate its group
    (LOGS, REMAINS),  # and entries that are late do
    (REMAINS, "aws:ec2/subnet:Subnet"),  # and before its network goes
    (INSIDE, ENTRY),  # without an entry nobody deletes anything there
]


@cache
def waits(stack: str) -> tuple[Graph, dict[str, frozenset[str]]]:
    """A stack's graph, and all that each resource waits for, near and far."""
    graph = graph_of(preview(stack))
    found: dict[str, frozenset[str]] = {}

    def far(urn: str) -> frozenset[str]:
        if urn not in found:
            found[urn] = frozenset().union(graph[urn].waits, *(far(each) for each in graph[urn].waits))
        return found[urn]

    for urn in graph:
        far(urn)
    return graph, found


def own(graph: Graph, kind: str) -> list[Node]:
    """The resources of a kind, or of a line of `NAMED`, without those inside another package's component."""
    kind, part = NAMED.get(kind, (kind, ""))
    inner = {node.urn for node in graph.values() if "eks:index:" in node.urn}
    nodes = [
        node
        for node in graph.values()
        if part in node.name and (node.type.startswith(INSIDE) if kind == INSIDE else kind_of(node) == kind)
    ]
    return nodes if kind in (CLUSTER, NODES) else [node for node in nodes if node.urn not in inner]


@pytest.mark.parametrize("stack", STACKS)
def test_what_is_needed_to_the_end_goes_last(stack: str) -> None:
    graph, far = waits(stack)
    wrong = [
        f"{one.label} does not wait for {other.label}"
        for first, last in ORDER
        for one in own(graph, first)
        for other in own(graph, last)
        if other.urn not in far[one.urn]
    ]
    assert wrong == []


@pytest.mark.parametrize(("first", "last"), ORDER)
def test_each_pair_is_in_some_stack(first: str, last: str) -> None:
    """A pair that no stack has both of would hold whatever the program does."""
    assert [stack for stack in STACKS if own(waits(stack)[0], first) and own(waits(stack)[0], last)]


@pytest.mark.parametrize("stack", STACKS)
def test_the_group_of_a_file_system_outlives_its_interfaces(stack: str) -> None:
    graph, far = waits(stack)
    for files in own(graph, FILES):
        assert [group for group in own(graph, GROUP) if group.urn in far[files.urn]]


@pytest.mark.parametrize("stack", STACKS)
def test_the_drain_is_there_once_and_nothing_waits_for_it(stack: str) -> None:
    graph, _ = waits(stack)
    (drain,) = own(graph, DRAIN)
    assert [node.label for node in graph.values() if drain.urn in node.waits] == []
