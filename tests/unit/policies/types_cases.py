"""Types that nobody judges, which must not pass."""

from __future__ import annotations

from tests.unit.policies.building import Cases, made
from trainyard.policies.known_types import NOTHING_TO_JUDGE

CASES: dict[str, Cases] = {
    "type-is-judged": Cases(
        rejects=[
            made(type_)
            for type_ in (
                "aws:ec2/defaultRouteTable:DefaultRouteTable",
                "aws:ec2/instance:Instance",
                "aws:ec2/mainRouteTableAssociation:MainRouteTableAssociation",
                "aws:ec2/managedPrefixList:ManagedPrefixList",
                "aws:ecr/registryPolicy:RegistryPolicy",
                "aws:iam/rolePolicyAttachmentsExclusive:RolePolicyAttachmentsExclusive",
                "aws:kms/keyPolicy:KeyPolicy",
                "aws:s3/bucketObjectv2:BucketObjectv2",
                "aws:s3/bucketV2:BucketV2",
                "command:local:Command",
                "kubernetes:apps/v1:DaemonSetPatch",
                "kubernetes:apps/v1:ReplicaSet",
                "kubernetes:batch/v1:JobPatch",
                "kubernetes:core/v1:PodPatch",
                "kubernetes:core/v1:PodTemplate",
                "kubernetes:core/v1:ReplicationController",
                "kubernetes:rbac.authorization.k8s.io/v1:ClusterRoleBindingPatch",
                "kubernetes:rbac.authorization.k8s.io/v1:ClusterRolePatch",
                "kubernetes:rbac.authorization.k8s.io/v1beta1:ClusterRole",
            )
        ],
        accepts=[
            *(made(type_) for type_ in sorted(NOTHING_TO_JUDGE)),
            made("aws:ec2/vpc:Vpc"),
            made("eks:index:Cluster"),
            made("pulumi:providers:aws"),
            made("pulumi:pulumi:Stack"),
            made("trainyard:cluster:Cluster"),
        ],
    ),
}
