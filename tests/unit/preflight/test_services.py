"""A given cluster, a given file system, given buckets, and names that must be free."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tests.unit.emulator import REGION, SESSION, Cloud
from tests.unit.preflight.accounts import (
    ADMINISTRATOR,
    NOW,
    OTHER,
    TAGS,
    ZONE,
    Given,
    account,
    checks,
    only,
    wanted,
)
from trainyard.preflight.groups import Group, Rule, lets_in
from trainyard.preflight.read_services import LUSTRE_PORTS
from trainyard.preflight.run import CHECKS, examine
from trainyard.preflight.services import Cluster, FileSystem, check_access, check_cluster, check_lustre
from trainyard.preflight.wanted import Unasked, WantedBucket, WantedCluster, WantedLustre

pytestmark = pytest.mark.unit
CLUSTER = "trainyard:cluster.existing"
OF_SERVICES = ("given", "rights", "OIDC", "free names")
LUSTRE = "trainyard:storage.lustre.existing"


def problems(cloud: Cloud, **changes: Any) -> list[str]:
    of = {name: check for name, check in CHECKS.items() if name.startswith(OF_SERVICES)}
    report = examine(account(cloud), wanted(**changes), NOW, of)
    assert report.not_checked == []
    return [str(problem) for problem in report.problems]


def given_cluster(cloud: Cloud) -> WantedCluster:
    """A cluster as the emulator has it, described without a mistake."""
    found = cloud.cluster("main")
    issuer = found["identity"]["oidc"]["issuer"]
    arn = cloud.client("iam").create_open_id_connect_provider(
        Url=issuer, ClientIDList=["sts.amazonaws.com"], ThumbprintList=["0" * 40]
    )["OpenIDConnectProviderArn"]
    eks = cloud.client("eks")
    if ADMINISTRATOR not in eks.list_access_entries(clusterName="main")["accessEntries"]:
        eks.create_access_entry(clusterName="main", principalArn=ADMINISTRATOR)
    return WantedCluster(
        name="main",
        versions=(found["version"],),
        vpc_id=found["vpc"],
        endpoint=found["endpoint"],
        certificate_authority=found["certificateAuthority"]["data"],
        oidc_provider_arn=arn,
        oidc_issuer=issuer.removeprefix("https://"),
        security_group=found["resourcesVpcConfig"]["clusterSecurityGroupId"],
    )


def of_cluster(cloud: Cloud, given: WantedCluster) -> list[str]:
    return problems(
        cloud, existing_cluster=given, system=None, elastic_ips=0, cluster="main", administrators=()
    )


def test_a_cluster_that_is_as_the_stack_file_says_passes(cloud: Cloud) -> None:
    assert of_cluster(cloud, given_cluster(cloud)) == []


def test_a_cluster_that_does_not_exist_is_named(cloud: Cloud) -> None:
    given = replace(given_cluster(cloud), name="other", oidc_provider_arn=None)
    only(of_cluster(cloud, given), f"{CLUSTER}.name", f"'other' does not exist in {REGION}")


@pytest.mark.parametrize(
    ("field", "key"),
    [
        ("endpoint", f"{CLUSTER}.endpoint"),
        ("certificate_authority", f"{CLUSTER}.certificateAuthority"),
        ("oidc_issuer", f"{CLUSTER}.oidcIssuer"),
        ("security_group", f"{CLUSTER}.securityGroupId"),
        ("vpc_id", "trainyard:network.vpcId"),
    ],
)
def test_each_value_that_differs_is_named_by_its_key(cloud: Cloud, field: str, key: str) -> None:
    given = replace(given_cluster(cloud), **{field: "another"})
    only(of_cluster(cloud, given), key, "is 'another', but 'main' has")


def test_a_version_that_is_not_supported_is_told(cloud: Cloud) -> None:
    given = replace(given_cluster(cloud), versions=("1.90", "1.91"))
    only(of_cluster(cloud, given), f"{CLUSTER}.name", "it must be 1.90 or 1.91")


def test_a_provider_that_is_missing_is_told(cloud: Cloud) -> None:
    given = given_cluster(cloud)
    cloud.client("iam").delete_open_id_connect_provider(OpenIDConnectProviderArn=given.oidc_provider_arn)
    only(of_cluster(cloud, given), f"{CLUSTER}.oidcProviderArn", "does not exist", "eksctl")


def test_a_provider_without_the_audience_of_sts_is_told(cloud: Cloud) -> None:
    given, iam = given_cluster(cloud), cloud.client("iam")
    iam.delete_open_id_connect_provider(OpenIDConnectProviderArn=given.oidc_provider_arn)
    iam.create_open_id_connect_provider(
        Url=f"https://{given.oidc_issuer}", ClientIDList=["another"], ThumbprintList=["0" * 40]
    )
    only(of_cluster(cloud, given), f"{CLUSTER}.oidcProviderArn", "the audience sts.amazonaws.com")


def test_a_provider_of_another_issuer_is_told(cloud: Cloud) -> None:
    given = given_cluster(cloud)
    other = cloud.client("iam").create_open_id_connect_provider(
        Url="https://example.org/id/x", ClientIDList=["sts.amazonaws.com"], ThumbprintList=["0" * 40]
    )["OpenIDConnectProviderArn"]
    line = only(of_cluster(cloud, replace(given, oidc_provider_arn=other)), f"{CLUSTER}.oidcProviderArn")
    assert "example.org/id/x" in line


def test_whoever_deploys_into_a_given_cluster_needs_an_access_entry(cloud: Cloud) -> None:
    given = given_cluster(cloud)
    cloud.client("eks").delete_access_entry(clusterName="main", principalArn=ADMINISTRATOR)
    only(of_cluster(cloud, given), f"{CLUSTER}.name", f"no access entry for {ADMINISTRATOR}")


FOUND = Cluster(name="main", status="ACTIVE", version="1.35", mode="API", vpc_id="vpc-1")
GIVEN = WantedCluster(name="main", versions=("1.35",))


def test_a_cluster_that_is_not_active_or_has_no_access_entries_is_told() -> None:
    def told(**changes: Any) -> list[str]:
        return [str(p) for p in check_cluster(GIVEN, replace(FOUND, **changes), REGION)]

    assert told() == told(mode="API_AND_CONFIG_MAP") == []
    only(told(status="UPDATING"), f"{CLUSTER}.name", "is UPDATING; it must be ACTIVE")
    only(
        told(mode="CONFIG_MAP"), f"{CLUSTER}.name", "authentication mode CONFIG_MAP", "update-cluster-config"
    )


def test_rights_that_may_stand_in_the_cluster_itself_are_not_judged() -> None:
    assert check_access(GIVEN, replace(FOUND, mode="API_AND_CONFIG_MAP"), ADMINISTRATOR, ()) == []
    assert len(check_access(GIVEN, FOUND, ADMINISTRATOR, ())) == 1


SYSTEM = FileSystem(
    file_system_id="fs-0123456789abcdef0",
    kind="LUSTRE",
    lifecycle="AVAILABLE",
    vpc_id="vpc-1",
    zones=(ZONE,),
    dns_name="fs-0123456789abcdef0.fsx.us-west-2.amazonaws.com",
    mount_name="abcdefgh",
    version="2.15",
    ports=True,
)
ASKED = WantedLustre(
    file_system_id=SYSTEM.file_system_id,
    dns_name=SYSTEM.dns_name,
    mount_name="abcdefgh",
    zones=(ZONE,),
    vpc_id="vpc-1",
)


def of_lustre(found: FileSystem | None) -> list[str]:
    return [str(p) for p in check_lustre(ASKED, found, REGION)]


def test_a_file_system_as_it_is_told_passes() -> None:
    assert of_lustre(SYSTEM) == of_lustre(replace(SYSTEM, version="2.12")) == []


def test_ports_that_can_not_be_told_are_no_problem() -> None:
    (line,) = check_lustre(ASKED, replace(SYSTEM, ports=None), REGION)
    assert isinstance(line, Unasked)
    only([str(line)], f"{LUSTRE}.fileSystemId", "whether 'fs-0123456789abcdef0' lets TCP ports")


def test_a_file_system_can_not_be_mounted_from_a_vpc_that_the_stack_makes() -> None:
    lines = [str(p) for p in check_lustre(replace(ASKED, vpc_id=None), replace(SYSTEM, ports=None), REGION)]
    only(lines, "trainyard:network.vpcId", "lies in vpc-1", "it must be vpc-1")


@pytest.mark.parametrize(
    ("changes", "key", "words"),
    [
        ({"kind": "OPENZFS"}, "fileSystemId", "type OPENZFS; it must be of LUSTRE"),
        ({"lifecycle": "CREATING"}, "fileSystemId", "is CREATING; it must be AVAILABLE"),
        ({"vpc_id": "vpc-2"}, "fileSystemId", "lies in vpc-2; it must lie in vpc-1"),
        ({"zones": (OTHER,)}, "fileSystemId", f"lies in {OTHER}; it must lie in {ZONE}"),
        ({"dns_name": "fs-1.example"}, "dnsName", "it must be 'fs-1.example'"),
        ({"mount_name": "fsx"}, "mountName", "'abcdefgh' is invalid; it must be 'fsx'"),
        ({"ports": False}, "fileSystemId", "988 and 1018-1023"),
        ({"version": "2.10"}, "fileSystemId", "--file-system-type-version 2.15"),
    ],
)
def test_what_differs_is_named_by_its_key(changes: dict[str, Any], key: str, words: str) -> None:
    only(of_lustre(replace(SYSTEM, **changes)), f"{LUSTRE}.{key}", words)


def test_a_file_system_that_does_not_exist_is_named(cloud: Cloud) -> None:
    only(of_lustre(None), f"{LUSTRE}.fileSystemId", "does not exist")
    only(problems(cloud, lustre=ASKED), f"{LUSTRE}.fileSystemId", "does not exist")


def file_system(cloud: Cloud, network: Given, version: str = "2.15") -> tuple[Callable[..., list[str]], str]:
    """A file system that lets in the given workers' group: what is told of it, and its own group."""
    own = network.make_group("lustre")
    open_in = [rule_of(988, 988, network.group), rule_of(1018, 1023, network.group)]
    network.ec2.authorize_security_group_ingress(GroupId=own, IpPermissions=open_in)
    made = cloud.client("fsx").create_file_system(
        FileSystemType="LUSTRE",
        FileSystemTypeVersion=version,
        StorageCapacity=1200,
        SubnetIds=[network.private[ZONE]],
        SecurityGroupIds=[own],
        LustreConfiguration={"DeploymentType": "SCRATCH_2"},
    )["FileSystem"]
    given = WantedLustre(
        file_system_id=made["FileSystemId"],
        dns_name=made["DNSName"],
        mount_name=made["LustreConfiguration"]["MountName"],
        zones=(ZONE,),
        vpc_id=network.vpc,
        worker_group=network.group,
    )

    def told(vpc: dict[str, Any] | None = None, **changes: Any) -> list[str]:
        group = (vpc or {}).get("worker_group", network.group)
        lustre = replace(given, **{"worker_group": group, **changes})
        lines = network.problems(vpc=vpc, of=checks("given file system"), lustre=lustre)
        return [line for line in lines if "is CREATING" not in line]

    return told, own


def test_a_file_system_of_the_emulator_is_read_as_it_is(cloud: Cloud) -> None:
    network = Given(cloud)
    told, own = file_system(cloud, network)
    assert told() == []
    only(told(mount_name="other"), f"{LUSTRE}.mountName", "it must be")
    only(told(zones=(ZONE, OTHER)), f"{LUSTRE}.fileSystemId", f"it must lie in {OTHER}")
    network.ec2.revoke_security_group_ingress(GroupId=own, IpPermissions=[rule_of(988, 988, network.group)])
    only(told(), f"{LUSTRE}.fileSystemId", "TCP ports 988 and 1018-1023")


def test_a_file_system_that_amazon_linux_2023_can_not_mount_is_told(cloud: Cloud) -> None:
    told, _ = file_system(cloud, Given(cloud), version="2.10")
    only(told(), f"{LUSTRE}.fileSystemId", "is of Lustre 2.10", "it must be of 2.12 or 2.15")


def rule_of(first: int, last: int, group: str) -> dict[str, Any]:
    return {
        "IpProtocol": "tcp",
        "FromPort": first,
        "ToPort": last,
        "UserIdGroupPairs": [{"GroupId": group}],
    }


def rule(first: int, last: int, **more: Any) -> Rule:
    return Rule(protocol="tcp", first=first, last=last, **more)


def test_lustre_is_reached_when_every_port_is_open_to_the_group_or_to_all_subnets() -> None:
    group, block = {"groups": frozenset({"sg-w"})}, {"ranges": frozenset({"10.1.0.0/16"})}
    lists = {"lists": frozenset({"pl-1"})}

    def reached(*rules: Rule, workers: tuple[str, ...] = ("sg-w",)) -> bool | None:
        found = [Group(group_id="sg-f", vpc_id="vpc-1", ingress=rules)]
        return lets_in(found, LUSTRE_PORTS, workers, ["10.1.0.0/24", "10.1.1.0/24"])

    assert reached(rule(988, 988, **group), rule(1018, 1023, **block))
    assert reached(Rule(protocol="-1", **group))
    assert reached(rule(988, 988, **group)) is False
    assert reached(rule(988, 988, **group), rule(1021, 1023, **group)) is False
    assert reached(rule(988, 1023, ranges=frozenset({"10.2.0.0/16"}))) is False
    assert reached(rule(988, 1023, ranges=frozenset({"10.1.0.0/24"}))) is False
    assert reached(rule(988, 1023, **group), workers=()) is False
    assert reached(rule(988, 1023, **block), workers=())
    assert reached(rule(988, 1023, **lists)) is None
    assert reached(rule(988, 988, **lists)) is False


def test_a_group_that_the_stack_makes_is_let_in_by_ranges_or_once_it_is_there(cloud: Cloud) -> None:
    network = Given(cloud)
    lines, own = file_system(cloud, network)
    no_group = {"vpc": {"worker_group": None}}
    only(
        lines(**no_group),
        f"{LUSTRE}.fileSystemId",
        "from the workers' subnets, since the stack makes their group",
    )
    made = network.make_group("made")
    network.tag(made, **TAGS, **{"karpenter.sh/discovery": "train"})
    open_in = [rule_of(988, 988, made), rule_of(1018, 1023, made)]
    network.ec2.authorize_security_group_ingress(GroupId=own, IpPermissions=open_in)
    assert lines(**no_group) == []
    network.ec2.revoke_security_group_ingress(GroupId=own, IpPermissions=open_in)
    block = {"IpProtocol": "tcp", "FromPort": 988, "ToPort": 1023, "IpRanges": [{"CidrIp": "10.1.0.0/24"}]}
    network.ec2.authorize_security_group_ingress(GroupId=own, IpPermissions=[block])
    assert lines(**no_group) == []


def test_given_buckets_must_exist_and_lie_in_the_region(cloud: Cloud) -> None:
    s3, key = cloud.client("s3"), "trainyard:storage.lustre.s3.bucket"
    s3.create_bucket(Bucket="data-here", CreateBucketConfiguration={"LocationConstraint": REGION})
    there = SESSION.client(
        "s3",
        region_name="eu-west-1",
        endpoint_url=cloud.endpoint,
        aws_access_key_id=cloud.key,
        aws_secret_access_key=cloud.secret,
    )
    there.create_bucket(Bucket="data-there", CreateBucketConfiguration={"LocationConstraint": "eu-west-1"})

    def told(name: str) -> list[str]:
        return problems(cloud, buckets=(WantedBucket(key=key, name=name),))

    assert told("data-here") == []
    only(told("data-there"), key, "lies in eu-west-1; it must lie in us-west-2")
    only(told("data-nowhere"), key, "'data-nowhere' does not exist")


KEY = "trainyard:cluster.name"


def test_names_that_another_has_are_told_and_the_stacks_own_are_not(cloud: Cloud) -> None:
    names = {"repositories": ("train/launcher",), "key_aliases": ("alias/train-data",)}
    assert problems(cloud, **names) == []
    logs, sqs, ecr, kms = (cloud.client(s) for s in ("logs", "sqs", "ecr", "kms"))
    logs.create_log_group(logGroupName="/aws/eks/train/cluster-two")
    assert problems(cloud, **names) == []
    logs.create_log_group(logGroupName="/aws/eks/train/cluster")
    queue = sqs.create_queue(QueueName="train")["QueueUrl"]
    repository = ecr.create_repository(repositoryName="train/launcher")["repository"]["repositoryArn"]
    key = kms.create_key()["KeyMetadata"]["KeyId"]
    kms.create_alias(AliasName="alias/train-data", TargetKeyId=key)
    cloud.cluster("train")
    lines = problems(cloud, **names)
    assert [line.split(" exists already")[0] for line in lines] == [
        f"{KEY}: EKS cluster 'train'",
        f"{KEY}: log group '/aws/eks/train/cluster'",
        f"{KEY}: SQS queue 'train'",
        f"{KEY}: KMS alias 'alias/train-data'",
        f"{KEY}: ECR repository 'train/launcher'",
    ]
    arn = f"arn:aws:logs:{REGION}:123456789012:log-group:/aws/eks/train/cluster"
    logs.tag_resource(resourceArn=arn, tags=TAGS)
    sqs.tag_queue(QueueUrl=queue, Tags=TAGS)
    ecr.tag_resource(resourceArn=repository, tags=[{"Key": k, "Value": v} for k, v in TAGS.items()])
    kms.tag_resource(KeyId=key, Tags=[{"TagKey": k, "TagValue": v} for k, v in TAGS.items()])
    eks = cloud.client("eks")
    eks.tag_resource(resourceArn=eks.describe_cluster(name="train")["cluster"]["arn"], tags=TAGS)
    assert problems(cloud, **names) == []


def test_cluster_of_ipv6_is_refused() -> None:
    assert check_cluster(GIVEN, FOUND, REGION) == []
    (problem,) = check_cluster(GIVEN, replace(FOUND, ip_family="ipv6"), REGION)
    assert problem.key == "trainyard:cluster.existing.name"
    assert "ipv6" in problem.message
