"""Names of the log groups of a cluster, and who may write and encrypt them. Pure: texts in, mappings out."""

from __future__ import annotations

from components.documents.iam import JsonObject, document, key_policy

# The same in every partition (https://docs.aws.amazon.com/vpc/latest/userguide/flow-logs-iam-role.html).
FLOW_LOGS_SERVICE = "vpc-flow-logs.amazonaws.com"


def control_plane_group(cluster: str) -> str:
    """The group that EKS writes a control plane's logs to; the name is fixed by the service.

    https://docs.aws.amazon.com/eks/latest/userguide/control-plane-logs.html
    """
    return f"/aws/eks/{cluster}/cluster"


def flow_logs_group(cluster: str) -> str:
    """The group of the flow logs of a cluster's VPC."""
    return f"/aws/vpc/{cluster}/flow-logs"


def logs_service(region: str) -> str:
    """CloudWatch Logs as a principal: one per region."""
    suffix = "amazonaws.com.cn" if region.startswith("cn-") else "amazonaws.com"
    return f"logs.{region}.{suffix}"


def logs_key_policy(*, account: str, partition: str, region: str, log_groups: tuple[str, ...]) -> JsonObject:
    """Policy of the key of log groups: the account's policies decide, and CloudWatch Logs may use it for these groups.

    The encryption context binds the service to the groups by name, so that nobody's other group can be encrypted
    with it (https://docs.aws.amazon.com/AmazonCloudWatch/latest/logs/encrypt-log-data-kms.html).
    """
    arns = [f"arn:{partition}:logs:{region}:{account}:log-group:{name}" for name in log_groups]
    account_decides = key_policy(account=account, partition=partition)["Statement"][0]
    return document(
        account_decides,
        {
            "Sid": "LetCloudWatchLogsEncryptTheseGroups",
            "Effect": "Allow",
            "Principal": {"Service": logs_service(region)},
            "Action": [
                "kms:Decrypt*",
                "kms:Describe*",
                "kms:Encrypt*",
                "kms:GenerateDataKey*",
                "kms:ReEncrypt*",
            ],
            "Resource": "*",
            "Condition": {"ArnEquals": {"kms:EncryptionContext:aws:logs:arn": arns}},
        },
    )


def flow_logs_trust(*, account: str, partition: str, region: str) -> JsonObject:
    """Trust of a role that flow logs alone may take, and only for flow logs of this account and region.

    Without the conditions another account's flow log could be pointed at the role (the confused deputy,
    https://docs.aws.amazon.com/vpc/latest/userguide/flow-logs-iam-role.html).
    """
    return document(
        {
            "Sid": "AllowFlowLogsOfThisAccount",
            "Effect": "Allow",
            "Action": "sts:AssumeRole",
            "Principal": {"Service": FLOW_LOGS_SERVICE},
            "Condition": {
                "StringEquals": {"aws:SourceAccount": account},
                "ArnLike": {"aws:SourceArn": f"arn:{partition}:ec2:{region}:{account}:vpc-flow-log/*"},
            },
        }
    )


def flow_logs_writer(*, log_group_arn: str) -> JsonObject:
    """What that role may do: write to one group.

    It may not make the group: flow logs deliver for some minutes after they were deleted, and would make it anew,
    outside of any stack.
    """
    parts = log_group_arn.removesuffix(":*").split(":")
    groups = ":".join(parts[:6])
    return document(
        {
            "Sid": "WriteToOneGroup",
            "Effect": "Allow",
            "Action": ["logs:CreateLogStream", "logs:DescribeLogStreams", "logs:PutLogEvents"],
            "Resource": f"{':'.join(parts)}:*",
        },
        {
            "Sid": "FindTheGroup",
            "Effect": "Allow",
            "Action": "logs:DescribeLogGroups",
            "Resource": f"{groups}:*",
        },
    )
