"""KMS keys of nodes' disks: whoever launches a node must be able to use them, or EC2 ends it at once.

https://docs.aws.amazon.com/ebs/latest/userguide/ebs-encryption-requirements.html. The AWS managed key lets everybody in
the account use it through EC2; a customer managed key does so only where its policy says it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Final

from infra.preflight.account import Account
from infra.preflight.wanted import Problem, Wanted

KEY: Final = "trainyard:cluster.volumeKey"
AWS_MANAGED: Final = "alias/aws/ebs"
NOT_FOUND: Final = ("NotFoundException", "InvalidArnException")
SYMMETRIC: Final = "SYMMETRIC_DEFAULT"
# Launching an instance with an encrypted disk needs these, among others.
NEEDED: Final = ("kms:CreateGrant", "kms:GenerateDataKeyWithoutPlaintext", "kms:Decrypt")
AUTO_SCALING_PATH: Final = "/aws-service-role/autoscaling.amazonaws.com/"


@dataclass(frozen=True, kw_only=True)
class VolumeKey:
    """A KMS key; `open` says that its policy lets everybody in the account use it through EC2.

    `managed` is AWS or CUSTOMER, `state` Enabled, Disabled, PendingDeletion and others, `spec` its key spec.
    """

    arn: str
    managed: str
    state: str
    spec: str
    open: bool


def read(account: Account, key: str) -> VolumeKey | None:
    """A key by its id, alias or ARN; None where there is none."""
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
    """The account's default key for EBS; None where that is AWS's own."""
    found = str((account.call("ec2", "get_ebs_default_kms_key_id") or {}).get("KmsKeyId") or AWS_MANAGED)
    return None if found.endswith(AWS_MANAGED) else read(account, found)


def has_auto_scaling_role(account: Account) -> bool:
    """Whether the service-linked role that launches the nodes of managed node groups exists."""
    roles = account.items("iam", "list_roles", "Roles", PathPrefix=AUTO_SCALING_PATH)
    return any(role["Path"] == AUTO_SCALING_PATH for role in roles)


def judge_given(wanted: Wanted, found: VolumeKey | None) -> list[Problem]:
    """The key that the stack file gives must exist and be usable for disks."""
    name = f"'{wanted.volume_key}'"
    if found is None:
        return [Problem(key=KEY, message=f"{name} does not exist; it must be a KMS key in {wanted.region}")]
    if found.state != "Enabled":
        return [Problem(key=KEY, message=f"{name} is {found.state}; it must be Enabled")]
    if found.spec != SYMMETRIC:
        return [Problem(key=KEY, message=f"{name} is of {found.spec}; it must be {SYMMETRIC}")]
    return []


def judge_role(wanted: Wanted, exists: bool) -> list[Problem]:
    """The role that the stack grants the key to must exist: a grant to no role is refused."""
    if exists or wanted.system is None:
        return []
    message = (
        "is granted to AWSServiceRoleForAutoScaling, which launches the system nodes and does not exist yet; it must be"
        " made once: aws iam create-service-linked-role --aws-service-name autoscaling.amazonaws.com"
    )
    return [Problem(key=KEY, message=message)]


def judge_default(wanted: Wanted, found: VolumeKey | None) -> list[Problem]:
    """Without a key in the stack file, the account's default key must let Karpenter use it."""
    if found is None:
        return []
    name = f"'{found.arn}', the account's default key for EBS in {wanted.region},"
    if found.state != "Enabled":
        message = (
            f"is not set, and {name} is {found.state}, so that nodes end at launch; it must be an enabled key"
        )
        return [Problem(key=KEY, message=message)]
    if found.open:
        return []
    message = (
        f"is not set, and {name} is a customer managed key that Karpenter may not use, so that nodes would end at"
        " launch; it must be that key or another one, which the stack then grants to those who launch nodes"
    )
    return [Problem(key=KEY, message=message)]


def judge_snapshots(wanted: Wanted, keys: Mapping[str, VolumeKey | None]) -> list[Problem]:
    """A disk made of a snapshot needs the snapshot's key, too; `keys` are these, by snapshot."""
    problems = []
    for pool in wanted.pools:
        found = keys.get(pool.snapshot_id or "")
        if found is None or found.open or found.arn == wanted.volume_key:
            continue
        problems.append(
            Problem(
                key=f"{pool.key}.dataSnapshotId",
                message=f"'{pool.snapshot_id}' is encrypted with the customer managed key '{found.arn}', which"
                f" Karpenter may not use; {KEY} must be that key, or the snapshot a copy under another one",
            )
        )
    return problems


def _policy(account: Account, key: str) -> Sequence[Mapping[str, Any]]:
    answer = account.call("kms", "get_key_policy", KeyId=key, PolicyName="default")
    found = json.loads((answer or {}).get("Policy") or "{}").get("Statement", [])
    return found if isinstance(found, list) else [found]


def _is_open(statements: Sequence[Mapping[str, Any]]) -> bool:
    """Whether everybody in the account may use the key, as AWS's own key for EBS allows it."""
    return any(
        each.get("Effect") == "Allow"
        and each.get("Principal") in ("*", {"AWS": "*"}, {"AWS": ["*"]})
        and all(any(fnmatchcase(need, action) for action in _actions(each)) for need in NEEDED)
        for each in statements
    )


def _actions(statement: Mapping[str, Any]) -> list[str]:
    found = statement.get("Action", [])
    return [found] if isinstance(found, str) else list(found)
