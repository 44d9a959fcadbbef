"""Check the KMS keys of node volumes. EC2 terminates an instance whose launcher may not use the key.

https://docs.aws.amazon.com/ebs/latest/userguide/ebs-encryption-requirements.html. Everybody in the account may use the
AWS managed key through EC2. A customer managed key needs a key policy for that.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Final

from trainyard.preflight.account import Account
from trainyard.preflight.wanted import Problem, Wanted

KEY: Final = "trainyard:cluster.volumeKey"
AWS_MANAGED: Final = "alias/aws/ebs"
NOT_FOUND: Final = ("NotFoundException", "InvalidArnException")
SYMMETRIC: Final = "SYMMETRIC_DEFAULT"
# The actions that the launch of an instance with an encrypted volume needs, among others.
NEEDED: Final = ("kms:CreateGrant", "kms:GenerateDataKeyWithoutPlaintext", "kms:Decrypt")
AUTO_SCALING_PATH: Final = "/aws-service-role/autoscaling.amazonaws.com/"


@dataclass(frozen=True, kw_only=True)
class VolumeKey:
    """A KMS key.

    Attributes:
        arn: Its ARN.
        managed: Its key manager: AWS or CUSTOMER.
        state: Its key state, such as Enabled, Disabled or PendingDeletion.
        spec: Its key spec.
        open: Whether its policy allows everybody in the account to use it through EC2.
    """

    arn: str
    managed: str
    state: str
    spec: str
    open: bool


def read(account: Account, key: str) -> VolumeKey | None:
    """Return the key with this id, alias or ARN; None if it does not exist."""
    answer = account.call("kms", "describe_key", KeyId=key, missing=NOT_FOUND)
    if answer is None:
        return None
    found = answer["KeyMetadata"]
    managed = str(found.get("KeyManager") or "CUSTOMER")
    return VolumeKey(
        arn=found["Arn"],
        managed=managed,
        state=str(found.get("KeyState") or "Enabled"),
        spec=str(found.get("KeySpec") or SYMMETRIC),
        open=managed == "AWS" or _is_open(_policy(account, found["Arn"])),
    )


def read_default(account: Account) -> VolumeKey | None:
    """Return the account's default key for EBS; None if it is the AWS managed key."""
    found = str((account.call("ec2", "get_ebs_default_kms_key_id") or {}).get("KmsKeyId") or AWS_MANAGED)
    return None if found.endswith(AWS_MANAGED) else read(account, found)


def has_auto_scaling_role(account: Account) -> bool:
    """Return whether the service-linked role that launches the nodes of managed node groups exists."""
    roles = account.items("iam", "list_roles", "Roles", PathPrefix=AUTO_SCALING_PATH)
    return any(role["Path"] == AUTO_SCALING_PATH for role in roles)


def check_volume_key(wanted: Wanted, found: VolumeKey | None) -> list[Problem]:
    """Check that the key in the stack file exists and can encrypt volumes."""
    name = f"'{wanted.volume_key}'"
    if found is None:
        return [Problem(key=KEY, message=f"{name} does not exist; it must be a KMS key in {wanted.region}")]
    if found.state != "Enabled":
        return [Problem(key=KEY, message=f"{name} is {found.state}; it must be Enabled")]
    if found.spec != SYMMETRIC:
        return [Problem(key=KEY, message=f"{name} has the key spec {found.spec}; it must be {SYMMETRIC}")]
    return []


def check_auto_scaling_role(wanted: Wanted, exists: bool) -> list[Problem]:
    """Check that the grantee of the key exists. KMS refuses a grant to a missing role."""
    if exists or wanted.system is None:
        return []
    message = (
        "must be granted to the role AWSServiceRoleForAutoScaling, which does not exist. Create it: aws iam"
        " create-service-linked-role --aws-service-name autoscaling.amazonaws.com"
    )
    return [Problem(key=KEY, message=message)]


def check_default_key(wanted: Wanted, found: VolumeKey | None) -> list[Problem]:
    """Check that Karpenter may use the account's default key, if the stack file names none."""
    if found is None:
        return []
    name = f"'{found.arn}', the account's default key for EBS in {wanted.region},"
    if found.state != "Enabled":
        message = f"is not set, and {name} is {found.state}, so nodes would fail at launch; it must be an enabled key"
        return [Problem(key=KEY, message=message)]
    if found.open:
        return []
    message = (
        f"is not set, and {name} is a customer managed key that Karpenter may not use, so nodes would fail at launch;"
        " it must be this key or another one. The stack then grants Karpenter access to it"
    )
    return [Problem(key=KEY, message=message)]


def check_snapshot_keys(wanted: Wanted, keys: Mapping[str, VolumeKey | None]) -> list[Problem]:
    """Check the keys of snapshots. A volume from a snapshot needs them. `keys` maps snapshots to their keys."""
    problems = []
    for pool in wanted.pools:
        found = keys.get(pool.snapshot_id or "")
        if found is None or found.open or found.arn == wanted.volume_key:
            continue
        problems.append(
            Problem(
                key=f"{pool.key}.dataSnapshotId",
                message=f"'{pool.snapshot_id}' is encrypted with the customer managed key '{found.arn}', which"
                f" Karpenter may not use; {KEY} must be this key, or the snapshot must be a copy with another key",
            )
        )
    return problems


def _policy(account: Account, key: str) -> Sequence[Mapping[str, Any]]:
    answer = account.call("kms", "get_key_policy", KeyId=key, PolicyName="default")
    found = json.loads((answer or {}).get("Policy") or "{}").get("Statement", [])
    return found if isinstance(found, list) else [found]


def _is_open(statements: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether everybody in the account may use the key, as with the AWS managed key for EBS."""
    return any(
        each.get("Effect") == "Allow"
        and each.get("Principal") in ("*", {"AWS": "*"}, {"AWS": ["*"]})
        and all(any(fnmatchcase(need, action) for action in _actions(each)) for need in NEEDED)
        for each in statements
    )


def _actions(statement: Mapping[str, Any]) -> list[str]:
    found = statement.get("Action", [])
    return [found] if isinstance(found, str) else list(found)
