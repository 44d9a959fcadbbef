"""Create what a stack file names as existing, on the local cloud. `with_existing_resources` is the entry point.

These are a VPC with its subnets and routes, a cluster with system nodes, a cluster's administrators, capacity
reservations, snapshots, and a file system. The tag `EXISTING_TAG` of each holds the id in the stack file, so that the
next `up` finds it. They last as long as the local cloud, beyond the stack.
"""

from __future__ import annotations

import copy
import ipaddress
import json
import re
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from functools import cached_property, partial
from typing import Any, Final

import boto3
from botocore.exceptions import BotoCoreError, ClientError

from trainyard.cli.errors import CommandError
from trainyard.cli.next_steps import made_here

EXISTING_TAG = "trainyard.dev/given"
EXISTING_CIDR = "10.80.0.0/16"
SUBNET_PREFIX, CONTROL_PLANE_PREFIX = 20, 28
DEFAULT_BLOCK = timedelta(days=14)
LONGEST_BLOCK_HOURS = 182 * 24
SNAPSHOT_GIB = 100
REGION = r"[a-z]{2}(-[a-z]+)+-[0-9]"
CLUSTER_NAME = r"[0-9A-Za-z][0-9A-Za-z_-]{0,99}"
PRINCIPAL: Final = re.compile(
    r"arn:aws[a-z-]*:iam::(?P<account>[0-9]{12}):(?P<kind>user|role)(?P<path>/(?:[!-~]+/)?)(?P<name>[\w+=,.@-]{1,64})",
    re.ASCII,
)
# What a node group needs beside a role (https://docs.aws.amazon.com/eks/latest/userguide/create-node-role.html).
NODE_POLICIES = ("AmazonEKSWorkerNodePolicy", "AmazonEKS_CNI_Policy", "AmazonEC2ContainerRegistryPullOnly")
CLUSTER_POLICIES = ("AmazonEKSClusterPolicy",)
# The configuration for clusters with GPU nodes (github.com/aws/eks-node-monitoring-agent, dcgmAgent.tolerations).
ADDONS: dict[str, dict[str, str]] = {
    "vpc-cni": {},
    "kube-proxy": {},
    "coredns": {},
    "eks-node-monitoring-agent": {
        "configurationValues": '{"dcgmAgent": {"tolerations": [{"operator": "Exists"}]}}'
    },
}
# On an existing cluster the drivers are its owner's.
FSX_ADDON = "aws-fsx-csi-driver"
NODE_GROUP = "system"
# Two, since each copy of Karpenter asks for a node of its own.
NODES, NODE_TYPE = 2, "m6i.large"
CREATION_SECONDS, POLL_SECONDS = 120.0, 0.5
STS_AUDIENCE = "sts.amazonaws.com"

Document = dict[str, Any]


def with_existing_resources(document: Mapping[str, Any], report: Callable[[str], None]) -> Document:
    """Return the settings with the ids of resources in the account of the environment's AWS variables.

    Invalid settings are not changed: the program reports them with all other errors.

    Raises:
        CommandError: The account refused to create something, or another stack has a cluster of this name.
    """
    result = copy.deepcopy(dict(document))
    config = result["config"]
    region = config.get("aws:region")
    if not re.fullmatch(REGION, str(region)):
        return result
    try:
        _replace(config, region, report)
    except (BotoCoreError, ClientError) as error:
        raise CommandError(
            f"an existing resource of the stack file can't be created on the local cloud: {error}"
        ) from error
    return result


def has_existing_cluster(config: Mapping[str, Any]) -> bool:
    """Return whether the settings name an existing cluster."""
    cluster = config.get("trainyard:cluster")
    return isinstance(cluster, dict) and cluster.get("existing") is not None


def _replace(config: Document, region: str, report: Callable[[str], None]) -> None:
    resources = _ExistingResources(region, report)
    lustre = _at(config, "trainyard:storage", "lustre")
    if not has_existing_cluster(config):
        resources.administrators(_at(config, "trainyard:cluster").get("administrators"))
    network = _at(config, "trainyard:network")
    if network.get("vpcId"):
        resources.network(network)
        cluster, private = _at(config, "trainyard:cluster", "existing"), network.get("privateSubnetIds")
        name = cluster.get("name")
        if (
            isinstance(name, str)
            and re.fullmatch(CLUSTER_NAME, name)
            and isinstance(private, dict)
            and private
        ):
            addons = {**ADDONS, FSX_ADDON: {}} if lustre else ADDONS
            resources.cluster(cluster, network["vpcId"], list(private.values()), addons)
    for pool in _mappings(config.get("trainyard:pools")):
        ids = pool.get("capacityReservationIds")
        if isinstance(ids, list) and _is_whole(pool):
            pool["capacityReservationIds"] = [resources.reservation(str(each), pool) for each in ids]
            resources.times_of_blocks(pool)
        if isinstance(pool.get("dataSnapshotId"), str) and isinstance(pool.get("zone"), str):
            pool["dataSnapshotId"] = resources.snapshot(pool)
    subnet = _at(network, "privateSubnetIds").get(str(lustre.get("zone")))
    existing = _at(lustre, "existing")
    if existing.get("fileSystemId") and subnet:
        resources.file_system(existing, str(subnet))


def _mappings(value: object) -> Iterator[Document]:
    """Return the items of a list that are mappings. The program reports other items."""
    yield from (each for each in value if isinstance(each, dict)) if isinstance(value, list) else ()


def _is_whole(pool: Mapping[str, Any]) -> bool:
    """Return whether a pool has all settings of its reservation."""
    kinds = {"instanceType": str, "zone": str, "maxNodes": int}
    return all(isinstance(pool.get(key), kind) for key, kind in kinds.items()) and all(
        _is_time(pool.get(key)) for key in ("reservationBegins", "reservationEnds")
    )


def _is_time(value: object) -> bool:
    """Return whether a value is not set or is a time with a zone."""
    try:
        return value is None or datetime.fromisoformat(str(value)).tzinfo is not None
    except ValueError:
        return False


def _at(config: Mapping[str, Any], *path: str) -> Document:
    found: Any = config
    for key in path:
        found = found.get(key) if isinstance(found, dict) else None
    return found if isinstance(found, dict) else {}


def _written(moment: datetime) -> str:
    return f"{moment.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}"


class _ExistingResources:
    """Finds or creates existing resources, and writes their ids into the settings."""

    def __init__(self, region: str, report: Callable[[str], None]) -> None:
        self._client = partial(boto3.client, region_name=region)
        self._ec2: Any = self._client("ec2")
        self._fsx: Any = self._client("fsx")
        self._report = report
        tagged_key = [{"Name": "tag-key", "Values": [EXISTING_TAG]}]
        tagged = [
            (tag["ResourceId"], tag)
            for page in self._ec2.get_paginator("describe_tags").paginate(
                Filters=[{"Name": "key", "Values": [EXISTING_TAG]}]
            )
            for tag in page["Tags"]
        ] + [
            (each["CapacityReservationId"], tag)
            for each in self._ec2.describe_capacity_reservations(Filters=tagged_key)["CapacityReservations"]
            for tag in each["Tags"]
            if tag["Key"] == EXISTING_TAG
        ]
        self._known: dict[str, str] = {str(tag["Value"]): str(identity) for identity, tag in tagged}

    @cached_property
    def _iam(self) -> Any:
        return self._client("iam")

    @cached_property
    def _eks(self) -> Any:
        return self._client("eks")

    def _once(self, wanted: str, kind: str, make: Callable[[list[Document]], str]) -> str:
        """Return the id of the resource for an id of the stack file. `make` creates it with the tags."""
        if wanted not in self._known:
            self._known[wanted] = make([{"Key": EXISTING_TAG, "Value": wanted}])
            self._report(made_here(f"{kind} {wanted}", self._known[wanted]))
        return self._known[wanted]

    def network(self, network: Document) -> None:
        """Create a VPC with the subnets of the settings, and one more for the gateways if there is no public subnet."""
        blocks = (
            str(each) for each in ipaddress.IPv4Network(EXISTING_CIDR).subnets(new_prefix=SUBNET_PREFIX)
        )
        new = str(network["vpcId"]) not in self._known
        vpc = self._once(str(network["vpcId"]), "VPC", self._vpc)
        network["vpcId"] = vpc
        made: dict[str, list[str]] = {"privateSubnetIds": [], "publicSubnetIds": []}
        for key, subnets in made.items():
            zones = network.get(key)
            for zone in sorted(zones) if isinstance(zones, dict) else ():
                make = partial(self._subnet, vpc, zone, next(blocks))
                network[key][zone] = self._once(str(network[key][zone]), "subnet", make)
                subnets.append(network[key][zone])
        if group := network.get("workerSecurityGroupId"):
            make = partial(self._group, vpc)
            network["workerSecurityGroupId"] = self._once(str(group), "security group", make)
        if new and made["privateSubnetIds"]:
            zone = next(iter(network["privateSubnetIds"]))
            public = made["publicSubnetIds"] or [self._subnet(vpc, zone, next(blocks), [])]
            self._way_out(vpc, public, made["privateSubnetIds"])

    def _vpc(self, tags: list[Document]) -> str:
        made = self._ec2.create_vpc(CidrBlock=EXISTING_CIDR, TagSpecifications=_tagged("vpc", tags))["Vpc"]
        vpc = str(made["VpcId"])
        for name in ("EnableDnsSupport", "EnableDnsHostnames"):
            self._ec2.modify_vpc_attribute(VpcId=vpc, **{name: {"Value": True}})
        return vpc

    def _subnet(self, vpc: str, zone: str, block: str, tags: list[Document]) -> str:
        made = self._ec2.create_subnet(
            VpcId=vpc, AvailabilityZone=zone, CidrBlock=block, TagSpecifications=_tagged("subnet", tags)
        )
        return str(made["Subnet"]["SubnetId"])

    def _group(self, vpc: str, tags: list[Document]) -> str:
        """Create a security group whose members reach each other in both directions, as EFA requires."""
        made = self._ec2.create_security_group(
            VpcId=vpc,
            GroupName=f"existing-{tags[0]['Value']}",
            Description="Existing security group of workers",
            TagSpecifications=_tagged("security-group", tags),
        )
        group = str(made["GroupId"])
        itself = [{"IpProtocol": "-1", "UserIdGroupPairs": [{"GroupId": group}]}]
        self._ec2.authorize_security_group_ingress(GroupId=group, IpPermissions=itself)
        self._ec2.authorize_security_group_egress(GroupId=group, IpPermissions=itself)
        return group

    def _way_out(self, vpc: str, public: list[str], private: list[str]) -> None:
        gateway = self._ec2.create_internet_gateway()["InternetGateway"]["InternetGatewayId"]
        self._ec2.attach_internet_gateway(InternetGatewayId=gateway, VpcId=vpc)
        address = self._ec2.allocate_address(Domain="vpc")["AllocationId"]
        nat = self._ec2.create_nat_gateway(SubnetId=public[0], AllocationId=address)["NatGateway"]
        self._routed(vpc, public, GatewayId=gateway)
        table = self._routed(vpc, private, NatGatewayId=nat["NatGatewayId"])
        self._ec2.create_vpc_endpoint(
            VpcId=vpc,
            ServiceName=f"com.amazonaws.{self._ec2.meta.region_name}.s3",
            VpcEndpointType="Gateway",
            RouteTableIds=[table],
        )

    def _routed(self, vpc: str, subnets: list[str], **target: str) -> str:
        """Create a route table with a default route for these subnets. Return its id."""
        table = self._ec2.create_route_table(VpcId=vpc)["RouteTable"]["RouteTableId"]
        self._ec2.create_route(RouteTableId=table, DestinationCidrBlock="0.0.0.0/0", **target)
        for subnet in subnets:
            self._ec2.associate_route_table(RouteTableId=table, SubnetId=subnet)
        return str(table)

    def reservation(self, wanted: str, pool: Mapping[str, Any]) -> str:
        """Create a reservation of the pool's type in its zone, with room for all of its nodes."""

        def make(tags: list[Document]) -> str:
            ends = pool.get("reservationEnds")
            if pool.get("reservationType") == "capacity-block":
                return self._block(pool, tags)
            limited = {"EndDateType": "limited", "EndDate": str(ends)} if ends else {}
            made = self._ec2.create_capacity_reservation(
                InstanceType=pool["instanceType"],
                InstancePlatform="Linux/UNIX",
                AvailabilityZone=pool["zone"],
                InstanceCount=int(pool["maxNodes"]),
                InstanceMatchCriteria="targeted",
                TagSpecifications=_tagged("capacity-reservation", tags),
                **limited,
            )
            return str(made["CapacityReservation"]["CapacityReservationId"])

        return self._once(wanted, "capacity reservation", make)

    def _block(self, pool: Mapping[str, Any], tags: list[Document]) -> str:
        """Create a capacity block with the times of the stack file. By default it began before and lasts two weeks.

        A block lasts at most 182 days, so one with a later end begins later.
        """
        begins, ends = pool.get("reservationBegins"), pool.get("reservationEnds")
        begin = datetime.fromisoformat(str(begins)) if begins else datetime.now(UTC)
        end = datetime.fromisoformat(str(ends)) if ends else begin.replace(microsecond=0) + DEFAULT_BLOCK
        hours = max(1, min(-int((begin - end) // timedelta(hours=1)), LONGEST_BLOCK_HOURS))
        offers = self._ec2.describe_capacity_block_offerings(
            InstanceType=pool["instanceType"],
            InstanceCount=int(pool["maxNodes"]),
            CapacityDurationHours=hours,
            EndDateRange=end,
        )["CapacityBlockOfferings"]
        there = next((each for each in offers if each["AvailabilityZone"] == pool["zone"]), None)
        if there is None:
            raise CommandError(
                f"{pool['zone']} has no {pool['instanceType']}, so the local cloud can't create the capacity block"
            )
        bought = self._ec2.purchase_capacity_block(
            CapacityBlockOfferingId=there["CapacityBlockOfferingId"],
            InstancePlatform="Linux/UNIX",
            TagSpecifications=_tagged("capacity-reservation", tags),
        )
        return str(bought["CapacityReservation"]["CapacityReservationId"])

    def times_of_blocks(self, pool: Document) -> None:
        """Write into the pool when its first capacity block ends, and when it begins if that is later.

        Times in the stack file stay. The other times come from the account, so the block of an earlier `up` keeps
        them. The preflight reports a block that has ended.
        """
        ids = pool["capacityReservationIds"]
        if pool.get("reservationType") != "capacity-block" or not ids:
            return
        found = self._ec2.describe_capacity_reservations(CapacityReservationIds=ids)["CapacityReservations"]
        now = datetime.now(UTC)
        lasting = [each for each in found if each.get("EndDate", now) > now]
        if not lasting:
            return
        begin, end = min(each["StartDate"] for each in lasting), min(each["EndDate"] for each in lasting)
        if begin > now and not pool.get("reservationBegins"):
            pool["reservationBegins"] = _written(begin)
        if not pool.get("reservationEnds"):
            pool["reservationEnds"] = _written(end)

    def snapshot(self, pool: Mapping[str, Any]) -> str:
        """Create an encrypted, empty snapshot of the size of the pool's disk."""

        def make(tags: list[Document]) -> str:
            size = pool.get("dataVolumeGiB")
            volume = self._ec2.create_volume(
                AvailabilityZone=pool["zone"],
                Size=size if isinstance(size, int) and size > 0 else SNAPSHOT_GIB,
                Encrypted=True,
            )["VolumeId"]
            made = self._ec2.create_snapshot(VolumeId=volume, TagSpecifications=_tagged("snapshot", tags))
            self._ec2.delete_volume(VolumeId=volume)
            return str(made["SnapshotId"])

        return self._once(str(pool["dataSnapshotId"]), "snapshot", make)

    def file_system(self, existing: Document, subnet: str) -> None:
        """Create a file system in the subnet of its zone, and write its names into the settings."""
        wanted = str(existing["fileSystemId"])
        systems = {
            tag["Value"]: system
            for page in self._fsx.get_paginator("describe_file_systems").paginate()
            for system in page["FileSystems"]
            for tag in system.get("Tags", [])
            if tag["Key"] == EXISTING_TAG
        }
        system = systems.get(wanted)
        if system is None:
            system = self._fsx.create_file_system(
                FileSystemType="LUSTRE",
                StorageCapacity=1200,
                SubnetIds=[subnet],
                LustreConfiguration={"DeploymentType": "SCRATCH_2"},
                Tags=[{"Key": EXISTING_TAG, "Value": wanted}],
            )["FileSystem"]
            self._report(made_here(f"file system {wanted}", str(system["FileSystemId"])))
        existing["fileSystemId"] = system["FileSystemId"]
        existing["dnsName"] = system["DNSName"]
        existing["mountName"] = system["LustreConfiguration"]["MountName"]

    def administrators(self, arns: object) -> None:
        """Create the users and roles of this account. EKS requires that they exist, and refuses another path.

        They have no rights in the account. EKS accepts principals of other accounts as they are.
        """
        found = [
            PRINCIPAL.fullmatch(arn)
            for arn in (arns if isinstance(arns, list) else ())
            if isinstance(arn, str)
        ]
        account = self._client("sts").get_caller_identity()["Account"] if any(found) else ""
        for each in found:
            if each is None or each["account"] != account:
                continue
            tags = [{"Key": EXISTING_TAG, "Value": each[0]}]
            try:
                if each["kind"] == "user":
                    self._iam.create_user(UserName=each["name"], Path=each["path"], Tags=tags)
                else:
                    trust = _trust(AWS=f"arn:aws:iam::{account}:root")
                    self._iam.create_role(
                        RoleName=each["name"], Path=each["path"], AssumeRolePolicyDocument=trust, Tags=tags
                    )
            except self._iam.exceptions.EntityAlreadyExistsException:
                continue
            self._report(made_here(f"{each['kind']} {each[0]}"))

    def cluster(
        self, existing: Document, vpc: str, private: list[str], addons: Mapping[str, Mapping[str, str]]
    ) -> None:
        """Create the cluster in these subnets, and write into `existing` how to reach it.

        It has a control plane, an OIDC provider in IAM, add-ons and system nodes. A later call continues an
        interrupted one.

        Raises:
            CommandError: Another stack has a cluster of this name, or the control plane did not start.
        """
        name = str(existing["name"])
        tags = {EXISTING_TAG: name}
        is_new = self._find_cluster(name) is None
        if is_new:
            # Its creator is its administrator, as the deployer of a stack must be.
            self._eks.create_cluster(
                name=name,
                roleArn=self._role(f"existing-{name}-cluster", "eks.amazonaws.com", CLUSTER_POLICIES),
                resourcesVpcConfig={"subnetIds": self._in_two_zones(vpc, private)},
                accessConfig={"authenticationMode": "API", "bootstrapClusterCreatorAdminPermissions": True},
                tags=tags,
            )
        document = self._active_cluster(name)
        for addon, values in addons.items():
            try:
                self._eks.create_addon(clusterName=name, addonName=addon, tags=tags, **values)
            except self._eks.exceptions.ResourceInUseException:
                continue
        self._system_nodes(name, private, tags)
        if is_new:
            self._report(f"{made_here(f'cluster {name}')}, with {NODES} system nodes")
        issuer = document["identity"]["oidc"]["issuer"]
        existing.update(
            endpoint=document["endpoint"],
            certificateAuthority=document["certificateAuthority"]["data"],
            oidcProviderArn=self._oidc_provider(issuer, name),
            oidcIssuer=issuer,
            securityGroupId=document["resourcesVpcConfig"]["clusterSecurityGroupId"],
        )

    def _find_cluster(self, name: str) -> Document | None:
        """Return the cluster in the form of DescribeCluster."""
        try:
            found: Document = self._eks.describe_cluster(name=name)["cluster"]
        except self._eks.exceptions.ResourceNotFoundException:
            return None
        if EXISTING_TAG not in (found.get("tags") or {}):
            raise CommandError(
                f"trainyard:cluster.existing.name: '{name}' is the cluster of a stack that is up here;"
                " an existing cluster must have another name"
            )
        return found

    def _active_cluster(self, name: str) -> Document:
        """Return the cluster when its control plane serves."""
        deadline = time.monotonic() + CREATION_SECONDS
        while True:
            found = self._find_cluster(name) or {"status": "gone"}
            if found["status"] == "ACTIVE":
                return found
            if found["status"] != "CREATING" or time.monotonic() > deadline:
                issues = (found.get("health") or {}).get("issues") or [{}]
                raise CommandError(
                    f"existing cluster {name} is {found['status']}: {issues[0].get('message', 'EKS names no reason')}"
                )
            time.sleep(POLL_SECONDS)

    def _oidc_provider(self, issuer: str, cluster: str) -> str:
        """Create the OIDC provider that gives service accounts roles. Return its ARN."""
        for each in self._iam.list_open_id_connect_providers()["OpenIDConnectProviderList"]:
            if each["Arn"].endswith(f":oidc-provider/{issuer.removeprefix('https://')}"):
                return str(each["Arn"])
        made = self._iam.create_open_id_connect_provider(
            Url=issuer, ClientIDList=[STS_AUDIENCE], Tags=[{"Key": EXISTING_TAG, "Value": cluster}]
        )
        return str(made["OpenIDConnectProviderArn"])

    def _system_nodes(self, cluster: str, private: list[str], tags: Mapping[str, str]) -> None:
        """Create nodes for Karpenter, the operators and the launcher."""
        if NODE_GROUP in self._eks.list_nodegroups(clusterName=cluster)["nodegroups"]:
            return
        made = self._eks.create_nodegroup(
            clusterName=cluster,
            nodegroupName=NODE_GROUP,
            nodeRole=self._role(f"existing-{cluster}-node", "ec2.amazonaws.com", NODE_POLICIES),
            subnets=private,
            instanceTypes=[NODE_TYPE],
            scalingConfig={"minSize": NODES, "maxSize": NODES, "desiredSize": NODES},
            tags=tags,
        )["nodegroup"]
        for issue in made["health"]["issues"]:
            raise CommandError(f"existing cluster {cluster} has no system nodes: {issue['message']}")

    def _role(self, name: str, service: str, policies: tuple[str, ...]) -> str:
        try:
            trust = _trust(Service=service)
            arn = self._iam.create_role(RoleName=name, AssumeRolePolicyDocument=trust)["Role"]["Arn"]
        except self._iam.exceptions.EntityAlreadyExistsException:
            arn = self._iam.get_role(RoleName=name)["Role"]["Arn"]
        for policy in policies:
            self._iam.attach_role_policy(RoleName=name, PolicyArn=f"arn:aws:iam::aws:policy/{policy}")
        return str(arn)

    def _in_two_zones(self, vpc: str, private: list[str]) -> list[str]:
        """Return the subnets, and one more if all are in one zone: EKS requires two zones for a control plane."""
        there = self._ec2.describe_subnets(Filters=[{"Name": "vpc-id", "Values": [vpc]}])["Subnets"]
        used = {each["AvailabilityZone"] for each in there if each["SubnetId"] in private}
        if len(used) > 1:
            return private
        zones = [each["ZoneName"] for each in self._ec2.describe_availability_zones()["AvailabilityZones"]]
        taken = [ipaddress.IPv4Network(each["CidrBlock"]) for each in there]
        block = ipaddress.IPv4Network(self._ec2.describe_vpcs(VpcIds=[vpc])["Vpcs"][0]["CidrBlock"])
        free = next(
            each
            for each in block.subnets(new_prefix=CONTROL_PLANE_PREFIX)
            if not any(each.overlaps(other) for other in taken)
        )
        return [*private, self._subnet(vpc, next(zone for zone in zones if zone not in used), str(free), [])]


def _trust(**principal: str) -> str:
    """Return the document with which a principal may assume a role."""
    statement = {"Effect": "Allow", "Principal": principal, "Action": "sts:AssumeRole"}
    return json.dumps({"Version": "2012-10-17", "Statement": [statement]})


def _tagged(kind: str, tags: list[Document]) -> list[Document]:
    return [{"ResourceType": kind, "Tags": tags}] if tags else []
