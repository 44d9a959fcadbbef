"""SQS, EventBridge, CloudWatch Logs, ECR and KMS."""

from __future__ import annotations

from typing import Any

from local.plugins.aws.cloud import Cloud
from local.plugins.aws.resource import Props, Resource, plain_tags
from local.plugins.sdk import split_names

# ------------------------------------------------------------------------------------------------- SQS

_QUEUE = {
    "messageRetentionSeconds": "Attributes.MessageRetentionPeriod",
    "sqsManagedSseEnabled": "Attributes.SqsManagedSseEnabled",
}


def _live_queue(_cloud: Cloud, rid: str, _inputs: Props, found: Any) -> Props:
    """Return the attributes with the types of the SDK. All of them are texts in the API."""
    attributes = found["Attributes"]
    return {
        "url": rid,
        "name": attributes["QueueArn"].rsplit(":", 1)[-1],
        "messageRetentionSeconds": int(attributes["MessageRetentionPeriod"]),
        "sqsManagedSseEnabled": attributes.get("SqsManagedSseEnabled") == "true",
    }


class _Queue(Resource):
    """A queue. Its id is its URL."""

    def update(self, cloud: Cloud, rid: str, old: Props, new: Props, changed: frozenset[str]) -> None:
        if changed - {"tags"}:
            sqs = cloud.client("sqs")
            attributes = self.arguments(cloud, "set_queue_attributes", new)["Attributes"]
            # A QueuePolicy resource owns the policy. The emulator removes it if a call leaves it out.
            live = sqs.get_queue_attributes(QueueUrl=rid, AttributeNames=["All"])["Attributes"]
            attributes |= {"Policy": live["Policy"]} if live.get("Policy") else {}
            sqs.set_queue_attributes(QueueUrl=rid, Attributes=attributes)
        super().update(cloud, rid, old, new, changed & {"tags"})


class _QueuePolicy(Resource):
    """The access policy of a queue. Its id is the queue's URL."""

    def delete(self, cloud: Cloud, rid: str, state: Props) -> None:
        cloud.client("sqs").set_queue_attributes(QueueUrl=rid, Attributes={"Policy": ""})


# ------------------------------------------------------------------------------------------------- EventBridge


class _EventTarget(Resource):
    """A target of a rule. Its id is `<rule>-<target id>`."""

    def create(self, cloud: Cloud, inputs: Props) -> str:
        target = {"Id": inputs["targetId"], "Arn": inputs["arn"]}
        answer = cloud.client("events").put_targets(Rule=inputs["rule"], Targets=[target])
        if answer.get("FailedEntryCount"):
            why = answer["FailedEntries"][0]["ErrorMessage"]
            raise RuntimeError(f"target {inputs['arn']} of rule {inputs['rule']}: {why}")
        return f"{inputs['rule']}-{inputs['targetId']}"

    def read(self, cloud: Cloud, rid: str, inputs: Props) -> Props | None:
        for target in cloud.client("events").list_targets_by_rule(Rule=inputs["rule"])["Targets"]:
            if target["Id"] == inputs["targetId"]:
                return {"rule": inputs["rule"], "targetId": target["Id"], "arn": target["Arn"]}
        return None

    def update(self, cloud: Cloud, rid: str, old: Props, new: Props, changed: frozenset[str]) -> None:
        self.create(cloud, new)

    def delete(self, cloud: Cloud, rid: str, state: Props) -> None:
        cloud.client("events").remove_targets(Rule=state["rule"], Ids=[state["targetId"]])


# ------------------------------------------------------------------------------------------------- KMS


def _live_alias(cloud: Cloud, _rid: str, inputs: Props, found: Any) -> Props:
    """Return the key in the form of the program, which may set the key's id or its ARN."""
    key = cloud.client("kms").describe_key(KeyId=found["TargetKeyId"])["KeyMetadata"]
    given = inputs.get("targetKeyId")
    same = given in (key["KeyId"], key["Arn"])
    return {"targetKeyId": given if same else key["KeyId"], "targetKeyArn": key["Arn"]}


class _Grant(Resource):
    """A grant. Its id is `<key id>:<grant id>`, as in the official provider. Nothing changes in place."""

    def create(self, cloud: Cloud, inputs: Props) -> str:
        grant = super().create(cloud, inputs)
        key = cloud.client("kms").describe_key(KeyId=inputs["keyId"])["KeyMetadata"]["KeyId"]
        return f"{key}:{grant}"


# ------------------------------------------------------------------------------------------------- the table

ROWS = (
    _Queue(
        "aws:sqs/queue:Queue",
        service="sqs",
        accepts=split_names("name tags") | _QUEUE.keys(),
        changes=frozenset(_QUEUE),
        auto_name="name",
        auto_name_limit=80,
        create_op="create_queue",
        id="QueueUrl",
        key="QueueUrl",
        read_op="get_queue_attributes",
        read_with={"AttributeNames": ["All"]},
        extras={"tags": ("list_queue_tags", "Tags", {})},
        names={"name": "QueueName", "arn": "Attributes.QueueArn", **_QUEUE},
        live=_live_queue,
        tag_op="tag_queue",
        delete_op="delete_queue",
    ),
    _QueuePolicy(
        "aws:sqs/queuePolicy:QueuePolicy",
        service="sqs",
        accepts=split_names("queueUrl policy"),
        documents=split_names("policy"),
        put=True,
        create_op="set_queue_attributes",
        id="{queueUrl}",
        key="QueueUrl",
        read_op="get_queue_attributes",
        read_with={"AttributeNames": ["All"]},
        found="Attributes.Policy && @",
        names={"policy": "Attributes.Policy"},
        live=lambda _cloud, rid, _inputs, _found: {"queueUrl": rid},
    ),
    Resource(
        "aws:cloudwatch/eventRule:EventRule",
        service="events",
        accepts=split_names("name description eventPattern tags"),
        documents=split_names("eventPattern"),
        auto_name="name",
        auto_name_limit=64,
        put=True,
        create_op="put_rule",
        id="{name}",
        key="Name",
        read_op="describe_rule",
        tag_op="tag_resource",
        tag_by="arn",
        live=lambda cloud, _rid, _inputs, found: {
            "tags": plain_tags(
                cloud.client("events").list_tags_for_resource(ResourceARN=found["Arn"])["Tags"]
            )
        },
        delete_op="delete_rule",
    ),
    _EventTarget(
        "aws:cloudwatch/eventTarget:EventTarget",
        service="events",
        accepts=split_names("rule arn targetId"),
        changes=split_names("arn"),
        auto_name="targetId",
        auto_name_limit=64,
        create_op="put_targets",
    ),
    Resource(
        "aws:cloudwatch/logGroup:LogGroup",
        service="logs",
        accepts=split_names("name retentionInDays kmsKeyId tags"),
        auto_name="name",
        auto_name_limit=512,
        create_op="create_log_group",
        id="{name}",
        key="logGroupName",
        read_op="describe_log_groups",
        found="logGroups[?logGroupName=='{id}'] | [0]",
        extras={"tags": ("list_tags_log_group", "tags", {})},
        updates=(
            ("put_retention_policy", split_names("retentionInDays")),
            ("associate_kms_key", split_names("kmsKeyId")),
        ),
        clears={"retentionInDays": "delete_retention_policy", "kmsKeyId": "disassociate_kms_key"},
        names={"name": "logGroupName"},
        live=lambda _cloud, _rid, _inputs, found: {"arn": found["arn"].removesuffix(":*")},
        tag_op="tag_log_group",
        delete_op="delete_log_group",
    ),
    Resource(
        "aws:ecr/repository:Repository",
        service="ecr",
        accepts=split_names(
            "name encryptionConfigurations forceDelete imageScanningConfiguration imageTagMutability tags"
        ),
        write_only=split_names("forceDelete"),
        defaults={"imageTagMutability": "MUTABLE"},
        auto_name="name",
        auto_name_limit=256,
        auto_name_lower=True,
        create_op="create_repository",
        id="{name}",
        key="repositoryName",
        read_op="describe_repositories",
        found="repositories[0]",
        updates=(
            ("put_image_tag_mutability", split_names("imageTagMutability")),
            ("put_image_scanning_configuration", split_names("imageScanningConfiguration")),
        ),
        names={
            "name": "repositoryName",
            "arn": "repositoryArn",
            "repositoryUrl": "repositoryUri",
            "encryptionConfigurations": "encryptionConfiguration",
            "forceDelete": "force",
        },
        live=lambda cloud, _rid, _inputs, found: {
            "tags": plain_tags(
                cloud.client("ecr").list_tags_for_resource(resourceArn=found["repositoryArn"])["tags"]
            )
        },
        tag_op="tag_resource",
        tag_by="arn",
        delete_op="delete_repository",
        delete_with=split_names("forceDelete"),
    ),
    Resource(
        "aws:ecr/lifecyclePolicy:LifecyclePolicy",
        service="ecr",
        accepts=split_names("repository policy"),
        documents=split_names("policy"),
        put=True,
        create_op="put_lifecycle_policy",
        id="{repository}",
        key="repositoryName",
        read_op="get_lifecycle_policy",
        names={"repository": "repositoryName", "policy": "lifecyclePolicyText"},
        delete_op="delete_lifecycle_policy",
    ),
    Resource(
        "aws:kms/key:Key",
        service="kms",
        accepts=split_names("description deletionWindowInDays enableKeyRotation policy tags"),
        documents=split_names("policy"),
        write_only=split_names("deletionWindowInDays"),
        create_op="create_key",
        id="KeyMetadata.KeyId",
        key="KeyId",
        read_op="describe_key",
        found="KeyMetadata",
        extras={
            "enableKeyRotation": ("get_key_rotation_status", "KeyRotationEnabled", {}),
            "policy": ("get_key_policy", "Policy", {"PolicyName": "default"}),
            "tags": ("list_resource_tags", "Tags", {}),
        },
        updates=(
            ("update_key_description", split_names("description")),
            ("put_key_policy", split_names("policy")),
            ("enable_key_rotation", split_names("enableKeyRotation")),
        ),
        clears={"enableKeyRotation": "disable_key_rotation"},
        names={"deletionWindowInDays": "PendingWindowInDays"},
        tag_op="tag_resource",
        status="KeyState",
        gone=split_names("PendingDeletion"),
        delete_op="schedule_key_deletion",
        delete_with=split_names("deletionWindowInDays"),
    ),
    Resource(
        "aws:kms/alias:Alias",
        service="kms",
        accepts=split_names("name targetKeyId"),
        create_op="create_alias",
        id="{name}",
        key="AliasName",
        read_op="list_aliases",
        found="Aliases[?AliasName=='{id}' && TargetKeyId] | [0]",
        updates=(("update_alias", split_names("targetKeyId")),),
        names={"name": "AliasName", "arn": "AliasArn"},
        live=_live_alias,
        delete_op="delete_alias",
    ),
    _Grant(
        "aws:kms/grant:Grant",
        service="kms",
        accepts=split_names("granteePrincipal keyId name operations"),
        unordered=split_names("operations"),
        create_op="create_grant",
        id="GrantId",
        key="KeyId:GrantId",
        read_op="list_grants",
        found="Grants[0]",
        # The program may set the key's id or its ARN. KMS returns the ARN.
        live=lambda _cloud, _rid, inputs, found: {"keyId": inputs.get("keyId") or found["KeyId"]},
        delete_op="revoke_grant",
    ),
)
