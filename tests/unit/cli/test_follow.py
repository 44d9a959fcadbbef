from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from launcher.actions import Report, line
from trainyard.cli import follow
from trainyard.cli.follow import Follower, FollowError, describe_node, job_result, node_state
from trainyard.k8s.client import ApiUnavailable


def node(labels: dict[str, str], ready: str = "True", **metadata: Any) -> dict[str, Any]:
    return {
        "metadata": {"name": "ip-10-0-1-2", "labels": labels, **metadata},
        "status": {
            "conditions": [{"type": "Ready", "status": ready}],
            "allocatable": {"nvidia.com/gpu": "4", "vpc.amazonaws.com/efa": "0"},
        },
    }


def test_a_node_is_ready_only_when_karpenter_has_initialised_it() -> None:
    assert node_state(node({"karpenter.sh/initialized": "true"})) == "ready"
    assert node_state(node({})) == "joined"
    assert node_state(node({"karpenter.sh/initialized": "true"}, ready="Unknown")) == "joined"


def test_a_node_that_is_being_deleted_is_leaving() -> None:
    leaving = node({"karpenter.sh/initialized": "true"}, deletionTimestamp="2026-01-01T00:00:00Z")
    assert node_state(leaving) == "leaving"


def test_a_node_is_described_by_type_zone_and_what_it_really_offers() -> None:
    labels = {
        "node.kubernetes.io/instance-type": "g5.12xlarge",
        "topology.kubernetes.io/zone": "us-west-2b",
    }
    assert describe_node(node(labels)) == "ip-10-0-1-2 g5.12xlarge us-west-2b 4 nvidia.com/gpu"


@pytest.mark.parametrize(
    ("conditions", "expected"),
    [
        ([], None),
        ([{"type": "Complete", "status": "False"}], None),
        ([{"type": "FailureTarget", "status": "True", "reason": "PodFailurePolicy"}], None),
        ([{"type": "Complete", "status": "True"}], (True, "")),
        (
            [{"type": "Failed", "status": "True", "reason": "PodFailurePolicy", "message": "exit code 10"}],
            (False, "PodFailurePolicy: exit code 10"),
        ),
    ],
)
def test_a_job_has_ended_when_a_condition_says_so(conditions: list[dict[str, str]], expected: Any) -> None:
    assert job_result({"status": {"conditions": conditions}}) == expected


class Answers:
    """A `Client` with these answers of the API server; one that is an exception is raised."""

    def __init__(self, logs: dict[str, Any], jobs: list[Any]) -> None:
        self.logs = logs
        self.jobs = jobs
        self.uids: dict[str, str] = {}
        self.read: list[str] = []

    def read_text(self, path: str) -> str:
        pod = path.split("/")[-2]
        self.read.append(pod)
        return answered(self.logs[pod])

    def request(self, _method: str, _path: str) -> Any:
        return answered(self.jobs.pop(0) if len(self.jobs) > 1 else self.jobs[0])

    def list_objects(self, path: str, query: dict[str, str]) -> Any:
        if path == "/api/v1/nodes" or not query["labelSelector"].startswith("job-name="):
            return []
        return [
            {"metadata": {"name": name, "uid": self.uids.get(name, name)}, "status": {"phase": "Running"}}
            for name in self.logs
        ]


def answered(answer: Any) -> Any:
    if isinstance(answer, Exception):
        raise answer
    return answer


def follower(answers: Answers, said: list[str]) -> Follower:
    with patch("trainyard.k8s.kubeconfig.connect", return_value=(answers, "")):
        return Follower(Path("kubeconfig"), said.append)


RUN = ("training", "launch-r1")
AT_WORK: dict[str, Any] = {"status": {"conditions": []}}
COMPLETE = {
    "status": {
        "startTime": "2026-01-01T00:00:00Z",
        "conditions": [
            {"type": "Complete", "status": "True", "lastTransitionTime": "2026-01-01T00:00:07Z"},
        ],
    }
}


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follow, "POLL_SECONDS", 0.001)
    monkeypatch.setattr(follow, "UNREACHABLE_SECONDS", 0.05)


def test_a_pod_whose_machine_does_not_answer_hides_neither_the_others_nor_the_end() -> None:
    said: list[str] = []
    answers = Answers({"lost": ApiUnavailable("500"), "well": "step=1\n"}, [AT_WORK, COMPLETE])
    result = follower(answers, said).follow(*RUN)
    assert result.succeeded
    assert [line for line in said if "step=1" in line]


def test_an_api_server_that_only_fails_ends_the_watch_with_its_word() -> None:
    answers = Answers({}, [ApiUnavailable("503 etcd is away")])
    with pytest.raises(FollowError, match=r"no answer for .* 503 etcd is away"):
        follower(answers, []).follow(*RUN)


def test_a_long_log_is_read_seldom_and_to_its_end_when_the_job_has_ended() -> None:
    said: list[str] = []
    logs = {"chatty": "x" * 500_000 + "\n"}
    answers = Answers(logs, [*[AT_WORK] * 20, COMPLETE])
    following = follower(answers, said)
    logs["chatty"] += "last\n"
    following.follow(*RUN)
    assert len(answers.read) == 2
    assert said[-1].endswith("last")


@pytest.mark.parametrize(("since", "is_earlier"), [(None, False), (-1.0, False), (1.0, True)])
def test_run_that_succeeded_before_is_not_shown_again(since: float | None, is_earlier: bool) -> None:
    said: list[str] = []
    end = follow._job_end(COMPLETE)
    following = follower(Answers({"main": "step=1\n"}, [COMPLETE]), said)
    result = following.follow(*RUN, since if since is None else end + since)
    assert (result.succeeded, result.seconds, result.is_earlier) == (True, 7.0, is_earlier)
    assert bool(said) is not is_earlier


def test_run_that_failed_before_is_shown() -> None:
    said: list[str] = []
    result = follower(Answers({"main": "ValueError: x\n"}, [FAILED]), said).follow(*RUN, 1e12)
    assert not result.succeeded
    assert said


FAILED = {
    "status": {
        "startTime": "2026-01-01T00:00:00Z",
        "conditions": [
            {
                "type": "Failed",
                "status": "True",
                "lastTransitionTime": "2026-01-01T00:00:07Z",
                "reason": "PodFailurePolicy",
                "message": "Container launcher for pod training/p failed with exit code 11",
            },
        ],
    }
}


def test_failed_run_reports_last_launcher_reason() -> None:
    log = "".join(
        line(Report(state=state, nodes=0, of=4, claims=0, reason=reason), 7.0) + "\n"
        for state, reason in (("waiting", "4 nodes are starting"), ("failed", 'no "p5" in us-west-2b'))
    )
    result = follower(Answers({"launch": log}, [FAILED]), []).follow(*RUN)
    assert (result.succeeded, result.message) == (False, 'no "p5" in us-west-2b')


def test_failed_run_without_launcher_log_reports_job_message() -> None:
    log = (
        'Traceback: launcher state=failed\nlauncher state=failed nodes=0/4 claims=0 reason="half elapsed=1s\n'
    )
    result = follower(Answers({"launch": log}, [FAILED]), []).follow(*RUN)
    assert (
        result.message == "PodFailurePolicy: Container launcher for pod training/p failed with exit code 11"
    )


def test_truncated_log_is_shown_from_start() -> None:
    said: list[str] = []
    answers = Answers({"pod": "one\ntwo\n"}, [COMPLETE])
    following = follower(answers, said)
    following.follow(*RUN)
    answers.logs["pod"] = "three\n"
    following.follow(*RUN)
    assert [line.rpartition(" ")[2] for line in said] == ["one", "two", "three"]


def test_pod_of_restarted_run_is_shown_from_first_line() -> None:
    said: list[str] = []
    answers = Answers({"train-r1-master-0": "one\n"}, [COMPLETE])
    following = follower(answers, said)
    following.follow(*RUN)
    answers.logs["train-r1-master-0"], answers.uids["train-r1-master-0"] = "two\nthree\n", "another"
    following.follow(*RUN)
    assert [line.rpartition(" ")[2] for line in said] == ["one", "two", "three"]
