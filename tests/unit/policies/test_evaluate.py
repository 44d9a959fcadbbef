"""Evaluation of previews and states: unknown values, malformed values, waivers, the command."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from components.documents.tags import stack_tags
from tests.integration.policy.settled import unsettled
from tests.unit.policies.building import made, urn
from trainyard.policies import evaluate as evaluation
from trainyard.policies import snapshot, waivers
from trainyard.policies.evaluate import evaluate
from trainyard.policies.model import UNKNOWN, Stack, Undecided, at, resolved
from trainyard.policies.network import NODE_CLASS
from trainyard.policies.tags import INSTANCE_PARTS

TEMPLATE = "aws:ec2/launchTemplate:LaunchTemplate"
ENCRYPTED = [{"ebs": {"encrypted": "true"}}]
TAGS = stack_tags("trainyard", "test")
# All other rules hold for a template with these.
TAGGED = {
    "tags": TAGS,
    "tagSpecifications": [{"resourceType": part, "tags": TAGS} for part in INSTANCE_PARTS],
}
NOT_KNOWN = "04da6b54-80e4-46f7-96ec-b56ff0331ba9"


def recorded(name: str, **inputs: Any) -> dict[str, Any]:
    properties = {"blockDeviceMappings": ENCRYPTED, **TAGGED, **inputs}
    return {"urn": urn(TEMPLATE, name), "type": TEMPLATE, "custom": True, "inputs": properties}


def preview(*states: dict[str, Any], op: str = "create") -> dict[str, Any]:
    return {"steps": [{"op": op, "urn": state["urn"], "newState": state} for state in states]}


def with_key(name: str, key: Any) -> Stack:
    return Stack([made(TEMPLATE, name, blockDeviceMappings=ENCRYPTED, keyName=key, **TAGGED)])


def test_a_preview_and_a_state_give_the_same_finding() -> None:
    bad = recorded("bad", keyName="k", __defaults=["x"])
    for document in (preview(bad), {"deployment": {"resources": [bad]}}):
        (finding,) = evaluate(snapshot.read(json.dumps(document))).violations
        assert "__defaults" not in finding.resource.properties
        assert str(finding) == f"{TEMPLATE} bad: keyName: is set. Remove it. [node-access-closed]"


def test_deleted_resources_are_not_checked() -> None:
    bad = recorded("bad", keyName="k")
    assert evaluate(snapshot.stack_of(preview(bad, op="delete"))).violations == []
    assert evaluate(snapshot.stack_of({"resources": [{**bad, "delete": True}]})).violations == []


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"steps": 1}', '{"resources": {}}'])
def test_a_file_that_is_no_preview_and_no_state_is_an_error(text: str) -> None:
    with pytest.raises(snapshot.SnapshotError):
        snapshot.read(text)


def test_special_values_are_decoded() -> None:
    signature = snapshot.SIGNATURE
    assert snapshot.plain({"a": [NOT_KNOWN, 3.0]}) == {"a": [UNKNOWN, 3]}
    assert snapshot.plain("[secret]") is UNKNOWN
    assert snapshot.plain({signature: snapshot.HIDDEN_VALUE, "ciphertext": "x"}) is UNKNOWN
    assert snapshot.plain({signature: snapshot.HIDDEN_VALUE, "plaintext": '"open"'}) == "open"
    assert snapshot.plain({signature: snapshot.REFERENCE, "urn": "urn:a", "id": "role"}) == "role"


def test_a_preview_has_the_source_of_an_unknown_value() -> None:
    vpc = {"urn": urn("aws:ec2/vpc:Vpc", "vpc"), "type": "aws:ec2/vpc:Vpc", "inputs": {}}
    inside = {**recorded("in", vpcId=NOT_KNOWN), "propertyDependencies": {"vpcId": [vpc["urn"]]}}
    stack = snapshot.stack_of(preview(vpc, inside))
    (found,) = stack.pointing(stack.of("aws:ec2/vpc:Vpc")[0], TEMPLATE, "vpcId")
    assert found.name == "in"


def test_a_rule_that_needs_an_unknown_value_is_undecided_and_has_not_passed() -> None:
    result = evaluate(snapshot.stack_of(preview(recorded("later", blockDeviceMappings=NOT_KNOWN))))
    (finding,) = result.undecided
    assert (finding.rule.id, finding.path) == ("node-disks-encrypted", "blockDeviceMappings")
    assert finding.key not in result.decided
    assert result.violations == []


def test_a_violation_before_an_unknown_value_counts() -> None:
    spec = {"associatePublicIPAddress": True, "metadataOptions": UNKNOWN}
    result = evaluate(Stack([made(NODE_CLASS, spec=spec)]))
    assert [each.rule.id for each in result.violations if "associatePublic" in each.message]
    assert "node-access-closed" in [each.rule.id for each in result.undecided]


def test_unknown_values_are_reported_with_their_path() -> None:
    with pytest.raises(Undecided, match=r"^a\.b is not known"):
        at({"a": {"b": UNKNOWN}}, "a", "b", "c")
    with pytest.raises(Undecided, match=r"^x\.a\[1\] is not known"):
        resolved({"a": [1, UNKNOWN]}, "x")
    assert at({"a": {"b": UNKNOWN}}, "a", "other", default=3) == 3


@pytest.mark.parametrize("policy", ["{not json", "3", "{}", '{"Statement": ["x"]}', [{"a": 1}]])
def test_a_malformed_document_is_a_violation(policy: Any) -> None:
    found = evaluate(Stack([made("aws:kms/key:Key", policy=policy, tags=TAGS)]))
    (finding,) = found.violations
    assert "must have that form" in finding.message
    assert finding.key not in found.decided


def test_the_command_fails_only_on_violations(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "state.json"
    file.write_text(json.dumps({"resources": [recorded("bad", keyName="k")]}))
    assert evaluation.main([str(file)]) == 1
    assert f"violation: {TEMPLATE} bad" in capsys.readouterr().out
    later = recorded("later", blockDeviceMappings=NOT_KNOWN)
    file.write_text(json.dumps({"resources": [recorded("good"), later]}))
    assert evaluation.main([str(file)]) == 0
    assert f"undecided: {TEMPLATE} later" in capsys.readouterr().out
    assert evaluation.main([str(tmp_path / "none")]) == 2


def test_the_command_ends_when_its_reader_ends() -> None:
    """As in `python -m trainyard.policies.evaluate --rules | head`."""
    ours, its = os.pipe()
    os.close(ours)
    command = [sys.executable, "-m", "trainyard.policies.evaluate", "--rules"]
    answer = subprocess.run(command, stdout=its, stderr=subprocess.PIPE, text=True, timeout=60)
    os.close(its)
    assert (answer.returncode, answer.stderr) == (-signal.SIGPIPE, "")


@pytest.mark.parametrize(
    ("after", "lines"),
    [
        (with_key("a", None), []),
        (with_key("a", "k"), [f"violated: {TEMPLATE} a: keyName: is set"]),
        (Stack([]), [f"never decided: {TEMPLATE} a"]),
        (
            Stack([made(TEMPLATE, "a", blockDeviceMappings=UNKNOWN, **TAGGED)]),
            ["never decided", "undecided after"],
        ),
    ],
    ids=["decided", "violated", "not created", "unknown"],
)
def test_a_state_decides_what_its_preview_left_open(after: Stack, lines: list[str]) -> None:
    found = unsettled(Stack([made(TEMPLATE, "a", blockDeviceMappings=UNKNOWN, **TAGGED)]), after)
    assert [line.startswith(start) for line, start in zip(found, lines, strict=True)] == [True] * len(lines)


def test_the_waivers_of_the_project_can_be_read() -> None:
    assert waivers.load()
