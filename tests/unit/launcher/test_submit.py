"""`python -m launcher.submit`: the range of a new run in the stack's manifest, and input that is none."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest

from launcher.request import RequestError
from launcher.submit import main, read_manifest, with_range
from trainyard.k8s import names


def test_submit_sets_the_range_and_refuses_a_wrong_one(document: dict[str, Any]) -> None:
    document["runId"] = None
    env = [
        {"name": "TRAINYARD_REQUEST", "value": json.dumps(document)},
        {"name": "MIN_NODES", "value": "2"},
        {"name": "JOB_NAME", "valueFrom": {}},
    ]
    job = {
        "kind": "Job",
        "metadata": {"generateName": "launch-", "namespace": "training"},
        "spec": {"template": {"spec": {"containers": [{"name": "launcher", "env": env}]}}},
    }
    assert read_manifest(json.dumps(job)) == job
    ready = with_range(job, 1, 3)["spec"]["template"]["spec"]["containers"][0]["env"]
    assert {entry["name"]: entry.get("value") for entry in ready} == {
        "TRAINYARD_REQUEST": json.dumps(document),
        "JOB_NAME": None,
        "MIN_NODES": "1",
        "MAX_NODES": "3",
    }
    with pytest.raises(RequestError, match="MIN_NODES is 5 and MAX_NODES is 4"):
        with_range(job, 5, 4)


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"\xff\xfe\x00", "can't decode"),
        *((data, "the manifest is not a Job") for data in (b"", b"[]", b'{"kind": "Job"}')),
    ],
)
def test_what_is_no_manifest_is_refused_in_a_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], data: bytes, expected: str
) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(data), encoding="utf-8"))
    assert main(["--min", "1", "--max", "2"]) == names.EXIT_BAD_REQUEST
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("submit: ")
    assert expected in line
