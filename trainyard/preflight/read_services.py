"""Reading a given cluster, file system and buckets, and the names that are taken."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from trainyard.preflight import read_network
from trainyard.preflight.account import Account, Denied, tags_of
from trainyard.preflight.groups import lets_in
from trainyard.preflight.services import Bucket, Cluster, FileSystem, Name, Provider
from trainyard.preflight.wanted import WantedLustre

# What a Lustre client needs (https://docs.aws.amazon.com/fsx/latest/LustreGuide/limit-access-security-groups.html).
LUSTRE_PORTS = ((988, 988), (1018, 1023))


def caller(account: Account) -> str:
    """ARN of whoever asks."""
    return str((account.call("sts", "get_caller_identity") or {})["Arn"])


def cluster(account: Account, name: str) -> Cluster | None:
    """An EKS cluster; None where there is none."""
    answer = account.call("eks", "describe_cluster", name=name, missing=("ResourceNotFoundException",))
    if answer is None:
        return None
    found = answer["cluster"]
    network = found.get("resourcesVpcConfig") or {}
    return Cluster(
        name=name,
        status=found["status"],
        version=found["version"],
        mode=(found.get("accessConfig") or {}).get("authenticationMode") or "CONFIG_MAP",
        vpc_id=network.get("vpcId") or "",
        endpoint=found.get("endpoint") or "",
        certificate_authority=(found.get("certificateAuthority") or {}).get("data") or "",
        issuer=((found.get("identity") or {}).get("oidc") or {}).get("issuer") or "",
        security_group=network.get("clusterSecurityGroupId") or "",
        ip_family=(found.get("kubernetesNetworkConfig") or {}).get("ipFamily") or "ipv4",
        tags=tags_of(found, key="tags"),
    )


def access_entries(account: Account, name: str) -> tuple[str, ...]:
    """ARNs of the principals that may enter a cluster; none where there is no cluster."""
    found = account.items(
        "eks",
        "list_access_entries",
        "accessEntries",
        clusterName=name,
        missing=("ResourceNotFoundException",),
    )
    return tuple(str(entry) for entry in found)


def provider(account: Account, arn: str) -> Provider | None:
    """An OpenID Connect provider of IAM; None where there is none."""
    answer = account.call(
        "iam",
        "get_open_id_connect_provider",
        OpenIDConnectProviderArn=arn,
        missing=("NoSuchEntity", "ValidationError", "InvalidInput"),
    )
    if answer is None:
        return None
    return Provider(url=answer["Url"], audiences=frozenset(answer.get("ClientIDList") or []))


def lustre(
    account: Account, wanted: WantedLustre, workers: Sequence[str], blocks: Sequence[str]
) -> FileSystem | None:
    """A file system, with whether `workers` (their groups) or `blocks` (their subnets' ranges) may reach it.

    None: there is none.
    """
    answer = account.call(
        "fsx",
        "describe_file_systems",
        FileSystemIds=[wanted.file_system_id],
        missing=("FileSystemNotFound", "BadRequest"),
    )
    if not answer or not answer["FileSystems"]:
        return None
    found = answer["FileSystems"][0]
    ids = list(found.get("SubnetIds") or [])
    places = account.items(
        "ec2", "describe_subnets", "Subnets", Filters=[{"Name": "subnet-id", "Values": ids}]
    )
    return FileSystem(
        file_system_id=wanted.file_system_id,
        kind=found["FileSystemType"],
        lifecycle=found["Lifecycle"],
        vpc_id=found.get("VpcId") or "",
        zones=tuple(place["AvailabilityZone"] for place in places),
        dns_name=found.get("DNSName") or "",
        mount_name=(found.get("LustreConfiguration") or {}).get("MountName") or "",
        version=found.get("FileSystemTypeVersion") or "",
        ports=_ports(account, list(found.get("NetworkInterfaceIds") or []), workers, blocks),
    )


def _ports(
    account: Account, interfaces: list[str], workers: Sequence[str], blocks: Sequence[str]
) -> bool | None:
    if not interfaces:
        return None
    shown = account.items(
        "ec2",
        "describe_network_interfaces",
        "NetworkInterfaces",
        Filters=[{"Name": "network-interface-id", "Values": interfaces}],
    )
    ids = sorted({group["GroupId"] for each in shown for group in each.get("Groups") or []})
    return lets_in(read_network.groups(account, ids), LUSTRE_PORTS, workers, blocks) if ids else None


def bucket(account: Account, name: str) -> Bucket | None:
    """A bucket's region, or that it may not be read; None where there is none."""
    try:
        answer = account.call("s3", "head_bucket", Bucket=name, missing=("404", "NoSuchBucket"))
    except Denied:
        # S3 says no more of somebody else's bucket than that there is one.
        return Bucket(forbidden=True)
    if answer is None:
        return None
    headers = answer["ResponseMetadata"].get("HTTPHeaders") or {}
    return Bucket(region=answer.get("BucketRegion") or headers.get("x-amz-bucket-region") or account.region)


def taken(account: Account, name: Name) -> dict[str, str] | None:
    """The tags of what has a name already; None where it is free."""
    return _READERS[name.kind](account, name.name)


def _cluster_tags(account: Account, name: str) -> dict[str, str] | None:
    found = cluster(account, name)
    return None if found is None else found.tags


def _log_group_tags(account: Account, name: str) -> dict[str, str] | None:
    found = account.items("logs", "describe_log_groups", "logGroups", logGroupNamePrefix=name)
    exact = next((group for group in found if group["logGroupName"] == name), None)
    if exact is None:
        return None
    arn = exact["arn"].removesuffix(":*")
    answer = account.call("logs", "list_tags_for_resource", resourceArn=arn) or {}
    return tags_of(answer, key="tags")


def _queue_tags(account: Account, name: str) -> dict[str, str] | None:
    absent = ("AWS.SimpleQueueService.NonExistentQueue", "QueueDoesNotExist")
    answer = account.call("sqs", "get_queue_url", QueueName=name, missing=absent)
    if answer is None:
        return None
    tags = account.call("sqs", "list_queue_tags", QueueUrl=answer["QueueUrl"], missing=absent)
    return tags_of(tags or {})


def _repository_tags(account: Account, name: str) -> dict[str, str] | None:
    found = account.items(
        "ecr",
        "describe_repositories",
        "repositories",
        repositoryNames=[name],
        missing=("RepositoryNotFoundException",),
    )
    if not found:
        return None
    answer = account.call("ecr", "list_tags_for_resource", resourceArn=found[0]["repositoryArn"]) or {}
    return tags_of(answer, key="tags")


def _alias_tags(account: Account, name: str) -> dict[str, str] | None:
    found = next((a for a in account.items("kms", "list_aliases", "Aliases") if a["AliasName"] == name), None)
    if found is None:
        return None
    key = found.get("TargetKeyId")
    # An alias has no tags; it is the stack's whose key it names.
    return tags_of({"Tags": account.items("kms", "list_resource_tags", "Tags", KeyId=key)}) if key else {}


_READERS: dict[str, Callable[[Account, str], dict[str, str] | None]] = {
    "EKS cluster": _cluster_tags,
    "log group": _log_group_tags,
    "SQS queue": _queue_tags,
    "ECR repository": _repository_tags,
    "KMS alias": _alias_tags,
}
