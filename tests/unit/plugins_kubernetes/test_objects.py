"""Names, ids, defaults and secrets of objects; which changes need a new object; the provider's Check and Diff."""

from __future__ import annotations

from typing import Any

import pytest

from local.plugins.kubernetes import objects, replacement
from local.plugins.kubernetes.client import ApiError
from local.plugins.kubernetes.provider import KubernetesProvider
from local.plugins.provider import CheckRequest, CheckResult, DiffRequest, DiffResult
from local.plugins.values import UNKNOWN, Secret

URN = "urn:pulumi:dev::p::{}::web"


@pytest.fixture
def provider() -> KubernetesProvider:
    """Without a cluster: nothing in here may need one."""
    return KubernetesProvider()


def check(
    provider: KubernetesProvider, token: str, inputs: dict[str, Any], old: dict[str, Any] | None = None
) -> CheckResult:
    urn = URN.format(token)
    request = CheckRequest(urn=urn, type=token, name="web", inputs=inputs, old_inputs=old, seed=b"seed")
    return provider.check(request)


def diff(provider: KubernetesProvider, token: str, old: dict[str, Any], new: dict[str, Any]) -> DiffResult:
    request = DiffRequest(
        urn=URN.format(token), type=token, name="web", id="x", old_inputs=old, old_outputs={}, inputs=new
    )
    return provider.diff(request)


def config_map(name: str, **data: Any) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": name, "namespace": "d"},
        "data": data,
    }


@pytest.mark.parametrize(
    ("token", "pair"),
    [
        ("kubernetes:core/v1:Pod", ("v1", "Pod")),
        ("kubernetes:apps/v1:Deployment", ("apps/v1", "Deployment")),
        ("kubernetes:karpenter.sh/v1:NodePool", ("karpenter.sh/v1", "NodePool")),
        ("kubernetes:core/v1:ServiceAccountPatch", ("v1", "ServiceAccount")),
        # A kind of somebody's own may have such a name.
        ("kubernetes:kuma.io/v1:MeshProxyPatch", ("kuma.io/v1", "MeshProxyPatch")),
    ],
)
def test_token_names_api_version_and_kind(token: str, pair: tuple[str, str]) -> None:
    assert objects.api_version_and_kind(token) == pair


def test_a_patch_is_of_the_kind_that_it_patches(provider: KubernetesProvider) -> None:
    inputs = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default"}}
    found = check(provider, "kubernetes:core/v1:ServiceAccountPatch", inputs)
    assert found.failures == []
    assert found.inputs["kind"] == "ServiceAccount"


def test_ids_are_namespace_and_name_or_name() -> None:
    for text, pair in {"a/b": ("a", "b"), "b": (None, "b")}.items():
        assert objects.split_id(text) == pair
        assert objects.object_id(*pair) == text


def test_an_object_without_a_name_gets_one_and_keeps_it(provider: KubernetesProvider) -> None:
    first = check(provider, "kubernetes:batch/v1:Job", {"spec": {"template": {}}})
    assert first.failures == []
    metadata = first.inputs["metadata"]
    assert metadata["namespace"] == "default"
    assert metadata["name"].startswith("web-")
    assert len(metadata["name"]) == len("web-") + 8
    old = {**first.inputs, "metadata": {**metadata, "name": "web-00000000"}}
    again = check(provider, "kubernetes:batch/v1:Job", {"spec": {"template": {}}}, old)
    assert again.inputs["metadata"]["name"] == "web-00000000"


def test_a_name_of_the_program_is_left_alone_and_cluster_scoped_kinds_get_no_namespace(
    provider: KubernetesProvider,
) -> None:
    found = check(provider, "kubernetes:core/v1:Namespace", {"metadata": {"name": "team"}})
    assert found.inputs == {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "team"}}
    unknown = check(provider, "kubernetes:core/v1:ConfigMap", {"metadata": UNKNOWN})
    assert unknown.inputs["metadata"] is UNKNOWN


@pytest.mark.parametrize(
    ("token", "inputs", "said"),
    [
        ("kubernetes:apps/v1:Deploymnt", {}, "no resource of pulumi_kubernetes"),
        ("kubernetes:core/v1:ConfigMap", {"dat": {}}, "has no property dat"),
        ("kubernetes:karpenter.sh/v1:NodePool", {"metadata": {"nam": "x"}}, "has no property metadata.nam"),
        ("kubernetes:core/v1:ConfigMapPatch", {}, "metadata.name is missing"),
        ("kubernetes:core/v1:ConfigMapPatch", {"metadata": {"name": "x"}, "dat": {}}, "has no property dat"),
        ("kubernetes:core/v1:ConfigMap", {"kind": "Secret"}, "must be 'ConfigMap'"),
        (
            "kubernetes:core/v1:ConfigMap",
            {"metadata": {"annotations": {"pulumi.com/waitFor": "condition=Ready"}}},
            "annotation pulumi.com/waitFor is not supported",
        ),
        (
            "kubernetes:helm.sh/v3:Release",
            {"chart": "c", "name": "n", "recreatePods": True},
            "recreatePods is not supported",
        ),
        ("kubernetes:helm.sh/v3:Release", {"name": "n", "values": {}}, "chart is missing"),
        ("kubernetes:helm.sh/v3:Release", {"chart": "c"}, "name is missing"),
    ],
)
def test_what_the_official_sdk_does_not_have_is_refused_by_name(
    provider: KubernetesProvider, token: str, inputs: dict[str, Any], said: str
) -> None:
    [failure] = check(provider, token, inputs).failures
    assert said in failure.reason


def test_custom_resources_pass_without_a_cluster_and_keep_the_namespace_of_the_state(
    provider: KubernetesProvider,
) -> None:
    inputs = {"metadata": {"name": "x"}, "spec": {"anything": [1]}}
    old = {"metadata": {"name": "x", "namespace": "team"}}
    found = check(provider, "kubernetes:ex.dev/v1:Foo", inputs, old)
    assert found.failures == []
    assert found.inputs["metadata"]["namespace"] == "team"


def test_a_secret_object_is_secret_in_the_outputs_whatever_the_inputs_say() -> None:
    there = {"apiVersion": "v1", "kind": "Secret", "metadata": {"managedFields": []}, "data": {"p": "eA=="}}
    found = objects.outputs(there, "m", {"stringData": {"p": "x"}})
    assert found["data"] == Secret({"p": "eA=="})
    assert found["stringData"] == Secret({"p": "x"})
    assert "managedFields" not in found["metadata"]


def test_definition_keeps_its_schema_and_loses_its_status(provider: KubernetesProvider) -> None:
    inputs = {"spec": {"schema": {"x-kubernetes-preserve-unknown-fields": True}}, "status": {}}
    found = check(provider, "kubernetes:apiextensions.k8s.io/v1:CustomResourceDefinition", inputs)
    assert found.failures == []
    assert found.inputs["spec"] == inputs["spec"]
    assert "status" not in found.inputs


def test_changed_data_of_a_config_map_replaces_it_in_place_only_where_the_name_is_given(
    provider: KubernetesProvider,
) -> None:
    token = "kubernetes:core/v1:ConfigMap"
    named = diff(provider, token, config_map("x", a="1"), config_map("x", a="2"))
    assert named.replaces == ["data.a"]
    assert named.delete_before_replace
    automatic = config_map("x", a="2")
    automatic["metadata"]["annotations"] = {objects.AUTONAMED: "true"}
    old = {**automatic, "data": {"a": "1"}}
    assert not diff(provider, token, old, automatic).delete_before_replace


def test_status_is_no_difference(provider: KubernetesProvider) -> None:
    old, new = {"kind": "X", "status": {"a": 1}}, {"kind": "X"}
    assert not diff(provider, "kubernetes:ex.dev/v1:Foo", old, new).has_changes


@pytest.mark.parametrize(
    ("api_version", "kind", "path", "replaced"),
    [
        ("batch/v1", "Job", "spec.template.spec.containers[0].image", True),
        ("batch/v1", "Job", "spec.backoffLimit", False),
        ("apps/v1", "Deployment", "spec.selector.matchLabels.app", True),
        ("apps/v1", "Deployment", "spec.template.spec.containers[0].image", False),
        ("v1", "Service", "spec.clusterIP", True),
        ("v1", "Service", "spec.clusterIPs[0]", False),
        ("v1", "PersistentVolumeClaim", "spec.resources.requests.storage", False),
        ("v1", "Service", "spec.type", False),
        ("v1", "PersistentVolume", "spec.csi.volumeHandle", True),
        ("v1", "PersistentVolume", "spec.capacity.storage", False),
        ("v1", "Pod", "spec.containers[1].image", True),
        ("v1", "Pod", "spec.initContainers[0].env[1].value", True),
        ("v1", "Pod", "spec.tolerations[0].key", False),
        ("v1", "Pod", "spec.hostnameOverride", False),
        ("v1", "Pod", "spec.containers[1].command[0]", True),
        ("rbac.authorization.k8s.io/v1", "ClusterRoleBinding", "roleRef.name", True),
        ("ex.dev/v1", "Foo", "metadata.namespace", True),
        ("ex.dev/v1", "Foo", "metadata.labels.name", False),
    ],
)
def test_the_table_of_replacements(api_version: str, kind: str, path: str, replaced: bool) -> None:
    found = replacement.find_replacements({"apiVersion": api_version, "kind": kind}, [path])
    assert bool(found) == replaced


def test_a_dry_run_that_calls_a_field_immutable_means_replace_and_any_other_refusal_does_not() -> None:
    def refusal(code: int, message: str) -> ApiError:
        causes = [{"field": "value", "message": message}]
        return ApiError(code, {"message": message, "details": {"causes": causes}}, "applying")

    changed = ["value", "metadata.labels.a"]
    assert replacement.refused_replacements(refusal(422, "value: field is immutable"), changed) == ["value"]
    assert replacement.refused_replacements(refusal(422, "value: must be positive"), changed) is None
    assert replacement.refused_replacements(refusal(409, "immutable"), changed) is None


def test_an_edited_chart_directory_is_a_change_and_a_moved_one_is_none(
    provider: KubernetesProvider, tmp_path: Any
) -> None:
    token = "kubernetes:helm.sh/v3:Release"
    states = []
    for place, text in (("a", "v: 1"), ("b", "v: 1"), ("a", "v: 2")):
        chart = tmp_path / place
        chart.mkdir(exist_ok=True)
        (chart / "Chart.yaml").write_text("name: c")
        (chart / "values.yaml").write_text(text)
        states.append(check(provider, token, {"chart": str(chart), "name": "c", "namespace": "d"}).inputs)
    assert not diff(provider, token, states[0], states[1]).has_changes
    assert list(diff(provider, token, states[0], states[2]).detailed) == ["chart"]
