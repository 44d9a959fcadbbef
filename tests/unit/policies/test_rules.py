"""Each rule rejects what it forbids and accepts what it allows, and says what must be."""

from __future__ import annotations

import copy
import dataclasses
import importlib
import inspect
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.unit.policies import (
    cluster_cases,
    iam_cases,
    kubernetes_cases,
    network_cases,
    pods_cases,
    storage_cases,
    tags_cases,
)
from tests.unit.policies.building import Case, Cases, made, stack_of
from trainyard.policies import network, rules, tags
from trainyard.policies.cluster import TEMPLATE
from trainyard.policies.evaluate import evaluate
from trainyard.policies.iam_documents import ROLE
from trainyard.policies.model import UNKNOWN, Stack
from trainyard.policies.rules import ALL, AREAS, WITHOUT_RULE

PAGE = Path(__file__).parents[3] / "docs" / "policies.md"
RECORDINGS = sorted((Path(__file__).parents[2] / "integration" / "graph" / "states").glob("*/*.json"))
# Objects of Karpenter's chart, which recordings do not have.
NOT_RECORDED = {
    "kubernetes:admissionregistration.k8s.io/v1:MutatingWebhookConfiguration",
    "kubernetes:admissionregistration.k8s.io/v1:ValidatingAdmissionPolicy",
    "kubernetes:admissionregistration.k8s.io/v1:ValidatingAdmissionPolicyBinding",
    "kubernetes:policy/v1:PodDisruptionBudget",
}
REFUSED_TYPES = (
    "aws:ec2/instance:Instance",
    "aws:ec2/mainRouteTableAssociation:MainRouteTableAssociation",
    "aws:ec2/securityGroupRule:SecurityGroupRule",
    "aws:ecr/repositoryPolicy:RepositoryPolicy",
    "aws:iam/accessKey:AccessKey",
    "aws:iam/policyAttachment:PolicyAttachment",
    "aws:iam/user:User",
    "aws:kms/keyPolicy:KeyPolicy",
    "aws:s3/bucketAcl:BucketAcl",
    "aws:s3/bucketV2:BucketV2",
    "command:local:Command",
    "kubernetes:apps/v1:ReplicaSet",
    "kubernetes:core/v1:PodPatch",
    "kubernetes:rbac.authorization.k8s.io/v1:ClusterRolePatch",
)
ROUTE_TABLE = "aws:ec2/routeTable:RouteTable"
GENERAL = {
    "no-inline-parts": Cases(
        rejects=[
            made(ROUTE_TABLE, routes=[{"cidrBlock": "0.0.0.0/0", "gatewayId": "igw-1"}]),
            made(network.GROUP, ingress=[{"protocol": "tcp"}]),
            made(ROLE, inlinePolicies=UNKNOWN),
            made(ROLE, managedPolicyArns=["arn:aws:iam::aws:policy/AdministratorAccess"]),
        ],
        accepts=[made(ROUTE_TABLE, routes=[]), made(network.GROUP), made(ROLE, inlinePolicies=[])],
    ),
    "type-listed": Cases(
        rejects=[made(type_) for type_ in REFUSED_TYPES],
        accepts=[
            *(made(type_) for type_ in sorted(WITHOUT_RULE)),
            made("aws:s3/bucket:Bucket"),
            made("eks:index:Cluster"),
            made("pulumi:providers:aws"),
            made("trainyard:cluster:Cluster"),
        ],
    ),
}
TABLES = (iam_cases, network_cases, cluster_cases, storage_cases, kubernetes_cases, pods_cases, tags_cases)
CASES = {id_: cases for table in TABLES for id_, cases in table.CASES.items()} | GENERAL
RULES = {rule.id: rule for rule in ALL}
EACH = pytest.mark.parametrize("id_", RULES)


def violations(id_: str, case: Case) -> list[str]:
    checked, resources = stack_of(case)
    found = evaluate(Stack(resources), rules=[RULES[id_]])
    assert RULES[id_].applies_to(checked.type)
    assert not found.undecided
    return [each.message for each in found.violations if each.resource is checked]


@EACH
def test_rule_rejects_its_rejecting_fixtures(id_: str) -> None:
    assert CASES[id_].rejects
    for index, case in enumerate(CASES[id_].rejects):
        found = violations(id_, case)
        assert found, f"fixture {index}"
        for line in found:
            assert "\n" not in line
            assert re.search(r"\b(must|Set it|Remove it)\b", line), f"does not say what must be: {line}"


@EACH
def test_rule_accepts_its_accepting_fixtures(id_: str) -> None:
    found = [violations(id_, case) for case in CASES[id_].accepts]
    assert found
    assert found == [[] for _ in found]


# Rules to which an unknown value is a value that is set, whatever it is.
SETS_A_VALUE = {"no-inline-parts": r"routes|inlinePolicies", "pod-no-credentials": r".*\.env\.\d+\.value"}


def with_an_unknown(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the path of each part of a value, and the value with that part unknown."""
    if not isinstance(value, dict | list):
        return
    for key, part in value.items() if isinstance(value, dict) else enumerate(value):
        for where, new in [("", UNKNOWN), *with_an_unknown(part)]:
            changed = copy.copy(value)
            changed[key] = new
            yield f"{key}.{where}" if where else str(key), changed


@EACH
def test_unknown_value_is_undecided_or_not_needed(id_: str) -> None:
    for case in (*CASES[id_].rejects, *CASES[id_].accepts):
        _, resources = stack_of(case)
        known = {each.message for each in evaluate(Stack(resources), rules=[RULES[id_]]).violations}
        for index, resource in enumerate(resources):
            for path, properties in with_an_unknown(resource.properties):
                if re.fullmatch(SETS_A_VALUE.get(id_, ""), path):
                    continue
                changed = dataclasses.replace(resource, properties=properties)
                stack = Stack([*resources[:index], changed, *resources[index + 1 :]])
                found = evaluate(stack, rules=[RULES[id_]])
                where = f"{resource.type} {path}"
                assert {each.message for each in found.violations} <= known, where
                assert found.violations or found.undecided or not known, where


def test_violation_beside_an_unknown_block_counts() -> None:
    mappings = [{"ebs": {"encrypted": "false"}}, UNKNOWN]
    found = evaluate(
        Stack([made(TEMPLATE, blockDeviceMappings=mappings)]), rules=[RULES["node-disks-encrypted"]]
    )
    assert [each.message[:22] for each in found.violations] == ["blockDeviceMappings[0]"]
    assert [each.path for each in found.undecided] == ["ebs.encrypted"]


def test_every_rule_of_an_area_is_registered_once() -> None:
    made_by_decorator = [each for area in (*AREAS, rules) for each in vars(area).values()]
    assert len(RULES) == len(ALL)
    assert {each.id for each in made_by_decorator if type(each).__name__ == "Rule"} == set(RULES)


def test_the_page_lists_every_rule_with_its_reason() -> None:
    table = [f"| `{rule.id}` | {rule.text} | {rule.why} |" for rule in ALL]
    assert [line for line in PAGE.read_text().splitlines() if line.startswith("| `")] == table


@pytest.mark.parametrize("recording", RECORDINGS, ids=lambda file: f"{file.parent.name}-{file.stem}")
def test_each_type_of_a_stack_file_has_a_rule_or_is_listed(recording: Path) -> None:
    types = {each["type"] for each in json.loads(recording.read_text()).values()}
    found = evaluate(Stack([made(type_) for type_ in types]), rules=[rules.type_listed])
    assert [str(each) for each in found.violations] == []
    assert len(found.decided) > 50


def test_every_type_with_tags_in_the_sdk_is_taggable() -> None:
    recorded = {each["type"] for file in RECORDINGS for each in json.loads(file.read_text()).values()}
    found = set()
    for token in {*recorded, *tags.TAGGABLE}:
        package, _, name = token.rpartition(":")
        if package.startswith("aws:"):
            module = importlib.import_module(f"pulumi_aws.{package.removeprefix('aws:').split('/')[0]}")
            arguments = inspect.signature(getattr(module, name)._internal_init).parameters
            found |= {token} if "tags" in arguments else set()
    assert found == set(tags.TAGGABLE)


def test_only_types_that_stack_files_have_are_listed_without_a_rule() -> None:
    recorded = {each["type"] for file in RECORDINGS for each in json.loads(file.read_text()).values()}
    assert WITHOUT_RULE - recorded == NOT_RECORDED
    assert not WITHOUT_RULE & {type_ for rule in ALL for type_ in rule.types}
