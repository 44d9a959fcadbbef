"""What is judged and how it is told: previews, states, unknown values, waivers."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.unit.policies.building import made, urn
from trainyard.policies import judge as judging
from trainyard.policies import reading, waivers
from trainyard.policies.judge import judge
from trainyard.policies.model import UNKNOWN, Stack, Undecided, at, known
from trainyard.policies.waivers import WaiverError

pytestmark = pytest.mark.unit

SUBNET = "aws:ec2/subnet:Subnet"
NOT_KNOWN = "04da6b54-80e4-46f7-96ec-b56ff0331ba9"
WAIVER = {
    "rule": "subnet-without-public-addresses",
    "type": SUBNET,
    "name": "dmz-*",
    "reason": "It is there for that",
    "since": "2026-11-21",
}


def recorded(name: str, **inputs: Any) -> dict[str, Any]:
    return {"urn": urn(SUBNET, name), "type": SUBNET, "custom": True, "inputs": inputs}


def preview(*states: dict[str, Any], op: str = "create") -> dict[str, Any]:
    return {"steps": [{"op": op, "urn": state["urn"], "newState": state} for state in states]}


def waiver_file(**change: Any) -> str:
    lines = [f"{key}: {value}" for key, value in {**WAIVER, **change}.items() if value is not None]
    return "- " + "\n  ".join(lines)


def test_a_preview_and_a_state_are_read_alike() -> None:
    bad = recorded("bad", mapPublicIpOnLaunch=True, __defaults=["x"])
    for document in (preview(bad), {"deployment": {"resources": [bad]}}):
        stack = reading.of_file(json.dumps(document))
        (finding,) = judge(stack).violations
        assert finding.resource.name == "bad"
        assert finding.resource.properties == {"mapPublicIpOnLaunch": True}
        assert str(finding) == (
            "aws:ec2/subnet:Subnet bad: mapPublicIpOnLaunch is true; it must be false"
            " [subnet-without-public-addresses, CKV_AWS_130, AVD-AWS-0164, CIS EKS 5.4.3]"
        )


def test_what_is_deleted_is_not_judged() -> None:
    bad = recorded("bad", mapPublicIpOnLaunch=True)
    assert judge(reading.of_preview(preview(bad, op="delete"))).violations == []
    assert judge(reading.of_state({"resources": [{**bad, "delete": True}]})).violations == []


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"steps": 1}', '{"resources": {}}'])
def test_what_is_neither_preview_nor_state_is_refused(text: str) -> None:
    with pytest.raises(reading.ReadingError):
        reading.of_file(text)


def test_special_values_are_read_as_what_they_stand_for() -> None:
    signature = reading.SIGNATURE
    assert reading.plain(NOT_KNOWN) is UNKNOWN
    assert reading.plain({"a": [NOT_KNOWN, 3.0]}) == {"a": [UNKNOWN, 3]}
    assert reading.plain("[secret]") is UNKNOWN
    assert reading.plain({signature: reading.HIDDEN_VALUE, "ciphertext": "x"}) is UNKNOWN
    assert reading.plain({signature: reading.HIDDEN_VALUE, "plaintext": '"open"'}) == "open"
    assert reading.plain({signature: reading.REFERENCE, "urn": "urn:a", "id": "role"}) == "role"


def test_where_a_value_comes_from_is_known_before_the_value_is() -> None:
    vpc = {"urn": urn("aws:ec2/vpc:Vpc", "vpc"), "type": "aws:ec2/vpc:Vpc", "inputs": {}}
    inside = {**recorded("in", vpcId=NOT_KNOWN), "propertyDependencies": {"vpcId": [vpc["urn"]]}}
    stack = reading.of_preview(preview(vpc, inside))
    (found,) = stack.pointing(stack.of("aws:ec2/vpc:Vpc")[0], SUBNET, "vpcId")
    assert found.name == "in"


def test_a_rule_that_meets_an_unknown_value_is_undecided_and_not_passed() -> None:
    result = judge(reading.of_preview(preview(recorded("later", mapPublicIpOnLaunch=NOT_KNOWN))))
    (finding,) = result.undecided
    assert finding.rule.name == "subnet-without-public-addresses"
    assert "mapPublicIpOnLaunch" in finding.message
    assert finding.key not in result.ran
    assert result.violations == []


def test_what_is_wrong_counts_though_the_rest_is_unknown() -> None:
    subnet = made(SUBNET, mapPublicIpOnLaunch=True, assignIpv6AddressOnCreation=UNKNOWN)
    result = judge(Stack([subnet]))
    assert len(result.violations) == len(result.undecided) == 1


def test_an_unknown_value_is_told_with_its_path() -> None:
    with pytest.raises(Undecided, match=r"^a\.b is not known"):
        at({"a": {"b": UNKNOWN}}, "a", "b", "c")
    with pytest.raises(Undecided, match=r"^x\.a\[1\] is not known"):
        known({"a": [1, UNKNOWN]}, "x")
    assert at({"a": {"b": UNKNOWN}}, "a", "other", default=3) == 3


def test_a_waiver_is_about_one_rule_and_the_resources_it_names() -> None:
    given = waivers.read(waiver_file())
    bad = [made(SUBNET, name, mapPublicIpOnLaunch=True) for name in ("dmz-a", "nodes-a")]
    result = judge(Stack(bad), given)
    assert [each.resource.name for each in result.violations] == ["nodes-a"]
    assert [finding.resource.name for finding, _ in result.waived] == ["dmz-a"]
    assert judge(Stack(bad[:1]), waivers.read(waiver_file(rule="another"))).violations


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"reason": None}, "waivers[0] lacks or should not have reason"),
        ({"until": "2027-01-01"}, "waivers[0] lacks or should not have until"),
        ({"reason": '" "'}, "waivers[0].reason"),
        ({"since": "soon"}, "waivers[0].since is 'soon'; it must be a day"),
    ],
)
def test_a_waiver_without_reason_or_day_is_refused(change: dict[str, Any], told: str) -> None:
    with pytest.raises(WaiverError) as refused:
        waivers.read(waiver_file(**change))
    assert told in str(refused.value)


def test_the_projects_waivers_can_be_read() -> None:
    assert all(waiver.reason for waiver in waivers.load())


def test_the_command_fails_on_a_violation_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "state.json"
    file.write_text(json.dumps({"resources": [recorded("bad", mapPublicIpOnLaunch=True)]}))
    assert judging.main([str(file)]) == 1
    assert "violation: aws:ec2/subnet:Subnet bad" in capsys.readouterr().out
    file.write_text(
        json.dumps({"resources": [recorded("good"), recorded("later", mapPublicIpOnLaunch=NOT_KNOWN)]})
    )
    assert judging.main([str(file)]) == 0
    assert "undecided: aws:ec2/subnet:Subnet later" in capsys.readouterr().out
    assert judging.main([str(tmp_path / "none")]) == 2


@pytest.mark.parametrize(
    ("type_", "properties", "told"),
    [
        (
            "aws:iam/policy:Policy",
            {"policy": "{not json"},
            "policy is {not json, which is no JSON; it must be a policy document",
        ),
        (
            "aws:iam/role:Role",
            {
                "assumeRolePolicy": json.dumps(
                    {"Statement": [{"Effect": "Allow", "Principal": "everybody", "Action": "sts:AssumeRole"}]}
                )
            },
            "assumeRolePolicy has Statement[0].Principal everybody; it must be * or a mapping of"
            " AWS, CanonicalUser, Federated, Service",
        ),
    ],
)
def test_a_document_that_can_not_be_read_is_one_violation_of_the_command(
    type_: str,
    properties: dict[str, Any],
    told: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    file = tmp_path / "state.json"
    file.write_text(
        json.dumps({"resources": [{"urn": urn(type_, "it"), "type": type_, "inputs": properties}]})
    )
    assert judging.main([str(file)]) == 1
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("violation: ")]
    assert lines == [f"violation: {type_} it: {told} [policy-document-readable]"]


def test_a_reader_that_has_enough_is_no_error() -> None:
    """As `python -m trainyard.policies.judge --rules | head` does: the pipe is closed before the list is written."""
    ours, its = os.pipe()
    os.close(ours)
    command = [sys.executable, "-m", "trainyard.policies.judge", "--rules"]
    answer = subprocess.run(command, stdout=its, stderr=subprocess.PIPE, text=True, timeout=60)
    os.close(its)
    assert (answer.returncode, answer.stderr) == (128 + signal.SIGPIPE, "")
