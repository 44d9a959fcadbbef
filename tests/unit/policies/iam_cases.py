"""Fixtures of the rules for IAM. Accepted documents are those of the program where it has one."""

from __future__ import annotations

from typing import Any

from components.documents import iam, karpenter_iam
from components.documents.account import Account
from tests.unit.policies.building import Case, Cases, document, made
from trainyard.policies.cluster import QUEUE_POLICY
from trainyard.policies.iam import NODE_POLICIES
from trainyard.policies.iam import PROVIDER as AWS_PROVIDER
from trainyard.policies.iam_documents import ATTACHMENT, POLICY, ROLE, ROLE_POLICY
from trainyard.policies.model import Resource
from trainyard.policies.pods import TORCHRUN_QUEUE
from trainyard.policies.storage import BUCKET_POLICY

KEY, ACCESS_ENTRY = "aws:kms/key:Key", "aws:eks/accessEntry:AccessEntry"
ISSUER = "oidc.eks.us-west-2.amazonaws.com/id/AB"
PROVIDER = f"arn:aws:iam::123456789012:oidc-provider/{ISSUER}"
SCOPE = karpenter_iam.Scope(
    account=Account(id="123456789012", region="us-west-2"),
    cluster="test",
    node_role_arn="arn:aws:iam::123456789012:role/worker",
    queue_arn="arn:aws:sqs:us-west-2:123456789012:test",
)
IN_REGION = {"StringEquals": {"aws:RequestedRegion": "us-west-2"}}


def role_of(namespace: str, account: str, name: str = "role") -> Resource:
    trust = iam.service_account_trust(provider_arn=PROVIDER, namespace=namespace, service_account=account)
    return made(ROLE, name, assumeRolePolicy=document(*trust["Statement"]))


def trusting(operator: str = "StringEquals", **conditions: Any) -> Resource:
    statement = {
        "Principal": {"Federated": PROVIDER},
        "Action": "sts:AssumeRoleWithWebIdentity",
        "Condition": {operator: {f"{ISSUER}:{key}": value for key, value in conditions.items()}},
    }
    return made(ROLE, assumeRolePolicy=document(statement))


def role_for(**principal: Any) -> Resource:
    return made(ROLE, assumeRolePolicy=document({"Principal": principal, "Action": "sts:AssumeRole"}))


def key(principal: Any) -> Case:
    """A key whose policy allows one principal, in a stack whose account is known."""
    statement = {"Principal": principal, "Action": "kms:*", "Resource": "*"}
    return made(KEY, policy=document(statement)), OWN_PROVIDER


def access_entry(account: str) -> Case:
    return made(ACCESS_ENTRY, principalArn=f"arn:aws:iam::{account}:role/x"), OWN_PROVIDER


OWN_PROVIDER = made(AWS_PROVIDER, allowedAccountIds='["123456789012"]')
NODE = made(ROLE, "node", **role_for(Service="ec2.amazonaws.com").properties)
EVERYTHING = (
    "**",
    "arn:*",
    "arn:aws:*:*:*:*",
    "arn:aws:secretsmanager:*:*:*",
    "arn:aws:secretsmanager:r:1:s*:a",
)
VOLUMES = "arn:aws:ec2:r:1:volume/*"
TO_EC2 = {"iam:PassedToService": "ec2.amazonaws.com"}
LISTING = {"Action": "s3:ListBucket", "Resource": "arn:aws:s3:::b"}
TERMINATING = {"Action": "ec2:TerminateInstances", "Resource": "arn:aws:ec2:r:*:instance/*"}
REFUSED_ACTIONS = (
    "s3:*",
    "s3:Get*",
    "*",
    "iam:AttachRolePolicy",
    "iam:createaccesskey",
    "iam:UpdateAssumeRolePolicy",
    "s3:putBucketPolicy",
    "s3:ReplicateDelete",
    "s3:PutObjectAcl",
    "s3:BypassGovernanceRetention",
    "s3:PutReplicationConfiguration",
    "fsx:DeleteFileSystem",
    "ecr:BatchDeleteImage",
    "kms:ScheduleKeyDeletion",
    "kms:PutKeyPolicy",
)


def policy(action: Any, target: Any = "arn:aws:s3:::b/p/*", **more: Any) -> Resource:
    return made(POLICY, policy=document({"Action": action, "Resource": target, **more}))


def holding(role: Resource, *statements: dict[str, Any]) -> Case:
    """A role with one attached policy."""
    held = made(POLICY, "held", policy=document(*statements))
    return (role, held, made(ATTACHMENT, "held", of={"role": role, "policyArn": held}))


def attached(role: Resource, policy: str) -> Case:
    """A role with a policy whose document the stack does not have."""
    return role, made(ATTACHMENT, policy, of={"role": role}, policyArn=f"arn:aws:iam::aws:policy/{policy}")


def queue_of(action: str, target: str, account: str = "trainer") -> Case:
    """A queue whose workspaces lie in the bucket `code`, and what the trainer's role may do."""
    queue = made(
        TORCHRUN_QUEUE,
        "queue",
        metadata={"name": "q", "namespace": "training"},
        spec={
            "storage": {"workspace": {"bucket": "s3://code/torchrun"}},
            "podTemplate": {"spec": {"serviceAccountName": account}},
        },
    )
    role, *rest = holding(role_of("training", "trainer"), {"Action": action, "Resource": target})
    return (queue, role, *rest)


TRAINER = role_of("training", "trainer")
KARPENTER = role_of("kube-system", "karpenter")
ANOTHER = role_of("training", "launcher")
MODELS = iam.model_writer(
    bucket_arn="arn:aws:s3:::b", prefix="models", key_arn="arn:aws:kms:::key/k", checkpoints="checkpoints"
)["Statement"]
CONTROLLER = [
    statement
    for build in karpenter_iam.CONTROLLER_POLICIES.values()
    for statement in build(SCOPE)["Statement"]
]
SUBJECT = "system:serviceaccount:training:trainer"

CASES: dict[str, Cases] = {
    "principals-named": Cases(
        rejects=[
            key({"AWS": "arn:aws:iam::999999999999:root"}),
            key({"AWS": "999999999999"}),
            key({"AWS": "*"}),
            key("*"),
            key({"Service": "*.amazonaws.com"}),
            key({"Federated": "arn:aws:iam::999999999999:oidc-provider/i"}),
            (made(KEY, policy=document({"NotPrincipal": {"AWS": "1"}, "Action": "kms:*"})), OWN_PROVIDER),
            (role_for(AWS="arn:aws:iam::123456789012:role/*"), OWN_PROVIDER),
            (
                made(BUCKET_POLICY, policy=document({"Principal": "*", "Action": "s3:GetObject"})),
                OWN_PROVIDER,
            ),
            access_entry("999999999999"),
            # No provider says which account is the stack's own.
            (made(KEY, policy=document({"Principal": {"AWS": "123456789012"}})), made(AWS_PROVIDER)),
            # A document that can't be read does not pass.
            made(KEY, policy="{not json"),
            made(QUEUE_POLICY, policy={"Statement": ["x"]}),
        ],
        accepts=[
            key({"AWS": "arn:aws:iam::123456789012:root"}),
            key({"AWS": "123456789012"}),
            key({"Service": "fsx.amazonaws.com"}),
            (TRAINER, made(AWS_PROVIDER, allowedAccountIds=["123456789012"])),
            (made(BUCKET_POLICY, policy=document(*iam.bucket_tls_only("arn:aws:s3:::b")["Statement"])),),
            made(KEY),
            access_entry("123456789012"),
        ],
    ),
    "trust-one-subject": Cases(
        rejects=[
            trusting(sub=SUBJECT),
            trusting(aud="sts.amazonaws.com"),
            trusting(sub=[SUBJECT, "system:serviceaccount:a:b"], aud="sts.amazonaws.com"),
            trusting(sub="system:serviceaccount:training:*", aud="sts.amazonaws.com"),
            trusting(sub="system:node:a", aud="sts.amazonaws.com"),
            trusting("StringLike", sub=SUBJECT, aud="sts.amazonaws.com"),
            role_for(AWS="arn:aws:iam::123456789012:root"),
            role_for(AWS="123456789012"),
            role_for(AWS="arn:aws:iam::123456789012:user/one"),
        ],
        accepts=[TRAINER, NODE, role_for(AWS="arn:aws:iam::123456789012:role/one")],
    ),
    "aws-policies-listed": Cases(
        rejects=[
            made(ATTACHMENT, policyArn=f"arn:{partition}:iam::aws:policy/{name}")
            for partition, name in (
                ("aws", "AmazonS3FullAccess"),
                ("aws", "SecretsManagerReadWrite"),
                ("aws-cn", "job-function/SystemAdministrator"),
            )
        ],
        accepts=[
            made(ATTACHMENT, policyArn="arn:aws:iam::aws:policy/AmazonEKSClusterPolicy"),
            made(ATTACHMENT, policyArn="arn:aws:iam::123456789012:policy/test-karpenter"),
        ],
    ),
    "node-role-narrow": Cases(
        rejects=[
            attached(NODE, "AmazonSSMManagedInstanceCore"),
            (NODE, made(ROLE_POLICY, "own", of={"role": NODE})),
            holding(NODE, LISTING),
        ],
        accepts=[
            (NODE, *(attached(NODE, policy)[1] for policy in NODE_POLICIES)),
            attached(role_for(Service="eks.amazonaws.com"), "AmazonEKSClusterPolicy"),
        ],
    ),
    "iam-actions-listed": Cases(
        rejects=[
            *(policy(action) for action in REFUSED_ACTIONS),
            made(POLICY, policy=document({"NotAction": "iam:*", "Resource": "*"})),
            made(ROLE_POLICY, policy=document({"Action": "fsx:*", "Resource": "*"})),
        ],
        accepts=[
            policy(["s3:GetObject", "s3:DeleteObject", "sqs:DeleteMessage"]),
            policy("s3:*", Effect="Deny"),
            made(POLICY, policy=document(*CONTROLLER)),
            made(POLICY, policy=document(*MODELS)),
        ],
    ),
    "iam-resources-named": Cases(
        rejects=[
            policy(["ec2:DescribeSubnets", "ec2:CreateTags"], "*", Condition=IN_REGION),
            made(POLICY, policy=document({"Action": "s3:GetObject", "NotResource": "arn:aws:s3:::b/*"})),
            made(POLICY, policy=document({"Action": "s3:GetObject"})),
            *(policy("secretsmanager:GetSecretValue", target) for target in EVERYTHING),
            policy("secretsmanager:GetSecretValue", "arn:aws:secretsmanager:r:1:secret:*"),
            policy("ec2:DescribeSubnets", "*"),
            policy("ec2:DescribeSubnets", "*", Condition={"StringNotEquals": {"aws:RequestedRegion": "r"}}),
            policy("ec2:DeleteVolume", VOLUMES),
            *(
                policy("ec2:DeleteVolume", VOLUMES, Condition={operator: {"aws:ResourceTag/a": value}})
                for operator, value in (("StringNotEquals", "b"), ("Null", "true"), ("StringLike", "*"))
            ),
        ],
        accepts=[
            policy("s3:GetObject"),
            policy("ec2:DescribeSubnets", "*", Condition={"StringEquals": {"AWS:requestedregion": "r"}}),
            policy("ec2:DeleteVolume", VOLUMES, Condition={"StringEquals": {"aws:ResourceTag/a": "b"}}),
            policy(
                "ec2:CreateTags", VOLUMES, Condition={"StringEquals": {"ec2:CreateAction": "CreateVolume"}}
            ),
            policy("ssm:GetParameter", "arn:aws:ssm:r::parameter/aws/service/*"),
            policy("pricing:GetProducts", "*"),
            made(POLICY, policy=document(*CONTROLLER)),
        ],
    ),
    "iam-roles-named": Cases(
        rejects=[
            policy("iam:PassRole", "arn:aws:iam::1:role/*", Condition={"StringEquals": TO_EC2}),
            policy("iam:passrole", "arn:aws:iam::1:role/?????", Condition={"StringEquals": TO_EC2}),
            policy("iam:PassRole", "arn:aws:iam::1:role/a"),
            *(
                policy(
                    "iam:PassRole", "arn:aws:iam::1:role/a", Condition={operator: {"iam:PassedToService": to}}
                )
                for operator, to in (
                    ("StringEquals", "ec2.amazonaws.com.example"),
                    ("StringNotEquals", "ec2.amazonaws.com"),
                    ("StringEqualsIfExists", "ec2.amazonaws.com"),
                    ("ForAllValues:StringEquals", "ec2.amazonaws.com"),
                )
            ),
            policy("sts:AssumeRole", "arn:aws:iam::1:role/admin-?"),
            policy("STS:AssumeRoleWithWebIdentity", "*"),
        ],
        accepts=[
            policy("sts:AssumeRole", "arn:aws:iam::1:role/one"),
            made(POLICY, policy=document(*CONTROLLER)),
        ],
    ),
    "iam-data-kept": Cases(
        rejects=[
            policy("kms:CreateGrant", "arn:aws:kms:r:1:key/k"),
            policy("s3:GetObject", "arn:aws:s3:::b?/*"),
            policy("S3:getobject", "**"),
            policy("s3:GetObject", "arn:aws:s3:::*"),
            policy("s3:DeleteObject"),
            policy("s3:DeleteO*", "arn:aws:s3:::b/check*/*"),
            policy("s3:DeleteObject", "arn:aws:s3:::b/*/checkpoints/*"),
        ],
        accepts=[
            policy("s3:GetObject"),
            policy("s3:DeleteObject", "arn:aws:s3:::b/checkpoints/*"),
            made(POLICY, policy=document(*MODELS)),
            policy(
                "kms:CreateGrant",
                "arn:aws:kms:r:1:key/k",
                Condition={"Bool": {"kms:GrantIsForAWSResource": "true"}},
            ),
        ],
    ),
    "trainer-role-narrow": Cases(
        rejects=[
            holding(TRAINER, {"Action": "s3:DeleteObjectVersion", "Resource": "arn:aws:s3:::b/p/*"}),
            *(
                holding(TRAINER, {"Action": "s3:PutObject", "Resource": f"arn:aws:s3:::b/{path}"})
                for path in ("*", "*/*", "?odels/*")
            ),
            holding(TRAINER, {"Action": "kms:Decrypt", "Resource": "*"}),
            holding(TRAINER, LISTING),
            *(
                holding(TRAINER, {**LISTING, "Condition": {operator: {"s3:prefix": prefix}}})
                for operator, prefix in (
                    ("StringLike", ["models/*", "*"]),
                    ("StringLike", ""),
                    ("StringNotEquals", "x"),
                    ("StringLikeIfExists", "models/*"),
                )
            ),
            attached(TRAINER, "ReadOnlyAccess"),
        ],
        accepts=[
            holding(TRAINER, *MODELS),
            holding(ANOTHER, {"Action": "s3:PutObject", "Resource": "arn:aws:s3:::b/*"}),
        ],
    ),
    "karpenter-changes-its-own": Cases(
        rejects=[
            holding(KARPENTER, TERMINATING),
            holding(KARPENTER, {"Action": "ec2:CreateTags", "Resource": "arn:aws:ec2:r::image/*"}),
            holding(KARPENTER, {"Action": "ec2:CreateTags", "Resource": "arn:aws:ec2:r:1:instance/i-?"}),
            attached(KARPENTER, "ReadOnlyAccess"),
            *(
                holding(KARPENTER, {**TERMINATING, "Condition": condition})
                for condition in (
                    {"StringNotEquals": {"aws:ResourceTag/kubernetes.io/cluster/test": "x"}},
                    {"Null": {"aws:ResourceTag/kubernetes.io/cluster/test": "true"}},
                    {"StringLike": {"aws:ResourceTag/kubernetes.io/cluster/test": "*"}},
                    {"StringEquals": {"aws:ResourceTag/Name": "x"}},
                )
            ),
        ],
        accepts=[holding(KARPENTER, *CONTROLLER), holding(ANOTHER, TERMINATING)],
    ),
    "workspaces-not-written-by-pods": Cases(
        rejects=[
            queue_of(action, target)
            for action in ("s3:PutObject", "s3:*")
            for target in ("*", "arn:aws:s3:::code/*", "arn:aws:s3:::code/torchrun/workspaces/training/*")
        ],
        accepts=[
            queue_of("s3:PutObject", "arn:aws:s3:::code/models/*"),
            queue_of("s3:GetObject", "arn:aws:s3:::code/*"),
            queue_of("s3:PutObject", "*", account="another"),
            (made(TORCHRUN_QUEUE, spec={}), *queue_of("s3:PutObject", "*")),
        ],
    ),
}
