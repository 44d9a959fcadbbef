"""Where an archive is sent: to the bucket, to a sync pod, or to none."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

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
from tests.unit.workspace.archives import serving
from trainyard.kubectl import output, upload
from trainyard.kubectl.cluster import Cluster
from trainyard.operator import names as n
from trainyard.workspace.archive import pack
from trainyard.workspace.errors import WorkspaceError
from trainyard.workspace.sync_pod import Store

pytestmark = pytest.mark.usefixtures("clock")
WORKSPACE = {"digest": "sha256:" + "0" * 64, "sizeBytes": 1}
ABSENT = [{"type": n.QUEUE_FOUND, "status": "False", "reason": n.REASON_QUEUE_NOT_FOUND, "message": "gone"}]
UNKNOWN_TO_ALL = {
    "reason": n.REASON_QUEUE_NOT_FOUND,
    "message": "TorchrunQueue q is not in namespace team; the job begins when it is there",
    "conditions": ABSENT,
}


def test_sync_waits_for_a_new_queue(api: TorchrunApi, run: Run, pod: Store) -> None:
    """The controller may find it later than the plugin."""
    api.job("one", phase="Pending", workspace=WORKSPACE)["status"] |= UNKNOWN_TO_ALL
    api.remove(f"{PODS}/one-sync-0")

    def comes(method: str, path: str) -> None:
        if path == f"{PODS}/one-sync-0" and sent(api, "GET").count(path) == 3:
            api.pod("one-sync-0", n.SYNC_CONTAINER)

    api.on_request = comes
    result, out, err = run("sync", "one")
    assert (result, out) == (0, "torchrunjob.torchrun.ai/one synced\n"), err
    assert err.startswith("waiting for pod one-sync-0, which receives the workspace\n")


def test_sync_pod_of_an_earlier_job_is_not_used(api: TorchrunApi, run: Run, pod: Store) -> None:
    """The garbage collector has not deleted the pod of the earlier job yet."""
    api.job("one", phase="Pending", workspace=WORKSPACE)["status"] |= {
        "reason": n.REASON_NAME_TAKEN,
        "message": "pod one-sync-0 is not this job's",
    }
    api.pod("one-sync-0", n.SYNC_CONTAINER)["metadata"]["ownerReferences"] = [{"uid": "earlier"}]
    result, out, err = run("sync", "one")
    assert (result, out) == (69, "")
    assert "NameTaken: pod one-sync-0 is not this job's; run sync again when the name is free" in err


@pytest.mark.parametrize(
    ("reason", "first"),
    [
        (n.REASON_QUEUE_INVALID, "run sync again when the queue is valid"),
        (n.REASON_SCHEDULER_NOT_INSTALLED, "run sync again when it is installed, or submit to a queue"),
        (n.REASON_INVALID_SPEC, "correct the spec, then run sync again"),
    ],
)
def test_reasons_without_a_sync_pod_are_reported_with_advice(
    api: TorchrunApi, run: Run, reason: str, first: str
) -> None:
    job = api.job("one", phase="Pending", workspace=WORKSPACE)
    job["status"] |= {"reason": reason, "message": "its own words"}
    result, out, err = run("sync", "one")
    assert (result, out) == (69, "")
    said = f"job one: has no pod that receives the workspace: {reason}: its own words; {first}"
    assert said in err.splitlines()[-1]
    assert "PATCH" not in {method for method, *_ in api.requests}


def test_sync_without_the_queue_names_the_queues(api: TorchrunApi, run: Run) -> None:
    api.remove(f"{QUEUES}/q")
    api.queue("large")
    api.queue("small")
    api.job("one", phase="Pending", workspace=WORKSPACE)["status"] |= UNKNOWN_TO_ALL
    result, _, err = run("sync", "one")
    assert result == 69
    assert "if the queue's name is wrong: the namespace has large, small; `kubectl torchrun queues" in err


@pytest.mark.parametrize(
    ("reason", "generation"),
    [(n.REASON_WAITING_FOR_NODES, 1), (n.REASON_STOPPING, 1), (n.REASON_QUEUE_INVALID, 2)],
)
def test_other_reasons_are_waited_for_and_then_reported(
    api: TorchrunApi, run: Run, monkeypatch: pytest.MonkeyPatch, reason: str, generation: int
) -> None:
    monkeypatch.setattr(upload, "WAIT_SECONDS", 0.1)
    job = api.job("one", phase="Pending", workspace=WORKSPACE)
    job["metadata"]["generation"] = generation
    job["status"] |= {"reason": reason, "message": "its own words", "observedGeneration": 1}
    result, _, err = run("sync", "one")
    assert result == 69
    said = "pod one-sync-0: receives the workspace, and does not exist after 0 s; job one: Pending: its own words"
    assert err.splitlines()[-1] == f"kubectl torchrun: {said}"


def test_sync_uses_an_existing_pod(api: TorchrunApi, run: Run, pod: Store) -> None:
    job = api.job("one", phase="Pending", workspace=WORKSPACE)
    job["status"] |= {"reason": n.REASON_QUEUE_INVALID, "message": "its pool"}
    assert run("sync", "one")[0] == 0


def test_sync_ends_the_wait_at_a_new_problem(api: TorchrunApi, run: Run) -> None:
    api.job("one", phase="Pending", workspace=WORKSPACE)["status"]["reason"] = n.REASON_STOPPING

    def refused(_method: str, path: str) -> None:
        if path == f"{JOBS}/one" and sent(api, "GET").count(path) == 3:
            news = {"reason": n.REASON_REFUSED, "message": "quota"}
            api.objects[path]["status"] |= news

    api.on_request = refused
    result, _, err = run("sync", "one")
    assert (result, err.splitlines()[0]) == (69, "waiting for pod one-sync-0, which receives the workspace")
    assert "has no pod that receives the workspace: Refused: quota; run sync again" in err


@pytest.mark.parametrize("url", ["s3://code/mine.tar.zst", "s3://code/workspaces/", "s3://workspaces/a"])
def test_sync_to_a_foreign_url_is_refused(api: TorchrunApi, run: Run, url: str) -> None:
    api.job("one", phase="Running", workspace={**WORKSPACE, "url": url})
    result, out, err = run("sync", "one")
    assert (result, out) == (64, "")
    said = f"job one: spec.workspace.url is {url!r}, which was not sent by submit or sync; submit another job"
    assert said in only_line(err)


def test_sync_to_a_pod_that_is_never_ready_ends_in_time(
    api: TorchrunApi, run: Run, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upload, "WAIT_SECONDS", 0.1)
    api.job("one", phase="Running", workspace=WORKSPACE)
    api.pod("one-sync-0", n.SYNC_CONTAINER)["status"] = {}
    said = "pod one-sync-0: receives the workspace, and is not ready after 0 s; kubectl describe pod "
    assert said in run("sync", "one")[2]
    assert clock.now < 1


UNSENT = "; not sent yet: run sync when queue q"


@pytest.mark.parametrize(
    ("more", "status", "shown"),
    [
        ({}, UNKNOWN_TO_ALL, f"{UNSENT} exists"),
        ({}, {"conditions": [{"type": n.QUEUE_FOUND, "status": "True"}]}, f"{UNSENT} is valid"),
        ({"url": "s3://code/workspaces/0.tar.zst"}, UNKNOWN_TO_ALL, ""),
        ({}, {"conditions": [*ABSENT, {"type": n.ACCEPTED, "status": "True"}]}, ""),
        ({}, {**UNKNOWN_TO_ALL, "workspaceDigest": WORKSPACE["digest"]}, ""),
        ({}, {}, ""),
        ({}, {"workspaceDigest": "sha256:1"}, None),
    ],
)
def test_status_of_an_unsent_workspace_says_so(
    more: dict[str, str], status: dict[str, Any], shown: str | None
) -> None:
    spec = {"jobQueue": "q", "numGPUs": 1, "command": "true", "workspace": {**WORKSPACE, **more}}
    item = {"metadata": {"name": "one"}, "spec": spec, "status": {"phase": "Pending", **status}}
    line = f"Workspace:  {WORKSPACE['digest']}, 1 B{shown}" if shown is not None else "Workspace:  sha256:1"
    assert line in output.status(item, datetime(2026, 1, 1, tzinfo=UTC)).splitlines()


OLD = {"digest": "sha256:" + "0" * 64, "sizeBytes": 1, "url": "s3://code/team/workspaces/team/0.tar.zst"}


class Bucket:
    """A bucket that takes archives, or refuses them."""

    def __init__(self, *, refuses: bool) -> None:
        self.sent: list[str] = []
        self.refuses = refuses

    def send(self, _archive: Any, url: str, *_: Any) -> bool:
        if self.refuses:
            raise WorkspaceError("bucket: code: AccessDenied")
        self.sent.append(url)
        return True


@pytest.mark.parametrize(
    ("refuses", "code", "said"), [(True, 65, "AccessDenied"), (False, 77, "may not patch")]
)
def test_sync_that_is_refused_leaves_the_job(
    api: TorchrunApi, run: Run, monkeypatch: pytest.MonkeyPatch, refuses: bool, code: int, said: str
) -> None:
    """At most, the bucket has one archive more, under its digest: no worker looks there for what it should run."""
    bucket = Bucket(refuses=refuses)
    monkeypatch.setattr(upload, "bucket", lambda: bucket)
    api.job("one", phase="Running", workspace=OLD)
    api.refused.add(("PATCH", f"{JOBS}/one"))
    result, out, err = run("sync", "one")
    assert (result, out, said in err) == (code, "", True), err
    sent_to = [] if refuses else ["s3://code/team/workspaces/team"]
    assert [url.rpartition("/")[0] for url in bucket.sent] == sent_to
    assert api.objects[f"{JOBS}/one"]["spec"]["workspace"] == OLD


def test_submit_copies_the_archive_from_another_jobs_pod(
    api: TorchrunApi, run: Run, pod: Store, stores: Path, code: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("one", "two", "three", "four", "five"):
        api.pod(f"{name}-sync-0", n.SYNC_CONTAINER)

    def submitted(name: str) -> str:
        result, _, err = run(*SUBMIT[:-1], name, "python train.py")
        assert result == 0, err
        return only_line(err)

    with serving(pod) as address:
        urls = {"one": address}
        monkeypatch.setattr(upload, "sync_pod_url", lambda job, _: urls.get(job, "http://127.0.0.1:1"))
        assert submitted("one").endswith(" sent")
        digest = api.objects[f"{JOBS}/one"]["spec"]["workspace"]["digest"]
        assert "unchanged, its " in submitted("two")
        assert Store(stores / "two-sync-0").archive(digest).read_bytes() == pod.archive(digest).read_bytes()
        api.objects[f"{JOBS}/one"]["status"] = {"phase": n.PHASE_FAILED}
        assert submitted("three").endswith(" sent"), "an ended job has no pod, and two's does not answer"
        api.objects[f"{JOBS}/one"]["status"] = {"phase": n.PHASE_RUNNING}
        api.refused.add(("GET", JOBS))
        assert submitted("four").endswith(" sent"), "who may not list jobs sends it"
        api.refused.clear()
        (code / "train.py").write_text("print(2)\n")
        assert run("sync", "one")[2].strip().endswith(" sent")
        _, _, err = run("sync", "two")
        assert "unchanged, its " in only_line(err), "what one was brought comes from there"
        assert "unchanged, its " in submitted("five")
        digest = api.objects[f"{JOBS}/five"]["spec"]["workspace"]["digest"]
    assert Store(stores / "five-sync-0").archive(digest).exists()


def test_jobs_without_a_pod_do_not_crowd_out_one_that_has_it(
    api: TorchrunApi, run: Run, pod: Store, stores: Path, code: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waiting = [f"a{i}" for i in range(5)]
    for name in ("one", "two"):
        api.pod(f"{name}-sync-0", n.SYNC_CONTAINER)
    assert run(*SUBMIT, "python train.py")[0] == 0
    workspace = api.objects[f"{JOBS}/one"]["spec"]["workspace"]
    for name in waiting:
        api.job(name, phase="Running", workspace=workspace)
    api.pod("a0-sync-0", n.SYNC_CONTAINER)["status"]["containerStatuses"][0]["ready"] = False
    api.pod("a1-sync-0", n.SYNC_CONTAINER)["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    with serving(pod) as address:
        urls = {"one": address}
        monkeypatch.setattr(upload, "sync_pod_url", lambda job, _: urls.get(job, f"http://{job}.invalid:1"))
        result, _, err = run(*SUBMIT[:-1], "two", "python train.py")
    assert (result, "unchanged, its " in only_line(err)) == (0, True), err
    digest = workspace["digest"]
    assert Store(stores / "two-sync-0").archive(digest).exists()
    assert pod.archive(digest).exists()


def test_upload_to_a_pod_that_cannot_copy_sends_the_archive(
    api: TorchrunApi, tmp_path: Path, code: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive, asked = pack(code, directory=tmp_path), []

    def run(_cluster: Cluster, pod: str, _container: str, command: list[str]) -> Receiver:
        asked.append("--nearby" in command)
        return Receiver(tmp_path / pod, command, cut=len(asked) == 1)  # maybe the other pod broke it

    monkeypatch.setattr(upload, "execute", run)
    cluster = Cluster.connect(str(api.kubeconfig(tmp_path / "kubeconfig")), None, None)
    upload.to_sync_pod(cluster, "one", archive, ["http://127.0.0.1:1"])
    assert asked == [True, False]
    assert Store(tmp_path / "one-sync-0").archive(archive.digest).exists()
