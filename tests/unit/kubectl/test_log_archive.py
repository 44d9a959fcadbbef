"""`logs` of a worker whose pod or node is gone: read from the bucket, by a pod with the queue's service account."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.unit.kubectl.plugin_api import JOBS, PODS, Run, TorchrunApi
from trainyard.kubectl import logs
from trainyard.operator import names as n

pytestmark = pytest.mark.unit

URL = "s3://code/torchrun/logs/team/u"
TEMPLATE = {
    "spec": {
        "serviceAccountName": "trainer",
        "containers": [{"name": "torchrun", "env": [{"name": "AWS_REGION", "value": "us-west-2"}]}],
    }
}
Ends = Callable[[str, bytes], None]


def framed(attempt: int, node: int, text: bytes) -> bytes:
    return json.dumps({"attempt": attempt, "node": node, "bytes": len(text)}).encode() + b"\n" + text


@pytest.fixture
def made(api: TorchrunApi, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The pods that were made to read logs; a job with logs in its bucket is there."""
    api.queue(
        "q", image="i", nodeResources={"gpus": 8, "cpus": 8, "memory": "8Gi"}, podTemplate=TEMPLATE,
        storage={"workspace": {"bucket": "s3://code/torchrun"}},
    )  # fmt: skip
    job = api.job("one", phase=n.PHASE_FAILED, uid="u")
    job["status"] |= {"attempt": 2, "message": "it failed", "logs": {"url": URL, "image": "tools@sha256:0"}}
    return []


@pytest.fixture
def ends(api: TorchrunApi, made: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch) -> Ends:
    """Say how the next pod ends, and what it prints."""

    def say(phase: str, printed: bytes) -> None:
        def sleep(_seconds: float) -> None:
            for path, pod in list(api.objects.items()):
                if path.startswith(f"{PODS}/one-logs-"):
                    made.append(pod)
                    api.put(path, {**pod, "status": {"phase": phase}})
                    api.logs[pod["metadata"]["name"]] = [printed]

        monkeypatch.setattr(logs.time, "sleep", sleep)

    return say


def test_logs_of_a_worker_that_is_gone_come_from_the_bucket(
    api: TorchrunApi, run: Run, made: list[dict[str, Any]], ends: Ends
) -> None:
    ends("Succeeded", framed(2, 1, b"one\n\xff two\r\nthree\n"))
    result, out, err = run("logs", "one", "--node-rank", "0")
    assert (result, out.splitlines()[0], out.splitlines()[-1]) == (0, "one", "three"), err
    (pod,) = made
    assert [each for each in api.objects if "-logs-" in each] == [], "it is removed"
    spec = pod["spec"]
    assert spec["serviceAccountName"] == "trainer"
    assert spec["automountServiceAccountToken"] is False
    (container,) = spec["containers"]
    assert container["image"] == "tools@sha256:0"
    assert container["env"] == [{"name": "AWS_REGION", "value": "us-west-2"}]
    assert container["command"][3:] == ["logs", "--url", URL, "--attempt", "last", "--node", "0"]
    assert n.LABEL_JOB not in pod["metadata"]["labels"]
    assert "tolerations" not in spec
    result, out, _ = run("logs", "one", "--tail", "1")
    assert (result, out) == (0, "three\n")


@pytest.mark.parametrize(("words", "attempt"), [(("--attempt", "0"), "0"), (("--previous",), "1")])
def test_logs_of_an_earlier_attempt(
    run: Run, made: list[dict[str, Any]], ends: Ends, words: tuple[str, ...], attempt: str
) -> None:
    ends("Succeeded", framed(int(attempt), 0, b"x\n"))
    assert run("logs", "one", *words)[:2] == (0, "x\n")
    command = made[0]["spec"]["containers"][0]["command"]
    assert command[command.index("--attempt") + 1] == attempt


def test_following_a_job_that_is_over_shows_its_last_log(
    run: Run, made: list[dict[str, Any]], ends: Ends
) -> None:
    ends("Succeeded", framed(2, 0, b"the end\n"))
    result, out, _ = run("logs", "-f", "one")
    assert (result, out) == (1, "the end\n")
    assert len(made) == 1


def test_log_that_cannot_be_read_says_why_and_what_to_do(
    api: TorchrunApi, run: Run, made: list[dict[str, Any]], ends: Ends
) -> None:
    ends("Failed", b"logs: s3://code/x has no log of this attempt and node. It has none.\n")
    result, _, err = run("logs", "one", "--attempt", "7")
    assert (result, err.splitlines()[-1].partition("no log of this attempt")[1]) == (
        66,
        "no log of this attempt",
    )
    api.refused.add(("POST", PODS))
    result, _, err = run("logs", "one", "--attempt", "1")
    assert result == 77
    assert "you may not create pods" in err
    assert f"aws s3 cp {URL}/attempt-1/node-0.log -" in err
    del api.objects[f"{JOBS}/one"]["status"]["logs"]
    assert "has no worker node 0 now" in run("logs", "one")[2]
    assert len(made) == 1
