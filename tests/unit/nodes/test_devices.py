"""A Node shows devices exactly as long as their plugin runs on it."""

from __future__ import annotations

from typing import Any

import pytest

from components.documents.device_plugins import NAMES, daemon_set
from local.nodes.node import (
    ALL_DEVICES,
    EFA,
    GPU,
    NEURON,
    NO_DEVICES,
    Devices,
    device_amounts,
    plugin_resources,
    read_devices,
    running_plugins,
)

IMAGES = {
    GPU: "nvcr.io/nvidia/k8s-device-plugin:v0.19.3@sha256:0",
    EFA: "602401143452.dkr.ecr.us-west-2.amazonaws.com/eks/aws-efa-k8s-device-plugin:v0.5.20",
    NEURON: "public.ecr.aws/neuron/neuron-device-plugin:2.28.27.0",
}
MACHINE = {"gpus": 4, "efaInterfaces": 1, "neuronDevices": 0}


def pod(resource: str, node: str = "n", ready: str = "True", **metadata: Any) -> dict[str, Any]:
    """A pod as our DaemonSet makes it."""
    spec = daemon_set(resource, IMAGES[resource], {"small": "g5.12xlarge"})["template"]["spec"]
    return {
        "metadata": {"name": NAMES[resource], **metadata},
        "spec": {**spec, "nodeName": node},
        "status": {"conditions": [{"type": "Ready", "status": ready}]},
    }


@pytest.mark.parametrize("resource", [GPU, EFA, NEURON])
def test_plugin_resources_are_found_by_image(resource: str) -> None:
    assert plugin_resources(pod(resource)) == {resource}


def test_plugin_without_its_image_or_the_kubelets_sockets_has_no_resource() -> None:
    without_sockets, ordinary = pod(GPU), pod(GPU)
    without_sockets["spec"]["volumes"] = [{"name": "sockets", "emptyDir": {}}]
    ordinary["spec"]["containers"][0]["image"] = "registry.example/trainer:v1"
    assert plugin_resources(without_sockets) == plugin_resources(ordinary) == frozenset()


def test_running_plugins_are_ready_and_on_the_node() -> None:
    pods = [
        pod(GPU),
        pod(EFA, ready="False"),
        pod(NEURON, node="other"),
    ]
    assert running_plugins(pods, "n") == {GPU}
    assert running_plugins([pod(GPU, deletionTimestamp="2026-01-01T00:00:00Z")], "n") == frozenset()


@pytest.mark.parametrize(
    ("devices", "capacity", "allocatable"),
    [
        (NO_DEVICES, {}, {}),
        (NO_DEVICES.gain(frozenset({GPU})), {GPU: "4"}, {GPU: "4"}),
        (ALL_DEVICES, {GPU: "4", EFA: "1"}, {GPU: "4", EFA: "1"}),  # the instance has no Neuron devices
        (
            NO_DEVICES.gain(frozenset({GPU, EFA})).lose(frozenset({EFA})),
            {GPU: "4", EFA: "1"},
            {GPU: "0", EFA: "1"},
        ),
    ],
)
def test_devices_are_allocatable_while_their_plugin_runs(
    devices: Devices, capacity: dict[str, str], allocatable: dict[str, str]
) -> None:
    assert device_amounts(MACHINE, devices) == (capacity, allocatable)


def test_read_devices_returns_those_of_the_node() -> None:
    status = {"capacity": {"cpu": "4", GPU: "4", EFA: "1"}, "allocatable": {GPU: "0", EFA: "1"}}
    assert read_devices({"status": status}) == Devices(frozenset({GPU, EFA}), frozenset({EFA}))
