"""A job's claims through its life: those that are there already, and a queue that is edited meanwhile."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.unit.operator.api import Api
from tests.unit.operator.life import Life
from tests.unit.operator.made import CLUSTER
from trainyard.operator import names as n
from trainyard.operator.observe import KaiQueue
from trainyard.operator.plan import POLL_SECONDS

KAI = replace(CLUSTER, kai=True, kai_queues={n.KAI_DEFAULT_QUEUE: KaiQueue()})

SMALL = {"numGPUs": 8}
SIZE = {"enabled": True, "size": "1Gi"}
OWN = {"storage.workspace": SIZE}


def checkpoints(**more: Any) -> dict[str, Any]:
    return {"storage.checkpoints": {**SIZE, **more}}


def modes(api: Api) -> dict[str, list[str]]:
    claims = api.list("PersistentVolumeClaim")
    return {each["metadata"]["name"]: each["spec"]["accessModes"] for each in claims}


def retained(**storage: Any) -> Api:
    """What a job on one node left: its checkpoints."""
    life = Life(SMALL, checkpoints(retain=True, **storage)).run()
    life.succeed()
    life.api.delete(n.JOB_KIND, "vit")
    life.api.settle()
    life.api.settle()
    assert life.names("PersistentVolumeClaim") == ["vit-checkpoints"]
    del life.api.objects[n.QUEUE_KIND, "research"]
    return life.api


def test_retained_claim_of_one_node_refuses_several() -> None:
    api = retained()
    life = Life({"numGPUs": 16}, checkpoints(storageClass="fsx", accessMode="ReadWriteMany"), api=api).begin()
    assert life.state == ("Failed", "InvalidSpec")
    assert "storage.checkpoints: only one node can mount the existing claim vit-checkpoints" in life.message
    assert life.names("Job") == []
    assert modes(api) == {"vit-checkpoints": ["ReadWriteOnce"]}


def test_retained_claim_of_many_nodes_is_mounted() -> None:
    one = Life(SMALL, checkpoints(storageClass="fsx"), api=retained())
    one.run()
    # One that is shared stays so, whatever the class of the queue is by now.
    many = Life({"numGPUs": 16}, checkpoints(storageClass="ebs"), api=retained(storageClass="fsx"))
    many.run()
    assert modes(many.api) == {"vit-checkpoints": ["ReadWriteMany"]}


def test_retained_claim_being_deleted_delays_the_job() -> None:
    api = retained()
    meta = api.objects["PersistentVolumeClaim", "vit-checkpoints"]["metadata"]
    meta["finalizers"] = ["kubernetes.io/pvc-protection"]
    api.delete("PersistentVolumeClaim", "vit-checkpoints")
    life = Life({"numGPUs": 16}, checkpoints(storageClass="fsx"), api=api).begin()
    assert life.state == ("Pending", "NameTaken")
    meta["finalizers"] = []
    api.settle()
    life.run()
    assert modes(api) == {"vit-checkpoints": ["ReadWriteMany"]}


def test_class_changed_in_queue_keeps_the_claims() -> None:
    life = Life({"numGPUs": 16}, OWN).run()
    life.edit_queue(storage={"workspace": {**SIZE, "storageClass": "fsx"}})
    life.fail()
    assert life.names("Job") == ["vit-1", "vit-1-n1"]
    volumes = [each["spec"]["template"]["spec"]["volumes"] for each in life.api.list("Job")]
    names = [[each["persistentVolumeClaim"]["claimName"] for each in of_job] for of_job in volumes]
    assert names == [["vit-workspace"], ["vit-workspace-1"]]
    assert set(map(tuple, modes(life.api).values())) == {("ReadWriteOnce",)}


def test_queue_edited_creates_no_claims_for_running_workers() -> None:
    life = Life({"numGPUs": 16}, OWN).run()
    life.edit_queue(nodeResources={"gpus": 4, "cpus": 96, "memory": "512Gi"})
    assert life.names("PersistentVolumeClaim") == ["vit-workspace", "vit-workspace-1"]
    life.edit_queue(storage={"workspace": SIZE, "datasets": {**SIZE, "storageClass": "fsx"}})
    assert life.names("PersistentVolumeClaim") == ["vit-workspace", "vit-workspace-1"]
    assert life.status["phase"] == "Running"
    # What its own workers name comes back.
    del life.api.objects["PersistentVolumeClaim", "vit-workspace-1"]
    life.reconcile()
    assert life.names("PersistentVolumeClaim") == ["vit-workspace", "vit-workspace-1"]
    life.fail()
    assert life.names("Job") == ["vit-1", "vit-1-n1", "vit-1-n2", "vit-1-n3"]
    assert len(life.names("PersistentVolumeClaim")) == 4 + 1


def test_queue_edited_to_kai_makes_no_gang_of_an_attempt() -> None:
    life = Life({}, cluster=KAI).run()
    life.edit_queue(scheduling={"scheduler": "kai-scheduler"})
    assert life.names("PodGroup") == []
    gang = Life({}, {"scheduling.scheduler": "kai-scheduler"}, cluster=KAI).run()
    del gang.api.objects["PodGroup", "vit-0"]
    gang.reconcile()
    assert gang.names("PodGroup") == ["vit-0"]


@pytest.mark.parametrize("volume", ["workspace", "datasets", "checkpoints"])
def test_missing_class_delays_the_job(volume: str) -> None:
    """Queue, job and class may come in one `kubectl apply`: that it is for one node alone is not known yet."""
    asked = {f"storage.{volume}": {**SIZE, "storageClass": "late"}}
    life = Life({"numGPUs": 16}, asked).begin()
    assert life.state == ("Pending", "StorageClassNotFound")
    assert f"storage.{volume}.storageClass late does not exist" in life.message
    assert life.requeue_after == POLL_SECONDS, "nobody reports a class"
    assert life.names("Job") == life.names("PersistentVolumeClaim") == []
    assert life.api.events == ["StorageClassNotFound"]
    life.cluster = replace(CLUSTER, provisioners={**CLUSTER.provisioners, "late": "fsx.csi.aws.com"})
    life.run()
    assert modes(life.api) == {f"vit-{volume}": ["ReadWriteMany"]}


def test_class_of_manual_volumes_need_not_exist() -> None:
    """https://kubernetes.io/docs/tasks/configure-pod-container/configure-persistent-volume-storage/ has such ones."""
    life = Life({"numGPUs": 16}, checkpoints(storageClass="manual", accessMode="ReadWriteMany")).run()
    assert modes(life.api) == {"vit-checkpoints": ["ReadWriteMany"]}


def test_class_deleted_later_is_not_needed_by_claims() -> None:
    late = {**CLUSTER.provisioners, "late": "ebs.csi.aws.com"}
    asked = {"storage.workspace": {**SIZE, "storageClass": "late"}}
    life = Life({"numGPUs": 16}, asked, cluster=replace(CLUSTER, provisioners=late)).run()
    life.cluster = CLUSTER
    life.api.run_pods("Failed", exit_code=1)
    life.run()
    assert (life.status["restarts"], life.names("Job")) == (1, ["vit-1", "vit-1-n1"])


def test_cluster_without_a_default_class_creates_the_claim() -> None:
    life = Life(SMALL, checkpoints(), cluster=replace(CLUSTER, default_class="")).run()
    assert modes(life.api) == {"vit-checkpoints": ["ReadWriteOnce"]}
