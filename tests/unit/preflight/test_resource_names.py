"""Names that an account can have only once."""

from __future__ import annotations

from typing import Any

from infra.settings import Settings
from tests.unit.emulator import REGION, Cloud
from tests.unit.preflight.accounts import ACCOUNT, EXISTING, TAGS, Answers, account, findings, stack, tagged
from trainyard.preflight.checks import CHECKS
from trainyard.preflight.resource_names import key_aliases, repositories

KEY = "trainyard:cluster.name"
NAMES = [check.name for check in CHECKS if check.name.startswith("free name")]


def check(cloud: Cloud, settings: Settings) -> list[str]:
    return findings(account(cloud), settings, *NAMES)


def test_name_of_another_is_refused_and_the_stacks_own_is_not(cloud: Cloud) -> None:
    settings = stack()
    assert check(cloud, settings) == []
    logs, sqs, ecr, kms = (cloud.client(name) for name in ("logs", "sqs", "ecr", "kms"))
    logs.create_log_group(logGroupName="/aws/eks/train/cluster-two")
    assert check(cloud, settings) == []
    logs.create_log_group(logGroupName="/aws/eks/train/cluster")
    queue = sqs.create_queue(QueueName="train")["QueueUrl"]
    repository = ecr.create_repository(repositoryName="train/launcher")["repository"]["repositoryArn"]
    key = kms.create_key()["KeyMetadata"]["KeyId"]
    kms.create_alias(AliasName="alias/train-data", TargetKeyId=key)
    cluster = cloud.cluster("train")
    assert [line.split(" exists already")[0] for line in check(cloud, settings)] == [
        f"{KEY}: EKS cluster 'train'",
        f"{KEY}: log group '/aws/eks/train/cluster'",
        f"{KEY}: SQS queue 'train'",
        f"{KEY}: KMS alias 'alias/train-data'",
        f"{KEY}: ECR repository 'train/launcher'",
    ]
    arn = f"arn:aws:logs:{REGION}:{ACCOUNT}:log-group:/aws/eks/train/cluster"
    logs.tag_resource(resourceArn=arn, tags=TAGS)
    sqs.tag_queue(QueueUrl=queue, Tags=TAGS)
    ecr.tag_resource(resourceArn=repository, tags=tagged(TAGS))
    kms.tag_resource(KeyId=key, Tags=[{"TagKey": key, "TagValue": value} for key, value in TAGS.items()])
    cloud.client("eks").tag_resource(resourceArn=cluster["arn"], tags=TAGS)
    assert check(cloud, settings) == []


def test_names_of_an_existing_cluster_are_its_owners() -> None:
    group = {"logGroupName": "/aws/eks/research/cluster", "arn": "a"}
    answers: dict[str, Any] = {"describe_cluster": {"cluster": {}}, "describe_log_groups": [group]}
    assert findings(Answers(**answers), stack(cluster={"existing": EXISTING}), *NAMES) == []


def test_names_begin_with_the_clusters() -> None:
    assert key_aliases(stack()) == ["alias/train-secrets", "alias/train-data", "alias/train-logs"]
    assert repositories(stack()) == ["train/launcher", "train/trainer"]
    image = f"{ACCOUNT}.dkr.ecr.{REGION}.amazonaws.com/t@sha256:{'0' * 64}"
    assert repositories(stack(images={"trainer": image})) == ["train/launcher"]
