"""What the rules of IAM must reject and accept; the accepted documents are the program's own where it has one."""

from __future__ import annotations

from typing import Any

from components.documents import iam, karpenter_iam
from tests.unit.policies.building import Case, Cases, document, made
from trainyard.policies.accounts import PROVIDER as AWS_PROVIDER
from trainyard.policies.documents import ATTACHMENT, POLICY, POLICY_ATTACHMENT, ROLE, ROLE_POLICY, STANDING
from trainyard.policies.model import UNKNOWN, Resource
from trainyard.policies.pods import TORCHRUN_QUEUE
from trainyard.policies.principals import ACCESS_ENTRY, ACCESS_POLICY, GRANT
from trainyard.policies.registry import REPOSITORY_POLICY
from trainyard.policies.storage import BUCKET_POLICY, KEY

ISSUER = "oidc.eks.us-west-2.amazonaws.com/id/AB"
PROVIDER = f"arn:aws:iam::123456789012:oidc-provider/{ISSUER}"
SCOPE = karpenter_iam.Scope(
    partition="aws",
    region="us-west-2",
    account="123456789012",
    cluster="test",
    node_role_arn="arn:aws:iam::123456789012:role/worker",
    queue_arn="arn:aws:sqs:us-west-2:123456789012:test",
)
IN_REGION = {"StringEquals": {"aws:RequestedRegion": "us-west-2"}}


def role_of(namespace: str, account: str, name: str = "role") -> Resource:
    trust = iam.service_account_trust(
        provider_arn=PROVIDER, issuer=ISSUER, namespace=namespace, service_account=account
    )
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


def keyed(principal: str) -> Resource:
    """A key whose policy names one principal."""
    return made(KEY, policy=document({"Principal": {"AWS": principal}, "Action": "kms:*", "Resource": "*"}))


OWN_PROVIDER = made(AWS_PROVIDER, allowedAccountIds='["123456789012"]')
MACHINE = role_for(Service="ec2.amazonaws.com")
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
OPENING_DATA = (
    "s3:deleteobject",
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


def given(role: Resource) -> Case:
    """A role with a policy whose document the stack does not have."""
    return (
        role,
        made(ATTACHMENT, "given", of={"role": role}, policyArn="arn:aws:iam::aws:policy/ReadOnlyAccess"),
    )


def with_own(role: Resource, **more: Any) -> Resource:
    """A role whose resource has policies itself."""
    return made(ROLE, role.name, **{**role.properties, **more})


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


INLINE = {"inlinePolicies": [{"name": "own", "policy": "{}"}]}
LISTED = {"managedPolicyArns": ["arn:aws:iam::aws:policy/AdministratorAccess"]}

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
    "identities-are-roles": Cases(
        rejects=[made(kind, userName="admin") for kind in STANDING], accepts=[TRAINER, MACHINE]
    ),
    "role-rights-are-resources": Cases(
        rejects=[
            with_own(TRAINER, **INLINE),
            with_own(TRAINER, **LISTED),
            with_own(TRAINER, inlinePolicies=UNKNOWN),
            made(POLICY_ATTACHMENT, roles=["trainer"], policyArn="arn:aws:iam::1:policy/a"),
        ],
        accepts=[TRAINER, with_own(TRAINER, inlinePolicies=[], managedPolicyArns=[])],
    ),
    "trust-one-service-account": Cases(
        rejects=[
            trusting(sub=SUBJECT),
            trusting(aud="sts.amazonaws.com"),
            trusting(sub=[SUBJECT, "system:serviceaccount:a:b"], aud="sts.amazonaws.com"),
            trusting(sub="system:serviceaccount:training:*", aud="sts.amazonaws.com"),
            trusting("StringLike", sub=SUBJECT, aud="sts.amazonaws.com"),
        ],
        accepts=[TRAINER, role_for(Service="ec2.amazonaws.com")],
    ),
    "one-role-per-service-account": Cases(
        rejects=[(role_of("training", "trainer", "second"), role_of("training", "trainer", "first"))],
        accepts=[(TRAINER, KARPENTER, ANOTHER)],
    ),
    "trust-not-anybody": Cases(
        rejects=[
            role_for(AWS="*"),
            role_for(AWS="arn:aws:iam::123456789012:root"),
            role_for(AWS="123456789012"),
            role_for(AWS="arn:aws:iam::123456789012:user/one"),
            role_for(AWS="arn:aws:iam::123456789012:role/*"),
            role_for(Service="*"),
            role_for(Service=["ec2.amazonaws.com", "*.amazonaws.com"]),
            role_for(Federated="*"),
            made(
                ROLE,
                assumeRolePolicy=document(
                    {"NotPrincipal": {"AWS": "arn:aws:iam::1:root"}, "Action": "sts:AssumeRole"}
                ),
            ),
        ],
        accepts=[role_for(Service="eks.amazonaws.com"), role_for(AWS="arn:aws:iam::123456789012:role/one")],
    ),
    "role-no-full-access": Cases(
        rejects=[
            made(ATTACHMENT, policyArn="arn:aws:iam::aws:policy/AmazonS3FullAccess"),
            made(ATTACHMENT, policyArn="arn:aws:iam::aws:policy/AdministratorAccess"),
            made(ATTACHMENT, policyArn="arn:aws:iam::aws:policy/IAMFullAccess"),
            made(ATTACHMENT, policyArn="arn:aws:iam::aws:policy/AdministratorAccess-Amplify"),
            made(ATTACHMENT, policyArn="arn:aws:iam::aws:policy/SecretsManagerReadWrite"),
            made(ATTACHMENT, policyArn="arn:aws-cn:iam::aws:policy/job-function/SystemAdministrator"),
        ],
        accepts=[
            made(ATTACHMENT, policyArn="arn:aws:iam::aws:policy/AmazonEKSWorkerNodePolicy"),
            made(ATTACHMENT, policyArn="arn:aws:iam::aws:policy/AmazonEKSClusterPolicy"),
            made(ATTACHMENT, policyArn="arn:aws:iam::123456789012:policy/test-karpenter"),
        ],
    ),
    "iam-no-wildcard-action": Cases(
        rejects=[
            policy("*"),
            policy(["s3:GetObject", "s3:*"]),
            policy("s3:Get*"),
            made(POLICY, policy=document({"NotAction": "iam:*", "Resource": "*"})),
            made(ROLE_POLICY, policy=document({"Action": "fsx:*", "Resource": "*"})),
        ],
        accepts=[policy("s3:GetObject"), policy("s3:*", Effect="Deny")],
    ),
    "iam-no-wildcard-resource": Cases(
        rejects=[
            policy("s3:GetObject", "*"),
            policy("ec2:DescribeSubnets", "*"),
            policy(["ec2:DescribeSubnets", "ec2:CreateTags"], "*", Condition=IN_REGION),
            made(POLICY, policy=document({"Action": "s3:GetObject", "NotResource": "arn:aws:s3:::b/*"})),
            made(POLICY, policy=document({"Action": "s3:GetObject"})),
            *(policy("secretsmanager:GetSecretValue", target) for target in EVERYTHING),
            policy("ec2:DescribeSubnets", "**"),
            policy("ec2:DescribeSubnets", "*", Condition={"StringNotEquals": {"aws:RequestedRegion": "r"}}),
            policy(
                "ec2:DescribeSubnets", "*", Condition={"StringEqualsIfExists": {"aws:RequestedRegion": "r"}}
            ),
            policy("secretsmanager:GetSecretValue", "arn:aws:secretsmanager:r:1:secret:*"),
            policy("ec2:DeleteVolume", VOLUMES),
            policy("ec2:DeleteVolume", VOLUMES, Condition={"StringNotEquals": {"aws:ResourceTag/a": "b"}}),
            policy("ec2:DeleteVolume", VOLUMES, Condition={"Null": {"aws:ResourceTag/a": "true"}}),
            policy("ec2:DeleteVolume", VOLUMES, Condition={"StringLike": {"aws:ResourceTag/a": "*"}}),
        ],
        accepts=[
            policy("ec2:DescribeSubnets", "*", Condition={"StringEquals": {"AWS:requestedregion": "r"}}),
            policy("ec2:DeleteVolume", VOLUMES, Condition={"StringEquals": {"aws:ResourceTag/a": "b"}}),
            policy(
                "ec2:CreateTags", VOLUMES, Condition={"StringEquals": {"ec2:CreateAction": "CreateVolume"}}
            ),
            policy("ssm:GetParameter", "arn:aws:ssm:r::parameter/aws/service/*"),
            made(POLICY, policy=document(*CONTROLLER)),
            policy("s3:GetObject"),
            policy("ec2:DescribeSubnets", "*", Condition=IN_REGION),
            policy("pricing:GetProducts", "*"),
        ],
    ),
    "workspaces-not-written-by-pods": Cases(
        rejects=[
            queue_of(action, target)
            for action in ("s3:PutObject", "s3:*")
            for target in ("*", "arn:aws:s3:::code/*", "arn:aws:s3:::code/torchrun/workspaces/training/*")
        ],
        accepts=[
            queue_of("s3:PutObject", "arn:aws:s3:::code/models/*"),
            queue_of("s3:PutObject", "arn:aws:s3:::another/*"),
            queue_of("s3:GetObject", "arn:aws:s3:::code/*"),
            queue_of("s3:PutObject", "*", account="another"),
        ],
    ),
    "pass-role-bounded": Cases(
        rejects=[
            policy(
                "iam:PassRole",
                "arn:aws:iam::1:role/*",
                Condition={"StringEquals": {"iam:PassedToService": "ec2.amazonaws.com"}},
            ),
            policy("iam:PassRole", "arn:aws:iam::1:role/a"),
            policy(
                "iam:*",
                "arn:aws:iam::1:role/a",
                Condition={"StringEquals": {"iam:PassedToService": "lambda.amazonaws.com"}},
            ),
            *(
                policy("iam:PassRole", "arn:aws:iam::1:role/a", Condition={operator: TO_EC2})
                for operator in ("StringNotEquals", "StringEqualsIfExists", "ForAllValues:StringEquals")
            ),
            policy("iam:passrole", "arn:aws:iam::1:role/?????", Condition={"StringEquals": TO_EC2}),
            policy(
                "iam:PassRole",
                "arn:aws:iam::1:role/a",
                Condition={"StringEquals": {"iam:PassedToService": "ec2.amazonaws.com.example"}},
            ),
        ],
        accepts=[made(POLICY, policy=document(*karpenter_iam.iam_integration(SCOPE)["Statement"]))],
    ),
    "iam-no-escalation": Cases(
        rejects=[
            policy("iam:AttachRolePolicy", "arn:aws:iam::*:role/*"),
            policy("iam:PutRolePolicy", "arn:aws:iam::1:role/a"),
            policy("iam:createaccesskey", "arn:aws:iam::1:user/a"),
            policy("iam:UpdateAssumeRolePolicy", "arn:aws:iam::1:role/?????"),
            policy("iam:*", "arn:aws:iam::1:role/a"),
            policy("sts:AssumeRole", "arn:aws:iam::*:role/*"),
            policy("sts:AssumeRole", "arn:aws:iam::1:role/admin-?"),
            policy("STS:AssumeRoleWithWebIdentity", "*"),
        ],
        accepts=[
            made(POLICY, policy=document(*CONTROLLER)),
            policy("sts:AssumeRole", "arn:aws:iam::1:role/one"),
        ],
    ),
    "principals-of-own-account": Cases(
        rejects=[
            (role_for(AWS="arn:aws:iam::999999999999:role/one"), OWN_PROVIDER),
            (role_for(Federated="arn:aws:iam::999999999999:oidc-provider/i"), OWN_PROVIDER),
            (keyed("arn:aws:iam::999999999999:root"), OWN_PROVIDER),
            (keyed("999999999999"), OWN_PROVIDER),
            (made(REPOSITORY_POLICY, policy=document({"Principal": {"AWS": "999999999999"}})), OWN_PROVIDER),
            (made(BUCKET_POLICY, policy=document({"Principal": {"AWS": "999999999999"}})), OWN_PROVIDER),
            (made(GRANT, granteePrincipal="arn:aws:iam::999999999999:role/x"), OWN_PROVIDER),
            (made(ACCESS_ENTRY, principalArn="arn:aws:iam::999999999999:role/x"), OWN_PROVIDER),
            (made(ACCESS_POLICY, principalArn="arn:aws:iam::999999999999:role/x"), OWN_PROVIDER),
            # Nobody says which account is the stack's own.
            (keyed("arn:aws:iam::123456789012:root"), made(AWS_PROVIDER)),
        ],
        accepts=[
            (role_for(AWS="arn:aws:iam::123456789012:role/one"), OWN_PROVIDER),
            (role_for(Service="eks.amazonaws.com"),),
            (TRAINER, made(AWS_PROVIDER, allowedAccountIds=["123456789012"])),
            (keyed("arn:aws:iam::123456789012:root"), OWN_PROVIDER),
            (made(KEY), OWN_PROVIDER),
            (made(ACCESS_ENTRY, principalArn="arn:aws:iam::123456789012:role/x"), OWN_PROVIDER),
            (
                made(
                    BUCKET_POLICY,
                    policy=document(
                        {"Effect": "Deny", "Principal": {"AWS": "999999999999"}, "Action": "s3:*"}
                    ),
                ),
                OWN_PROVIDER,
            ),
        ],
    ),
    "no-delete-of-data": Cases(
        rejects=[
            *(policy(action) for action in OPENING_DATA),
            policy("kms:CreateGrant", "arn:aws:kms:r:1:key/k"),
            policy("s3:GetObject", "arn:aws:s3:::b?/*"),
            policy("S3:getobject", "**"),
            policy("s3:DeleteObject"),
            policy("s3:DeleteObject", "arn:aws:s3:::b/check*/*"),
            policy("s3:DeleteObject", "arn:aws:s3:::b/*/checkpoints/*"),
            policy("s3:DeleteObjectVersion", "arn:aws:s3:::b/checkpoints/*"),
            policy("s3:DeleteO*", "arn:aws:s3:::b/checkpoints/*"),
            policy("s3:PutBucketPolicy", "arn:aws:s3:::b"),
            policy("s3:GetObject", "arn:aws:s3:::*"),
            policy("s3:GetObject", "*"),
        ],
        accepts=[
            policy("s3:GetObject"),
            policy("s3:DeleteObject", "arn:aws:s3:::b/checkpoints/*"),
            made(POLICY, policy=document(*MODELS)),
            policy("sqs:DeleteMessage", "q"),
            policy(
                "kms:CreateGrant",
                "arn:aws:kms:r:1:key/k",
                Condition={"Bool": {"kms:GrantIsForAWSResource": "true"}},
            ),
        ],
    ),
    "trainer-role-narrow": Cases(
        rejects=[
            holding(TRAINER, {"Action": "s3:DeleteObject", "Resource": "arn:aws:s3:::b/*"}),
            holding(TRAINER, {"Action": "s3:DeleteObjectVersion", "Resource": "arn:aws:s3:::b/p/*"}),
            holding(TRAINER, {"Action": "s3:PutObject", "Resource": "arn:aws:s3:::b/*"}),
            holding(TRAINER, {"Action": "s3:ListBucket", "Resource": "arn:aws:s3:::b"}),
            holding(TRAINER, {"Action": "kms:Decrypt", "Resource": "*"}),
            holding(TRAINER, {"Action": "s3:GetObject", "Resource": "arn:aws:s3:::b/*/*"}),
            holding(TRAINER, {"Action": "s3:GetObject", "Resource": "arn:aws:s3:::b/?odels/*"}),
            *(
                holding(TRAINER, {**LISTING, "Condition": {operator: {"s3:prefix": prefix}}})
                for operator, prefix in (
                    ("StringLike", "*"),
                    ("StringLike", ["models/*", "*"]),
                    ("StringLike", ""),
                    ("StringNotEquals", "x"),
                    ("StringLikeIfExists", "models/*"),
                )
            ),
            with_own(TRAINER, **INLINE),
            given(TRAINER),
        ],
        accepts=[
            holding(TRAINER, *MODELS),
            holding(ANOTHER, {"Action": "s3:PutObject", "Resource": "arn:aws:s3:::b/*"}),
        ],
    ),
    "karpenter-changes-its-own": Cases(
        rejects=[
            holding(
                KARPENTER, {"Action": "ec2:TerminateInstances", "Resource": "arn:aws:ec2:r:*:instance/*"}
            ),
            holding(KARPENTER, {"Action": "ec2:RunInstances", "Resource": "arn:aws:ec2:r:*:instance/*"}),
            holding(KARPENTER, {"Action": "ec2:CreateTags", "Resource": "arn:aws:ec2:r::image/*"}),
            with_own(KARPENTER, **LISTED),
            given(KARPENTER),
            *(
                holding(KARPENTER, {**TERMINATING, "Condition": condition})
                for condition in (
                    {"StringNotEquals": {"aws:ResourceTag/kubernetes.io/cluster/test": "x"}},
                    {"Null": {"aws:ResourceTag/kubernetes.io/cluster/test": "true"}},
                    {"StringLike": {"aws:ResourceTag/kubernetes.io/cluster/test": "*"}},
                    {"StringEquals": {"aws:ResourceTag/Name": "x"}},
                )
            ),
            holding(KARPENTER, {"Action": "ec2:CreateTags", "Resource": "arn:aws:ec2:r:1:instance/i-?"}),
        ],
        accepts=[
            holding(KARPENTER, *CONTROLLER),
            holding(ANOTHER, {"Action": "ec2:TerminateInstances", "Resource": "arn:aws:ec2:r:*:instance/*"}),
            given(ANOTHER),
        ],
    ),
    "karpenter-can-finish": Cases(
        rejects=[
            holding(KARPENTER),
            holding(KARPENTER, *(s for s in CONTROLLER if "iam:DeleteInstanceProfile" not in s["Action"])),
        ],
        accepts=[holding(KARPENTER, *CONTROLLER), holding(ANOTHER)],
    ),
}
