"""The drain on a live stack, one bad case after the other; the tests are one story, in order.

Each begins with a machine that Karpenter bought for a pod. The drain is called as its resource calls it when it is
deleted; what it took away of the pools is put back for the next.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from local.guard import cloud_environment
from tests.account import things
from tests.cluster_reads import read
from tests.integration.local.conftest import SECOND
from tests.world import World
from trainyard.cli.engine import ROOT

# A whole `up` and machines for each case, on a machine that may be busy.
pytestmark = [pytest.mark.local, pytest.mark.timeout(1200)]

CLUSTER = f"trainyard-{SECOND}"
WAIT_SECONDS = 180
POOL_KINDS = ("ec2nodeclasses", "nodepools")
HOLDER = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {
        "name": "holder",
        "namespace": "default",
        "annotations": {"karpenter.sh/do-not-disrupt": "true"},
    },
    "spec": {
        "terminationGracePeriodSeconds": 1,
        "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}],
        "containers": [
            {
                "name": "main",
                "image": "registry.k8s.io/pause:3.10",
                "resources": {"limits": {"nvidia.com/gpu": "4"}},
            }
        ],
    },
}
# On a system node, which no drain gives back, with a disk.
KEEPER = {
    "apiVersion": "v1",
    "kind": "List",
    "items": [
        {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": {"name": "kept", "namespace": "default"},
            "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
        },
        {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": "keeper", "namespace": "default"},
            "spec": {
                "selector": {"matchLabels": {"app": "keeper"}},
                "template": {
                    "metadata": {"labels": {"app": "keeper"}},
                    "spec": {
                        "terminationGracePeriodSeconds": 1,
                        "nodeSelector": {"trainyard.dev/role": "system"},
                        "containers": [
                            {
                                "name": "main",
                                "image": "registry.k8s.io/pause:3.10",
                                "volumeMounts": [{"name": "data", "mountPath": "/data"}],
                            }
                        ],
                        "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "kept"}}],
                    },
                },
            },
        },
    ],
}
DRAIN = """
import json, sys
from components.draining.entry import at_delete
at_delete(json.loads(sys.argv[1]))
"""


class Live:
    """The second stack, and an administrator's kubectl there."""

    def __init__(self, made: World) -> None:
        self.made = made
        self.home = made.home
        self.pools: list[dict[str, Any]] = []
        # Where the holder runs.
        self.node = ""

    def kubectl(self, *arguments: str, text: str | None = None) -> str:
        """kubectl as the administrator of the cluster."""
        words = [
            str(self.home.root / "bin" / "kubectl"),
            "--kubeconfig",
            str(self.home.kubeconfig),
            *arguments,
        ]
        answer = subprocess.run(words, input=text, capture_output=True, text=True, timeout=120)
        assert answer.returncode == 0, answer.stderr
        return answer.stdout

    def get(self, *arguments: str) -> list[dict[str, Any]]:
        items: list[dict[str, Any]] = read(self.home.kubeconfig, *arguments)["items"]
        return items

    def keep_pools(self) -> None:
        """Remember the pools as the stack made them."""
        for kind in POOL_KINDS:
            for item in self.get(kind):
                metadata = {"name": item["metadata"]["name"]}
                self.pools.append({**item, "metadata": metadata, "status": None})

    def machine(self) -> str:
        """Put the pools back and have Karpenter buy a machine for a pod; the instance's id."""
        for pool in self.pools:
            self.kubectl("apply", "--server-side", "--force-conflicts", "-f", "-", text=json.dumps(pool))
        self.kubectl("apply", "-f", "-", text=json.dumps(HOLDER))
        self.wait(lambda: self.phase() == "Running", "the pod runs on a machine")
        (claim,) = self.get("nodeclaims")
        self.node = str(claim["status"]["nodeName"])
        return str(claim["status"]["providerID"].rsplit("/", 1)[1])

    def phase(self) -> str:
        """The phase of the holder."""
        found = [pod for pod in self.get("pods", "-n", "default") if pod["metadata"]["name"] == "holder"]
        return str(found[0]["status"].get("phase")) if found else ""

    def wait(self, done: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + WAIT_SECONDS
        while not done():
            assert time.monotonic() < deadline, f"not within {WAIT_SECONDS} s: {what}"
            time.sleep(1)

    def drain(self, timeout: float) -> str:
        """Run the drain as the resource's deletion does; what it said."""
        props = {
            "task": "drain",
            "cluster": CLUSTER,
            "region": "us-west-2",
            "timeoutSeconds": timeout,
        }
        answer = subprocess.run(
            [sys.executable, "-c", DRAIN, json.dumps(props)],
            cwd=ROOT,
            env={**os.environ, **cloud_environment(self.home), "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            timeout=timeout + 120,
        )
        print(answer.stdout)
        assert answer.returncode == 0, answer.stderr
        return answer.stdout

    def assert_terminated(self, instance: str) -> None:
        """Nothing that Karpenter made is left, in the cluster and in the account."""
        for kind in ("nodeclaims", *POOL_KINDS):
            assert self.get(kind) == [], kind
        assert self.get("nodes", "-l", "karpenter.sh/nodepool") == []
        pods = self.get("pods", "--all-namespaces", "--field-selector", f"spec.nodeName={self.node}")
        assert pods == [], "a DaemonSet would wait for the pods that it had on the machine"
        ec2, iam = self.made.client("ec2"), self.made.client("iam")
        (found,) = ec2.describe_instances(InstanceIds=[instance])["Reservations"][0]["Instances"]
        assert found["State"]["Name"] == "terminated"
        assert iam.list_instance_profiles()["InstanceProfiles"] == []
        tagged = [{"Name": "tag:eks:eks-cluster-name", "Values": [CLUSTER]}]
        assert ec2.describe_launch_templates(Filters=tagged)["LaunchTemplates"] == []


@pytest.fixture(scope="module")
def live(second_world: World) -> Iterator[Live]:
    stack = Live(second_world)
    # No machine is left of the runs before.
    stack.kubectl("delete", "nodeclaims", "--all", "--timeout=110s")
    stack.keep_pools()
    yield stack
    # The one `make down` after all that has happened to the cluster.
    code, output = second_world.down()
    assert code == 0, output
    # Late log entries create the group again. The stack itself removes it: AWS has no sweep after the engine's.
    assert "sweep: log group" not in output
    assert things(second_world.client) - second_world.before == set()


def test_a_pod_that_must_not_be_disrupted_does_not_stop_the_drain(live: Live) -> None:
    instance = live.machine()
    said = live.drain(timeout=240)
    assert "deleting pods that block nodes: default/holder" in said
    assert "Karpenter does not finish" not in said
    live.assert_terminated(instance)


def test_a_drain_that_was_done_is_done_again_at_once(live: Live) -> None:
    (line,) = live.drain(timeout=60).splitlines()
    assert line.endswith("s: no node is left")


def test_a_disk_goes_although_its_pod_is_on_a_system_node(live: Live) -> None:
    live.kubectl("apply", "-f", "-", text=json.dumps(KEEPER))
    live.wait(
        lambda: (
            [pod["status"].get("phase") for pod in live.get("pods", "-n", "default", "-l", "app=keeper")]
            == ["Running"]
        ),
        "the pod runs with its disk",
    )
    (disk,) = live.get("persistentvolumes")
    said = live.drain(timeout=240)
    assert "deleting what mounts volumes: deployments default/keeper" in said
    assert "volumes are left" not in said
    assert live.get("persistentvolumes") == []
    ec2, handle = live.made.client("ec2"), disk["spec"]["csi"]["volumeHandle"]
    assert handle not in [each["VolumeId"] for each in ec2.describe_volumes()["Volumes"]]


def test_nodes_of_a_role_that_lost_its_permissions_are_terminated(live: Live) -> None:
    instance = live.machine()
    iam = live.made.client("iam")
    (role,) = [
        each["RoleName"]
        for each in iam.list_roles()["Roles"]
        if each["RoleName"].startswith(f"{CLUSTER}-karpenter")
    ]
    attached = iam.list_attached_role_policies(RoleName=role)["AttachedPolicies"]
    for policy in attached:
        iam.detach_role_policy(RoleName=role, PolicyArn=policy["PolicyArn"])
    try:
        # The drain waits for Karpenter for half of it.
        said = live.drain(timeout=60)
    finally:
        for policy in attached:
            iam.attach_role_policy(RoleName=role, PolicyArn=policy["PolicyArn"])
    assert "Karpenter does not finish; terminating the instances by" in said
    live.assert_terminated(instance)


def test_with_the_controller_down_the_drain_does_its_work(live: Live) -> None:
    instance = live.machine()
    live.kubectl("scale", "deployment", "karpenter", "-n", "kube-system", "--replicas=0")
    live.wait(
        lambda: not live.get("pods", "-n", "kube-system", "-l", "app.kubernetes.io/name=karpenter"), "down"
    )
    said = live.drain(timeout=600)
    assert "Karpenter is not running; terminating the instances by" in said
    live.assert_terminated(instance)


def test_a_cluster_that_is_gone_is_no_failure(live: Live) -> None:
    eks = live.made.client("eks")
    for group in eks.list_nodegroups(clusterName=CLUSTER)["nodegroups"]:
        eks.delete_nodegroup(clusterName=CLUSTER, nodegroupName=group)
        eks.get_waiter("nodegroup_deleted").wait(
            clusterName=CLUSTER, nodegroupName=group, WaiterConfig={"Delay": 1, "MaxAttempts": 120}
        )
    eks.delete_cluster(name=CLUSTER)
    eks.get_waiter("cluster_deleted").wait(name=CLUSTER, WaiterConfig={"Delay": 1, "MaxAttempts": 120})
    said = live.drain(timeout=60)
    assert "the cluster does not exist" in said
    assert said.splitlines()[-1].endswith("no node is left")
