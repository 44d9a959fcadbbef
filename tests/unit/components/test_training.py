"""The namespace in which training runs."""

from __future__ import annotations

from typing import Any

import pytest

from components.training import TrainingSpace, TrainingSpaceArgs
from tests.unit.components.recording import deploy

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("asked", "standard"),
    [({}, "restricted"), ({"mpi": True}, "baseline"), ({"lustre": True}, "baseline")],
)
def test_pods_keep_to_the_strictest_standard_that_the_stack_can_have(
    asked: dict[str, Any], standard: str
) -> None:
    args = TrainingSpaceArgs(trainer_role_arn="arn:aws:iam::123456789012:role/t", after=[], **asked)
    namespace = deploy(lambda: TrainingSpace("training", args)).one("kubernetes:core/v1:Namespace")
    labels = namespace.inputs["metadata"]["labels"]
    assert labels["pod-security.kubernetes.io/enforce"] == standard
    assert labels["pod-security.kubernetes.io/warn"] == "restricted"


def granted() -> set[tuple[str | None, str, str, str]]:
    """(namespace, API group, resource, verb) of every right that is made and bound to the launcher."""
    args = TrainingSpaceArgs(trainer_role_arn="arn:aws:iam::123456789012:role/t", after=[])
    made = deploy(lambda: TrainingSpace("training", args))
    api = "kubernetes:rbac.authorization.k8s.io/v1:"
    for kind in ("RoleBinding", "ClusterRoleBinding"):
        for binding in made.of(f"{api}{kind}"):
            (subject,) = binding.inputs["subjects"]
            assert (subject["namespace"], subject["name"]) == ("training", "launcher")
    return {
        (role.inputs["metadata"].get("namespace"), group, resource, verb)
        for kind in ("Role", "ClusterRole")
        for role in made.of(f"{api}{kind}")
        for rule in role.inputs["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def test_what_the_launcher_lists_it_watches_and_nothing_else() -> None:
    def places(verb: str) -> set[tuple[str | None, str]]:
        return {(namespace, resource) for namespace, _, resource, each in granted() if each == verb}

    assert places("watch") == places("list")
    assert places("watch") == {
        ("default", "events"),
        ("training", "pods"),
        ("training", "pytorchjobs"),
        (None, "nodeclaims"),
        (None, "nodepools"),
        (None, "nodes"),
        (None, "pods"),
    }


def test_the_launcher_changes_what_is_its_own_and_outside_of_its_namespace_it_gives_back_machines_alone() -> (
    None
):
    changes = {right for right in granted() if right[3] not in ("get", "list", "watch")}
    assert changes == {
        ("training", "", "pods", "create"),
        ("training", "", "pods", "delete"),
        ("training", "", "events", "create"),
        ("training", "coordination.k8s.io", "leases", "create"),
        ("training", "coordination.k8s.io", "leases", "update"),
        ("training", "kubeflow.org", "pytorchjobs", "create"),
        (None, "karpenter.sh", "nodeclaims", "delete"),
    }
    assert ("training", "coordination.k8s.io", "leases", "get") in granted()
