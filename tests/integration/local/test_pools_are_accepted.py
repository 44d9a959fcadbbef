"""Karpenter's definitions on a real API server take every pool: structure and rules (CEL), by a server-side dry run."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from components.documents import efa, instance_types
from components.documents.pool import Pool, node_class, node_pool
from infra.settings import read
from local.tools.registry import module_directory
from tests.integration.local.conftest import Command
from tests.integration.local.own_api_server import ESTABLISHED
from tests.integration.local.own_cloud import OwnCloud, own_cloud
from tests.shipped import config_of, shipped

pytestmark = pytest.mark.local

ROOT = Path(__file__).resolve().parents[3]
CLUSTER = "definitions"
DEFINITIONS = ("karpenter.sh_nodepools.yaml", "karpenter.k8s.aws_ec2nodeclasses.yaml")


@pytest.fixture(scope="module")
def cloud(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OwnCloud]:
    """A cluster with the definitions and without Karpenter."""
    with own_cloud(tmp_path_factory.mktemp("definitions") / "home") as running:
        running.create_cluster(CLUSTER)
        for name in DEFINITIONS:
            path = module_directory("karpenter") / "pkg" / "apis" / "crds" / name
            running.kubectl(CLUSTER, "create", "-f", str(path))
        for name in ("nodepools.karpenter.sh", "ec2nodeclasses.karpenter.k8s.aws"):
            for each in ESTABLISHED:
                running.kubectl(CLUSTER, "wait", f"--for={each}", f"crd/{name}", "--timeout=30s")
        yield running
        running.delete_cluster(CLUSTER)


def objects(pool: Pool, name: str, *, lustre: bool) -> list[dict[str, Any]]:
    """The pool's two objects as `components.pools` makes them, outputs of other resources filled in."""
    spec = node_class(
        pool,
        cluster=CLUSTER,
        ami="al2023@v20260724",
        role="workers",
        subnet_id="subnet-0123456789abcdef0",
        tags={"trainyard:stack": "test"},
    )
    machine = {"apiVersion": "karpenter.k8s.aws/v1", "kind": "EC2NodeClass", "spec": spec}
    ceiling = {"apiVersion": "karpenter.sh/v1", "kind": "NodePool", "spec": node_pool(pool, lustre=lustre)}
    return [{**each, "metadata": {"name": name}} for each in (machine, ceiling)]


def dry_run(cloud: OwnCloud, tmp_path: Path, items: list[dict[str, Any]]) -> Command:
    path = tmp_path / "objects.json"
    path.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))
    return cloud.local(
        "kubectl", "--context", CLUSTER, "create", "--dry-run=server", "--validate=strict", "-f", str(path)
    )


def test_the_pools_of_every_shipped_stack_file_are_accepted(cloud: OwnCloud, tmp_path: Path) -> None:
    items: list[dict[str, Any]] = []
    for name in shipped():
        settings = read(name, config_of(name))
        for pool in settings.pools:
            items += objects(pool, f"{name}-{pool.name}", lustre=settings.storage.lustre is not None)
    answer = dry_run(cloud, tmp_path, items)
    assert answer.code == 0, answer.output
    assert answer.output.count("created (server dry run)") == len(items) >= 24


def test_every_type_is_accepted_with_every_policy_of_its_interfaces(cloud: OwnCloud, tmp_path: Path) -> None:
    items: list[dict[str, Any]] = []
    for facts in instance_types.TYPES.values():
        for policy in (efa.IP, efa.BANDWIDTH) if facts.efa else (efa.NONE,):
            config = {
                "aws:region": "us-west-2",
                "trainyard:cluster": {
                    "administrators": ["arn:aws:iam::123456789012:role/platform"],
                    "publicAccessCidrs": ["203.0.113.0/24"],
                },
                "trainyard:pools": [
                    {
                        "name": "p",
                        "instanceType": facts.name,
                        "zone": "us-west-2b",
                        "maxNodes": 2,
                        "efa": policy,
                        "placementGroup": policy == efa.IP,
                        "dataSnapshotId": "snap-0123456789abcdef0" if policy == efa.IP else None,
                    }
                ],
            }
            (pool,) = read("test", config).pools
            items += objects(pool, f"{facts.name.replace('.', '-')}-{policy}", lustre=True)
    answer = dry_run(cloud, tmp_path, items)
    assert answer.code == 0, answer.output
    assert answer.output.count("created (server dry run)") == len(items) > 200


@pytest.mark.parametrize(
    ("interfaces", "message"),
    [
        ([(0, 0, "efa-only")], "networkInterfaces must include a primary interface"),
        (
            [(0, 0, "interface"), (0, 1, "efa-only"), (0, 1, "interface")],
            "must not have duplicate networkCardIndex",
        ),
        (
            [(0, 0, "interface"), (0, 1, "efa-only"), (0, 2, "efa-only")],
            "at most one efa device per network card",
        ),
    ],
)
def test_the_rules_are_really_asked(
    cloud: OwnCloud, tmp_path: Path, interfaces: list[tuple[int, int, str]], message: str
) -> None:
    """So that the tests above can fail."""
    config = config_of("g4dn")
    machine, _ = objects(read("g4dn", config).pools[0], "wrong", lustre=False)
    machine["spec"]["networkInterfaces"] = [
        {"networkCardIndex": card, "deviceIndex": device, "interfaceType": kind}
        for card, device, kind in interfaces
    ]
    answer = dry_run(cloud, tmp_path, [machine])
    assert answer.code != 0
    assert message in answer.output
