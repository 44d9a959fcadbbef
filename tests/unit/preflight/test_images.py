"""The AMI release, and container images in the account's own registry."""

from __future__ import annotations

import json
from typing import Any

import pytest

from components.documents import versions
from tests.unit.emulator import REGION, Cloud
from tests.unit.preflight.accounts import (
    ACCOUNT,
    EXISTING,
    Answers,
    account,
    checks,
    expect,
    findings,
    only,
    stack,
)
from trainyard.preflight.checks import Report, examine
from trainyard.preflight.findings import SKIPPED
from trainyard.preflight.images import split_reference, used_images

AMI = "trainyard:cluster.ami"
EACH_DEVICE = ({}, {"instanceType": "trn1.32xlarge"}, {"instanceType": "m5.large", "efa": "none"})
ECR = f"{ACCOUNT}.dkr.ecr.{REGION}.amazonaws.com"
DIGEST = f"sha256:{'0' * 64}"


def ami(cloud: Cloud, **cluster: Any) -> list[str]:
    return findings(account(cloud), stack(*EACH_DEVICE, cluster=cluster), "AMI release")


@pytest.mark.parametrize("kubernetes", versions.KUBERNETES_SUPPORTED)
def test_default_release_has_images_for_every_version_and_device(cloud: Cloud, kubernetes: str) -> None:
    assert ami(cloud, ami=versions.AMI, version=kubernetes) == []


@pytest.mark.parametrize(("release", "kubernetes"), [("v20260713", "1.35"), ("v20260505", "1.36")])
def test_release_without_images_gets_the_recommended_one(cloud: Cloud, release: str, kubernetes: str) -> None:
    lines = ami(cloud, ami=f"al2023@{release}", version=kubernetes)
    assert [line.partition(" image ")[0] for line in lines] == [
        f"{AMI}: 'al2023@{release}' has no {variant}" for variant in ("neuron", "nvidia", "standard")
    ]
    assert all("such as al2023@v20260724, which EKS recommends" in line for line in lines)


@pytest.mark.parametrize(("running", "count"), [("1.35", 0), ("1.36", 3)])
def test_version_of_an_existing_cluster_counts(cloud: Cloud, running: str, count: int) -> None:
    cloud.cluster("research", version=running)
    lines = ami(cloud, existing=EXISTING, ami="al2023@v20260120")
    assert [f"for Kubernetes {running}" in line for line in lines] == [True] * count


def test_version_without_any_image_gets_no_recommendation() -> None:
    only(findings(Answers(), stack(), "AMI release"), AMI, "a release that has one, if any")


def test_parameter_is_the_one_that_karpenter_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    names: list[str] = []
    aws = Answers()
    monkeypatch.setattr(aws, "call", lambda *_, Name, **__: names.append(Name))
    findings(aws, stack(cluster={"version": "1.35", "ami": "al2023@v20260724"}), "AMI release")
    assert names[0] == (
        "/aws/service/eks/optimized-ami/1.35/amazon-linux-2023/x86_64/nvidia/"
        "amazon-eks-node-al2023-x86_64-nvidia-1.35-v20260724/image_id"
    )


@pytest.mark.parametrize(
    ("reference", "place"),
    [
        (f"{ECR}/a/b@{DIGEST}", (ACCOUNT, REGION, "a/b", {"imageDigest": DIGEST})),
        (f"{ECR}/a:v1@{DIGEST}", (ACCOUNT, REGION, "a", {"imageDigest": DIGEST})),
        (f"{ECR}/a:v1", (ACCOUNT, REGION, "a", {"imageTag": "v1"})),
        ("918309763551.dkr.ecr.cn-north-1.amazonaws.com.cn/eks/p:v1",
         ("918309763551", "cn-north-1", "eks/p", {"imageTag": "v1"})),
        (f"{ACCOUNT}.dkr-ecr.{REGION}.on.aws/a", (ACCOUNT, REGION, "a", {"imageTag": "latest"})),
        ("registry.k8s.io/pause:3.9", None),
        ("alpine:3", None),
        (f"{ECR}.example/a:v1", None),
    ],
)  # fmt: skip
def test_reference_is_split(reference: str, place: tuple[Any, ...] | None) -> None:
    assert split_reference(reference) == place


def test_images_are_those_that_the_stack_pulls() -> None:
    def names(**changes: Any) -> dict[str, str]:
        return {name: key for key, name, _ in used_images(stack({"efa": None}, **changes))}

    own = f"{ECR}/base@{DIGEST}"
    assert names(images={"baseImages": {"trainer": own}, "debug": own}) == {
        "placeholder": "trainyard:images.placeholder",
        "devicePlugin": "trainyard:images.devicePlugin",
        "efaDevicePlugin": "trainyard:images.efaDevicePlugin",
        "baseImages.trainer": "trainyard:images.baseImages.trainer",
    }
    mirrored = names(images={"mirror": f"{ECR}/mirror"}, mpi=True, debugPod=True)
    assert {"kubectlDelivery", "debug", "trainingOperator"} <= set(mirrored)
    assert mirrored["debug"] == "trainyard:images.mirror"
    run = {"pool": "small", "minNodes": 1, "maxNodes": 1, "backend": "trainjob"}
    assert {"kubeflowTrainer", "jobset"} <= names(training=run).keys()
    assert not {"kubeflowTrainer", "jobset"} & mirrored.keys()
    assert "trainingOperator" not in names(training=run, images={"mirror": f"{ECR}/mirror"})
    queue = {"name": "theirs", "pool": "small", "image": own}
    assert names(queues=[queue])["theirs"] == "trainyard:queues[0].image"


def push(cloud: Cloud) -> str:
    """Push an image with the tag v1 to the repository team/trainer; return its digest."""
    ecr = cloud.client("ecr")
    ecr.create_repository(repositoryName="team/trainer")
    media = "application/vnd.docker.distribution.manifest.v2+json"
    config = {"mediaType": "application/vnd.docker.container.image.v1+json", "size": 1, "digest": DIGEST}
    manifest = json.dumps({"schemaVersion": 2, "mediaType": media, "config": config, "layers": []})
    made = ecr.put_image(repositoryName="team/trainer", imageManifest=manifest, imageTag="v1")
    return str(made["image"]["imageId"]["imageDigest"])


def report(cloud: Cloud, reference: str, credentials: dict[str, str] | None = None) -> Report:
    settings = stack(images={"trainer": reference})
    return examine(settings, account(cloud, credentials), checks("container images"))


@pytest.mark.parametrize(
    "path", ["team/trainer@{digest}", f"team/trainer@{DIGEST}", f"team/other@{DIGEST}", f"a@{DIGEST}"]
)
def test_image_must_be_in_the_own_registry(cloud: Cloud, path: str) -> None:
    reference = f"{ECR}/{path.format(digest=push(cloud))}"
    lines = [str(each) for each in report(cloud, reference).of()]
    key = "" if "{digest}" in path else "trainyard:images.trainer"
    expect(lines, key, f"'{reference}' is not in this account's registry in {REGION}")


@pytest.mark.parametrize(
    "host", [f"999999999999.dkr.ecr.{REGION}.amazonaws.com", f"{ACCOUNT}.dkr.ecr.eu-west-1.amazonaws.com"]
)
def test_images_of_other_registries_are_one_line(cloud: Cloud, host: str) -> None:
    found = report(cloud, f"{host}/trainer@{DIGEST}")
    assert found.of() == []
    lines = [str(each) for each in found.of(SKIPPED)]
    only(lines, "trainyard:images", f"trainer ({host})", "placeholder (registry.k8s.io)")


def test_missing_permissions_are_named(cloud: Cloud) -> None:
    nobody = cloud.session("nobody")
    assert report(cloud, f"{ECR}/trainer@{DIGEST}", nobody).denied == [
        ("container images", "ecr:DescribeImages")
    ]
    found = examine(stack(), account(cloud, nobody), checks("AMI release"))
    assert found.denied == [("AMI release", "ssm:GetParameter")]
