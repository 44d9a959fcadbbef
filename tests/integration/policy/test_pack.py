"""The policy pack, served as the engine serves it: started in its own directory, asked over its protocol.

The language host that the local cloud builds starts packs in the program's directory; the official one in theirs.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.integration.policy.environments import environment
from trainyard.cli.engine import ROOT
from trainyard.policies.rules import ALL

# It installs the SDK of policies, so that it is none of the fast tests.
pytestmark = [pytest.mark.local, pytest.mark.timeout(300)]

ASK = Path(__file__).with_name("ask_pack.py")


def served(*resources: dict[str, Any]) -> dict[str, Any]:
    """Return the policies of the pack, and its findings for the first resource and for a stack of all."""
    python = environment("policy-pack") / "bin" / "python"
    answer = subprocess.run(
        [str(python), str(ASK)],
        cwd=ROOT / "trainyard" / "policies",
        input=json.dumps(resources),
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert answer.returncode == 0, answer.stderr
    result: dict[str, Any] = json.loads(answer.stdout)
    return result


def analyzed(type_: str, urn: str, properties: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"type": type_, "urn": urn, "properties": properties, "from": {}, **more}


def test_every_rule_is_a_mandatory_policy_that_stops_what_violates_it() -> None:
    template = analyzed(
        "aws:ec2/launchTemplate:LaunchTemplate",
        "urn:template",
        {"keyName": "k", "blockDeviceMappings": [{"ebs": {"encrypted": "true"}}]},
    )
    buckets = [analyzed("aws:s3/bucket:Bucket", f"urn:{name}", {}) for name in ("closed", "open")]
    tls = {
        "Effect": "Deny",
        "Principal": "*",
        "Action": "s3:*",
        "Resource": "arn:aws:s3:::b/*",
        "Condition": {"Bool": {"aws:SecureTransport": "false"}},
    }
    # The bucket's name is unknown in a preview; the resource that it comes from is known.
    unknown = "04da6b54-80e4-46f7-96ec-b56ff0331ba9"
    policy = analyzed(
        "aws:s3/bucketPolicy:BucketPolicy",
        "urn:policy",
        {"bucket": unknown, "policy": json.dumps({"Statement": [tls]})},
        **{"from": {"bucket": ["urn:closed"]}},
    )
    # Its waiver counts only beside the definition of MPIJobs, which the rule sees only in the whole stack.
    labels = {"pod-security.kubernetes.io/enforce": "baseline"}
    metadata = {"metadata": {"name": "training", "labels": labels}}
    namespace = analyzed("kubernetes:core/v1:Namespace", "urn:namespace", metadata, name="training")
    definition = analyzed(
        "kubernetes:apiextensions.k8s.io/v1:CustomResourceDefinition",
        "urn:definition",
        {},
        name="training-operator:mpijobs.kubeflow.org",
    )
    assert ["namespace-restricted", "urn:namespace"] in served(template, namespace)["whole"]
    answer = served(template, *buckets, policy, namespace, definition)
    assert ["namespace-restricted", "urn:namespace"] not in answer["whole"]
    assert answer["policies"] == [[rule.id, "MANDATORY"] for rule in ALL]
    ((name, message),) = answer["alone"]
    assert name == "node-access-closed"
    assert "keyName: is set. Remove it." in message
    assert [urn for rule, urn in answer["whole"] if rule == "bucket-tls-only"] == ["urn:open"]
