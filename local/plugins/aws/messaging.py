"""Queues, event rules and log groups: SQS, EventBridge, CloudWatch Logs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from local.plugins.aws.cloud import Cloud, is_gone
from local.plugins.aws.resource import (
    Handler,
    Props,
    is_equal,
    random_name,
    serves,
    tag_changes,
    tag_list,
    tag_map,
)

# SDK name -> SQS attribute.
_QUEUE = {
    "contentBasedDeduplication": "ContentBasedDeduplication",
    "delaySeconds": "DelaySeconds",
    "kmsMasterKeyId": "KmsMasterKeyId",
    "maxMessageSize": "MaximumMessageSize",
    "messageRetentionSeconds": "MessageRetentionPeriod",
    "policy": "Policy",
    "receiveWaitTimeSeconds": "ReceiveMessageWaitTimeSeconds",
    "redrivePolicy": "RedrivePolicy",
    "sqsManagedSseEnabled": "SqsManagedSseEnabled",
    "visibilityTimeoutSeconds": "VisibilityTimeout",
}


def _attributes(inputs: Mapping[str, Any]) -> dict[str, str]:
    made = {}
    for key, name in _QUEUE.items():
        value = inputs.get(key)
        if value is not None:
            made[name] = str(value).lower() if isinstance(value, bool) else str(_whole(value))
    return made


def _whole(value: Any) -> Any:
    return int(value) if isinstance(value, float) and value.is_integer() else value


@serves
class Queue(Handler):
    """An SQS queue. Its id is its URL."""

    token = "aws:sqs/queue:Queue"
    accepts = frozenset({"name", "namePrefix", "fifoQueue", "tags", *_QUEUE})
    replaces = frozenset({"name", "namePrefix", "fifoQueue"})
    documents = frozenset({"policy", "redrivePolicy"})
    write_only = frozenset({"namePrefix"})
    auto_name = "name"
    auto_name_limit = 80
    tagged = True

    def create(self, cloud: Cloud, inputs: Props) -> str:
        name = inputs.get("name") or random_name(str(inputs["namePrefix"]).rstrip("-"), 80)
        attributes = _attributes(inputs)
        if inputs.get("fifoQueue"):
            attributes["FifoQueue"] = "true"
        answer = cloud.client("sqs").create_queue(
            QueueName=name, Attributes=attributes, tags=inputs.get("tags") or {}
        )
        return str(answer["QueueUrl"])

    def read(self, cloud: Cloud, rid: str, inputs: Props) -> Props | None:
        sqs = cloud.client("sqs")
        found = sqs.get_queue_attributes(QueueUrl=rid, AttributeNames=["All"])["Attributes"]
        live: Props = {
            "arn": found["QueueArn"],
            "url": rid,
            "name": found["QueueArn"].rsplit(":", 1)[-1],
            "fifoQueue": found.get("FifoQueue", "false") == "true",
            "tags": sqs.list_queue_tags(QueueUrl=rid).get("Tags", {}),
        }
        for key, name in _QUEUE.items():
            text = found.get(name)
            if text is None:
                continue
            if text.lower() in ("true", "false"):
                live[key] = text.lower() == "true"
            else:
                live[key] = int(text) if text.isdigit() else text
        if "policy" not in inputs:
            # A QueuePolicy resource owns it.
            live.pop("policy", None)
        return live

    def update(self, cloud: Cloud, rid: str, old: Props, new: Props, changed: frozenset[str]) -> None:
        sqs = cloud.client("sqs")
        attributes = {k: v for k, v in _attributes(new).items()}
        for key in changed & {"policy", "redrivePolicy", "kmsMasterKeyId"}:
            attributes.setdefault(_QUEUE[key], "")
        if changed - {"tags"}:
            if "policy" not in new and "policy" not in changed:
                # A QueuePolicy resource owns it. The emulator removes it if a call leaves it out.
                found = sqs.get_queue_attributes(QueueUrl=rid, AttributeNames=["All"])["Attributes"]
                attributes |= {"Policy": found["Policy"]} if found.get("Policy") else {}
            sqs.set_queue_attributes(QueueUrl=rid, Attributes=attributes)
        if "tags" in changed:
            gone, put = tag_changes(old, new)
            if gone:
                sqs.untag_queue(QueueUrl=rid, TagKeys=gone)
            if put:
                sqs.tag_queue(QueueUrl=rid, Tags=put)

    def delete(self, cloud: Cloud, rid: str, state: Props) -> None:
        cloud.client("sqs").delete_queue(QueueUrl=rid)


@serves
class QueuePolicy(Handler):
    """The access policy of a queue."""

    token = "aws:sqs/queuePolicy:QueuePolicy"
    accepts = frozenset({"queueUrl", "policy"})
    required = accepts
    replaces = frozenset({"queueUrl"})
    documents = frozenset({"policy"})

    def _put(self, cloud: Cloud, url: str, policy: str) -> None:
        cloud.client("sqs").set_queue_attributes(QueueUrl=url, Attributes={"Policy": policy})

    def create(self, cloud: Cloud, inputs: Props) -> str:
        self._put(cloud, inputs["queueUrl"], inputs["policy"])
        return str(inputs["queueUrl"])

    def read(self, cloud: Cloud, rid: str, inputs: Props) -> Props | None:
        found = cloud.client("sqs").get_queue_attributes(QueueUrl=rid, AttributeNames=["All"])
        policy = found.get("Attributes", {}).get("Policy")
        return {"queueUrl": rid, "policy": policy} if policy else None

    def update(self, cloud: Cloud, rid: str, old: Props, new: Props, changed: frozenset[str]) -> None:
        self._put(cloud, rid, new["policy"])

    def delete(self, cloud: Cloud, rid: str, state: Props) -> None:
        self._put(cloud, rid, "")


@serves
class EventRule(Handler):
    """A rule of an event bus. Its id is its name (after the bus if that is not `default`)."""

    token = "aws:cloudwatch/eventRule:EventRule"
    accepts = frozenset(
        {
            "name",
            "namePrefix",
            "description",
            "eventBusName",
            "eventPattern",
            "forceDestroy",
            "scheduleExpression",
            "roleArn",
            "state",
            "tags",
        }
    )
    replaces = frozenset({"name", "namePrefix", "eventBusName"})
    documents = frozenset({"eventPattern"})
    write_only = frozenset({"namePrefix", "forceDestroy"})
    defaults: ClassVar[Props] = {"eventBusName": "default", "forceDestroy": False}
    auto_name = "name"
    auto_name_limit = 64
    tagged = True

    def _put(self, cloud: Cloud, name: str, inputs: Props, tags: bool) -> None:
        fields = {
            "EventBusName": inputs.get("eventBusName"),
            "EventPattern": inputs.get("eventPattern"),
            "ScheduleExpression": inputs.get("scheduleExpression"),
            "Description": inputs.get("description"),
            "RoleArn": inputs.get("roleArn"),
            "State": inputs.get("state", "ENABLED"),
        }
        given = {key: value for key, value in fields.items() if value}
        if tags and inputs.get("tags"):
            given["Tags"] = tag_list(inputs["tags"])
        cloud.client("events").put_rule(Name=name, **given)

    def create(self, cloud: Cloud, inputs: Props) -> str:
        name = str(inputs.get("name") or random_name(str(inputs["namePrefix"]).rstrip("-"), 64))
        self._put(cloud, name, inputs, tags=True)
        bus = inputs["eventBusName"]
        return name if bus == "default" else f"{bus}/{name}"

    def read(self, cloud: Cloud, rid: str, inputs: Props) -> Props | None:
        bus, _, name = rid.rpartition("/")
        events = cloud.client("events")
        rule = events.describe_rule(Name=name, EventBusName=bus or "default")
        return {
            "arn": rule["Arn"],
            "name": rule["Name"],
            "eventBusName": rule.get("EventBusName", "default"),
            "eventPattern": rule.get("EventPattern", ""),
            "scheduleExpression": rule.get("ScheduleExpression", ""),
            "description": rule.get("Description", ""),
            "roleArn": rule.get("RoleArn", ""),
            "state": rule.get("State", "ENABLED"),
            "tags": tag_map(events.list_tags_for_resource(ResourceARN=rule["Arn"])["Tags"]),
        }

    def update(self, cloud: Cloud, rid: str, old: Props, new: Props, changed: frozenset[str]) -> None:
        events = cloud.client("events")
        if changed - {"tags"}:
            self._put(cloud, rid.rpartition("/")[2], new, tags=False)
        if "tags" in changed:
            arn = (self.read(cloud, rid, new) or {})["arn"]
            gone, put = tag_changes(old, new)
            if gone:
                events.untag_resource(ResourceARN=arn, TagKeys=gone)
            if put:
                events.tag_resource(ResourceARN=arn, Tags=tag_list(put))

    def delete(self, cloud: Cloud, rid: str, state: Props) -> None:
        bus, _, name = rid.rpartition("/")
        events, on = cloud.client("events"), bus or "default"
        if state.get("forceDestroy"):
            targets = [t["Id"] for t in events.list_targets_by_rule(Rule=name, EventBusName=on)["Targets"]]
            if targets:
                events.remove_targets(Rule=name, EventBusName=on, Ids=targets)
        events.delete_rule(Name=name, EventBusName=on)


@serves
class EventTarget(Handler):
    """A target of a rule. Its id is `<rule>-<target id>`."""

    token = "aws:cloudwatch/eventTarget:EventTarget"
    accepts = frozenset(
        {"rule", "arn", "targetId", "eventBusName", "input", "inputPath", "roleArn", "forceDestroy"}
    )
    required = frozenset({"rule", "arn"})
    replaces = frozenset({"rule", "targetId", "eventBusName"})
    write_only = frozenset({"forceDestroy"})
    documents = frozenset({"input"})
    defaults: ClassVar[Props] = {"eventBusName": "default"}
    auto_name = "targetId"
    auto_name_limit = 64

    def _put(self, cloud: Cloud, inputs: Props) -> None:
        fields = {
            "Id": inputs["targetId"],
            "Arn": inputs["arn"],
            "Input": inputs.get("input"),
            "InputPath": inputs.get("inputPath"),
            "RoleArn": inputs.get("roleArn"),
        }
        answer = cloud.client("events").put_targets(
            Rule=inputs["rule"],
            EventBusName=inputs["eventBusName"],
            Targets=[{key: value for key, value in fields.items() if value}],
        )
        if answer.get("FailedEntryCount"):
            raise RuntimeError(
                f"target {inputs['arn']} of rule {inputs['rule']}: {answer['FailedEntries'][0]['ErrorMessage']}"
            )

    def create(self, cloud: Cloud, inputs: Props) -> str:
        self._put(cloud, inputs)
        return f"{inputs['rule']}-{inputs['targetId']}"

    def read(self, cloud: Cloud, rid: str, inputs: Props) -> Props | None:
        answer = cloud.client("events").list_targets_by_rule(
            Rule=inputs["rule"], EventBusName=inputs.get("eventBusName", "default")
        )
        for target in answer["Targets"]:
            if target["Id"] == inputs["targetId"]:
                return {
                    "rule": inputs["rule"],
                    "targetId": target["Id"],
                    "arn": target["Arn"],
                    "input": target.get("Input", ""),
                    "inputPath": target.get("InputPath", ""),
                    "roleArn": target.get("RoleArn", ""),
                }
        return None

    def update(self, cloud: Cloud, rid: str, old: Props, new: Props, changed: frozenset[str]) -> None:
        self._put(cloud, new)

    def delete(self, cloud: Cloud, rid: str, state: Props) -> None:
        cloud.client("events").remove_targets(
            Rule=state["rule"], EventBusName=state.get("eventBusName", "default"), Ids=[state["targetId"]]
        )


@serves
class LogGroup(Handler):
    """A log group of CloudWatch Logs. Its id is its name."""

    token = "aws:cloudwatch/logGroup:LogGroup"
    accepts = frozenset({"name", "namePrefix", "retentionInDays", "kmsKeyId", "skipDestroy", "tags"})
    replaces = frozenset({"name", "namePrefix"})
    write_only = frozenset({"namePrefix", "skipDestroy"})
    defaults: ClassVar[Props] = {"skipDestroy": False}
    auto_name = "name"
    auto_name_limit = 512
    tagged = True

    def create(self, cloud: Cloud, inputs: Props) -> str:
        name = str(inputs.get("name") or random_name(str(inputs["namePrefix"]).rstrip("-"), 512))
        arguments: Props = {"logGroupName": name, "tags": inputs.get("tags") or {}}
        if inputs.get("kmsKeyId"):
            arguments["kmsKeyId"] = inputs["kmsKeyId"]
        cloud.client("logs").create_log_group(**{k: v for k, v in arguments.items() if v})
        return name

    def finish(self, cloud: Cloud, rid: str, inputs: Props) -> None:
        if inputs.get("retentionInDays"):
            cloud.client("logs").put_retention_policy(
                logGroupName=rid, retentionInDays=int(inputs["retentionInDays"])
            )

    def read(self, cloud: Cloud, rid: str, inputs: Props) -> Props | None:
        logs = cloud.client("logs")
        answer = logs.describe_log_groups(logGroupNamePrefix=rid)["logGroups"]
        found = [group for group in answer if group["logGroupName"] == rid]
        if not found:
            return None
        return {
            "arn": str(found[0]["arn"]).removesuffix(":*"),
            "name": rid,
            "retentionInDays": found[0].get("retentionInDays", 0),
            "kmsKeyId": found[0].get("kmsKeyId", ""),
            "tags": logs.list_tags_log_group(logGroupName=rid)["tags"],
        }

    def update(self, cloud: Cloud, rid: str, old: Props, new: Props, changed: frozenset[str]) -> None:
        logs = cloud.client("logs")
        if "retentionInDays" in changed:
            if new.get("retentionInDays"):
                self.finish(cloud, rid, new)
            else:
                logs.delete_retention_policy(logGroupName=rid)
        if not is_equal(self, "kmsKeyId", old.get("kmsKeyId"), new.get("kmsKeyId")):
            if new.get("kmsKeyId"):
                logs.associate_kms_key(logGroupName=rid, kmsKeyId=new["kmsKeyId"])
            else:
                logs.disassociate_kms_key(logGroupName=rid)
        if "tags" in changed:
            gone, put = tag_changes(old, new)
            if gone:
                logs.untag_log_group(logGroupName=rid, tags=gone)
            if put:
                logs.tag_log_group(logGroupName=rid, tags=put)

    def delete(self, cloud: Cloud, rid: str, state: Props) -> None:
        if state.get("skipDestroy"):
            return
        try:
            cloud.client("logs").delete_log_group(logGroupName=rid)
        except Exception as error:
            if not is_gone(error):
                raise
