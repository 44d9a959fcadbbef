"""Our rules for pods hold for pods that are created while a stack runs; checkov's are in tests/integration/policy."""

from __future__ import annotations

from typing import Any

import pytest

from components.documents.torchrun_queue import OPENING
from tests.unit.policies.own_pods import (
    ACCOUNT,
    debug_pods,
    launcher_pods,
    torchrun_controller,
    torchrun_queue,
    training_operator,
)
from trainyard.policies import pods
from trainyard.policies.evaluate import evaluate
from trainyard.policies.model import Resource, Rule, Stack

RULES = [each for each in vars(pods).values() if isinstance(each, Rule)]


def violated(*resources: Resource) -> set[str]:
    """Return the rules that the first resource violates."""
    found = evaluate(Stack([*resources, ACCOUNT]), rules=RULES)
    assert not found.undecided
    return {each.rule.id for each in found.violations if each.resource is resources[0]}


@pytest.mark.parametrize(
    "resource", [*launcher_pods(), training_operator(), torchrun_queue(), debug_pods()[0]]
)
def test_a_pod_of_the_project_violates_no_rule(resource: Resource) -> None:
    assert violated(resource) == set()


def test_only_the_container_that_opens_the_file_system_is_root() -> None:
    proof = debug_pods()[1]
    assert violated(proof) == {"pod-groups"}
    spec = proof.properties["spec"]
    later = {**proof.properties, "spec": {**spec, "initContainers": spec["initContainers"][1:]}}
    assert violated(Resource(type=proof.type, name="later", urn="later", properties=later)) == set()


def test_the_controller_has_a_token_because_it_has_rights() -> None:
    deployment, binding = torchrun_controller()
    assert violated(deployment, binding) == set()
    assert violated(deployment) == {"pod-token-needed"}


def in_template(**pod: Any) -> dict[str, Any]:
    """Return a pod template with changes to its `spec`."""
    template: dict[str, Any] = torchrun_queue().at("spec", "podTemplate")
    return {"podTemplate": {**template, "spec": {**template["spec"], **pod}}}


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        (in_template(securityContext={}), "pod-groups"),
        (in_template(initContainers=[{"name": "a", "securityContext": {"runAsGroup": 0}}]), "pod-groups"),
        (in_template(volumes=[{"name": "a", "hostPath": {"path": "/"}}]), "volumes-off-the-host"),
        (in_template(automountServiceAccountToken=True), "pod-token-needed"),
        # Without a template, the workers have the group of their image.
        ({"podTemplate": None}, "pod-groups"),
    ],
)
def test_a_queue_is_checked_by_its_workers(change: dict[str, Any], rule: str) -> None:
    assert rule in violated(torchrun_queue(**change))


def test_the_container_that_opens_a_file_system_may_be_root_in_a_queue() -> None:
    opening = [{"name": OPENING, "securityContext": {"runAsGroup": 0}}]
    assert violated(torchrun_queue(**in_template(initContainers=opening))) == set()
