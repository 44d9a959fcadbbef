"""Everything that a stack's protected data is in the account: content, settings, and what it lies in."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from typing import Any

Client = Callable[[str], Any]
Snapshot = dict[str, Any]

# Reads of a bucket's settings, each with what of the answer tells.
BUCKET_SETTINGS = (
    ("get_bucket_versioning", "Status"),
    ("get_bucket_encryption", "ServerSideEncryptionConfiguration"),
    ("get_bucket_ownership_controls", "OwnershipControls"),
    ("get_public_access_block", "PublicAccessBlockConfiguration"),
    ("get_bucket_policy", "Policy"),
    ("get_bucket_lifecycle_configuration", "Rules"),
    ("get_bucket_tagging", "TagSet"),
)
# What others change: addresses that machines take.
NOT_ITS_OWN = ("AvailableIpAddressCount",)


def snapshot(client: Client, bucket: str, cluster: str) -> Snapshot:
    """By the name of each thing and of what is asked of it; two of them are equal when nothing was changed."""
    return dict(
        [
            *_bucket(client("s3"), bucket),
            *_file_system(client("fsx"), client("ec2")),
            *_repositories(client("ecr"), cluster),
            *_keys(client("kms"), cluster),
        ]
    )


def _bucket(s3: Any, bucket: str) -> Iterator[tuple[str, Any]]:
    for method, key in BUCKET_SETTINGS:
        yield f"bucket {method}", getattr(s3, method)(Bucket=bucket)[key]
    for version in s3.list_object_versions(Bucket=bucket).get("Versions", []):
        key, identity = version["Key"], version["VersionId"]
        body = s3.get_object(Bucket=bucket, Key=key, VersionId=identity)
        content = hashlib.sha256(body["Body"].read()).hexdigest()
        yield f"object {key} {identity}", (content, body.get("SSEKMSKeyId"))


def _file_system(fsx: Any, ec2: Any) -> Iterator[tuple[str, Any]]:
    (system,) = fsx.describe_file_systems()["FileSystems"]
    yield "file system", system
    yield "links", fsx.describe_data_repository_associations()["Associations"]
    interfaces = ec2.describe_network_interfaces(NetworkInterfaceIds=system["NetworkInterfaceIds"])
    yield "interfaces", interfaces["NetworkInterfaces"]
    (group,) = {each["GroupId"] for item in interfaces["NetworkInterfaces"] for each in item["Groups"]}
    yield "group", ec2.describe_security_groups(GroupIds=[group])["SecurityGroups"]
    rules = ec2.describe_security_group_rules(Filters=[{"Name": "group-id", "Values": [group]}])
    yield "rules", sorted(rules["SecurityGroupRules"], key=lambda rule: str(rule["SecurityGroupRuleId"]))
    subnets = ec2.describe_subnets(SubnetIds=system["SubnetIds"])["Subnets"]
    yield "subnets", [{k: v for k, v in each.items() if k not in NOT_ITS_OWN} for each in subnets]
    yield "VPC", ec2.describe_vpcs(VpcIds=[system["VpcId"]])["Vpcs"]


def _repositories(ecr: Any, cluster: str) -> Iterator[tuple[str, Any]]:
    for repository in ecr.describe_repositories()["repositories"]:
        name = repository["repositoryName"]
        if name.startswith(f"{cluster}/"):
            yield f"repository {name}", repository
            yield f"lifecycle of {name}", ecr.get_lifecycle_policy(repositoryName=name)["lifecyclePolicyText"]


def _keys(kms: Any, cluster: str) -> Iterator[tuple[str, Any]]:
    targets = {each["AliasName"]: each.get("TargetKeyId") for each in kms.list_aliases()["Aliases"]}
    for purpose in ("data", "secrets"):
        key = targets[f"alias/{cluster}-{purpose}"]
        yield f"{purpose} key", kms.describe_key(KeyId=key)["KeyMetadata"]
        yield f"{purpose} key's policy", kms.get_key_policy(KeyId=key, PolicyName="default")["Policy"]
        yield f"{purpose} key's rotation", kms.get_key_rotation_status(KeyId=key)["KeyRotationEnabled"]
        grants = kms.list_grants(KeyId=key)["Grants"]
        yield f"{purpose} key's grants", [each for each in grants if each.get("Name", "").startswith(cluster)]
