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
    """What the pack says of itself, of the first resource, and of a stack of all."""
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


def test_every_rule_is_a_mandatory_policy_that_stops_what_violates_it() -> None:
    bucket = {"type": "aws:s3/bucket:Bucket", "urn": "urn:bucket", "properties": {}, "from": {}}
    subnet = {
        "type": "aws:ec2/subnet:Subnet",
        "urn": "urn:subnet",
        "properties": {"mapPublicIpOnLaunch": True},
        "from": {},
    }
    versioned = {
        "type": "aws:s3/bucketVersioning:BucketVersioning",
        "urn": "urn:versioned",
        # The bucket's name is not known in a preview; where it comes from is.
        "properties": {
            "bucket": "04da6b54-80e4-46f7-96ec-b56ff0331ba9",
            "versioningConfiguration": {"status": "Enabled"},
        },
        "from": {"bucket": ["urn:bucket"]},
    }
    # Its waiver counts beside the definition of MPIJobs alone, which the rule sees only in the whole stack.
    namespace = {
        "type": "kubernetes:core/v1:Namespace",
        "name": "training",
        "urn": "urn:namespace",
        "properties": {
            "metadata": {"name": "training", "labels": {"pod-security.kubernetes.io/enforce": "baseline"}}
        },
        "from": {},
    }
    definition = {
        "type": "kubernetes:apiextensions.k8s.io/v1:CustomResourceDefinition",
        "name": "training-operator:mpijobs.kubeflow.org",
        "urn": "urn:definition",
        "properties": {},
        "from": {},
    }
    assert ["namespace-restricted", "urn:namespace"] in served(subnet, namespace)["whole"]
    answer = served(subnet, bucket, versioned, namespace, definition)
    assert ["namespace-restricted", "urn:namespace"] not in answer["whole"]
    assert answer["policies"] == [[rule.name, "MANDATORY"] for rule in ALL]
    ((name, message),) = answer["alone"]
    assert name == "subnet-without-public-addresses"
    assert "mapPublicIpOnLaunch is true; it must be false" in message
    violated = {policy for policy, urn in answer["whole"] if urn == "urn:bucket"}
    assert "bucket-encrypted" in violated
    assert "bucket-versioned" not in violated
