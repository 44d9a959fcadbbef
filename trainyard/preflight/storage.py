"""Check snapshots and their keys, the key of node volumes, an existing file system and existing buckets.

EC2 terminates an instance if the role that launches it may not use the key of its volumes
(https://docs.aws.amazon.com/ebs/latest/userguide/ebs-encryption-requirements.html). Everybody in the account may use
the AWS managed key through EC2. A customer managed key needs a key policy for that.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from typing import Any, Final

from infra.settings import Settings
from trainyard.preflight.access import has_service_role
from trainyard.preflight.aws import Aws, Denied, filter_by
from trainyard.preflight.findings import SKIPPED, Finding, pool_key
from trainyard.preflight.security_groups import allows_in, private_ranges, security_groups, worker_groups

NO_SNAPSHOT: Final = ("InvalidSnapshot.NotFound", "InvalidSnapshotID.Malformed")
KEY: Final = "trainyard:cluster.volumeKey"
AWS_MANAGED: Final = "alias/aws/ebs"
NO_KEY: Final = ("NotFoundException", "InvalidArnException")
SYMMETRIC: Final = "SYMMETRIC_DEFAULT"
# Some of the actions that the launch of an instance with an encrypted volume needs.
KEY_ACTIONS: Final = ("kms:CreateGrant", "kms:GenerateDataKeyWithoutPlaintext", "kms:Decrypt")
LUSTRE: Final = "trainyard:storage.lustre.existing"
# A Lustre client's ports (https://docs.aws.amazon.com/fsx/latest/LustreGuide/limit-access-security-groups.html).
LUSTRE_PORTS: Final = ((988, 988), (1018, 1023))
# Amazon Linux 2023's client, 2.15, can't mount them
# (https://docs.aws.amazon.com/fsx/latest/LustreGuide/lustre-client-matrix.html).
OLD_LUSTRE: Final = ("2.10",)


def snapshots(settings: Settings, aws: Aws) -> dict[str, dict[str, Any]]:
    """Return the existing snapshots of pools. One call each: EC2 refuses a call with an unknown id."""
    result = {}
    for identity in sorted({pool.data_snapshot_id for pool in settings.pools if pool.data_snapshot_id}):
        for found in aws.items(
            "ec2", "describe_snapshots", "Snapshots", missing=NO_SNAPSHOT, SnapshotIds=[identity]
        ):
            result[identity] = found
    return result


def check_snapshots(settings: Settings, aws: Aws) -> list[Finding]:
    """Check that a pool's snapshot exists, is completed and encrypted, and is not larger than its volume."""
    existing, findings = snapshots(settings, aws), []
    for index, pool in enumerate(settings.pools):
        if pool.data_snapshot_id is None:
            continue
        key, name = pool_key(index, "dataSnapshotId"), f"'{pool.data_snapshot_id}'"
        found = existing.get(pool.data_snapshot_id)
        if found is None:
            message = f"{name} does not exist in {settings.region}. It must be a snapshot of this account"
            findings.append(Finding(key, f"{message} or one that is shared with it"))
            continue
        if found["State"] != "completed":
            findings.append(Finding(key, f"{name} is {found['State']}. It must be completed"))
        if not found.get("Encrypted"):
            findings.append(Finding(key, f"{name} is not encrypted. It must be, like every volume"))
        size = int(found["VolumeSize"])
        if pool.data_volume_gib is not None and pool.data_volume_gib < size:
            message = f"{pool.data_volume_gib} GiB is smaller than {name}. It must be at least {size}"
            findings.append(Finding(pool_key(index, "dataVolumeGiB"), message))
    return findings


def check_volume_key(settings: Settings, aws: Aws) -> list[Finding]:
    """`cluster.volumeKey` is enabled and symmetric, and its grantee exists. If unset: nodes may use the default key."""
    return [
        Finding(KEY, message)
        for message in (_own_key(settings, aws) if settings.cluster.volume_key else _default_key(aws))
    ]


def _own_key(settings: Settings, aws: Aws) -> Iterator[str]:
    name, found = f"'{settings.cluster.volume_key}'", _kms_key(aws, str(settings.cluster.volume_key))
    if found is None:
        yield f"{name} does not exist. It must be a KMS key in {settings.region}"
    elif (state := found.get("KeyState") or "Enabled") != "Enabled":
        yield f"{name} is {state}. It must be Enabled"
    elif (spec := found.get("KeySpec") or SYMMETRIC) != SYMMETRIC:
        yield f"{name} has the key spec {spec}. It must be {SYMMETRIC}"
    # KMS refuses a grant to a missing role.
    if settings.cluster.existing is None and not has_service_role(aws, "autoscaling.amazonaws.com"):
        yield (
            "must be granted to the role AWSServiceRoleForAutoScaling, which does not exist. Create it: aws iam"
            " create-service-linked-role --aws-service-name autoscaling.amazonaws.com"
        )


def _default_key(aws: Aws) -> Iterator[str]:
    answer = aws.call("ec2", "get_ebs_default_kms_key_id") or {}
    default = str(answer.get("KmsKeyId") or AWS_MANAGED)
    found = None if default.endswith(AWS_MANAGED) else _kms_key(aws, default)
    if found is None:
        return
    name = f"is not set, and '{found['Arn']}', the account's default key for EBS in {aws.region},"
    state = found.get("KeyState") or "Enabled"
    if state != "Enabled":
        yield f"{name} is {state}, so nodes would fail at launch. It must be an enabled key"
    elif not _is_open(aws, found):
        yield (
            f"{name} is a customer managed key that Karpenter may not use, so nodes would fail at launch. It must be"
            " this key or another one. The stack then grants Karpenter access to it"
        )


def check_snapshot_keys(settings: Settings, aws: Aws) -> list[Finding]:
    """Check that Karpenter may use the key of each pool's snapshot."""
    findings, existing = [], snapshots(settings, aws)
    for index, pool in enumerate(settings.pools):
        key = existing.get(pool.data_snapshot_id or "", {}).get("KmsKeyId")
        found = _kms_key(aws, key) if key else None
        if found is None or found["Arn"] == settings.cluster.volume_key or _is_open(aws, found):
            continue
        message = (
            f"'{pool.data_snapshot_id}' is encrypted with the customer managed key '{found['Arn']}', which Karpenter"
            f" may not use. {KEY} must be this key, or the snapshot must be a copy with another key"
        )
        findings.append(Finding(pool_key(index, "dataSnapshotId"), message))
    return findings


def _kms_key(aws: Aws, key: str) -> dict[str, Any] | None:
    """Return the metadata of the key with this id, alias or ARN; None if it does not exist."""
    answer = aws.call("kms", "describe_key", KeyId=key, missing=NO_KEY)
    return None if answer is None else dict(answer["KeyMetadata"])


def _is_open(aws: Aws, key: Mapping[str, Any]) -> bool:
    """Return whether everybody in the account may use a key through EC2, like the AWS managed key for EBS."""
    if key.get("KeyManager") == "AWS":
        return True
    answer = aws.call("kms", "get_key_policy", KeyId=key["Arn"], PolicyName="default") or {}
    statements = json.loads(answer.get("Policy") or "{}").get("Statement", [])
    return any(
        each.get("Effect") == "Allow"
        and each.get("Principal") in ("*", {"AWS": "*"}, {"AWS": ["*"]})
        and all(
            any(fnmatchcase(action, each_) for each_ in _list(each.get("Action"))) for action in KEY_ACTIONS
        )
        for each in _list(statements)
    )


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value or ""]


def check_file_system(settings: Settings, aws: Aws) -> list[Finding]:
    """Check the existing file system: available, Lustre 2.12 or newer, in VPC and zones of the pools, reachable."""
    lustre, network = settings.storage.lustre, settings.network.existing
    # The settings require an existing VPC for an existing file system.
    if lustre is None or lustre.existing is None or network is None:
        return []
    existing, key = lustre.existing, f"{LUSTRE}.fileSystemId"
    name = f"'{existing.file_system_id}'"
    answer = aws.items(
        "fsx",
        "describe_file_systems",
        "FileSystems",
        FileSystemIds=[existing.file_system_id],
        missing=("FileSystemNotFound", "BadRequest"),
    )
    if not answer:
        message = f"{name} does not exist in {settings.region}. It must be a file system of FSx for Lustre"
        return [Finding(key, message)]
    found, findings = answer[0], []
    kind, vpc, version = found["FileSystemType"], found.get("VpcId"), found.get("FileSystemTypeVersion")
    if kind != "LUSTRE":
        return [Finding(key, f"{name} has the type {kind}. It must be LUSTRE")]
    if found["Lifecycle"] != "AVAILABLE":
        findings.append(Finding(key, f"{name} is {found['Lifecycle']}. It must be AVAILABLE"))
    if version in OLD_LUSTRE:
        command = f"aws fsx update-file-system --file-system-id {existing.file_system_id}"
        message = (
            f"{name} has Lustre {version}, which nodes with Amazon Linux 2023 can't mount. It must be 2.12 or 2.15:"
            f" {command} --file-system-type-version 2.15"
        )
        findings.append(Finding(key, message))
    if vpc != network.vpc_id:
        findings.append(Finding(key, f"{name} is in {vpc}. It must be in {network.vpc_id}"))
    by_id = [filter_by("subnet-id", *found.get("SubnetIds", []))]
    subnets = aws.items("ec2", "describe_subnets", "Subnets", Filters=by_id)
    zones = [each["AvailabilityZone"] for each in subnets]
    clients = list(dict.fromkeys(pool.zone for pool in settings.pools)) or [lustre.zone]
    if missing := [zone for zone in clients if zone not in zones]:
        message = (
            f"{name} is in {', '.join(zones)}. It must be in {' and '.join(missing)}, the zone of its clients"
        )
        findings.append(Finding(key, message))
    for setting, value, real in (
        ("dnsName", existing.dns_name, found.get("DNSName")),
        ("mountName", existing.mount_name, (found.get("LustreConfiguration") or {}).get("MountName")),
    ):
        if value != real:
            findings.append(Finding(f"{LUSTRE}.{setting}", f"'{value}' is invalid. It must be '{real}'"))
    where = "the workers' group or their subnets"
    if network.worker_security_group_id is None:
        where = "the workers' subnets, because the stack creates their group"
    is_open = _is_reachable(settings, aws, found, clients)
    if is_open is False:
        message = f"{name} refuses the workers. Its group must allow TCP ports 988 and 1018-1023 from {where}"
        findings.append(Finding(key, message))
    elif is_open is None and vpc == network.vpc_id:
        message = f"the rules of {name} do not show whether TCP ports 988 and 1018-1023 are open to {where}"
        findings.append(Finding(key, message, SKIPPED))
    return findings


def _is_reachable(settings: Settings, aws: Aws, system: Mapping[str, Any], zones: list[str]) -> bool | None:
    """Return whether a file system's security groups allow the workers' group or their subnets; None if unknown."""
    interfaces = system.get("NetworkInterfaceIds") or []
    if not interfaces:
        return None
    by_id = [filter_by("network-interface-id", *interfaces)]
    shown = aws.items("ec2", "describe_network_interfaces", "NetworkInterfaces", Filters=by_id)
    ids = sorted({group["GroupId"] for each in shown for group in each.get("Groups") or []})
    if not ids:
        return None
    groups = security_groups(aws, filter_by("group-id", *ids))
    return allows_in(groups, LUSTRE_PORTS, worker_groups(settings, aws), private_ranges(settings, aws, zones))


def check_buckets(settings: Settings, aws: Aws) -> list[Finding]:
    """Check that existing buckets are in the region, and that the caller may read them."""
    names = []
    lustre = settings.storage.lustre
    if lustre and lustre.s3 and lustre.s3.bucket:
        names.append(("trainyard:storage.lustre.s3.bucket", lustre.s3.bucket))
    for index, account in enumerate(settings.service_accounts):
        if account.bucket:
            names.append((f"trainyard:serviceAccounts[{index}].bucket", account.bucket))
    for index, queue in enumerate(settings.queues):
        if queue.bucket:
            names.append((f"trainyard:queues[{index}].storage.workspace.bucket", queue.bucket))
    return [Finding(key, message) for key, name in names if (message := _bucket_problem(aws, name))]


def _bucket_problem(aws: Aws, name: str) -> str:
    try:
        answer = aws.call("s3", "head_bucket", Bucket=name, missing=("404", "NoSuchBucket"))
    except Denied:
        # S3 answers this for a bucket of another account.
        return f"'{name}' can't be read with these credentials. It must be a bucket of this account"
    if answer is None:
        return f"'{name}' does not exist. It must be the name of a bucket in {aws.region}"
    headers = answer["ResponseMetadata"].get("HTTPHeaders") or {}
    region = answer.get("BucketRegion") or headers.get("x-amz-bucket-region") or aws.region
    return "" if region == aws.region else f"'{name}' is in {region}. It must be in {aws.region}"
