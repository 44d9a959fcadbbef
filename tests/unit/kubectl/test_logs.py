"""`logs`: of pods, from the bucket, from the job's status."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.unit.kubectl.conftest import JOBS, PODS, Run, TorchrunApi, only_line
from tests.unit.launcher.api_history import Object
from tests.unit.launcher.api_server import status
from trainyard.kubectl import logs
from trainyard.kubectl.logs import log_container
from trainyard.operator import names as n
from trainyard.operator.names import LABEL_INDEX

KEPT = {
    **{"attempt": 0, "nodeRank": 1, "rank": 9, "pod": "one-0-1-abcde", "node": "ip-10-0-0-7"},
    **{"exitCode": 137, "meaning": "SIGKILL, often out of memory", "error": "FileNotFoundError: 'nope'"},
    "logTail": "epoch 1\nFileNotFoundError: 'nope'",
}


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "_DRAIN_SECONDS", 0.1)


def failed(api: TorchrunApi) -> Object:
    job = api.job("one", phase="Failed")
    job["status"] |= {"message": "worker failed", "nodes": 2, "firstFailure": KEPT}
    return job


def test_endless_log_hides_neither_restart_nor_end(api: TorchrunApi, run: Run) -> None:
    """torchrun of rank 0 waits in its exit barrier, and then for its pod's grace period."""
    job = api.job("one", phase="Running")
    first = api.worker("one-0-0")["metadata"]["name"]
    never = threading.Event()

    def blocked() -> Iterator[bytes | None]:
        yield b"2026-01-01T00:00:00Z begins\n"
        restarted = {"attempt": 0, "reason": "WorkerFailed", "message": "worker 1 failed"}
        job["status"] |= {"attempts": [restarted], "phase": "Provisioning"}
        api.worker("one-1-0", **{n.LABEL_ATTEMPT: "1"})
        never.wait(20)

    def intercept(_method: str, target: str) -> Any:
        if "/one-1-0/log" in target:
            job["status"] |= {"phase": "Failed", "exitCode": 9, "message": "worker 1 failed again"}
        return blocked() if f"/{first}/log" in target else None

    api.intercept = intercept
    try:
        result, out, err = run("logs", "-f", "one")
    finally:
        never.set()
    assert (result, out) == (9, "begins\n")
    reported = ["one: Restarting: worker 1 failed", "one: Provisioning", "one: Failed: worker 1 failed again"]
    assert err.splitlines()[-3:] == reported


def test_follow_after_submit_does_not_ask_for_the_workspace(
    api: TorchrunApi, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first status is from before the workspace arrived."""
    waits = {"phase": "Pending", "reason": n.REASON_WAITING_FOR_WORKSPACE, "message": "run sync"}
    job = api.job("one", phase="Pending")
    job["status"] |= waits
    reads: list[str] = []

    def intercept(_method: str, target: str) -> None:
        reads.append(target)
        if len(reads) == 20:
            job["status"] |= {"phase": "Succeeded", "reason": "", "message": "done"}

    api.intercept = intercept
    assert run("logs", "-f", "one") == (0, "", "one: Succeeded: done\n")
    job["status"] |= waits
    reads.clear()
    monkeypatch.setattr(logs, "_SETTLE_SECONDS", 0.0)
    assert "one: Pending: run sync" in run("logs", "-f", "one")[2]


@pytest.mark.parametrize(
    "words",
    [(), ("--node-rank", "1"), ("--attempt", "0"), ("--node-rank", "1", "--attempt", "0"), ("--all",)],
)
def test_the_last_lines_are_shown_after_the_pod_is_gone(
    api: TorchrunApi, run: Run, words: tuple[str, ...]
) -> None:
    failed(api)
    result, out, err = run("logs", "one", *words)
    prefix = "[node 1] " if "--all" in words else ""
    assert (result, out) == (0, "".join(f"{prefix}{line}\n" for line in KEPT["logTail"].splitlines()))
    assert "pod one-0-1-abcde: is gone" in only_line(err)
    assert run("logs", "one", "--tail", "1", *words)[1] == f"{prefix}FileNotFoundError: 'nope'\n"


@pytest.mark.parametrize("words", [(), ("--node-rank", "1"), ("--all",)])
def test_follow_of_ended_job_shows_the_last_lines(api: TorchrunApi, run: Run, words: tuple[str, ...]) -> None:
    failed(api)
    out, err = run("logs", "-f", "one", *words)[1:]
    assert out.replace("[node 1] ", "") == KEPT["logTail"] + "\n"
    assert "pod one-0-1-abcde: is gone" in err


def test_last_lines_are_shown_if_the_node_is_gone(api: TorchrunApi, run: Run) -> None:
    failed(api)
    api.worker("one-0-1-abcde", "terminated", **{LABEL_INDEX: "1"})
    gone = status(404, "NotFound", 'nodes "x" not found')
    api.intercept = lambda _, target: gone if "/log" in target else None
    assert run("logs", "one", "--node-rank", "1")[:2] == (0, KEPT["logTail"] + "\n")


def test_logs_of_a_job_without_node_0_show_the_first_failure(api: TorchrunApi, run: Run) -> None:
    failed(api)
    api.worker("one-0-1-abcde", "terminated", **{LABEL_INDEX: "1"})
    api.logs["one-0-1-abcde"] = [b"epoch 1\nnope\n"]
    result, out, err = run("logs", "one")
    assert (result, out) == (0, "epoch 1\nnope\n")
    assert "node 0 has no pod now" in only_line(err)
    api.logs["one-0-1-abcde"] = [b"epoch 1\nnope\n"]
    result, out, err = run("logs", "one", "--all")
    assert (result, out) == (0, "[node 1] epoch 1\n[node 1] nope\n")
    assert only_line(err).endswith("their logs with them: 0")


@pytest.mark.parametrize("words", [("--node-rank", "0"), ("--attempt", "1")])
def test_logs_of_a_missing_worker_show_no_other(api: TorchrunApi, run: Run, words: tuple[str, ...]) -> None:
    failed(api)
    result, out, err = run("logs", "one", *words)
    assert (result, out) == (66, "")
    assert "its phase is Failed: worker failed. Its log was deleted with its pod" in only_line(err)


def test_log_that_is_answered_late_is_followed(api: TorchrunApi, run: Run) -> None:
    api.job("one", phase="Succeeded")
    for node in range(2):
        name = api.worker(f"one-0-{node}", "terminated", **{LABEL_INDEX: str(node)})["metadata"]["name"]
        api.logs[name] = [b"2026-01-01T00:00:00Z a\n"]
    api.intercept = lambda _, target: time.sleep(5 * logs._DRAIN_SECONDS * ("one-0-0/log" in target))
    result, out, _ = run("logs", "-f", "one", "--all")
    assert (result, sorted(out.splitlines())) == (0, ["[node 0] a", "[node 1] a"])


@pytest.mark.parametrize("words", [("logs", "one", "--all"), ("logs", "-f", "one", "--all")])
def test_all_nodes_are_shown_with_their_numbers(api: TorchrunApi, run: Run, words: tuple[str, ...]) -> None:
    api.job("one", phase="Succeeded")
    stamp = "2026-01-01T00:00:00Z " if "-f" in words else ""
    for node in range(3):
        name = api.worker(f"one-0-{node}", "terminated", **{LABEL_INDEX: str(node)})["metadata"]["name"]
        api.logs[name] = [f"{stamp}a\n{stamp}b\n".encode()]
    result, out, _ = run(*words)
    assert result == 0
    assert sorted(out.splitlines()) == [f"[node {node}] {line}" for node in range(3) for line in "ab"]


def test_status_names_the_first_failure(api: TorchrunApi, run: Run) -> None:
    failed(api)
    shown = dict(line.split(":", 1) for line in run("status", "one")[1].splitlines() if ":" in line)
    assert shown["First failure"].strip() == (
        "rank 9, node rank 1, attempt 0, pod one-0-1-abcde on node ip-10-0-0-7, "
        "exit code 137 (SIGKILL, often out of memory)"
    )
    assert shown["Error"].strip() == KEPT["error"]
    assert shown["Log"].strip() == "kubectl torchrun logs one -n team --node-rank 1 --attempt 0"
    assert api.objects[f"{JOBS}/one"]["status"]["firstFailure"] == KEPT


NAME = "one-0-0-abcde"
SAID = f"pod {NAME}: worker did not start: init container workspace failed with exit code 3"


def worker(api: TorchrunApi, phase: str, **init: Any) -> Object:
    """A worker's pod whose init container `workspace` is in this state."""
    pod = api.worker(NAME, "waiting")
    pod["status"] |= {"phase": phase, "initContainerStatuses": [{"name": "workspace", **init}]}
    return pod


ENDED = {"terminated": {"exitCode": 3}}
AGAIN = {"state": {"waiting": {"reason": "CrashLoopBackOff"}}, "lastState": ENDED}


@pytest.mark.parametrize("init", [{"state": ENDED}, AGAIN])
def test_logs_shows_what_the_init_container_printed(api: TorchrunApi, run: Run, init: dict[str, Any]) -> None:
    api.job("one", phase="Failed")
    worker(api, "Failed", **init)
    api.logs[NAME] = [b"no such archive\n"]
    result, out, err = run("logs", "one", "--tail", "5")
    assert (result, out, only_line(err)) == (0, "no such archive\n", SAID)
    assert api.log_queries == [{"container": "workspace", "tailLines": "5"}]


def test_follow_shows_the_failed_start_once(api: TorchrunApi, run: Run) -> None:
    api.job("one", phase="Failed")["status"]["message"] = "worker 0 failed"
    worker(api, "Failed", state=ENDED)
    line = b"2026-01-01T00:00:00.1Z no such archive\n"
    api.on_log = lambda _: api.logs.update({NAME: [line]})
    result, out, err = run("logs", "-f", "one")
    assert (result, out) == (1, "no such archive\n")
    assert err.splitlines() == ["one: Failed: worker 0 failed", SAID]


def test_follow_continues_with_a_worker_that_starts_later(api: TorchrunApi, run: Run) -> None:
    api.job("one", phase="Provisioning")
    worker(api, "Pending", **AGAIN)
    first = b"2026-01-01T00:00:00.1Z not yet\n"

    def next_log(_pod: str) -> None:
        if len(api.log_queries) < 3:
            api.logs[NAME] = [first]
            return
        api.logs[NAME] = [b"2026-01-01T00:00:09Z trains\n"]
        api.objects[f"{PODS}/{NAME}"]["status"]["phase"] = "Succeeded"
        api.objects[f"{JOBS}/one"]["status"] = {"phase": "Succeeded"}
        time.sleep(5 * logs._DRAIN_SECONDS)  # the API server answers after the job's end was seen

    def begins(_method: str, path: str) -> None:
        if len(api.log_queries) == 2 and path.endswith("/pods"):
            statuses = api.objects[f"{PODS}/{NAME}"]["status"]["containerStatuses"]
            statuses[0]["state"] = {"running": {}}

    api.on_log, api.on_request = next_log, begins
    result, out, err = run("logs", "-f", "one")
    assert (result, out) == (0, "not yet\ntrains\n")
    assert err.count(SAID) == 1
    assert [query["container"] for query in api.log_queries] == ["workspace", "workspace", "torchrun"]


def test_logs_of_an_ended_pod_without_a_log_say_so(api: TorchrunApi, run: Run) -> None:
    api.job("one", phase="Failed")
    worker(api, "Failed", state={"waiting": {}})["status"]["message"] = "The node was low on memory."
    waits = status(400, "BadRequest", "waits")
    api.intercept = lambda _, target: waits if "/log" in target else None
    result, out, err = run("logs", "one")
    assert (result, out) == (69, "")
    assert only_line(err).endswith("has ended, and its worker has no log: The node was low on memory.")


@pytest.mark.parametrize(
    ("init", "state"),
    [
        (AGAIN, "running"),
        ({"state": {"terminated": {"exitCode": 0}}}, "waiting"),
        ({"state": {"running": {}}, "lastState": ENDED}, "waiting"),
        ({"state": {"waiting": {}}}, "waiting"),
    ],
)
def test_init_container_that_may_succeed_is_no_problem(init: dict[str, Any], state: str) -> None:
    containers = [{"name": n.WORKER_CONTAINER, "state": {state: {}}}]
    status = {"containerStatuses": containers, "initContainerStatuses": [{"name": "workspace", **init}]}
    assert log_container({"status": status}) == (n.WORKER_CONTAINER, "")


NO_SHELL = 'OCI runtime create failed: exec: "sh": executable file not found in $PATH: unknown'


@pytest.mark.parametrize(
    ("words", "reason"), [(("logs", "one"), "StartError"), (("logs", "-f", "one"), "ContainerCannotRun")]
)
def test_worker_that_can_not_start_shows_the_runtime_message(
    api: TorchrunApi, run: Run, words: tuple[str, ...], reason: str
) -> None:
    """As with `--env PATH=/nope`: its log is empty, and 128 alone says nothing."""
    api.job("one", phase="Failed")["status"]["exitCode"] = 128
    pod = api.worker(NAME, "terminated")
    pod["status"]["phase"] = "Failed"
    state = pod["status"]["containerStatuses"][0]["state"]
    state["terminated"] = {"exitCode": 128, "reason": reason, "message": f"{NO_SHELL}\n"}
    result, out, err = run(*words)
    assert (result, out) == (128 if "-f" in words else 0, "")
    assert err.splitlines()[-1] == f"pod {NAME}: worker did not start: {NO_SHELL} ({reason}), exit code 128"


def test_worker_with_exit_code_128_has_started(api: TorchrunApi, run: Run) -> None:
    api.job("one", phase="Failed")
    state = api.worker(NAME, "terminated")["status"]["containerStatuses"][0]["state"]
    state["terminated"] = {"exitCode": 128, "reason": "Error", "message": "fatal: not a git repository"}
    api.logs[NAME] = [b"fatal: not a git repository\n"]
    assert run("logs", "one") == (0, "fatal: not a git repository\n", "")


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
def made(api: TorchrunApi) -> list[Object]:
    """The pods that were made to read logs; a job with logs in its bucket is there."""
    api.queue(
        "q", image="i", nodeResources={"gpus": 8, "cpus": 8, "memory": "8Gi"}, podTemplate=TEMPLATE,
        storage={"workspace": {"bucket": "s3://code/torchrun"}},
    )  # fmt: skip
    job = api.job("one", phase=n.PHASE_FAILED, uid="u")
    job["status"] |= {"attempt": 2, "message": "it failed", "logs": {"url": URL, "image": "tools@sha256:0"}}
    return []


@pytest.fixture
def ends(api: TorchrunApi, made: list[Object], monkeypatch: pytest.MonkeyPatch) -> Ends:
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
    api: TorchrunApi, run: Run, made: list[Object], ends: Ends
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


def test_missing_pod_of_a_larger_earlier_attempt_is_named(api: TorchrunApi, run: Run) -> None:
    api.job("one", phase="Running")["status"] |= {"nodes": 1, "attempt": 1}
    name = api.worker("one-0-2", "terminated", **{LABEL_INDEX: "2"})["metadata"]["name"]
    api.logs[name] = [b"of node 2\n"]
    result, out, err = run("logs", "one", "--all", "--attempt", "0")
    assert (result, out) == (0, "[node 2] of node 2\n")
    assert only_line(err).endswith("their logs with them: 0, 1")


@pytest.mark.usefixtures("made")
def test_all_logs_of_a_larger_earlier_attempt_are_shown(api: TorchrunApi, run: Run, ends: Ends) -> None:
    api.objects[f"{JOBS}/one"]["status"]["nodes"] = 1
    name = api.worker("one-0-0", "terminated")["metadata"]["name"]
    api.logs[name] = [b"of node 0\n"]
    ends("Succeeded", framed(0, 0, b"again\n") + framed(0, 1, b"of node 1\n"))
    result, out, err = run("logs", "one", "--all", "--attempt", "0")
    assert (result, sorted(out.splitlines())) == (0, ["[node 0] of node 0", "[node 1] of node 1"]), err
    assert "their logs with them" not in err


@pytest.mark.parametrize(("words", "attempt"), [(("--attempt", "0"), "0"), (("--previous",), "1")])
def test_logs_of_an_earlier_attempt(
    run: Run, made: list[Object], ends: Ends, words: tuple[str, ...], attempt: str
) -> None:
    ends("Succeeded", framed(int(attempt), 0, b"x\n"))
    assert run("logs", "one", *words)[:2] == (0, "x\n")
    command = made[0]["spec"]["containers"][0]["command"]
    assert command[command.index("--attempt") + 1] == attempt


def test_following_a_job_that_is_over_shows_its_last_log(run: Run, made: list[Object], ends: Ends) -> None:
    ends("Succeeded", framed(2, 0, b"the end\n"))
    result, out, _ = run("logs", "-f", "one")
    assert (result, out) == (1, "the end\n")
    assert len(made) == 1


def test_log_that_cannot_be_read_says_why_and_what_to_do(
    api: TorchrunApi, run: Run, made: list[Object], ends: Ends
) -> None:
    ends("Failed", b"logs: s3://code/x has no log of this attempt and node. It has none.\n")
    result, _, err = run("logs", "one", "--attempt", "0")
    assert (result, "no log of this attempt" in err.splitlines()[-1]) == (66, True)
    api.refused.add(("POST", PODS))
    result, _, err = run("logs", "one", "--attempt", "1")
    assert result == 77
    assert "you may not create pods" in err
    assert f"aws s3 cp {URL}/attempt-1/node-0.log -" in err
    del api.objects[f"{JOBS}/one"]["status"]["logs"]
    assert "has no worker node 0 now" in run("logs", "one")[2]
    assert len(made) == 1


def test_broken_log_is_not_repeated_from_the_bucket(api: TorchrunApi, run: Run, ends: Ends) -> None:
    """The node is lost after the first line."""
    ends("Running", framed(0, 0, b"first\nsecond\n"))
    pod = api.worker(NAME)["metadata"]["name"]

    def broken() -> Iterator[bytes | None]:
        yield b"first\n"
        raise OSError

    api.intercept = lambda _, target: broken() if f"/{pod}/log" in target else None
    result, out, err = run("logs", "one")
    assert (result, out) == (69, "first\n")
    assert f"pod {pod}: its log ended after 1 lines" in err


def test_missing_node_of_a_running_job_had_no_log(api: TorchrunApi, run: Run) -> None:
    api.job("one", phase="Running", numNodes=4)["status"] |= {"nodes": 4, "attempt": 1}
    result, _, err = run("logs", "one", "--node-rank", "3")
    assert result == 66
    assert "was deleted with its pod" not in err
