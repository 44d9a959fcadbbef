"""The IAM roles of nodes."""

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
    """Whether nodes have the permissions of the VPC CNI. This is for a VPC CNI without its own role."""
    tags: dict[str, str]


class NodeRoles(pulumi.ComponentResource):
    """The IAM roles of nodes.

    Creates two roles for EC2 instances, with only the policies that a node needs:

    - `system`, for the managed node group;
    - `worker`, for Karpenter's nodes, with an instance profile if `instance_profile` is set.

    They are separate so that Karpenter can only pass the second one. An instance needs its role and `attachments`
    to become a node.
    """

    worker_profile_name: pulumi.Output[str] | None
    """The instance profile of the workers' role, if requested."""

    def __init__(self, name: str, args: NodeRolesArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("trainyard:identity:NodeRoles", name, None, opts)
        self._args = args
        self.attachments: list[pulumi.Resource] = []
        """The policy attachments and the instance profile, which a node needs in addition to its role."""
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
            LookupError: This stack has no system nodes.
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
