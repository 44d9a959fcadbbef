"""Devices, their plugins and the jobs that use them, on a real API server with machines.

The machines are those of a managed node group, so that nothing here waits for Karpenter.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from components.documents import operator_manifests, versions
from components.documents.device_plugins import NAMES, NAMESPACE_LABELS, daemon_set
from components.documents.operator_manifests import (
    LOOKUP_DIRECTORY,
    MPI,
    PYTORCH,
    definitions,
    scheme_arguments,
    training_operator,
)
from components.operators import render
from infra import eks_registry
from tests.cluster_reads import read
from tests.integration.local.own_cloud import REGION, OwnCloud, own_cloud
from trainyard.cli.commands import pinned_sources

pytestmark = pytest.mark.local

CLUSTER = "devices"
POOL = "small"
TYPE = "g5.12xlarge"
GPU, EFA = "nvidia.com/gpu", "vpc.amazonaws.com/efa"
IMAGES = {GPU: versions.DEVICE_PLUGIN_IMAGE, EFA: eks_registry.efa_plugin(REGION)}
PAUSE = versions.PLACEHOLDER_IMAGE
# What the restricted standard wants of a container and of its pod.
CONTAINER = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
POD = {"runAsNonRoot": True, "runAsUser": 10001, "seccompProfile": {"type": "RuntimeDefault"}}


class Cluster:
    """One cluster with two GPU machines, and what the tests ask of it."""

    def __init__(self, cloud: OwnCloud, directory: Path) -> None:
        self.cloud = cloud
        self.directory = directory
        # With a mode of its own for access, EKS lets the machines of its node groups join.
        cloud.create_cluster(CLUSTER, accessConfig={"authenticationMode": "API"})
        eks = cloud.client("eks")
        eks.create_addon(clusterName=CLUSTER, addonName="eks-node-monitoring-agent")
        trust = {
            "Effect": "Allow",
            "Principal": {"Service": "ec2.amazonaws.com"},
            "Action": "sts:AssumeRole",
        }
        eks.create_nodegroup(
            clusterName=CLUSTER,
            nodegroupName="gpu",
            nodeRole=cloud.role("node", trust),
            subnets=eks.describe_cluster(name=CLUSTER)["cluster"]["resourcesVpcConfig"]["subnetIds"],
            instanceTypes=[TYPE],
            labels={"karpenter.sh/nodepool": POOL},
            scalingConfig={"minSize": 2, "maxSize": 2, "desiredSize": 2},
        )
        self.until("two nodes", lambda: len(self.items("nodes")) == 2)

    def kubectl(self, *arguments: str) -> str:
        return self.cloud.kubectl(CLUSTER, *arguments)

    def items(self, *arguments: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = read(self.cloud.home.kubeconfig, *arguments, context=CLUSTER)["items"]
        return found

    def apply(self, *manifests: dict[str, Any]) -> None:
        file = self.directory / "manifests.yaml"
        file.write_text(yaml.safe_dump_all(manifests))
        self.kubectl("apply", "--server-side", "--filename", str(file))

    def until(self, what: str, done: Callable[[], object], seconds: float = 60) -> Any:
        """Wait for a true result of `done`, and return it."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            found = done()
            if found:
                return found
            time.sleep(0.5)
        raise AssertionError(f"not within {seconds:g} s: {what}")

    def allocatable(self, resource: str) -> list[str | None]:
        return [node["status"]["allocatable"].get(resource) for node in self.items("nodes")]


def plugin(resource: str) -> dict[str, Any]:
    """The DaemonSet of one plugin, as the component registers it."""
    return {
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": {"name": NAMES[resource], "namespace": "device-plugins"},
        "spec": daemon_set(resource, IMAGES[resource], {POOL: TYPE}),
    }


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with own_cloud(tmp_path_factory.mktemp("devices-home")) as cloud:
        yield Cluster(cloud, tmp_path_factory.mktemp("manifests"))


def test_gpus_show_while_their_plugin_runs_and_only_then(cluster: Cluster) -> None:
    assert cluster.allocatable(GPU) == [None, None]
    namespace = {"name": "device-plugins", "labels": NAMESPACE_LABELS}
    cluster.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": namespace}, plugin(GPU), plugin(EFA))
    cluster.until("GPUs", lambda: cluster.allocatable(GPU) == ["4", "4"])
    # The plugin of EFA runs as well, and finds no interface: these machines were launched without any.
    ready = [
        item["status"].get("numberReady") for item in cluster.items("daemonsets", "-n", "device-plugins")
    ]
    assert ready == [2, 2]
    assert cluster.allocatable(EFA) == [None, None]
    cluster.kubectl("delete", "daemonset", NAMES[GPU], "-n", "device-plugins", "--wait")
    cluster.until("no GPUs", lambda: cluster.allocatable(GPU) == ["0", "0"])


def test_broken_node_has_a_condition(cluster: Cluster) -> None:
    kind = "AcceleratedHardwareReady"

    def states() -> list[tuple[str, str]]:
        found = []
        for node in cluster.items("nodes"):
            conditions = {each["type"]: each for each in node["status"]["conditions"]}
            found.append((conditions[kind]["status"], conditions[kind]["reason"]))
        return sorted(found)

    healthy = ("True", "AcceleratedHardwareIsReady")
    cluster.until("conditions", lambda: states() == [healthy, healthy])
    instance = cluster.items("nodes")[0]["spec"]["providerID"].rpartition("/")[2]
    rule = {"condition": kind, "code": "NvidiaXID79Error", "instanceId": instance, "since": 900}
    cluster.cloud.faults(rule)
    cluster.until("a sick machine", lambda: states() == [("False", "NvidiaXID79Error"), healthy])
    cluster.cloud.faults()
    cluster.until("a healthy machine", lambda: states() == [healthy, healthy])


@pytest.fixture(scope="module")
def operator(cluster: Cluster) -> Cluster:
    """The training operator with both kinds of jobs, and a namespace per pod security standard."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", str(cluster.cloud.home.bin), prepend=os.pathsep)
        manifests = render(pinned_sources({})["trainingOperator"], definitions((PYTORCH, MPI)))
    kinds = (PYTORCH, MPI)
    arguments = [
        *scheme_arguments(kinds),
        f"{operator_manifests.TEMPLATE_ARGUMENT}{LOOKUP_DIRECTORY}/{operator_manifests.TEMPLATE_FILE}",
        f"{operator_manifests.IMAGE_ARGUMENT}{PAUSE}",
        f"--mpi-kubectl-delivery-image={versions.KUBECTL_DELIVERY_IMAGE}",
    ]
    for wave in training_operator(manifests, None, arguments=arguments, kinds=kinds):
        cluster.apply(*wave)
    for standard in ("restricted", "baseline"):
        labels = {"pod-security.kubernetes.io/enforce": standard}
        cluster.apply(
            {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": standard, "labels": labels}}
        )
    cluster.kubectl("rollout", "status", "deployment/training-operator", "-n", "kubeflow", "--timeout=90s")
    return cluster


def replica(name: str, replicas: int) -> dict[str, Any]:
    container = {"name": name, "image": PAUSE, "securityContext": CONTAINER}
    spec = {"securityContext": POD, "containers": [container]}
    return {"replicas": replicas, "restartPolicy": "Never", "template": {"spec": spec}}


def phases(cluster: Cluster, namespace: str) -> dict[str, str]:
    return {pod["metadata"]["name"]: pod["status"]["phase"] for pod in cluster.items("pods", "-n", namespace)}


def test_workers_wait_for_their_master_within_the_restricted_standard(operator: Cluster) -> None:
    """The look-up is a real one, in the pod's hosts file, and its container is made of our template."""
    job = {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": {"name": "two", "namespace": "restricted"},
        "spec": {"pytorchReplicaSpecs": {"Master": replica("pytorch", 1), "Worker": replica("pytorch", 1)}},
    }
    operator.apply(job)
    running = {"two-master-0": "Running", "two-worker-0": "Running"}
    operator.until("both pods", lambda: phases(operator, "restricted") == running)
    worker = json.loads(operator.kubectl("get", "pod", "two-worker-0", "-n", "restricted", "-o", "json"))
    (init,) = worker["spec"]["initContainers"]
    assert (init["name"], init["image"]) == ("init-pytorch", PAUSE)
    assert worker["status"]["initContainerStatuses"][0]["state"]["terminated"]["exitCode"] == 0


def test_an_mpijob_is_accepted_and_gets_its_launcher_and_workers(operator: Cluster) -> None:
    """Its programs do not run here: `mpirun` reaches the workers by `kubectl exec`."""
    job = {
        "apiVersion": "kubeflow.org/v1",
        "kind": "MPIJob",
        "metadata": {"name": "ring", "namespace": "baseline"},
        "spec": {"mpiReplicaSpecs": {"Launcher": replica("mpi", 1), "Worker": replica("mpi", 2)}},
    }
    operator.apply(job)
    running = dict.fromkeys(("ring-launcher", "ring-worker-0", "ring-worker-1"), "Running")
    operator.until("three pods", lambda: phases(operator, "baseline") == running)
    launcher = json.loads(operator.kubectl("get", "pod", "ring-launcher", "-n", "baseline", "-o", "json"))
    images = {each["name"]: each["image"] for each in launcher["spec"]["initContainers"]}
    assert images == {"kubectl-delivery": versions.KUBECTL_DELIVERY_IMAGE}
    conditions = json.loads(operator.kubectl("get", "mpijob", "ring", "-n", "baseline", "-o", "json"))[
        "status"
    ]
    assert "Running" in {each["type"] for each in conditions["conditions"] if each["status"] == "True"}


def test_the_api_server_checks_an_mpijob_by_the_definition_without_descriptions(operator: Cluster) -> None:
    with pytest.raises(AssertionError, match=r"mpiReplicaSpecs.*Required value"):
        operator.apply(
            {
                "apiVersion": "kubeflow.org/v1",
                "kind": "MPIJob",
                "metadata": {"name": "empty", "namespace": "baseline"},
                "spec": {"slotsPerWorker": 1},
            }
        )
