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


def test_request_reports_all_errors_together(document: dict[str, Any]) -> None:
    document["worker"]["cpu"] = "many"
    document["worker"]["image"] = None
    document["worker"]["mounts"] = {"lustre": 1}
    document["pool"]["perNode"] = 0
    document["placeholder"]["colour"] = "red"
    document["runId"] = "Not_A_Label"
    del document["holdSeconds"]
    found = problems(document, MIN_NODES="5", MAX_NODES="0")
    for place in (
        "TRAINYARD_REQUEST.worker.cpu",
        "TRAINYARD_REQUEST.worker.image",
        "TRAINYARD_REQUEST.worker.mounts.lustre is 1",
        "TRAINYARD_REQUEST.pool.perNode",
        "TRAINYARD_REQUEST.placeholder.colour",
        "TRAINYARD_REQUEST.runId",
        "TRAINYARD_REQUEST.holdSeconds is missing",
        "MAX_NODES is '0'",
    ):
        assert any(problem.startswith(place) for problem in found), (place, found)
    assert len(found) == 8


def test_request_minimum_above_maximum_is_refused(document: dict[str, Any]) -> None:
    assert problems(document, MIN_NODES="5") == ("MIN_NODES is 5 and MAX_NODES is 4; it must be MIN <= MAX",)


def test_the_page_has_every_exit_code() -> None:
    text = (ROOT / "docs" / "monitoring.md").read_text().partition("## How a run ended")[2]
    table, _, after = text.partition("\nAfter ")
    codes = sorted(code for name, code in vars(names).items() if name.startswith("EXIT_"))
    assert [int(code) for code in re.findall(r"^\| (\d+) \|", table, re.MULTILINE)] == codes
    final = after.partition(" the Job has ended")[0]
    assert tuple(int(code) for code in re.findall(r"\d+", final)) == names.LAUNCHER_FINAL_EXIT_CODES


@pytest.mark.parametrize(
    ("place", "value", "right"),
    [
        ("namespace", 1, "a text"),
        ("holdSeconds", "10m", "a whole number from 0 to 2147483647"),
        ("activeDeadlineSeconds", 2**31, "a whole number from 1 to 2147483647"),
        ("pool.perNode", -4, "a whole number from 1 to 2147483647"),
        ("pool.tolerations", {}, "a list"),
        ("worker.cpu", "\u0663", "a quantity, for instance 4, 1500m or 2Gi"),
        ("worker.env", [], "an object"),
        ("fallbacks", {}, "a list"),
        ("backend", "mpijob", "pytorchjob or trainjob"),
        ("shape", "static ", "static or elastic"),
        ("shape", None, "static or elastic"),
        ("nodeStartSeconds", 59, "a whole number from 60 to 2147483647"),
        ("retrySeconds", 179, "a whole number from 180 to 2147483647"),
        ("maxRestarts", -1, "a whole number from 0 to 2147483647"),
        *(
            ("attempts", value, "a whole number from 1 to 2147483647")
            for value in (0, None, "300", True, 2.5)
        ),
    ],
)
def test_request_wrong_value_is_refused(
    document: dict[str, Any], place: str, value: object, right: str
) -> None:
    *parents, last = place.split(".")
    target = document
    for parent in parents:
        target = target[parent]
    target[last] = value
    expected = f"TRAINYARD_REQUEST.{place} is {json.dumps(value)}; it must be {right}"
    assert problems(document) == (expected,)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "is not set"),
        ("[]", "is []; it must be an object"),
        *((text, "is not JSON: ") for text in ('{"a": 1' + "0" * 5000 + "}", "{'a': 1}", "\0")),
    ],
)
def test_what_is_no_request_is_one_line(text: str, expected: str) -> None:
    with pytest.raises(RequestError) as caught:
        parse_request({"TRAINYARD_REQUEST": text})
    (line,) = caught.value.problems
    assert line.startswith(f"TRAINYARD_REQUEST {expected}")


def test_candidates_are_the_pool_and_then_each_fallback(document: dict[str, Any]) -> None:
    document["fallbacks"] = [
        fallback(),
        fallback(name="third", nodeSelector={"karpenter.sh/nodepool": "third"}),
    ]
    request = parse_request({"TRAINYARD_REQUEST": json.dumps(document)})
    found = [request.candidate(index) for index in range(request.candidate_count)]
    assert [one.pool.name for one in found] == ["small", "large", "third"]
    assert [one.worker.cpu for one in found] == ["40", "80", "80"]
    assert [one.deadline_seconds for one in found] == [300, 120, 120]
    assert {one.training_job for one in found} == {"train-r1"}


def test_request_wrong_fallback_names_place(document: dict[str, Any]) -> None:
    document["fallbacks"] = [fallback(), {**fallback(), "pool": 1, "color": "red"}, 4]
    del document["fallbacks"][0]["capacityDeadlineSeconds"]
    found = problems(document)
    assert [line.partition(";")[0] for line in found] == [
        "TRAINYARD_REQUEST.fallbacks[0].capacityDeadlineSeconds is missing",
        "TRAINYARD_REQUEST.fallbacks[1].pool is 1",
        "TRAINYARD_REQUEST.fallbacks[1].color is not known",
        "TRAINYARD_REQUEST.fallbacks[2] is 4",
    ]


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
