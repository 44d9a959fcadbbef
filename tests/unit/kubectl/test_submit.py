"""`submit` and the verbs that change a job, against an API server."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.unit.emulator import Cloud
from tests.unit.kubectl.conftest import (
    JOBS,
    PODS,
    QUEUES,
    SUBMIT,
    Clock,
    Receiver,
    Run,
    TorchrunApi,
    only_line,
    sent,
)
from tests.unit.launcher.api_history import Object
from tests.unit.launcher.api_server import status
from trainyard.k8s.client import RetryPolicy
from trainyard.kubectl import upload
from trainyard.kubectl.cluster import Cluster
from trainyard.kubectl.output import PluginError
from trainyard.kubectl.submit import MARK
from trainyard.operator import names as n
from trainyard.workspace.bucket import parse_url
from trainyard.workspace.sync_pod import Store

ROOT = Path(__file__).parents[3]


def test_submit_sends_the_directory_and_makes_the_job(api: TorchrunApi, run: Run, pod: Store) -> None:
    words = (*SUBMIT, "--env", "A=1", "--env", "HERE", "python train.py --epochs 10")
    result, out, err = run(*words, HERE="x $(y) $$")
    assert (result, out) == (0, "torchrunjob.torchrun.ai/one created\n")
    spec = api.objects[f"{JOBS}/one"]["spec"]
    digest = spec["workspace"]["digest"]
    assert spec == {
        "jobQueue": "q",
        "numGPUs": 8,
        "command": "python train.py --epochs 10",
        "env": [{"name": "A", "value": "1"}, {"name": "HERE", "value": "x $$(y) $$$$"}],
        "workspace": {"digest": digest, "sizeBytes": pod.archive(digest).stat().st_size},
    }
    assert only_line(err).endswith(" sent")
    result, _, err = run("sync", "one")
    assert "unchanged, its " in only_line(err)


@pytest.mark.usefixtures("clock")
def test_submit_with_a_broken_upload_resumes_it(
    api: TorchrunApi, run: Run, tmp_path: Path, code: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (code / "data").write_bytes(os.urandom(300_000))
    api.pod("one-sync-0", n.SYNC_CONTAINER)
    cuts = [True, False]

    def execute(_cluster: Cluster, _pod: str, _container: str, command: list[str]) -> Receiver:
        return Receiver(tmp_path / "store", command, cut=cuts.pop(0))

    monkeypatch.setattr(upload, "execute", execute)
    result, _, err = run(*SUBMIT, "x")
    assert result == 0, err
    assert "continuing" in err
    assert not cuts
    digest = api.objects[f"{JOBS}/one"]["spec"]["workspace"]["digest"]
    assert Store(tmp_path / "store").archive(digest).exists()


def test_a_job_whose_workspace_cant_be_sent_is_not_left(
    api: TorchrunApi, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upload, "WAIT_SECONDS", 0.0)
    result, out, err = run(*SUBMIT, "x")
    assert (result, out) == (69, "")
    assert "pod one-sync-0: receives the workspace, and does not exist after 0 s; job one: Pending" in err
    assert "job one: was deleted" in err
    assert f"{JOBS}/one" not in api.objects


@pytest.mark.usefixtures("clock")
def test_waiting_for_a_sync_pod_prints_the_reason_once(
    api: TorchrunApi, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upload, "PATIENCE_SECONDS", 0.0)
    monkeypatch.setattr(upload, "WAIT_SECONDS", 2.0)
    cluster = Cluster.connect(str(api.kubeconfig(tmp_path / "kubeconfig")), None, None)
    api.job("one", phase="Pending")["status"]["message"] = "queue q: spec.image: is empty"
    with pytest.raises(PluginError):
        upload.wait_for_sync_pod(cluster, "one")
    waits = "waiting for pod one-sync-0, which receives the workspace\n"
    assert capfd.readouterr().err == waits + "one: Pending: queue q: spec.image: is empty\n"
    condition = {"type": "PodScheduled", "status": "False", "message": "0/1 nodes are available: 1 no. more"}
    api.pod("one-sync-0", n.SYNC_CONTAINER)["status"] = {"conditions": [condition]}
    with pytest.raises(PluginError):
        upload.wait_for_sync_pod(cluster, "one")
    said = "pod one-sync-0 waits for a node: 0/1 nodes are available: 1 no\n"
    assert capfd.readouterr().err == waits + said


def test_submit_to_an_unknown_queue_suggests_a_similar_one(api: TorchrunApi, run: Run) -> None:
    def reported() -> str:
        result, _, err = run("submit", "--queue", "cpu", "--gpus", "0", "--no-workspace", "x")
        assert result == 64
        return only_line(err)

    api.remove(f"{QUEUES}/q")
    assert "--queue: queue cpu does not exist in namespace team; the namespace has none" in reported()
    for name in ("a", "b"):
        api.queue(name)
    assert "the namespace has a, b; `kubectl torchrun queues -A" in reported()
    api.queue("cpus")
    assert "did you mean cpus?" in reported()
    api.put(QUEUES.replace("/team/", "/other/") + "/cpu", {"metadata": {"name": "cpu", "namespace": "other"}})
    assert "it is in other: submit with -n other" in reported()
    api.refused.add(("GET", f"/apis/{n.API_VERSION}/{n.QUEUE_PLURAL}"))
    assert "did you mean cpus?" in reported()
    assert not [path for path in api.objects if path.startswith(JOBS)]


SMALL = {"gpus": 1, "cpus": "10", "memory": "40Gi"}
POOLED: dict[str, Any] = {"image": "i:1", "nodeResources": SMALL, "scheduling": {"pool": "g5"}}
LARGE = {**POOLED, "nodeResources": {**SMALL, "memory": "200Gi"}}
NODE = {"nvidia.com/gpu": "4", "cpu": "48", "memory": "192Gi", "vpc.amazonaws.com/efa": "1"}
HAS: dict[str, Any] = {
    **{"name": "g5", "found": True, "declared": True, "nodeResources": NODE},
    "limits": {"nvidia.com/gpu": "16"},
}
GANG: dict[str, Any] = {
    **{"image": "i:1", "kaiQueue": "team", "nodeResources": {**SMALL, "gpus": 4}},
    "scheduling": {"scheduler": n.KAI_SCHEDULER},
}
LIMITED = {"name": "team", "limits": {"gpu": {"queue": "org", "limit": 8}}}
RESERVATION = "has no active capacity reservation"


@pytest.mark.parametrize(
    ("queue", "status", "gpus", "refusal", "warning"),
    [
        (GANG, {}, "7", "queue q: spec.numGPUs is 7, which does not spread evenly over 2 nodes; it must", ""),
        (POOLED, {"pool": HAS}, "9", "NodePool g5 has at most 4 nodes (its limit is 16 nvidia.com/gpu)", ""),
        (POOLED, {"pool": {"name": "g5", "found": False}}, "1", "there is no NodePool g5", ""),
        (LARGE, {"pool": HAS}, "1", "a worker requests 200Gi of memory, but a node of pool g5 has 192Gi", ""),
        (POOLED, {"pool": HAS}, "4", "", ""),
        (POOLED, {"pool": {**HAS, "name": "another"}}, "9", "", ""),
        (POOLED, {"pool": {**HAS, "reservations": 0}}, "1", "", RESERVATION),
        (GANG, {"kai": LIMITED}, "12", "12 GPUs, but the limit of KAI Scheduler's queue org is 8 GPUs", ""),
        (GANG, {"kai": LIMITED}, "8", "", ""),
        (GANG, {"kai": {**LIMITED, "name": "before"}}, "12", "", ""),
    ],
)
def test_submit_that_never_fits_is_refused(
    api: TorchrunApi, run: Run, queue: Object, status: Object, gpus: str, refusal: str, warning: str
) -> None:
    api.put(f"{QUEUES}/q", {**api.queue("q", **queue), "status": status})
    result, _, err = run(*SUBMIT, "--gpus", gpus, "--no-workspace", "x")
    assert (result, f"{JOBS}/one" in api.objects) == ((64, False) if refusal else (0, True)), err
    assert refusal in err
    assert (RESERVATION in err) == bool(warning)


def test_a_dry_run_prints_the_job_and_nothing_else(run: Run, api: TorchrunApi) -> None:
    words = ("submit", "--queue", "q", "--gpus", "16", "--min", "1", "--max", "2", "--dry-run", "-o", "yaml")
    result, out, err = run(*words, "python", "a b")
    assert (result, err) == (0, "")
    job = yaml.safe_load(out)
    assert job["metadata"]["namespace"] == "team"
    assert job["metadata"]["name"].startswith("my-project-")
    assert job["spec"]["elastic"] == {"minNodes": 1, "maxNodes": 2}
    assert job["spec"]["command"] == "python 'a b'"
    assert job["spec"]["workspace"]["digest"].startswith("sha256:")
    assert not api.requests


def test_suspend_resume_and_cancel(api: TorchrunApi, run: Run) -> None:
    api.job("a", phase="Running")
    api.job("b", phase="Succeeded")
    result, out, err = run("suspend", "a", "b")
    assert (result, out) == (64, "torchrunjob.torchrun.ai/a suspended\n")
    assert "job b: has already succeeded" in only_line(err)
    assert api.objects[f"{JOBS}/a"]["spec"]["suspend"] is True
    assert run("suspend", "a")[1].endswith("suspended already\n")
    assert run("resume", "a")[:2] == (0, "torchrunjob.torchrun.ai/a resumed\n")
    assert api.objects[f"{JOBS}/a"]["spec"]["suspend"] is False
    assert run("resume", "a", "-o", "name")[1] == "torchrunjob.torchrun.ai/a\n"
    assert run("cancel", "torchrunjob.torchrun.ai/a", "torchrunjob/b")[0] == 0
    assert api.names(JOBS) == []


def test_verb_changes_a_repeated_job_once(api: TorchrunApi, run: Run) -> None:
    api.job("a")
    for verb in ("suspend", "resume", "cancel"):
        result, out, err = run(verb, "a", "torchrunjob/a", "-o", "name")
        assert (result, out, err) == (0, "torchrunjob.torchrun.ai/a\n", "")


@pytest.mark.parametrize(
    ("code", "message", "result", "said"),
    [
        (404, "not found", 66, "job one: is not in namespace team; `kubectl torchrun list -A"),
        (409, "Precondition failed: UID in precondition: a, UID in", 66, "job one: was replaced by another"),
        (409, "the object has been modified", 64, "job: the API server refuses it: the object has been mod"),
    ],
)
def test_change_of_a_job_that_is_gone_is_reported(
    api: TorchrunApi, run: Run, code: int, message: str, result: int, said: str
) -> None:
    api.job("one")
    answer = status(code, "", message)
    api.intercept = lambda method, _: answer if method == "PATCH" else None
    found, out, err = run("suspend", "one")
    assert (found, out) == (result, "")
    assert only_line(err).startswith(f"kubectl torchrun: {said}")


def test_sync_sends_the_change_and_patches_the_job(
    api: TorchrunApi, run: Run, pod: Store, code: Path
) -> None:
    api.job("one", phase="Running", workspace={"digest": "sha256:" + "0" * 64, "sizeBytes": 1})
    result, out, _ = run("sync", "one", "--restart")
    assert (result, out) == (0, "torchrunjob.torchrun.ai/one synced\n")
    now = api.objects[f"{JOBS}/one"]["spec"]["workspace"]
    assert (pod.archive(now["digest"]).exists(), now["restartOnSync"]) == (True, True)
    (code / "train.py").write_text("print(2)\n")
    assert run("sync", "one")[0] == 0
    later = api.objects[f"{JOBS}/one"]["spec"]["workspace"]
    assert later["digest"] != now["digest"]
    assert later["restartOnSync"] is False, "--restart is for one sync"
    assert pod.archive(now["digest"]).exists(), "the job named it while the other one was sent"
    api.job("two", phase="Failed", workspace=now)
    assert "job two: has failed" in run("sync", "two")[2]
    api.job("three", phase="Running")
    assert "job three: was submitted without a workspace" in run("sync", "three")[2]


def test_a_suspended_job_is_not_waited_for(api: TorchrunApi, run: Run, pod: Store) -> None:
    sent = {"digest": "sha256:" + "0" * 64, "sizeBytes": 1}
    there = api.job("one", phase="Suspended", suspend=True, workspace=sent)
    api.remove(f"{PODS}/one-sync-0")
    result, out, err = run("sync", "one")
    assert (result, out) == (64, "")
    said = "job one: is suspended, and has no pod that receives the workspace; kubectl torchrun resume "
    assert said in only_line(err)
    assert err.endswith("/kubeconfig one first\n")
    # Its pod stays while it is suspended; or it was resumed, and its phase is old.
    api.pod("one-sync-0", n.SYNC_CONTAINER)
    assert run("sync", "one")[0] == 0
    there["spec"]["suspend"] = False
    assert run("sync", "one")[0] == 0


@pytest.mark.usefixtures("deployer")
def test_the_bucket_of_a_queue_has_archives_of_its_namespace(
    cloud: Cloud, api: TorchrunApi, run: Run, monkeypatch: pytest.MonkeyPatch, code: Path
) -> None:
    monkeypatch.setenv("AWS_REGION", "us-west-2")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-west-2")
    s3 = cloud.client("s3")
    s3.create_bucket(Bucket="code", CreateBucketConfiguration={"LocationConstraint": "us-west-2"})
    api.queue("q", storage={"workspace": {"enabled": True, "bucket": "s3://code/team"}})
    result, _, err = run(*SUBMIT, "x")
    assert result == 0, err
    first = api.objects[f"{JOBS}/one"]["spec"]["workspace"]
    digits = first["digest"].removeprefix("sha256:")
    assert first["url"] == f"s3://code/team/workspaces/team/{digits}.tar.zst"
    assert only_line(err).endswith(" sent")
    api.queue("q", storage={"workspace": {"enabled": True, "bucket": "s3://nobodys-bucket"}})
    (code / "train.py").write_text("print(3)\n")
    assert run("sync", "one")[0] == 0
    second = api.objects[f"{JOBS}/one"]["spec"]["workspace"]
    assert second["url"].startswith("s3://code/team/workspaces/team/")
    keys = {each["Key"] for each in s3.list_objects_v2(Bucket="code")["Contents"]}
    assert keys == {parse_url(each["url"])[1] for each in (first, second)}, "none says which one runs"
    result, _, err = run(*SUBMIT[:-1], "two", "x")
    assert result == 65
    assert "bucket: nobodys-bucket does not exist" in only_line(err)
    assert f"{JOBS}/two" not in api.objects


def test_a_command_to_paste_has_the_flags_that_were_given(
    api: TorchrunApi, run: Run, tmp_path: Path, code: Path
) -> None:
    odd = api.kubeconfig(tmp_path / "a file")
    given = ("-n", "team", "--context", "here", "--kubeconfig", str(odd))
    flags = f"-A --context here --kubeconfig '{odd}'"
    assert run(*SUBMIT, "--queue", "none", *given, "x")[2].endswith(f"queues {flags}` shows all\n")
    assert run("status", *given, "two")[2].endswith(f"`kubectl torchrun list {flags}` shows all\n")


def test_submit_prints_the_created_job_as_json(api: TorchrunApi, run: Run) -> None:
    result, out, err = run(*SUBMIT, "--no-workspace", "-o", "json", "x")
    assert (result, json.loads(out)["spec"], err) == (0, api.objects[f"{JOBS}/one"]["spec"], "")


NO_WORKSPACE = (*SUBMIT, "--no-workspace", "x")


def lose(
    api: TorchrunApi, monkeypatch: pytest.MonkeyPatch, times: int, methods: tuple[str, ...] = ("POST",)
) -> None:
    """From the job's creation on, so many requests are carried out and their answers lost."""
    real, left, started = api.answer, times, False
    if times > 1:
        impatient = RetryPolicy(timeout=0.05, initial_delay=0.01, max_delay=0.02)
        monkeypatch.setattr(Cluster.connect.__func__, "__defaults__", (impatient,))  # type: ignore[attr-defined]

    def answer(method: str, target: str, body: Object) -> tuple[int, Object] | Iterator[bytes | None]:
        nonlocal left, started
        done = real(method, target, body)
        started = started or (method == "POST" and "dryRun" not in target)
        if started and left and method in methods:
            left -= 1
            return iter([None])
        return done

    monkeypatch.setattr(api, "answer", answer)


def test_submit_with_a_lost_answer_continues(
    api: TorchrunApi, run: Run, pod: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    lose(api, monkeypatch, 1)
    result, out, err = run(*SUBMIT, "x")
    assert (result, out) == (0, "torchrunjob.torchrun.ai/one created\n"), err
    assert sent(api, "POST") == [JOBS, JOBS]
    assert pod.archive(api.objects[f"{JOBS}/one"]["spec"]["workspace"]["digest"]).exists()


@pytest.mark.parametrize(
    ("methods", "said"),
    [
        (("POST",), "job one: was deleted: the answer to its creation was lost\n"),
        (("POST", "GET"), "job one may still be created: kubectl torchrun cancel -n team --kubeconfig "),
    ],
)
def test_submit_without_confirmation_deletes_the_job(
    api: TorchrunApi, run: Run, monkeypatch: pytest.MonkeyPatch, methods: tuple[str, ...], said: str
) -> None:
    lose(api, monkeypatch, 10_000, methods)
    result, out, err = run(*NO_WORKSPACE, "-n", "team")
    assert (result, out, err.startswith(said)) == (69, "", True), err
    assert "kubectl torchrun: API server: no answer: POST " in err
    assert (f"{JOBS}/one" in api.objects) == ("GET" in methods)


@pytest.mark.parametrize("is_made", [True, False])
def test_interrupt_during_creation_leaves_no_job(
    api: TorchrunApi, run: Run, monkeypatch: pytest.MonkeyPatch, *, is_made: bool
) -> None:
    real = Cluster.create

    def interrupted(self: Cluster, job: Object, *, dry_run: bool = False) -> Object | None:
        made = real(self, job, dry_run=dry_run or not is_made)
        if not dry_run:
            raise KeyboardInterrupt
        return made

    monkeypatch.setattr(Cluster, "create", interrupted)
    result, _, err = run(*NO_WORKSPACE)
    lost = "job one: was deleted: the answer to its creation was lost"
    said = lost if is_made else "job one may still be created"
    assert (result, err.startswith(said)) == (130, True), err
    assert f"{JOBS}/one" not in api.objects


@pytest.mark.parametrize("lost", [0, 1, 10_000])
def test_submit_leaves_another_users_job(
    api: TorchrunApi, run: Run, monkeypatch: pytest.MonkeyPatch, lost: int
) -> None:
    theirs = api.job("one", command="x")
    theirs["metadata"]["annotations"] = {MARK: "theirs"}
    lose(api, monkeypatch, lost)
    result, out, err = run(*NO_WORKSPACE)
    assert (result, out) == (69 if lost > 1 else 64, "")
    if lost < 2:
        assert only_line(err).endswith("--name: job one exists in namespace team; use another name")
    assert sent(api, "DELETE") == []
    assert api.objects[f"{JOBS}/one"]["metadata"]["annotations"] == {MARK: "theirs"}


WAITING = "waiting for pod one-sync-0, which receives the workspace"


@pytest.fixture(autouse=True)
def _no_wait(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """As long as a pod is waited for, no reason was seen."""
    monkeypatch.setattr(upload, "WAIT_SECONDS", 5.0)
    monkeypatch.setattr(upload, "_SOON_SECONDS", {n.REASON_NAME_TAKEN: 0.2})


@pytest.fixture
def says(api: TorchrunApi, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Gives job `one` this status when it is looked at for the third time."""
    real, looks = Cluster.job, []

    def call(**status: Any) -> None:
        def job(self: Cluster, name: str) -> dict[str, Any]:
            looks.append(name)
            if len(looks) == 3:
                generation = api.objects[f"{JOBS}/one"]["metadata"].get("generation")
                news = {"phase": n.PHASE_PENDING, "observedGeneration": generation, **status}
                api.objects[f"{JOBS}/one"]["status"] = news
            return real(self, name)

        monkeypatch.setattr(Cluster, "job", job)

    return call


@pytest.mark.parametrize(
    ("reason", "until"),
    [
        (n.REASON_QUEUE_INVALID, "the queue is valid"),
        (n.REASON_NAME_TAKEN, "the name is free"),
        (n.REASON_QUEUE_NOT_FOUND, "the queue exists"),
    ],
)
def test_submit_to_a_waiting_queue_keeps_the_job(
    api: TorchrunApi, run: Run, says: Any, reason: str, until: str
) -> None:
    says(reason=reason, message="its own words")
    result, out, err = run(*SUBMIT, "x")
    assert (result, out) == (0, "torchrunjob.torchrun.ai/one created\n")
    waits, reported = err.splitlines()
    assert waits == WAITING
    assert re.fullmatch(
        rf"job one: has no workspace yet: {reason}: its own words. When {until}, run "
        r"`kubectl torchrun sync --kubeconfig (\S+) one`. "
        r"To give up, run `kubectl torchrun cancel --kubeconfig \1 one`.",
        reported,
    )
    assert sent(api, "DELETE") == []


def test_submit_follow_of_a_waiting_job_follows_it(api: TorchrunApi, run: Run, says: Any) -> None:
    says(reason=n.REASON_STORAGE_CLASS_NOT_FOUND, message="class fast is not there")

    def ends(method: str, path: str) -> None:
        if (method, path) == ("GET", f"{JOBS}/one") and sent(api, "GET").count(path) > 4:
            api.objects[f"{JOBS}/one"]["status"] = {"phase": "Failed", "exitCode": 3}

    api.on_request = ends
    result, _, err = run(*SUBMIT, "--follow", "x")
    assert result == 3
    assert "job one: has no workspace yet: StorageClassNotFound: class fast is not there. When" in err


@pytest.mark.parametrize(
    ("phase", "reason", "why", "reported"),
    [
        (n.PHASE_FAILED, n.REASON_INVALID_SPEC, "it has failed already", "Failed"),
        (n.PHASE_PENDING, n.REASON_INVALID_SPEC, "the controller refuses it", "InvalidSpec"),
        (n.PHASE_PENDING, n.REASON_POLICY_MISSING, "the controller refuses it", "AdmissionPolicyMissing"),
    ],
)
def test_refused_job_is_deleted(
    api: TorchrunApi, run: Run, says: Any, phase: str, reason: str, why: str, reported: str
) -> None:
    says(phase=phase, reason=reason, message="one node alone")
    result, out, err = run(*SUBMIT, "x")
    assert (result, out) == (64, "")
    last = [f"job one: was deleted: {why}", f"kubectl torchrun: job one: {reported}: one node alone"]
    assert err.splitlines() == [WAITING, *last]
    assert f"{JOBS}/one" not in api.objects
