"""What a stack left, on the emulator: found by exact tags, ended things left aside, kept data listed apart."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from botocore.exceptions import ClientError

from tests.unit.emulator import REGION, Cloud
from tests.unit.preflight.accounts import TAGS, Given, account, tagged
from trainyard.preflight.leftovers import __main__, read_services
from trainyard.preflight.leftovers.__main__ import lines
from trainyard.preflight.leftovers.found import Found, Target, sort
from trainyard.preflight.leftovers.search import READERS, Search, search

pytestmark = pytest.mark.unit

TARGET = Target(
    stack="train",
    region=REGION,
    tags=TAGS,
    cluster="train",
    protect=False,
    kept_keys=("train-data", "train-secrets"),
    key_aliases=("alias/train-data", "alias/train-secrets"),
)
SIMILAR = {**TAGS, "trainyard:stack": "train-two"}
OTHER_PROJECT = {**TAGS, "trainyard:project": "yard"}


def found(cloud: Cloud, target: Target = TARGET) -> list[str]:
    searched = search(account(cloud), target)
    assert searched.unasked + searched.failed == []
    return sorted({str(each) for each in searched.found})


def specified(kind: str, tags: dict[str, str]) -> list[dict[str, Any]]:
    return [{"ResourceType": kind, "Tags": tagged(tags)}] if tags else []


def run_instance(cloud: Cloud, tags: dict[str, str]) -> str:
    answer = cloud.client("ec2").run_instances(
        ImageId="ami-1",
        InstanceType="g5.12xlarge",
        MinCount=1,
        MaxCount=1,
        TagSpecifications=specified("instance", tags),
    )
    return str(answer["Instances"][0]["InstanceId"])


def make_vpc(cloud: Cloud, tags: dict[str, str]) -> str:
    made = cloud.client("ec2").create_vpc(CidrBlock="10.3.0.0/16", TagSpecifications=specified("vpc", tags))
    return str(made["Vpc"]["VpcId"])


def make_subnet(cloud: Cloud, tags: dict[str, str]) -> str:
    made = cloud.client("ec2").create_subnet(
        VpcId=make_vpc(cloud, {}), CidrBlock="10.3.0.0/24", TagSpecifications=specified("subnet", tags)
    )
    return str(made["Subnet"]["SubnetId"])


def make_group(cloud: Cloud, tags: dict[str, str]) -> str:
    made = cloud.client("ec2").create_security_group(
        GroupName="g",
        Description="g",
        VpcId=make_vpc(cloud, {}),
        TagSpecifications=specified("security-group", tags),
    )
    return str(made["GroupId"])


def make_address(cloud: Cloud, tags: dict[str, str]) -> str:
    made = cloud.client("ec2").allocate_address(Domain="vpc", TagSpecifications=specified("elastic-ip", tags))
    return str(made["AllocationId"])


def make_gateway(cloud: Cloud, tags: dict[str, str]) -> str:
    made = cloud.client("ec2").create_internet_gateway(TagSpecifications=specified("internet-gateway", tags))
    return str(made["InternetGateway"]["InternetGatewayId"])


def make_nat(cloud: Cloud, tags: dict[str, str]) -> str:
    address = make_address(cloud, {})
    made = cloud.client("ec2").create_nat_gateway(
        SubnetId=make_subnet(cloud, {}),
        AllocationId=address,
        TagSpecifications=specified("natgateway", tags),
    )
    return str(made["NatGateway"]["NatGatewayId"])


def make_table(cloud: Cloud, tags: dict[str, str]) -> str:
    made = cloud.client("ec2").create_route_table(
        VpcId=make_vpc(cloud, {}), TagSpecifications=specified("route-table", tags)
    )
    return str(made["RouteTable"]["RouteTableId"])


def make_endpoint(cloud: Cloud, tags: dict[str, str]) -> str:
    made = cloud.client("ec2").create_vpc_endpoint(
        VpcId=make_vpc(cloud, {}),
        ServiceName=f"com.amazonaws.{REGION}.s3",
        VpcEndpointType="Gateway",
        TagSpecifications=specified("vpc-endpoint", tags),
    )
    return str(made["VpcEndpoint"]["VpcEndpointId"])


def make_template(cloud: Cloud, tags: dict[str, str]) -> str:
    made = cloud.client("ec2").create_launch_template(
        LaunchTemplateName=f"t-{unique(tags)}",
        LaunchTemplateData={"InstanceType": "m5.large"},
        TagSpecifications=specified("launch-template", tags),
    )
    return str(made["LaunchTemplate"]["LaunchTemplateId"])


def make_volume(cloud: Cloud, tags: dict[str, str]) -> str:
    made = cloud.client("ec2").create_volume(
        AvailabilityZone=f"{REGION}a", Size=8, TagSpecifications=specified("volume", tags)
    )
    return str(made["VolumeId"])


def make_interface(cloud: Cloud, tags: dict[str, str]) -> str:
    made = cloud.client("ec2").create_network_interface(
        SubnetId=make_subnet(cloud, {}), TagSpecifications=specified("network-interface", tags)
    )
    return str(made["NetworkInterface"]["NetworkInterfaceId"])


def make_reservation(cloud: Cloud, tags: dict[str, str]) -> str:
    made = cloud.client("ec2").create_capacity_reservation(
        InstanceType="g5.12xlarge",
        InstancePlatform="Linux/UNIX",
        AvailabilityZone=f"{REGION}a",
        InstanceCount=1,
        TagSpecifications=specified("capacity-reservation", tags),
    )
    return str(made["CapacityReservation"]["CapacityReservationId"])


def make_placement_group(cloud: Cloud, tags: dict[str, str]) -> str:
    name = f"g-{unique(tags)}"
    cloud.client("ec2").create_placement_group(
        GroupName=name, Strategy="cluster", TagSpecifications=specified("placement-group", tags)
    )
    return name


def unique(tags: dict[str, str]) -> str:
    """A short name for things with these tags."""
    return hashlib.sha256(json.dumps(tags, sort_keys=True).encode()).hexdigest()[:10]


def make_role(cloud: Cloud, tags: dict[str, str]) -> str:
    name = f"r-{unique(tags)}"
    cloud.client("iam").create_role(RoleName=name, AssumeRolePolicyDocument="{}", Tags=tagged(tags))
    return name


def make_policy(cloud: Cloud, tags: dict[str, str]) -> str:
    name = f"p-{unique(tags)}"
    statement = {"Effect": "Allow", "Action": "s3:GetObject", "Resource": "*"}
    document = json.dumps({"Version": "2012-10-17", "Statement": [statement]})
    cloud.client("iam").create_policy(PolicyName=name, PolicyDocument=document, Tags=tagged(tags))
    return name


def make_profile(cloud: Cloud, tags: dict[str, str]) -> str:
    name = f"i-{unique(tags)}"
    cloud.client("iam").create_instance_profile(InstanceProfileName=name, Tags=tagged(tags))
    return name


def make_provider(cloud: Cloud, tags: dict[str, str]) -> str:
    name = f"oidc.example.org/{unique(tags)}"
    cloud.client("iam").create_open_id_connect_provider(
        Url=f"https://{name}", ClientIDList=["a"], ThumbprintList=["0" * 40], Tags=tagged(tags)
    )
    return name


def make_log_group(cloud: Cloud, tags: dict[str, str]) -> str:
    name = f"/flow/{unique(tags)}"
    cloud.client("logs").create_log_group(logGroupName=name, tags=tags)
    return name


def make_key(cloud: Cloud, tags: dict[str, str]) -> str:
    made = cloud.client("kms").create_key(Tags=[{"TagKey": k, "TagValue": v} for k, v in tags.items()])
    return str(made["KeyMetadata"]["KeyId"])


def make_queue(cloud: Cloud, tags: dict[str, str]) -> str:
    name = f"q-{unique(tags)}"
    cloud.client("sqs").create_queue(QueueName=name, tags=tags)
    return name


def make_rule(cloud: Cloud, tags: dict[str, str]) -> str:
    name = f"e-{unique(tags)}"
    cloud.client("events").put_rule(Name=name, EventPattern='{"source": ["aws.ec2"]}', Tags=tagged(tags))
    return name


def make_repository(cloud: Cloud, tags: dict[str, str]) -> str:
    name = f"c-{unique(tags)}/launcher"
    cloud.client("ecr").create_repository(repositoryName=name, tags=tagged(tags))
    return name


def make_bucket(cloud: Cloud, tags: dict[str, str]) -> str:
    name, s3 = f"b-{unique(tags)}", cloud.client("s3")
    s3.create_bucket(Bucket=name, CreateBucketConfiguration={"LocationConstraint": REGION})
    s3.put_bucket_tagging(Bucket=name, Tagging={"TagSet": tagged(tags)})
    return name


def make_load_balancer(cloud: Cloud, tags: dict[str, str]) -> str:
    network = cloud.network()
    made = cloud.client("elbv2").create_load_balancer(
        Name=f"l-{unique(tags)}"[:32], Subnets=network["subnets"], Type="network", Tags=tagged(tags)
    )
    return str(made["LoadBalancers"][0]["LoadBalancerArn"]).partition("loadbalancer/")[2]


def make_target_group(cloud: Cloud, tags: dict[str, str]) -> str:
    made = cloud.client("elbv2").create_target_group(
        Name=f"t-{unique(tags)}"[:32], Protocol="TCP", Port=80, VpcId=make_vpc(cloud, {}), Tags=tagged(tags)
    )
    return str(made["TargetGroups"][0]["TargetGroupArn"]).partition("targetgroup/")[2]


def make_scaling_group(cloud: Cloud, tags: dict[str, str]) -> str:
    name = f"a-{unique(tags)}"
    client = cloud.client("autoscaling")
    template = make_template(cloud, {"n": name})
    client.create_auto_scaling_group(
        AutoScalingGroupName=name,
        MinSize=0,
        MaxSize=1,
        LaunchTemplate={"LaunchTemplateId": template, "Version": "$Default"},
        VPCZoneIdentifier=make_subnet(cloud, {}),
        Tags=[{**each, "PropagateAtLaunch": False} for each in tagged(tags)],
    )
    return name


def make_parameter(cloud: Cloud, tags: dict[str, str]) -> str:
    name = f"s-{unique(tags)}"
    cloud.client("ssm").put_parameter(Name=name, Value="x", Type="String", Tags=tagged(tags))
    return f"arn:aws:ssm:{REGION}:123456789012:parameter/{name}"


Maker = Callable[[Cloud, dict[str, str]], str]
BY_STACK_TAGS: dict[str, Maker] = {
    "EC2 instance": run_instance,
    "VPC": make_vpc,
    "subnet": make_subnet,
    "security group": make_group,
    "elastic IP": make_address,
    "internet gateway": make_gateway,
    "NAT gateway": make_nat,
    "route table": make_table,
    "VPC endpoint": make_endpoint,
    "launch template": make_template,
    "volume": make_volume,
    "network interface": make_interface,
    "capacity reservation": make_reservation,
    "placement group": make_placement_group,
    "IAM role": make_role,
    "IAM policy": make_policy,
    "instance profile": make_profile,
    "OIDC provider": make_provider,
    "log group": make_log_group,
    "KMS key": make_key,
    "SQS queue": make_queue,
    "EventBridge rule": make_rule,
    "ECR repository": make_repository,
    "S3 bucket": make_bucket,
    "load balancer": make_load_balancer,
    "target group": make_target_group,
    "Auto Scaling group": make_scaling_group,
    "resource of ssm": make_parameter,
}


def test_an_account_with_nothing_of_the_stack_is_clean(cloud: Cloud) -> None:
    Given(cloud)
    assert found(cloud) == []


def test_every_kind_is_found_by_exactly_both_tags(cloud: Cloud) -> None:
    made = {(kind, make(cloud, TAGS)) for kind, make in BY_STACK_TAGS.items()}
    for make in BY_STACK_TAGS.values():
        for other in (SIMILAR, OTHER_PROJECT):
            make(cloud, other)
    searched = search(account(cloud), TARGET)
    assert searched.unasked + searched.failed == []
    assert {(each.kind, each.identity) for each in searched.found} == made


KARPENTER = {"eks:eks-cluster-name": "train"}
BY_CLUSTER_TAGS: list[tuple[str, Maker, dict[str, str]]] = [
    ("EC2 instance", run_instance, KARPENTER),
    ("EC2 instance", run_instance, {"eks:cluster-name": "train"}),
    ("launch template", make_template, KARPENTER),
    ("launch template", make_template, {"eks:cluster-name": "train"}),
    ("instance profile", make_profile, KARPENTER),
    ("network interface", make_interface, {"cluster.k8s.amazonaws.com/name": "train"}),
    ("network interface", make_interface, KARPENTER),
    ("volume", make_volume, {"kubernetes.io/cluster/train": "owned"}),
    ("volume", make_volume, {"KubernetesCluster": "train"}),
    ("security group", make_group, {"elbv2.k8s.aws/cluster": "train"}),
    ("load balancer", make_load_balancer, {"elbv2.k8s.aws/cluster": "train"}),
    ("load balancer", make_load_balancer, {"kubernetes.io/cluster/train": "owned"}),
    ("target group", make_target_group, {"elbv2.k8s.aws/cluster": "train"}),
    ("Auto Scaling group", make_scaling_group, {"eks:cluster-name": "train"}),
]


def similar(tags: dict[str, str]) -> dict[str, str]:
    return {
        key.replace("/train", "/train-two"): value.replace("train", "train-two")
        for key, value in tags.items()
    }


def test_what_others_made_for_the_cluster_is_found_by_its_exact_name(cloud: Cloud) -> None:
    made = {(kind, make(cloud, tags)) for kind, make, tags in BY_CLUSTER_TAGS}
    for _, make, tags in BY_CLUSTER_TAGS:
        make(cloud, similar(tags))
    things = search(account(cloud), TARGET).found
    assert {(each.kind, each.identity) for each in things} == made
    assert found(cloud, replace(TARGET, cluster=None)) == [], "a given cluster's things prove nothing"


def test_an_interface_that_is_in_use_is_its_machines_matter(cloud: Cloud) -> None:
    interface = make_interface(cloud, {"cluster.k8s.amazonaws.com/name": "train"})
    assert len(found(cloud)) == 1
    cloud.client("ec2").attach_network_interface(
        NetworkInterfaceId=interface, InstanceId=run_instance(cloud, {}), DeviceIndex=1
    )
    assert found(cloud) == []


def test_interfaces_of_the_control_plane_are_known_by_their_description(cloud: Cloud) -> None:
    subnet = make_subnet(cloud, {})
    for name in ("train", "train-two"):
        cloud.client("ec2").create_network_interface(SubnetId=subnet, Description=f"Amazon EKS {name}")
    (line,) = found(cloud)
    assert line.endswith("(Amazon EKS train)")


def test_the_control_planes_log_group_comes_back_without_tags_and_is_found(cloud: Cloud) -> None:
    logs = cloud.client("logs")
    for name in ("/aws/eks/train/cluster", "/aws/eks/train/cluster2", "/aws/eks/train-two/cluster"):
        logs.create_log_group(logGroupName=name)
    assert found(cloud) == ["log group /aws/eks/train/cluster"]


def test_the_cluster_is_found_with_its_tags_alone(cloud: Cloud) -> None:
    cloud.cluster("train")
    eks = [line for line in found(cloud) if line.startswith("EKS")]
    assert eks == []
    client = cloud.client("eks")
    client.tag_resource(resourceArn=client.describe_cluster(name="train")["cluster"]["arn"], tags=TAGS)
    assert "EKS cluster train (ACTIVE)" in found(cloud)


def test_aliases_are_found_by_their_exact_names(cloud: Cloud) -> None:
    key, kms = make_key(cloud, {}), cloud.client("kms")
    for name in ("alias/train-data", "alias/train-data-2", "alias/train"):
        kms.create_alias(AliasName=name, TargetKeyId=key)
    assert found(cloud) == ["KMS alias alias/train-data"]


def test_guard_dutys_own_things_are_found_in_a_vpc_of_the_stack(cloud: Cloud) -> None:
    ec2, ours = cloud.client("ec2"), make_vpc(cloud, TAGS)
    for vpc in (ours, make_vpc(cloud, {})):
        ec2.create_vpc_endpoint(
            VpcId=vpc, ServiceName=f"com.amazonaws.{REGION}.guardduty-data", VpcEndpointType="Gateway"
        )
        ec2.create_security_group(
            GroupName=f"GuardDutyManagedSecurityGroup-{vpc}",
            Description="g",
            VpcId=vpc,
            TagSpecifications=specified("security-group", {"GuardDutyManaged": "true"}),
        )
    lines = [line for line in found(cloud) if line.startswith("GuardDuty")]
    assert [line.rpartition(" (")[2] for line in lines] == [f"in {ours})"] * 2


def test_what_has_ended_is_left_aside(cloud: Cloud) -> None:
    ec2, kms = cloud.client("ec2"), cloud.client("kms")
    ec2.terminate_instances(InstanceIds=[run_instance(cloud, TAGS)])
    ec2.cancel_capacity_reservation(CapacityReservationId=make_reservation(cloud, TAGS))
    ec2.delete_nat_gateway(NatGatewayId=make_nat(cloud, TAGS))
    kms.schedule_key_deletion(KeyId=make_key(cloud, TAGS), PendingWindowInDays=7)
    assert found(cloud) == []


def test_what_the_tagging_api_still_shows_though_it_is_gone_is_left_aside(
    cloud: Cloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_region = f"{REGION}:123456789012"
    stale = [
        "arn:aws:s3:::gone",
        f"arn:aws:logs:{in_region}:log-group:/gone",
        f"arn:aws:events:{in_region}:rule/gone",
        f"arn:aws:sqs:{in_region}:gone",
        f"arn:aws:kms:{in_region}:key/1234abcd-12ab-34cd-56ef-1234567890ab",
        f"arn:aws:elasticloadbalancing:{in_region}:loadbalancer/net/gone/0123456789abcdef",
        f"arn:aws:elasticloadbalancing:{in_region}:targetgroup/gone/0123456789abcdef",
        f"arn:aws:elasticloadbalancing:{in_region}:loadbalancer/gone",
        f"arn:aws:ec2:{in_region}:instance/i-0123456789abcdef0",
        f"arn:aws:eks:{in_region}:cluster/gone",
    ]
    shown = [*stale, f"arn:aws:backup:{in_region}:backup-vault:there"]
    monkeypatch.setattr(
        read_services,
        "_tagged",
        lambda _account, _tags, of="": [a for a in shown if read_services._resource(a).startswith(of)],
    )
    assert found(cloud) == [f"resource of backup {shown[-1]}"]


def make_file_system(cloud: Cloud) -> tuple[str, Given]:
    given = Given(cloud)
    given.tag(given.vpc, **TAGS)
    group = given.make_group("lustre")
    ports = {"IpProtocol": "tcp", "FromPort": 988, "ToPort": 1023, "UserIdGroupPairs": [{"GroupId": group}]}
    given.ec2.authorize_security_group_ingress(GroupId=group, IpPermissions=[ports])
    given.tag(group, **TAGS)
    made = cloud.client("fsx").create_file_system(
        FileSystemType="LUSTRE",
        StorageCapacity=1200,
        SubnetIds=[next(iter(given.private.values()))],
        SecurityGroupIds=[group],
        LustreConfiguration={"DeploymentType": "PERSISTENT_2", "PerUnitStorageThroughput": 125},
        Tags=tagged(TAGS),
    )
    return str(made["FileSystem"]["FileSystemId"]), given


def test_a_file_system_and_its_backups_are_found(cloud: Cloud) -> None:
    identity, _ = make_file_system(cloud)
    fsx = cloud.client("fsx")
    ours, others = (
        fsx.create_backup(FileSystemId=identity, Tags=tagged(tags))["Backup"]["BackupId"]
        for tags in (TAGS, SIMILAR)
    )
    lines = found(cloud)
    assert any(line.startswith(f"FSx file system {identity} (") for line in lines)
    assert f"FSx backup {ours} (AVAILABLE)" in lines
    assert others not in " ".join(lines)


def let_in(given: Given) -> tuple[str, str, str]:
    """A group that the file system's own lets in, one that it does not, and the VPC's default; all with the tags."""
    (lustre,) = given.ec2.describe_security_groups(
        Filters=[{"Name": "group-name", "Values": ["lustre"]}, {"Name": "vpc-id", "Values": [given.vpc]}]
    )["SecurityGroups"]
    clients, strangers = given.make_group("clients"), given.make_group("strangers")
    (default,) = given.ec2.describe_security_groups(
        Filters=[{"Name": "group-name", "Values": ["default"]}, {"Name": "vpc-id", "Values": [given.vpc]}]
    )["SecurityGroups"]
    ports = {"IpProtocol": "tcp", "FromPort": 988, "ToPort": 988}
    given.ec2.authorize_security_group_egress(
        GroupId=lustre["GroupId"], IpPermissions=[{**ports, "UserIdGroupPairs": [{"GroupId": clients}]}]
    )
    for group in (clients, strangers, default["GroupId"]):
        given.tag(group, **TAGS)
    return clients, strangers, default["GroupId"]


def test_protected_data_its_keys_and_what_it_lies_in_are_kept_and_told_apart(cloud: Cloud) -> None:
    identity, given = make_file_system(cloud)
    clients, strangers, default = let_in(given)
    kept_key = make_key(cloud, {**TAGS, "Name": "train-data"})
    logs_key = make_key(cloud, {**TAGS, "Name": "train-logs"})
    cloud.client("kms").create_alias(AliasName="alias/train-data", TargetKeyId=kept_key)
    bucket, repository, role = make_bucket(cloud, TAGS), make_repository(cloud, TAGS), make_role(cloud, TAGS)
    things = search(account(cloud), TARGET).found
    result = sort(replace(TARGET, protect=True), things)
    kept = {(each.kind, each.identity) for each in result.kept}
    assert {
        ("S3 bucket", bucket),
        ("ECR repository", repository),
        ("FSx file system", identity),
        ("KMS key", kept_key),
        ("KMS alias", "alias/train-data"),
        ("VPC", given.vpc),
    } <= kept
    groups = {identity for kind, identity in kept if kind == "security group"}
    assert groups >= {clients, default}
    assert len(groups) == 3, "and its own"
    assert {(each.kind, each.identity) for each in result.left} == {
        ("IAM role", role),
        ("KMS key", logs_key),
        ("security group", strangers),
    }
    unprotected = sort(TARGET, things)
    assert unprotected.kept == ()
    assert len(unprotected.left) == len(result.left) + len(result.kept)


def test_a_missing_permission_hides_no_other_kind_and_is_no_clean_bill(cloud: Cloud) -> None:
    role = make_role(cloud, TAGS)
    everything = {"Effect": "Allow", "Action": "*", "Resource": "*"}
    but = {"Effect": "Deny", "Action": ["ec2:DescribeVolumes", "tag:GetResources"], "Resource": "*"}
    session = cloud.session("auditor", everything, but)
    searched = search(account(cloud, session), TARGET)
    assert [each.identity for each in searched.found] == [role]
    assert ("volume", "ec2:DescribeVolumes") in searched.unasked
    assert ("KMS key", "tag:GetResources") in searched.unasked
    told = lines(TARGET, sort(TARGET, []), Search(unasked=[("volume", "ec2:DescribeVolumes")]))
    assert told == [
        "not checked: volume: needs ec2:DescribeVolumes",
        "verify-clean of stack train: nothing is left of what could be checked",
    ]


def test_an_error_that_is_no_missing_right_hides_no_other_kind_and_is_no_clean_bill(
    cloud: Cloud, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    role = make_role(cloud, TAGS)
    rule = {"action": "ec2:DescribeVolumes", "code": "InternalError", "message": "Try again.", "status": 503}
    cloud.call("PUT", "faults", {"faults": [rule]})
    searched = search(account(cloud), TARGET)
    assert [each.identity for each in searched.found] == [role]
    assert (searched.unasked, searched.failed) == ([], [("volume", "InternalError Try again.")])

    monkeypatch.setattr(
        __main__, "target_of", lambda _settings: replace(TARGET, tags=SIMILAR, cluster="other")
    )
    settings: Any = None
    assert __main__.ask(settings, account(cloud)) == 1
    assert capsys.readouterr().out.splitlines() == [
        "not checked: volume: InternalError Try again.",
        "verify-clean of stack train: nothing is left of what could be checked",
    ]


@pytest.mark.parametrize("code", ["ExpiredToken", "UnrecognizedClientException"])
def test_credentials_that_are_not_good_end_the_search(cloud: Cloud, code: str) -> None:
    cloud.call("PUT", "faults", {"faults": [{"action": "ec2:DescribeInstances", "code": code}]})
    with pytest.raises(ClientError, match=code):
        search(account(cloud), TARGET)


def test_what_a_person_reads_has_a_line_per_thing() -> None:
    left = Found(kind="VPC", identity="vpc-1", note="train")
    data = Found(kind="S3 bucket", identity="models")
    told = lines(TARGET, sort(replace(TARGET, protect=True), [left, left, data]), Search())
    assert told == [
        "left: VPC vpc-1 (train)",
        "kept: S3 bucket models, by protectData",
        "verify-clean of stack train: 1 thing is left",
    ]
    assert lines(TARGET, sort(TARGET, []), Search()) == ["verify-clean of stack train: nothing is left"]


def test_searching_changes_nothing(cloud: Cloud) -> None:
    make_file_system(cloud)
    calls: list[str] = []
    asking = account(cloud)
    services = (
        "ec2",
        "iam",
        "eks",
        "fsx",
        "sqs",
        "ecr",
        "kms",
        "logs",
        "autoscaling",
        "resourcegroupstaggingapi",
    )
    for service in services:
        asking.client(service).meta.events.register(
            "before-call", lambda model, **_: calls.append(model.name), unique_id=f"seen-{service}"
        )
    search(asking, TARGET)
    for service in services:
        asking.client(service).meta.events.unregister("before-call", unique_id=f"seen-{service}")
    assert len(calls) > len(READERS) / 2
    assert all(name.startswith(("Describe", "List", "Get")) for name in calls)
