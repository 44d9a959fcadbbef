"""The components register what the official pulumi-eks 4.4 was seen to register (recorded graph beside this file)."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pulumi
import pytest
from google.protobuf.json_format import MessageToDict
from pulumi.runtime.mocks import MockMonitor

from local.plugins.eks.cluster import Cluster
from local.plugins.eks.node_group import ManagedNodeGroup
from local.plugins.eks.resources import Resource
from tests.unit.pulumi_sdk import isolated

FACTS: dict[str, Any] = json.loads((Path(__file__).parent / "pulumi-eks-4.4-graph.json").read_text())
# The recorded program left the component its defaults. Ours switches off groups, entries and add-ons of the component.
SWITCHED_OFF = re.compile("aws:ec2/securityGroup|aws:eks/(addon|accessEntry):|eks:index:VpcCniAddon")
OUTPUTS_OF_GROUPS = {"clusterSecurityGroup", "nodeSecurityGroup", "eksClusterIngressRule"}
EXPECTED = {
    (entry["type"], entry["name"]): entry
    for entry in FACTS["resources"]
    if not SWITCHED_OFF.match(entry["type"])
}
CALL = FACTS["call"]
# Computed outputs, as the plugin used for the recording answered.
OUTPUTS: dict[str, dict[str, Any]] = {
    "aws:eks/cluster:Cluster": {
        "name": "train-eksCluster",
        "endpoint": "https://ENDPOINT",
        "certificateAuthority": {"data": "Y2E="},
        "vpcConfig": {"clusterSecurityGroupId": "sg-eks", "subnetIds": []},
        "identities": [{"oidcs": [{"issuer": "https://oidc.eks.us-west-2.amazonaws.com/id/ABC"}]}],
    },
}


class Answers(pulumi.runtime.Mocks):
    """Answers as the recording's AWS plugin."""

    def new_resource(self, args: pulumi.runtime.MockResourceArgs) -> tuple[str, dict[str, Any]]:
        arn = {"arn": f"arn:aws:x:us-west-2:123456789012:{args.name}"}
        return args.name, {**arn, **args.inputs, **OUTPUTS.get(args.typ, {})}

    def call(self, args: pulumi.runtime.MockCallArgs) -> dict[str, Any]:  # type: ignore[override]
        return {"partition": "aws", "region": "us-west-2", "version": "v1"}


class Recorder(MockMonitor):
    """Keeps what is registered, as it goes over the wire."""

    def __init__(self) -> None:
        super().__init__(Answers())
        self.seen: dict[tuple[str, str], dict[str, Any]] = {}

    def RegisterResource(self, request: Any) -> Any:
        self.seen[request.type, request.name] = {
            "inputs": MessageToDict(request.object),
            "parent": request.parent.rpartition("::")[2],
            "dependsOn": {urn.rpartition("::")[2] for urn in request.dependencies},
            "version": request.version,
            "outputs": [],
        }
        return super().RegisterResource(request)

    def RegisterResourceOutputs(self, request: Any) -> Any:
        kind, name = request.urn.split("::")[2].rpartition("$")[2], request.urn.rpartition("::")[2]
        if (kind, name) in self.seen:
            self.seen[kind, name]["outputs"] = sorted(MessageToDict(request.outputs))
        return super().RegisterResourceOutputs(request)


@pytest.fixture(scope="module")
def seen() -> dict[tuple[str, str], dict[str, Any]]:
    """What the recorded calls register."""
    recorder = Recorder()

    @pulumi.runtime.test
    def program() -> None:
        made = Cluster("train", CALL["Cluster('train')"], None)
        role = Resource("aws:iam/role:Role", "sysrole", {"assumeRolePolicy": "{}"}, pulumi.ResourceOptions())
        group = {**CALL["ManagedNodeGroup('system')"], "cluster": made.state["core"], "nodeRole": role}
        ManagedNodeGroup("system", group, None)

    def deployment() -> None:
        pulumi.runtime.set_mocks(recorder.mocks, project="p1", stack="dev", preview=False, monitor=recorder)
        program()

    isolated(deployment)
    return recorder.seen


def test_exactly_the_recorded_resources_are_registered(seen: dict[tuple[str, str], Any]) -> None:
    assert {key for key in seen if key[0] != "pulumi:pulumi:Stack"} == set(EXPECTED)


@pytest.mark.parametrize("key", sorted(EXPECTED), ids=[f"{kind}-{name}" for kind, name in sorted(EXPECTED)])
def test_a_resource_has_the_recorded_parent_inputs_and_dependencies(
    seen: dict[tuple[str, str], Any], key: tuple[str, str]
) -> None:
    found, expected = seen[key], EXPECTED[key]
    if expected["parent"] != "p1-dev":
        assert found["parent"] == expected["parent"]
    made = {name for _, name in EXPECTED}
    assert found["dependsOn"] == made & set(expected.get("dependsOn", []))
    # What the recording's SDK and engine add to a provider's inputs.
    added = ("__internal", "version") if key[0] == PROVIDER else ()
    inputs = {name: value for name, value in expected["inputs"].items() if name not in added}
    if key[0] == "aws:eks/cluster:Cluster":
        del inputs["vpcConfig"]["securityGroupIds"]
    assert comparable(found["inputs"]) == comparable(inputs)
    assert found["outputs"] == sorted(set(expected.get("outputs", [])) - OUTPUTS_OF_GROUPS)


PROVIDER = "pulumi:providers:kubernetes"


def comparable(value: Any) -> Any:
    """Resource references as the id that they carry; whole numbers as integers; JSON texts by meaning."""
    if isinstance(value, dict):
        if "4dabf18193072939515e22adb298388d" in value:
            return value["id"]
        return {key: comparable(item) for key, item in value.items()}
    if isinstance(value, list):
        return [comparable(item) for item in value]
    if isinstance(value, str) and value.startswith("{"):
        return comparable(json.loads(value))
    return int(value) if isinstance(value, float) else value


def test_the_kubernetes_provider_is_of_the_version_of_the_installed_sdk(
    seen: dict[tuple[str, str], Any],
) -> None:
    assert (
        seen[PROVIDER, "train-eks-k8s"]["version"] == EXPECTED[PROVIDER, "train-eks-k8s"]["inputs"]["version"]
    )
