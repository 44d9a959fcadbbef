"""The AWS plugin: names, differences, previews and refusals; no call leaves the process."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from components.documents.eks import cni_values
from local.plugins import sdk
from local.plugins.aws.handlers import HANDLERS
from local.plugins.aws.provider import AwsProvider, _merged
from local.plugins.aws.resource import changed_inputs, output_names, project
from local.plugins.provider import (
    CheckRequest,
    CheckResult,
    CreateRequest,
    DiffRequest,
    DiffResult,
    ProviderError,
    ReadRequest,
    UpdateRequest,
)
from local.plugins.values import UNKNOWN

VPC = "aws:ec2/vpc:Vpc"
ROLE = "aws:iam/role:Role"
QUEUE = "aws:sqs/queue:Queue"
SUBNET = "aws:ec2/subnet:Subnet"
SECURITY_GROUP = "aws:ec2/securityGroup:SecurityGroup"


@pytest.fixture
def provider(monkeypatch: pytest.MonkeyPatch) -> AwsProvider:
    for name in ("TRAINYARD_LOCAL_CLOUD", "AWS_ENDPOINT_URL", "AWS_REGION"):
        monkeypatch.delenv(name, raising=False)
    made = AwsProvider()
    made.configure(
        {"region": "us-west-2", "defaultTags": json.dumps({"tags": {"owner": "me", "a": "default"}})}
    )
    return made


def who(token: str, name: str = "thing") -> dict[str, str]:
    return {"urn": f"urn:pulumi:dev::p::{token}::{name}", "type": token, "name": name}


def check(
    provider: AwsProvider, token: str, inputs: dict[str, Any], old: Any = None, name: str = "thing"
) -> CheckResult:
    return provider.check(CheckRequest(**who(token, name), inputs=inputs, old_inputs=old, seed=b"x"))


def diff(provider: AwsProvider, token: str, old: dict[str, Any], new: dict[str, Any]) -> DiffResult:
    return provider.diff(DiffRequest(**who(token), id="i", old_inputs=old, old_outputs={}, inputs=new))


@pytest.mark.parametrize("token", sorted(HANDLERS))
def test_every_handler_serves_properties_of_the_official_sdk(token: str) -> None:
    handler, official = HANDLERS[token], sdk.properties(sdk.resource(token))
    assert handler.accepts <= official.keys()
    assert sdk.required(sdk.resource(token)) | handler.replaces <= handler.accepts
    assert set(handler.defaults) <= handler.accepts
    assert handler.tagged == ("tags" in official)
    assert handler.auto_name is None or handler.auto_name in handler.accepts
    assert set(output_names(token)) >= {"region"} or token.startswith("aws:iam/")


def test_an_unknown_token_and_an_unserved_one_are_named(provider: AwsProvider) -> None:
    with pytest.raises(ProviderError, match=r"aws:ec2/vpc:Vcp is no resource of pulumi_aws.*aws:ec2/vpc:Vpc"):
        check(provider, "aws:ec2/vpc:Vcp", {})
    with pytest.raises(ProviderError, match=r"aws:rds/cluster:Cluster is not served by the local AWS plugin"):
        check(provider, "aws:rds/cluster:Cluster", {})


def test_unknown_unserved_and_missing_properties_are_all_named_at_once(provider: AwsProvider) -> None:
    inputs = {"cidr": "10.0.0.0/16", "ipv6Native": True}
    found = {failure.path: failure.reason for failure in check(provider, SUBNET, inputs).failures}
    assert found.keys() == {"cidr", "ipv6Native", "vpcId"}
    assert "no property cidr" in found["cidr"]
    assert "not served" in found["ipv6Native"]
    assert found["vpcId"] == "is required"


def test_default_tags_are_merged_and_the_resources_own_win(provider: AwsProvider) -> None:
    inputs = check(provider, VPC, {"cidrBlock": "10.0.0.0/16", "tags": {"a": "own"}}).inputs
    assert inputs["tags"] == inputs["tagsAll"] == {"owner": "me", "a": "own"}
    assert check(provider, VPC, {"cidrBlock": "10.0.0.0/16", "tags": UNKNOWN}).inputs["tags"] is UNKNOWN


def test_a_name_is_made_once_and_kept(provider: AwsProvider) -> None:
    first = check(provider, ROLE, {"assumeRolePolicy": "{}"}, name="n" * 80).inputs
    assert len(first["name"]) == 64
    assert first["name"][:57] == "n" * 56 + "-"
    again = provider.check(
        CheckRequest(**who(ROLE), inputs={"assumeRolePolicy": "{}"}, old_inputs=first, seed=b"other")
    )
    assert again.inputs["name"] == first["name"]
    assert check(provider, "aws:s3/bucket:Bucket", {}, name="My").inputs["bucket"].startswith("my-")


def test_a_removed_name_of_the_program_is_replaced_by_an_automatic_one(provider: AwsProvider) -> None:
    old = check(provider, QUEUE, {"name": "mine"}).inputs
    new = check(provider, QUEUE, {}, old=old).inputs
    assert new["name"] != "mine"
    assert diff(provider, QUEUE, old, new).replaces == ["name"]


def test_what_can_change_in_place_is_updated_and_the_rest_replaced(provider: AwsProvider) -> None:
    old = {
        "vpcId": "v",
        "cidrBlock": "10.0.0.0/20",
        "tags": {"a": "b", "x": "y"},
        "mapPublicIpOnLaunch": False,
    }
    in_place = diff(provider, SUBNET, old, {**old, "tags": {"a": "c", "z": "1"}})
    assert in_place.detailed == {"tags.a": "update", "tags.x": "delete", "tags.z": "add"}
    assert in_place.replaces == []
    replaced = diff(provider, SUBNET, old, {**old, "cidrBlock": "10.0.16.0/20"})
    assert replaced.replaces == ["cidrBlock"]
    assert not replaced.delete_before_replace
    assert diff(provider, SUBNET, old, {**old, "vpcId": UNKNOWN}).replaces == ["vpcId"]


def test_a_fixed_name_is_freed_before_its_replacement_is_made(provider: AwsProvider) -> None:
    automatic = check(provider, SECURITY_GROUP, {"vpcId": "a"}).inputs
    fixed = check(provider, SECURITY_GROUP, {"vpcId": "a", "name": "mine"}).inputs
    moved = diff(provider, SECURITY_GROUP, automatic, {**automatic, "vpcId": "b"})
    assert (moved.replaces, moved.delete_before_replace) == (["vpcId"], False)
    assert diff(provider, SECURITY_GROUP, fixed, {**fixed, "vpcId": "b"}).delete_before_replace


def test_policy_documents_and_unordered_lists_compare_by_meaning(provider: AwsProvider) -> None:
    def document(*actions: str, **more: Any) -> str:
        return json.dumps({"Statement": [{"Action": list(actions), "Resource": "*", **more}]}, **{})

    policy = "aws:iam/policy:Policy"
    same = {"policy": '{"Statement": {"Resource": ["*"], "Action": ["b", "a"]}}'}
    assert not diff(provider, policy, {"policy": document("a", "b")}, same).has_changes
    assert diff(provider, policy, {"policy": document("a")}, same).detailed == {"policy": "update"}
    cluster = "aws:eks/cluster:Cluster"
    left, right = ({"vpcConfig": {"subnetIds": ids}} for ids in (["a", "b"], ["b", "a"]))
    assert not diff(provider, cluster, left, right).has_changes


def test_numbers_in_documents_and_order_of_ordered_lists_count(provider: AwsProvider) -> None:
    handler = HANDLERS["aws:iam/openIdConnectProvider:OpenIdConnectProvider"]
    assert changed_inputs(handler, {"clientIdLists": ["a", "b"]}, {"clientIdLists": ["b", "a"]}) == []
    group = HANDLERS["aws:eks/nodeGroup:NodeGroup"]
    assert changed_inputs(group, {"instanceTypes": ["a", "b"]}, {"instanceTypes": ["b", "a"]}) == [
        "instanceTypes"
    ]


def test_state_older_than_a_default_does_not_differ(provider: AwsProvider) -> None:
    bucket = HANDLERS["aws:s3/bucket:Bucket"]
    assert changed_inputs(bucket, {}, {"forceDestroy": False}) == []
    assert changed_inputs(bucket, {}, {"forceDestroy": True}) == ["forceDestroy"]


def test_a_refresh_takes_live_values_into_the_inputs_and_nothing_else() -> None:
    handler = HANDLERS[SUBNET]
    inputs = {"vpcId": "v", "tags": {"a": "b"}, "__defaults": []}
    live = {"vpcId": "v", "tags": {"a": "b"}, "mapPublicIpOnLaunch": False, "arn": "x"}
    assert project(handler, inputs, live) == inputs
    assert project(handler, inputs, {**live, "tags": {"a": "b", "more": "1"}})["tags"] == {
        "a": "b",
        "more": "1",
    }
    assert project(handler, {"vpcId": "v"}, live)["tags"] == {"a": "b"}
    cluster = HANDLERS["aws:eks/cluster:Cluster"]
    given = {"vpcConfig": {"subnetIds": ["b", "a"], "endpointPublicAccess": True}}
    live = {"vpcConfig": {"subnetIds": ["a", "b"], "endpointPublicAccess": False, "vpcId": "v"}}
    assert project(cluster, given, live) == {
        "vpcConfig": {"subnetIds": ["b", "a"], "endpointPublicAccess": False}
    }


def test_a_preview_of_a_create_knows_the_inputs_and_calls_nothing(provider: AwsProvider) -> None:
    inputs = check(provider, QUEUE, {"name": "q"}).inputs
    rid, outputs = provider.create(CreateRequest(**who(QUEUE), inputs=inputs, preview=True))
    assert rid == ""
    assert outputs["name"] == "q"
    assert outputs["url"] is UNKNOWN
    assert outputs["arn"] is UNKNOWN
    assert outputs["region"] == "us-west-2"
    assert not any(key.startswith("__") for key in outputs)


def test_outputs_inside_an_input_are_unknown_at_first_and_kept_later(provider: AwsProvider) -> None:
    token = "aws:eks/cluster:Cluster"
    given = {"name": "c", "roleArn": "r", "vpcConfig": {"subnetIds": ["s"]}}
    inputs = check(provider, token, given).inputs
    _, outputs = provider.create(CreateRequest(**who(token), inputs=inputs, preview=True))
    assert outputs["vpcConfig"]["clusterSecurityGroupId"] is UNKNOWN
    assert outputs["vpcConfig"]["subnetIds"] == ["s"]
    live = {**given["vpcConfig"], "clusterSecurityGroupId": "sg-1", "vpcId": "vpc-1", "other": True}
    request = UpdateRequest(
        **who(token),
        id="c",
        old_inputs=inputs,
        old_outputs={**inputs, "vpcConfig": live},
        inputs={**inputs, "vpcConfig": {"subnetIds": ["s", "t"]}},
        preview=True,
    )
    after = provider.update(request)["vpcConfig"]
    assert after == {"subnetIds": ["s", "t"], "clusterSecurityGroupId": "sg-1", "vpcId": "vpc-1"}
    merged = _merged(HANDLERS[token], inputs, {**inputs, "vpcConfig": live}, "us-west-2")
    assert merged["vpcConfig"] == {"subnetIds": ["s"], "clusterSecurityGroupId": "sg-1", "vpcId": "vpc-1"}


def test_a_preview_of_an_update_keeps_the_outputs_that_stay(provider: AwsProvider) -> None:
    token = "aws:ec2/launchTemplate:LaunchTemplate"
    request = UpdateRequest(
        **who(token),
        id="lt",
        old_inputs={"imageId": "a"},
        old_outputs={"arn": "x", "latestVersion": 1, "imageId": "a"},
        inputs={"imageId": "b"},
        preview=True,
    )
    after = provider.update(request)
    assert (after["arn"], after["imageId"], after["latestVersion"]) == ("x", "b", UNKNOWN)


def test_without_a_local_cloud_nothing_is_created_or_read(provider: AwsProvider) -> None:
    with pytest.raises(ProviderError, match=r"TRAINYARD_LOCAL_CLOUD is not set.*`make up`"):
        provider.create(CreateRequest(**who(QUEUE), inputs={"name": "q"}, preview=False))
    with pytest.raises(ProviderError, match="TRAINYARD_LOCAL_CLOUD is not set"):
        provider.read(ReadRequest(**who(QUEUE), id="q", inputs={}, outputs={}))


def test_foreign_endpoints_and_credentials_are_refused(
    provider: AwsProvider, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TRAINYARD_LOCAL_CLOUD", str(tmp_path / "run/cloud.json"))
    monkeypatch.delenv("AWS_ENDPOINT_URL", raising=False)
    with pytest.raises(ProviderError, match="AWS_ENDPOINT_URL is not an address of this machine"):
        provider.cloud()
    monkeypatch.setenv("AWS_ENDPOINT_URL", "https://ec2.us-west-2.amazonaws.com")
    with pytest.raises(ProviderError, match="AWS_ENDPOINT_URL"):
        provider.configure({"region": "us-west-2"})
    with pytest.raises(ProviderError, match="AWS_ENDPOINT_URL is not an address of this machine"):
        provider.cloud()
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    monkeypatch.setenv("AWS_PROFILE", "production")
    with pytest.raises(ProviderError, match="AWS_PROFILE is set"):
        provider.configure({"region": "us-west-2"})


def test_settings_that_would_be_ignored_are_refused(provider: AwsProvider) -> None:
    found = provider.check_config(
        {"region": "us-west-2", "profile": "x", "nonsense": "1", "skipMetadataApiCheck": "true"}
    )
    assert {failure.path for failure in found.failures} == {"profile", "nonsense"}


def test_look_ups_that_the_region_decides_answer_without_a_cloud(provider: AwsProvider) -> None:
    def ask(token: str, **args: Any) -> dict[str, Any]:
        return provider.invoke(token, args)[0]

    assert ask("aws:index/getPartition:getPartition")["partition"] == "aws"
    assert ask("aws:index/getRegion:getRegion")["region"] == "us-west-2"
    token = "aws:eks/getAddonVersion:getAddonVersion"
    assert ask(token, addonName="coredns", kubernetesVersion="1.35")["version"] == "asked-at-up"
    with pytest.raises(ProviderError, match="getNothing is not served"):
        ask("aws:index/getNothing:getNothing")


@pytest.mark.parametrize(
    ("token", "inputs", "path"),
    [
        ("aws:ec2/route:Route", {"routeTableId": "r", "destinationCidrBlock": "0.0.0.0/0"}, "gatewayId"),
        ("aws:cloudwatch/eventRule:EventRule", {"eventBusName": "mine"}, "eventBusName"),
    ],
)
def test_values_that_would_be_refused_or_ignored_are_named(
    provider: AwsProvider, token: str, inputs: dict[str, Any], path: str
) -> None:
    assert [failure.path for failure in check(provider, token, inputs).failures] == [path]


def test_a_target_that_is_not_known_yet_counts(provider: AwsProvider) -> None:
    route = {"routeTableId": "r", "destinationCidrBlock": "0.0.0.0/0", "natGatewayId": UNKNOWN}
    assert check(provider, "aws:ec2/route:Route", route).failures == []


def test_new_values_of_an_add_on_are_an_update_in_place(provider: AwsProvider) -> None:
    """As in the official provider: a stack from before the CNI's targets keeps its add-on."""
    addon = {"clusterName": "c", "addonName": "vpc-cni", "resolveConflictsOnUpdate": "OVERWRITE"}
    old = {**addon, "configurationValues": '{"enableNetworkPolicy": "true"}'}
    found = diff(
        provider, "aws:eks/addon:Addon", old, {**addon, "configurationValues": cni_values({"a": "b"})}
    )
    assert (dict(found.detailed), found.replaces) == ({"configurationValues": "update"}, [])
