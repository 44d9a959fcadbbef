"""A queue that is edited while its jobs run or begin: what an attempt was made with holds for it."""

from __future__ import annotations

from typing import Any

import pytest

from launcher.core.torchrun import names as n
from tests.unit.torchrun.api import Api, Crash
from tests.unit.torchrun.life import Life

pytestmark = pytest.mark.unit

OWN = {"storage.workspace": {"enabled": True, "size": "1Gi"}}
KEPT = {"enabled": True, "size": "1Gi", "retain": True}


def edit(life: Life, **fields: Any) -> None:
    life.api.edit(n.QUEUE_KIND, "research", **fields)
    life.look()


def claims(life: Life) -> list[str]:
    return life.names("PersistentVolumeClaim")


def test_a_running_attempt_gets_no_claims_that_its_pods_do_not_name() -> None:
    life = Life({"numGPUs": 16}, OWN).run()
    edit(life, nodeResources={"gpus": 4, "cpus": 32, "memory": "128Gi"})
    assert claims(life) == ["vit-workspace", "vit-workspace-1"]
    edit(life, storage={"checkpoints": {"enabled": True, "size": "1Ti", "storageClass": "fsx"}})
    assert claims(life) == ["vit-workspace", "vit-workspace-1"]
    assert (life.status["phase"], life.status["restarts"]) == ("Running", 0)


def test_what_its_pods_name_is_put_back() -> None:
    life = Life({"numGPUs": 16}, OWN).run()
    life.api.objects.pop(("PersistentVolumeClaim", "vit-workspace-1"))
    life.look()
    assert claims(life) == ["vit-workspace", "vit-workspace-1"]


def test_a_running_attempt_becomes_no_gang_of_another_scheduler() -> None:
    life = Life({"numGPUs": 16}).run()
    edit(life, scheduling={"scheduler": "kai-scheduler"})
    assert life.names("PodGroup") == []


def test_a_claim_that_is_to_be_kept_by_now_is_told_with_what_to_do() -> None:
    life = Life({"numGPUs": 8}, {"storage.checkpoints": {"enabled": True, "size": "1Gi"}}).run()
    assert "kubectl patch" not in life.status["message"]
    edit(life, storage={"checkpoints": KEPT})
    said = 'kubectl patch pvc vit-checkpoints --type merge -p \'{"metadata":{"ownerReferences":null}}\''
    assert said in life.status["message"]
    life.api.objects["PersistentVolumeClaim", "vit-checkpoints"]["metadata"].pop("ownerReferences")
    life.look()
    assert "kubectl patch" not in life.status["message"]


@pytest.mark.parametrize("edited", [False, True])
def test_a_gang_is_of_one_template_also_after_a_kill_among_its_jobs(edited: bool) -> None:
    life = Life({"numGPUs": 16}, OWN)
    life.api.crash_at = 4
    with pytest.raises(Crash, match="vit-0-n1"):
        life.look()
    assert life.names("Job") == ["vit-0"]
    before = life.api.objects["Job", "vit-0"]["metadata"]["uid"]
    if edited:
        life.api.edit(n.QUEUE_KIND, "research", image="example.com/newer:1")
    life.run()
    jobs = life.api.list("Job")
    images = {each["spec"]["template"]["spec"]["containers"][0]["image"] for each in jobs}
    assert images == {"example.com/newer:1" if edited else "example.com/pytorch:2.9"}
    assert len(jobs) == 2
    assert (life.api.objects["Job", "vit-0"]["metadata"]["uid"] == before) is not edited


def test_a_kept_claim_for_one_node_is_not_mounted_by_several() -> None:
    first = Life({"numGPUs": 8}, {"storage.checkpoints": KEPT}).run()
    first.api.run_pods("Succeeded", exit_code=0)
    first.look()
    api: Api = first.api
    api.delete(n.JOB_KIND, "vit")
    api.settle()
    assert first.names("PersistentVolumeClaim") == ["vit-checkpoints"]
    api.edit(n.QUEUE_KIND, "research", storage={"checkpoints": {**KEPT, "storageClass": "fsx"}})
    second = Life({"numGPUs": 16}, api=api, queued=False)
    second.look()
    assert (second.status["phase"], second.status["reason"]) == ("Pending", n.REASON_NAME_TAKEN)
    assert "vit-checkpoints is there already and can be mounted by one node" in second.status["message"]
    assert "Job" not in {each["kind"] for each in api.list()}
    api.objects.pop(("PersistentVolumeClaim", "vit-checkpoints"))
    second.run()
    assert api.objects["PersistentVolumeClaim", "vit-checkpoints"]["spec"]["accessModes"] == ["ReadWriteMany"]


def test_a_kept_claim_for_one_node_is_used_by_a_job_on_one() -> None:
    life = Life({"numGPUs": 8}, {"storage.checkpoints": KEPT}).run()
    life.api.delete(n.JOB_KIND, "vit")
    life.api.settle()
    Life({"numGPUs": 8}, api=life.api, queued=False).run()
