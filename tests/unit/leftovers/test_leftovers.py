"""What a stack left, on the emulator: found by exact tags, without what is gone, and kept data listed apart."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from typing import Any

import pytest
from botocore.exceptions import ClientError

from infra.settings import Settings
from tests.unit.emulator import REGION, Cloud
from tests.unit.preflight.accounts import EXISTING, TAGS, ExistingVpc, account, recorded_calls, stack, tagged
from trainyard.preflight.leftovers import __main__, services
from trainyard.preflight.leftovers.leftover import Leftover
from trainyard.preflight.leftovers.search import READERS, Search, search

Maker = Callable[[Cloud, dict[str, str]], str]
STACK, PROTECTED = stack(protectData=False), stack(protectData=True)
SIMILAR = {**TAGS, "trainyard:stack": "train-two"}
OTHER_PROJECT = {**TAGS, "trainyard:project": "yard"}


def found(cloud: Cloud, settings: Settings = STACK) -> list[str]:
    result = search(settings, account(cloud))
    assert result.denied + result.failed == []
    return sorted({str(each) for each in result.found})


def specified(kind: str, tags: dict[str, str]) -> list[dict[str, Any]]:
    return [{"ResourceType": kind, "Tags": tagged(tags)}] if tags else []


def create(method: str, resource: str, identity: str, **arguments: Any) -> Maker:
    """Return a maker of an EC2 resource; `identity` is the path of its id in the answer."""

    def make(cloud: Cloud, tags: dict[str, str]) -> str:
        filled = {key: value(cloud, tags) if callable(value) else value for key, value in arguments.items()}
        answer: Any = getattr(cloud.client("ec2"), method)(
            **filled, TagSpecifications=specified(resource, tags)
        )
        for part in identity.split("."):
            answer = answer[int(part)] if part.isdigit() else answer[part]
        return str(answer)

    return make


def no_tags(make: Maker) -> Maker:
    return lambda cloud, _tags: make(cloud, {})


def unique(tags: dict[str, str]) -> str:
    """A short name for things with these tags."""
    return hashlib.sha256(json.dumps(tags, sort_keys=True).encode()).hexdigest()[:10]


run_instance = create(
    "run_instances",
    "instance",
    "Instances.0.InstanceId",
    ImageId="ami-1",
    InstanceType="g5.12xlarge",
    MinCount=1,
    MaxCount=1,
)
make_vpc = create("create_vpc", "vpc", "Vpc.VpcId", CidrBlock="10.3.0.0/16")
in_vpc = {"VpcId": no_tags(make_vpc)}
make_subnet = create("create_subnet", "subnet", "Subnet.SubnetId", CidrBlock="10.3.0.0/24", **in_vpc)
in_subnet = {"SubnetId": no_tags(make_subnet)}
make_group = create(
    "create_security_group", "security-group", "GroupId", GroupName="g", Description="g", **in_vpc
)
make_address = create("allocate_address", "elastic-ip", "AllocationId", Domain="vpc")
make_interface = create(
    "create_network_interface", "network-interface", "NetworkInterface.NetworkInterfaceId", **in_subnet
)
make_nat = create(
    "create_nat_gateway",
    "natgateway",
    "NatGateway.NatGatewayId",
    AllocationId=no_tags(make_address),
    **in_subnet,
)
make_volume = create("create_volume", "volume", "VolumeId", AvailabilityZone=f"{REGION}a", Size=8)
make_reservation = create(
    "create_capacity_reservation",
    "capacity-reservation",
    "CapacityReservation.CapacityReservationId",
    InstanceType="g5.12xlarge",
    InstancePlatform="Linux/UNIX",
    AvailabilityZone=f"{REGION}a",
    InstanceCount=1,
)


make_template = create(
    "create_launch_template",
    "launch-template",
    "LaunchTemplate.LaunchTemplateId",
    LaunchTemplateName=lambda _cloud, tags: f"t-{unique(tags)}",
    LaunchTemplateData={"InstanceType": "m5.large"},
)
make_placement_group = create(
    "create_placement_group",
    "placement-group",
    "PlacementGroup.GroupName",
    GroupName=lambda _cloud, tags: f"g-{unique(tags)}",
    Strategy="cluster",
)


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


BY_STACK_TAGS: dict[str, Maker] = {
    "EC2 instance": run_instance,
    "VPC": make_vpc,
    "subnet": make_subnet,
    "security group": make_group,
    "elastic IP": make_address,
    "internet gateway": create(
        "create_internet_gateway", "internet-gateway", "InternetGateway.InternetGatewayId"
    ),
    "NAT gateway": make_nat,
    "route table": create("create_route_table", "route-table", "RouteTable.RouteTableId", **in_vpc),
    "VPC endpoint": create(
        "create_vpc_endpoint",
        "vpc-endpoint",
        "VpcEndpoint.VpcEndpointId",
        ServiceName=f"com.amazonaws.{REGION}.s3",
        VpcEndpointType="Gateway",
        **in_vpc,
    ),
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


def test_account_without_the_stack_is_clean(cloud: Cloud) -> None:
    ExistingVpc(cloud)
    assert found(cloud) == []


def test_every_kind_is_found_by_exactly_both_tags(cloud: Cloud) -> None:
    made = {(kind, make(cloud, TAGS)) for kind, make in BY_STACK_TAGS.items()}
    for make in BY_STACK_TAGS.values():
        for other in (SIMILAR, OTHER_PROJECT):
            make(cloud, other)
    result = search(STACK, account(cloud))
    assert result.denied + result.failed == []
    assert {(each.kind, each.identity) for each in result.found} == made


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


def test_resources_of_the_cluster_are_found_by_its_name(cloud: Cloud) -> None:
    made = {(kind, make(cloud, tags)) for kind, make, tags in BY_CLUSTER_TAGS}
    for _, make, tags in BY_CLUSTER_TAGS:
        make(cloud, similar(tags))
    result = search(STACK, account(cloud)).found
    assert {(each.kind, each.identity) for each in result} == made
    existing = stack(cluster={"existing": {**EXISTING, "name": "train"}})
    assert found(cloud, existing) == [], "an existing cluster has resources of others"


def test_attached_interface_belongs_to_its_instance(cloud: Cloud) -> None:
    interface = make_interface(cloud, {"cluster.k8s.amazonaws.com/name": "train"})
    assert len(found(cloud)) == 1
    cloud.client("ec2").attach_network_interface(
        NetworkInterfaceId=interface, InstanceId=run_instance(cloud, {}), DeviceIndex=1
    )
    assert found(cloud) == []


def test_control_planes_interfaces_are_found_by_description(cloud: Cloud) -> None:
    subnet = make_subnet(cloud, {})
    for name in ("train", "train-two"):
        cloud.client("ec2").create_network_interface(SubnetId=subnet, Description=f"Amazon EKS {name}")
    (line,) = found(cloud)
    assert line.endswith("(Amazon EKS train)")


def test_control_planes_log_group_is_found_without_tags(cloud: Cloud) -> None:
    logs = cloud.client("logs")
    for name in ("/aws/eks/train/cluster", "/aws/eks/train/cluster2", "/aws/eks/train-two/cluster"):
        logs.create_log_group(logGroupName=name)
    assert found(cloud) == ["log group /aws/eks/train/cluster"]


def test_cluster_needs_the_stacks_tags(cloud: Cloud) -> None:
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


def test_guard_dutys_resources_are_found_in_the_stacks_vpc(cloud: Cloud) -> None:
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


def test_resources_that_are_gone_are_omitted(cloud: Cloud) -> None:
    ec2, kms = cloud.client("ec2"), cloud.client("kms")
    ec2.terminate_instances(InstanceIds=[run_instance(cloud, TAGS)])
    ec2.cancel_capacity_reservation(CapacityReservationId=make_reservation(cloud, TAGS))
    ec2.delete_nat_gateway(NatGatewayId=make_nat(cloud, TAGS))
    kms.schedule_key_deletion(KeyId=make_key(cloud, TAGS), PendingWindowInDays=7)
    assert found(cloud) == []


def test_deleted_resources_of_the_tagging_api_are_omitted(
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
        services,
        "tagged",
        lambda _aws, _tags, prefix="": [arn for arn in shown if services._resource(arn).startswith(prefix)],
    )
    assert found(cloud) == [f"resource of backup {shown[-1]}"]


def make_file_system(cloud: Cloud) -> tuple[str, ExistingVpc]:
    given = ExistingVpc(cloud)
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


def test_file_system_and_its_backups_are_found(cloud: Cloud) -> None:
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


def let_in(given: ExistingVpc) -> tuple[str, str, str]:
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


def test_protected_data_is_kept_with_its_keys_and_network(cloud: Cloud) -> None:
    identity, given = make_file_system(cloud)
    clients, strangers, default = let_in(given)
    kept_key = make_key(cloud, {**TAGS, "Name": "train-data"})
    logs_key = make_key(cloud, {**TAGS, "Name": "train-logs"})
    cloud.client("kms").create_alias(AliasName="alias/train-data", TargetKeyId=kept_key)
    bucket, repository, role = make_bucket(cloud, TAGS), make_repository(cloud, TAGS), make_role(cloud, TAGS)
    result = search(PROTECTED, account(cloud))
    left, kept = ({(each.kind, each.identity) for each in group} for group in result.sorted(PROTECTED))
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
    assert left == {("IAM role", role), ("KMS key", logs_key), ("security group", strangers)}
    everything, nothing = result.sorted(STACK)
    assert (len(everything), nothing) == (len(left) + len(kept), [])


def test_missing_permission_stops_no_other_kind(cloud: Cloud) -> None:
    role = make_role(cloud, TAGS)
    everything = {"Effect": "Allow", "Action": "*", "Resource": "*"}
    but = {"Effect": "Deny", "Action": ["ec2:DescribeVolumes", "tag:GetResources"], "Resource": "*"}
    result = search(STACK, account(cloud, cloud.session("auditor", everything, but)))
    assert [each.identity for each in result.found] == [role]
    assert ("volume", "ec2:DescribeVolumes") in result.denied
    assert ("KMS key", "tag:GetResources") in result.denied


def test_other_error_stops_no_other_kind_and_the_exit_code_is_1(
    cloud: Cloud, capsys: pytest.CaptureFixture[str]
) -> None:
    rule = {"action": "ec2:DescribeVolumes", "code": "InternalError", "message": "Try again.", "status": 503}
    cloud.call("PUT", "faults", {"faults": [rule]})
    assert __main__.run(STACK, account(cloud)) == 1
    assert capsys.readouterr().out.splitlines() == [
        "not checked: volume: InternalError Try again.",
        "verify-clean of stack train: nothing is left of what could be checked",
    ]
    role = make_role(cloud, TAGS)
    assert [each.identity for each in search(STACK, account(cloud)).found] == [role]


@pytest.mark.parametrize("code", ["ExpiredToken", "UnrecognizedClientException"])
def test_bad_credentials_end_the_search(cloud: Cloud, code: str) -> None:
    cloud.call("PUT", "faults", {"faults": [{"action": "ec2:DescribeInstances", "code": code}]})
    with pytest.raises(ClientError, match=code):
        search(STACK, account(cloud))


def test_output_has_a_line_per_resource_and_a_summary() -> None:
    left = Leftover(kind="VPC", identity="vpc-1", note="train")
    data = Leftover(kind="S3 bucket", identity="models")
    result = Search(found=[left, left, data], denied=[("volume", "ec2:DescribeVolumes")])
    assert result.lines(PROTECTED) == [
        "left: VPC vpc-1 (train)",
        "kept: S3 bucket models, by protectData",
        "not checked: volume: needs ec2:DescribeVolumes",
        "verify-clean of stack train: 1 thing is left",
    ]
    assert Search().lines(STACK) == ["verify-clean of stack train: nothing is left"]


def test_search_changes_nothing(cloud: Cloud) -> None:
    make_file_system(cloud)
    aws = account(cloud)
    services = ("ec2", "iam", "eks", "fsx", "sqs", "ecr", "kms", "logs")
    with recorded_calls(aws, *services, "autoscaling", "resourcegroupstaggingapi") as calls:
        search(STACK, aws)
    assert len(calls) > len(READERS) / 2
    assert all(name.startswith(("Describe", "List", "Get")) for name in calls)
