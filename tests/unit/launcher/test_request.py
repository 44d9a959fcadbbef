"""Reading the request from the environment."""

from __future__ import annotations

import json
import re
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from launcher.request import RequestError, parse_request
from tests.unit.launcher.conftest import asked, fallback
from trainyard.k8s import names, quantity

pytestmark = pytest.mark.unit

ROOT = Path(__file__).parents[3]


def problems(document: Any, **environment: str) -> tuple[str, ...]:
    with pytest.raises(RequestError) as caught:
        parse_request({"TRAINYARD_REQUEST": json.dumps(document), **environment})
    return caught.value.problems


def test_request_environment_overrides_min_and_max(document: dict[str, Any]) -> None:
    request = parse_request({"TRAINYARD_REQUEST": json.dumps(document), "MIN_NODES": "1", "MAX_NODES": "3"})
    assert (request.min_nodes, request.max_nodes) == (1, 3)


def test_a_run_without_id_is_named_after_its_job(document: dict[str, Any]) -> None:
    document["runId"] = None
    environment = {"TRAINYARD_REQUEST": json.dumps(document), "JOB_NAME": "launch-x4k2p"}
    assert parse_request(environment).training_job == "train-x4k2p"
    assert "JOB_NAME is 'other'" in problems(document, JOB_NAME="other")[0]


def test_request_reports_wrong_variables_together(document: dict[str, Any]) -> None:
    document["runId"] = "Not_A_Label"
    found = problems(document, MIN_NODES="two", MAX_NODES="0")
    places = ("MIN_NODES is 'two'", "MAX_NODES is '0'", "TRAINYARD_REQUEST.runId")
    assert [line.startswith(place) for line, place in zip(found, places, strict=True)] == [True] * 3


def test_request_minimum_above_maximum_is_refused(document: dict[str, Any]) -> None:
    assert problems(document, MIN_NODES="5") == ("MIN_NODES is 5 and MAX_NODES is 4; it must be MIN <= MAX",)


def test_the_page_has_every_exit_code() -> None:
    text = (ROOT / "docs" / "monitoring.md").read_text().partition("## How a run ended")[2]
    table, _, after = text.partition("\nAfter ")
    codes = sorted(code for name, code in vars(names).items() if name.startswith("EXIT_"))
    assert [int(code) for code in re.findall(r"^\| (\d+) \|", table, re.MULTILINE)] == codes
    final = after.partition(" the Job has ended")[0]
    assert tuple(int(code) for code in re.findall(r"\d+", final)) == names.LAUNCHER_FINAL_EXIT_CODES


ABSENT = object()


@pytest.mark.parametrize(
    ("place", "value", "shown"),
    [
        ("namespace", 1, " is 1"),
        ("holdSeconds", "10m", ' is "10m"'),
        ("attempts", True, " is true"),
        ("activeDeadlineSeconds", "1h", ' is "1h"'),
        ("shape", None, " is null"),
        ("pool.perNode", 2.5, " is 2.5"),
        ("pool.tolerations", {}, " is {}"),
        ("worker.cpu", 4, " is 4"),
        ("worker.env", [], " is []"),
        ("worker.mounts", {"lustre": 1}, ".lustre is 1"),
        ("fallbacks", [4], "[0] is 4"),
        ("holdSeconds", ABSENT, " is missing"),
        ("placeholder.colour", "red", " is not known"),
    ],
)
def test_request_wrong_value_is_refused(
    document: dict[str, Any], place: str, value: object, shown: str
) -> None:
    *parents, last = place.split(".")
    target = document
    for parent in parents:
        target = target[parent]
    if value is ABSENT:
        del target[last]
    else:
        target[last] = value
    (line,) = problems(document)
    assert line == f"TRAINYARD_REQUEST.{place}{shown}; the request must be that of the present stack"


@pytest.mark.parametrize("text", ["[" * 100_000, '{"minNodes": 1' + "0" * 5000 + "}", "{'a': 1}", "\0"])
def test_what_is_no_json_is_one_line(text: str) -> None:
    with pytest.raises(RequestError) as caught:
        parse_request({"TRAINYARD_REQUEST": text})
    (line,) = caught.value.problems
    assert line.startswith("TRAINYARD_REQUEST is no JSON: ")


def test_candidates_are_the_pool_and_then_each_fallback(document: dict[str, Any]) -> None:
    document["fallbacks"] = [
        fallback(),
        fallback(name="third", nodeSelector={"karpenter.sh/nodepool": "third"}),
    ]
    request = parse_request({"TRAINYARD_REQUEST": json.dumps(document)})
    found = [request.candidate(index) for index in range(request.candidates)]
    assert [one.pool.name for one in found] == ["small", "large", "third"]
    assert [one.worker.cpu for one in found] == ["40", "80", "80"]
    assert [one.deadline_seconds for one in found] == [300, 120, 120]
    assert {one.training_job for one in found} == {"train-r1"}


@pytest.mark.parametrize("text", ["-1", "2.5", "two", "0", "1e1", "٣"])
def test_a_minimum_that_is_no_count_is_refused(document: dict[str, Any], text: str) -> None:
    assert problems(document, MIN_NODES=text)[0].startswith(f"MIN_NODES is {text!r}")


@pytest.mark.parametrize("run", ["", "A", "a-", "r" * 41])
def test_request_wrong_run_id_is_refused(document: dict[str, Any], run: str) -> None:
    document["runId"] = run
    assert problems(document)[0].startswith(
        f"TRAINYARD_REQUEST.runId is {run!r}; it must be at most 40 lower"
    )
    document["runId"] = None
    right = "it must be launch- and at most 40 lower-case letters, digits and dashes"
    assert problems(document, JOB_NAME=f"launch-{run}")[0].startswith(f"JOB_NAME is 'launch-{run}'; {right}")


def test_request_run_id_of_40_characters_is_accepted() -> None:
    assert len(asked(runId="r" * 40).training_job) <= 50


def test_a_request_that_is_no_json_or_absent_is_refused() -> None:
    for environment in ({}, {"TRAINYARD_REQUEST": "{"}, {"TRAINYARD_REQUEST": "[]"}):
        with pytest.raises(RequestError, match="TRAINYARD_REQUEST"):
            parse_request(environment)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("4", 4),
        ("1500m", Fraction(3, 2)),
        ("2Gi", 2**31),
        ("1e3", 1000),
        ("1E", 10**18),
        ("1E2", 100),
        ("0.5", Fraction(1, 2)),
    ],
)
def test_quantities_are_exact(text: str, value: Fraction) -> None:
    assert quantity.parse(text) == value


@pytest.mark.parametrize(
    "text",
    [
        *("", "-1", "1 Gi", "Gi", "1gi", "1Gi\n", "nan"),
        # Python can't print it, or has no end with it.
        *("9" * 31, "9" * 5000, "." + "9" * 5000, "1e999999999", "1e-999999999", "\u0663"),
    ],
)
def test_what_is_no_quantity_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is no quantity") as refused:
        quantity.parse(text)
    assert len(str(refused.value)) < 200


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0"), (1, "1"), (1025, "1025"), (1000, "1k"), (24 * 10**9, "24G"), (2**30, "1Gi"), (160 * 2**30, "160Gi"),
     (1536 * 2**20, "1536Mi"), (2**70, "1024Ei")],
)  # fmt: skip
def test_quantity_text_is_exact(size: int, text: str) -> None:
    assert quantity.in_words(size) == text
    assert quantity.parse(text) == size
