"""Reading the request from the environment."""

from __future__ import annotations

import json
import re
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from launcher.request import RequestError, parse_request
from tests.unit.launcher.conftest import fallback
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


def test_request_reports_all_errors_together(document: dict[str, Any]) -> None:
    document["worker"]["cpu"] = "many"
    document["worker"]["image"] = "trainer"
    document["worker"]["mounts"] = {"lustre": "fsx"}
    document["pool"]["perNode"] = 0
    document["placeholder"]["colour"] = "red"
    document["runId"] = "Not_A_Label"
    del document["holdSeconds"]
    found = problems(document, MIN_NODES="5", MAX_NODES="0")
    for place in (
        "TRAINYARD_REQUEST.worker.cpu",
        "TRAINYARD_REQUEST.worker.image",
        "TRAINYARD_REQUEST.worker.mounts.lustre is 'fsx'",
        "TRAINYARD_REQUEST.pool.perNode",
        "TRAINYARD_REQUEST.placeholder.colour",
        "TRAINYARD_REQUEST.runId",
        "TRAINYARD_REQUEST.holdSeconds is missing",
        "MAX_NODES is '0'",
        "MIN_NODES is 5 and MAX_NODES is 4",
    ):
        assert any(problem.startswith(place) for problem in found), (place, found)
    assert len(found) == 9
    assert all("it must be" in problem for problem in found)


@pytest.mark.parametrize(
    ("key", "wrong", "least"),
    [("nodeStartSeconds", 59, 60), ("attempts", 0, 1), ("retrySeconds", 179, 180), ("maxRestarts", -1, 0)],
)
def test_waits_and_attempts_have_a_least_and_are_required(
    document: dict[str, Any], key: str, wrong: int, least: int
) -> None:
    for value in (wrong, None, "300", True, 2.5):
        document[key] = value
        (line,) = problems(document)
        assert line == (
            f"TRAINYARD_REQUEST.{key} is {json.dumps(value)}; it must be a whole number of at least {least}"
        )
    del document[key]
    assert problems(document)[0].startswith(f"TRAINYARD_REQUEST.{key} is missing")
    document[key] = least
    parse_request({"TRAINYARD_REQUEST": json.dumps(document)})


@pytest.mark.parametrize("value", ["rigid", "", None, 3, "static "])
def test_a_world_is_static_or_elastic(document: dict[str, Any], value: object) -> None:
    document["shape"] = value
    expected = f"TRAINYARD_REQUEST.shape is {json.dumps(value)}; it must be static or elastic"
    assert problems(document) == (expected,)
    document["shape"] = "elastic"
    assert parse_request({"TRAINYARD_REQUEST": json.dumps(document)}).shape == "elastic"


def test_the_page_has_every_exit_code() -> None:
    text = (ROOT / "docs" / "monitoring.md").read_text().partition("## How a run ended")[2]
    table, _, after = text.partition("\nAfter ")
    codes = sorted(code for name, code in vars(names).items() if name.startswith("EXIT_"))
    assert [int(code) for code in re.findall(r"^\| (\d+) \|", table, re.MULTILINE)] == codes
    final = after.partition(" the Job has ended")[0]
    assert tuple(int(code) for code in re.findall(r"\d+", final)) == names.LAUNCHER_FINAL_EXIT_CODES


DIGEST = "@sha256:" + "0" * 64


@pytest.mark.parametrize(
    "image",
    [
        "t:1",
        "host:5000/t:1",
        "host.example/a/b__c-d:v1.2_3",
        f"t{DIGEST}",
        f"t:1{DIGEST}",
        f"host:5000/t{DIGEST}",
    ],
)
def test_an_image_has_a_tag_or_a_digest(document: dict[str, Any], image: str) -> None:
    document["worker"]["image"] = document["placeholder"]["image"] = image
    assert parse_request({"TRAINYARD_REQUEST": json.dumps(document)}).worker.image == image


@pytest.mark.parametrize(
    "image",
    [
        *(
            "trainer",
            "trainer:",
            "host:5000/trainer",
            "host:5000/",
            ":1",
            "",
            "t: 1",
            "t:1\n",
            " t:1",
            "TR:1",
        ),
        *("http://host/t:1", "a//b:1", "t@sha256:abc", f"t{DIGEST}0", f"t{DIGEST}:1", "t@md5:" + "0" * 64),
        *("t:" + "1" * 129, "-t:1", None, 1),
    ],
)
def test_image_without_tag_or_digest_is_refused(document: dict[str, Any], image: object) -> None:
    for part in ("worker", "placeholder"):
        document[part]["image"] = image
    expected = f"image is {json.dumps(image)}; it must be an image with a tag or digest"
    assert problems(document) == tuple(
        f"TRAINYARD_REQUEST.{part}.{expected}" for part in ("placeholder", "worker")
    )


def test_more_processes_than_the_type_has_gpus_are_refused(document: dict[str, Any]) -> None:
    document["fallbacks"] = [fallback()]
    document["worker"]["processesPerNode"], document["fallbacks"][0]["worker"]["processesPerNode"] = 5, 9
    assert problems(document) == (
        "TRAINYARD_REQUEST.worker.processesPerNode is 5; it must be at most pool.perNode (4), which is how many "
        "GPUs g5.12xlarge has",
        "TRAINYARD_REQUEST.fallbacks[0].worker.processesPerNode is 9; it must be at most pool.perNode (8), which "
        "is how many GPUs p4d.24xlarge has",
    )
    for candidate in (document, document["fallbacks"][0]):  # processes on CPUs share them
        candidate["worker"]["env"] = {"TRAINYARD_DEVICE": "cpu"}
    parse_request({"TRAINYARD_REQUEST": json.dumps(document)})


@pytest.mark.parametrize(
    ("place", "value", "right"),
    [
        ("namespace", "n" * 64, "a DNS label of at most 63 characters"),
        ("pool.name", "p" * 64, "a DNS label of at most 63 characters"),
        ("worker.serviceAccountName", "Trainer_1", "a DNS name"),
        ("worker.priorityClassName", "no class", "a DNS name"),
        ("placeholder.priorityClassName", ".x", "a DNS name"),
        ("holdSeconds", "10m", "a whole number of at least 0"),
        ("capacityDeadlineSeconds", "", "a whole number of at least 1"),
        ("capacityDeadlineSeconds", 10**30, "a whole number of at most 1000000000"),
        ("activeDeadlineSeconds", "1h", "a whole number of at least 1"),
        ("pool.perNode", -4, "a whole number of at least 1"),
        ("pool.resource", "gpu!", "the name of a resource, for instance nvidia.com/gpu"),
        (
            "pool.tolerations",
            [{"key": 5}],
            "a list of tolerations, each with strings for key, operator, value and effect as in a pod",
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
    if place == "pool.name":
        document["pool"]["nodeSelector"] = {"karpenter.sh/nodepool": ""}
    expected = f"TRAINYARD_REQUEST.{place} is {json.dumps(value)}; it must be {right}"
    assert problems(document) == (expected,)


@pytest.mark.parametrize(
    ("mounts", "expected"),
    [
        ({"Fsx": "/fsx"}, "mounts has 'Fsx'; it must be the name of a claim"),
        ({"fsx": "/dev/shm"}, "mounts.fsx is '/dev/shm'; it must be an absolute path of its own"),
        ({"fsx": "/fsx", "two": "/fsx"}, "mounts.fsx is '/fsx'; it must be an absolute path of its own"),
    ],
)
def test_mounts_have_names_and_places_of_their_own(
    document: dict[str, Any], mounts: dict[str, str], expected: str
) -> None:
    document["worker"]["mounts"] = mounts
    assert f"TRAINYARD_REQUEST.worker.{expected}" in problems(document)[0]


def test_what_is_written_to_lies_in_a_mounted_volume(document: dict[str, Any]) -> None:
    document["worker"] |= {"mounts": {"fsx": "/fsx"}, "writes": ["/fsx", "/fsx/a", "/fsxes"]}
    assert problems(document) == (
        "TRAINYARD_REQUEST.worker.writes has '/fsxes'; it must be a directory of a mounted volume",
    )


def test_shared_memory_is_a_part_of_the_memory(document: dict[str, Any]) -> None:
    document["worker"]["sharedMemory"] = "145Gi"
    assert problems(document) == (
        "TRAINYARD_REQUEST.worker.sharedMemory is 145Gi; it must be at most memory (144Gi), of which it is a part",
    )


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


def test_request_wrong_fallback_names_place(document: dict[str, Any]) -> None:
    on_cpus = fallback(
        name="cpus", resource="cpu", perNode=16, nodeSelector={"karpenter.sh/nodepool": "cpus"}
    )
    document["fallbacks"] = [fallback(), fallback(), {**fallback(), "pool": 1, "color": "red"}, on_cpus, 4]
    del document["fallbacks"][0]["capacityDeadlineSeconds"]
    found = "\n".join(problems(document))
    for line in (
        "TRAINYARD_REQUEST.fallbacks[0].capacityDeadlineSeconds is missing; it must be a whole number",
        'TRAINYARD_REQUEST.fallbacks[1].pool.name is "large"; it must be a pool that no candidate before',
        "TRAINYARD_REQUEST.fallbacks[2].pool is 1; it must be an object",
        "TRAINYARD_REQUEST.fallbacks[2].color is not known; it must be one of",
        "TRAINYARD_REQUEST.fallbacks[3].worker.cpu is 80; it must be pool.perNode (16) in a pool",
        "TRAINYARD_REQUEST.fallbacks[4] is 4; it must be an object",
    ):
        assert line in found
    document["fallbacks"] = {}
    assert problems(document) == (
        "TRAINYARD_REQUEST.fallbacks is {}; it must be a list of objects, which may be empty",
    )


@pytest.mark.parametrize("text", ["-1", "2.5", "two", "0", "1e1", "٣"])
def test_a_minimum_that_is_no_count_is_refused(document: dict[str, Any], text: str) -> None:
    assert problems(document, MIN_NODES=text)[0].startswith(f"MIN_NODES is {text!r}")


@pytest.mark.parametrize("length", [40, 41])
def test_a_run_id_may_have_forty_characters(document: dict[str, Any], length: int) -> None:
    document["runId"] = "r" * length
    if length == 40:
        assert len(parse_request({"TRAINYARD_REQUEST": json.dumps(document)}).training_job) <= 50
    else:
        assert "at most 40" in problems(document)[0]


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
