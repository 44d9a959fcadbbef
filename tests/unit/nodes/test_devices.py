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

pytestmark = pytest.mark.unit

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
def test_each_of_our_plugins_is_known_by_its_image(resource: str) -> None:
    assert plugin_resources(pod(resource)) == {resource}


def test_a_plugin_that_can_not_reach_the_kubelets_sockets_offers_nothing() -> None:
    item = pod(GPU)
    item["spec"]["volumes"] = [{"name": "sockets", "emptyDir": {}}]
    assert plugin_resources(item) == frozenset()


def test_an_ordinary_pod_offers_nothing() -> None:
    item = pod(GPU)
    item["spec"]["containers"][0]["image"] = "registry.example/trainer:v1"
    assert plugin_resources(item) == frozenset()


def test_only_a_plugin_that_runs_on_the_node_counts() -> None:
    pods = [
        pod(GPU),
        pod(EFA, ready="False"),
        pod(NEURON, node="other"),
    ]
    assert running_plugins(pods, "n") == {GPU}
    assert running_plugins([pod(GPU, deletionTimestamp="2026-01-01T00:00:00Z")], "n") == frozenset()


def test_without_a_plugin_nothing_shows() -> None:
    assert device_amounts(MACHINE, NO_DEVICES) == ({}, {})


def test_with_its_plugin_a_device_shows_in_both_lists() -> None:
    assert device_amounts(MACHINE, NO_DEVICES.gain(frozenset({GPU}))) == ({GPU: "4"}, {GPU: "4"})


def test_what_the_machine_lacks_shows_in_neither() -> None:
    assert device_amounts(MACHINE, ALL_DEVICES) == ({GPU: "4", EFA: "1"}, {GPU: "4", EFA: "1"})


def test_after_its_plugin_is_gone_none_can_be_had() -> None:
    devices = NO_DEVICES.gain(frozenset({GPU, EFA})).lose(frozenset({EFA}))
    assert device_amounts(MACHINE, devices) == ({GPU: "4", EFA: "1"}, {GPU: "0", EFA: "1"})


def test_a_node_that_was_registered_before_goes_on_with_what_it_shows() -> None:
    status = {"capacity": {"cpu": "4", GPU: "4", EFA: "1"}, "allocatable": {GPU: "0", EFA: "1"}}
    assert read_devices({"status": status}) == Devices(frozenset({GPU, EFA}), frozenset({EFA}))
