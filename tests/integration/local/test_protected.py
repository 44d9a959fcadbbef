"""A stack that protects its data: a destroy refuses, or takes all but that; the tests are one story, in order."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator

import pytest
import yaml

from local.guard import cloud_environment
from tests.account import things
from tests.integration.local.conftest import Command, run
from tests.integration.local.kept_data import Snapshot, snapshot
from tests.world import World, world
from trainyard.cli.engine import ROOT, Engine, EngineError

# Two whole `up` and a `down`, on a machine that may be busy.
pytestmark = [pytest.mark.lives, pytest.mark.timeout(1800)]

STACK = "zz-protected"
CLUSTER = f"trainyard-{STACK}"
FILE = ROOT / f"Pulumi.{STACK}.yaml"
LUSTRE = {
    "deploymentType": "PERSISTENT_2",
    "capacityGiB": 1200,
    "zone": "us-west-2b",
    "mountPath": "/fsx",
    "s3": {"bucket": "models", "prefix": "data", "path": "/data"},
}
# What is left of the account by the calls of `tests.account`, and how many of each.
KEPT = {
    "alias": 2,
    "describe_data_repository_associations": 1,
    "describe_file_systems": 1,
    "describe_network_interfaces": 2,  # of the file system
    "describe_repositories": 2,
    "describe_route_tables": 1,  # the VPC's own
    "describe_security_groups": 3,  # the file system's, the workers' and the VPC's own
    "describe_subnets": 1,
    "describe_vpcs": 1,
    "key": 2,
    "list_buckets": 1,
    "list_roles": 1,  # in which FSx reaches the bucket; it makes it and takes it away itself
}
# What Karpenter gives back after a run, whenever it does.
OF_MACHINES = ("instance ", "describe_launch_templates ", "describe_network_interfaces ", "describe_volumes ")


class Protected:
    """The stack `local` with a file system and protected data, under a name of its own."""

    def __init__(self, made: World) -> None:
        self.made = made
        self.before = things(made.client)
        self.engine = Engine(made.home.root, STACK, cloud_environment(made.home))
        self.data: Snapshot = {}

    def command(self, *words: str) -> Command:
        """A command that a person types: `up`, `down`."""
        return self._run("-m", "trainyard.cli", *words, "--stack", STACK, "--cloud", "local")

    def verify_clean(self) -> Command:
        """`make verify-clean`."""
        return self.command("verify-clean")

    def _run(self, *words: str) -> Command:
        return run([sys.executable, *words], {"TRAINYARD_HOME": str(self.made.home.root)})

    def snapshot(self) -> Snapshot:
        """The current data, and the sources of the pods' images."""
        found = snapshot(self.made.client, str(self.engine.outputs()["modelBucket"]), CLUSTER)
        return {**found, "images": json.loads(self.made.home.images_file.read_text())}

    def there(self) -> frozenset[str]:
        """What the account holds of the stack."""
        return things(self.made.client) - self.before

    def lasting(self) -> list[str]:
        """The same, but for what comes and goes with machines."""
        return sorted(each for each in self.there() if not each.startswith(OF_MACHINES))


def write_stack(protect: bool) -> None:
    document = yaml.safe_load((ROOT / "Pulumi.local.yaml").read_text())
    config = document["config"]
    config["trainyard:training"] |= {"minNodes": 1, "maxNodes": 1, "args": ["--epochs", "1"]}
    config["trainyard:storage"] = {"lustre": LUSTRE}
    config["trainyard:protectData"] = protect
    FILE.write_text(yaml.safe_dump(document))


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Protected]:
    write_stack(protect=True)
    try:
        with world(tmp_path_factory.mktemp("protected") / "home", STACK) as made:
            found = Protected(made)
            assert found.command("up").code == 0
            found.data = found.snapshot()
            yield found
    finally:
        FILE.unlink()


def test_the_data_is_all_there(stack: Protected) -> None:
    """Or nothing would be compared."""
    assert any(name.startswith("object models/r1/model.pt ") for name in stack.data)
    assert len(stack.data["links"]) == 1
    assert len(stack.data["rules"]) >= 8
    assert len(stack.data["data key's grants"]) == 1
    assert sum(name.startswith("repository ") for name in stack.data) == 2
    assert stack.data["images"]


def test_a_destroy_refuses_at_once_in_one_line_and_changes_nothing(stack: Protected) -> None:
    there = stack.lasting()
    answer = stack.command("down")
    assert answer.code == 1
    log, line = answer.output.splitlines()
    assert log.startswith("log: ")
    assert line.startswith(f"error: stack {STACK} protects its data: bucket {CLUSTER}-models-")
    home = stack.made.home.root
    assert f"`TRAINYARD_HOME={home} make down STACK={STACK} CLOUD=local KEEP_DATA=1`" in line
    # The bare engine, which looks at all before it begins.
    with pytest.raises(EngineError):
        stack.engine.run("destroy", "--yes")
    assert stack.lasting() == there
    assert stack.snapshot() == stack.data


def test_all_the_rest_is_destroyed_and_the_data_stays_exactly_as_it_was(stack: Protected) -> None:
    answer = stack.command("down", "--keep-data")
    assert answer.code == 0, answer.output
    assert "sweep:" not in answer.output, "the program's own destroy left something"
    assert f"stack {STACK} is destroyed but for its data: bucket {CLUSTER}-models-" in answer.output
    kinds = [each.split()[0] for each in stack.there()]
    assert {kind: kinds.count(kind) for kind in sorted(set(kinds))} == KEPT
    assert stack.snapshot() == stack.data


def test_kept_data_differs_from_leftovers(stack: Protected) -> None:
    answer = stack.verify_clean()
    lines = answer.output.splitlines()
    assert answer.code == 0
    assert lines[-1] == f"verify-clean of stack {STACK}: nothing is left"
    kept = [line for line in lines if line.startswith("kept: ")]
    assert len(kept) == len(lines) - 1
    for kind in (
        "S3 bucket",
        "FSx file system",
        "data repository association",
        "ECR repository",
        "KMS key",
        "VPC",
    ):
        assert any(line.startswith(f"kept: {kind} ") for line in kept), kind


def test_to_keep_it_again_is_no_error_and_finds_nothing_to_do(stack: Protected) -> None:
    there = stack.there()
    assert stack.command("down", "--keep-data").code == 0
    assert stack.command("down").code == 1
    assert stack.there() == there


def test_the_next_up_is_built_around_the_data_and_unprotected_it_goes_whole(stack: Protected) -> None:
    write_stack(protect=False)
    assert stack.command("up").code == 0
    now = stack.snapshot()
    objects = {name: value for name, value in stack.data.items() if name.startswith("object ")}
    assert objects
    assert {name: now.get(name) for name in objects} == objects
    for name in ("file system", "links", "VPC"):
        assert now[name] == stack.data[name], name
    answer = stack.command("down")
    assert answer.code == 0, answer.output
    assert sorted(stack.there()) == []
    assert stack.made.tagged() == []
