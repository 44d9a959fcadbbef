"""Stack files: valid settings are read, and all errors are reported together."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from components.documents import instance_types, versions
from infra.settings import SettingsError, read
from infra.settings.provider import regions
from tests.shipped import shipped
from tests.unit.infra.changing import NOW, ROOT, mistakes, settings, stack_file
from trainyard.stack_files import find

SHIPPED = shipped()


def test_stack_name_invalid_for_a_cluster_needs_cluster_name(good: dict[str, Any]) -> None:
    with pytest.raises(SettingsError, match=r"cluster\.name: is 'trainyard-My_Stack' by the stack's name"):
        read("My_Stack", good, NOW)
    good["trainyard:cluster"]["name"] = "mine"
    assert read("My_Stack", good, NOW).cluster.name == "mine"


@pytest.fixture
def good() -> dict[str, Any]:
    return stack_file("local")


@pytest.mark.parametrize("name", SHIPPED)
def test_every_key_of_a_shipped_stack_file_has_a_comment(name: str) -> None:
    """Each key or group of keys has a comment above it; the first lines describe the stack's purpose."""
    lines = find(name).read_text().splitlines()
    assert lines[0].startswith("# ")
    groups = "\n".join(lines).split("\n\n")
    assert all("#" in group for group in groups[1:]), "a group of keys without a comment"


def test_promised_configurations_are_shipped() -> None:
    """`name: (instance type, maximum nodes, EFA interfaces per node, existing VPC, file system)`"""
    promised = {
        "local": ("g5.12xlarge", 4, 1, False, False),
        "dev": ("g5.12xlarge", 4, 1, False, False),
        "large": ("g5.12xlarge", 16, 1, False, False),
        "cpu": ("m5.large", 4, 0, False, False),
        "lustre-existing-vpc": ("p3dn.24xlarge", 4, 1, True, True),
        "g4dn": ("g4dn.metal", 2, 1, False, False),
        "g4dn-existing-vpc": ("g4dn.metal", 2, 1, True, False),
        "p4de-odcr": ("p4de.24xlarge", 2, 4, False, False),
        "p4de-odcr-existing-vpc": ("p4de.24xlarge", 2, 4, True, False),
        "p4d": ("p4d.24xlarge", 4, 4, False, True),
        "p5": ("p5.48xlarge", 4, 32, False, False),
        "trn1": ("trn1.32xlarge", 2, 8, False, False),
    }
    found = {}
    for name in SHIPPED:
        found_settings = read(name, stack_file(name), NOW)
        pool = found_settings.pools[0]
        found[name] = (
            pool.instance_type,
            pool.max_nodes,
            pool.efa,
            found_settings.network.existing is not None,
            found_settings.storage.lustre is not None,
        )
    assert found == promised


def test_five_errors_are_reported_together(good: dict[str, Any]) -> None:
    good["trainyard:pools"][0].update(instanceType="g5.13xlarge", zone="eu-central-1a", maxNodes="four")
    good["trainyard:training"]["minNodes"] = 9
    good["trainyard:trainning"] = {}
    lines = mistakes(good)
    expected = [
        "trainyard:pools[0].instanceType: 'g5.13xlarge' is not a known instance type; did you mean g5.16xlarge",
        "trainyard:pools[0].zone: 'eu-central-1a' is not in us-west-2; it must be one of us-west-2a",
        "trainyard:pools[0].maxNodes: 'four' is a text; it must be a whole number of nodes",
        "trainyard:training.minNodes: 9 is more than maxNodes; it must be at most 4",
        "trainyard:trainning: is not a known key; did you mean training?",
    ]
    for line in expected:
        assert any(found.startswith(line) for found in lines), f"not reported: {line}\n{lines}"
    assert len(lines) == len(expected), "one mistake, one line"


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        (
            "aws:region",
            "narnia",
            "aws:region: 'narnia' is not a known region; it must be the name of an AWS region, such as us-west-2",
        ),
        ("aws:region", "eu-wst-1", "aws:region: 'eu-wst-1' is not a known region; did you mean eu-west-1?"),
        (
            "aws:region",
            "us-west-22",
            "aws:region: 'us-west-22' is not a known region; did you mean us-west-2?",
        ),
        ("aws:region", "aws-global", "aws:region: 'aws-global' is not a known region"),
        # The names of its ARNs are not known here.
        ("aws:region", "us-iso-east-1", "aws:region: 'us-iso-east-1' is not a known region"),
        ("pools", "small", "pools: 'small' is a text; it must be a list of mappings"),
        ("pools", [], "pools: is missing"),
        ("cluster", [1], "cluster: [1] is a list; it must be a mapping"),
        ("cluster", {}, "cluster.administrators: is missing"),
        ("cluster", {"administrators": []}, "cluster.administrators: is empty"),
        ("cluster", {"administrators": ["me"]}, "cluster.administrators[0]: 'me' is invalid"),
        (
            "cluster",
            {
                "administrators": [
                    "arn:aws:sts::111122223333:assumed-role/AWSReservedSSO_Admin_0123456789abcdef/alice"
                ]
            },
            "cluster.administrators[0]:"
            " 'arn:aws:sts::111122223333:assumed-role/AWSReservedSSO_Admin_0123456789abcdef/alice' is a session of the"
            " role AWSReservedSSO_Admin_0123456789abcdef; it must be that role's ARN, as 'aws iam get-role --role-name"
            " AWSReservedSSO_Admin_0123456789abcdef --query Role.Arn' prints it",
        ),
        (
            "cluster",
            {"administrators": ["arn:aws:iam::111122223333:root"]},
            "cluster.administrators[0]: 'arn:aws:iam::111122223333:root' is invalid; it must be the ARN of"
            " an IAM user or role, such as",
        ),
        (
            "cluster",
            {"administrators": ["arn:aws:iam::111111111111:role/a", "arn:aws:iam::222222222222:role/b"]},
            "cluster.accountId: is missing; administrators are of 111111111111, 222222222222",
        ),
        (
            "cluster",
            {"administrators": ["arn:aws:iam::111111111111:role/a"], "accountId": "222222222222"},
            "cluster.accountId: '222222222222' is the account of no administrator",
        ),
        (
            "cluster",
            {"administrators": ["arn:aws:iam::111111111111:role/a"], "accountId": 111111111111},
            "cluster.accountId: 111111111111 is a whole number; it must be the twelve digits of an AWS"
            " account, in quotes",
        ),
        (
            "cluster",
            {"accountId": "1234"},
            "cluster.accountId: '1234' is invalid; it must be the twelve digits",
        ),
        (
            "cluster",
            {"existing": {}, "accountId": "123456789012"},
            "cluster.accountId: is for a cluster that the stack makes",
        ),
        ("cluster", {"version": "1.27"}, "cluster.version: '1.27' is not known"),
        (
            "cluster",
            {"version": 1.35},
            'trainyard:cluster.version: 1.35 is a number; write it in quotes: "1.35"',
        ),
        (
            "cluster",
            {"version": 1.27},
            "cluster.version: 1.27 is a number; it must be one of 1.34, 1.35, 1.36",
        ),
        ("cluster", {"name": "Research"}, "cluster.name: 'Research' is invalid; it must be lower case"),
        ("cluster", {"name": "c" * 32}, "cluster.name: "),
        (
            "cluster",
            {"administrators": 2 * ["arn:aws:iam::123456789012:role/platform"]},
            "cluster.administrators: 'arn:aws:iam::123456789012:role/platform' is listed twice. Remove one.",
        ),
        ("cluster", {"ami": "bottlerocket@v1.40.0"}, "cluster.ami: 'bottlerocket"),
        ("cluster", {"systemNodes": {"count": True}}, "systemNodes.count: true is a boolean"),
        ("cluster", {"lateLogSeconds": 601}, "cluster.lateLogSeconds: 601 is out of range"),
        ("cluster", {"ami": "al2023@latest"}, "cluster.ami: 'al2023@latest' is invalid"),
        (
            "network",
            {"cidr": "10.0.0.0/24"},
            "network.cidr: 10.0.0.0/24 has a prefix of /24; it must be a private range of /16 to /20, "
            "such as 10.64.0.0/16",
        ),
        ("network", {"cidr": "10.0.0.1/16"}, "network.cidr: 10.0.0.1/16 has host bits set"),
        ("network", {"zones": ["us-west-2a"]}, "network.zones: has 1 zone; it must have 2 to 4"),
        ("network", {"zones": ["us-west-2a", "us-east-1b"]}, "zones[1]: 'us-east-1b' is not in us-west-2"),
        ("images", {"build": False}, "images.launcher: is missing"),
        ("images", {"build": False, "launcher": "mine:latest"}, "images.launcher: 'mine:latest' is invalid"),
        (
            "images",
            {"trainer": f"x@sha256:{'0' * 64}", "baseImages": {"trainer": f"y@sha256:{'0' * 64}"}},
            "images.baseImages.trainer: is given, but images.trainer is, too",
        ),
        (
            "images",
            {"packageIndex": "https://me:secret@pypi.example/simple"},
            "images.packageIndex: holds credentials, which would stay in the images' history",
        ),
        (
            "images",
            {"packageIndex": "https://pypi.example/simple?token=secret"},
            "images.packageIndex: holds credentials",
        ),
        (
            "images",
            {"packageIndex": "http://pypi.example/simple"},
            "images.packageIndex: 'http://pypi.example/simple' is invalid; it must be an https address",
        ),
        (
            "images",
            {
                "launcher": f"x@sha256:{'0' * 64}",
                "trainer": f"y@sha256:{'0' * 64}",
                "packageIndex": "https://pypi.example/simple",
            },
            "images.packageIndex: is given, but images.launcher and images.trainer are, too",
        ),
        (
            "images",
            {"debianMirror": "ftp://debian.example"},
            "images.debianMirror: 'ftp://debian.example' is invalid; it must be an http or https address",
        ),
        (
            "images",
            {"efaInstaller": "http://files.example"},
            "images.efaInstaller: 'http://files.example' is invalid; it must be an https address",
        ),
        (
            "images",
            {"trainer": f"x@sha256:{'0' * 64}", "efaInstaller": "https://files.example"},
            "images.efaInstaller: is given, but images.trainer is, too",
        ),
        ("images", {"mirror": "https://x"}, "images.mirror: 'https://x' is invalid"),
        ("debugPod", "perhaps", "debugPod: 'perhaps' is a text"),
        ("mpi", 1, "mpi: 1 is a whole number; it must be true or false"),
        ("storage", {"prefix": "/x/"}, "storage.prefix: '/x/' is invalid"),
        (
            "sources",
            {"karpenterChart": "/charts/karpenter"},
            "karpenterCrdChart: 'oci://public.ecr.aws/karpenter/karpenter-crd' does not go with karpenterChart",
        ),
        (
            "sources",
            {"karpenterChart": "oci://registry.example/charts/karpenter:1.14.1"},
            "sources.karpenterChart: 'oci://registry.example/charts/karpenter:1.14.1' is invalid; it must be"
            " oci://registry/name without a tag",
        ),
        (
            "sources",
            {"karpenterCrdChart": "oci://registry.example/charts/karpenter-crd@sha256:12"},
            "sources.karpenterCrdChart: 'oci://registry.example/charts/karpenter-crd@sha256:12' is invalid",
        ),
    ],
)
def test_wrong_value_is_reported_with_its_path(
    good: dict[str, Any], key: str, value: Any, message: str
) -> None:
    good[key if key == "aws:region" else f"trainyard:{key}"] = value
    assert any(message in line for line in mistakes(good))


@pytest.mark.parametrize("region", ["us-west-2", "ap-southeast-7", "cn-northwest-1", "us-gov-east-1"])
def test_region_of_each_partition_is_known_with_any_profile(
    region: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_PROFILE", "nobody")
    regions.cache_clear()
    assert region in regions()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"runId": "Run_1"}, "trainyard:training.runId: 'Run_1' is invalid"),
        ({"runId": "r" * 41}, "trainyard:training.runId"),
        ({"pool": "smal"}, "trainyard:training.pool: 'smal' is not a pool; did you mean small?"),
        ({"device": "tpu"}, "trainyard:training.device: 'tpu' is not known"),
        (
            {"device": "cuda", "processesPerNode": 5},
            "processesPerNode: 5 is more than the GPUs of g5.12xlarge",
        ),
        ({"args": [3]}, "trainyard:training.args[0]: 3 is a whole number"),
        ({"minNodes": 1.5}, "trainyard:training.minNodes: 1.5 is a number"),
    ],
)
def test_invalid_training_is_reported(good: dict[str, Any], change: dict[str, Any], message: str) -> None:
    good["trainyard:training"].update(change)
    assert any(message in line for line in mistakes(good))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"zone": "us-west-2d"}, "zone: 'us-west-2d' has no subnets here"),
        ({"instanceType": "trn1.32xlarge"}, "training.pool: 'small' has trn1.32xlarge, whose Neuron devices"),
        ({"name": None}, "trainyard:pools[0].name: is missing"),
        (
            {"idleSeconds": 5},
            "idleSeconds: 5 is out of range; it must be a whole number of seconds of at least 30",
        ),
    ],
)
def test_invalid_pool_is_reported(good: dict[str, Any], change: dict[str, Any], message: str) -> None:
    good["trainyard:pools"][0].update(change)
    assert any(message in line for line in mistakes(good))


def test_misspelt_key_is_reported_once(good: dict[str, Any]) -> None:
    pool = good["trainyard:pools"][0]
    pool["maxNode"] = pool.pop("maxNodes")
    (line,) = mistakes(good)
    assert line.startswith("trainyard:pools[0].maxNode: is not a known key; did you mean maxNodes?")


def test_account_defaults_to_that_of_the_administrators(good: dict[str, Any]) -> None:
    def account(*administrators: str, **more: str) -> str:
        good["trainyard:cluster"] = {
            "administrators": [f"arn:aws:iam::{number}:role/platform" for number in administrators],
            "publicAccessCidrs": ["203.0.113.0/24"],
            **more,
        }
        return settings(good).cluster.account_id

    assert account("111111111111") == "111111111111"
    assert account("111111111111", "222222222222", accountId="222222222222") == "222222222222"


@pytest.mark.parametrize(
    "secret", ["https://me:hunter2@x/simple", "https://hunter2@x", "https://x/?key=hunter2"]
)
def test_secret_in_a_url_is_not_repeated(good: dict[str, Any], secret: str) -> None:
    good["trainyard:images"] = {"packageIndex": secret}
    assert [line for line in mistakes(good) if "hunter2" in line] == []


def test_package_index_is_read_unchanged(good: dict[str, Any]) -> None:
    assert settings(good).images.package_index is None
    for index in (
        "https://pypi.example/simple",
        "https://pypi.example:8443/a/b/simple/",
        "https://pypi.example",
    ):
        good["trainyard:images"] = {"packageIndex": index}
        assert settings(good).images.package_index == index


def test_duplicate_pool_name_is_reported(good: dict[str, Any]) -> None:
    good["trainyard:pools"] *= 2
    assert any(
        line.startswith("trainyard:pools[1].name: 'small' names another pool") for line in mistakes(good)
    )


def test_pool_maximum_below_preferred_nodes_is_valid(good: dict[str, Any]) -> None:
    good["trainyard:pools"][0]["maxNodes"] = 2
    assert settings(good).pools[0].max_nodes == 2, "the launcher decides on that"


def test_processes_per_node_default_to_the_gpus() -> None:
    config = stack_file("dev")
    assert settings(config).training.candidates[0].size.processes_per_node == 4
    config["trainyard:pools"][0]["instanceType"] = "c5.2xlarge"
    config["trainyard:training"]["device"] = "cpu"
    assert settings(config).training.candidates[0].size.processes_per_node == 1


def test_system_nodes_default_to_two_c5_2xlarge(good: dict[str, Any]) -> None:
    del good["trainyard:cluster"]["systemNodes"]
    by_default = settings(good).cluster.system_nodes
    assert (by_default.instance_type, by_default.count) == ("c5.2xlarge", 2)
    good["trainyard:cluster"].update(systemNodes={"instanceType": "m6i.large", "count": 3})
    said = settings(good).cluster.system_nodes
    assert (said.instance_type, said.count) == ("m6i.large", 3)


def test_stack_without_run_id_starts_no_run(good: dict[str, Any]) -> None:
    del good["trainyard:training"]["runId"]
    assert settings(good).training.run_id is None


def test_published_chart_has_a_version_and_directory_has_none(good: dict[str, Any], tmp_path: Path) -> None:
    assert settings(good).sources.karpenter_version == versions.KARPENTER
    for name in ("karpenter", "karpenter-crd"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "Chart.yaml").touch()
    good["trainyard:sources"] = {
        "karpenterChart": str(tmp_path / "karpenter"),
        "karpenterCrdChart": str(tmp_path / "karpenter-crd"),
    }
    assert settings(good).sources.karpenter_version is None


def test_published_chart_is_pinned_to_a_digest(good: dict[str, Any]) -> None:
    chart = f"{versions.KARPENTER_CHART}@sha256:{'0' * 64}"
    good["trainyard:sources"] = {"karpenterChart": chart}
    found = settings(good).sources
    assert (found.karpenter_chart, found.karpenter_version) == (chart, versions.KARPENTER)


def test_missing_sources_are_reported(good: dict[str, Any], tmp_path: Path) -> None:
    keys = ("karpenterChart", "karpenterCrdChart", "trainingOperator")
    for place in (str(tmp_path), "/nowhere", "nul\0byte"):
        good["trainyard:sources"] = dict.fromkeys(keys, place)
        lines = mistakes(good)
        shown = place.replace("\0", r"\x00")
        for key in keys:
            said = "is invalid" if "\0" in place else "is no directory"
            assert any(line.startswith(f"trainyard:sources.{key}: '{shown}' {said}") for line in lines)


def test_rendered_objects_in_a_file_are_a_source(good: dict[str, Any], tmp_path: Path) -> None:
    file = tmp_path / "objects.yaml"
    file.touch()
    keys = ("karpenterChart", "karpenterCrdChart", "trainingOperator", "kubeflowTrainer", "jobset")
    good["trainyard:sources"] = dict.fromkeys(keys, str(file))
    refused = {key for key in keys for line in mistakes(good) if line.startswith(f"trainyard:sources.{key}:")}
    assert refused == {"karpenterChart", "karpenterCrdChart", "kubeflowTrainer"}


def test_data_is_protected_by_default(good: dict[str, Any]) -> None:
    assert settings(good).protect_data is False
    del good["trainyard:protectData"]
    assert settings(good).protect_data is True


def test_instance_type_with_accelerators_has_one_resource() -> None:
    for facts in instance_types.TYPES.values():
        assert (facts.resource != "cpu") == (facts.accelerators > 0) == bool(facts.accelerator), facts.name


def test_every_documented_key_is_read() -> None:
    from infra.settings import KEYS

    assert set(yaml.safe_load((ROOT / "Pulumi.yaml").read_text())["config"]) == set(KEYS)


@pytest.mark.parametrize("value", [float("inf"), float("nan"), 1e300, -1])
def test_number_that_is_not_finite_is_reported(good: dict[str, Any], value: float) -> None:
    good["trainyard:pools"][0]["maxNodes"] = value
    assert [line.split(":")[1] for line in mistakes(good)] == ["pools[0].maxNodes"]


def test_pool_name_of_wrong_type_is_reported_once(good: dict[str, Any]) -> None:
    good["trainyard:pools"][0]["name"] = 5
    assert len(mistakes(good)) == 1
