"""Create a cluster that the stack file names as existing, on the local cloud. `give_cluster` is the entry point.

It has a control plane, an OIDC provider in IAM, add-ons and system nodes, and the name in the stack file. The
settings get the other values from DescribeCluster. It lasts as long as the local cloud, not only as long as the
stack.
"""

from __future__ import annotations

import ipaddress
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from trainyard.cli.next_steps import made_here

Document = dict[str, Any]

GIVEN_TAG = "trainyard.dev/given"
# What a node group needs beside a role (https://docs.aws.amazon.com/eks/latest/userguide/create-node-role.html).
NODE_POLICIES = ("AmazonEKSWorkerNodePolicy", "AmazonEKS_CNI_Policy", "AmazonEC2ContainerRegistryPullOnly")
CLUSTER_POLICIES = ("AmazonEKSClusterPolicy",)
ADDONS = ("vpc-cni", "kube-proxy", "coredns", "eks-node-monitoring-agent")
# The configuration for clusters with GPU nodes (github.com/aws/eks-node-monitoring-agent, dcgmAgent.tolerations).
ADDON_VALUES = {"eks-node-monitoring-agent": '{"dcgmAgent": {"tolerations": [{"operator": "Exists"}]}}'}
# On a given cluster the drivers are its owner's.
FSX_ADDON = "aws-fsx-csi-driver"
NODE_GROUP = "system"
# Two, since each copy of Karpenter asks for a machine of its own.
NODES, NODE_TYPE = 2, "m6i.large"
SUBNET_PREFIX = 28
CREATION_SECONDS, POLL_SECONDS = 120.0, 0.5
STS_AUDIENCE = "sts.amazonaws.com"


class GivenClusterError(Exception):
    """The local cloud can't have the cluster of the stack file."""


@dataclass(frozen=True, kw_only=True)
class Clients:
    """Clients of the emulated account, in the stack's region."""

    ec2: Any
    eks: Any
    iam: Any


def give_cluster(
    existing: Document,
    network: Mapping[str, Any],
    clients: Clients,
    say: Callable[[str], None],
    *,
    lustre: bool,
) -> None:
    """Find or create the cluster in the subnets of `network`, and write into `existing` how to reach it.

    Args:
        lustre: Whether the stack mounts a file system, for which the cluster then has the driver.

    A later call continues an interrupted one.

    Raises:
        GivenClusterError: Another stack has a cluster of this name, or the control plane did not start.
        ClientError: The account refused to create something.
    """
    name, private = str(existing["name"]), list(network["privateSubnetIds"].values())
    maker = _Maker(name, clients)
    found = maker.find()
    if found is None:
        maker.create(str(network["vpcId"]), private)
    document = maker.active()
    provider = maker.provider(document["identity"]["oidc"]["issuer"])
    for addon in (*ADDONS, *((FSX_ADDON,) if lustre else ())):
        maker.addon(addon)
    maker.nodes(private)
    if found is None:
        say(f"{made_here(f'cluster {name}')}, with {NODES} system nodes")
    existing.update(
        endpoint=document["endpoint"],
        certificateAuthority=document["certificateAuthority"]["data"],
        oidcProviderArn=provider,
        oidcIssuer=document["identity"]["oidc"]["issuer"],
        securityGroupId=document["resourcesVpcConfig"]["clusterSecurityGroupId"],
    )


class _Maker:
    """The steps that create one cluster. Each may have been done before."""

    def __init__(self, name: str, clients: Clients) -> None:
        self._name = name
        self._clients = clients
        self._tags = {GIVEN_TAG: name}

    def find(self) -> Document | None:
        """Return the cluster in the form of DescribeCluster."""
        try:
            found: Document = self._clients.eks.describe_cluster(name=self._name)["cluster"]
        except self._clients.eks.exceptions.ResourceNotFoundException:
            return None
        if GIVEN_TAG not in (found.get("tags") or {}):
            raise GivenClusterError(
                f"trainyard:cluster.existing.name: '{self._name}' is the cluster of a stack that is up here;"
                " a given one must have another name"
            )
        return found

    def create(self, vpc: str, private: list[str]) -> None:
        """Create the control plane. Its creator is its administrator, as the deployer of a stack must be."""
        role = self._role("cluster", "eks.amazonaws.com", CLUSTER_POLICIES)
        self._clients.eks.create_cluster(
            name=self._name,
            roleArn=role,
            resourcesVpcConfig={"subnetIds": self._in_two_zones(vpc, private)},
            accessConfig={"authenticationMode": "API", "bootstrapClusterCreatorAdminPermissions": True},
            tags=self._tags,
        )

    def active(self) -> Document:
        """Return the cluster when its control plane serves."""
        deadline = time.monotonic() + CREATION_SECONDS
        while True:
            found = self.find() or {"status": "gone"}
            if found["status"] == "ACTIVE":
                return found
            if found["status"] != "CREATING" or time.monotonic() > deadline:
                issues = (found.get("health") or {}).get("issues") or [{}]
                raise GivenClusterError(
                    f"given cluster {self._name} is {found['status']}: {issues[0].get('message', 'no reason given')}"
                )
            time.sleep(POLL_SECONDS)

    def provider(self, issuer: str) -> str:
        """Create the OIDC provider that gives service accounts roles. Return its ARN."""
        iam, end = self._clients.iam, issuer.removeprefix("https://")
        for each in iam.list_open_id_connect_providers()["OpenIDConnectProviderList"]:
            if each["Arn"].endswith(f":oidc-provider/{end}"):
                return str(each["Arn"])
        tags = [{"Key": key, "Value": value} for key, value in self._tags.items()]
        made = iam.create_open_id_connect_provider(Url=issuer, ClientIDList=[STS_AUDIENCE], Tags=tags)
        return str(made["OpenIDConnectProviderArn"])

    def addon(self, name: str) -> None:
        """Install an add-on in the version that EKS chooses."""
        eks = self._clients.eks
        try:
            values = {"configurationValues": ADDON_VALUES[name]} if name in ADDON_VALUES else {}
            eks.create_addon(clusterName=self._name, addonName=name, tags=self._tags, **values)
        except eks.exceptions.ResourceInUseException:
            return

    def nodes(self, private: list[str]) -> None:
        """Create nodes for Karpenter, the operators and the launcher."""
        eks = self._clients.eks
        if NODE_GROUP in eks.list_nodegroups(clusterName=self._name)["nodegroups"]:
            return
        role = self._role("node", "ec2.amazonaws.com", NODE_POLICIES)
        made = eks.create_nodegroup(
            clusterName=self._name,
            nodegroupName=NODE_GROUP,
            nodeRole=role,
            subnets=private,
            instanceTypes=[NODE_TYPE],
            scalingConfig={"minSize": NODES, "maxSize": NODES, "desiredSize": NODES},
            tags=self._tags,
        )["nodegroup"]
        for issue in made["health"]["issues"]:
            raise GivenClusterError(f"given cluster {self._name} has no system nodes: {issue['message']}")

    def _role(self, kind: str, service: str, policies: tuple[str, ...]) -> str:
        iam, name = self._clients.iam, f"given-{self._name}-{kind}"
        trust = {"Effect": "Allow", "Principal": {"Service": service}, "Action": "sts:AssumeRole"}
        document = json.dumps({"Version": "2012-10-17", "Statement": [trust]})
        try:
            arn = iam.create_role(RoleName=name, AssumeRolePolicyDocument=document)["Role"]["Arn"]
        except iam.exceptions.EntityAlreadyExistsException:
            arn = iam.get_role(RoleName=name)["Role"]["Arn"]
        for policy in policies:
            iam.attach_role_policy(RoleName=name, PolicyArn=f"arn:aws:iam::aws:policy/{policy}")
        return str(arn)

    def _in_two_zones(self, vpc: str, private: list[str]) -> list[str]:
        """Return the subnets, and one more if all are in one zone: EKS requires two zones for a control plane."""
        ec2 = self._clients.ec2
        there = ec2.describe_subnets(Filters=[{"Name": "vpc-id", "Values": [vpc]}])["Subnets"]
        used = {each["AvailabilityZone"] for each in there if each["SubnetId"] in private}
        if len(used) > 1:
            return private
        zones = [each["ZoneName"] for each in ec2.describe_availability_zones()["AvailabilityZones"]]
        other = next(zone for zone in zones if zone not in used)
        taken = [ipaddress.IPv4Network(each["CidrBlock"]) for each in there]
        block = ec2.describe_vpcs(VpcIds=[vpc])["Vpcs"][0]["CidrBlock"]
        free = next(
            each
            for each in ipaddress.IPv4Network(block).subnets(new_prefix=SUBNET_PREFIX)
            if not any(each.overlaps(other_block) for other_block in taken)
        )
        made = ec2.create_subnet(VpcId=vpc, AvailabilityZone=other, CidrBlock=str(free))
        return [*private, str(made["Subnet"]["SubnetId"])]
