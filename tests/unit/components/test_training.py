"""The namespace in which training runs."""

from __future__ import annotations

from typing import Any

import pytest

from components.documents.launch import job_spec, labels, launch_request
from components.training import TrainingSpace, TrainingSpaceArgs
from tests.unit.components.recording import Recorded, deploy
from tests.unit.components.runs import RESOLVED, run
from tests.unit.components.test_network_policies import selects


def training_space(**change: Any) -> Recorded:
    args = TrainingSpaceArgs(trainer_role_arn="arn:aws:iam::123456789012:role/t", after=[], **change)
    return deploy(lambda: TrainingSpace("training", args))


@pytest.mark.parametrize(
    ("asked", "standard"),
    [({}, "restricted"), ({"mpi": True}, "baseline"), ({"lustre": True}, "baseline")],
)
def test_pods_keep_to_the_strictest_standard_that_the_stack_can_have(
    asked: dict[str, Any], standard: str
) -> None:
    namespace = training_space(**asked).one("kubernetes:core/v1:Namespace")
    labels = namespace.inputs["metadata"]["labels"]
    assert labels["pod-security.kubernetes.io/enforce"] == standard
    assert labels["pod-security.kubernetes.io/warn"] == "restricted"


def granted(backend: str = "pytorchjob") -> set[tuple[str | None, str, str, str]]:
    """(namespace, API group, resource, verb) of every right that is made and bound to the launcher."""
    made = training_space(backend=backend)
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
        ("training", "kubeflow.org", "pytorchjobs", "delete"),
        ("training", "kubeflow.org", "pytorchjobs", "patch"),
        (None, "karpenter.sh", "nodeclaims", "delete"),
    }
    assert ("training", "coordination.k8s.io", "leases", "get") in granted()


def test_launcher_has_rights_on_jobs_of_its_backend_alone() -> None:
    def of_jobs(backend: str) -> set[tuple[str | None, str, str]]:
        groups = ("kubeflow.org", "trainer.kubeflow.org", "jobset.x-k8s.io")
        return {
            (namespace, resource, verb)
            for namespace, group, resource, verb in granted(backend)
            if group in groups
        }

    verbs = ("create", "delete", "get", "list", "patch", "watch")
    assert of_jobs("pytorchjob") == {("training", "pytorchjobs", verb) for verb in verbs}
    assert of_jobs("trainjob") == {
        *(("training", "trainjobs", verb) for verb in verbs),
        ("training", "trainingruntimes", "create"),
        ("training", "trainingruntimes", "patch"),
    }


def test_the_launchers_pods_are_reached_at_their_metrics_and_by_marked_namespaces_alone() -> None:
    made = training_space().of("kubernetes:networking.k8s.io/v1:NetworkPolicy")
    policies = {each.inputs["metadata"]["name"]: each.inputs for each in made}
    assert {each["metadata"]["namespace"] for each in policies.values()} == {"training"}
    of_launchers = {
        name: each["spec"]
        for name, each in policies.items()
        if all(selects(each["spec"]["podSelector"], labels(run)) for run in (None, "r1"))
    }
    assert sorted(of_launchers) == ["closed", "launcher-metrics"]
    assert not of_launchers["closed"].get("ingress")
    spec = of_launchers["launcher-metrics"]
    assert spec["policyTypes"] == ["Ingress"]
    (rule,) = spec["ingress"]
    assert rule["from"] == [{"namespaceSelector": {"matchLabels": {"trainyard.dev/metrics": "enabled"}}}]
    pod = job_spec(run(), RESOLVED)["template"]["spec"]
    assert [each["port"] for each in rule["ports"]] == [
        port["containerPort"] for container in pod["containers"] for port in container["ports"]
    ]
    assert not selects(spec["podSelector"], {"trainyard.dev/role": "worker", "trainyard.dev/run": "r1"})


def test_of_workers_marked_namespaces_reach_the_metrics_and_nothing_else() -> None:
    made = training_space().of("kubernetes:networking.k8s.io/v1:NetworkPolicy")
    worker = {"trainyard.dev/role": "worker", "training.kubeflow.org/job-name": "train-r1"}
    specs = {each.inputs["metadata"]["name"]: each.inputs["spec"] for each in made}
    about = sorted(name for name, spec in specs.items() if selects(spec["podSelector"], worker))
    assert about == ["closed", "jobs", "trainer-metrics"]
    (rule,) = specs["trainer-metrics"]["ingress"]
    assert rule["from"] == [{"namespaceSelector": {"matchLabels": {"trainyard.dev/metrics": "enabled"}}}]
    port = launch_request(run(), RESOLVED)["worker"]["env"]["TRAINYARD_METRICS_PORT"]
    assert [str(each["port"]) for each in rule["ports"]] == [port]
