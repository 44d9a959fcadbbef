"""An archive that is in the cluster already is copied there."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.kubectl.conftest import Receiver, Receiving
from tests.unit.kubectl.plugin_api import JOBS, Run, TorchrunApi, only_line
from tests.unit.workspace.archives import serving
from trainyard.kubectl import upload
from trainyard.kubectl.cluster import Cluster
from trainyard.operator import names as n
from trainyard.workspace.archive import pack
from trainyard.workspace.store import Store

pytestmark = pytest.mark.unit


def test_what_another_job_s_pod_has_is_not_sent_again(
    api: TorchrunApi, run: Run, pod: Store, stores: Path, code: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    api.queue("q")
    for name in ("one", "two", "three", "four", "five"):
        api.pod(f"{name}-sync-0", n.SYNC_CONTAINER)

    def submitted(name: str) -> str:
        result, _, err = run("submit", "--queue", "q", "--gpus", "8", "--name", name, "python train.py")
        assert result == 0, err
        return only_line(err)

    with serving(pod) as address:
        monkeypatch.setattr(
            upload, "sync_pod_url", lambda job, _: address if job == "one" else "http://127.0.0.1:1"
        )
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
    api.queue("q")
    waiting = [f"a{i}" for i in range(5)]
    for name in ("one", "two"):
        api.pod(f"{name}-sync-0", n.SYNC_CONTAINER)
    assert run("submit", "--queue", "q", "--gpus", "8", "--name", "one", "python train.py")[0] == 0
    workspace = api.objects[f"{JOBS}/one"]["spec"]["workspace"]
    for name in waiting:
        api.job(name, phase="Running", workspace=workspace)
    api.pod("a0-sync-0", n.SYNC_CONTAINER)["status"]["containerStatuses"][0]["ready"] = False
    api.pod("a1-sync-0", n.SYNC_CONTAINER)["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    with serving(pod) as address:
        monkeypatch.setattr(
            upload,
            "sync_pod_url",
            lambda job, _: address if job == "one" else f"http://{job}.invalid:1",
        )
        result, _, err = run("submit", "--queue", "q", "--gpus", "8", "--name", "two", "python train.py")
    assert (result, "unchanged, its " in only_line(err)) == (0, True), err
    digest = workspace["digest"]
    assert Store(stores / "two-sync-0").archive(digest).exists()
    assert pod.archive(digest).exists()


def breaking(root: Path, command: list[str]) -> Receiving:
    """What the pod waited for may be what was silent."""
    return Receiving(root, command, 0)


@pytest.mark.usefixtures("clock")
def test_upload_to_a_pod_that_cannot_copy_sends_the_archive(
    api: TorchrunApi, tmp_path: Path, code: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive, asked = pack(code, directory=tmp_path), []

    def run(_cluster: Cluster, pod: str, _container: str, command: list[str]) -> Receiving | Receiver:
        asked.append("--nearby" in command)
        return (breaking if len(asked) == 1 else Receiver)(tmp_path / pod, command)

    monkeypatch.setattr(upload, "execute", run)
    cluster = Cluster.connect(str(api.kubeconfig(tmp_path / "kubeconfig")), None, None)
    upload.to_sync_pod(cluster, "one", archive, ["http://127.0.0.1:1"])
    assert asked == [True, False]
    assert Store(tmp_path / "one-sync-0").archive(archive.digest).exists()
