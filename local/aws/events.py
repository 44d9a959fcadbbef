"""Notifications about instances: to callers that wait for a change, and to queues through EventBridge.

EventBridge delivers EC2's 'Instance State-change Notification' to the queues that rules target. moto never sends it,
and Karpenter drains nodes when it receives it. A queue whose policy does not allow EventBridge to send stays empty,
as on AWS.
"""

from __future__ import annotations

import logging
import threading
import uuid
from typing import Any

from moto.core.utils import utcnow
from moto.events.models import events_backends

from local.aws.account import ACCOUNT_ID
from local.aws.policy import Request, evaluate_for

log = logging.getLogger(__name__)


def instance_state_changed(instance: Any, state: str) -> None:
    """Publish an instance's new state: pending, running or terminated."""
    region = instance.ec2_backend.region_name
    arn = f"arn:aws:ec2:{region}:{ACCOUNT_ID}:instance/{instance.id}"
    detail = {"instance-id": instance.id, "state": state}
    publish(region, "aws.ec2", "EC2 Instance State-change Notification", [arn], detail)


def publish(region: str, source: str, detail_type: str, resources: list[str], detail: dict[str, Any]) -> None:
    """Send an event of an AWS service to the targets of all enabled rules of the default bus that match it."""
    event = {
        "version": "0",
        "id": str(uuid.uuid4()),
        "detail-type": detail_type,
        "source": source,
        "account": ACCOUNT_ID,
        "time": utcnow().timestamp(),
        "region": region,
        "resources": resources,
        "detail": detail,
    }
    bus = events_backends[ACCOUNT_ID][region].event_buses.get("default")
    for rule in list(bus.rules.values()) if bus else []:
        if rule.state != "ENABLED":
            continue
        deliverable = [t for t in rule.targets if _may_send(t["Arn"], rule.arn)]
        kept, rule.targets = rule.targets, deliverable
        try:
            # Otherwise moto's default template drops the account.
            rule.send_to_targets(event, transform_input=False)
        except Exception as error:
            # A deleted target must not fail the EC2 call that caused the event. AWS drops the event, too.
            log.warning("event %s of rule %s was not delivered: %s", detail_type, rule.name, error)
        finally:
            rule.targets = kept


def _may_send(target_arn: str, rule_arn: str) -> bool:
    """Return whether a queue exists and its policy allows EventBridge. Other targets are left to moto."""
    parts = target_arn.split(":")
    if parts[2] != "sqs":
        return True
    from moto.sqs.models import sqs_backends

    queue = sqs_backends[ACCOUNT_ID][parts[3]].queues.get(parts[5])
    if queue is None:
        log.warning("EventBridge target %s does not exist", target_arn)
        return False
    request = Request(
        "sqs:SendMessage", target_arn, {"aws:sourcearn": (rule_arn,), "aws:securetransport": ("true",)}
    )
    policy = getattr(queue, "policy", None)
    granted = evaluate_for(policy, "Service", ["events.amazonaws.com"], request).allowed
    if not granted:
        log.warning("the policy of queue %s does not let events.amazonaws.com send", target_arn)
    return granted


_changed = threading.Condition()


def notify_change() -> None:
    """Wake all callers that wait for a changed instance in `GET /_trainyard/instances`."""
    with _changed:
        _changed.notify_all()


def wait_for_change(seconds: float) -> None:
    """Return at the next change, or after the given number of seconds."""
    with _changed:
        _changed.wait(seconds)
