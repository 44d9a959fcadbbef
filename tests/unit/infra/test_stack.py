"""The whole program under mocks: the resources of a stack file and their properties."""

from __future__ import annotations

import json
import re
import runpy
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pulumi
import pytest

from components.cluster import without_creator_permissions
from components.documents.images import context_digest
from components.documents.tags import stack_tags
from infra import stack
from infra.settings import PROJECT, SettingsError, SettingsNotPassedError, load, read
from tests.unit.components.recording import Recorded, deploy
from tests.unit.infra.changing import NOW, ROOT, settings, stack_file, with_
from tests.unit.infra.whole import images, in_a_small_checkout, shipped, small_checkout, whole
from tests.unit.policies.building import made
from trainyard.policies.evaluate import evaluate
from trainyard.policies.model import Stack
from trainyard.policies.tags import TAGGABLE, tags_complete

GIVEN = {name: f"registry.example/{name}@sha256:{'0' * 64}" for name in ("launcher", "trainer")}


def settings_of(name: str, **changes: Any) -> Any:
    return read(name, {**stack_file(name), **changes}, NOW)


@pytest.fixture(scope="module", autouse=True)
def checkout() -> Iterator[None]:
    """A small checkout, so that image digests don't read this one."""
    with in_a_small_checkout():
        yield


@pytest.fixture
def local() -> Recorded:
    return shipped("local")


@pytest.fixture
def dev() -> Recorded:
    return shipped("dev")


@pytest.fixture(scope="module")
def other(checkout: None) -> Recorded:
    """Settings of no shipped stack file: existing images, CPUs, a private API, protected data, no run."""
    cluster = stack_file("dev")["trainyard:cluster"]
    changes = {
        "trainyard:network": {"natPerZone": True},
        "trainyard:cluster": {**cluster, "publicAccessCidrs": [], "deployFrom": "vpc"},
        "trainyard:protectData": True,
        "trainyard:images": {"build": False, **GIVEN},
        "trainyard:pools": [
            {"name": "cpu", "instanceType": "c5.2xlarge", "zone": "us-west-2b", "maxNodes": 2}
        ],
        "trainyard:training": {"pool": "cpu", "minNodes": 1, "maxNodes": 2, "device": "cpu"},
    }
    return whole(settings_of("dev", **changes))


def test_preview_lists_what_an_update_creates(local: Recorded) -> None:
    previewed = deploy(lambda: stack.deploy(settings_of("local")), preview=True)
    assert {(r.type, r.name) for r in previewed.resources} == {(r.type, r.name) for r in local.resources}


def test_outputs_are_those_that_the_driver_reads(local: Recorded) -> None:
    assert local.result["runId"] == "r1"
    assert local.result["launcherJobName"] == "launch-r1"
    assert local.result["modelUri"] == f"s3://{local.result['modelBucket']}/models"


def test_outputs_have_the_documented_names(local: Recorded, dev: Recorded) -> None:
    result = dev.result
    assert result.keys() == local.result.keys()
    vpc, eks = dev.one("aws:ec2/vpc:Vpc"), dev.one("eks:index:Cluster")
    private = [each for each in dev.of("aws:ec2/subnet:Subnet") if "private" in each.name]
    assert result["vpcId"] == f"{vpc.name}-id"
    assert result["privateSubnetIdsByZone"] == {
        each.inputs["availabilityZone"]: f"{each.name}-id" for each in private
    }
    assert len(result["publicSubnetIds"]) == 3
    assert result["pools"] == [pool.name for pool in settings_of("dev").pools]
    assert eks.name in result["clusterSecurityGroupId"]
    arns = {name: value for name, value in result.items() if name.endswith("Arn")}
    assert sorted(arns) == [
        "dataKeyArn",
        "oidcProviderArn",
        "secretsKeyArn",
        "trainerRoleArn",
        "workerRoleArn",
    ]
    assert all(value.startswith("arn:aws:") for value in arns.values())
    table = (ROOT / "docs/deploying.md").read_text().partition("## Outputs")[2]
    first_cells = re.findall(r"^\| (`.*?) \|", table, re.M)
    assert sorted(re.findall(r"\w+", " ".join(first_cells))) == sorted(result)


def test_control_plane_meets_the_security_checklist(dev: Recorded) -> None:
    cluster = dev.one("eks:index:Cluster").inputs
    assert cluster["authenticationMode"] == "API"
    assert cluster["enabledClusterLogTypes"] == [
        "api",
        "audit",
        "authenticator",
        "controllerManager",
        "scheduler",
    ]
    assert cluster["upgradePolicy"] == {"supportType": "STANDARD"}
    assert cluster["encryptionConfigKeyArn"].endswith("trainyard-dev-secrets")
    assert cluster["publicAccessCidrs"] == ["203.0.113.0/24"]
    assert cluster["endpointPrivateAccess"] is True
    assert cluster["skipDefaultNodeGroup"] is True


def test_cluster_creator_gets_no_permissions() -> None:
    def ask(type_: str) -> Any:
        return without_creator_permissions(
            pulumi.ResourceTransformArgs(
                custom=True,
                type_=type_,
                name="x",
                props={
                    "accessConfig": {
                        "authenticationMode": "API",
                        "bootstrapClusterCreatorAdminPermissions": True,
                    }
                },
                opts=pulumi.ResourceOptions(),
            )
        )

    assert ask("aws:eks/cluster:Cluster").props["accessConfig"] == {
        "authenticationMode": "API",
        "bootstrapClusterCreatorAdminPermissions": False,
    }
    assert ask("aws:eks/addon:Addon") is None


def test_administrators_get_access_entries_and_workers_may_join(dev: Recorded) -> None:
    kinds = {e.inputs["principalArn"]: e.inputs["type"] for e in dev.of("aws:eks/accessEntry:AccessEntry")}
    assert kinds == {
        "arn:aws:iam::123456789012:role/platform": "STANDARD",
        "arn:aws:iam::123456789012:role/trainyard-dev-worker-node": "EC2_LINUX",
    }


def test_policy_of_the_bucket_denies(dev: Recorded) -> None:
    policy = json.loads(dev.one("aws:s3/bucketPolicy:BucketPolicy").inputs["policy"])
    assert policy["Statement"][0]["Effect"] == "Deny"


def test_data_is_deleted_with_the_stack_only_if_unprotected(dev: Recorded, other: Recorded) -> None:
    for recorded, protected in ((dev, False), (other, True)):
        assert recorded.one("aws:s3/bucket:Bucket").inputs["forceDestroy"] is not protected
        assert recorded.one("eks:index:Cluster").inputs["deletionProtection"] is protected
        assert all(
            r.inputs["forceDelete"] is not protected for r in recorded.of("aws:ecr/repository:Repository")
        )


def test_karpenter_receives_five_kinds_of_events(dev: Recorded) -> None:
    rules = dev.of("aws:cloudwatch/eventRule:EventRule")
    assert len(rules) == len(dev.of("aws:cloudwatch/eventTarget:EventTarget")) == 5
    assert dev.one("aws:sqs/queue:Queue").inputs["messageRetentionSeconds"] == 300


def test_karpenter_has_one_identity_with_five_policies(dev: Recorded) -> None:
    role = dev.one("aws:iam/role:Role", "trainyard-dev-karpenter")
    trust = json.loads(role.inputs["assumeRolePolicy"])["Statement"][0]
    assert "system:serviceaccount:kube-system:karpenter" in json.dumps(trust["Condition"]["StringEquals"])
    policies = [p for p in dev.of("aws:iam/policy:Policy") if p.name.startswith("trainyard-dev-karpenter-")]
    assert len(policies) == 5
    values = dev.one("kubernetes:helm.sh/v3:Release", "karpenter").inputs["values"]
    assert values["serviceAccount"]["annotations"]["eks.amazonaws.com/role-arn"].endswith(role.name)
    assert values["settings"]["interruptionQueue"] == "trainyard-dev"


def test_charts_are_published_ones_at_pinned_versions(dev: Recorded) -> None:
    charts = {
        r.name: (r.inputs["chart"], r.inputs["version"]) for r in dev.of("kubernetes:helm.sh/v3:Release")
    }
    assert charts == {
        "karpenter-crd": ("oci://public.ecr.aws/karpenter/karpenter-crd", "1.14.1"),
        "karpenter": ("oci://public.ecr.aws/karpenter/karpenter", "1.14.1"),
    }


def test_each_pool_is_a_node_pool_and_a_node_class(dev: Recorded) -> None:
    pools = {
        p.inputs["metadata"]["name"]: p.inputs["spec"] for p in dev.of("kubernetes:karpenter.sh/v1:NodePool")
    }
    assert {name: spec["limits"] for name, spec in pools.items()} == {
        "small": {"nvidia.com/gpu": "16"},
        "large": {"nvidia.com/gpu": "64"},
    }
    for node_class in dev.of("kubernetes:karpenter.k8s.aws/v1:EC2NodeClass"):
        assert node_class.inputs["spec"]["subnetSelectorTerms"] == [
            {"id": "trainyard-dev-private-us-west-2b-id"}
        ]


def image_tags(recorded: Recorded) -> dict[str, str]:
    """Return the tag of each pushed image."""
    built = recorded.of("docker-build:index:Image")
    return {r.name.rsplit("-", 1)[1]: r.inputs["tags"][0].rsplit(":", 1)[1] for r in built}


def test_images_are_tagged_with_the_digest_of_their_context(dev: Recorded) -> None:
    root = stack.ROOT
    assert image_tags(dev) == {
        name: context_digest(root, root / name / "Dockerfile") for name in ("launcher", "trainer")
    }
    assert all(r.inputs["imageTagMutability"] == "IMMUTABLE" for r in dev.of("aws:ecr/repository:Repository"))


def test_changed_file_changes_tags_of_images_that_contain_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = small_checkout(tmp_path)
    # As in this checkout, each build sees only its own directory.
    for name in stack.IMAGES:
        (root / name / "Dockerfile.dockerignore").write_text(f"*\n!{name}\n")
    monkeypatch.setattr(stack, "ROOT", root)

    def tags() -> dict[str, str]:
        return image_tags(images(settings_of("dev")))

    (root / "trainer" / "train.py").write_text("epochs = 1")
    before = tags()
    (root / "trainer" / "train.py").write_text("epochs = 2")
    after = tags()
    assert after["trainer"] != before["trainer"]
    assert after["launcher"] == before["launcher"]
    assert after["trainer"] == context_digest(root, root / "trainer" / "Dockerfile")


def test_images_are_built_for_the_platform_of_the_nodes(dev: Recorded) -> None:
    for built in dev.of("docker-build:index:Image"):
        assert built.inputs["platforms"] == ["linux/amd64"]
        assert built.inputs["push"] is True


def test_own_images_are_referenced_by_digest(dev: Recorded) -> None:
    """This includes arguments and the launcher's request."""
    objects = json.dumps([r.inputs for r in dev.resources if r.type.startswith("kubernetes:")])
    registry = r"123456789012\.dkr\.ecr\.us-west-2\.amazonaws\.com/trainyard-dev"
    named = set(re.findall(rf'{registry}/(\w+)([^\s"\\]*)', objects))
    assert {name for name, _ in named} == {"launcher", "trainer"}
    assert [each for each in named if not re.fullmatch(r"@sha256:[0-9a-f]{64}", each[1])] == []


def test_checkout_with_same_content_builds_no_image_again(
    dev: Recorded, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The registry refuses a push to an existing tag."""
    monkeypatch.setattr(stack, "ROOT", small_checkout(tmp_path))
    other = images(settings_of("dev")).of("docker-build:index:Image")
    assert {i.name: i.inputs for i in other} == {i.name: i.inputs for i in dev.of("docker-build:index:Image")}
    assert len(other) == 2


def test_existing_images_get_no_build_or_repository(other: Recorded) -> None:
    assert other.of("docker-build:index:Image") == other.of("aws:ecr/repository:Repository") == []
    job = json.loads(other.result["launcherManifest"])
    assert job["spec"]["template"]["spec"]["containers"][0]["image"] == GIVEN["launcher"]


def test_run_is_one_job_that_up_does_not_wait_for(local: Recorded) -> None:
    job = local.one("kubernetes:batch/v1:Job")
    assert job.inputs["metadata"]["name"] == "launch-r1"
    assert job.inputs["metadata"]["annotations"]["pulumi.com/skipAwait"] == "true"


def test_stack_without_run_has_a_manifest_and_no_job(other: Recorded) -> None:
    assert other.of("kubernetes:batch/v1:Job") == []
    assert other.result["launcherJobName"] is None
    assert "launch-" in other.result["launcherManifest"]


def test_the_trainers_account_has_its_role_and_no_api_token(local: Recorded) -> None:
    account = local.one("kubernetes:core/v1:ServiceAccount", "trainer").inputs
    assert account["metadata"]["annotations"]["eks.amazonaws.com/role-arn"].endswith(
        "role/trainyard-local-trainer"
    )
    assert account["automountServiceAccountToken"] is False


def test_operator_objects_are_registered_individually(dev: Recorded) -> None:
    """The first preview must show them before the cluster exists."""
    deployment = dev.one("kubernetes:apps/v1:Deployment")
    assert deployment.name == "training-operator:kubeflow/training-operator"
    assert dev.one("kubernetes:core/v1:Namespace", "training-operator:kubeflow")


@pytest.mark.parametrize(
    ("backend", "mpi", "served"),
    [
        ("pytorchjob", False, {"pytorchjobs"}),
        ("pytorchjob", True, {"pytorchjobs", "mpijobs"}),
        ("trainjob", True, {"mpijobs"}),
    ],
)
def test_training_operator_serves_only_kinds_of_the_stack(
    monkeypatch: pytest.MonkeyPatch, backend: str, mpi: bool, served: set[str]
) -> None:
    monkeypatch.setattr(stack, "KubeflowTrainer", lambda *_: None)
    training = {**stack_file("local")["trainyard:training"], "backend": backend}
    found = settings_of("local", **{"trainyard:training": training, "trainyard:mpi": mpi})
    recorded = deploy(
        lambda: (
            stack._operators(found, pulumi.Output.from_input("image"), [], pulumi.ResourceOptions()) and None
        )
    )
    definitions = recorded.of("kubernetes:apiextensions.k8s.io/v1:CustomResourceDefinition")
    assert {each.inputs["metadata"]["name"] for each in definitions} == {
        f"{kind}.kubeflow.org" for kind in served
    }


def test_drain_is_the_last_resource(dev: Recorded) -> None:
    last = dev.resources[-1]
    assert last.type == "pulumi-python:dynamic/drain:Drain"
    assert last.inputs["cluster"] == "trainyard-dev"
    assert "kubeconfig" not in json.dumps(last.inputs)


def test_drain_ends_before_any_permission_of_pods_is_deleted(other: Recorded) -> None:
    """Also without a run and queues in the settings: users start runs from the manifest."""
    attachment = "aws:iam/rolePolicyAttachment:RolePolicyAttachment"
    attached = {(attachment, each.name) for each in other.of(attachment)}
    assert (attachment, "trainyard-dev-trainer-models") in attached
    assert attached - other.needs("pulumi-python:dynamic/drain:Drain", "drain") == set()


def test_cluster_log_group_is_deleted_before_the_log_sweep(
    dev: Recorded,
) -> None:
    remains = dev.one("pulumi-python:dynamic/drain:Remains")
    assert remains.inputs["lateLogSeconds"] == 180
    group = ("aws:cloudwatch/logGroup:LogGroup", "trainyard-dev-control-plane")
    assert (remains.type, remains.name) in dev.needs(*group)
    assert group in dev.needs("eks:index:Cluster", "trainyard-dev")


def test_invalid_stack_file_registers_no_resource() -> None:
    def program() -> None:
        pulumi.runtime.set_all_config({"aws:region": "us-west-2", "trainyard:pools": "[]"})
        interrupted = signal.getsignal(signal.SIGINT)  # the program sets one of its own
        try:
            with pytest.raises(pulumi.RunError, match=r"Pulumi\.test\.yaml has \d mistakes"):
                runpy.run_path(str(ROOT / "__main__.py"))
        finally:
            pulumi.runtime.set_all_config({})
            signal.signal(signal.SIGINT, interrupted)

    assert deploy(program).resources == []


@pytest.mark.parametrize(
    ("stack", "config", "error", "message"),
    [
        (
            "p4d",
            {"trainyard:pools": "[]"},
            SettingsNotPassedError,
            r"Add --config-file examples/stacks/p4d\.yaml$",
        ),
        ("p4d", {"aws:region": "us-west-2"}, SettingsError, r"^examples/stacks/p4d\.yaml has \d+ mistakes"),
        ("p4d", {"trainyard:pools": "[{}]"}, SettingsError, r"^examples/stacks/p4d\.yaml has \d+ mistakes"),
        ("dev", {"trainyard:pools": "[]"}, SettingsError, r"^Pulumi\.dev\.yaml has \d+ mistakes"),
        ("mine", {"trainyard:pools": "[]"}, SettingsError, r"^Pulumi\.mine\.yaml has \d+ mistakes"),
    ],
)
def test_error_of_settings_names_the_stack_file(
    stack: str, config: dict[str, str], error: type[Exception], message: str
) -> None:
    pulumi.runtime.set_all_config(config)
    try:
        with pytest.raises(error, match=message):
            load(stack)
    finally:
        pulumi.runtime.set_all_config({})


def test_profile_and_tags_reach_every_resource() -> None:
    config = with_({"storage": {"lustre": {}}, "network": {"flowLogs": True}, "tags": {"team": "ml"}})
    config |= {"aws:profile": "ml", "aws:defaultTags": {"tags": {"unit": "research"}}}
    found = whole(settings(config))
    assert found.one("pulumi:providers:aws", "aws").inputs["profile"] == "ml"
    given = {"team": "ml", "unit": "research", **stack_tags(PROJECT, "test")}
    tagged = [each for each in found.resources if each.type in TAGGABLE or each.type.startswith("eks:")]
    assert [each.name for each in tagged if not given.items() <= each.inputs.get("tags", {}).items()] == []
    assert len(tagged) > 30
    resources = [made(each.type, each.name, **each.inputs) for each in found.resources]
    checked = evaluate(Stack(resources), rules=[tags_complete])
    assert [str(each) for each in checked.violations + checked.undecided] == []
    assert found.one("eks:index:Cluster").inputs["providerCredentialOpts"] == {"profileName": "ml"}
    for kind in ("Drain", "Remains"):
        assert found.one(f"pulumi-python:dynamic/drain:{kind}").inputs["profile"] == "ml"
