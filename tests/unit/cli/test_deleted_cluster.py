"""Distinguish a deleted cluster from one that does not answer."""

from __future__ import annotations

import json
from typing import Any

import pytest

from local.plugins.kubernetes.provider import KubernetesProvider
from local.plugins.provider import DeleteRequest, ProviderError, ReadRequest
from tests.unit.emulator import REGION, Cloud
from trainyard.cli.deleted_cluster import gone_cluster

OBJECT = {"type": "kubernetes:core/v1:Namespace", "id": "training"}
# A port that nothing listens on.
KUBECONFIG = {
    "clusters": [{"name": "c", "cluster": {"server": "https://127.0.0.1:1"}}],
    "users": [{"name": "u", "user": {"token": "t"}}],
    "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
    "current-context": "x",
}


def state(*resources: dict[str, Any]) -> dict[str, Any]:
    return {"resources": list(resources)}


def test_a_cluster_that_eks_knows_is_never_gone(account: Cloud) -> None:
    account.cluster("main")
    here = {"type": "aws:eks/cluster:Cluster", "id": "main"}
    gone = {"type": "aws:eks/cluster:Cluster", "id": "other"}
    given = {"type": "pulumi:pulumi:Stack", "outputs": {"clusterName": "given"}}
    assert gone_cluster(state(here, OBJECT), REGION) is None
    assert gone_cluster(state(gone, OBJECT), REGION) == "other"
    assert gone_cluster(state(given, OBJECT), REGION) == "given"
    assert gone_cluster(state(gone), REGION) is None, "nothing in it to forget"
    assert gone_cluster({}, REGION) is None


def provider(**settings: Any) -> KubernetesProvider:
    made = KubernetesProvider()
    made.configure({"kubeconfig": json.dumps(KUBECONFIG), **settings})
    return made


def test_objects_of_a_cluster_that_does_not_answer_are_gone_only_where_that_is_said(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("local.plugins.kubernetes.client._ATTEMPTS", 1)
    who = {"urn": "urn:pulumi:s::p::kubernetes:core/v1:Namespace::n", "type": OBJECT["type"], "name": "n"}
    reading = ReadRequest(**who, id="n", inputs={"metadata": {"name": "n"}}, outputs={})
    ending = DeleteRequest(**who, id="n", inputs={}, outputs={}, timeout=None)
    with pytest.raises(ProviderError, match="does not answer"):
        provider().read(reading)
    forgiving = provider(deleteUnreachable="true")
    assert forgiving.read(reading) is None
    forgiving.delete(ending)
