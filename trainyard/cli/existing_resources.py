"""Create what a stack file names as existing, on the local cloud. `with_given` is the entry point.

These are a VPC with its subnets and routes, a cluster (`existing_cluster.py`), its administrators
(`administrators.py`), capacity reservations, snapshots, and a file system. The id in the stack file is in the tag
`GIVEN_TAG` of each, so that the next `up` finds it. They last as long as the local cloud, beyond the stack.
"""

from __future__ import annotations

import copy
import ipaddress
import re
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import boto3
from botocore.exceptions import ClientError

from trainyard.cli.administrators import give_people
from trainyard.cli.existing_cluster import GIVEN_TAG, Clients, GivenClusterError, give_cluster
from trainyard.cli.next_steps import made_here

GIVEN_CIDR = "10.80.0.0/16"
SUBNET_PREFIX = 20
DEFAULT_BLOCK = timedelta(days=14)
LONGEST_BLOCK_HOURS = 182 * 24
SNAPSHOT_GIB = 100
REGION = r"[a-z]{2}(-[a-z]+)+-[0-9]"
CLUSTER_NAME = r"[0-9A-Za-z][0-9A-Za-z_-]{0,99}"

Document = dict[str, Any]


class GivenError(Exception):
    """The emulated account refused to create what the stack file names as existing."""


def with_given(document: Mapping[str, Any], say: Callable[[str], None]) -> Document:
    """Return the settings with the ids of resources in the account of the environment's AWS variables.

    Invalid settings are not changed: the program reports them with all other errors.

    Raises:
        GivenError: The account refused to create something.
    """
    result = copy.deepcopy(dict(document))
    config = result["config"]
    region = config.get("aws:region")
    if not re.fullmatch(REGION, str(region)):
        return result
    try:
        _replace(config, region, say)
    except ClientError as error:
        raise GivenError(f"what the stack file says is given can't be made here: {error}") from error
    except GivenClusterError as error:
        raise GivenError(str(error)) from error
    return result


def gives_cluster(config: Mapping[str, Any]) -> bool:
    """Return whether the settings name an existing cluster."""
    cluster = config.get("trainyard:cluster")
    return isinstance(cluster, dict) and cluster.get("existing") is not None


def _replace(config: Document, region: str, say: Callable[[str], None]) -> None:
    given = _Given(boto3.client("ec2", region_name=region), boto3.client("fsx", region_name=region), say)
    if not gives_cluster(config) and (cluster := _at(config, "trainyard:cluster")):
        account = boto3.client("sts", region_name=region).get_caller_identity()["Account"]
        give_people(cluster, boto3.client("iam", region_name=region), account, say)
    network = config.get("trainyard:network")
    if isinstance(network, dict) and network.get("vpcId"):
        given.network(network)
        _cluster(config, network, region, say)
    for pool in _mappings(config.get("trainyard:pools")):
        ids = pool.get("capacityReservationIds")
        if isinstance(ids, list) and _is_whole(pool):
            pool["capacityReservationIds"] = [given.reservation(str(each), pool) for each in ids]
            given.times_of_blocks(pool)
        if isinstance(pool.get("dataSnapshotId"), str) and isinstance(pool.get("zone"), str):
            pool["dataSnapshotId"] = given.snapshot(pool)
    lustre = _at(config, "trainyard:storage", "lustre")
    subnet = _at(config, "trainyard:network", "privateSubnetIds").get(str(lustre.get("zone")))
    existing = _at(lustre, "existing")
    if existing.get("fileSystemId") and subnet:
        given.file_system(existing, str(subnet))


def _cluster(config: Document, network: Mapping[str, Any], region: str, say: Callable[[str], None]) -> None:
    existing = _at(config, "trainyard:cluster", "existing")
    private = network.get("privateSubnetIds")
    named = isinstance(existing.get("name"), str) and re.fullmatch(CLUSTER_NAME, existing["name"])
    if named and isinstance(private, dict) and private:
        clients = Clients(
            ec2=boto3.client("ec2", region_name=region),
            eks=boto3.client("eks", region_name=region),
            iam=boto3.client("iam", region_name=region),
        )
        lustre = bool(_at(config, "trainyard:storage", "lustre"))
        give_cluster(existing, network, clients, say, lustre=lustre)


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


class _Given:
    """Finds or creates existing resources, and writes their ids into the settings."""

    def __init__(self, ec2: Any, fsx: Any, say: Callable[[str], None]) -> None:
        self._ec2 = ec2
        self._fsx = fsx
        self._say = say
        given = [{"Name": "tag-key", "Values": [GIVEN_TAG]}]
        tagged = [
            (tag["ResourceId"], tag)
            for page in ec2.get_paginator("describe_tags").paginate(
                Filters=[{"Name": "key", "Values": [GIVEN_TAG]}]
            )
            for tag in page["Tags"]
        ] + [
            (each["CapacityReservationId"], tag)
            for each in ec2.describe_capacity_reservations(Filters=given)["CapacityReservations"]
            for tag in each["Tags"]
            if tag["Key"] == GIVEN_TAG
        ]
        self._known: dict[str, str] = {str(tag["Value"]): str(identity) for identity, tag in tagged}

    def _once(self, given: str, kind: str, make: Callable[[list[Document]], str]) -> str:
        """Return the id of the resource for an id of the stack file. `make` creates it with the tags."""
        if given not in self._known:
            self._known[given] = make([{"Key": GIVEN_TAG, "Value": given}])
            self._say(made_here(f"{kind} {given}", self._known[given]))
        return self._known[given]

    def network(self, network: Document) -> None:
        """Return a VPC with the subnets of the settings, and one more for the gateways if there is no public subnet."""
        blocks = (str(each) for each in ipaddress.IPv4Network(GIVEN_CIDR).subnets(new_prefix=SUBNET_PREFIX))
        new = str(network["vpcId"]) not in self._known
        vpc = self._once(str(network["vpcId"]), "VPC", self._vpc)
        network["vpcId"] = vpc
        made: dict[str, list[str]] = {"privateSubnetIds": [], "publicSubnetIds": []}
        for key, subnets in made.items():
            given = network.get(key)
            for zone in sorted(given) if isinstance(given, dict) else ():
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
        made = self._ec2.create_vpc(CidrBlock=GIVEN_CIDR, TagSpecifications=_tagged("vpc", tags))["Vpc"]
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
            GroupName=f"given-{tags[0]['Value']}",
            Description="Given security group of workers",
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

    def reservation(self, given: str, pool: Mapping[str, Any]) -> str:
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

        return self._once(given, "capacity reservation", make)

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
            raise GivenError(
                f"{pool['zone']} has no {pool['instanceType']}, so that no capacity block can be given"
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
            if tag["Key"] == GIVEN_TAG
        }
        system = systems.get(wanted)
        if system is None:
            system = self._fsx.create_file_system(
                FileSystemType="LUSTRE",
                StorageCapacity=1200,
                SubnetIds=[subnet],
                LustreConfiguration={"DeploymentType": "SCRATCH_2"},
                Tags=[{"Key": GIVEN_TAG, "Value": wanted}],
            )["FileSystem"]
            self._say(made_here(f"file system {wanted}", str(system["FileSystemId"])))
        existing["fileSystemId"] = system["FileSystemId"]
        existing["dnsName"] = system["DNSName"]
        existing["mountName"] = system["LustreConfiguration"]["MountName"]


def _tagged(kind: str, tags: list[Document]) -> list[Document]:
    return [{"ResourceType": kind, "Tags": tags}] if tags else []
