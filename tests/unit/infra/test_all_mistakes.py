"""All errors are reported together, formats match whole values, and misspelt values get a suggestion."""

from __future__ import annotations

import re
from typing import Any

import pytest

from infra.settings.fields import hint
from tests.unit.infra.changing import (
    GIVEN_CLUSTER,
    POOL,
    changed,
    error_lines,
    mistakes,
    settings,
    with_,
    with_existing_cluster,
)

WRONG: list[dict[str, Any]] = [
    {"maxNodes": 0},
    {"instanceType": "g5.12xlarg"},
    {"zone": "us-west-2x"},
    {"purchase": "sport"},
    {"idleSeconds": "long"},
    {"colour": "red"},
]
DIGEST = "@sha256:" + "0" * 64


@pytest.mark.parametrize("wrong", WRONG, ids=lambda each: next(iter(each)))
def test_invalid_pool_does_not_hide_errors_of_its_references(wrong: dict[str, Any]) -> None:
    lines = mistakes(
        with_(
            {
                "pools": [{**POOL, **wrong}],
                "training": {"pool": "nope", "minNodes": 1, "maxNodes": 1, "args": ["--epoch", "1"]},
                "queues": [{"name": "a", "pool": "smal"}, {"name": "b", "pool": "small"}],
            }
        )
    )
    paths = [line.split(": ")[0].removeprefix("trainyard:") for line in lines]
    assert f"pools[0].{next(iter(wrong))}" in paths
    assert {"training.pool", "training.args[0]", "queues[0].pool"} <= set(paths)
    assert "did you mean small?" in next(line for line in lines if "queues[0].pool" in line)
    assert len(paths) == 4


@pytest.mark.parametrize(
    ("wrong", "training", "key"),
    [
        ({"maxNodes": 0}, {"processesPerNode": 99}, "processesPerNode"),
        ({"idleSeconds": 1}, {"minNodes": 9, "maxNodes": 9}, "minNodes"),
        ({"instanceType": "g5.12xlarg"}, {"minNodes": 9, "maxNodes": 9}, "minNodes"),
        ({"maxNodes": 0}, {"memory": "9000Gi"}, "memory"),
        ({"zone": "x"}, {"fallbackPools": ["small"]}, "fallbackPools[0].pool"),
        ({"zone": "x"}, {"checkpoints": "lustre"}, "checkpoints"),
    ],
)
def test_run_is_checked_against_valid_keys_of_its_pool(
    wrong: dict[str, Any], training: dict[str, Any], key: str
) -> None:
    run = {"pool": "small", "minNodes": 1, "maxNodes": 1, **training}
    lines = mistakes(with_({"pools": [{**POOL, **wrong}], "training": run}))
    assert [line for line in lines if line.startswith(f"trainyard:training.{key}")]
    assert len(lines) == 2


def test_pool_with_unreadable_name_may_be_the_referenced_one() -> None:
    pool = {key: value for key, value in POOL.items() if key != "name"}
    (line,) = mistakes(with_({"pools": [pool], "queues": [{"name": "a", "pool": "small"}]}))
    assert line.startswith("trainyard:pools[0].name")


def test_invalid_queue_or_account_does_not_hide_others() -> None:
    lines = mistakes(
        with_(
            {
                "pools": [{**POOL, "instanceType": "p3dn.24xlarge"}],
                "queues": [
                    {"name": "a", "pool": "small", "image": "latest", "serviceAccount": "writter"},
                    {"name": "b", "pool": "small"},
                    {"name": "b", "pool": "small", "image": f"a/b{DIGEST}"},
                ],
                "serviceAccounts": [{"name": "writer", "namespace": "training", "access": "all"}],
            }
        )
    )
    assert sorted(line.split(": ")[0].removeprefix("trainyard:") for line in lines) == [
        "queues[0].image",
        "queues[0].serviceAccount",
        "queues[1].image",
        "queues[2].name",
        "serviceAccounts[0].access",
    ]


ARN = "arn:aws:iam::123456789012:role/platform"


DIRT = (" ", "\n", "\t", "\x00", "\u00a0")


@pytest.mark.parametrize(
    ("section", "path", "value"),
    [
        ("cluster", "administrators.0", ARN),
        ("cluster", "name", "research"),
        ("cluster", "accountId", "123456789012"),
        ("cluster", "version", "1.35"),
        ("cluster", "ami", "al2023@v20260724"),
        ("cluster", "publicAccessCidrs.0", "203.0.113.0/24"),
        ("cluster", "systemNodes.instanceType", "c5.2xlarge"),
        ("network", "cidr", "10.64.0.0/16"),
        ("network", "zones.1", "us-west-2b"),
        ("network", "interfaceEndpoints.0", "kms"),
        ("pools", "0.name", "small"),
        ("pools", "0.zone", "us-west-2b"),
        ("pools", "0.instanceType", "g5.12xlarge"),
        ("pools", "0.dataSnapshotId", "snap-0123456789abcdef0"),
        ("pools", "0.placementGroup", "theirs"),
        ("images", "trainer", f"a/b{DIGEST}"),
        ("images", "mirror", "registry.example/mirror"),
        ("images", "packageIndex", "https://pypi.example/simple"),
        ("storage", "prefix", "models"),
        ("storage", "lustre.mountPath", "/fsx"),
        ("training", "pool", "small"),
        ("training", "runId", "r1"),
        ("training", "data", "digits"),
        ("training", "memory", "8Gi"),
        ("queues", "0.pool", "small"),
        ("queues", "0.scheduling.priorityClassName", "high"),
        ("serviceAccounts", "0.name", "writer"),
        ("serviceAccounts", "0.bucket", "data-sets"),
        ("sources", "trainingOperator", "https://git.example/a"),
    ],
)
def test_value_with_an_extra_character_is_refused(section: str, path: str, value: str) -> None:
    key = reported(section, path)
    assert key not in wrong_keys(section, path, value)
    for dirt in DIRT:
        assert key in wrong_keys(section, path, value + dirt), repr(dirt)
        assert key in wrong_keys(section, path, dirt + value), repr(dirt)


def reported(section: str, path: str) -> str:
    """Return the key as an error line has it: `pools.0.name` is `trainyard:pools[0].name`."""
    return "trainyard:" + re.sub(r"\.([0-9])\b", r"[\1]", f"{section}.{path}")


def wrong_keys(section: str, path: str, value: str) -> list[str]:
    """Return the keys of the errors in a stack file with one value set."""
    config = with_(
        {
            "network": {"zones": ["us-west-2a", "us-west-2b"], "interfaceEndpoints": [""]},
            "training": {"pool": "small", "minNodes": 1, "maxNodes": 1},
            "queues": [{"name": "a", "pool": "small", "scheduling": {}}],
            "serviceAccounts": [{"name": "b"}],
        }
    )
    if path != "interfaceEndpoints.0":
        del config["trainyard:network"]["interfaceEndpoints"]
    return [line.split(": ")[0] for line in error_lines(changed(config, f"{section}.{path}", value))]


@pytest.mark.parametrize(
    "arn",
    [
        "arn:aws:iam::123456789012:role/plat form",
        "arn:aws:iam::123456789012:role/a b/platform",
        "arn:aws:iam::123456789012:role/",
        "arn:aws:iam::123456789012:role//",
        "arn:aws:iam::123456789012:group/admins",
        "arn:aws:iam::12345678901:role/platform",
        "arn:aws:iam:us-west-2:123456789012:role/platform",
        f"arn:aws:iam::123456789012:role/{'a' * 65}",
    ],
)
def test_arn_not_possible_in_iam_is_refused(arn: str) -> None:
    (line,) = mistakes(with_({"cluster": {"administrators": [arn]}}))
    assert line.startswith("trainyard:cluster.administrators[0]")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("endpoint", "https://AB.gr7.us-west-2.eks.amazonaws.com/x y"),
        ("certificateAuthority", "LS0tLS1CRUdJTg="),
        ("oidcProviderArn", "arn:aws:iam::123456789012:oidc-provider/oidc.example/id/A B"),
        ("oidcIssuer", "oidc.example/id/A B"),
        ("securityGroupId", "sg-0123456789abcdef0 "),
    ],
)
def test_existing_cluster_with_malformed_value_is_refused(key: str, value: str) -> None:
    lines = mistakes(with_existing_cluster(existing={**GIVEN_CLUSTER, key: value}))
    assert any(f"existing.{key}" in line for line in lines)


@pytest.mark.parametrize("prefix", ["a", "a/b", "models.v1", "a_b/c-d"])
def test_key_prefix_is_accepted(prefix: str) -> None:
    assert settings(with_({"storage": {"prefix": prefix}})).storage.prefix == prefix


@pytest.mark.parametrize("prefix", ["a//b", "a/../b", "../a", "a/", "/a", "a/."])
def test_key_prefix_with_an_odd_segment_is_refused(prefix: str) -> None:
    assert mistakes(with_({"storage": {"prefix": prefix}}))


@pytest.mark.parametrize(
    ("change", "offered"),
    [
        ({"pools": [{**POOL, "instanceType": "g5.12xlarg"}]}, "g5.12xlarge"),
        ({"pools": [{**POOL, "instanceType": "g5.12xlarge "}]}, "g5.12xlarge"),
        ({"pools": [{**POOL, "instanceType": "p4d.24xarge"}]}, "p4d.24xlarge"),
        ({"pools": [{**POOL, "instanceType": "p5-48xlarge"}]}, "p5.48xlarge"),
        ({"pools": [{**POOL, "purchase": "on_demand"}]}, "did you mean on-demand?"),
        ({"cluster": {"systemNodes": {"instanceType": "c5.2xlrge"}}}, "c5.2xlarge"),
        (
            {"training": {"pool": "small", "minNodes": 1, "maxNodes": 1, "device": "CUDA"}},
            "did you mean cuda?",
        ),
        ({"Pools": []}, "did you mean pools?"),
        ({"cluster": {"Version": "1.35"}}, "did you mean version?"),
    ],
)
def test_misspelt_value_gets_a_suggestion(change: dict[str, Any], offered: str) -> None:
    assert any(offered in line for line in mistakes(with_(change)))


def test_suggestion_ignores_case() -> None:
    assert hint("SPOT", ("spot", "on-demand")) == "; did you mean spot?"


def test_empty_training_with_another_error_means_no_run() -> None:
    config = {**with_({"pools": [{**POOL, "maxNodes": 0}]}), "trainyard:training": {}}
    assert [line.split(": ")[0] for line in mistakes(config)] == ["trainyard:pools[0].maxNodes"]


def test_file_system_with_empty_zone_is_refused() -> None:
    (line,) = mistakes(with_({"storage": {"lustre": {"capacityGiB": 1200, "zone": ""}}}))
    assert line.startswith("trainyard:storage.lustre.zone: ''")


KEY = "key/0123abcd-0123-0123-0123-0123456789ab"


@pytest.mark.parametrize(
    ("region", "key", "value", "part"),
    [
        ("us-west-2", "administrators", ["arn:aws-cn:iam::123456789012:role/a"], "of the partition aws-cn"),
        ("us-gov-west-1", "administrators", [ARN], "it must be of aws-us-gov"),
        ("us-west-2", "volumeKey", f"arn:aws:kms:eu-west-1:123456789012:{KEY}", "is of eu-west-1"),
        ("us-west-2", "volumeKey", f"arn:aws-cn:kms:us-west-2:123456789012:{KEY}", "the partition aws-cn"),
        ("us-west-2", "volumeKey", f"arn:aws:kms:us-west-2:999999999999:{KEY}", "is of another account"),
    ],
)
def test_arn_of_another_place_is_refused(region: str, key: str, value: Any, part: str) -> None:
    config = with_({"pools": [{**POOL, "zone": f"{region}a"}], "cluster": {key: value}})
    config["aws:region"] = region
    (line,) = mistakes(config)
    assert line.startswith(f"trainyard:cluster.{key}")
    assert part in line


def test_role_with_a_region_in_its_path_is_accepted() -> None:
    arn = "arn:aws:iam::123456789012:role/eu-west-1/platform"
    assert settings(with_({"cluster": {"administrators": [arn]}})).cluster.administrators == (arn,)


@pytest.mark.parametrize(
    ("key", "old", "new"),
    [
        ("oidcProviderArn", "us-west-2", "eu-west-1"),
        ("oidcProviderArn", "arn:aws:", "arn:aws-cn:"),
        ("endpoint", "us-west-2", "eu-west-1"),
    ],
)
def test_existing_cluster_of_another_place_is_refused(key: str, old: str, new: str) -> None:
    existing = {**GIVEN_CLUSTER, key: GIVEN_CLUSTER[key].replace(old, new)}
    if key == "oidcProviderArn":
        existing["oidcIssuer"] = existing[key].partition("oidc-provider/")[2]
    (line,) = mistakes(with_existing_cluster(existing=existing))
    assert line.startswith(f"trainyard:cluster.existing.{key}: '{existing[key]}' is of ")


def test_existing_cluster_behind_another_name_is_accepted() -> None:
    existing = {**GIVEN_CLUSTER, "endpoint": "https://proxy.example:8443"}
    assert settings(with_existing_cluster(existing=existing)).cluster.existing


RUN = {"pool": "small", "minNodes": 1, "maxNodes": 1}


@pytest.mark.parametrize(
    ("section", "path", "value", "part"),
    [
        (
            "training",
            "memory",
            "100",
            "'100' is 100 bytes; it must be a quantity of at least 1Mi such as 8Gi",
        ),
        ("training", "memory", "1m", "'1m' is invalid"),
        ("training", "sharedMemory", "64", "'64' is 64 bytes"),
        ("training", "cpu", "4Gi", "'4Gi' is invalid; it must be at least 100m cores"),
        ("queues", "0.nodeResources.memory", "800", "'800' is 800 bytes"),
        ("queues", "0.nodeResources.cpus", "1m", "'1m' is 0.001 cores"),
        ("queues", "0.storage.workspace.size", "100", "'100' is 100 bytes"),
        ("queues", "0.storage.checkpoints.sizePerGPU", "100k", "'100k' is 100000 bytes"),
        ("training", "activeDeadlineSeconds", 2**31, "of at least 60 and at most 2147483647"),
        ("training", "data", "", "'' is empty"),
        ("training", "data", "s3://bucket/mnist", "it must be digits or corpus, or the absolute path"),
        ("training", "data", "digit", "did you mean digits?"),
        ("cluster", "systemNodes.instanceType", "p5.48xlarge", "has accelerators"),
        ("cluster", "systemNodes.instanceType", "trn1.32xlarge", "has accelerators"),
        ("pools", "0.reservationEnds", "2027-01-31 11:30:00 +0000 UTC", "in quotes"),
        ("pools", "0.reservationBegins", "2027-01-31 11:30:00 +0000 UTC", "in quotes"),
    ],
)
def test_value_of_no_use_is_refused_with_its_remedy(section: str, path: str, value: Any, part: str) -> None:
    config = with_(
        {
            "pools": [{**POOL, "purchase": "reserved", "capacityReservationIds": ["cr-0123456789abcdef0"]}],
            "training": {**RUN},
            "queues": [{"name": "a", "pool": "small"}],
        }
    )
    (line,) = mistakes(changed(config, f"{section}.{path}", value))
    assert line.startswith(f"{reported(section, path)}: ")
    assert part in line


@pytest.mark.parametrize("data", ["digits", "corpus", "/fsx/mnist/"])
def test_data_of_the_trainer_is_accepted(data: str) -> None:
    training = settings(with_({"training": {**RUN, "data": data}})).training
    assert training
    assert training.data == data


def test_data_of_another_image_is_not_checked() -> None:
    change = {"training": {**RUN, "data": "s3://bucket/mnist"}, "images": {"trainer": f"a/b{DIGEST}"}}
    assert settings(with_(change)).training


def test_addresses_of_many_pools_are_summed() -> None:
    pools = [{**POOL, "name": f"p{number}", "maxNodes": 9} for number in range(60)]
    (line,) = mistakes(with_({"network": {"cidr": "10.64.0.0/20"}, "pools": pools}))
    assert len(line) < 500
    assert re.search(r"may be taken \(.+, \d+ others: \d+\)", line)
