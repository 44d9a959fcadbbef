"""Fields that need further permissions, in the admission policy and in the controller."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

from tests.unit.launcher.api_server import FakeApi
from tests.unit.operator.life import Life
from tests.unit.operator.made import CLUSTER
from tests.unit.operator.staged import PLURALS, stage
from trainyard.k8s.objects import Objects
from trainyard.operator import admission
from trainyard.operator import names as n
from trainyard.operator.api.fields import Field, string
from trainyard.operator.api.job import JOB
from trainyard.operator.api.permissions import (
    CREATE_PODS,
    FREE_JOB_FIELDS,
    HARMLESS_CHANGES,
    RESERVED_PATTERN,
    RESTRICTED_QUEUE_FIELDS,
    UPDATE_QUEUE,
    is_reserved,
    restricted_fields,
)
from trainyard.operator.api.queue import QUEUE
from trainyard.operator.cluster_reader import ClusterReader

_VOLUMES = ("workspace", "datasets", "checkpoints")
_ADMISSION = "/apis/admissionregistration.k8s.io/v1"


def paths(parent: Field, above: str = "") -> set[str]:
    """Return every field below, the entries of lists among them."""
    found: set[str] = set()
    for name, each in parent.fields.items():
        path = f"{above}.{name}" if above else name
        found |= {path} | paths(each, path) | (paths(each.item, path) if each.item else set())
    return found


def test_policy_has_each_job_field_that_is_not_free() -> None:
    """A new field must be added here, or as a free field in permissions.py."""
    assert set(admission.fields_with_permission(CREATE_PODS)) == {
        "env.valueFrom.configMapKeyRef",
        "env.valueFrom.secretKeyRef",
        "overrides.podTemplate",
        *(f"overrides.storage.{volume}.existingClaim" for volume in _VOLUMES),
    }
    of_volumes = ("storageClass", "accessMode")
    assert set(admission.fields_with_permission(UPDATE_QUEUE)) == {
        "overrides.kaiQueue",
        "overrides.parentKaiQueue",
        "overrides.scheduling",
        "overrides.storage.workspace.bucket",
        *(f"overrides.storage.{volume}.{field}" for volume in _VOLUMES for field in of_volumes),
    }


def test_free_fields_are_in_the_schema() -> None:
    of_job = paths(JOB)
    assert of_job >= FREE_JOB_FIELDS
    assert set(HARMLESS_CHANGES) <= set(JOB.fields)
    assert set(RESTRICTED_QUEUE_FIELDS) <= paths(QUEUE)


@pytest.mark.parametrize(("place", "right"), [("secrets", CREATE_PODS), ("overrides.sidecars", UPDATE_QUEUE)])
def test_policy_has_a_new_field(monkeypatch: pytest.MonkeyPatch, place: str, right: str) -> None:
    new, spec = string("New.", maximum=9), JOB
    above, _, name = place.rpartition(".")
    fields = dict(spec.fields)
    if above:
        fields[above] = replace(fields[above], fields={**fields[above].fields, name: new})
    else:
        fields[name] = new
    monkeypatch.setattr(admission, "JOB", replace(spec, fields=fields))
    assert place in admission.fields_with_permission(right)
    made = next(each for each in admission.objects() if each["metadata"]["name"] == n.JOB_POLICY)
    (condition,) = made["spec"]["matchConditions"]
    assert f"object.spec.?{place.partition('.')[0]} != oldObject" in condition["expression"]


def test_policies_fail_closed_and_deny() -> None:
    made = admission.objects()
    policies = [each["spec"] for each in made if each["kind"] == admission.POLICY]
    bindings = [each["spec"] for each in made if each["kind"] == admission.BINDING]
    assert [each["failurePolicy"] for each in policies] == ["Fail", "Fail"]
    assert [each["validationActions"] for each in bindings] == [["Deny"], ["Deny"]]
    assert {each["policyName"] for each in bindings} == {n.JOB_POLICY, n.QUEUE_POLICY}
    rules = [rule for each in policies for rule in each["matchConstraints"]["resourceRules"]]
    assert [each["operations"] for each in rules] == [["CREATE", "UPDATE"]] * 2


@pytest.mark.parametrize(
    ("spec", "asks"),
    [
        ({"jobQueue": "a", "numGPUs": 8, "overrides": {"image": "x", "nodeResources": {"gpus": 1}}}, ()),
        ({"env": [{"name": "a", "value": "b"}, {"name": "c", "valueFrom": {"fieldRef": {"x": 1}}}]}, ()),
        ({"overrides": {"scheduling": None}}, ()),
        ({"env": [{"name": "a", "valueFrom": {"secretKeyRef": {}}}]}, ("env.valueFrom.secretKeyRef",)),
        ({"overrides": {"kaiQueue": "x", "podTemplate": {}}}, ("overrides.kaiQueue", "overrides.podTemplate")),
        ({"overrides": {"storage": {"datasets": {"bucket": "x"}}}}, ("overrides.storage.datasets.bucket",)),
        ({"overrides": {"scheduling": {"pool": "x"}}}, ("overrides.scheduling",)),
        ({"overrides": ["x"]}, ("overrides",)),
        ({"secrets": [{"name": "x"}]}, ("secrets",)),
        ("nonsense", ()),
    ],
)  # fmt: skip
def test_restricted_fields_of_spec_are_found(spec: Any, asks: tuple[str, ...]) -> None:
    assert restricted_fields(spec) == asks


@pytest.mark.parametrize(("since", "made"), [(None, False), (10.0**10, False), (0.0, True)])
def test_reconcile_unchecked_restricted_job_waits(since: float | None, made: bool) -> None:
    of_job = {"overrides": {"podTemplate": {"spec": {"hostIPC": True}}}}
    life = Life(of_job, cluster=replace(CLUSTER, policy_since=since)).begin()
    assert bool(life.api.list("Job")) == made
    assert (life.status["reason"] == n.REASON_POLICY_MISSING) != made
    if not made:
        assert "overrides.podTemplate" in life.message
    free = Life({"overrides": {"image": "x"}}, cluster=replace(CLUSTER, policy_since=since))
    free.reconcile()
    assert free.api.list("Job")


def policy_path(kind: str) -> str:
    return f"{_ADMISSION}/{PLURALS[kind]}/{n.JOB_POLICY}"


@pytest.mark.parametrize(
    ("kind", "spec"),
    [
        (admission.POLICY, None),
        (admission.BINDING, None),
        (admission.POLICY, {"failurePolicy": "Ignore"}),
        (admission.BINDING, {"validationActions": ["Audit"]}),
    ],
)
def test_cluster_reader_weak_policy_is_not_in_force(api: FakeApi, kind: str, spec: Any) -> None:
    stage(api)
    objects = Objects(api.client(), n.FIELD_MANAGER)
    assert ClusterReader(objects, "tools").cluster("team", claims=False).policy_since is not None
    item = api.objects[policy_path(kind)]
    if spec is None:
        api.remove(policy_path(kind))
    else:
        api.put(policy_path(kind), {**item, "spec": {**item["spec"], **spec}})
    assert ClusterReader(objects, "tools").cluster("team", claims=False).policy_since is None


RESERVED = (
    n.LABEL_JOB, n.LABEL_KAI_QUEUE, n.ANNOTATION_POD_GROUP, "a.trainyard.dev/role", "karpenter.sh/do-not-disrupt",
    "kai.scheduler/queue", "training.kubeflow.org/job-name", "torchrun-job-name", "pod-group-name",
)  # fmt: skip
FREE = ("prometheus.io/port", "nottrainyard.dev/role", "trainyard.dev.example.com/role", "app")


@pytest.mark.parametrize("key", [*RESERVED, *FREE])
def test_is_reserved_matches_domains_and_names(key: str) -> None:
    assert is_reserved(key) == bool(re.search(RESERVED_PATTERN, key)) == (key in RESERVED)
