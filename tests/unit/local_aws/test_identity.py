"""Web identity, authorisation of role sessions, EKS tokens."""

from __future__ import annotations

import base64
import json
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jwt
import pytest
from botocore.auth import SigV4QueryAuth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from botocore.exceptions import ClientError

from components.documents import karpenter_iam
from components.documents.account import Account
from local.aws.account import ACCOUNT_ID

BUCKET = "models"


def code_of(error):
    return error.value.response["Error"]["Code"]


# --- AssumeRoleWithWebIdentity


class Irsa:
    """A cluster, its OIDC provider, and a role that trusts one service account."""

    def __init__(self, cloud, provider=True):
        self.cloud = cloud
        self.issuer = cloud.cluster()["identity"]["oidc"]["issuer"]
        host = self.issuer.removeprefix("https://")
        self.provider = f"arn:aws:iam::123456789012:oidc-provider/{host}"
        if provider:
            self.make_provider()
        trust = {
            "Effect": "Allow",
            "Principal": {"Federated": self.provider},
            "Action": "sts:AssumeRoleWithWebIdentity",
            "Condition": {
                "StringEquals": {
                    f"{host}:sub": "system:serviceaccount:training:trainer",
                    f"{host}:aud": "sts.amazonaws.com",
                }
            },
        }
        write = {"Effect": "Allow", "Action": "s3:PutObject", "Resource": f"arn:aws:s3:::{BUCKET}/runs/*"}
        self.role = cloud.role("trainer", {"Statement": [write]}, trust)

    def make_provider(self):
        self.cloud.client("iam").create_open_id_connect_provider(
            Url=self.issuer, ClientIDList=["sts.amazonaws.com"], ThumbprintList=["9" * 40]
        )

    def token(self, key=None, **claims):
        body = {
            "iss": self.issuer,
            "sub": "system:serviceaccount:training:trainer",
            "aud": ["sts.amazonaws.com"],
            "exp": int(time.time()) + 600,
            **claims,
        }
        return jwt.encode(body, key or self.cloud.supervisor.key, "RS256", headers={"kid": "k1"})

    def assume(self, token):
        return self.cloud.client("sts").assume_role_with_web_identity(
            RoleArn=self.role, RoleSessionName="pod", WebIdentityToken=token
        )


@pytest.fixture
def irsa(cloud):
    return Irsa(cloud)


def test_the_right_service_account_gets_the_role_and_what_it_grants(irsa):
    answer = irsa.assume(irsa.token())
    assert answer["SubjectFromWebIdentityToken"] == "system:serviceaccount:training:trainer"
    s3 = irsa.cloud.client("s3", answer["Credentials"])
    irsa.cloud.client("s3").create_bucket(
        Bucket=BUCKET, CreateBucketConfiguration={"LocationConstraint": "us-west-2"}
    )
    s3.put_object(Bucket=BUCKET, Key="runs/r1/model.pt", Body=b"x")
    for refused in (
        lambda: s3.put_object(Bucket=BUCKET, Key="elsewhere", Body=b"x"),
        lambda: s3.get_object(Bucket=BUCKET, Key="runs/r1/model.pt"),
        lambda: s3.list_objects_v2(Bucket=BUCKET),
        s3.list_buckets,
    ):
        with pytest.raises(ClientError) as error:
            refused()
        assert code_of(error) == "AccessDenied"


@pytest.mark.parametrize(
    ("claims", "code"),
    [
        ({"sub": "system:serviceaccount:training:launcher"}, "AccessDenied"),
        ({"aud": ["https://kubernetes.default.svc"]}, "InvalidIdentityToken"),
        ({"iss": "https://oidc.eks.us-west-2.amazonaws.com/id/OTHER"}, "InvalidIdentityToken"),
        ({"exp": int(time.time()) - 60}, "ExpiredTokenException"),
    ],
)
def test_a_token_with_a_wrong_claim_is_refused(irsa, claims, code):
    with pytest.raises(ClientError) as error:
        irsa.assume(irsa.token(**claims))
    assert code_of(error) == code


def test_a_denial_in_the_trust_wins_wherever_it_stands(irsa):
    iam = irsa.cloud.client("iam")
    trust = iam.get_role(RoleName="trainer")["Role"]["AssumeRolePolicyDocument"]
    statements = trust["Statement"] if isinstance(trust["Statement"], list) else [trust["Statement"]]
    deny = {**statements[0], "Effect": "Deny"}
    document = json.dumps({**trust, "Statement": [*statements, deny]})
    iam.update_assume_role_policy(RoleName="trainer", PolicyDocument=document)
    with pytest.raises(ClientError) as error:
        irsa.assume(irsa.token())
    assert code_of(error) == "AccessDenied"


def test_one_trusted_audience_of_several_is_enough(irsa):
    from moto.iam.models import iam_backends  # it takes a second

    (provider,) = iam_backends[ACCOUNT_ID]["aws"].open_id_providers.values()
    provider.client_id_list.append("other")
    assert irsa.assume(irsa.token(aud=["other", "sts.amazonaws.com"]))["Credentials"]
    with pytest.raises(ClientError) as error:
        irsa.assume(irsa.token(aud=["other"]))
    assert code_of(error) == "AccessDenied"


def test_a_token_of_another_signer_is_refused(irsa):
    with pytest.raises(ClientError, match="Token verification failed"):
        irsa.assume(irsa.token(key=irsa.cloud.supervisor.other_key))


def test_garbage_is_no_token(irsa):
    with pytest.raises(ClientError) as error:
        irsa.assume("four")
    assert code_of(error) == "InvalidIdentityToken"


def test_without_an_oidc_provider_nobody_assumes_anything(cloud):
    irsa = Irsa(cloud, provider=False)
    with pytest.raises(ClientError, match="No OpenIDConnect provider"):
        irsa.assume(irsa.token())
    irsa.make_provider()
    irsa.assume(irsa.token())


# --- authorisation of role sessions


def test_a_session_without_policies_may_ask_who_it_is_and_nothing_more(cloud):
    credentials = cloud.session("nobody")
    assert "assumed-role/nobody/test" in cloud.client("sts", credentials).get_caller_identity()["Arn"]
    for service, call, code in (
        ("ec2", "describe_vpcs", "UnauthorizedOperation"),
        ("iam", "list_roles", "AccessDenied"),
        ("eks", "list_clusters", "AccessDeniedException"),
        ("sqs", "list_queues", "AccessDeniedException"),
        ("s3", "list_buckets", "AccessDenied"),
    ):
        with pytest.raises(ClientError) as error:
            getattr(cloud.client(service, credentials), call)()
        assert code_of(error) == code
    with pytest.raises(ClientError, match="pricing:GetProducts"):
        cloud.client("pricing", credentials).get_products(ServiceCode="AmazonEC2")


def test_the_message_names_the_caller_the_action_and_the_resource(cloud):
    credentials = cloud.session("nobody")
    with pytest.raises(ClientError) as error:
        cloud.client("eks", credentials).describe_cluster(name="x")
    text = str(error.value)
    assert "assumed-role/nobody/test is not authorized to perform: eks:DescribeCluster" in text
    assert "on resource: arn:aws:eks:us-west-2:123456789012:cluster/x" in text


def test_user_may_do_what_its_policies_and_groups_grant(cloud):
    iam = cloud.client("iam")
    iam.create_user(UserName="anna")
    key = iam.create_access_key(UserName="anna")["AccessKey"]
    credentials = {"AccessKeyId": key["AccessKeyId"], "SecretAccessKey": key["SecretAccessKey"]}
    s3 = cloud.client("s3", credentials)
    with pytest.raises(ClientError, match="user/anna is not authorized to perform: s3:ListAllMyBuckets"):
        s3.list_buckets()
    iam.create_group(GroupName="readers")
    iam.attach_group_policy(GroupName="readers", PolicyArn="arn:aws:iam::aws:policy/AmazonS3ReadOnlyAccess")
    iam.add_user_to_group(GroupName="readers", UserName="anna")
    assert s3.list_buckets()["Buckets"] == []
    bucket = {"Bucket": BUCKET, "CreateBucketConfiguration": {"LocationConstraint": "us-west-2"}}
    with pytest.raises(ClientError, match="AccessDenied"):
        s3.create_bucket(**bucket)
    create = {"Effect": "Allow", "Action": "s3:CreateBucket", "Resource": f"arn:aws:s3:::{BUCKET}"}
    document = json.dumps({"Version": "2012-10-17", "Statement": [create]})
    iam.put_user_policy(UserName="anna", PolicyName="create", PolicyDocument=document)
    s3.create_bucket(**bucket)


def test_attached_policies_and_those_of_aws_count(cloud):
    cloud.role("reader", None)
    iam = cloud.client("iam")
    iam.attach_role_policy(RoleName="reader", PolicyArn="arn:aws:iam::aws:policy/AmazonS3ReadOnlyAccess")
    arn = iam.get_role(RoleName="reader")["Role"]["Arn"]
    credentials = cloud.client("sts").assume_role(RoleArn=arn, RoleSessionName="test")["Credentials"]
    assert cloud.client("s3", credentials).list_buckets()["Buckets"] == []
    with pytest.raises(ClientError, match="AccessDenied"):
        cloud.client("s3", credentials).create_bucket(Bucket="b")


# The statements of Karpenter's policies that the life of an instance needs.
NEEDED = (
    "AllowScopedEC2InstanceAccessActions",
    "AllowScopedEC2LaunchTemplateAccessActions",
    "AllowScopedEC2InstanceActionsWithTags",
    "AllowScopedResourceCreationTagging",
    "AllowScopedDeletion",
    "AllowPassingInstanceRole",
    "AllowRegionalReadActions",
)
TAGS = [
    {"Key": "kubernetes.io/cluster/main", "Value": "owned"},
    {"Key": "eks:eks-cluster-name", "Value": "main"},
    {"Key": "karpenter.sh/nodepool", "Value": "p"},
]


def karpenter_statements() -> dict[str, Any]:
    scope = karpenter_iam.Scope(
        account=Account(id=ACCOUNT_ID, region="us-west-2"),
        cluster="main",
        node_role_arn=f"arn:aws:iam::{ACCOUNT_ID}:role/node",
        queue_arn=f"arn:aws:sqs:us-west-2:{ACCOUNT_ID}:main",
    )
    policies = (karpenter_iam.node_lifecycle, karpenter_iam.iam_integration, karpenter_iam.resource_discovery)
    every = {statement["Sid"]: statement for make in policies for statement in make(scope)["Statement"]}
    return {name: every[name] for name in NEEDED}


class Karpenter:
    """Calls EC2 as Karpenter does, with the statements of its role."""

    def __init__(self, cloud, statements=None):
        self.cloud = cloud
        self.network = cloud.network()
        deployer = cloud.client("ec2")
        self.group = deployer.create_security_group(
            GroupName="n", Description="n", VpcId=self.network["vpc"]
        )["GroupId"]
        cloud.role("node", None)
        iam = cloud.client("iam")
        iam.create_instance_profile(InstanceProfileName="node")
        iam.add_role_to_instance_profile(InstanceProfileName="node", RoleName="node")
        statements = karpenter_statements() if statements is None else statements
        self.ec2 = cloud.client("ec2", cloud.session("karpenter", *statements.values()))

    def template(self, tags=TAGS):
        kind = {"ResourceType": "network-interface", "Tags": TAGS}
        return self.ec2.create_launch_template(
            LaunchTemplateName="lt",
            LaunchTemplateData={
                "ImageId": "ami-1",
                "IamInstanceProfile": {"Name": "node"},
                "SecurityGroupIds": [self.group],
                "TagSpecifications": [kind],
            },
            TagSpecifications=[{"ResourceType": "launch-template", "Tags": tags}],
        )["LaunchTemplate"]["LaunchTemplateId"]

    def fleet(self, template, tags=TAGS, **more):
        return self.ec2.create_fleet(
            Type="instant",
            LaunchTemplateConfigs=[
                {
                    "LaunchTemplateSpecification": {"LaunchTemplateId": template, "Version": "$Latest"},
                    "Overrides": [{"InstanceType": "g5.12xlarge", "SubnetId": self.network["subnets"][0]}],
                }
            ],
            TargetCapacitySpecification={"DefaultTargetCapacityType": "on-demand", "TotalTargetCapacity": 1},
            TagSpecifications=[{"ResourceType": k, "Tags": tags} for k in ("instance", "volume", "fleet")],
            **more,
        )

    def validate(self, template):
        """Karpenter's dry run that checks its rights for an EC2NodeClass."""
        kinds = ("instance", "volume", "network-interface")
        return self.ec2.run_instances(
            DryRun=True,
            MinCount=1,
            MaxCount=1,
            InstanceType="g5.12xlarge",
            LaunchTemplate={"LaunchTemplateId": template, "Version": "$Latest"},
            TagSpecifications=[{"ResourceType": kind, "Tags": TAGS} for kind in kinds],
        )


def test_karpenter_launches_and_terminates_with_its_own_policy(cloud):
    karpenter = Karpenter(cloud)
    template = karpenter.template()
    with pytest.raises(ClientError, match="DryRunOperation"):
        karpenter.fleet(template, DryRun=True)
    with pytest.raises(ClientError, match="DryRunOperation"):
        karpenter.validate(template)
    instance = karpenter.fleet(template)["Instances"][0]["InstanceIds"][0]
    karpenter.ec2.terminate_instances(InstanceIds=[instance])
    karpenter.ec2.delete_launch_template(LaunchTemplateId=template)


def test_karpenter_cannot_launch_without_the_tags_of_its_cluster(cloud):
    karpenter = Karpenter(cloud)
    with pytest.raises(ClientError, match="ec2:CreateLaunchTemplate"):
        karpenter.template(tags=TAGS[:2])
    template = karpenter.template()
    other = [{"Key": "kubernetes.io/cluster/other", "Value": "owned"}, *TAGS[1:]]
    with pytest.raises(ClientError) as error:
        karpenter.fleet(template, tags=other)
    assert code_of(error) == "UnauthorizedOperation"


def test_karpenter_cannot_terminate_what_is_not_its_own(cloud):
    karpenter = Karpenter(cloud)
    stranger = cloud.client("ec2").run_instances(
        ImageId="ami-1", InstanceType="t3.micro", MinCount=1, MaxCount=1
    )
    with pytest.raises(ClientError, match="ec2:TerminateInstances"):
        karpenter.ec2.terminate_instances(InstanceIds=[stranger["Instances"][0]["InstanceId"]])


@pytest.mark.parametrize("left_out", NEEDED)
def test_every_statement_of_the_policy_is_needed(cloud, left_out):
    statements = karpenter_statements()
    del statements[left_out]
    karpenter = Karpenter(cloud, statements)

    def life():
        instance = karpenter.fleet(karpenter.template())["Instances"][0]["InstanceIds"][0]
        karpenter.ec2.describe_instances()
        karpenter.ec2.terminate_instances(InstanceIds=[instance])

    with pytest.raises(ClientError) as error:
        life()
    assert code_of(error) == "UnauthorizedOperation"


def test_dry_run_with_a_template_needs_the_right_to_pass_its_role(cloud):
    statements = karpenter_statements()
    del statements["AllowPassingInstanceRole"]
    karpenter = Karpenter(cloud, statements)
    with pytest.raises(ClientError, match="iam:PassRole"):
        karpenter.validate(karpenter.template())


def test_tagging_in_a_launch_needs_the_right_for_that_launch(cloud):
    statements = karpenter_statements()
    condition = statements["AllowScopedResourceCreationTagging"]["Condition"]
    condition["StringEquals"]["ec2:CreateAction"] = ["CreateLaunchTemplate"]
    karpenter = Karpenter(cloud, statements)
    template = karpenter.template()
    with pytest.raises(ClientError, match="ec2:CreateTags"):
        karpenter.fleet(template)


def test_a_role_goes_into_a_profile_only_with_the_right_to_pass_it(cloud):
    for role in ("node", "admin"):
        cloud.role(role, None)
    profiles = "arn:aws:iam::123456789012:instance-profile/*"
    owned = {"StringEquals": {"aws:ResourceTag/owner": "karpenter"}}
    credentials = cloud.session(
        "karpenter",
        {
            "Effect": "Allow",
            "Action": ["iam:CreateInstanceProfile", "iam:TagInstanceProfile"],
            "Resource": profiles,
            "Condition": {"StringEquals": {"aws:RequestTag/owner": "karpenter"}},
        },
        {
            "Effect": "Allow",
            "Action": "iam:AddRoleToInstanceProfile",
            "Resource": profiles,
            "Condition": owned,
        },
        {"Effect": "Allow", "Action": "iam:PassRole", "Resource": "arn:aws:iam::123456789012:role/node"},
    )
    iam = cloud.client("iam", credentials)
    with pytest.raises(ClientError, match="iam:CreateInstanceProfile"):
        iam.create_instance_profile(InstanceProfileName="p")
    iam.create_instance_profile(InstanceProfileName="p", Tags=[{"Key": "owner", "Value": "karpenter"}])
    with pytest.raises(ClientError, match="iam:PassRole on resource: arn:aws:iam::123456789012:role/admin"):
        iam.add_role_to_instance_profile(InstanceProfileName="p", RoleName="admin")
    iam.add_role_to_instance_profile(InstanceProfileName="p", RoleName="node")


def test_public_parameters_and_queues_have_their_arns(cloud):
    cloud.client("sqs").create_queue(QueueName="mine")
    cloud.client("sqs").create_queue(QueueName="other")
    credentials = cloud.session(
        "reader",
        {
            "Effect": "Allow",
            "Action": "ssm:GetParameter",
            "Resource": "arn:aws:ssm:us-west-2::parameter/aws/service/*",
        },
        {"Effect": "Allow", "Action": "sqs:*", "Resource": "arn:aws:sqs:us-west-2:123456789012:mine"},
    )
    name = "/aws/service/eks/optimized-ami/1.35/amazon-linux-2023/x86_64/standard/recommended/image_id"
    assert cloud.client("ssm", credentials).get_parameter(Name=name)["Parameter"]["Value"].startswith("ami-")
    sqs = cloud.client("sqs", credentials)
    url = sqs.get_queue_url(QueueName="mine")["QueueUrl"]
    assert "Messages" not in sqs.receive_message(QueueUrl=url)
    with pytest.raises(ClientError, match="AccessDenied"):
        sqs.get_queue_url(QueueName="other")


# --- EKS tokens


def eks_token(cloud, cluster, key=None, secret=None, header=True, session=None):
    url = f"{cloud.endpoint}/?Action=GetCallerIdentity&Version=2011-06-15"
    request = AWSRequest("GET", url, headers={"x-k8s-aws-id": cluster} if header else {})
    credentials = Credentials(key or cloud.key, secret or cloud.secret, session)
    SigV4QueryAuth(credentials, "sts", "us-west-2", 60).add_auth(request)
    return "k8s-aws-v1." + base64.urlsafe_b64encode(request.url.encode()).decode().rstrip("=")


def review(cloud, token, cluster="main"):
    document = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": {"token": token}}
    return cloud.call("POST", f"authenticate/{cluster}", document)[0]["status"]


def test_the_creators_token_is_an_administrators(cloud):
    cloud.cluster()
    status = review(cloud, eks_token(cloud, "main"))
    assert status["authenticated"] is True
    assert status["user"]["username"] == "arn:aws:iam::123456789012:user/deployer"
    assert status["user"]["groups"] == ["eks:cluster-admin"]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"secret": "wrong"}, "signature"),
        ({"key": "AKIANOBODYNOBODYNOBO"}, "not one of this local cloud's"),
        ({"header": False}, "x-k8s-aws-id"),
        ({"cluster": "second"}, "signature"),
    ],
)
def test_a_forged_token_is_refused(cloud, change, says):
    cloud.cluster()
    status = review(cloud, eks_token(cloud, **{"cluster": "main", **change}))
    assert status["authenticated"] is False
    assert says in status["error"]


@pytest.mark.parametrize("token", ["", "abc", "k8s-aws-v1.", "k8s-aws-v1.aHR0cHM6Ly94Lw", 5, [], None])
def test_what_is_no_eks_token_is_refused(cloud, token):
    cloud.cluster()
    assert review(cloud, token)["authenticated"] is False


def test_a_role_needs_an_access_entry_and_has_its_groups(cloud):
    cloud.cluster()
    given = cloud.session("people")
    role = "arn:aws:iam::123456789012:role/people"
    # The session token belongs into the URL as well; the signature covers it.
    token = eks_token(
        cloud, "main", given["AccessKeyId"], given["SecretAccessKey"], session=given["SessionToken"]
    )
    assert "no access entry" in review(cloud, token)["error"]
    eks = cloud.client("eks")
    eks.create_access_entry(clusterName="main", principalArn=role, kubernetesGroups=["team"])
    policy = "arn:aws:eks::aws:cluster-access-policy/AmazonEKSViewPolicy"
    eks.associate_access_policy(
        clusterName="main", principalArn=role, policyArn=policy, accessScope={"type": "cluster"}
    )
    user = review(cloud, token)["user"]
    assert user["groups"] == ["team", "eks:view"]
    assert user["username"] == "arn:aws:sts::123456789012:assumed-role/people/test"
    assert json.dumps(user["extra"])


def test_instance_profiles_are_listed_by_path(cloud: Any) -> None:
    """Karpenter deletes what it finds under its own node class's path."""
    iam = cloud.client("iam")
    for cluster in ("one", "two"):
        iam.create_instance_profile(InstanceProfileName=cluster, Path=f"/karpenter/us-west-2/{cluster}/")
    found = iam.list_instance_profiles(PathPrefix="/karpenter/us-west-2/one/")["InstanceProfiles"]
    assert [each["InstanceProfileName"] for each in found] == ["one"]
    assert len(iam.list_instance_profiles()["InstanceProfiles"]) == 2


def test_calls_of_the_same_moment_do_not_trip_over_each_other(cloud):
    iam = cloud.client("iam")
    iam.create_role(RoleName="busy", AssumeRolePolicyDocument="{}")
    allow = {"Effect": "Allow", "Action": "s3:GetObject", "Resource": "*"}
    document = json.dumps({"Version": "2012-10-17", "Statement": [allow]})

    def life(number: int) -> None:
        for turn in range(12):
            name = f"p-{number}-{turn}"
            arn = iam.create_policy(PolicyName=name, PolicyDocument=document)["Policy"]["Arn"]
            iam.attach_role_policy(RoleName="busy", PolicyArn=arn)
            iam.detach_role_policy(RoleName="busy", PolicyArn=arn)
            iam.delete_policy(PolicyArn=arn)
            trust = json.dumps({"Version": "2012-10-17", "Statement": []})
            iam.create_role(RoleName=name, AssumeRolePolicyDocument=trust)
            iam.tag_role(RoleName=name, Tags=[{"Key": "k", "Value": "v"}])
            iam.delete_role(RoleName=name)

    # Threads that change places all the time show in a second what else shows once in a hundred runs.
    usual = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(life, range(8)))
    finally:
        sys.setswitchinterval(usual)
    assert iam.list_policies(Scope="Local")["Policies"] == []
