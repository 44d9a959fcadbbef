"""What an account holds that a stack can make: for asking whether anything is there twice, or left."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Inventory = dict[str, list[str]]


def inventory(client: Callable[[str], Any]) -> Inventory:
    """Names or ids by kind, without what an account has from the start. `client` makes a boto3 client of a service."""
    ec2, iam, kms = client("ec2"), client("iam"), client("kms")
    alive = [{"Name": "instance-state-name", "Values": ["pending", "running", "stopping", "stopped"]}]
    reservations = ec2.describe_instances(Filters=alive)["Reservations"]
    vpcs = {v["VpcId"]: v["IsDefault"] for v in ec2.describe_vpcs()["Vpcs"]}
    keys = [kms.describe_key(KeyId=k["KeyId"])["KeyMetadata"] for k in kms.list_keys()["Keys"]]
    gateways = ec2.describe_nat_gateways()["NatGateways"]
    return {
        "vpcs": [vpc for vpc, default in vpcs.items() if not default],
        "security groups": [
            g["GroupId"] for g in ec2.describe_security_groups()["SecurityGroups"] if not vpcs[g["VpcId"]]
        ],
        "network interfaces": [
            i["NetworkInterfaceId"] for i in ec2.describe_network_interfaces()["NetworkInterfaces"]
        ],
        "addresses": [a["AllocationId"] for a in ec2.describe_addresses()["Addresses"]],
        "NAT gateways": [g["NatGatewayId"] for g in gateways if g["State"] != "deleted"],
        "instances": [i["InstanceId"] for r in reservations for i in r["Instances"]],
        "volumes": [v["VolumeId"] for v in ec2.describe_volumes()["Volumes"]],
        "launch templates": [
            t["LaunchTemplateName"] for t in ec2.describe_launch_templates()["LaunchTemplates"]
        ],
        "clusters": client("eks").list_clusters()["clusters"],
        "roles": [r["RoleName"] for r in iam.list_roles()["Roles"]],
        "policies": [p["PolicyName"] for p in iam.list_policies(Scope="Local")["Policies"]],
        "instance profiles": [
            p["InstanceProfileName"] for p in iam.list_instance_profiles()["InstanceProfiles"]
        ],
        "OIDC providers": [
            p["Arn"] for p in iam.list_open_id_connect_providers()["OpenIDConnectProviderList"]
        ],
        "keys": [
            k["KeyId"] for k in keys if k["KeyState"] != "PendingDeletion" and k["KeyManager"] == "CUSTOMER"
        ],
        "log groups": [g["logGroupName"] for g in client("logs").describe_log_groups()["logGroups"]],
        "event rules": [r["Name"] for r in client("events").list_rules()["Rules"]],
        "repositories": [r["repositoryName"] for r in client("ecr").describe_repositories()["repositories"]],
        "buckets": [b["Name"] for b in client("s3").list_buckets()["Buckets"]],
        "queues": client("sqs").list_queues().get("QueueUrls", []),
    }


def without(now: Inventory, before: Inventory) -> Inventory:
    """What `now` has more than `before`; kinds with nothing are left out."""
    more = {kind: sorted(set(names) - set(before.get(kind, []))) for kind, names in now.items()}
    return {kind: names for kind, names in more.items() if names}
