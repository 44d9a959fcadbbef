"""Everything that stands in the emulated account, whatever its tags: what a destroyed stack is measured by."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import boto3

Client = Callable[[str], Any]
GONE = ("deleted", "deleting", "terminated", "shutting-down", "PendingDeletion")

# Service, call, list in the answer, id in each entry, state in each entry ("" where it has none).
LISTED = (
    ("ec2", "describe_instances", "Reservations", "", ""),
    ("ec2", "describe_vpcs", "Vpcs", "VpcId", ""),
    ("ec2", "describe_subnets", "Subnets", "SubnetId", ""),
    ("ec2", "describe_security_groups", "SecurityGroups", "GroupId", ""),
    ("ec2", "describe_route_tables", "RouteTables", "RouteTableId", ""),
    ("ec2", "describe_internet_gateways", "InternetGateways", "InternetGatewayId", ""),
    ("ec2", "describe_nat_gateways", "NatGateways", "NatGatewayId", "State"),
    ("ec2", "describe_addresses", "Addresses", "AllocationId", ""),
    ("ec2", "describe_network_interfaces", "NetworkInterfaces", "NetworkInterfaceId", ""),
    ("ec2", "describe_vpc_endpoints", "VpcEndpoints", "VpcEndpointId", "State"),
    ("ec2", "describe_flow_logs", "FlowLogs", "FlowLogId", ""),
    ("ec2", "describe_launch_templates", "LaunchTemplates", "LaunchTemplateId", ""),
    ("ec2", "describe_volumes", "Volumes", "VolumeId", "State"),
    ("ec2", "describe_placement_groups", "PlacementGroups", "GroupName", "State"),
    ("iam", "list_roles", "Roles", "RoleName", ""),
    ("iam", "list_instance_profiles", "InstanceProfiles", "InstanceProfileName", ""),
    ("iam", "list_open_id_connect_providers", "OpenIDConnectProviderList", "Arn", ""),
    ("s3", "list_buckets", "Buckets", "Name", ""),
    ("ecr", "describe_repositories", "repositories", "repositoryName", ""),
    ("eks", "list_clusters", "clusters", "", ""),
    ("events", "list_rules", "Rules", "Name", ""),
    ("logs", "describe_log_groups", "logGroups", "logGroupName", ""),
    ("fsx", "describe_file_systems", "FileSystems", "FileSystemId", "Lifecycle"),
    ("fsx", "describe_data_repository_associations", "Associations", "AssociationId", "Lifecycle"),
)


def connected(cloud: Mapping[str, Any], region: str) -> Client:
    """Makes clients of the emulated account, as the deployer; `cloud` is the record of a running local cloud."""
    return lambda service: boto3.client(
        service,
        region_name=region,
        endpoint_url=cloud["awsEndpoint"],
        aws_access_key_id=cloud["accessKeyId"],
        aws_secret_access_key=cloud["secretAccessKey"],
    )


def things(client: Client) -> frozenset[str]:
    """Names of everything in the account, each with the call that lists it."""
    return frozenset(_things(client))


def _things(client: Client) -> Iterator[str]:
    for service, call, key, identity, state in LISTED:
        for item in _pages(client(service), call, key):
            if key == "Reservations":
                yield from (
                    f"instance {each['InstanceId']}"
                    for each in item["Instances"]
                    if each["State"]["Name"] not in GONE
                )
            elif not state or str(item[state]).lower() not in GONE:
                yield f"{call} {item[identity] if identity else item}"
    yield from (
        f"policy {each['Arn']}"
        for page in client("iam").get_paginator("list_policies").paginate(Scope="Local")
        for each in page["Policies"]
    )
    yield from (f"queue {url}" for url in client("sqs").list_queues().get("QueueUrls", []))
    yield from _keys(client("kms"))


def _pages(service: Any, call: str, key: str) -> Iterator[Any]:
    if service.can_paginate(call):
        for page in service.get_paginator(call).paginate():
            yield from page[key]
    else:
        yield from getattr(service, call)()[key]


def _keys(kms: Any) -> Iterator[str]:
    """A key can only be scheduled for its deletion; then it counts as gone."""
    for page in kms.get_paginator("list_keys").paginate():
        for key in page["Keys"]:
            described = kms.describe_key(KeyId=key["KeyId"])["KeyMetadata"]
            if described["KeyState"] not in GONE and described.get("KeyManager") != "AWS":
                yield f"key {key['KeyId']}"
    for page in kms.get_paginator("list_aliases").paginate():
        yield from (
            f"alias {each['AliasName']}"
            for each in page["Aliases"]
            if not each["AliasName"].startswith("alias/aws/")
        )
