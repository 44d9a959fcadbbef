"""Each setting of network, cluster, pools and storage reaches the registered resources.

No value is a default, so a key that is read but not applied fails the test with its name.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import pulumi
import pytest

from components.documents import versions
from infra import volumes
from infra.settings import read
from infra.settings.reference import keys
from tests.unit.components.recording import Recorded, deploy
from tests.unit.infra.changing import EXISTING_LUSTRE, GIVEN_VPC, NOW
from tests.unit.infra.whole import in_a_small_checkout, whole

OPS = "arn:aws:iam::123456789012:role/ops"
VOLUME_KEY = "arn:aws:kms:us-west-2:123456789012:key/0123abcd-0123-0123-0123-0123456789ab"
MADE: dict[str, Any] = {
    "aws:region": "us-west-2",
    "trainyard:network": {
        "cidr": "10.128.0.0/16",
        "zones": ["us-west-2b", "us-west-2c"],
        "natPerZone": True,
        "interfaceEndpoints": ["kms"],
        "flowLogRetentionDays": 400,
    },
    "trainyard:cluster": {
        "name": "research",
        "version": "1.34",
        "administrators": [OPS, "arn:aws:iam::210987654321:role/guest"],
        "accountId": "123456789012",
        "publicAccessCidrs": ["198.51.100.0/24"],
        "deployFrom": "vpc",
        "systemNodes": {"instanceType": "m6i.xlarge", "count": 3},
        "karpenterReplicas": 1,
        "nodeRepair": False,
        "addonVersions": {
            "coredns": "v1.12.4-eksbuild.1",
            "vpc-cni": "v1.19.0-eksbuild.1",
            "aws-fsx-csi-driver": "v1.5.0-eksbuild.1",
        },
        "ami": "al2023@v20260101",
        "volumeKey": VOLUME_KEY,
        "logRetentionDays": 731,
        "lateLogSeconds": 7,
    },
    "trainyard:pools": [
        {
            "name": "odd",
            "instanceType": "p4d.24xlarge",
            "zone": "us-west-2c",
            "maxNodes": 3,
            "warmNodes": 1,
            "efa": "bandwidth",
            "purchase": "spot",
            "placementGroup": True,
            "rootVolumeGiB": 321,
            "dataSnapshotId": "snap-0123456789abcdef1",
            "dataVolumeGiB": 123,
            "idleSeconds": 99,
        }
    ],
    "trainyard:storage": {
        "prefix": "weights",
        "keepOldVersionsDays": 12,
        "keepJobLogsDays": 13,
        "lustre": {
            "deploymentType": "PERSISTENT_1",
            "storageType": "HDD",
            "driveCache": "READ",
            "capacityGiB": 3600,
            "throughput": 40,
            "zone": "us-west-2c",
            "compression": "NONE",
            "mountPath": "/shared",
            "backupDays": 3,
        },
    },
    # It mounts the file system where the pods do.
    "trainyard:nodeCheck": True,
}
OTHERWISE: dict[str, Any] = {
    **MADE,
    "trainyard:network": {
        **GIVEN_VPC,
        "publicSubnetIds": {"us-west-2a": "subnet-0c23456789abcdef0"},
        "workerSecurityGroupId": "sg-0123456789abcdef1",
        "flowLogs": True,
        "cidr": "10.9.0.0/16",
        "interfaceEndpoints": ["kms"],
    },
    "trainyard:pools": [
        {
            "name": "reserved",
            "instanceType": "p5.48xlarge",
            "zone": "us-west-2b",
            "maxNodes": 2,
            "purchase": "reserved",
            "capacityReservationIds": ["cr-0123456789abcdef1"],
            "onDemandFallback": True,
            "placementGroup": "theirs",
            "placementGroupOfReservation": "theirs",
        }
    ],
    "trainyard:storage": {
        "lustre": {
            "throughput": 1000,
            "capacityGiB": 4800,
            "metadataIops": 6000,
            "efa": True,
            "s3": {"bucket": "datasets", "prefix": "images", "path": "/images"},
        }
    },
}


ADDON, LOGS = "aws:eks/addon:Addon", "aws:cloudwatch/logGroup:LogGroup"
CLUSTER, NODES = "eks:index:Cluster research", "eks:index:ManagedNodeGroup research-system"
KARPENTER = "kubernetes:helm.sh/v3:Release karpenter"
API_RULE = "aws:vpc/securityGroupIngressRule:SecurityGroupIngressRule research-api-from-10.128.0.0-16"
CLASS, POOL = "kubernetes:karpenter.k8s.aws/v1:EC2NodeClass", "kubernetes:karpenter.sh/v1:NodePool"
ODD, ODD_POOL, RESERVED = f"{CLASS} pools-odd-class", f"{POOL} pools-odd", f"{CLASS} pools-reserved-class"
DISKS, WANTED = "spec.blockDeviceMappings", "spec.template.spec.requirements"
LUSTRE = "aws:fsx/lustreFileSystem:LustreFileSystem research-lustre"
LINK = "aws:fsx/dataRepositoryAssociation:DataRepositoryAssociation research-lustre"
OLD_VERSIONS = "aws:s3/bucketLifecycleConfiguration:BucketLifecycleConfiguration research-models"
CHECK = "spec.jobTemplate.spec.template.spec.containers.0.volumeMounts"

# Setting -> (type and name of a resource, path in its inputs, expected value).
ARRIVES: list[tuple[str, str, str, Any]] = [
    ("network.cidr", "aws:ec2/vpc:Vpc research", "cidrBlock", "10.128.0.0/16"),
    ("network.zones", "aws:ec2/subnet:Subnet research-private-us-west-2b", "cidrBlock", "10.128.0.0/18"),
    (
        "network.natPerZone",
        "aws:ec2/natGateway:NatGateway research-us-west-2c",
        "allocationId",
        "research-nat-us-west-2c-id",
    ),
    (
        "network.interfaceEndpoints",
        "aws:ec2/vpcEndpoint:VpcEndpoint research-endpoints-kms",
        "vpcId",
        "research-id",
    ),
    ("network.flowLogRetentionDays", f"{LOGS} research-flow-logs", "retentionInDays", 400),
    ("cluster.name", CLUSTER, "name", "research"),
    ("cluster.version", CLUSTER, "version", "1.34"),
    ("cluster.administrators", "aws:eks/accessEntry:AccessEntry research-role-ops", "principalArn", OPS),
    ("cluster.accountId", "pulumi:providers:aws aws", "allowedAccountIds", '["123456789012"]'),
    ("cluster.publicAccessCidrs", CLUSTER, "publicAccessCidrs", ["198.51.100.0/24"]),
    ("cluster.deployFrom", API_RULE, "cidrIpv4", "10.128.0.0/16"),
    ("cluster.systemNodes.instanceType", NODES, "instanceTypes", ["m6i.xlarge"]),
    ("cluster.systemNodes.count", NODES, "scalingConfig", {"desiredSize": 3, "minSize": 3, "maxSize": 4}),
    ("cluster.karpenterReplicas", KARPENTER, "values.replicas", 1),
    ("cluster.volumeKey", ODD, f"{DISKS}.0.ebs.kmsKeyID", VOLUME_KEY),
    (
        "cluster.volumeKey",
        "aws:ec2/launchTemplate:LaunchTemplate research-system",
        "blockDeviceMappings.0.ebs.kmsKeyId",
        VOLUME_KEY,
    ),
    ("cluster.volumeKey", "aws:kms/grant:Grant research-karpenter-disks", "keyId", VOLUME_KEY),
    (
        "cluster.volumeKey",
        "aws:kms/grant:Grant research-system-disks",
        "granteePrincipal",
        "arn:aws:iam::123456789012:role/aws-service-role/autoscaling.amazonaws.com/AWSServiceRoleForAutoScaling",
    ),
    ("cluster.nodeRepair", KARPENTER, "values.settings.featureGates.nodeRepair", False),
    ("cluster.addonVersions", f"{ADDON} research-coredns", "addonVersion", "v1.12.4-eksbuild.1"),
    ("cluster.addonVersions", f"{ADDON} research-vpc-cni", "addonVersion", "v1.19.0-eksbuild.1"),
    ("cluster.addonVersions", f"{ADDON} csi-aws-fsx-csi-driver", "addonVersion", "v1.5.0-eksbuild.1"),
    ("cluster.ami", ODD, "spec.amiSelectorTerms.0.alias", "al2023@v20260101"),
    ("cluster.logRetentionDays", f"{LOGS} research-control-plane", "retentionInDays", 731),
    ("cluster.lateLogSeconds", "pulumi-python:dynamic/drain:Remains remains", "lateLogSeconds", 7),
    ("pools[].name", ODD_POOL, "metadata.name", "odd"),
    ("pools[].instanceType", ODD_POOL, f"{WANTED}.0.values", ["p4d.24xlarge"]),
    ("pools[].zone", ODD_POOL, f"{WANTED}.1.values", ["us-west-2c"]),
    ("pools[].zone", ODD, "spec.subnetSelectorTerms.0.id", "research-private-us-west-2c-id"),
    ("pools[].maxNodes", ODD_POOL, "spec.limits", {"nvidia.com/gpu": "24"}),
    ("pools[].warmNodes", "kubernetes:apps/v1:Deployment warm-odd", "spec.replicas", 1),
    ("pools[].efa", ODD, "spec.networkInterfaces.7.networkCardIndex", 3),
    ("pools[].purchase", ODD_POOL, f"{WANTED}.2.values", ["spot"]),
    ("pools[].placementGroup", ODD, "spec.placementGroupSelector.name", "research-odd"),
    ("pools[].rootVolumeGiB", ODD, f"{DISKS}.0.ebs.volumeSize", "321Gi"),
    ("pools[].dataSnapshotId", ODD, f"{DISKS}.1.ebs.snapshotID", "snap-0123456789abcdef1"),
    ("pools[].dataVolumeGiB", ODD, f"{DISKS}.1.ebs.volumeSize", "123Gi"),
    ("pools[].idleSeconds", ODD_POOL, "spec.disruption.consolidateAfter", "99s"),
    ("storage.keepOldVersionsDays", OLD_VERSIONS, "rules.0.noncurrentVersionExpiration.noncurrentDays", 12),
    ("storage.keepJobLogsDays", OLD_VERSIONS, "rules.2.expiration.days", 13),
    ("storage.lustre.deploymentType", LUSTRE, "deploymentType", "PERSISTENT_1"),
    ("storage.lustre.storageType", LUSTRE, "storageType", "HDD"),
    ("storage.lustre.driveCache", LUSTRE, "driveCacheType", "READ"),
    ("storage.lustre.capacityGiB", LUSTRE, "storageCapacity", 3600),
    ("storage.lustre.throughput", LUSTRE, "perUnitStorageThroughput", 40),
    ("storage.lustre.zone", LUSTRE, "subnetIds", "research-private-us-west-2c-id"),
    ("storage.lustre.compression", LUSTRE, "dataCompressionType", "NONE"),
    ("storage.lustre.backupDays", LUSTRE, "automaticBackupRetentionDays", 3),
]
OTHERS_ARRIVE: list[tuple[str, str, str, Any]] = [
    (
        "network.vpcId",
        "aws:ec2/securityGroup:SecurityGroup research-endpoints",
        "vpcId",
        "vpc-0123456789abcdef0",
    ),
    ("network.privateSubnetIds", RESERVED, "spec.subnetSelectorTerms.0.id", "subnet-0b23456789abcdef0"),
    ("network.publicSubnetIds", CLUSTER, "publicSubnetIds", ["subnet-0c23456789abcdef0"]),
    (
        "network.workerSecurityGroupId",
        RESERVED,
        "spec.securityGroupSelectorTerms.0.id",
        "sg-0123456789abcdef1",
    ),
    ("network.flowLogs", "aws:ec2/flowLog:FlowLog research-flow-logs", "vpcId", "vpc-0123456789abcdef0"),
    ("network.cidr", API_RULE.replace("10.128", "10.9"), "cidrIpv4", "10.9.0.0/16"),
    (
        "network.interfaceEndpoints",
        "aws:ec2/vpcEndpoint:VpcEndpoint research-endpoints-kms",
        "vpcId",
        "vpc-0123456789abcdef0",
    ),
    (
        "pools[].capacityReservationIds",
        RESERVED,
        "spec.capacityReservationSelectorTerms",
        [{"id": "cr-0123456789abcdef1"}],
    ),
    ("pools[].onDemandFallback", f"{POOL} pools-reserved", f"{WANTED}.2.values", ["reserved", "on-demand"]),
    ("pools[].placementGroup", RESERVED, "spec.placementGroupSelector.name", "theirs"),
    ("storage.lustre.metadataIops", LUSTRE, "metadataConfiguration.iops", 6000),
    ("storage.lustre.efa", LUSTRE, "efaEnabled", True),
    ("storage.lustre.s3.bucket", LINK, "dataRepositoryPath", "s3://datasets/images/"),
    ("storage.lustre.s3.prefix", LINK, "dataRepositoryPath", "s3://datasets/images/"),
    ("storage.lustre.s3.path", LINK, "fileSystemPath", "/images"),
]
# Tested elsewhere: below, in a network without egress (test_private_network.py), on an existing cluster
# (test_shipped_stacks.py), in launch requests (test_launch_request.py); and settings that are only checked.
ELSEWHERE = {
    *(
        "storage.prefix",
        "storage.lustre.mountPath",
        "storage.lustre.s3",
        "storage.lustre",
        "cluster.systemNodes",
    ),
    *("storage.lustre.existing", *(f"storage.lustre.existing.{key}" for key in EXISTING_LUSTRE)),
    "network.private",
    *(key for key in keys() if key.startswith("cluster.existing")),
    *("pools[].reservationType", "pools[].reservationBegins", "pools[].reservationEnds"),
    "pools[].placementGroupOfReservation",
}


@pytest.fixture(scope="module", autouse=True)
def checkout() -> Iterator[None]:
    with in_a_small_checkout():
        yield


@pytest.fixture(scope="module")
def made(checkout: None) -> Recorded:
    return whole(read("test", MADE, NOW))


@pytest.fixture(scope="module")
def otherwise(checkout: None) -> Recorded:
    return whole(read("test", OTHERWISE, NOW))


def at(value: Any, place: str) -> Any:
    """Return the value at a path of keys and list indexes, separated by dots."""
    for part in place.split("."):
        value = value[int(part) if isinstance(value, list) else part]
    return value


@pytest.mark.parametrize(("key", "resource", "place", "expected"), ARRIVES)
def test_setting_reaches_its_resource(
    made: Recorded, key: str, resource: str, place: str, expected: Any
) -> None:
    kind, name = resource.split(" ")
    assert at(made.one(kind, name).inputs, place) == expected, key


@pytest.mark.parametrize(("key", "resource", "place", "expected"), OTHERS_ARRIVE)
def test_setting_that_excludes_another_reaches_its_resource(
    otherwise: Recorded, key: str, resource: str, place: str, expected: Any
) -> None:
    kind, name = resource.split(" ")
    assert at(otherwise.one(kind, name).inputs, place) == expected, key


def test_addons_with_a_version_setting_are_those_of_a_stack(made: Recorded) -> None:
    """`MADE` has a file system, and so every add-on."""
    assert {each.inputs["addonName"] for each in made.of(ADDON)} == set(versions.ADDONS)


def test_every_setting_of_these_sections_is_tested() -> None:
    sections = ("network", "cluster", "pools[]", "storage")
    every = {key for key in keys() if key.split(".")[0] in sections}
    assert {row[0] for row in (*ARRIVES, *OTHERS_ARRIVE)} | ELSEWHERE == every


def test_models_prefix_and_mount_path_reach_their_resources(made: Recorded) -> None:
    assert made.result["modelUri"] == "s3://research-models-1a2b3c4/weights"
    mounts = at(made.one("kubernetes:batch/v1:CronJob", "check-odd").inputs, CHECK)
    assert "/shared" in [each["mountPath"] for each in mounts]


def test_existing_file_system_is_mounted() -> None:
    """It needs nothing of the network or the bucket, which do not exist yet."""
    config = {**OTHERWISE, "trainyard:storage": {"lustre": {"existing": EXISTING_LUSTRE}}}
    settings = read("test", config, NOW)

    def program() -> dict[str, Any]:
        nothing = cast(Any, None)
        found = volumes.file_system(settings, nothing, nothing, pulumi.ResourceOptions())
        assert found is not None
        return {
            "fileSystemId": found.file_system_id,
            "dnsName": found.dns_name,
            "mountName": found.mount_name,
        }

    assert deploy(program).result == EXISTING_LUSTRE
