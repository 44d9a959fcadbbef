"""The components as a library: what pip installs, and the example of a program that uses them."""

from __future__ import annotations

import ast
import importlib.util
import re
import runpy
import sys
import tomllib
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pulumi
import pytest

from components.documents.instance_types import find_instance_type, make_pool
from components.documents.pool import Pool
from components.documents.tags import stack_tags
from components.network import Network, NetworkArgs
from components.pools import Pools, PoolsArgs
from components.training import launcher_rules
from infra import components_reference
from tests.unit.components.recording import HERE, Recorded, deploy
from tests.unit.policies.building import made
from trainyard.policies import waivers
from trainyard.policies.evaluate import evaluate
from trainyard.policies.model import Stack
from trainyard.policies.rules import ALL

ROOT = Path(__file__).parents[3]
EXAMPLE = ROOT / "examples" / "library"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
# Packages of trainyard that need a checkout.
NOT_INSTALLED = ("cli", "policies", "preflight")


@pytest.fixture(scope="module")
def recorded() -> Iterator[Recorded]:
    """The example, with the folder `components` as `trainyard.components`, as pip installs it."""
    name = "trainyard.components"
    spec = importlib.util.spec_from_file_location(
        name, ROOT / "components" / "__init__.py", submodule_search_locations=[str(ROOT / "components")]
    )
    assert spec is not None
    sys.modules[name] = importlib.util.module_from_spec(spec)
    pulumi.runtime.set_all_config(
        {
            "aws:region": "us-west-2",
            "trainyard:administrators": '["arn:aws:iam::123456789012:role/platform"]',
            "trainyard:publicAccessCidrs": '["203.0.113.0/24"]',
        }
    )
    try:
        yield deploy(lambda: runpy.run_path(str(EXAMPLE / "__main__.py")) and None)
    finally:
        pulumi.runtime.set_all_config({})
        for module in [each for each in sys.modules if each == name or each.startswith(f"{name}.")]:
            del sys.modules[module]


def test_example_has_the_platform_and_a_bucket_beside_it(recorded: Recorded) -> None:
    assert recorded.one("eks:index:Cluster").name == "platform-test"
    (pool,) = recorded.of("kubernetes:karpenter.sh/v1:NodePool")
    (node_class,) = recorded.of("kubernetes:karpenter.k8s.aws/v1:EC2NodeClass")
    assert pool.inputs["spec"]["limits"] == {"nvidia.com/gpu": "4"}
    assert node_class.inputs["spec"]["tags"] == {"team": "ml", **stack_tags("trainyard", "test")}
    assert recorded.one("aws:s3/bucket:Bucket").name == "datasets"
    account = recorded.one("kubernetes:core/v1:ServiceAccount", "default-dataset-reader").inputs["metadata"]
    assert account["annotations"]["eks.amazonaws.com/role-arn"].endswith("platform-test-dataset-reader")


def test_example_is_destroyed_from_the_drain_to_the_network(recorded: Recorded) -> None:
    drain = recorded.needs("pulumi-python:dynamic/drain:Drain", "drain")
    assert {"gpu", "karpenter", "platform-test-system"} <= {name.removeprefix("pools-") for _, name in drain}
    # Pods use their permissions and the bucket until the drain ends.
    used = ("rolePolicyAttachment:RolePolicyAttachment", "s3/bucket:Bucket", "bucketPolicy:BucketPolicy")
    of_pods = {(each.type, each.name) for each in recorded.resources if each.type.endswith(used)}
    assert len({kind for kind, _ in of_pods}) == len(used)
    assert of_pods - drain == set()
    assert ("kubernetes:core/v1:ServiceAccount", "default-dataset-reader") in drain
    needed = recorded.needs("eks:index:Cluster", "platform-test")
    remains = recorded.one("pulumi-python:dynamic/drain:Remains")
    assert (remains.type, remains.name) in needed
    assert remains.inputs["lateLogSeconds"] == 180, "late entries would block the next `up`"
    assert any(type_ == "aws:ec2/subnet:Subnet" for type_, _ in needed)


def test_example_violates_no_policy(recorded: Recorded) -> None:
    stack = Stack([made(each.type, each.name, **each.inputs) for each in recorded.resources])
    # The policies of queues and buckets are found by references, which mocks do not have.
    rules = [each for each in ALL if each.id not in ("queue-closed", "bucket-tls-only")]
    assert [str(each) for each in evaluate(stack, waivers.load(), rules).violations] == []
    assert "aws:SecureTransport" in recorded.one("aws:s3/bucketPolicy:BucketPolicy").inputs["policy"]


def test_all_packages_of_the_library_are_installed() -> None:
    folders = {"trainyard.config", "trainyard.crd"}
    for name, root in (
        ("trainyard.components", "components"),
        ("launcher", "launcher"),
        ("trainyard", "trainyard"),
    ):
        for file in (ROOT / root).rglob("__init__.py"):
            parts = file.parent.relative_to(ROOT / root).parts
            if not (name == "trainyard" and parts[:1] and parts[0] in NOT_INSTALLED):
                folders.add(".".join((name, *parts)))
    assert set(PROJECT["tool"]["setuptools"]["packages"]) == folders


def test_library_needs_the_versions_that_are_tested() -> None:
    lines = (ROOT / "requirements.txt").read_text().splitlines()
    tested = dict(line.split("==") for line in lines if "==" in line)
    wanted = PROJECT["project"]["optional-dependencies"]["components"]
    lowest = {}
    for each in wanted:
        name, _, limits = each.partition("~=")
        lowest[name] = limits.rpartition(">=")[2]
    # Settings are read by the program of the checkout alone.
    assert {name: version for name, version in tested.items() if name != "pydantic"} == {
        name: version if version.count(".") > 1 else f"{version}.0" for name, version in lowest.items()
    }


def test_pool_of_a_type_with_efa_has_its_interfaces() -> None:
    pool = make_pool(find_instance_type("p5.48xlarge"), name="big", zone="us-west-2b", max_nodes=2)
    assert (pool.efa, pool.efa_policy, pool.accelerators, pool.idle_seconds) == (32, "ip", 8, 600)
    plain = make_pool(
        find_instance_type("g5.12xlarge"), name="a", zone="us-west-2b", max_nodes=1, efa_policy="none"
    )
    assert plain.efa == 0


def gpu_pool(**change: Any) -> Pool:
    values: dict[str, Any] = {"name": "gpu", "zone": "us-west-2c", "max_nodes": 4, **change}
    return make_pool(find_instance_type("g5.2xlarge"), **values)


def network(zones: Any) -> Network:
    return Network("n", NetworkArgs(account=HERE, cluster="c", cidr="10.64.0.0/16", zones=zones, tags={}))


def pools() -> Pools:
    subnets = {"us-west-2b": "subnet-b", "us-west-2a": "subnet-a"}
    args = PoolsArgs(cluster="c", pools=(gpu_pool(),), subnet_ids=subnets, node_role_name="r", tags={})
    return Pools("pools", args)


@pytest.mark.parametrize(
    ("create", "message"),
    [
        (
            lambda: find_instance_type("g5.13xlarge"),
            r"instance type: 'g5\.13xlarge' is unknown.*g5\.12xlarge.*",
        ),
        (lambda: gpu_pool(purchase="Spot"), r"purchase: 'Spot' is unknown\. .* on-demand, spot, reserved\."),
        *(
            (
                partial(gpu_pool, max_nodes=value),
                f"max_nodes: {re.escape(repr(value))} is invalid.*at least 1.",
            )
            for value in ("4", 0, -1, 1.5, True, None)
        ),
        (lambda: network("us-west-2a"), r"zones: 'us-west-2a' is a text\. It must be a tuple.*"),
        (pools, r"pools: pool 'gpu' is in us-west-2c, which has no subnet.* us-west-2a, us-west-2b\."),
        (lambda: launcher_rules("mpijob"), r"backend: 'mpijob' is unknown\. .* pytorchjob, trainjob\."),
    ],
)
def test_invalid_argument_is_refused_in_one_line(create: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}$"):
        create()


def test_page_of_the_components_is_current() -> None:
    assert components_reference.PAGE.read_text() == components_reference.render(), "run: make reference"


def test_page_has_all_components_and_a_meaning_of_each_argument() -> None:
    shown, internal = components_reference.MODULES, components_reference.INTERNAL
    modules = {file.stem for file in (ROOT / "components").glob("*.py")} - {"__init__"}
    assert {*shown, *internal} == modules
    for module in shown:
        for node in components_reference.classes(module):
            if components_reference.is_component(node):
                meanings = components_reference.outputs(module, node)
            else:
                meanings = {name: text for name, _, _, text in components_reference.arguments(node)}
            assert [name for name, text in meanings.items() if not text] == [], node.name


def test_page_has_the_signatures_of_all_functions_in_the_example() -> None:
    text = (EXAMPLE / "__main__.py").read_text()
    used = set(re.findall(r"\biam\.(\w+)", text))
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(
            "trainyard.components.documents."
        ):
            used |= {each.name for each in node.names}
    assert {"stack_tags", "make_pool", "control_plane_group"} <= used
    page = components_reference.PAGE.read_text().partition("## Helpers")[2]
    assert [each for each in sorted(used) if f"\n{each}(" not in page] == []
    assert "flow_logs_group(cluster: str)" in page, "without it, the key of flow logs can't be used"
    assert "purchase: str = 'on-demand'" in page


def test_components_import_each_other_by_relative_imports() -> None:
    """Where they are installed, there is no package `components`."""
    found = {
        (str(file.relative_to(ROOT)), name)
        for file in (ROOT / "components").rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text()))
        for name in _imported(node)
        if name.partition(".")[0] in ("components", "infra", "launcher", "trainer", "local")
    }
    assert found == set()


def _imported(node: ast.AST) -> list[str]:
    if isinstance(node, ast.ImportFrom) and not node.level:
        return [node.module or ""]
    return [each.name for each in node.names] if isinstance(node, ast.Import) else []
