"""The KMS keys of volumes: the account's default key, and instances that end because they can't use their key.

EC2 accepts a launch whose volume has such a key, and ends the instance while it is pending. It checks the key
asynchronously (https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_ModifyEbsDefaultKmsKeyId.html: "your
instances will fail to launch"). The state reasons are those that AWS and users of Karpenter report:

- no permission to use the key: https://repost.aws/knowledge-center/kms-iam-ec2-permission;
- a key that is disabled, pending deletion or absent: https://github.com/aws/karpenter-provider-aws/issues/5039.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from moto.core.responses import ActionResult
from moto.ec2.models.instances import StateReason
from moto.ec2.responses.elastic_block_store import ElasticBlockStore

from local.aws import keys, serial
from local.aws.account import ACCOUNT_ID
from local.aws.identity import role_for, role_grants
from local.aws.policy import Request, evaluate_for

# The answer of EC2 if the account has no key of its own
# (https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_GetEbsDefaultKmsKeyId.html).
AWS_MANAGED: Final = "alias/aws/ebs"
# Service-linked roles launch the instances of a spot request and of an Auto Scaling group
# (https://docs.aws.amazon.com/autoscaling/ec2/userguide/key-policy-requirements-EBS-encryption.html).
SPOT: Final = f"arn:aws:iam::{ACCOUNT_ID}:role/aws-service-role/spot.amazonaws.com/AWSServiceRoleForEC2Spot"
AUTO_SCALING: Final = (
    f"arn:aws:iam::{ACCOUNT_ID}:role/aws-service-role/autoscaling.amazonaws.com/AWSServiceRoleForAutoScaling"
)
# The permissions on the key that the launch needs
# (https://docs.aws.amazon.com/ebs/latest/userguide/ebs-encryption-requirements.html), as operations of a grant.
NEEDED: Final = ("CreateGrant", "Decrypt", "GenerateDataKeyWithoutPlaintext")

WRONG_STATE: Final = StateReason(
    "Client.InvalidKMSKey.InvalidState: The KMS key provided is in an incorrect state",
    "Client.InvalidKMSKey.InvalidState",
)
NOT_ALLOWED: Final = StateReason("Client.InternalError: Client error on launch", "Client.InternalError")
# https://github.com/aws/karpenter-provider-aws/issues/1407
TRANSITION_REASON: Final = "Server.InternalError"
# Long enough for Karpenter to know the instance before the event arrives, as on EC2.
END_SECONDS: Final = 3.0


def default_key(backend: Any) -> str:
    """Return the account's default key for EBS: an ARN, or the alias of the AWS managed key."""
    chosen = backend.default_kms_key_id
    # moto creates the AWS managed key with the first volume that needs it, and stores its ARN.
    key = keys.find(backend.region_name, chosen) if chosen else None
    return AWS_MANAGED if not chosen or (key is not None and _is_aws_managed(key)) else str(chosen)


def refusal(backend: Any, data: Mapping[str, Any], launcher: str | None) -> StateReason | None:
    """Return why EC2 ends an instance of a launch template with this data; None if it runs.

    Args:
        backend: moto's EC2 of the region.
        data: The data of the launch template.
        launcher: ARN of the role that launches it; None for a user, who has all permissions.
    """
    for mapping in data.get("BlockDeviceMappings") or []:
        ebs = mapping.get("Ebs") or {}
        if str(ebs.get("Encrypted", "")).lower() != "true":
            continue
        name = ebs.get("KmsKeyId") or default_key(backend)
        if name.endswith(AWS_MANAGED):
            continue
        key = keys.find(backend.region_name, name)
        if key is None or key.key_state != "Enabled":
            return WRONG_STATE
        if (
            not _is_aws_managed(key)
            and launcher is not None
            and not _may_use(key, launcher, backend.region_name)
        ):
            return NOT_ALLOWED
    return None


def end_at_launch(instance: Any, reason: StateReason) -> None:
    """Keep a new instance pending, then end it for this reason."""
    instance.launch_failure = reason
    instance._state.name, instance._state.code = "pending", 0

    def end() -> None:
        if instance.state == "pending":
            instance.terminate()

    serial.later(END_SECONDS, end)


def explain_end(instance: Any) -> None:
    """Set the state reason of an instance that ended at launch. Otherwise it would be a user's request."""
    reason = getattr(instance, "launch_failure", None)
    if reason is not None:
        instance.state_reason, instance._reason = reason, TRANSITION_REASON


def _is_aws_managed(key: Any) -> bool:
    return AWS_MANAGED in key.aliases


def _may_use(key: Any, launcher: str, region: str) -> bool:
    """Return whether a grant or the key's policy allows a role to use the key through EC2."""
    if any(
        grant.grantee_principal == launcher and set(NEEDED) <= set(grant.operations)
        for grant in key.grants.values()
    ):
        return True
    context = {
        "aws:principalarn": (launcher,),
        "kms:calleraccount": (ACCOUNT_ID,),
        "kms:viaservice": (f"ec2.{region}.amazonaws.com",),
        "kms:grantisforawsresource": ("true",),
    }
    return all(_allows(key, launcher, Request(f"kms:{name}", key.arn, context)) for name in NEEDED)


def _allows(key: Any, launcher: str, request: Request) -> bool:
    """Return whether the policies allow the use of the key.

    https://docs.aws.amazon.com/kms/latest/developerguide/policy-evaluation.html
    """
    # In a key policy, any Resource means the key itself.
    asked = Request(request.action, None, request.context)
    own = evaluate_for(key.policy, "AWS", [launcher], asked)
    account = evaluate_for(key.policy, "AWS", [f"arn:aws:iam::{ACCOUNT_ID}:root", ACCOUNT_ID], asked)
    if own.explicit or account.explicit:
        return False
    if own.allowed:
        return True
    # For the account's root as principal, the policies of the account's roles decide.
    role = role_for(launcher)
    return (
        account.allowed
        and role is not None
        and role_grants(role, request.action, str(request.resource), request.context)
    )


def install() -> None:
    """Add GetEbsDefaultKmsKeyId to moto, which can only change that key."""

    def get_ebs_default_kms_key_id(self: Any) -> ActionResult:
        self.error_on_dryrun()
        return ActionResult({"KmsKeyId": default_key(self.ec2_backend)})

    ElasticBlockStore.get_ebs_default_kms_key_id = get_ebs_default_kms_key_id
