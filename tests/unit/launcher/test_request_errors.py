"""Requests that nothing could be made of: each is refused in a line, before anything is made."""

from __future__ import annotations

import json
from typing import Any

import pytest

from launcher.request import parse_request
from tests.unit.launcher.test_request import problems

pytestmark = pytest.mark.unit


def test_long_number_is_shortened(document: dict[str, Any]) -> None:
    digits = "9" * 5000  # more than Python makes a number of
    expected = f"is {'9' * 100!r}...; it must be a whole number"
    assert problems(document, MAX_NODES=digits) == (f"MAX_NODES {expected} from 1 to 999999",)
    document["worker"]["env"] = {"TORCH_ELASTIC_SHUTDOWN_TIMEOUT": digits}
    place = "TRAINYARD_REQUEST.worker.env.TORCH_ELASTIC_SHUTDOWN_TIMEOUT"
    assert problems(document) == (f"{place} {expected} of seconds from 1 to 540",)


@pytest.mark.parametrize("job", ["launch-", "launch-A", "launch-a-", "launch-" + "r" * 41])
def test_job_name_without_run_is_reported(document: dict[str, Any], job: str) -> None:
    document["runId"] = None
    expected = f"JOB_NAME is {job!r}; it must be launch- and at most 40 lower-case letters, digits and dashes"
    assert problems(document, JOB_NAME=job)[0].startswith(expected)


@pytest.mark.parametrize("text", ["a\0b", "\ud800", "\udfff."])
def test_a_text_that_no_process_can_be_given_is_refused(document: dict[str, Any], text: str) -> None:
    whole, worker = "of whole characters, none of them NUL", document["worker"]
    worker["args"], worker["command"], worker["env"] = [text], [text], {"A": text}
    document["pool"]["zone"] = text
    found = [line.partition(" is ")[::2] for line in problems(document)]
    assert [(place, line.partition("; it must be ")[2]) for place, line in found] == [
        ("TRAINYARD_REQUEST.pool.zone", "the value of a label"),
        ("TRAINYARD_REQUEST.worker.env", f"an object of texts {whole}"),
        ("TRAINYARD_REQUEST.worker.args", f"a list of texts {whole}"),
        ("TRAINYARD_REQUEST.worker.command", f"a list of texts {whole}"),
    ]


@pytest.mark.parametrize("key", ["cpu", "memory", "sharedMemory"])
def test_a_quantity_has_the_digits_that_kubernetes_reads(document: dict[str, Any], key: str) -> None:
    document["worker"][key] = "٣"
    expected = f'TRAINYARD_REQUEST.worker.{key} is "\\u0663"; it must be a quantity above 0'
    assert problems(document)[0].startswith(expected)


@pytest.mark.parametrize(
    "ends", ["9999-12-31T23:59:59-14:00", "0001-01-01T00:00:00+14:00", "1969-12-31T00:00:00Z"]
)
def test_block_end_out_of_range_is_reported(document: dict[str, Any], ends: str) -> None:
    document["pool"]["block"] = {"ends": ends, "takenBackSeconds": 2400, "onDemandFallback": False}
    expected = f'TRAINYARD_REQUEST.pool.block.ends is "{ends}"; it must be a time with its zone'
    assert problems(document)[0].startswith(expected)


@pytest.mark.parametrize("place", ["instanceType", "zone"])
@pytest.mark.parametrize("value", [" ", "a b", "a\n", "-a", "a-", "ä", "a" * 64])
def test_a_type_and_a_zone_are_values_of_labels(document: dict[str, Any], place: str, value: str) -> None:
    document["pool"][place] = value
    expected = f"TRAINYARD_REQUEST.pool.{place} is {json.dumps(value)}; it must be the value of a label"
    assert problems(document) == (expected,)


@pytest.mark.parametrize(
    ("key", "value"),
    [("", "x"), ("a b", "x"), ("k" * 64, "x"), ("A_/k", "x"), ("k", "bad!"), ("k", "v" * 64), ("k", "v-")],
)
def test_a_selector_has_labels_that_nodes_may_have(document: dict[str, Any], key: str, value: str) -> None:
    document["pool"]["nodeSelector"][key] = value
    (line,) = problems(document)
    assert line.startswith("TRAINYARD_REQUEST.pool.nodeSelector is ")
    assert line.endswith("it must be labels of nodes, with keys and values of up to 63 characters")
    document["pool"]["nodeSelector"] = {
        "karpenter.sh/nodepool": "small",
        "example.com/k": "V_1.x",
        "empty": "",
    }
    parse_request({"TRAINYARD_REQUEST": json.dumps(document)})


@pytest.mark.parametrize(
    "toleration",
    [
        {},
        {"value": "v"},
        {"key": "k", "operator": "In"},
        {"key": "k", "operator": "Exists", "value": "v"},
        {"key": "k", "operator": "Exists", "effect": "Never"},
        {"key": "a b", "operator": "Exists"},
        {"key": "k", "value": "not this!"},
    ],
)
def test_a_toleration_is_one_that_a_pod_may_have(
    document: dict[str, Any], toleration: dict[str, str]
) -> None:
    document["pool"]["tolerations"] = [toleration]
    assert problems(document)[0].startswith(
        f"TRAINYARD_REQUEST.pool.tolerations is [{json.dumps(toleration)}]"
    )
    document["pool"]["tolerations"] = [
        {"operator": "Exists"},
        {"key": "k"},
        {"key": "k", "operator": "Equal", "value": "v", "effect": "NoExecute"},
    ]
    parse_request({"TRAINYARD_REQUEST": json.dumps(document)})


@pytest.mark.parametrize(
    ("part", "key"),
    [
        ("worker", "serviceAccountName"),
        ("worker", "priorityClassName"),
        ("placeholder", "priorityClassName"),
    ],
)
def test_a_name_has_253_characters_at_most(document: dict[str, Any], part: str, key: str) -> None:
    document[part][key] = "n" * 253
    parse_request({"TRAINYARD_REQUEST": json.dumps(document)})
    document[part][key] += "n"
    assert problems(document)[0].endswith("it must be a DNS name of at most 253 characters")


@pytest.mark.parametrize("rest", [":1", "@sha256:" + "0" * 64])
def test_an_image_has_a_name_of_255_characters_at_most(document: dict[str, Any], rest: str) -> None:
    document["worker"]["image"] = "n" * 255 + rest
    parse_request({"TRAINYARD_REQUEST": json.dumps(document)})
    document["worker"]["image"] = "n" * 256 + rest
    assert problems(document)[0].endswith("it must be an image with a tag or digest")


@pytest.mark.parametrize("claim", ["shared-memory", "a.b", "c" * 64])
def test_a_claim_may_be_the_name_of_a_volume(document: dict[str, Any], claim: str) -> None:
    """The operator would be refused each worker, and say so in its own log alone."""
    document["worker"]["mounts"] = {claim: "/fsx"}
    expected = f"TRAINYARD_REQUEST.worker.mounts has {claim!r}; it must be the name of a claim, a DNS label of at most"
    assert problems(document)[0].startswith(expected)


def test_a_directory_of_a_volume_has_no_colon(document: dict[str, Any]) -> None:
    document["worker"]["mounts"] = {"fsx": "/fsx:ro"}
    assert problems(document)[0].startswith("TRAINYARD_REQUEST.worker.mounts.fsx is '/fsx:ro'; it must be")


@pytest.mark.parametrize(
    ("secrets", "right"),
    [
        ({"A B": "x/y"}, "letters, digits and _"),
        ({"TRAINYARD_DEVICE": "x/y"}, "no name of env"),
        ({"A": "x"}, "the name of a Secret, / and its key"),
        ({"A": "X/y"}, "the name of a Secret, / and its key"),
        ({"A": "x/y z"}, "the name of a Secret, / and its key"),
    ],
)
def test_a_secret_that_no_pod_can_name_is_refused(
    document: dict[str, Any], secrets: dict[str, str], right: str
) -> None:
    document["worker"]["secrets"] = secrets
    (line,) = problems(document)
    assert line.startswith("TRAINYARD_REQUEST.worker.secrets")
    assert right in line
