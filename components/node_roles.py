"""The IAM roles that machines have."""

from __future__ import annotations

import json
from dataclasses import dataclass

import pulumi
import pulumi_aws as aws

from components.shared import iam
from components.shared.karpenter_iam import NODE_ROLE_POLICIES


@dataclass(frozen=True, kw_only=True)
class NodeRolesArgs:
    """`partition` is aws, aws-cn or aws-us-gov."""

    cluster: str
    partition: str
    tags: dict[str, str]


class NodeRoles(pulumi.ComponentResource):
    """Afterwards there are two roles for EC2 machines, with the policies that a node needs and nothing of ours:

    - `system`, of the managed node group;
    - `worker`, of the machines that Karpenter buys.

    They are two, so that Karpenter can pass on the second one only.
    """

    def __init__(self, name: str, args: NodeRolesArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("trainyard:identity:NodeRoles", name, None, opts)
        self._args = args
        self.attachments: list[pulumi.Resource] = []
        self.system = self._role(f"{args.cluster}-system-node")
        self.worker = self._role(f"{args.cluster}-worker-node")
        self.register_outputs({"systemRoleArn": self.system.arn, "workerRoleArn": self.worker.arn})

    def _role(self, name: str) -> aws.iam.Role:
        child = pulumi.ResourceOptions(parent=self)
        role = aws.iam.Role(
            name,
            assume_role_policy=json.dumps(iam.service_trust("ec2.amazonaws.com")),
            tags=self._args.tags,
            opts=child,
        )
        for policy in NODE_ROLE_POLICIES:
            self.attachments.append(
                aws.iam.RolePolicyAttachment(
                    f"{name}-{policy}",
                    role=role.name,
                    policy_arn=f"arn:{self._args.partition}:iam::aws:policy/{policy}",
                    opts=child,
                )
            )
        return role
