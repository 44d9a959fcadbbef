from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import yaml

from infra import settings
from tests.shipped import shipped
from tests.unit.preflight.accounts import Answers
from trainyard.cli.stack_file import check_name, for_local_cloud, runs_trainjobs, with_sources, write
from trainyard.preflight.access import check_public_ranges
from trainyard.stack_files import StackFileError, find, read

SOURCES = {"karpenterChart": "/m/karpenter", "karpenterCrdChart": "/m/karpenter-crd"}
SHIPPED = shipped()
DEPLOYER = "arn:aws:iam::123456789012:user/deployer"
GPU_STACK: dict[str, Any] = {
    "config": {
        "aws:region": "us-west-2",
        "trainyard:training": {"pool": "small", "device": "cuda", "processesPerNode": 4},
        "trainyard:cluster": {"administrators": ["arn:aws:iam::111122223333:role/platform"]},
        "trainyard:images": {"trainer": "registry.example/trainer@sha256:00"},
    }
}


def test_a_gpu_stack_trains_on_the_cpu_of_the_local_cloud() -> None:
    training = for_local_cloud(GPU_STACK, SOURCES, DEPLOYER)["config"]["trainyard:training"]
    assert training == {"pool": "small", "device": "cpu", "processesPerNode": 1}


@pytest.mark.parametrize("wrong", [{"device": "tpu"}, {"processesPerNode": 0}, {"processesPerNode": "two"}])
def test_wrong_value_stays_for_the_checks(wrong: dict[str, Any]) -> None:
    stack = {"config": {"trainyard:training": wrong}}
    training = for_local_cloud(stack, SOURCES, DEPLOYER)["config"]["trainyard:training"]
    assert wrong.items() <= training.items()


def test_stack_without_trainjobs_needs_no_kubeflow_trainer() -> None:
    assert not runs_trainjobs(GPU_STACK)
    assert not any(
        runs_trainjobs({"config": {"trainyard:training": value}}) for value in (None, {}, "trainjob")
    )
    assert runs_trainjobs({"config": {"trainyard:training": {"backend": "trainjob"}}})


def test_the_emulators_deployer_is_an_administrator_beside_the_given_ones() -> None:
    once = for_local_cloud(GPU_STACK, SOURCES, DEPLOYER)
    twice = for_local_cloud(once, SOURCES, DEPLOYER)
    expected = ["arn:aws:iam::111122223333:role/platform", DEPLOYER]
    assert once["config"]["trainyard:cluster"]["administrators"] == expected
    assert twice["config"]["trainyard:cluster"]["administrators"] == expected


def test_no_entry_of_the_emulators_logs_comes_late() -> None:
    stated = {
        "config": {**GPU_STACK["config"], "trainyard:cluster": {"administrators": [], "lateLogSeconds": 300}}
    }
    for document in (GPU_STACK, stated):
        made = for_local_cloud(document, SOURCES, DEPLOYER)["config"]["trainyard:cluster"]
        assert made["lateLogSeconds"] == 0
    given = {"config": {**GPU_STACK["config"], "trainyard:cluster": {"existing": {"name": "theirs"}}}}
    kept = for_local_cloud(given, SOURCES, DEPLOYER)["config"]["trainyard:cluster"]
    assert kept == {"existing": {"name": "theirs"}}, "its logs are its owner's"


def test_the_account_to_deploy_to_is_the_emulators() -> None:
    meant = copy.deepcopy(GPU_STACK)
    meant["config"]["trainyard:cluster"]["accountId"] = "111122223333"
    for document in (GPU_STACK, meant):
        cluster = for_local_cloud(document, SOURCES, DEPLOYER)["config"]["trainyard:cluster"]
        assert cluster["accountId"] == "123456789012"


@pytest.mark.parametrize(
    ("blocks", "made"),
    [
        (["203.0.113.0/24"], ["127.0.0.1/32"]),
        (["8.8.8.8/32", "198.51.100.7/32", "192.0.2.0/24"], ["127.0.0.1/32", "8.8.8.8/32"]),
        (["127.0.0.1/32", "203.0.113.0/24"], ["127.0.0.1/32"]),
        # Right as they are, or for the program to refuse.
        (["203.0.112.0/23"], ["203.0.112.0/23"]),
        (["203.0.113.7", "203.0.113.7/24", {"a": 1}], ["203.0.113.7", "203.0.113.7/24", {"a": 1}]),
        ("203.0.113.0/24", "203.0.113.0/24"),
    ],
)
def test_a_range_that_holds_a_place_becomes_this_machines(blocks: Any, made: Any) -> None:
    document = copy.deepcopy(GPU_STACK)
    document["config"]["trainyard:cluster"]["publicAccessCidrs"] = blocks
    assert (
        for_local_cloud(document, SOURCES, DEPLOYER)["config"]["trainyard:cluster"]["publicAccessCidrs"]
        == made
    )
    assert (
        "publicAccessCidrs"
        not in for_local_cloud(GPU_STACK, SOURCES, DEPLOYER)["config"]["trainyard:cluster"]
    )


@pytest.mark.parametrize("stack", SHIPPED)
def test_no_shipped_stack_lacks_a_range_on_the_local_cloud(stack: str) -> None:
    document = for_local_cloud(read(find(stack)), SOURCES, DEPLOYER)
    del document["config"]["trainyard:sources"]  # there are no such directories
    assert check_public_ranges(settings.read(stack, document["config"]), Answers()) == []


def test_given_images_are_built_from_the_checkout_on_the_local_cloud() -> None:
    assert for_local_cloud(GPU_STACK, SOURCES, DEPLOYER)["config"]["trainyard:images"] == {"build": True}


@pytest.mark.parametrize("said", [{}, {"trainyard:protectData": True}, {"trainyard:protectData": False}])
def test_data_is_protected_on_the_local_cloud_as_the_stack_file_says(said: dict[str, bool]) -> None:
    made = for_local_cloud({"config": {**GPU_STACK["config"], **said}}, SOURCES, DEPLOYER)["config"]
    assert {key: made[key] for key in made if key.endswith("protectData")} == said


def test_the_given_document_stays_as_it_was() -> None:
    before = yaml.safe_dump(GPU_STACK)
    for_local_cloud(GPU_STACK, SOURCES, DEPLOYER)
    assert yaml.safe_dump(GPU_STACK) == before


def test_a_preview_changes_nothing_but_the_sources() -> None:
    changed = with_sources(GPU_STACK, SOURCES)["config"]
    assert changed.pop("trainyard:sources")["karpenterCrdChart"] == "/m/karpenter-crd"
    assert changed == GPU_STACK["config"]


@pytest.mark.parametrize(
    "value",
    [
        *("012345678901", "0o17", "1_000", "08", "1e3", "0x1F", "0b11", ".5", "-.inf", "2024-01-02", "1:20"),
        *("yes", "on", "null", "~", "", "true", "<<", "=", "plain", "a: b", "- a", "17 ", "_1"),
        *(8, -1, 0.5, 1e-07, 10**15, True, False, None, [], {"08": "017"}),
    ],
)
def test_copy_has_the_values_of_the_file(tmp_path: Path, value: Any) -> None:
    target = tmp_path / "Pulumi.local.yaml"
    document = {"config": {"trainyard:key": value}}
    write(document, target)
    found = read(target)
    assert found == document
    assert type(found["config"]["trainyard:key"]) is type(value)


@pytest.mark.parametrize("text", ["[", "- a", "text", "\x00"])
def test_damaged_copy_is_refused(tmp_path: Path, text: str) -> None:
    target = tmp_path / "Pulumi.local.yaml"
    target.write_text(text)
    with pytest.raises(StackFileError, match=f"{target}: is damaged"):
        write(GPU_STACK, target)


def test_the_engines_salt_survives_a_rewrite(tmp_path: Path) -> None:
    target = tmp_path / "Pulumi.local.yaml"
    target.write_text("encryptionsalt: v1:abc\nconfig: {old: 1}\n")
    write(GPU_STACK, target)
    assert yaml.safe_load(target.read_text()) == {**GPU_STACK, "encryptionsalt": "v1:abc"}


@pytest.mark.parametrize(
    "keys",
    [
        {"encryptionsalt": "v1:theirs"},
        {"secretsprovider": "awskms://alias/k?region=us-west-2", "encryptedkey": "QUJD"},
    ],
    ids=("passphrase", "kms"),
)
def test_what_protects_the_secrets_of_the_repositorys_file_never_reaches_the_copy(
    keys: dict[str, str], tmp_path: Path
) -> None:
    target = tmp_path / "Pulumi.dev.yaml"
    write({**keys, **GPU_STACK}, target)
    assert yaml.safe_load(target.read_text()) == GPU_STACK
    target.write_text("encryptionsalt: v1:abc\nsecretsprovider: awskms://k\nencryptedkey: QUJD\nconfig: {}\n")
    write({**keys, **GPU_STACK}, target)
    assert yaml.safe_load(target.read_text()) == {**GPU_STACK, "encryptionsalt": "v1:abc"}


@pytest.mark.parametrize("name", ["../x", "a/b", "", "a.b", "a\n", "x" * 101])
def test_a_stack_name_that_is_a_path_or_no_name_is_refused_in_one_line(name: str) -> None:
    with pytest.raises(StackFileError, match="stack name") as refused:
        check_name(name)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("file", "stack"),
    [("Pulumi.dev.yaml", "dev"), ("examples/stacks/p4d.yaml", "p4d"), ("./Pulumi.dev.yaml", "dev")],
)
def test_file_instead_of_stack_name_suggests_the_stack(file: str, stack: str) -> None:
    with pytest.raises(StackFileError) as refused:
        check_name(file)
    assert str(refused.value) == (
        f"'{file}' is no stack name; it must be 1 to 100 letters, digits, '-' and '_'; did you mean {stack}?"
    )


@pytest.mark.parametrize("name", ["local", "dev", "team-a_2"])
def test_a_plain_stack_name_is_taken(name: str) -> None:
    check_name(name)
