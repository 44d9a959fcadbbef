"""Every rule of the torchrun kinds on a real API server, both ways."""

from __future__ import annotations

from typing import Any

import pytest

from tests.integration.local.own_api_server import Answer, ApiServer
from tests.integration.local.torchrun_rules import (
    CASES,
    DIGEST,
    NOT_OVERRIDDEN,
    OVERRIDING,
    RANGES,
    Case,
    Refusal,
    overridden,
    rules,
)
from tests.torchrun_manifests import change, manifest
from tests.torchrun_numbers import Number
from trainyard.k8s import quantity
from trainyard.operator import names as n
from trainyard.operator.api.job import FIXED as FIXED_FIELDS
from trainyard.operator.api.job import JOB

pytestmark = pytest.mark.local

PLURALS = {n.QUEUE_KIND: n.QUEUE_PLURAL, n.JOB_KIND: n.JOB_PLURAL}
ONLY_ASKED = "?dryRun=All&fieldValidation=Strict"


def collection(kind: str) -> str:
    return f"/apis/{n.API_VERSION}/namespaces/default/{PLURALS[kind]}"


def offered(server: ApiServer, body: dict[str, Any]) -> Answer:
    """What the API server says of an object without keeping it."""
    return server.request("POST", collection(body["kind"]) + ONLY_ASKED, body)


def refusals(answer: Answer) -> list[Refusal]:
    """The fields that it names. Of a rule's message it shows the value first."""
    causes = answer.body["details"]["causes"]
    return [Refusal(field=each["field"].removeprefix("spec."), message=each["message"]) for each in causes]


def assert_refused(answer: Answer, expected: Refusal) -> None:
    assert answer.status == 422, answer.body
    (refusal,) = refusals(answer)
    assert refusal.field == expected.field
    assert refusal.message.endswith(expected.message)


def test_every_rule_of_a_spec_has_a_case() -> None:
    for kind in PLURALS:
        assert {case.refusal() for case in CASES if case.kind == kind} == set(rules(kind))
    overriding = {Refusal(field=case.field, message=case.says) for case in OVERRIDING}
    assert overriding == {each for each in overridden() if each.field != f"overrides.{NOT_OVERRIDDEN}"}


def test_a_job_has_no_parent_of_a_kai_queue(torchrun_api: ApiServer) -> None:
    refused = offered(torchrun_api, manifest(n.JOB_KIND, "a", {f"overrides.{NOT_OVERRIDDEN}": "org"}))
    expected = "a job joins an existing queue of KAI Scheduler"
    assert_refused(refused, Refusal(field=f"overrides.{NOT_OVERRIDDEN}", message=expected))
    accepted = offered(torchrun_api, manifest(n.JOB_KIND, "a", {"overrides.kaiQueue": "gpu"}))
    assert accepted.status == 201, accepted.message


@pytest.mark.parametrize("case", [*CASES, *OVERRIDING], ids=lambda case: f"{case.field}: {case.says}")
def test_a_rule_refuses_what_is_wrong_and_nothing_else(torchrun_api: ApiServer, case: Case) -> None:
    expected = Refusal(field=case.field, message=case.says) if case in OVERRIDING else case.refusal()
    assert_refused(offered(torchrun_api, manifest(case.kind, "a", case.wrong)), expected)
    accepted = offered(torchrun_api, manifest(case.kind, "a", case.right))
    assert accepted.status == 201, accepted.message


@pytest.mark.parametrize("each", RANGES, ids=lambda each: f"{each.kind}.{each.path}")
def test_a_number_is_taken_from_its_least_to_its_most(torchrun_api: ApiServer, each: Number) -> None:
    for right in (each.least, each.most):
        accepted = offered(torchrun_api, each.manifest(right))
        assert accepted.status == 201, accepted.message
    below, above = (f"should be {word} than or equal to " for word in ("greater", "less"))
    for wrong, expected in (
        (each.least - 1, f"{below}{each.least}"),
        (each.most + 1, f"{above}{each.most}"),
        (2**63 - 1, f"{above}{each.most}"),
    ):
        answer = offered(torchrun_api, each.manifest(wrong))
        assert answer.status == 422, (wrong, answer.body)
        said = [refusal.message for refusal in refusals(answer) if refusal.field == each.place]
        assert any(message.endswith(expected) for message in said), (wrong, answer.message)


@pytest.mark.parametrize(
    ("kind", "wrong", "right"),
    [
        (n.JOB_KIND, "a" * 41, "a" * 40),
        (n.JOB_KIND, "1st", "a1"),
        (n.JOB_KIND, "a.b", "a-b"),
        (n.QUEUE_KIND, "a" * 64, "1" * 63),
        (n.QUEUE_KIND, "a.b", "a-b"),
    ],
)
def test_a_name_is_refused_that_its_objects_could_not_have(
    torchrun_api: ApiServer, kind: str, wrong: str, right: str
) -> None:
    answer = offered(torchrun_api, manifest(kind, wrong))
    (refusal,) = refusals(answer)
    assert (answer.status, refusal.field) == (422, "metadata.name")
    assert "metadata.name must be at most" in refusal.message
    assert offered(torchrun_api, manifest(kind, right)).status == 201


def test_a_name_of_300_characters_is_refused_as_a_name(torchrun_api: ApiServer) -> None:
    answer = offered(torchrun_api, manifest(n.JOB_KIND, "a" * 300))
    assert answer.status == 422
    assert {each.field for each in refusals(answer)} == {"metadata.name"}


# Each with a value before, and with another one; None removes it.
FIXED = [
    ("jobQueue", "research", "other"),
    ("numGPUs", 16, 8),
    ("command", "python train.py", "python other.py"),
    ("launcher", None, "none"),
    ("launcher", "torchrun", "none"),
    ("args", ["--epochs=1"], ["--epochs=2"]),
    ("args", None, ["--epochs=2"]),
    ("args", ["--epochs=1"], None),
    ("env", [{"name": "A", "value": "1"}], [{"name": "A", "value": "2"}]),
    ("env", None, [{"name": "A", "value": "2"}]),
    ("env", [{"name": "A", "value": "1"}], None),
    ("distributed.backend", "nccl", "gloo"),
    ("distributed.rdzvBackend", None, "etcd"),
    ("distributed.port", 29500, None),
    ("persistCheckpoints", None, True),
    ("persistCheckpoints", True, None),
    ("overrides.image", "one", "two"),
    ("overrides.image", None, "two"),
    ("overrides", {"image": "one"}, None),
    ("overrides.podTemplate.spec", {"hostNetwork": True, "x": {"y": 1}}, {"hostPID": True, "x": {"y": 1}}),
    ("overrides.podTemplate.spec", {"x": {"y": 1}}, {"x": {"z": 1}}),
    ("overrides.podTemplate.spec", {"x": [{"y": [1, 2]}]}, {"x": [{"y": [1, 3]}]}),
    ("overrides.scheduling.affinity.nodeAffinity", {"required": [1]}, {"preferred": [1]}),
    ("overrides.scheduling.nodeSelector", {"a": "b"}, {"c": "b"}),
    ("overrides.nodeResources.memory", "1Gi", 1073741824),
]
CHANGED = [
    ("suspend", None, True),
    ("ttlSecondsAfterFinished", None, 60),
    ("activeDeadlineSeconds", 60, None),
    ("restartPolicy", "OnFailure", "Never"),
    ("maxRestarts", 3, 100),
    ("numNodes", 2, 4),
    ("numNodes", None, 4),
    ("elastic", {"minNodes": 1, "maxNodes": 2}, {"minNodes": 2, "maxNodes": 4}),
    ("workspace", {"digest": DIGEST, "sizeBytes": 1}, {"digest": DIGEST.replace("f", "0"), "sizeBytes": 2}),
    ("workspace", None, {"digest": DIGEST, "sizeBytes": 1, "restartOnSync": True}),
]


def test_every_field_is_fixed_or_may_be_changed_and_has_a_case() -> None:
    fixed, changed = ({path.partition(".")[0] for path, _, _ in cases} for cases in (FIXED, CHANGED))
    assert fixed == set(FIXED_FIELDS)
    assert changed == set(JOB.fields) - fixed


def edited(server: ApiServer, path: str, before: Any, after: Any) -> Answer:
    """A job is made with one value and then offered with the other."""
    body = manifest(n.JOB_KIND, "edited", {path: before})
    made = server.request("POST", collection(n.JOB_KIND), body)
    assert made.status == 201, made.message
    try:
        change(made.body["spec"], {path: after})
        return server.request("PUT", f"{collection(n.JOB_KIND)}/edited{ONLY_ASKED}", made.body)
    finally:
        assert server.request("DELETE", f"{collection(n.JOB_KIND)}/edited").status == 200


@pytest.mark.parametrize(("path", "before", "after"), FIXED)
def test_what_a_job_is_cannot_be_changed(torchrun_api: ApiServer, path: str, before: Any, after: Any) -> None:
    top = path.partition(".")[0]
    expected = Refusal(field=top, message=f"{top} can't be changed; create a new TorchrunJob")
    assert_refused(edited(torchrun_api, path, before, after), expected)


@pytest.mark.parametrize(("path", "before", "after"), CHANGED)
def test_what_a_job_does_can_be_changed(torchrun_api: ApiServer, path: str, before: Any, after: Any) -> None:
    answer = edited(torchrun_api, path, before, after)
    assert answer.status == 200, answer.message


# Forms that the API server, our own reader of quantities, or both might take.
TEXTS = ["1", "0.5", ".5", "5.", "1500m", "1u", "3n", "2k", "2K", "1M", "1Mi", "1e3", "1E3", "1E", "1e-1", "1e99",
         "1e100", "1e-100", "+1", "-1", "0", "0Gi", "", " ", "1 Gi", "1GB", "1GiB", "Gi", "1e", "1.2.3", "1Ki1",
         "0x10", "1_000", "\u0663", "1\n"]  # fmt: skip


@pytest.mark.parametrize("text", TEXTS)
def test_what_the_api_server_takes_for_a_quantity_our_reader_takes_too(
    torchrun_api: ApiServer, text: str
) -> None:
    answer = offered(torchrun_api, manifest(n.QUEUE_KIND, "a", {"nodeResources.memory": text}))
    try:
        right = quantity.parse(text) > 0
    except ValueError:
        right = False
    assert (answer.status == 201) == right, answer.body


@pytest.mark.parametrize("spec", [{"numNodes": 0}, {"elastic": {"minNodes": 1, "maxNodes": 0}}])
def test_a_size_of_0_is_refused_by_its_minimum_and_no_rule_divides_by_it(
    torchrun_api: ApiServer, spec: dict[str, Any]
) -> None:
    answer = offered(torchrun_api, manifest(n.JOB_KIND, "none", spec))
    assert answer.status == 422
    assert "should be greater than or equal to 1" in answer.message
    assert "modulus" not in answer.message
