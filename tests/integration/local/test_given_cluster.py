"""A stack on an existing cluster: it trains there, and goes without taking anything of its owner's with it."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from local.guard import cloud_environment
from tests.account import things
from tests.cluster_reads import read as read_objects
from tests.integration.local.conftest import Command, run
from tests.world import World, world
from trainyard.cli.engine import ROOT, Engine
from trainyard.stack_files import read

pytestmark = [pytest.mark.local, pytest.mark.timeout(1800)]

STACK, CLUSTER = "zz-given-cluster", "research"
CONFIG: dict[str, Any] = {
    "aws:region": "us-west-2",
    "pulumi:disable-default-providers": ["aws", "kubernetes"],
    "trainyard:network": {
        "vpcId": "vpc-0123456789abcdef0",
        "privateSubnetIds": {
            "us-west-2a": "subnet-0a23456789abcdef0",
            "us-west-2b": "subnet-0b23456789abcdef0",
        },
    },
    "trainyard:cluster": {
        "existing": {
            "name": CLUSTER,
            "endpoint": "https://AB.gr7.us-west-2.eks.amazonaws.com",
            "certificateAuthority": "LS0tLS1CRUdJTg==",
            "oidcProviderArn": "arn:aws:iam::123456789012:oidc-provider/oidc.eks.us-west-2.amazonaws.com/id/AB",
            "oidcIssuer": "https://oidc.eks.us-west-2.amazonaws.com/id/AB",
            "securityGroupId": "sg-0223456789abcdef0",
        }
    },
    "trainyard:pools": [
        {
            "name": "small",
            "instanceType": "g5.12xlarge",
            "zone": "us-west-2b",
            "maxNodes": 2,
            "idleSeconds": 60,
        }
    ],
    "trainyard:training": {
        "pool": "small",
        "runId": "r1",
        "minNodes": 1,
        "maxNodes": 1,
        "args": ["--epochs", "1"],
        "capacityDeadlineSeconds": 240,
        "holdSeconds": 5,
        "device": "cpu",
        "processesPerNode": 1,
        "data": "digits",
    },
    "trainyard:protectData": False,
}


@pytest.fixture
def made(tmp_path: Path) -> Iterator[World]:
    """A local cloud with all existing resources of the stack file."""
    file = ROOT / f"Pulumi.{STACK}.yaml"
    file.write_text(yaml.safe_dump({"config": CONFIG}))
    try:
        with world(tmp_path / "home", STACK) as cloud:
            yield cloud
    finally:
        file.unlink()


def kubectl(made: World, *arguments: str) -> str:
    """kubectl's output in the existing cluster, as its administrator."""
    words = [str(made.home.root / "bin" / "kubectl"), "--kubeconfig", str(made.home.kubeconfig)]
    words += ["--context", CLUSTER, *arguments]
    answer = subprocess.run(words, capture_output=True, text=True, timeout=60)
    assert answer.returncode == 0, answer.stderr
    return answer.stdout


def objects(made: World, kind: str) -> set[str]:
    """Names of objects in the existing cluster."""
    items = read_objects(made.home.kubeconfig, kind, context=CLUSTER)["items"]
    return {each["metadata"]["name"] for each in items}


def preflight(made: World) -> Command:
    """`make preflight`; that every check was made, the one inside of the cluster among them."""
    words = ["make", "preflight", f"STACK={STACK}", "CLOUD=local"]
    answer = run(words, {"TRAINYARD_HOME": str(made.home.root)}, 240)
    assert "not checked" not in answer.output
    return answer


def system_nodes(made: World) -> set[str]:
    """The two machines of the cluster's owner, once they have booted."""
    deadline = time.monotonic() + 60
    while len(found := objects(made, "nodes")) < 2:
        assert time.monotonic() < deadline, f"its owner's system nodes: {found}"
        time.sleep(1)
    return found


def test_a_stack_trains_on_a_given_cluster_and_leaves_it_as_it_was(made: World) -> None:
    nodes = system_nodes(made)
    assert preflight(made).code == 0, "each value of the settings is what EKS and IAM say"
    process = made.deploy("up")
    output, _ = process.communicate(timeout=900)
    print(output)
    assert process.returncode == 0, output[-3000:]
    assert "run r1 succeeded" in output
    assert f"existing: cluster {CLUSTER}" not in output, "the second time it is found, not made"
    engine = Engine(made.home.root, STACK, cloud_environment(made.home))
    types = {each["type"] for each in engine.deployment()["resources"]}
    assert "trainyard:cluster:ExistingCluster" in types
    assert not types & {"aws:eks/cluster:Cluster", "eks:index:Cluster", "aws:eks/addon:Addon"}
    engine.run("up", "--yes", "--skip-preview", "--expect-no-changes")
    engine.run("refresh", "--yes", "--skip-preview", "--expect-no-changes")
    settings = read(engine.config_file)["config"]["trainyard:cluster"]
    assert "administrators" not in settings
    assert preflight(made).code == 0, "what the stack has made itself is no problem"
    code, output = made.down()
    print(output)
    assert code == 0, output[-3000:]
    assert sorted(things(made.client) - made.before) == []
    assert made.tagged() == []
    assert made.client("eks").describe_cluster(name=CLUSTER)["cluster"]["status"] == "ACTIVE"
    assert objects(made, "nodes") == nodes
    assert "training" not in objects(made, "namespaces")
    kubectl(made, "create", "namespace", "training")
    said = preflight(made)
    assert said.code != 0
    assert f"'{CLUSTER}' has the namespace training already" in said.output
