"""The IAM roles that machines have."""

from __future__ import annotations

import json
from dataclasses import dataclass

import pulumi
import pulumi_aws as aws

from components.documents import iam
from components.documents.karpenter_iam import CNI_POLICY, NODE_ROLE_POLICIES


@dataclass(frozen=True, kw_only=True)
class NodeRolesArgs:
    """`prefix` is what the roles' names begin with, `partition` is aws, aws-cn or aws-us-gov.

    `system`: whether the stack makes system nodes, which need a role. `instance_profile`: whether the workers' role
    gets an instance profile; a Karpenter that can't reach IAM (there is no endpoint for it) can't make one. `cni`:
    the nodes have the permissions of the VPC CNI, which has no role of its own.
    """

    prefix: str
    partition: str
    system: bool = True
    instance_profile: bool = False
    cni: bool = False
    tags: dict[str, str]


class NodeRoles(pulumi.ComponentResource):
    """Afterwards there are two roles for EC2 instances, with the policies that a node needs and no others:

    - `system`, of the managed node group;
    - `worker`, of Karpenter's nodes, with an instance profile if requested.

    They are separate so that Karpenter may only pass the second one. `attachments` are what an instance needs beside
    its role to become a node.
    """

    worker_profile_name: pulumi.Output[str] | None

    def __init__(self, name: str, args: NodeRolesArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("trainyard:identity:NodeRoles", name, None, opts)
        self._args = args
        self.attachments: list[pulumi.Resource] = []
        self._system = self._role(f"{args.prefix}-system-node") if args.system else None
        self.worker = self._role(f"{args.prefix}-worker-node")
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
