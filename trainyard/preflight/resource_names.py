"""Check that the stack's fixed names are free: an account can have each of them only once. Other names are unique."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from infra.settings import Settings
from trainyard.preflight.aws import Aws, has, tags_of
from trainyard.preflight.cluster import describe
from trainyard.preflight.findings import Finding, own_tags

# As `components.encryption` names its keys.
KMS_KEYS: Final = ("secrets", "data", "logs")
NO_QUEUE: Final = ("AWS.SimpleQueueService.NonExistentQueue", "QueueDoesNotExist")


def _taken(settings: Settings, kind: str, name: str, tags: Mapping[str, str] | None) -> Iterator[Finding]:
    """Yield a finding if something without the stack's tags has a name. `tags` is None if the name is free."""
    if tags is not None and not has(tags, own_tags(settings)):
        message = (
            f"{kind} '{name}' exists already and does not belong to this stack. It must be another name, or the {kind}"
            " must be deleted"
        )
        yield Finding("trainyard:cluster.name", message)


def check_cluster_name(settings: Settings, aws: Aws) -> list[Finding]:
    """Check that the name of a new EKS cluster is free, or that its cluster belongs to this stack."""
    name = settings.cluster.name
    found = None if settings.cluster.existing else describe(aws, name)
    return list(_taken(settings, "EKS cluster", name, tags_of(found, key="tags") if found else None))


def check_log_group_name(settings: Settings, aws: Aws) -> list[Finding]:
    """Check that the name of a new cluster's log group is free, or that the log group belongs to this stack."""
    if settings.cluster.existing:
        return []
    name = f"/aws/eks/{settings.cluster.name}/cluster"
    findings: list[Finding] = []
    for group in aws.items("logs", "describe_log_groups", "logGroups", logGroupNamePrefix=name):
        if group["logGroupName"] == name:
            arn = group["arn"].removesuffix(":*")
            tags = tags_of(aws.call("logs", "list_tags_for_resource", resourceArn=arn) or {}, key="tags")
            findings += _taken(settings, "log group", name, tags)
    return findings


def check_queue_name(settings: Settings, aws: Aws) -> list[Finding]:
    """Check that the name of Karpenter's SQS queue is free, or that the queue belongs to this stack."""
    name = settings.prefix
    return list(_taken(settings, "SQS queue", name, queue_tags(aws, name)))


def queue_tags(aws: Aws, name: str) -> dict[str, str] | None:
    """Return the tags of an SQS queue; None if it does not exist."""
    answer = aws.call("sqs", "get_queue_url", QueueName=name, missing=NO_QUEUE)
    if answer is None:
        return None
    return tags_of(aws.call("sqs", "list_queue_tags", QueueUrl=answer["QueueUrl"], missing=NO_QUEUE) or {})


def key_aliases(settings: Settings) -> list[str]:
    """Return the names of the stack's KMS aliases."""
    return [f"alias/{settings.prefix}-{name}" for name in KMS_KEYS]


def check_alias_names(settings: Settings, aws: Aws) -> list[Finding]:
    """Check that the KMS aliases are free, or that their keys belong to this stack. An alias has no tags."""
    names = key_aliases(settings)
    findings: list[Finding] = []
    for alias in aws.items("kms", "list_aliases", "Aliases"):
        if alias["AliasName"] in names:
            key = alias.get("TargetKeyId")
            tags = aws.items("kms", "list_resource_tags", "Tags", KeyId=key) if key else []
            findings += _taken(settings, "KMS alias", alias["AliasName"], tags_of({"Tags": tags}))
    return findings


def repositories(settings: Settings) -> list[str]:
    """Return the names of the ECR repositories that the stack creates (as `components.registry` does)."""
    images = {"launcher": settings.images.launcher, "trainer": settings.images.trainer}
    return [f"{settings.prefix}/{name}" for name, image in images.items() if image is None]


def check_repository_names(settings: Settings, aws: Aws) -> list[Finding]:
    """Check that the names of the ECR repositories are free, or that the repositories belong to this stack."""
    findings: list[Finding] = []
    absent = ("RepositoryNotFoundException",)
    for name in repositories(settings):
        for found in aws.items(
            "ecr", "describe_repositories", "repositories", repositoryNames=[name], missing=absent
        ):
            answer = aws.call("ecr", "list_tags_for_resource", resourceArn=found["repositoryArn"]) or {}
            findings += _taken(settings, "ECR repository", name, tags_of(answer, key="tags"))
    return findings
