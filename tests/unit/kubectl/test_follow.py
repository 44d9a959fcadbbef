"""`logs --follow`: until the job ends, over its attempts and nodes."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from launcher.manifests import stamp
from tests.unit.kubectl.conftest import JOBS, PODS, Run, TorchrunApi, only_line
from tests.unit.launcher.api_server import status, until
from trainyard.kubectl import logs
from trainyard.kubectl.logs import node_rank_problem
from trainyard.operator.names import LABEL_INDEX

WORDS = [
    ("logs", "one", "--node-rank", "9"),
    ("logs", "-f", "one", "--node-rank", "9"),
    ("cp", "one:/a", "a", "--node-rank", "9"),
]


@pytest.mark.parametrize("words", WORDS, ids=" ".join)
@pytest.mark.parametrize("phase", ["Running", "Succeeded"])
def test_a_node_that_the_job_does_not_have_is_refused(
    api: TorchrunApi, run: Run, words: tuple[str, ...], phase: str
) -> None:
    api.job("one", phase=phase)["status"]["nodes"] = 3
    api.worker("one-0-0")
    result, out, err = run(*words)
    assert (result, out) == (66, "")
    assert err.splitlines()[-1] == (
        "kubectl torchrun: --node-rank: 9 is not a node of job one, which has 3 nodes, number 0 to 2"
    )


def test_logs_of_a_larger_earlier_attempt_are_shown(api: TorchrunApi, run: Run) -> None:
    api.job("one", phase="Running", numNodes=1)["status"]["nodes"] = 1
    api.worker("one-0-2", "terminated", **{LABEL_INDEX: "2"})
    api.logs["one-0-2"] = [b"of node 2\n"]
    assert run("logs", "one", "--node-rank", "2") == (0, "of node 2\n", "")
    assert "which has 1 node, number 0" in only_line(run("logs", "one", "--node-rank", "1")[2])


def test_node_of_a_larger_earlier_attempt_is_not_refused(api: TorchrunApi, run: Run) -> None:
    """The job's size is that of the present attempt, 3."""
    job = api.job("one", phase="Running", numNodes=1)
    job["status"] |= {"nodes": 1, "attempt": 3}
    words = ("logs", "one", "--node-rank", "2", "--attempt")
    assert "job one: has no worker node 2 of attempt 0 now" in only_line(run(*words, "0")[2])
    assert "which has 1 node, number 0" in only_line(run(*words, "3")[2])
    failure = {"attempt": 0, "nodeRank": 2, "pod": "one-0-2", "logTail": "nope"}
    job["status"]["firstFailure"] = failure
    assert run(*words, "0")[:2] == (0, "nope\n")


@pytest.mark.parametrize(("last", "attempts"), [(0, "attempt 0"), (12, "attempts 0 to 12")])
@pytest.mark.parametrize("which", [(), ("--all",)])
def test_attempt_that_the_job_has_not_had_is_refused(
    api: TorchrunApi, run: Run, last: int, attempts: str, which: tuple[str, ...]
) -> None:
    """The status has only the last attempts."""
    job = api.job("one", phase="Running")
    kept = [{"attempt": attempt} for attempt in range(last)][-8:]
    job["status"] |= {"attempt": last, "attempts": kept, "logs": {"url": "s3://code/logs", "image": "i"}}
    result, out, err = run("logs", "one", "--attempt", "13", *which)
    assert (result, out) == (66, "")
    assert only_line(err).endswith(f"--attempt: 13 is too high: job one has had {attempts}")
    del job["status"]["logs"]
    if last:
        err = run("logs", "one", "--attempt", "10", *which)[2]
        assert "Its log was deleted with its pod" in only_line(err)


@pytest.mark.parametrize(
    ("spec", "status", "least", "said"),
    [
        ({}, {}, None, ""),
        ({}, {"nodes": 3}, 3, "3 nodes, number 0 to 2"),
        ({"numNodes": 2}, {}, 2, "2 nodes, number 0 to 1"),
        ({"numNodes": 4}, {"nodes": 2}, 4, "4 nodes, number 0 to 3"),
        ({"numNodes": 2}, {"nodes": 4}, 4, "4 nodes, number 0 to 3"),
        ({"elastic": {"minNodes": 1, "maxNodes": 4}}, {"nodes": 1}, 4, "at most 4 nodes, number 0 to 3"),
        ({"elastic": {"minNodes": 1, "maxNodes": 1}}, {}, 1, "at most 1 node, number 0"),
    ],
)
def test_node_rank_problem_names_the_size(
    spec: dict[str, Any], status: dict[str, Any], least: int | None, said: str
) -> None:
    job = {"metadata": {"name": "one"}, "spec": spec, "status": status}
    if least is None:
        assert node_rank_problem(job, 9999) == ""
        return
    assert node_rank_problem(job, least - 1) == ""
    assert node_rank_problem(job, least) == f"--node-rank: {least} is not a node of job one, which has {said}"


def test_follow_of_a_missing_elastic_node_reports_the_wait_once(api: TorchrunApi, run: Run) -> None:
    api.job("one", phase="Running", elastic={"minNodes": 1, "maxNodes": 4})["status"]["nodes"] = 1
    looks = 0

    def on_request(method: str, path: str) -> None:
        nonlocal looks
        looks += (method, path) == ("GET", f"{JOBS}/one")
        if looks == 4:
            pod = api.worker("one-0-3", "waiting", **{LABEL_INDEX: "3"})
            why = {"type": "PodScheduled", "status": "False", "message": "0/3 nodes are available"}
            pod["status"]["conditions"] = [why]
        if looks == 8:
            api.objects[f"{PODS}/one-0-3"]["spec"] = {"schedulerName": "gpus"}
            api.objects[f"{PODS}/one-0-3"]["status"] = {}
        if looks == 10:
            # One that is that young is on its way.
            api.objects[f"{PODS}/one-0-3"]["metadata"]["creationTimestamp"] = stamp(time.time() - 5)
        if looks == 12:
            api.objects[f"{JOBS}/one"]["status"]["phase"] = "Succeeded"

    api.on_request = on_request
    result, out, err = run("logs", "-f", "one", "--node-rank", "3")
    assert (result, out) == (0, "")
    assert err.splitlines() == [
        "one: Running",
        "one: waits for a pod of node 3",
        "one: waits for node 3: pod one-0-3 waits for a node: 0/3 nodes are available",
        "one: waits for node 3: pod one-0-3 waits for a node: scheduler gpus has not reported on it",
        "one: waits for node 3: pod one-0-3 has not started",
        "one: Succeeded",
    ]


def test_restarts_between_two_polls_are_reported(api: TorchrunApi, run: Run) -> None:
    """The first restart has no pause, and is often over before the next look; so may be several."""
    job, looks = api.job("one", phase="Running"), 0

    def ended(*attempts: int) -> list[dict[str, Any]]:
        return [{"attempt": each, "reason": "WorkerFailed", "message": f"cause {each}"} for each in attempts]

    job["status"] |= {"attempt": 1, "attempts": ended(0)}

    def on_request(method: str, path: str) -> None:
        nonlocal looks
        looks += (method, path) == ("GET", f"{JOBS}/one")
        if looks == 4:
            job["status"] |= {"attempt": 3, "attempts": ended(0, 1, 2)}
        if looks == 8:
            job["status"] |= {"phase": "Restarting", "message": "cause 3", "attempts": ended(0, 1, 2, 3)}
        if looks == 12:
            job["status"] |= {"phase": "Running", "message": "", "attempts": ended(1, 2, 3)}
        if looks == 16:
            job["status"] |= {"phase": "Failed", "message": "cause 4", "attempts": ended(1, 2, 3, 4)}

    api.on_request = on_request
    _, _, err = run("logs", "-f", "one")
    assert [line for line in err.splitlines() if "waits for" not in line] == [
        "one: Running",
        "one: Restarting: cause 1",
        "one: Restarting: cause 2",
        "one: Restarting: cause 3",
        "one: Running",
        "one: Failed: cause 4",
    ]


NAME = "one-0-0-abcde"
LINE = b"2026-01-01T00:00:00Z trained\n"
WHY = "was deleted, for example by kubectl torchrun cancel; its last known phase is Running"
UNKNOWN = f"kubectl torchrun: job one: {WHY}\n"


def test_follow_waits_for_the_log_of_a_lost_node(api: TorchrunApi, run: Run) -> None:
    """The API server answers 500 as long as the kubelet of the pod's node does not answer."""
    api.job("one", phase="Running")
    api.worker(NAME)
    dial = "dial tcp 10.0.0.9:10250: connect: no route to host"
    answers = [500, 502]

    def intercept(_method: str, target: str) -> Any:
        if "/log?" not in target:
            return None
        if answers:
            return status(answers.pop(0), "InternalError", dial)
        api.objects[f"{JOBS}/one"]["status"]["phase"] = "Succeeded"
        state = api.objects[f"{PODS}/{NAME}"]["status"]["containerStatuses"][0]
        state["state"] = {"terminated": {"exitCode": 0}}
        return None

    api.intercept = intercept
    api.logs[NAME] = [b"2026-01-01T00:00:00.5Z done\n"]
    result, out, err = run("logs", "-f", "one")
    assert (result, out) == (0, "done\n")
    assert err.count(f"pod {NAME}: its log can't be read: {dial}. Waiting for the pod") == 1


@pytest.fixture
def ends(api: TorchrunApi) -> Callable[..., None]:
    """Job `one` runs, and when its log has come to its end it is gone; its last status is this, None for none."""

    def with_status(last: dict[str, Any] | None, *, watched: bool = True) -> None:
        def remove(_pod: str) -> None:
            if watched:
                until(lambda: api.watching)
            api.logs[NAME] = [LINE]
            if last is not None:
                api.put(f"{JOBS}/one", {**api.objects[f"{JOBS}/one"], "status": last})
            # The pod goes last, as by the garbage collector. A running job without a pod would get a line of its own.
            api.remove(f"{JOBS}/one")
            api.remove(f"{PODS}/{NAME}")

        api.job("one", phase="Running")
        api.worker(NAME)
        api.on_log = remove

    return with_status


@pytest.mark.parametrize(
    ("last", "code"),
    [
        ({"phase": "Succeeded", "exitCode": 0}, 0),
        *(({"phase": "Failed", "exitCode": code}, shown) for code, shown in ((137, 137), (0, 1), (256, 1))),
        ({"phase": "Failed"}, 1),
        (None, 75),
    ],
)
def test_follow_of_a_removed_job_has_its_last_exit_code(
    run: Run, ends: Callable[..., None], last: dict[str, Any] | None, code: int
) -> None:
    ends(last)
    end = f"one: {last['phase']}\n" if last else UNKNOWN
    assert run("logs", "-f", "one") == (code, "trained\n", f"one: Running\n{end}")


def test_follow_does_not_follow_another_job_of_the_name(
    api: TorchrunApi, run: Run, ends: Callable[..., None]
) -> None:
    ends({"phase": "Succeeded"})
    remove = api.on_log

    def replace(pod: str) -> None:
        remove(pod)
        api.job("one", phase="Failed")

    api.on_log = replace
    assert run("logs", "-f", "one")[:2] == (0, "trained\n")


def test_pod_that_goes_between_the_two_reads_is_not_missing(api: TorchrunApi, run: Run) -> None:
    api.job("one", phase="Running")
    api.worker(NAME, "waiting")

    def on_request(method: str, path: str) -> None:
        if (method, path) == ("GET", PODS) and f"{JOBS}/one" in api.objects:
            api.remove(f"{JOBS}/one")
            api.remove(f"{PODS}/{NAME}")

    api.on_request = on_request
    assert run("logs", "-f", "one")[::2] == (75, f"one: Running\n{UNKNOWN}")


def test_follow_without_permission_to_watch_stops_watching(
    api: TorchrunApi, run: Run, ends: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logs, "_WATCH_DELAY_SECONDS", 0.1)
    api.refused.add(("GET", JOBS))
    ends(None, watched=False)
    remove = api.on_log

    def refused_often(pod: str) -> None:
        until(lambda: sum(path == JOBS for _, path, _ in api.requests) == 2)
        remove(pod)

    api.on_log = refused_often
    assert run("logs", "-f", "one") == (75, "trained\n", f"one: Running\n{UNKNOWN}")
    assert sum(path == JOBS for _, path, _ in api.requests) == 2
