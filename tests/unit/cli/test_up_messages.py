"""Messages of `up` beyond the engine's: pools that a run holds, settings that reach nobody, a run without its Job."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from trainyard.cli import commands, follow, pool_drift
from trainyard.cli.follow import Follower, FollowError, JobGoneError
from trainyard.cli.pool_drift import NODE_POOL, read_removal_waits, removal_waits, removed_pools
from trainyard.cli.runs import STARTED_RUN, deleted_job_message, read_changed_settings
from trainyard.k8s import names
from trainyard.k8s.client import ApiError


def pool(name: str) -> dict[str, Any]:
    return {"type": NODE_POOL, "urn": name, "inputs": {"metadata": {"name": name}}}


def test_pool_of_the_state_that_the_stack_file_lacks_is_removed() -> None:
    state = {"resources": [{"type": "pulumi:pulumi:Stack"}, pool("small"), pool("large")]}
    assert removed_pools(state, {"trainyard:pools": [{"name": "large"}, {"name": "new"}]}) == ["small"]
    assert removed_pools({}, {"trainyard:pools": [{"name": "large"}]}) == []


def node(name: str, of: str) -> dict[str, Any]:
    return {"metadata": {"name": name, "labels": {names.LABEL_NODEPOOL: of}}}


def pod(name: str, on: str, *, held: bool = True, phase: str = "Running") -> dict[str, Any]:
    annotations = {names.DO_NOT_DISRUPT: "true"} if held else None
    return {
        "metadata": {"name": name, "namespace": "training", "annotations": annotations},
        "spec": {"nodeName": on},
        "status": {"phase": phase},
    }


def test_removed_pool_names_the_pods_that_hold_its_nodes() -> None:
    nodes = [node("a", "small"), node("b", "small"), node("c", "large")]
    pods = [pod(f"train-r1-worker-{index}", "a") for index in range(5)]
    pods += [pod("other", "c"), pod("agent", "b", held=False), pod("ended", "b", phase="Succeeded")]
    (said,) = removal_waits("small", nodes, pods)
    assert "training/train-r1-worker-0" in said
    assert "and 2 more" in said
    assert "other" not in said
    assert removal_waits("large", [node("c", "large")], [pod("agent", "c", held=False)]) == []


def test_removed_pool_names_the_pods_that_wait_for_its_nodes() -> None:
    """Placeholders of a run or a TorchrunJob that has no node yet."""
    waiting = {**pod("vit-hold-0", ""), "status": {"phase": "Pending"}}
    waiting["spec"] = {"nodeSelector": {names.LABEL_NODEPOOL: "small"}}
    elsewhere = {**waiting, "metadata": {"name": "other", "namespace": "training"}}
    elsewhere["spec"] = {"nodeSelector": {names.LABEL_NODEPOOL: "large"}}
    (said,) = removal_waits("small", [], [waiting, elsewhere])
    assert "training/vit-hold-0 wait" in said
    assert "other" not in said


def queue(name: str, of: str) -> dict[str, Any]:
    return {"metadata": {"name": name, "namespace": "ml"}, "spec": {"scheduling": {"pool": of}}}


class Answers:
    """The API of a cluster, as the client's classes ask it."""

    def __init__(self, *queues: dict[str, Any], known: bool = True) -> None:
        self.queues, self.known = list(queues), known

    def list_objects(self, path: str) -> Any:
        if path != pool_drift.QUEUES:
            return []
        if not self.known:
            raise missing(path)
        return self.queues


def missing(path: str) -> ApiError:
    return ApiError("GET", path, 404, "NotFound", "")


def test_removed_pool_names_queues_that_are_not_of_the_stack_file() -> None:
    metadata = {"name": "own", "namespace": "ml"}
    state = {"resources": [{"type": pool_drift.QUEUE_TYPE, "inputs": {"metadata": metadata}}]}
    there = Answers(queue("own", "small"), queue("theirs", "small"), queue("else", "large"))
    (said,) = read_removal_waits(there, ["small"], state)
    assert "TorchrunQueue ml/theirs" in said
    assert read_removal_waits(Answers(known=False), ["small"], state) == []


def test_changed_settings_are_read_from_state() -> None:
    def state(late: str) -> dict[str, Any]:
        return {"resources": [{"type": STARTED_RUN, "inputs": {"runId": "r1", "late": late}}]}

    assert read_changed_settings(state("run r1: message")) == "run r1: message"
    assert read_changed_settings(state("")) is None
    assert read_changed_settings({}) is None


def test_run_with_deleted_job_differs_from_other_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    def request(_method: str, path: str) -> None:
        raise missing(path)

    client = SimpleNamespace(request=request)
    monkeypatch.setattr(follow.kubeconfigs, "connect", lambda *_words: (client, ""))
    follower = Follower(Path("kubeconfig"), print)
    with pytest.raises(JobGoneError):
        follower.follow("training", "launch-r2")
    assert issubclass(JobGoneError, FollowError)


def test_up_of_a_run_without_its_job_says_what_to_do_and_succeeds(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    outputs = {"launcherJobName": "launch-r2", "runId": "r2", "trainingNamespace": "training"}

    def gone(*_words: Any) -> int:
        raise JobGoneError("gone")

    stack = SimpleNamespace(name="dev", cloud="aws", outputs=lambda: outputs, deployment=dict)
    monkeypatch.setattr(commands.aws_commands, "up", lambda _stack: stack)
    monkeypatch.setattr(commands, "follow_run", gone)
    assert commands.up("dev", "aws") == 0
    *_, line = capsys.readouterr().out.splitlines()
    assert line == deleted_job_message("r2", "launch-r2", "training")
    assert "trainyard:training.runId" in line
