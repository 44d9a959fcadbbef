"""Find the first failure of a gang in any order of reports, and report how a pod ended."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from launcher.manifests import stamp
from tests.unit.operator.api import Api
from tests.unit.operator.life import Life, Pooled
from tests.unit.operator.made import DIGEST, pod
from trainyard.kubectl import output
from trainyard.operator import names as n
from trainyard.operator.failures import FOLLOWING_SETTLE_SECONDS, SETTLE_SECONDS, TAIL_BYTES

NOW = Api().now
ERROR = "FileNotFoundError: [Errno 2] No such file or directory: '/data/nope.bin'"
# What torch 2.15 prints, without some lines of its own traceback.
SUMMARY = """E1126 16:39:57.046000 71 torch/distributed/elastic/multiprocessing/api.py:1002] failed (exitcode: {code})
Traceback (most recent call last):
  File "/usr/bin/torchrun", line 10, in <module>
torch.distributed.elastic.multiprocessing.errors.ChildFailedError: 
Root Cause (first observed failure):
[0]:
  time      : {time}
  host      : localhost
  rank      : {rank} (local_rank: {local})
  exitcode  : {code} (pid: 7155) 
"""
CAUSE = f"""[default0]:epoch 1
[default1]:[rank1]: Traceback (most recent call last):
[default1]:[rank1]:   File "/app/train.py", line 6, in <module>
[default1]:[rank1]:     open("/data/nope.bin")
[default1]:[rank1]: {ERROR}
"""
PEER = "RuntimeError: [/pytorch/gloo/transport/tcp/pair.cc:561] Connection closed by peer [10.0.0.1]:2442"
# tests/unit/launcher/test_errors.py has others.
FOLLOWING = [PEER, "torch.distributed.elastic.multiprocessing.api.SignalException: Process 77 got signal: 15"]


def summary(*, rank: int = 0, local: int = 0, code: int = 1, at: float = 0.0, zone: int = 0) -> str:
    """Return torchrun's summary of a process that failed `at` seconds after the start, in a time zone."""
    moment = datetime.fromtimestamp(NOW + at + 3600 * zone, UTC).strftime("%Y-%m-%d_%H:%M:%S")
    return SUMMARY.format(rank=rank, local=local, code=code, time=moment)


def said(error: str, *, rank: int = 0, local: int = 0, at: float = 0.0, zone: int = 0) -> str:
    """Return the termination message of a process that raised this error."""
    raised = f'Traceback (most recent call last):\n  File "/app/train.py", line 7, in <module>\n{error}\n'
    lines = "".join(f"[default{local}]:{line}\n" for line in raised.splitlines())
    return lines + summary(rank=rank, local=local, at=at, zone=zone)


class Gang:
    """A running job of two workers whose ends are reported one by one."""

    def __init__(self, **asked: Any) -> None:
        self.life = Life(asked).run()
        self.began = self.life.api.now
        for index, worker in enumerate(self.life.api.workers()):
            worker["metadata"]["labels"][n.LABEL_INDEX] = str(index)
            worker["metadata"]["stuck"] = True  # the Job controller's removal takes its time

    def ends(self, node: int, code: int, message: str, *, after: float = 0.0, **more: Any) -> None:
        """End the container of this node's worker `after` seconds after the start. Its pod goes on."""
        end = {"exitCode": code, "finishedAt": stamp(self.began + after), "message": message, **more}
        status = {"name": "torchrun", "state": {"terminated": {"reason": "Error", **end}}}
        pod = self.life.api.workers()[node]
        pod["status"] |= {"phase": "Running", "containerStatuses": [status]}
        self.life.api.touch(pod)

    def at(self, seconds: float) -> dict[str, Any]:
        """Return the status this many seconds after the start."""
        self.life.api.now = self.began + seconds
        self.life.reconcile()
        return self.life.status


@pytest.mark.parametrize("secondary", FOLLOWING)
@pytest.mark.parametrize("reported_first", [0, 1])
def test_failure_that_follows_does_not_hide_the_first(secondary: str, reported_first: int) -> None:
    gang = Gang()
    ends = {0: said(secondary, at=-1), 1: CAUSE + summary(rank=1, local=1)}
    gang.ends(reported_first, 1, ends[reported_first])
    gang.at(1)
    gang.ends(1 - reported_first, 1, ends[1 - reported_first], after=1)
    status = gang.at(2)
    found = status["firstFailure"]
    assert (found["nodeRank"], found["rank"], found["error"], found["attempt"]) == (1, 1, ERROR, 0)
    assert found["pod"] == gang.life.names("Pod")[1]
    message = status["lastRestart"]["message"]
    assert "node rank 1, rank 1" in message
    assert ERROR in message
    assert "kubectl torchrun logs vit -n team --node-rank 1 --attempt 0" in message
    assert message == status["attempts"][0]["message"]
    assert found["logTail"].splitlines()[-1] == ERROR
    assert "epoch 1" not in found["logTail"], "another process of the node"


@pytest.mark.parametrize("zone", [0, -8, 2])
def test_first_failure_of_two_causes_is_the_earlier_one(zone: int) -> None:
    """A container ends with its last process. torchrun's summary has the time of the first failure, in its own zone."""
    gang = Gang()
    gang.ends(0, 1, said("ValueError: late", at=3, zone=zone), after=3)
    gang.ends(1, 1, said("KeyError: 'early'", rank=1, at=1, zone=zone), after=3)
    assert gang.at(4)["firstFailure"]["error"] == "KeyError: 'early'"


@pytest.mark.parametrize(
    ("message", "patience"), [(said(ERROR), SETTLE_SECONDS), (said(PEER), FOLLOWING_SETTLE_SECONDS)]
)
def test_failed_worker_beside_running_ones_restarts_soon(message: str, patience: float) -> None:
    """Its peers may wait in torchrun's exit barrier for five minutes, and its own pod for a sidecar."""
    gang = Gang()
    gang.ends(1, 1, message)
    assert gang.at(1)["attempt"] == 0
    assert 0 < (gang.life.requeue_after or 0) <= patience
    assert gang.at(patience)["attempt"] == 1


@pytest.mark.parametrize("ahead", [-3600.0, 3600.0])
def test_failure_by_a_wrong_clock_restarts_at_once(ahead: float) -> None:
    gang = Gang()
    gang.ends(1, 1, said(ERROR), after=ahead)
    assert gang.at(0)["attempt"] == 1


@pytest.mark.parametrize(
    ("code", "reason", "shown"),
    [
        (137, "Error", "SIGKILL, often out of memory"),
        (137, "OOMKilled", "OOMKilled: out of memory"),
        (139, "Error", "SIGSEGV"),
        (127, "Error", "command not found"),
    ],
)
def test_exit_code_is_reported_with_its_meaning(code: int, reason: str, shown: str) -> None:
    gang = Gang(maxRestarts=0)
    gang.ends(1, code, "", reason=reason)
    status = gang.at(SETTLE_SECONDS)
    assert status["phase"] == n.PHASE_FAILED
    assert f"ended with exit code {code} ({shown})" in status["message"]
    assert (status["firstFailure"]["exitCode"], status["firstFailure"]["meaning"]) == (code, shown)


def test_end_after_a_deletion_is_a_consequence() -> None:
    """The Job controller deletes the other pods. Their ends are no cause, even if the first failure has no message."""
    gang = Gang()
    gang.ends(1, 1, "")
    gang.at(1)
    other = gang.life.api.workers()[0]
    other["metadata"] |= {"deletionTimestamp": stamp(gang.began + 46), "deletionGracePeriodSeconds": 45}
    gang.ends(0, 1, said("ValueError: while it was ended", at=2), after=3)
    assert gang.at(4)["firstFailure"]["nodeRank"] == 1


def test_summary_with_an_invalid_time_keeps_the_failure() -> None:
    gang = Gang(maxRestarts=0)
    gang.ends(1, 1, SUMMARY.format(rank=9, local=1, code=1, time="2024-99-99_99:99:99"))
    assert gang.at(60.0)["firstFailure"]["rank"] == 9


def test_log_of_the_agent_is_no_error() -> None:
    gang = Gang()
    warned = "W1126 16:59:04.774000 26634 torch/distributed/run.py:982] Setting OMP_NUM_THREADS, or it failed"
    gang.ends(1, 1, f"{warned}\n{summary(rank=1)}")
    assert "error" not in gang.at(FOLLOWING_SETTLE_SECONDS)["firstFailure"]


def test_disrupted_worker_sorts_before_its_peers() -> None:
    gang = Gang()
    lost = gang.life.api.workers()[1]
    disruption = {"type": "DisruptionTarget", "status": "True", "reason": "DeletionByTaintManager"}
    lost["status"]["conditions"] = [disruption]
    gang.life.api.delete("Pod", lost["metadata"]["name"])
    gang.ends(0, 1, said(PEER))
    status = gang.at(FOLLOWING_SETTLE_SECONDS)
    assert "is lost (DeletionByTaintManager)" in status["lastRestart"]["message"]
    assert "firstFailure" not in status


def test_status_keeps_the_last_attempts_and_their_causes() -> None:
    life = Life({"maxRestarts": 20})
    for _ in range(10):
        life.run()
        life.fail(7, only=1)
    assert [each["attempt"] for each in life.status["attempts"]] == list(range(2, 10))
    assert all("exit code 7" in each["message"] for each in life.status["attempts"])


def test_log_tail_of_a_long_log_has_its_last_whole_lines() -> None:
    gang = Gang()
    gang.ends(1, 3, "".join(f"line {number} é\n" for number in range(2000)))
    tail = gang.at(SETTLE_SECONDS)["firstFailure"]["logTail"]
    assert len(tail.encode()) <= TAIL_BYTES
    assert tail.splitlines()[0].startswith("line ")
    assert tail.splitlines()[-1] == "line 1999 é"


def ended(name: str, code: int, message: str = "", reason: str = "Error") -> dict[str, Any]:
    said = {"message": message} if message else {}
    return {"name": name, "state": {"terminated": {"exitCode": code, "reason": reason, **said}}}


def failed(*before: dict[str, Any], own: dict[str, Any] | None = None, **changes: Any) -> Life:
    """Return a job whose first worker failed with these init containers."""
    life = Life({"restartPolicy": "Never", **changes}).begin()
    first = life.api.objects["Pod", life.names("Pod")[0]]
    first["spec"]["initContainers"] = [{"name": "sidecar", "restartPolicy": "Always"}]
    waiting = {"name": n.WORKER_CONTAINER, "state": {"waiting": {"reason": "PodInitializing"}}}
    statuses = {"initContainerStatuses": list(before), "containerStatuses": [own or waiting]}
    first["status"] = {"phase": "Failed", **statuses}
    life.settle()
    return life


LAST = f"workspace: {DIGEST} did not come within 1800 s: nothing there"
LOG = f"INFO waiting for the workspace: nothing there\n{LAST}\n"
INIT = "did not start: its init container"
NO_SHELL = 'unable to start container process: exec: "sh": executable file not found in $PATH: unknown'
LONG = f"{'failed: ' * 1000}not a directory"
TORCHRUN = n.WORKER_CONTAINER


@pytest.mark.parametrize(("before", "own", "code", "reported"), [
    ([ended(n.FETCH_CONTAINER, 1, LOG)], None, 1, f"{INIT} workspace ended with exit code 1 ({LAST})"),
    ([ended("mine", 3)], None, 3, f"{INIT} mine ended with exit code 3 (Error)"),
    # A sidecar ends with the pod, and is no failure.
    ([ended("sidecar", 143), ended("mine", 1, "no disk")], None, 1, f"{INIT} mine ended with exit code 1 (no disk)"),
    ([ended("sidecar", 143)], ended(TORCHRUN, 9), 9, "ended with exit code 9 (Error)"),
    # The code 128 of containerd says nothing, and there is no log. The cause is at the end of the error.
    *(
        ([], ended(TORCHRUN, 128, *end), 128, reported)
        for reason in ("StartError", "ContainerCannotRun")
        for end, reported in (
            ((f"first\n{NO_SHELL}\n", reason), f"did not start: {NO_SHELL} ({reason}, exit code 128)"),
            ((LONG, reason), f"did not start: {LONG[-300:]} ({reason}, exit code 128)"),
            (("", reason), f"ended with exit code 128 ({reason})"),
        )
    ),
    ([ended("mine", 128, LONG, "StartError")], None, 128, f"{INIT} mine ended with exit code 128 ({LONG[-300:]})"),
    # The command itself may exit with 128.
    ([], ended(TORCHRUN, 128, "fatal: no repository"), 128, "ended with exit code 128 (Error): fatal: no repository"),
])  # fmt: skip
def test_container_that_failed_is_reported_with_its_error(
    before: list[dict[str, Any]], own: dict[str, Any] | None, code: int, reported: str
) -> None:
    life = failed(*before, own=own)
    assert life.shown("phase", "reason", "exitCode") == ("Failed", n.REASON_WORKER_FAILED, code)
    assert life.message.startswith("worker vit-0-0-")
    assert life.message.partition(" on node n0 ")[2] == reported


def test_exit_code_of_an_init_container_is_not_final() -> None:
    """An exit code 2 of the command is final, because it means a usage error."""
    assert failed(ended("mine", 2), restartPolicy="OnFailure").status["restarts"] == 1
    final = failed(ended("sidecar", 2), own=ended(TORCHRUN, 2), restartPolicy="OnFailure")
    assert final.state == ("Failed", n.REASON_NOT_RESTARTABLE)


@pytest.mark.parametrize(("reported", "shown"), [
    ("3", 3), ("255", 255), ("256", 1), ("999", 1), ("0", 1), ("-9", 137), ("-64", 192), ("-65", 1), ("-200", 1),
])  # fmt: skip
def test_exit_code_that_no_process_has_is_ignored(reported: str, shown: int) -> None:
    """The message may be from the script. The status allows 0 to 255 only, so the job could never finish."""
    said = f"Root Cause (first observed failure):\n[0]:\n  exitcode  : {reported} (pid: 7) \n"
    assert failed(own=ended(TORCHRUN, 1, said)).shown("phase", "exitCode") == ("Failed", shown)


def test_tools_containers_fall_back_to_logs_on_error() -> None:
    tools = pod({"workspace": {"digest": DIGEST, "sizeBytes": 3}})["spec"]["initContainers"]
    assert {each["terminationMessagePolicy"] for each in tools} == {"FallbackToLogsOnError"}


@pytest.mark.parametrize(
    ("life", "once"),
    [
        (lambda: Life(queued=False), ["TorchrunQueue research is not in namespace team"]),
        (Pooled, ["0 of 2 nodes are ready: 2 nodes are not launched yet"]),
        (lambda: Life().run(), ["2 of 2 workers are ready"]),
        (lambda: failed(own=ended(TORCHRUN, 7, ERROR)), [ERROR, "exit code 7"]),
        (lambda: Life({"suspend": True}), ["the job has no workers"]),
        (lambda: Life({"command": "torchrun --standalone x.py"}), ["torchrun has --standalone"]),
    ],
    ids=["missing queue", "missing nodes", "running", "failed", "suspended", "refused"],
)
def test_describe_shows_each_message_of_a_status_once(life: Callable[[], Life], once: list[str]) -> None:
    a = life().begin()
    shown = output.status(a.job, datetime.fromtimestamp(a.api.now, UTC))
    assert [shown.count(each) for each in once] == [1] * len(once), shown
