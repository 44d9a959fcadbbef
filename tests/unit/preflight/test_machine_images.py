"""The release of the machines' image, asked of the public parameters that Karpenter reads."""

from __future__ import annotations

from typing import Any

import pytest

from components.documents.pool import GPU, NEURON
from infra import versions
from tests.unit.emulator import Cloud
from tests.unit.preflight.accounts import NOW, account, checks, only, pool, wanted
from tests.unit.preflight.test_services import given_cluster
from trainyard.preflight.machine_images import path, variants
from trainyard.preflight.run import examine

pytestmark = pytest.mark.unit

KEY = "trainyard:cluster.ami"
OF = checks("machine images")
POOLS = (pool(resource="cpu"), pool(resource=GPU), pool(resource=NEURON), pool(resource=GPU))


def told(cloud: Cloud, **changes: Any) -> list[str]:
    return [str(p) for p in examine(account(cloud), wanted(pools=POOLS, **changes), NOW, OF).problems]


def test_each_kind_of_device_has_its_variant() -> None:
    assert variants(wanted(pools=POOLS)) == ["neuron", "nvidia", "standard"]


def test_the_parameter_is_the_one_that_karpenter_reads() -> None:
    assert path("1.35", "nvidia", "v20260724") == (
        "/aws/service/eks/optimized-ami/1.35/amazon-linux-2023/x86_64/nvidia/"
        "amazon-eks-node-al2023-x86_64-nvidia-1.35-v20260724/image_id"
    )


@pytest.mark.parametrize("kubernetes", versions.KUBERNETES_SUPPORTED)
def test_the_pinned_release_has_images_for_every_version_and_device(cloud: Cloud, kubernetes: str) -> None:
    assert told(cloud, ami=versions.AMI, kubernetes=kubernetes) == []


@pytest.mark.parametrize(("release", "kubernetes"), [("v20260713", "1.35"), ("v20260505", "1.36")])
def test_a_release_without_images_is_told_with_the_recommended_one(
    cloud: Cloud, release: str, kubernetes: str
) -> None:
    found = told(cloud, ami=f"al2023@{release}", kubernetes=kubernetes)
    assert [line.partition(" image ")[0] for line in found] == [
        f"{KEY}: 'al2023@{release}' has no {variant}" for variant in ("neuron", "nvidia", "standard")
    ]
    assert all("such as al2023@v20260724, which EKS recommends" in line for line in found)


def test_a_version_without_any_image_is_told_without_a_proposal(cloud: Cloud) -> None:
    found = examine(account(cloud), wanted(kubernetes="1.99"), NOW, OF)
    only(
        [str(p) for p in found.problems],
        KEY,
        "for Kubernetes 1.99",
        "a release that has one, if there is one",
    )


def test_of_a_given_cluster_its_own_version_counts(cloud: Cloud) -> None:
    given = given_cluster(cloud)
    assert told(cloud, existing_cluster=given, kubernetes=None, ami="al2023@v20260120") == []
    cloud.client("eks").update_cluster_version(name="main", version="1.36")
    found = told(cloud, existing_cluster=given, kubernetes=None, ami="al2023@v20260120")
    assert all("for Kubernetes 1.36" in line for line in found)
    assert len(found) == 3


def test_a_missing_permission_is_named(cloud: Cloud) -> None:
    found = examine(account(cloud, cloud.session("nobody")), wanted(), NOW, OF)
    assert found.not_checked == [("machine images", "ssm:GetParameter")]
