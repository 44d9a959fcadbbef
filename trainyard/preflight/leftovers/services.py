"""Find leftovers outside EC2 by the stack's exact tags, or by names that only this stack has."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, Final

from infra.settings import Settings
from trainyard.preflight.aws import Aws, Denied, by_tags, filter_by, has, tags_of
from trainyard.preflight.cluster import describe
from trainyard.preflight.findings import own_tags
from trainyard.preflight.leftovers.leftover import Leftover, Reader, own_cluster, tag_sets
from trainyard.preflight.resource_names import NO_QUEUE, key_aliases

# AWS creates these roles. They have no tags.
SERVICE_ROLES: Final = "/aws-service-role/"
ELB_KINDS: Final = {"loadbalancer": "load balancer", "targetgroup": "target group"}


def tagged(aws: Aws, tags: Mapping[str, str], prefix: str = "") -> list[str]:
    """Return the ARNs of the Resource Groups Tagging API for exactly these tags.

    `prefix` is service and start of the resource in an ARN, arn:<partition>:<service>:<region>:<account>:<resource>.
    """
    filters = [{"Key": key, "Values": [value]} for key, value in tags.items()]
    found = aws.items(
        "resourcegroupstaggingapi", "get_resources", "ResourceTagMappingList", TagFilters=filters
    )
    return [each["ResourceARN"] for each in found if _resource(each["ResourceARN"]).startswith(prefix)]


def _resource(arn: str) -> str:
    return ":".join([arn.split(":", 5)[2], arn.split(":", 5)[5]])


TagReader = Callable[[Aws], Iterator[tuple[str, dict[str, str]]]]


def _find_by_tags(settings: Settings, aws: Aws, kind: str, read: TagReader) -> list[Leftover]:
    """Find the resources of a kind among all of the account. `read` yields the id and the tags of each."""
    return [
        Leftover(kind=kind, identity=identity)
        for identity, tags in read(aws)
        if any(has(tags, expected) for expected in tag_sets(settings, kind))
    ]


NO_ENTITY: Final = ("NoSuchEntity",)


def _role_tags(aws: Aws) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield each IAM role and its tags. IAM's lists have no tags, so each resource is read."""
    for each in aws.items("iam", "list_roles", "Roles"):
        if not each["Path"].startswith(SERVICE_ROLES):
            name = each["RoleName"]
            found = aws.items("iam", "list_role_tags", "Tags", missing=NO_ENTITY, RoleName=name)
            yield name, tags_of({"Tags": found})


def _policy_tags(aws: Aws) -> Iterator[tuple[str, dict[str, str]]]:
    for each in aws.items("iam", "list_policies", "Policies", Scope="Local"):
        found = aws.items("iam", "list_policy_tags", "Tags", missing=NO_ENTITY, PolicyArn=each["Arn"])
        yield each["PolicyName"], tags_of({"Tags": found})


def _instance_profile_tags(aws: Aws) -> Iterator[tuple[str, dict[str, str]]]:
    for each in aws.items("iam", "list_instance_profiles", "InstanceProfiles"):
        name = each["InstanceProfileName"]
        found = aws.call("iam", "get_instance_profile", missing=NO_ENTITY, InstanceProfileName=name)
        yield name, tags_of((found or {}).get("InstanceProfile", {}))


def _oidc_provider_tags(aws: Aws) -> Iterator[tuple[str, dict[str, str]]]:
    for each in aws.items("iam", "list_open_id_connect_providers", "OpenIDConnectProviderList"):
        arn = each["Arn"]
        found = aws.call(
            "iam", "get_open_id_connect_provider", missing=NO_ENTITY, OpenIDConnectProviderArn=arn
        )
        yield arn.partition("/")[2], tags_of(found or {})


def _repository_tags(aws: Aws) -> Iterator[tuple[str, dict[str, str]]]:
    absent = ("RepositoryNotFoundException",)
    for each in aws.items("ecr", "describe_repositories", "repositories"):
        arn = each["repositoryArn"]
        found = aws.call("ecr", "list_tags_for_resource", missing=absent, resourceArn=arn)
        yield each["repositoryName"], tags_of(found or {}, key="tags")


def find_scaling_groups(settings: Settings, aws: Aws) -> list[Leftover]:
    """Find Auto Scaling groups of the stack, and those that EKS created for the cluster's node groups."""
    return [
        Leftover(kind="Auto Scaling group", identity=each["AutoScalingGroupName"])
        for tags in tag_sets(settings, "Auto Scaling group")
        for each in aws.items(
            "autoscaling", "describe_auto_scaling_groups", "AutoScalingGroups", Filters=by_tags(tags)
        )
        if each.get("Status") != "Delete in progress"
    ]


def find_cluster(settings: Settings, aws: Aws) -> list[Leftover]:
    """Find the stack's EKS cluster."""
    name = own_cluster(settings)
    found = describe(aws, name) if name else None
    if found is None or not has(tags_of(found, key="tags"), own_tags(settings)):
        return []
    return [Leftover(kind="EKS cluster", identity=found["name"], note=found["status"])]


def find_log_groups(settings: Settings, aws: Aws) -> list[Leftover]:
    """Find log groups, including that of the control plane: late entries create it again without tags."""
    arns = tagged(aws, own_tags(settings), "logs:log-group:")
    names = {arn.removesuffix(":*").partition(":log-group:")[2] for arn in arns}
    if cluster := own_cluster(settings):
        names.add(f"/aws/eks/{cluster}/cluster")
    return [
        Leftover(kind="log group", identity=name)
        for name in sorted(names)
        for group in aws.items("logs", "describe_log_groups", "logGroups", logGroupNamePrefix=name)
        if group["logGroupName"] == name
    ]


def find_keys(settings: Settings, aws: Aws) -> list[Leftover]:
    """Find KMS keys without a scheduled deletion. The note is their name."""
    found = []
    for arn in tagged(aws, own_tags(settings), "kms:key/"):
        answer = aws.call("kms", "describe_key", missing=("NotFoundException",), KeyId=arn)
        if answer and answer["KeyMetadata"]["KeyState"] not in ("PendingDeletion", "PendingReplicaDeletion"):
            tags = tags_of({"Tags": aws.items("kms", "list_resource_tags", "Tags", KeyId=arn)})
            note = tags.get("Name", "")
            found.append(Leftover(kind="KMS key", identity=arn.rpartition("/")[2], note=note))
    return found


def find_aliases(settings: Settings, aws: Aws) -> list[Leftover]:
    """Find the KMS aliases with exactly the names that this stack uses."""
    return [
        Leftover(kind="KMS alias", identity=alias["AliasName"])
        for alias in aws.items("kms", "list_aliases", "Aliases")
        if alias["AliasName"] in key_aliases(settings)
    ]


def find_buckets(settings: Settings, aws: Aws) -> list[Leftover]:
    """Find S3 buckets, including those that the caller may not read."""
    found = []
    for name in (arn.rpartition(":")[2] for arn in tagged(aws, own_tags(settings), "s3:")):
        try:
            exists = aws.call("s3", "head_bucket", Bucket=name, missing=("404", "NoSuchBucket"))
        except Denied:
            exists = {}
        if exists is not None:
            found.append(Leftover(kind="S3 bucket", identity=name))
    return found


def find_file_systems(settings: Settings, aws: Aws) -> list[Leftover]:
    """Find FSx file systems with the network that they need, and their links to S3."""
    found = []
    for system in aws.items("fsx", "describe_file_systems", "FileSystems"):
        if has(tags_of(system), own_tags(settings)):
            identity, note = system["FileSystemId"], system["Lifecycle"]
            needs = frozenset(_network_of(aws, system))
            found.append(Leftover(kind="FSx file system", identity=identity, note=note, needs=needs))
    for link in aws.items("fsx", "describe_data_repository_associations", "Associations"):
        if has(tags_of(link), own_tags(settings)):
            identity, note = link["AssociationId"], link["Lifecycle"]
            found.append(Leftover(kind="data repository association", identity=identity, note=note))
    return found


def _network_of(aws: Aws, system: Mapping[str, Any]) -> Iterator[str]:
    """Yield the VPC with its default group, subnets, interfaces, and their groups with the groups in their rules.

    EC2 deletes no group that a rule of another group refers to.
    """
    interfaces = system.get("NetworkInterfaceIds") or []
    yield from (system.get("VpcId", ""), *system.get("SubnetIds", []), *interfaces)
    groups: set[str] = set()
    if interfaces:
        by_id = [filter_by("network-interface-id", *interfaces)]
        shown = aws.items("ec2", "describe_network_interfaces", "NetworkInterfaces", Filters=by_id)
        groups = {group["GroupId"] for each in shown for group in each.get("Groups") or []}
        yield from groups
    filters = [[filter_by("vpc-id", system.get("VpcId", "")), filter_by("group-name", "default")]]
    filters += [[filter_by("group-id", *sorted(groups))]] if groups else []
    for each in filters:
        for group in aws.items("ec2", "describe_security_groups", "SecurityGroups", Filters=each):
            yield group["GroupId"]
            for rule in (*group["IpPermissions"], *group["IpPermissionsEgress"]):
                yield from (pair["GroupId"] for pair in rule.get("UserIdGroupPairs") or [])


def find_backups(settings: Settings, aws: Aws) -> list[Leftover]:
    """Find backups of file systems, which cost money after the file system is deleted."""
    return [
        Leftover(kind="FSx backup", identity=each["BackupId"], note=each["Lifecycle"])
        for each in aws.items("fsx", "describe_backups", "Backups")
        if has(tags_of(each), own_tags(settings)) and each["Lifecycle"] != "DELETED"
    ]


def find_load_balancers(settings: Settings, aws: Aws) -> list[Leftover]:
    """Find load balancers and target groups, also of Services and Ingresses of the cluster."""
    found = []
    for tags in tag_sets(settings, "load balancer"):
        for arn in tagged(aws, tags, "elasticloadbalancing:"):
            kind, _, name = arn.split(":", 5)[5].partition("/")
            if kind in ELB_KINDS and _load_balancer(aws, arn, kind, name):
                found.append(Leftover(kind=ELB_KINDS[kind], identity=name))
    return found


def _load_balancer(aws: Aws, arn: str, kind: str, name: str) -> dict[str, Any] | None:
    """Return a load balancer or a target group. Only a classic load balancer's ARN ends with its name."""
    if kind == "targetgroup":
        absent: tuple[str, ...] = ("TargetGroupNotFound",)
        return aws.call("elbv2", "describe_target_groups", TargetGroupArns=[arn], missing=absent)
    absent = ("LoadBalancerNotFound", "AccessPointNotFound")
    if "/" in name:
        return aws.call("elbv2", "describe_load_balancers", LoadBalancerArns=[arn], missing=absent)
    return aws.call("elb", "describe_load_balancers", LoadBalancerNames=[name], missing=absent)


def find_rules(settings: Settings, aws: Aws) -> list[Leftover]:
    """Find EventBridge rules. The ARN of a rule on another bus than the default one contains the bus."""
    found, absent = [], ("ResourceNotFoundException",)
    for arn in tagged(aws, own_tags(settings), "events:rule/"):
        bus, _, name = arn.partition(":rule/")[2].rpartition("/")
        bus = bus or "default"
        if aws.call("events", "describe_rule", Name=name, EventBusName=bus, missing=absent) is not None:
            found.append(Leftover(kind="EventBridge rule", identity=name))
    return found


def find_queues(settings: Settings, aws: Aws) -> list[Leftover]:
    """Find SQS queues."""
    return [
        Leftover(kind="SQS queue", identity=name)
        for name in (arn.rpartition(":")[2] for arn in tagged(aws, own_tags(settings), "sqs:"))
        if aws.call("sqs", "get_queue_url", QueueName=name, missing=NO_QUEUE) is not None
    ]


# Kinds of the tagging API that other readers confirm.
CONFIRMED: Final = (
    "ec2:",
    "eks:",
    "logs:log-group:",
    "kms:key/",
    "s3:",
    "fsx:",
    "elasticloadbalancing:",
    "events:rule/",
    "sqs:",
    "ecr:repository/",
    "iam:",
    "autoscaling:",
)


def find_others(settings: Settings, aws: Aws) -> list[Leftover]:
    """Find resources of any other service with the stack's tags."""
    return [
        Leftover(kind=f"resource of {arn.split(':')[2]}", identity=arn)
        for arn in tagged(aws, own_tags(settings))
        if not _resource(arn).startswith(CONFIRMED)
    ]


READERS: Final[dict[str, Reader]] = {
    "Auto Scaling group": find_scaling_groups,
    "EKS cluster": find_cluster,
    "load balancer": find_load_balancers,
    "log group": find_log_groups,
    "KMS key": find_keys,
    "KMS alias": find_aliases,
    "SQS queue": find_queues,
    "EventBridge rule": find_rules,
    "S3 bucket": find_buckets,
    "FSx file system": find_file_systems,
    "FSx backup": find_backups,
    **{
        kind: partial(_find_by_tags, kind=kind, read=read)
        for kind, read in {
            "ECR repository": _repository_tags,
            "IAM role": _role_tags,
            "IAM policy": _policy_tags,
            "instance profile": _instance_profile_tags,
            "OIDC provider": _oidc_provider_tags,
        }.items()
    },
    "anything else with the tags": find_others,
}
