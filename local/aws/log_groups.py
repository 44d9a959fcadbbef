"""Log groups: CloudWatch Logs needs permission to use their keys, and control planes write late entries.

moto checks no key (https://docs.aws.amazon.com/AmazonCloudWatch/latest/logs/encrypt-log-data-kms.html). EKS delivers
entries for minutes after they were written, and creates the log group if it does not exist
(https://github.com/terraform-aws-modules/terraform-aws-eks/issues/2763 has such a call of EKS's own role).
"""

from __future__ import annotations

from typing import Any

from moto.logs.exceptions import ResourceNotFoundException
from moto.logs.models import LogsBackend, logs_backends
from moto.logs.responses import LogsResponse

from local.aws import keys
from local.aws.account import ACCOUNT_ID
from local.aws.ec2_utils import table
from local.aws.errors import ApiError
from local.aws.identity import lets_service

ENCRYPTION_CONTEXT = "kms:encryptioncontext:aws:logs:arn"
NEEDED = ("kms:Encrypt", "kms:Decrypt", "kms:GenerateDataKey", "kms:ReEncryptFrom", "kms:DescribeKey")


def check_key(backend: Any, log_group: str, key_arn: str) -> None:
    """Raise AccessDeniedException unless the key exists, is enabled and allows the service to use it for this group."""
    arn = f"arn:aws:logs:{backend.region_name}:{backend.account_id}:log-group:{log_group}"
    key = keys.find(backend.region_name, key_arn)
    service = f"logs.{backend.region_name}.amazonaws.com"
    context = {ENCRYPTION_CONTEXT: (arn,)}
    if (
        key is None
        or key.key_state != "Enabled"
        or not all(lets_service(key.policy, service, action, context) for action in NEEDED)
    ):
        raise ApiError(
            "AccessDeniedException",
            f"The specified KMS key does not exist or is not allowed to be used with Arn '{arn}'",
        )


def deliver_late(region: str, cluster: str) -> None:
    """Deliver the entries that a control plane wrote before its end again: now, or when its group is deleted.

    There is no delay: even a fast client that deletes the group must meet these entries.
    """
    backend: Any = logs_backends[ACCOUNT_ID][region]
    name = f"/aws/eks/{cluster}/cluster"
    if name in backend.groups:
        _late(backend)[name] = True
    else:
        backend.create_log_group(name, {})


def _late(backend: Any) -> dict[str, bool]:
    """Return the names of groups that still get entries. They are lost with their account."""
    return table(backend, "late_groups")


def install() -> None:
    """Check keys, let late entries create a group again, and add the two calls that moto lacks."""
    create, delete = LogsBackend.create_log_group, LogsBackend.delete_log_group

    def create_log_group(self: Any, log_group_name: str, tags: Any, **kwargs: Any) -> Any:
        if kwargs.get("kmsKeyId") and log_group_name not in self.groups:
            check_key(self, log_group_name, kwargs["kmsKeyId"])
        return create(self, log_group_name, tags, **kwargs)

    def delete_log_group(self: Any, log_group_name: str) -> None:
        found = self.groups.get(log_group_name)
        delete(self, log_group_name)
        # moto would add them to the next group of this name.
        self.tagger.delete_all_tags_for_resource(found.arn)
        if _late(self).pop(log_group_name, False):
            create(self, log_group_name, {})

    def group(self: Any) -> Any:
        name = self._get_param("logGroupName")
        found = self.logs_backend.groups.get(name)
        if found is None:
            raise ResourceNotFoundException()
        return found

    def associate_kms_key(self: Any) -> str:
        found, key = group(self), self._get_param("kmsKeyId")
        check_key(self.logs_backend, found.name, key)
        found.kms_key_id = key
        return ""

    def disassociate_kms_key(self: Any) -> str:
        group(self).kms_key_id = None
        return ""

    LogsBackend.create_log_group = create_log_group
    LogsBackend.delete_log_group = delete_log_group
    LogsResponse.associate_kms_key = associate_kms_key
    LogsResponse.disassociate_kms_key = disassociate_kms_key
