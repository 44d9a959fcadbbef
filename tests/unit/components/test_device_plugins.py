"""Which device plugin runs where, with which rights, and which releases are refused."""

from __future__ import annotations

from typing import Any

import pytest

from components.device_plugins import DevicePlugins, DevicePluginsArgs
from components.documents import versions
from components.documents.device_plugins import refused_release, version_of
from components.documents.pool import Pool
from infra import eks_registry
from tests.unit.components.pools import CPU, TRAINIUM, pool
from tests.unit.components.recording import Recorded, deploy

GPU, EFA, NEURON = "nvidia.com/gpu", "vpc.amazonaws.com/efa", "aws.amazon.com/neuron"
IMAGES = {
    GPU: "nvcr.io/nvidia/k8s-device-plugin:v0.19.3",
    EFA: "602401143452.dkr.ecr.us-west-2.amazonaws.com/eks/aws-efa-k8s-device-plugin:v0.5.20",
    NEURON: "public.ecr.aws/neuron/neuron-device-plugin:2.28.27.0",
}


def made(*pools: Pool, images: dict[str, str] = IMAGES) -> Recorded:
    return deploy(lambda: DevicePlugins("devices", DevicePluginsArgs(pools=pools, images=images, after=[])))


def plugin(recorded: Recorded, name: str) -> dict[str, Any]:
    found: dict[str, Any] = recorded.one("kubernetes:apps/v1:DaemonSet", name).inputs
    assert found["metadata"] == {"name": name, "namespace": "device-plugins"}
    spec: dict[str, Any] = found["spec"]["template"]["spec"]
    return spec


def places(spec: dict[str, Any]) -> dict[str, list[str]]:
    (term,) = spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"][
        "nodeSelectorTerms"
    ]
    return {each["key"]: each["values"] for each in term["matchExpressions"]}


def test_pools_without_devices_get_no_plugin_and_no_namespace() -> None:
    recorded = made(CPU)
    assert [r.type for r in recorded.resources] == ["trainyard:devices:DevicePlugins"]


def test_each_plugin_runs_on_the_machines_of_the_pools_that_have_its_devices() -> None:
    recorded = made(
        pool(), pool(name="fast", efa=1), pool(name="p5", instance_type="p5.48xlarge", efa=32), CPU
    )
    assert {r.name for r in recorded.of("kubernetes:apps/v1:DaemonSet")} == {
        "nvidia-device-plugin",
        "efa-device-plugin",
    }
    assert places(plugin(recorded, "nvidia-device-plugin")) == {
        "node.kubernetes.io/instance-type": ["g5.12xlarge", "p5.48xlarge"],
        "karpenter.sh/nodepool": ["fast", "p5", "small"],
    }
    assert places(plugin(recorded, "efa-device-plugin")) == {
        "node.kubernetes.io/instance-type": ["g5.12xlarge", "p5.48xlarge"],
        "karpenter.sh/nodepool": ["fast", "p5"],
    }


def test_trainium_gets_neurons_plugin_with_rights_of_its_own() -> None:
    recorded = made(TRAINIUM)
    names = [each.name for each in recorded.of("kubernetes:apps/v1:DaemonSet")]
    assert names == ["efa-device-plugin", "neuron-device-plugin"]
    spec = plugin(recorded, "neuron-device-plugin")
    assert spec["serviceAccountName"] == "neuron-device-plugin"
    assert places(spec)["node.kubernetes.io/instance-type"] == ["trn1.32xlarge"]
    rules = recorded.one("kubernetes:rbac.authorization.k8s.io/v1:ClusterRole").inputs["rules"]
    assert not any("nodes/proxy" in rule["resources"] for rule in rules)
    subject = recorded.one("kubernetes:rbac.authorization.k8s.io/v1:ClusterRoleBinding").inputs["subjects"]
    assert subject == [
        {"kind": "ServiceAccount", "name": "neuron-device-plugin", "namespace": "device-plugins"}
    ]


def test_only_the_efa_plugin_is_privileged_and_only_neurons_reaches_the_api() -> None:
    recorded = made(pool(efa=1), TRAINIUM)
    for name in ("nvidia-device-plugin", "neuron-device-plugin"):
        (container,) = plugin(recorded, name)["containers"]
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
        }
    assert plugin(recorded, "efa-device-plugin")["containers"][0]["securityContext"]["privileged"] is True
    tokens = {
        r.name: r.inputs["spec"]["template"]["spec"]["automountServiceAccountToken"]
        for r in recorded.of("kubernetes:apps/v1:DaemonSet")
    }
    assert tokens == {
        "nvidia-device-plugin": False,
        "efa-device-plugin": False,
        "neuron-device-plugin": True,
    }


def test_every_plugin_reaches_the_kubelets_sockets_in_a_namespace_that_allows_it() -> None:
    recorded = made(pool(efa=1), TRAINIUM)
    labels = recorded.one("kubernetes:core/v1:Namespace").inputs["metadata"]["labels"]
    assert labels["pod-security.kubernetes.io/enforce"] == "privileged"
    for resource in recorded.of("kubernetes:apps/v1:DaemonSet"):
        spec = resource.inputs["spec"]["template"]["spec"]
        paths = {volume["name"]: volume["hostPath"]["path"] for volume in spec["volumes"]}
        mounted = {m["name"]: m["mountPath"] for m in spec["containers"][0]["volumeMounts"]}
        assert paths == mounted
        assert paths["sockets"] == "/var/lib/kubelet/device-plugins"


def test_nvidias_plugin_leaves_rdma_devices_alone() -> None:
    (container,) = plugin(made(pool()), "nvidia-device-plugin")["containers"]
    assert {"name": "MOFED_ENABLED", "value": "false"} in container["env"]


def test_a_preview_lists_the_same() -> None:
    args = DevicePluginsArgs(pools=(pool(efa=1), TRAINIUM), images=IMAGES, after=[])
    previewed = deploy(lambda: DevicePlugins("devices", args), preview=True)
    assert {r.name for r in previewed.resources} == {r.name for r in made(pool(efa=1), TRAINIUM).resources}


@pytest.mark.parametrize(
    ("image", "version"),
    [
        ("nvcr.io/nvidia/k8s-device-plugin:v0.19.3", (0, 19, 3)),
        ("registry.example:5000/k8s-device-plugin:0.17.1-ubi8@sha256:" + "0" * 64, (0, 17, 1)),
        ("public.ecr.aws/neuron/neuron-device-plugin:2.28.27.0", (2, 28, 27, 0)),
        ("registry.example:5000/k8s-device-plugin@sha256:" + "1" * 64, None),
        ("registry.example/k8s-device-plugin:latest", None),
    ],
)
def test_a_tag_tells_the_version(image: str, version: tuple[int, ...] | None) -> None:
    assert version_of(image) == version


@pytest.mark.parametrize(
    ("resource", "tag", "said"),
    [
        (GPU, "v0.18.2", ""),
        (GPU, "v0.19.0", "issues/1692"),
        (GPU, "v0.19.2", "it must be 0.19.3 or newer"),
        (GPU, "v0.19.3", ""),
        (EFA, "v0.5.9", "NVLink controllers"),
        (EFA, "v0.5.17", "it must be 0.5.18 or newer"),
        (EFA, "v0.5.18", ""),
        (NEURON, "2.28.27.0", ""),
    ],
)
def test_releases_that_are_known_to_be_wrong_are_refused(resource: str, tag: str, said: str) -> None:
    image = f"registry.example/plugin:{tag}"
    message = refused_release(resource, image)
    assert said in message
    assert bool(message) == bool(said)


def test_a_wrong_release_is_never_registered() -> None:
    images = {**IMAGES, EFA: "registry.example/aws-efa-k8s-device-plugin:v0.5.5"}
    with pytest.raises(
        ValueError, match=r"'registry\.example/aws-efa.*:v0\.5\.5' is a release that must not"
    ):
        made(pool(efa=1), images=images)


@pytest.mark.parametrize(
    ("resource", "image"),
    [
        (GPU, versions.DEVICE_PLUGIN_IMAGE),
        (EFA, eks_registry.efa_plugin("us-west-2")),
        (NEURON, versions.NEURON_PLUGIN_IMAGE),
    ],
)
def test_the_pinned_images_are_none_of_the_wrong_ones(resource: str, image: str) -> None:
    assert refused_release(resource, image) == ""
    assert version_of(image) is not None


@pytest.mark.parametrize(
    ("region", "host"),
    [
        ("us-west-2", "602401143452.dkr.ecr.us-west-2.amazonaws.com"),
        ("me-south-1", "558608220178.dkr.ecr.me-south-1.amazonaws.com"),
        ("cn-north-1", "918309763551.dkr.ecr.cn-north-1.amazonaws.com.cn"),
    ],
)
def test_the_efa_plugin_is_pulled_from_the_registry_of_the_region(region: str, host: str) -> None:
    assert eks_registry.efa_plugin(region) == f"{host}/eks/aws-efa-k8s-device-plugin:v0.5.20"
