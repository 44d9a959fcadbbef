"""Flow logs: the service must be able to assume the role, and missing permissions show as a failed delivery.

moto accepts any role, and marks every delivery to a log group that is named by its ARN as failed.
https://docs.aws.amazon.com/vpc/latest/userguide/flow-logs-iam-role.html
"""

from __future__ import annotations

from typing import Any

from moto.ec2.models.flow_logs import FlowLogsBackend
from moto.logs.models import logs_backends

from local.aws.errors import ApiError
from local.aws.identity import lets_service, role_for, role_grants

SERVICE = "vpc-flow-logs.amazonaws.com"
ON_STREAMS = ("logs:CreateLogStream", "logs:DescribeLogStreams", "logs:PutLogEvents")


def check_role(backend: Any, arn: str | None) -> Any:
    """Return the role.

    Raises:
        InvalidParameter: Flow logs of this account and region can't assume it.
    """
    role = role_for(arn)
    source = f"arn:aws:ec2:{backend.region_name}:{backend.account_id}:vpc-flow-log/fl-0123456789abcdef0"
    context = {"aws:sourceaccount": (str(backend.account_id),), "aws:sourcearn": (source,)}
    if role is None or not lets_service(role.assume_role_policy_document, SERVICE, "sts:AssumeRole", context):
        raise ApiError("InvalidParameter", f"Unable to assume given IAM role: '{arn}'")
    return role


def delivers(backend: Any, role: Any, group_arn: str) -> bool:
    """Return whether the log group exists and the role may find it and write to it."""
    arn = group_arn.removesuffix(":*")
    head, _, name = arn.partition(":log-group:")
    if name not in logs_backends[backend.account_id][backend.region_name].groups:
        return False
    streams = all(role_grants(role, action, f"{arn}:log-stream:eni-1-all") for action in ON_STREAMS)
    # A listing names no group. The policy is evaluated for this resource then.
    return streams and role_grants(role, "logs:DescribeLogGroups", f"{head}:log-group::log-stream:")


def install() -> None:
    """Wrap the creation."""
    create = FlowLogsBackend.create_flow_logs

    def create_flow_logs(self: Any, **kwargs: Any) -> Any:
        role_arn = kwargs.get("deliver_logs_permission_arn")
        role = check_role(self, role_arn) if role_arn else None
        made, errors = create(self, **kwargs)
        for log in made if role is not None else []:
            good = delivers(self, role, kwargs["log_destination"])
            log.deliver_logs_status = "SUCCESS" if good else "FAILED"
            log.deliver_logs_error_message = None if good else "Access error"
        return made, errors

    FlowLogsBackend.create_flow_logs = create_flow_logs
