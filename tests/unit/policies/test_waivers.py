"""What a waiver is about: its rule, its resources, the namespace that it names, the stacks that its reason is about."""

from __future__ import annotations

from typing import Any

import pytest

from tests.integration.policy.checkov import Failure, Verdict
from tests.unit.policies.building import made
from trainyard.policies import waivers
from trainyard.policies.judge import judge
from trainyard.policies.kubernetes import ENFORCE, NAMESPACE
from trainyard.policies.model import UNKNOWN, Resource, Stack
from trainyard.policies.waivers import WaiverError

pytestmark = pytest.mark.unit

DAEMON_SET = "kubernetes:apps/v1:DaemonSet"
WAIVER = {"rule": "pod-off-the-host", "type": DAEMON_SET, "name": "a", "reason": "r", "since": "2026-11-21"}
PRIVILEGED = {"name": "c", "securityContext": {"privileged": True}}
MPI = made(
    "kubernetes:apiextensions.k8s.io/v1:CustomResourceDefinition", "training-operator:mpijobs.kubeflow.org"
)
CLAIM = made("kubernetes:core/v1:PersistentVolumeClaim", "lustre")


def plugin(namespace: Any) -> Resource:
    """A device plugin by its name, which may do on its machine what it likes."""
    pod = {
        "hostPID": True,
        "containers": [PRIVILEGED],
        "volumes": [{"name": "root", "hostPath": {"path": "/"}}],
    }
    metadata = {"namespace": namespace}
    return made(DAEMON_SET, "any-device-plugin", metadata=metadata, spec={"template": {"spec": pod}})


def violated(*resources: Resource) -> set[str]:
    return {each.rule.name for each in judge(Stack(resources), waivers.load()).violations}


ON_THE_HOST = {"pod-not-root", "pod-no-escalation", "pod-no-capabilities", "pod-seccomp", "pod-off-the-host"}


def test_device_plugins_have_their_waivers_in_their_own_namespace_alone() -> None:
    assert violated(plugin("device-plugins")) & ON_THE_HOST == set()
    for namespace in ("kube-system", "training", None, UNKNOWN):
        assert violated(plugin(namespace)) >= ON_THE_HOST


@pytest.mark.parametrize(
    ("others", "is_waived"), [([], False), ([MPI], True), ([CLAIM], True), ([plugin("training")], False)]
)
def test_the_training_namespace_is_less_than_restricted_only_beside_what_asks_for_it(
    others: list[Resource], is_waived: bool
) -> None:
    namespace = made(NAMESPACE, "training", metadata={"name": "training", "labels": {ENFORCE: "baseline"}})
    assert ("namespace-restricted" not in violated(namespace, *others)) is is_waived


def test_the_operator_may_make_rights_to_enter_pods_only_with_mpi_jobs() -> None:
    rules = [{"apiGroups": [""], "resources": ["pods/exec"], "verbs": ["create"]}]
    operator = made(
        "kubernetes:rbac.authorization.k8s.io/v1:ClusterRole",
        "training-operator:training-operator",
        rules=rules,
    )
    assert violated(operator) == {"rights-no-exec"}
    assert violated(operator, MPI) == set()


def test_what_checkov_says_is_waived_in_the_namespace_and_beside_the_resources_too() -> None:
    given = waivers.read(
        """
- {rule: CKV_K8S_16, type: "kubernetes:*", name: "*-plugin", namespace: plugins, reason: r, since: 2026-11-21}
- {rule: CKV_K8S_20, type: "*", name: "*", reason: r, since: 2026-11-21, beside: [{type: "*", name: lustre}]}
"""
    )

    def failure(check: str, namespace: str | None) -> Failure:
        return Failure(check=check, type=DAEMON_SET, name="a-plugin", message="m", namespace=namespace)

    inside, outside = failure("CKV_K8S_16", "plugins"), failure("CKV_K8S_16", "training")
    nowhere, conditional = failure("CKV_K8S_16", None), failure("CKV_K8S_20", "training")
    failures = (inside, outside, nowhere, conditional)
    with_claim = Verdict(failures=failures, passed=0, stack=Stack([CLAIM]))
    assert with_claim.unwaived(given) == [outside, nowhere]
    assert with_claim.used(given) == set(given)
    without = Verdict(failures=failures, passed=0, stack=Stack([]))
    assert without.unwaived(given) == [outside, nowhere, conditional]
    assert without.used(given) == {given[0]}


@pytest.mark.parametrize(
    ("bound", "told"),
    [
        ("namespace: 3", "waivers[0].namespace is 3; it must be a text"),
        ("beside: lustre", "waivers[0].beside is 'lustre'; it must be a list of mappings of name and type"),
        ("beside: [lustre]", "waivers[0].beside[0] is 'lustre'; it must be a mapping of name and type"),
        (
            "beside: [{name: a}]",
            "waivers[0].beside[0] is {'name': 'a'}; it must be a mapping of name and type",
        ),
        ("beside: [{name: a, type: 1}]", "waivers[0].beside[0].type is 1; it must be a text"),
        ("scope: a", "waivers[0] lacks or should not have scope"),
    ],
)
def test_a_bound_that_says_nothing_is_refused(bound: str, told: str) -> None:
    text = "- " + "\n  ".join([*(f"{key}: {value}" for key, value in WAIVER.items()), bound])
    with pytest.raises(WaiverError) as refused:
        waivers.read(text)
    assert told in str(refused.value)


def test_a_waiver_is_told_with_its_namespace() -> None:
    text = "- " + "\n  ".join([*(f"{key}: {value}" for key, value in WAIVER.items()), "namespace: b"])
    (waiver,) = waivers.read(text)
    assert str(waiver) == f"pod-off-the-host on {DAEMON_SET} a in b (since 2026-11-21)"
