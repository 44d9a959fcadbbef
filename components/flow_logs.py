"""The flow logs of a VPC."""

from __future__ import annotations

import json
from dataclasses import dataclass

import pulumi
import pulumi_aws as aws

from .documents import iam

# The aggregation interval of a flow, in seconds. It is the shorter of the two that EC2 offers.
AGGREGATION_SECONDS = 60


@dataclass(frozen=True, kw_only=True)
class FlowLogsArgs:
    """The flow logs of a VPC."""

    cluster: str
    region: str
    vpc_id: pulumi.Input[str]
    key_arn: pulumi.Input[str]
    """The key of the log group. CloudWatch Logs must be allowed to use it (`documents.iam.logs_key_policy`)."""
    retention_days: int
    tags: dict[str, str]


class FlowLogs(pulumi.ComponentResource):
    """The flow logs of a VPC.

    Creates:

    - a log group, encrypted with `key_arn`, that keeps entries for `retention_days`;
    - an IAM role that only flow logs of this account and region can assume, and that can only write to that group;
    - the VPC's flow log of accepted and rejected traffic, aggregated by the minute.
    """

    def __init__(self, name: str, args: FlowLogsArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("trainyard:network:FlowLogs", name, None, opts)
        child = pulumi.ResourceOptions(parent=self)
        group = aws.cloudwatch.LogGroup(
            name,
            name=iam.flow_logs_group(args.cluster),
            retention_in_days=args.retention_days,
            kms_key_id=args.key_arn,
            tags=args.tags,
            opts=child,
        )

        def trust(key: str) -> str:
            document = iam.flow_logs_trust(
                account=iam.account_of(key), partition=iam.partition_of(key), region=args.region
            )
            return json.dumps(document)

        role = aws.iam.Role(
            name,
            description=f"Flow logs of the VPC of {args.cluster}",
            assume_role_policy=pulumi.Output.from_input(args.key_arn).apply(trust),
            tags=args.tags,
            opts=child,
        )
        granted = aws.iam.RolePolicy(
            name,
            role=role.name,
            policy=group.arn.apply(lambda arn: json.dumps(iam.flow_logs_writer(log_group_arn=arn))),
            opts=child,
        )
        aws.ec2.FlowLog(
            name,
            vpc_id=args.vpc_id,
            traffic_type="ALL",
            log_destination_type="cloud-watch-logs",
            log_destination=group.arn,
            iam_role_arn=role.arn,
            max_aggregation_interval=AGGREGATION_SECONDS,
            tags=args.tags,
            # Without its permissions, the first entries are lost.
            opts=pulumi.ResourceOptions(parent=self, depends_on=[granted]),
        )
        self.log_group_name: pulumi.Output[str] = group.name
        """The log group."""
        self.register_outputs({"logGroupName": self.log_group_name})
