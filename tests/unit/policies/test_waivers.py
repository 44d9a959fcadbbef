"""Waivers: the rule, the resources, the namespace and the stacks that each is about."""

from __future__ import annotations

from typing import Any

import pytest

from tests.integration.policy.checkov import Failure, Verdict
from tests.unit.policies.building import made
from trainyard.policies import waivers
from trainyard.policies.evaluate import evaluate
from trainyard.policies.kubernetes import ENFORCE, NAMESPACE
from trainyard.policies.model import UNKNOWN, Resource, Stack
from trainyard.policies.waivers import WaiverError

DAEMON_SET = "kubernetes:apps/v1:DaemonSet"
WAIVER = {"rule": "pod-groups", "type": DAEMON_SET, "name": "dmz-*", "reason": "r", "since": "2026-11-21"}
MPI = made(
    "kubernetes:apiextensions.k8s.io/v1:CustomResourceDefinition", "training-operator:mpijobs.kubeflow.org"
)
CLAIM = made("kubernetes:core/v1:PersistentVolumeClaim", "lustre")
ON_THE_HOST = {"pod-groups", "volumes-off-the-host"}


def text_of(**change: Any) -> str:
    return "- " + "\n  ".join(
        f"{key}: {value}" for key, value in {**WAIVER, **change}.items() if value is not None
    )


def plugin(namespace: Any, name: str = "any-device-plugin") -> Resource:
    pod = {"containers": [{"name": "c"}], "volumes": [{"name": "root", "hostPath": {"path": "/"}}]}
    return made(DAEMON_SET, name, metadata={"namespace": namespace}, spec={"template": {"spec": pod}})


def violated(*resources: Resource) -> set[str]:
    return {each.rule.id for each in evaluate(Stack(resources), waivers.load()).violations}


def test_a_waiver_is_about_one_rule_and_the_resources_it_names() -> None:
    stack = Stack([plugin("a", "dmz-a"), plugin("a", "nodes-a")])
    result = evaluate(stack, waivers.read(text_of()))
    assert [(each.rule.id, each.resource.name) for each, _ in result.waived] == [("pod-groups", "dmz-a")]
    found = {(each.rule.id, each.resource.name) for each in result.violations}
    assert ("pod-groups", "nodes-a") in found
    assert ("volumes-off-the-host", "dmz-a") in found


def test_device_plugins_have_waivers_only_in_their_namespace() -> None:
    assert violated(plugin("device-plugins")) & ON_THE_HOST == set()
    for namespace in ("kube-system", "training", None, UNKNOWN):
        assert violated(plugin(namespace)) >= ON_THE_HOST


@pytest.mark.parametrize(
    ("others", "is_waived"), [([], False), ([MPI], True), ([CLAIM], True), ([plugin("training")], False)]
)
def test_the_training_namespace_is_baseline_only_beside_what_needs_it(
    others: list[Resource], is_waived: bool
) -> None:
    namespace = made(NAMESPACE, "training", metadata={"name": "training", "labels": {ENFORCE: "baseline"}})
    assert ("namespace-restricted" not in violated(namespace, *others)) is is_waived


def test_the_operator_has_the_right_to_exec_only_with_mpi_jobs() -> None:
    rules = [{"apiGroups": [""], "resources": ["pods/exec"], "verbs": ["create"]}]
    operator = made(
        "kubernetes:rbac.authorization.k8s.io/v1:ClusterRole",
        "training-operator:training-operator",
        rules=rules,
    )
    assert violated(operator) == {"rights-no-exec"}
    assert violated(operator, MPI) == set()


def test_waivers_of_checkov_have_the_same_bounds() -> None:
    accepted = waivers.read(
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
    assert with_claim.unwaived(accepted) == [outside, nowhere]
    assert with_claim.used(accepted) == set(accepted)
    without = Verdict(failures=failures, passed=0, stack=Stack([]))
    assert without.unwaived(accepted) == [outside, nowhere, conditional]
    assert without.used(accepted) == {accepted[0]}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rule": None}, "must have a rule"),
        ({"rule": "[]"}, "must have a rule"),
        ({"rule": "[pod-groups, 5]"}, "must have a rule"),
        ({"type": "5"}, "must have a rule, a type"),
        ({"reason": None}, "'reason'"),
        ({"until": "2027-01-01"}, "'until'"),
        ({"reason": '" "'}, "a reason"),
        ({"since": "soon"}, "a date like"),
        ({"beside": "[lustre]"}, "must be a mapping"),
        ({"beside": "[{name: a}]"}, "'type'"),
        ({"beside": "[{name: a, type: 5}]"}, "must have a rule, a type"),
    ],
)
def test_a_wrong_waiver_is_an_error_with_its_place(change: dict[str, Any], message: str) -> None:
    with pytest.raises(WaiverError) as refused:
        waivers.read(text_of(**change))
    assert str(refused.value).startswith("waivers[0]")
    assert message in str(refused.value)


def test_a_waiver_is_printed_with_its_namespace_and_date() -> None:
    (waiver,) = waivers.read(text_of(namespace="b"))
    assert str(waiver) == f"pod-groups on {DAEMON_SET} dmz-* in b (since 2026-11-21)"
