"""The IAM roles that machines have."""

from __future__ import annotations

import json
from dataclasses import dataclass

import pulumi
import pulumi_aws as aws

from .documents import iam
from .documents.karpenter_iam import CNI_POLICY, NODE_ROLE_POLICIES


@dataclass(frozen=True, kw_only=True)
class NodeRolesArgs:
    """The roles of nodes."""

    prefix: str
    partition: str = "aws"
    system: bool = True
    """Whether there is a role for system nodes."""
    instance_profile: bool = False
    """Whether the workers' role gets an instance profile. Karpenter can't create one without access to IAM."""
    cni: bool = False
    """Whether nodes have the permissions of the VPC CNI, because it has no role of its own."""
    tags: dict[str, str]


class NodeRoles(pulumi.ComponentResource):
    """Afterwards there are two roles for EC2 instances, with the policies that a node needs and no others:

    - `system`, of the managed node group;
    - `worker`, of Karpenter's nodes, with an instance profile if requested.

    They are separate so that Karpenter may only pass the second one. `attachments` are what an instance needs beside
    its role to become a node.
    """

    worker_profile_name: pulumi.Output[str] | None
    """The instance profile of the workers' role, if requested."""

    def __init__(self, name: str, args: NodeRolesArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("trainyard:identity:NodeRoles", name, None, opts)
        self._args = args
        self.attachments: list[pulumi.Resource] = []
        """What a node needs beside its role."""
        self._system = self._role(f"{args.prefix}-system-node") if args.system else None
        self.worker = self._role(f"{args.prefix}-worker-node")
        """The role of Karpenter's nodes."""
        self.worker_profile_name = (
            self._profile(f"{args.prefix}-worker-node") if args.instance_profile else None
        )
        self.register_outputs(
            {
                "systemRoleArn": self._system.arn if self._system else None,
                "workerRoleArn": self.worker.arn,
                "workerProfileName": self.worker_profile_name,
            }
        )

    @property
    def system(self) -> aws.iam.Role:
        """The role of the system nodes.

        Raises:
            LookupError: there are none in this stack.
        """
        if self._system is None:
            raise LookupError("this stack makes no system nodes, so that there is no role for them")
        return self._system

    def _profile(self, name: str) -> pulumi.Output[str]:
        profile = aws.iam.InstanceProfile(
            name, role=self.worker.name, tags=self._args.tags, opts=pulumi.ResourceOptions(parent=self)
        )
        self.attachments.append(profile)
        found: pulumi.Output[str] = profile.name
        return found

    def _role(self, name: str) -> aws.iam.Role:
        child = pulumi.ResourceOptions(parent=self)
        role = aws.iam.Role(
            name,
            assume_role_policy=json.dumps(iam.service_trust("ec2.amazonaws.com")),
            tags=self._args.tags,
            opts=child,
        )
        for policy in (*NODE_ROLE_POLICIES, *((CNI_POLICY,) if self._args.cni else ())):
            self.attachments.append(
                aws.iam.RolePolicyAttachment(
                    f"{name}-{policy}",
                    role=role.name,
                    policy_arn=f"arn:{self._args.partition}:iam::aws:policy/{policy}",
                    opts=child,
                )
            )
        return role
