"""Rules for the queue that warns Karpenter of machines that are about to go."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from trainyard.policies.documents import anybody, conditions, grants, label, principals, statements
from trainyard.policies.model import Resource, Rules, Stack

RULES: Final = Rules()

QUEUE: Final = "aws:sqs/queue:Queue"
QUEUE_POLICY: Final = "aws:sqs/queuePolicy:QueuePolicy"
SENDERS: Final = ("events.amazonaws.com", "sqs.amazonaws.com")
# A warning that is older than this is of no use (Karpenter's own template of the queue has the same).
RETENTION_SECONDS: Final = 300


@RULES.rule("queue-encrypted", "CKV_AWS_27", "AVD-AWS-0096", types=[QUEUE])
def queue_encrypted(resource: Resource, _stack: Stack) -> Iterator[str]:
    """Messages are encrypted."""
    if not resource.at("sqsManagedSseEnabled", default=False) and not resource.has("kmsMasterKeyId"):
        yield "sqsManagedSseEnabled is not true and kmsMasterKeyId is missing; one must be set"


@RULES.rule("queue-forgets", types=[QUEUE])
def queue_forgets(resource: Resource, _stack: Stack) -> Iterator[str]:
    """Old warnings are dropped."""
    seconds = resource.at("messageRetentionSeconds", default=345600)
    if seconds != RETENTION_SECONDS:
        yield f"messageRetentionSeconds is {seconds}; it must be {RETENTION_SECONDS}"


@RULES.rule(
    "queue-closed",
    "CKV_AWS_168",
    "CKV_AWS_72",
    "CKV_AWS_387",
    "AVD-AWS-0097",
    types=[QUEUE],
    whole_stack=True,
)
def queue_closed(resource: Resource, stack: Stack) -> Iterator[str]:
    """Allow only named EventBridge rules to write to the queue, over TLS."""
    found = stack.pointing(resource, QUEUE_POLICY, "queueUrl")
    if not found:
        yield "no QueuePolicy is for it; there must be one"
    for policy in found:
        for statement in grants(policy):
            others = [p for p in principals(statement, "Service") if p not in SENDERS]
            excepting = anybody(statement) if "NotPrincipal" in statement else []
            for who in (*others, *principals(statement, "AWS"), *excepting):
                yield f"{policy.name} {label(statement)} lets {who} in; it must be {' or '.join(SENDERS)}"
            if not any(key.lower() == "aws:sourcearn" for _, key, _ in conditions(statement)):
                yield f"{policy.name} {label(statement)} allows any rule; it must name the rules by aws:SourceArn"
        plain = ("Bool", "aws:SecureTransport", ["false"])
        refused = [each for each in statements(policy, "policy") if each.get("Effect") == "Deny"]
        if not any(plain in conditions(each) and "*" in principals(each, "AWS") for each in refused):
            yield f"{policy.name} does not refuse requests without TLS; it must deny where aws:SecureTransport is false"
