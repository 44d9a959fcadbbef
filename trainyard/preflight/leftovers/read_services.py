"""Leftovers outside EC2: by the stack's exact tags, or by names that nothing but this stack has."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from trainyard.preflight.account import Account, Denied, has, tags_of
from trainyard.preflight.leftovers.found import Found, Target
from trainyard.preflight.leftovers.read_ec2 import KARPENTER, LOAD_BALANCER, OWNED

ENDED_KEYS: Final = ("PendingDeletion", "PendingReplicaDeletion")
# Roles that AWS makes for itself, which nobody can tag: not worth a call each.
AWS_ROLES: Final = "/aws-service-role/"
LOAD_BALANCERS_OF_CLUSTER: Final = (LOAD_BALANCER, OWNED)
ELB_KINDS: Final = {"loadbalancer": "load balancer", "targetgroup": "target group"}
IAM_OF_CLUSTER: Final = (KARPENTER,)


def _ours(tags: dict[str, str], target: Target) -> bool:
    """The stack's own tags, or the one of Karpenter for the stack's cluster."""
    cluster = target.cluster
    return has(tags, target.tags) or (
        cluster is not None and any(tags.get(name) == cluster for name in IAM_OF_CLUSTER)
    )


def roles(account: Account, target: Target) -> list[Found]:
    """IAM roles. Lists of IAM show no tags, so that each role is asked for its own."""
    found = []
    for role in account.items("iam", "list_roles", "Roles"):
        if role["Path"].startswith(AWS_ROLES):
            continue
        name = role["RoleName"]
        tags = account.items("iam", "list_role_tags", "Tags", missing=("NoSuchEntity",), RoleName=name)
        if _ours(tags_of({"Tags": tags}), target):
            found.append(Found(kind="IAM role", identity=name))
    return found


def policies(account: Account, target: Target) -> list[Found]:
    """The account's own IAM policies."""
    found = []
    for policy in account.items("iam", "list_policies", "Policies", Scope="Local"):
        tags = account.items(
            "iam", "list_policy_tags", "Tags", missing=("NoSuchEntity",), PolicyArn=policy["Arn"]
        )
        if _ours(tags_of({"Tags": tags}), target):
            found.append(Found(kind="IAM policy", identity=policy["PolicyName"]))
    return found


def instance_profiles(account: Account, target: Target) -> list[Found]:
    """Instance profiles: the stack's, and those that Karpenter made for its cluster."""
    found = []
    for profile in account.items("iam", "list_instance_profiles", "InstanceProfiles"):
        name = profile["InstanceProfileName"]
        answer = account.call(
            "iam", "get_instance_profile", missing=("NoSuchEntity",), InstanceProfileName=name
        )
        if answer is not None and _ours(tags_of(answer["InstanceProfile"]), target):
            found.append(Found(kind="instance profile", identity=name))
    return found


def oidc_providers(account: Account, target: Target) -> list[Found]:
    """OpenID Connect providers of IAM."""
    answer = account.call("iam", "list_open_id_connect_providers") or {}
    found = []
    for entry in answer.get("OpenIDConnectProviderList") or []:
        shown = account.call(
            "iam",
            "get_open_id_connect_provider",
            missing=("NoSuchEntity",),
            OpenIDConnectProviderArn=entry["Arn"],
        )
        if shown is not None and _ours(tags_of(shown), target):
            found.append(Found(kind="OIDC provider", identity=entry["Arn"].partition("/")[2]))
    return found


def clusters(account: Account, target: Target) -> list[Found]:
    """The stack's EKS cluster; what is in it goes with it."""
    if target.cluster is None:
        return []
    answer = account.call(
        "eks", "describe_cluster", name=target.cluster, missing=("ResourceNotFoundException",)
    )
    if answer is None or not has(tags_of(answer["cluster"], key="tags"), target.tags):
        return []
    return [Found(kind="EKS cluster", identity=target.cluster, note=answer["cluster"]["status"])]


def log_groups(account: Account, target: Target) -> list[Found]:
    """Log groups with the stack's tags, and the control plane's, which late entries make anew without a tag."""
    names = {
        arn.removesuffix(":*").partition(":log-group:")[2]
        for arn in _tagged(account, target.tags, "logs:log-group:")
    }
    if target.cluster is not None:
        names.add(f"/aws/eks/{target.cluster}/cluster")
    return [
        Found(kind="log group", identity=name)
        for name in sorted(names)
        for group in account.items("logs", "describe_log_groups", "logGroups", logGroupNamePrefix=name)
        if group["logGroupName"] == name
    ]


def _tagged(account: Account, tags: dict[str, str], of: str = "") -> list[str]:
    """ARNs that the Resource Groups Tagging API has for exactly these tags; `of` is service and start of the resource.

    An ARN is arn:<partition>:<service>:<region>:<account>:<resource>.
    """
    filters = [{"Key": key, "Values": [value]} for key, value in tags.items()]
    found = account.items(
        "resourcegroupstaggingapi", "get_resources", "ResourceTagMappingList", TagFilters=filters
    )
    return [arn for arn in (entry["ResourceARN"] for entry in found) if _resource(arn).startswith(of)]


def _resource(arn: str) -> str:
    _, _, service, _, _, resource = arn.split(":", 5)
    return f"{service}:{resource}"


def keys(account: Account, target: Target) -> list[Found]:
    """KMS keys that are not waiting for their end; the note is their name."""
    found = []
    for arn in _tagged(account, target.tags, "kms:key/"):
        answer = account.call("kms", "describe_key", missing=("NotFoundException",), KeyId=arn)
        if answer is None or answer["KeyMetadata"]["KeyState"] in ENDED_KEYS:
            continue
        tags = tags_of({"Tags": account.items("kms", "list_resource_tags", "Tags", KeyId=arn)})
        found.append(Found(kind="KMS key", identity=arn.rpartition("/")[2], note=tags.get("Name", "")))
    return found


def aliases(account: Account, target: Target) -> list[Found]:
    """KMS aliases, which have no tags: those of exactly the names that this stack gives."""
    names = set(target.key_aliases)
    return [
        Found(kind="KMS alias", identity=alias["AliasName"])
        for alias in (account.items("kms", "list_aliases", "Aliases") if names else [])
        if alias["AliasName"] in names
    ]


def repositories(account: Account, target: Target) -> list[Found]:
    """ECR repositories."""
    found = []
    for repository in account.items("ecr", "describe_repositories", "repositories"):
        answer = account.call(
            "ecr",
            "list_tags_for_resource",
            missing=("RepositoryNotFoundException",),
            resourceArn=repository["repositoryArn"],
        )
        if has(tags_of(answer or {}, key="tags"), target.tags):
            found.append(Found(kind="ECR repository", identity=repository["repositoryName"]))
    return found


def buckets(account: Account, target: Target) -> list[Found]:
    """S3 buckets. One that may not be looked at is there all the same."""
    found = []
    for name in (arn.rpartition(":")[2] for arn in _tagged(account, target.tags, "s3:")):
        try:
            there = (
                account.call("s3", "head_bucket", Bucket=name, missing=("404", "NoSuchBucket")) is not None
            )
        except Denied:
            there = True
        if there:
            found.append(Found(kind="S3 bucket", identity=name))
    return found


def file_systems(account: Account, target: Target) -> list[Found]:
    """File systems of FSx with what they lie in, and links of them to S3."""
    found = []
    for system in account.items("fsx", "describe_file_systems", "FileSystems"):
        if not has(tags_of(system), target.tags):
            continue
        identity = system["FileSystemId"]
        interfaces = list(system.get("NetworkInterfaceIds") or [])
        vpc = system.get("VpcId", "")
        holds = {vpc, *system.get("SubnetIds", []), *interfaces}
        groups = _groups_of(account, interfaces)
        holds |= groups | _let_in(account, groups) | _default_group(account, vpc)
        found.append(
            Found(
                kind="FSx file system",
                identity=identity,
                note=system["Lifecycle"],
                holds=frozenset(holds - {""}),
            )
        )
    for link in account.items("fsx", "describe_data_repository_associations", "Associations"):
        if has(tags_of(link), target.tags):
            found.append(
                Found(
                    kind="data repository association",
                    identity=link["AssociationId"],
                    note=link["Lifecycle"],
                )
            )
    return found


def _groups_of(account: Account, interfaces: list[str]) -> set[str]:
    if not interfaces:
        return set()
    filters = [{"Name": "network-interface-id", "Values": interfaces}]
    shown = account.items("ec2", "describe_network_interfaces", "NetworkInterfaces", Filters=filters)
    return {group["GroupId"] for each in shown for group in each.get("Groups") or []}


def _let_in(account: Account, groups: set[str]) -> set[str]:
    """Groups that rules of these groups name: EC2 deletes none of them before the rule."""
    if not groups:
        return set()
    shown = account.items("ec2", "describe_security_groups", "SecurityGroups", GroupIds=sorted(groups))
    return {
        pair["GroupId"]
        for group in shown
        for rule in (*group["IpPermissions"], *group["IpPermissionsEgress"])
        for pair in rule.get("UserIdGroupPairs") or []
    }


def _default_group(account: Account, vpc: str) -> set[str]:
    """The group that every VPC has, and that goes with it alone."""
    if not vpc:
        return set()
    filters = [{"Name": "vpc-id", "Values": [vpc]}, {"Name": "group-name", "Values": ["default"]}]
    shown = account.items("ec2", "describe_security_groups", "SecurityGroups", Filters=filters)
    return {group["GroupId"] for group in shown}


def backups(account: Account, target: Target) -> list[Found]:
    """Backups of file systems, which outlive them and cost money."""
    return [
        Found(kind="FSx backup", identity=backup["BackupId"], note=backup["Lifecycle"])
        for backup in account.items("fsx", "describe_backups", "Backups")
        if has(tags_of(backup), target.tags) and backup["Lifecycle"] != "DELETED"
    ]


def load_balancers(account: Account, target: Target) -> list[Found]:
    """Load balancers and target groups that Services and Ingresses of the cluster made."""
    wanted = [target.tags]
    if target.cluster is not None:
        for name in LOAD_BALANCERS_OF_CLUSTER:
            value = "owned" if name == OWNED else target.cluster
            wanted.append({name.format(cluster=target.cluster): value})
    found = []
    for tags in wanted:
        for arn in _tagged(account, tags, "elasticloadbalancing:"):
            kind, _, name = arn.split(":", 5)[5].partition("/")
            if kind in ELB_KINDS and _is_there(account, arn, kind, name):
                found.append(Found(kind=ELB_KINDS[kind], identity=name))
    return found


def _is_there(account: Account, arn: str, kind: str, name: str) -> bool:
    """Whether a load balancer or a target group exists; a classic load balancer's ARN has its name alone."""
    if kind == "targetgroup":
        asked: dict[str, Any] = {"TargetGroupArns": [arn], "missing": ("TargetGroupNotFound",)}
        return account.call("elbv2", "describe_target_groups", **asked) is not None
    if "/" in name:
        asked = {"LoadBalancerArns": [arn], "missing": ("LoadBalancerNotFound",)}
        return account.call("elbv2", "describe_load_balancers", **asked) is not None
    asked = {"LoadBalancerNames": [name], "missing": ("LoadBalancerNotFound", "AccessPointNotFound")}
    return account.call("elb", "describe_load_balancers", **asked) is not None


def rules(account: Account, target: Target) -> list[Found]:
    """Rules of EventBridge; the ARN of one on a bus of its own has the bus before the name."""
    found = []
    for arn in _tagged(account, target.tags, "events:rule/"):
        bus, _, name = arn.partition(":rule/")[2].rpartition("/")
        there = account.call(
            "events",
            "describe_rule",
            Name=name,
            EventBusName=bus or "default",
            missing=("ResourceNotFoundException",),
        )
        if there is not None:
            found.append(Found(kind="EventBridge rule", identity=name))
    return found


def queues(account: Account, target: Target) -> list[Found]:
    """SQS queues that are still there: the tagging API shows a deleted one for a while."""
    absent = ("AWS.SimpleQueueService.NonExistentQueue", "QueueDoesNotExist")
    names = [arn.rpartition(":")[2] for arn in _tagged(account, target.tags, "sqs:")]
    return [
        Found(kind="SQS queue", identity=name)
        for name in names
        if account.call("sqs", "get_queue_url", QueueName=name, missing=absent) is not None
    ]


# What the tagging API knows and a reader here or in `read_ec2` is surer of: it shows what is gone for a while.
COVERED: Final = (
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


def others(account: Account, target: Target) -> list[Found]:
    """Anything else with the stack's tags, of whatever service."""
    found = []
    for arn in _tagged(account, target.tags):
        if not _resource(arn).startswith(COVERED):
            found.append(Found(kind=f"resource of {arn.split(':')[2]}", identity=arn))
    return found


READERS: Final[dict[str, Callable[[Account, Target], list[Found]]]] = {
    "EKS cluster": clusters,
    "load balancer": load_balancers,
    "log group": log_groups,
    "KMS key": keys,
    "KMS alias": aliases,
    "SQS queue": queues,
    "EventBridge rule": rules,
    "ECR repository": repositories,
    "S3 bucket": buckets,
    "FSx file system": file_systems,
    "FSx backup": backups,
    "IAM role": roles,
    "IAM policy": policies,
    "instance profile": instance_profiles,
    "OIDC provider": oidc_providers,
    "anything else with the tags": others,
}
