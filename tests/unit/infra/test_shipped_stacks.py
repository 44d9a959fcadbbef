"""Resources of each shipped stack file and of stacks with an existing network or cluster."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from datetime import UTC, date, datetime
from typing import Any
from unittest import mock

import pulumi
import pytest

from components.documents import user_data
from infra import stack
from infra.settings import Settings, read
from tests.previews import ALIKE
from tests.shipped import shipped
from tests.unit.components.recording import ADDON_VERSION, Recorded, deploy
from tests.unit.infra.changing import NOW, POOL, ROOT, settings, stack_file, with_, with_existing_cluster
from tests.unit.infra.whole import images, in_a_small_checkout, whole
from tests.unit.infra.whole import shipped as recorded
from trainyard.policies import waivers
from trainyard.policies.evaluate import evaluate
from trainyard.policies.model import Resource, Stack

pytestmark = [
    # Each stack file takes half a second of processor time; `make check` has those of test_stack.
    pytest.mark.long,
]

WAIVERS = waivers.load()
SHIPPED = shipped()
VPC = "aws:ec2/vpc:Vpc"
SUBNET = "aws:ec2/subnet:Subnet"
NODE_CLASS = "kubernetes:karpenter.k8s.aws/v1:EC2NodeClass"
NODE_POOL = "kubernetes:karpenter.sh/v1:NodePool"
ACCOUNT = "kubernetes:core/v1:ServiceAccount"
BASE_IMAGE = f"registry.example/python@sha256:{'0' * 64}"
LUSTRE = "aws:fsx/lustreFileSystem:LustreFileSystem"


@pytest.fixture(scope="module", autouse=True)
def checkout() -> Iterator[None]:
    """A small checkout, so that image digests don't read this one."""
    with in_a_small_checkout():
        yield


@pytest.fixture(scope="module")
def plain(checkout: None) -> Recorded:
    """The smallest stack file; an empty `training` is the project's default for no run."""
    return whole(settings(with_({"training": {}})))


@pytest.fixture(scope="module")
def unusual(checkout: None) -> Recorded:
    """Settings that no shipped stack file has."""
    change = {
        "cluster": {"publicAccessCidrs": [], "deployFrom": "vpc"},
        "pools": [{**POOL, "instanceType": "p5.48xlarge"}],
        "storage": {"lustre": {"throughput": 1000, "capacityGiB": 4800, "efa": True}},
        "serviceAccounts": [{"name": "reader", "bucket": "datasets"}],
    }
    return whole(settings(with_(change)))


@pytest.fixture(scope="module")
def on_a_given_cluster(checkout: None) -> Recorded:
    queues = [{"name": "research", "pool": "small"}]
    return whole(settings({**with_existing_cluster(), "trainyard:queues": queues}))


@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_stack_looks_up_addon_versions_and_ends_in_drain(name: str) -> None:
    found = recorded(name)
    assert set(found.invokes) == {ADDON_VERSION}
    # The drain does not wait for the pod that proves the mount.
    drained = [r for r in found.resources if r.name != "lustre-proof"]
    assert drained[-1].type == "pulumi-python:dynamic/drain:Drain"
    pools = read(name, stack_file(name), NOW).pools
    assert {r.inputs["metadata"]["name"] for r in found.of(NODE_POOL)} == {pool.name for pool in pools}
    assert len(found.of("eks:index:Cluster")) == 1


@pytest.mark.parametrize("name", [name for name in SHIPPED if name.endswith("existing-vpc")])
def test_existing_vpc_gets_no_network_resources(name: str) -> None:
    found = recorded(name)
    for kind in (VPC, SUBNET, "aws:ec2/natGateway:NatGateway", "aws:ec2/flowLog:FlowLog"):
        assert found.of(kind) == []
    given = stack_file(name)["trainyard:network"]["privateSubnetIds"]
    (node_class,) = found.of(NODE_CLASS)
    zone = stack_file(name)["trainyard:pools"][0]["zone"]
    assert node_class.inputs["spec"]["subnetSelectorTerms"] == [{"id": given[zone]}]


@pytest.mark.parametrize(("name", "vpc"), [("g4dn-existing-vpc", None), ("g4dn", "trainyard-g4dn-id")])
def test_remains_are_searched_only_in_the_stacks_own_vpc(name: str, vpc: str | None) -> None:
    """GuardDuty's endpoint and group belong to an existing VPC's owner (`components.draining.steps.remove_remains`)."""
    found = recorded(name).one("pulumi-python:dynamic/drain:Remains").inputs
    assert found.get("vpc") == vpc


@pytest.mark.parametrize("alike", ALIKE, ids=" ".join)
def test_similar_stacks_violate_the_same_policies(alike: tuple[str, ...]) -> None:
    """`make test` has the engine's preview of one of them. Mocks know no references, for which some rules ask."""

    def broken(name: str) -> set[tuple[str, str]]:
        stack = Stack(
            [
                Resource(type=r.type, name=r.name, urn=r.name, properties=r.inputs)
                for r in recorded(name).resources
            ]
        )
        return {(each.rule.id, each.resource.type) for each in evaluate(stack, WAIVERS).violations}

    first, *others = map(broken, alike)
    assert others == [first] * len(others)


def test_new_vpc_encrypts_flow_logs_with_their_own_key() -> None:
    found = recorded("dev")
    assert len(found.of("aws:ec2/flowLog:FlowLog")) == 1
    assert {r.name for r in found.of("aws:kms/key:Key")} == {
        "trainyard-dev-secrets",
        "trainyard-dev-data",
        "trainyard-dev-logs",
    }


def test_trainium_queue_workers_get_all_devices_of_a_node() -> None:
    (queue,) = recorded("trn1").of("kubernetes:torchrun.ai/v1alpha1:TorchrunQueue")
    spec = queue.inputs["spec"]
    assert spec["nodeResources"]["gpus"] == 0
    (worker,) = spec["podTemplate"]["spec"]["containers"]
    devices = {"aws.amazon.com/neuron": "16", "vpc.amazonaws.com/efa": "8"}
    assert worker["resources"] == {"requests": devices, "limits": devices}
    assert spec["scheduling"]["pool"] == recorded("trn1").one(NODE_POOL).inputs["metadata"]["name"]
    assert spec["storage"]["workspace"]["bucket"].startswith("s3://trainyard-trn1-models")
    for name in SHIPPED:
        if name != "trn1":
            assert [r for r in recorded(name).resources if "torchrun" in f"{r.type} {r.name}".lower()] == []


def test_reservation_reaches_node_class_as_only_capacity() -> None:
    for name, reservation in (("p4de-odcr", "cr-0123456789abcdef0"), ("p5", "cr-0123456789abcdef2")):
        (node_class,) = recorded(name).of(NODE_CLASS)
        assert node_class.inputs["spec"]["capacityReservationSelectorTerms"] == [{"id": reservation}]
        assert recorded(name).of("aws:ec2/capacityReservation:CapacityReservation") == []


def test_placement_group_is_created_before_its_pool() -> None:
    found = recorded("p4d")
    group = found.one("aws:ec2/placementGroup:PlacementGroup")
    assert group.inputs["name"] == "trainyard-p4d-p4d"
    assert (group.type, group.name) in found.needs(NODE_CLASS, "pools-p4d-class")
    spec = found.one(NODE_CLASS).inputs["spec"]
    assert spec["placementGroupSelector"] == {"name": "trainyard-p4d-p4d"}


def test_file_system_is_in_the_node_zone_and_linked_to_bucket() -> None:
    found = recorded("lustre-existing-vpc")
    assert found.one(LUSTRE).inputs["subnetIds"] == "subnet-0a23456789abcdef0"
    link = found.one("aws:fsx/dataRepositoryAssociation:DataRepositoryAssociation").inputs
    assert link["dataRepositoryPath"] == "s3://trainyard-lustre-existing-vpc-models-1a2b3c4/data/"
    assert link["fileSystemPath"] == "/data"
    (pool,) = found.of(NODE_POOL)
    assert (
        pool.inputs["spec"]["template"]["spec"]["startupTaints"][0]["key"]
        == "fsx.csi.aws.com/agent-not-ready"
    )
    proof = found.one("kubernetes:core/v1:Pod", "lustre-proof").inputs
    assert proof["metadata"]["name"] == "attach-pvc"
    assert proof["spec"]["nodeSelector"] == {"karpenter.sh/nodepool": "p3dn"}


def test_node_release_does_not_depend_on_the_mount_proof() -> None:
    found = recorded("lustre-existing-vpc")
    pod = ("kubernetes:core/v1:Pod", "lustre-proof")
    drain = "pulumi-python:dynamic/drain:Drain"
    assert not [r.name for r in found.resources if pod in found.needs(r.type, r.name)]
    needed = found.needs(*pod)
    for other in (
        ("kubernetes:apps/v1:Deployment", "warm-p3dn"),
        ("kubernetes:core/v1:PersistentVolumeClaim", "lustre"),
    ):
        assert other in needed
        assert other in found.needs(drain, "drain")


@pytest.mark.long
def test_user_data_sets_up_lustre_over_efa_where_enabled(unusual: Recorded) -> None:
    with_efa, without = (found.one(NODE_CLASS).inputs["spec"] for found in (unusual, recorded("p4d")))
    assert user_data.script(8) in with_efa["userData"]
    assert recorded("p4d").of(LUSTRE), "there is a file system"
    assert "lnetctl" not in without["userData"]


def test_the_control_plane_waits_for_no_file_system() -> None:
    found = recorded("p4d")
    cluster = found.one("eks:index:Cluster")
    file_system = found.one(LUSTRE)
    assert (LUSTRE, file_system.name) not in found.needs(cluster.type, cluster.name)
    assert (cluster.type, cluster.name) not in found.needs(LUSTRE, file_system.name)
    assert (LUSTRE, file_system.name) not in found.needs(NODE_CLASS, "pools-p4d-class")


def test_lustre_proof_without_warm_nodes_is_absent(unusual: Recorded) -> None:
    assert unusual.of("kubernetes:core/v1:PersistentVolumeClaim"), "there is a mount to prove"
    assert unusual.of("kubernetes:core/v1:Pod") == []


def test_service_account_can_write_below_models_prefix() -> None:
    found = recorded("cpu")
    account = found.one(ACCOUNT, "default-pytorch-training-sa").inputs["metadata"]
    assert account["annotations"]["eks.amazonaws.com/role-arn"].endswith(
        "role/trainyard-cpu-pytorch-training-sa"
    )
    role = found.one("aws:iam/role:Role", "trainyard-cpu-pytorch-training-sa")
    assert "system:serviceaccount:default:pytorch-training-sa" in role.inputs["assumeRolePolicy"]
    policy = json.loads(found.one("aws:iam/policy:Policy", f"{role.name}-bucket").inputs["policy"])
    statements = {each["Sid"]: each for each in policy["Statement"]}
    assert (
        statements["ReadAndWriteObjects"]["Resource"] == "arn:aws:s3:::trainyard-cpu-models-1a2b3c4/models/*"
    )
    assert "Delete" not in json.dumps(policy)


def test_account_reading_another_bucket_cannot_write_or_use_key(unusual: Recorded) -> None:
    policy = json.loads(unusual.one("aws:iam/policy:Policy", "trainyard-test-reader-bucket").inputs["policy"])
    assert [each["Sid"] for each in policy["Statement"]] == ["ReadObjects", "ListObjects"]
    assert policy["Statement"][0]["Resource"] == "arn:aws:s3:::datasets/*"


def test_debug_pod_exists_if_set() -> None:
    assert recorded("cpu").one("kubernetes:apps/v1:StatefulSet").inputs["metadata"]["name"] == "network-debug"
    assert recorded("g4dn").of("kubernetes:apps/v1:StatefulSet") == []


def test_stack_without_run_has_no_launcher(plain: Recorded) -> None:
    assert plain.of("kubernetes:batch/v1:Job") == []
    assert plain.result["launcherManifest"] is None
    assert plain.result["runId"] is None


def test_warnings_are_logged_first(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    asked: list[tuple[str, date]] = []

    def lines(settings: Settings, today: date) -> list[str]:
        asked.append((settings.cluster.version, today))
        return ["it ends", "it is spot"]

    class Enough(Exception):
        """Stop the program, whose rest is irrelevant here."""

    def program() -> None:
        with pytest.raises(Enough):
            stack.deploy(read("test", with_({"cluster": {"version": "1.34"}}), NOW))

    monkeypatch.setattr(stack.warnings, "find_warnings", lines)
    monkeypatch.setattr(pulumi.log, "warn", lambda line, *_more, **_other: said.append(line))
    monkeypatch.setattr(stack, "build_foundation", mock.Mock(side_effect=Enough))
    deploy(program)
    assert said == ["it ends", "it is spot"]
    assert asked == [("1.34", datetime.now(UTC).date())]


def test_existing_cluster_gets_only_resources_inside_it(
    on_a_given_cluster: Recorded, plain: Recorded
) -> None:
    found = on_a_given_cluster
    for kind in ("eks:index:Cluster", "eks:index:ManagedNodeGroup", "aws:eks/addon:Addon"):
        assert found.of(kind) == []
    assert len(found.of("kubernetes:helm.sh/v3:Release")) == 2
    (entry,) = found.of("aws:eks/accessEntry:AccessEntry")
    assert entry.inputs["type"] == "EC2_LINUX"
    (node_class,) = found.of(NODE_CLASS)
    assert {"id": "sg-0123456789abcdef0"} in node_class.inputs["spec"]["securityGroupSelectorTerms"]
    drain = found.resources[-1].inputs
    # Other users' pools and the jobs in their namespaces remain.
    assert (drain["pools"], drain["torchrun"]) == (["small"], True)
    own = plain.resources[-1].inputs
    assert {"pools", "torchrun"} & own.keys() == set(), "everything in a cluster of its own is the stack's"


def test_deployer_in_the_vpc_can_reach_the_api(unusual: Recorded, plain: Recorded) -> None:
    def inside(found: Recorded) -> list[str]:
        rules = found.of("aws:vpc/securityGroupIngressRule:SecurityGroupIngressRule")
        return [
            r.inputs["cidrIpv4"] for r in rules if r.inputs.get("fromPort") == 443 and "cidrIpv4" in r.inputs
        ]

    assert inside(unusual) == ["10.64.0.0/16"]
    assert inside(plain) == []


def built(pools: Any = None, **images_section: Any) -> dict[str, dict[str, Any]]:
    """Return the builds of the stack's own images."""
    change = {"images": images_section, **({"pools": pools} if pools else {})}
    found = images(settings(with_(change))).of("docker-build:index:Image")
    return {image.name.rsplit("-", 1)[1]: image.inputs for image in found}


def test_package_index_reaches_the_image_builds() -> None:
    index = "https://pypi.example/simple"
    given = built(packageIndex=index)
    assert {name: image["buildArgs"] for name, image in given.items()} == {
        "launcher": {"PIP_INDEX_URL": index},
        "trainer": {"PIP_INDEX_URL": index},
    }
    both = built(packageIndex=index, baseImages={"trainer": BASE_IMAGE})["trainer"]
    assert both["buildArgs"] == {"PYTHON_IMAGE": BASE_IMAGE, "PIP_INDEX_URL": index}
    other = built(packageIndex="https://pypi.example/other")["trainer"]
    alone = built(baseImages={"trainer": BASE_IMAGE})["trainer"]
    assert alone["buildArgs"] == {"PYTHON_IMAGE": BASE_IMAGE}
    tags = [image["tags"][0] for image in (built()["trainer"], given["trainer"], other, both, alone)]
    assert len(set(tags)) == len(tags), "tags never move: another index is another tag"


def test_debian_and_efa_mirrors_reach_the_trainer_image() -> None:
    debian, efa = "http://debian.example", "https://files.example/efa"
    given = built(debianMirror=debian, efaInstaller=efa)
    assert given["trainer"]["buildArgs"] == {"DEBIAN_MIRROR": debian, "EFA_URL": efa}
    assert "buildArgs" not in given["launcher"]
    swapped = built(debianMirror=efa, efaInstaller="https://debian.example")["trainer"]
    assert swapped["tags"] != given["trainer"]["tags"]
    text = (ROOT / "trainer" / "Dockerfile").read_text()
    for name in given["trainer"]["buildArgs"]:
        assert re.search(rf"^ARG {name}=", text, re.MULTILINE)


def test_stack_without_gpus_builds_a_cpu_trainer() -> None:
    cpu = {"name": "cpu", "instanceType": "m5.large", "zone": "us-west-2b", "maxNodes": 4}
    gpu = {"name": "gpu", "instanceType": "g5.12xlarge", "zone": "us-west-2b", "maxNodes": 4}
    alone, both = built(pools=[cpu]), built(pools=[cpu, gpu])
    assert alone["trainer"]["target"] == "cpu"
    assert "target" not in alone["launcher"]
    assert "target" not in both["trainer"]
    assert alone["trainer"]["tags"] != both["trainer"]["tags"]
    assert alone["launcher"]["tags"] == both["launcher"]["tags"]
    assert "\nFROM base AS cpu\n" in (ROOT / "trainer" / "Dockerfile").read_text()


@pytest.mark.parametrize("name", stack.IMAGES)
def test_dockerfile_declares_the_build_arguments(name: str) -> None:
    text = (ROOT / name / "Dockerfile").read_text()
    assert re.search(r"^ARG PYTHON_IMAGE=", text, re.MULTILINE)
    # After FROM, because pip does not see an argument before it.
    build = text.split("\nFROM ", 1)[1]
    assert build.index("\nARG PIP_INDEX_URL\n") < build.index("\nRUN pip install ")
