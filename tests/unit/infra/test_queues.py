"""Resources of a stack with torchrun queues: permissions on workspaces, the controller and its dependents."""

from __future__ import annotations

import json
from typing import Any

import pytest

from infra.settings import read
from tests.unit.components.recording import Recorded
from tests.unit.infra.changing import NOW, with_
from tests.unit.infra.whole import in_a_small_checkout, whole
from trainyard.policies.evaluate import evaluate
from trainyard.policies.model import Resource, Stack
from trainyard.policies.rules import ALL

QUEUE = "kubernetes:torchrun.ai/v1alpha1:TorchrunQueue"
POLICY, ATTACHMENT = "aws:iam/policy:Policy", "aws:iam/rolePolicyAttachment:RolePolicyAttachment"
DRAIN = ("pulumi-python:dynamic/drain:Drain", "drain")
CONTROLLER = ("kubernetes:apps/v1:Deployment", "torchrun-controller:torchrun-system/torchrun-controller")
MODELS = {"workspace": {"bucket": "models"}}
CHANGE: dict[str, Any] = {
    "queues": [
        {"name": "research", "pool": "small", "storage": MODELS},
        {"name": "other", "pool": "small", "storage": {"workspace": {"bucket": "theirs"}}},
        {
            "name": "notebooks",
            "namespace": "default",
            "pool": "small",
            "serviceAccount": "pytorch-training-sa",
            "storage": {"workspace": {"bucket": "theirs"}},
        },
        {"name": "plain", "namespace": "default", "pool": "small", "serviceAccount": "reader"},
    ],
    "serviceAccounts": [{"name": "pytorch-training-sa"}, {"name": "reader"}],
}


@pytest.fixture(scope="module")
def with_queues() -> Recorded:
    with in_a_small_checkout():
        return whole(read("test", with_(CHANGE), NOW))


@pytest.fixture(scope="module")
def without_queues() -> Recorded:
    with in_a_small_checkout():
        return whole(read("test", with_({**CHANGE, "queues": []}), NOW))


def statements(found: Recorded, name: str) -> dict[str, dict[str, Any]]:
    document = json.loads(found.one(POLICY, name).inputs["policy"])
    return {each["Sid"]: each for each in document["Statement"]}


def test_stack_without_queues_has_no_queue_resources(without_queues: Recorded) -> None:
    absent = {key: value for key, value in CHANGE.items() if key != "queues"}
    assert read("test", with_(absent), NOW) == read("test", with_({**absent, "queues": []}), NOW)
    assert [
        each.name for each in without_queues.resources if "torchrun" in f"{each.type} {each.name}".lower()
    ] == []
    assert [each.name for each in without_queues.of(POLICY) if each.name.endswith("-workspaces")] == []


def test_queues_added_to_a_stack_change_nothing_else(with_queues: Recorded, without_queues: Recorded) -> None:
    """Adding queues to a stack changes none of its existing resources."""

    def inputs(found: Recorded) -> dict[tuple[str, str], dict[str, Any]]:
        # The inputs of EKS's components are resources, which differ in each run.
        return {
            (each.type, each.name): each.inputs
            for each in found.resources
            if not each.type.startswith("eks:")
        }

    before, after = inputs(without_queues), inputs(with_queues)
    assert [each for each in before if each not in after] == []
    assert [each for each in before if before[each] != after[each]] == []


def test_workers_read_workspaces_and_write_logs_of_their_namespace(with_queues: Recorded) -> None:
    found = statements(with_queues, "trainyard-test-trainer-workspaces")
    own, theirs = "arn:aws:s3:::trainyard-test-models-1a2b3c4", "arn:aws:s3:::theirs"
    for sid, kind, actions in (
        ("ReadWorkspaces", "workspaces", ["s3:GetObject"]),
        ("ReadAndWriteLogs", "logs", ["s3:GetObject", "s3:PutObject"]),
    ):
        assert found[sid]["Action"] == actions
        assert found[sid]["Resource"] == [f"{bucket}/torchrun/{kind}/training/*" for bucket in (own, theirs)]
    assert found["ListThem"]["Resource"] == [own, theirs]
    assert found["ListThem"]["Condition"] == {
        "StringLike": {"s3:prefix": ["torchrun/workspaces/training/*", "torchrun/logs/training/*"]}
    }
    assert found["UseTheBucketsKey"]["Action"] == ["kms:Decrypt", "kms:GenerateDataKey"]
    assert len(found) == 4
    attached = with_queues.one(ATTACHMENT, "trainyard-test-trainer-workspaces").inputs
    assert attached["role"] == "trainyard-test-trainer-1a2b3c4"


def test_account_can_access_only_buckets_of_its_queues(with_queues: Recorded) -> None:
    """The account of a queue without a bucket can access none."""
    found = statements(with_queues, "trainyard-test-pytorch-training-sa-workspaces")
    assert found["ReadWorkspaces"]["Resource"] == ["arn:aws:s3:::theirs/torchrun/workspaces/default/*"]
    assert "UseTheBucketsKey" not in found, "that bucket's key is its owner's business"
    names = [each.name for each in with_queues.of(POLICY) if each.name.endswith("-workspaces")]
    assert sorted(names) == [
        "trainyard-test-pytorch-training-sa-workspaces",
        "trainyard-test-trainer-workspaces",
    ]


def test_submitter_can_access_prefixes_of_one_namespace(
    with_queues: Recorded, without_queues: Recorded
) -> None:
    policies = {name: json.loads(text) for name, text in with_queues.result["submitterPolicies"].items()}
    assert sorted(policies) == ["default", "training"]
    for namespace, policy in policies.items():
        found = {each["Sid"]: each for each in policy["Statement"]}
        assert found["ReadAndWriteWorkspaces"]["Action"] == ["s3:GetObject", "s3:PutObject"]
        assert found["ReadLogs"]["Action"] == ["s3:GetObject"]
        places = [*found["ReadAndWriteWorkspaces"]["Resource"], *found["ReadLogs"]["Resource"]]
        places += found["ListThem"]["Condition"]["StringLike"]["s3:prefix"]
        assert {each.partition("torchrun/")[2] for each in places} == {
            f"workspaces/{namespace}/*",
            f"logs/{namespace}/*",
        }
    assert without_queues.result["submitterPolicies"] is None


def test_queue_depends_on_pool_account_and_permissions(with_queues: Recorded) -> None:
    needed = with_queues.needs(QUEUE, "training-research")
    for each in (
        ("kubernetes:karpenter.sh/v1:NodePool", "pools-small"),
        ("kubernetes:core/v1:ServiceAccount", "trainer"),
        ("kubernetes:core/v1:ServiceAccount", "default-pytorch-training-sa"),
        (ATTACHMENT, "trainyard-test-trainer-workspaces"),
        CONTROLLER,
    ):
        assert each in needed


def test_drain_is_deleted_before_queues_controller_and_crds(with_queues: Recorded) -> None:
    """Jobs and queues must end while their controller runs."""
    assert (with_queues.resources[-1].type, with_queues.resources[-1].name) == DRAIN
    needed = with_queues.needs(*DRAIN)
    for each in with_queues.resources:
        if each.type == QUEUE or each.name.startswith("torchrun-controller:"):
            assert (each.type, each.name) in needed


def test_controller_runs_the_launcher_image_of_the_stack(with_queues: Recorded) -> None:
    (image,) = (
        each for each in with_queues.of("docker-build:index:Image") if each.name.endswith("-launcher")
    )
    (container,) = with_queues.one(*CONTROLLER).inputs["spec"]["template"]["spec"]["containers"]
    assert container["image"].startswith(image.inputs["tags"][0].rpartition(":")[0] + "@sha256:")
    assert container["command"] == ["python", "-m", "trainyard.operator"]


@pytest.mark.long
def test_queue_resources_violate_no_policy(with_queues: Recorded) -> None:
    stack = [
        Resource(type=each.type, name=each.name, urn=f"urn:{each.type}::{each.name}", properties=each.inputs)
        for each in with_queues.resources
    ]
    of_queues = [
        str(each)
        for each in evaluate(Stack(stack), rules=ALL).violations
        if "torchrun" in f"{each.resource.type} {each.resource.name}" or "workspaces" in each.resource.name
    ]
    assert of_queues == []
