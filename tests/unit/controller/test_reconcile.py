"""Looks at a job through a real client and a small API server: what is made, what is in the way, kills at writes."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from typing import Any

import pytest

from launcher.controller.facts import Facts
from launcher.controller.reconcile import Reconciler
from launcher.core.torchrun import names as n
from launcher.kube.objects import Objects
from launcher.kube.rest import ApiError
from tests.unit.launcher.api_server import FakeApi, serving

TEAM = "/namespaces/team"
JOB = f"/apis/{n.API_VERSION}{TEAM}/torchrunjobs/vit"
QUEUE = f"/apis/{n.API_VERSION}{TEAM}/torchrunqueues/h100"
SERVICE = f"/api/v1{TEAM}/services/vit"
ATTEMPT = f"/apis/batch/v1{TEAM}/jobs/vit-0"
PODS = f"/api/v1{TEAM}/pods"
NOW = 1_800_000_000.0


class Killed(Exception):
    """The controller died here."""


class Mortal(Objects):
    """Dies at the write of this number, before or after it was carried out; never with 0."""

    def __init__(self, api: FakeApi, at: int = 0, *, after: bool = False) -> None:
        super().__init__(api.rest(), n.FIELD_MANAGER)
        self.at, self.after, self.writes = at, after, 0

    def _write(self, work: Any, *arguments: Any, **options: Any) -> Any:
        self.writes += 1
        if self.writes == self.at and not self.after:
            raise Killed
        result = work(*arguments, **options)
        if self.writes == self.at:
            raise Killed
        return result

    def create(self, *arguments: Any, **options: Any) -> Any:
        return self._write(super().create, *arguments, **options)

    def apply(self, *arguments: Any, **options: Any) -> Any:
        return self._write(super().apply, *arguments, **options)

    def put_status(self, *arguments: Any) -> Any:
        return self._write(super().put_status, *arguments)

    def delete(self, *arguments: Any, **options: Any) -> Any:
        return self._write(super().delete, *arguments, **options)


@pytest.fixture
def api() -> Iterator[FakeApi]:
    with serving(FakeApi()) as api:
        yield api


def stage(api: FakeApi, *, queue: bool = True) -> None:
    """A job of two nodes, and its queue."""
    spec: dict[str, Any] = {"jobQueue": "h100", "numGPUs": 16, "command": "python train.py"}
    api.put(JOB, thing(n.API_VERSION, n.JOB_KIND, "vit", spec))
    if queue:
        of_queue = {"image": "team/pytorch:1", "nodeResources": {"gpus": 8, "cpus": 96, "memory": "512Gi"}}
        api.put(QUEUE, thing(n.API_VERSION, n.QUEUE_KIND, "h100", of_queue))


def thing(version: str, kind: str, name: str, spec: dict[str, Any]) -> dict[str, Any]:
    meta = {"name": name, "namespace": "team", "generation": 1, "creationTimestamp": "2026-11-22T10:00:00Z"}
    return {"apiVersion": version, "kind": kind, "metadata": meta, "spec": spec}


def settle(objects: Objects) -> None:
    """Look until nothing is due at once."""
    reconciler = Reconciler(objects, Facts(objects, "tools@sha256:1"), now=lambda: NOW)
    for _ in range(30):
        again = reconciler.job("team", "vit")
        if again is None or again > 1:
            return
    raise AssertionError("it comes to no end")


def phase(api: FakeApi) -> str:
    return str(api.objects[JOB]["status"]["phase"])


def workers(api: FakeApi, state: str, *, exit_code: int | None = None) -> None:
    """What the Job controller and the kubelets would do."""
    job = api.objects[ATTEMPT]
    template = job["spec"]["template"]
    ended = {} if exit_code is None else {"state": {"terminated": {"exitCode": exit_code}}}
    for node in range(job["spec"]["completions"]):
        meta = copy.deepcopy(template["metadata"])
        meta |= {"name": f"vit-0-{node}-abcde", "namespace": "team"}
        meta["ownerReferences"] = [{"kind": "Job", "name": "vit-0", "uid": job["metadata"]["uid"]}]
        status = {
            "phase": state,
            "conditions": [{"type": "Ready", "status": "True"}] if state == "Running" else [],
            "containerStatuses": [{"name": n.WORKER_CONTAINER, **ended}],
        }
        item = {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": {"nodeName": f"node-{node}"}}
        api.put(f"{PODS}/{meta['name']}", {**item, "status": status})


def finish(api: FakeApi) -> None:
    workers(api, "Succeeded", exit_code=0)
    done = {"conditions": [{"type": "Complete", "status": "True"}]}
    api.put(ATTEMPT, {**api.objects[ATTEMPT], "status": done})


def test_a_job_is_made_runs_and_succeeds_and_nothing_makes_it_anew(api: FakeApi) -> None:
    stage(api)
    settle(Mortal(api))
    assert phase(api) == n.PHASE_PROVISIONING
    assert api.objects[ATTEMPT]["spec"]["suspend"] is False
    assert api.objects[ATTEMPT]["spec"]["completions"] == 2
    assert SERVICE in api.objects
    workers(api, "Running")
    settle(Mortal(api))
    assert phase(api) == n.PHASE_RUNNING
    finish(api)
    settle(Mortal(api))
    assert phase(api) == n.PHASE_SUCCEEDED
    api.remove(ATTEMPT)
    calm = Mortal(api)
    settle(calm)
    assert (ATTEMPT in api.objects, calm.writes, phase(api)) == (False, 0, n.PHASE_SUCCEEDED)


def test_at_rest_nothing_is_written(api: FakeApi) -> None:
    stage(api)
    settle(Mortal(api))
    again = Mortal(api)
    settle(again)
    assert again.writes == 0


def test_a_job_that_goes_while_it_is_looked_at_gets_nothing_anew(api: FakeApi) -> None:
    """Kubernetes removes what was made for it, and a look must not take that for missing."""
    stage(api)
    settle(Mortal(api))

    class Late(Mortal):
        """The job and its children go while these are listed."""

        made = 0

        def create(self, *arguments: Any, **options: Any) -> Any:
            self.made += 1
            return super().create(*arguments, **options)

        def list(self, *arguments: Any) -> list[dict[str, Any]]:
            for path in (JOB, SERVICE, ATTEMPT):
                if path in api.objects:
                    api.remove(path)
            return super().list(*arguments)

    late = Late(api)
    settle(late)
    assert (late.made, SERVICE in api.objects, ATTEMPT in api.objects) == (0, False, False)


def test_a_look_that_another_controller_overtakes_writes_no_status(api: FakeApi) -> None:
    """It has seen no Job because the other one had not made it yet."""
    stage(api)
    settle(Mortal(api))
    workers(api, "Running")
    settle(Mortal(api))

    class Overtaken(Mortal):
        def list(self, *arguments: Any) -> list[dict[str, Any]]:
            item = api.objects[JOB]
            api.put(JOB, {**item, "status": {**item["status"], "message": "all workers are ready"}})
            return []

    Reconciler(objects := Overtaken(api), Facts(objects, "tools@sha256:1"), now=lambda: NOW).job(
        "team", "vit"
    )
    assert phase(api) == n.PHASE_RUNNING
    assert api.objects[JOB]["status"]["restarts"] == 0


def test_workers_that_their_job_removes_as_it_has_succeeded_are_not_lost(api: FakeApi) -> None:
    """It succeeds with the first of an elastic gang, between the list of Jobs and that of pods."""
    stage(api)
    api.objects[JOB]["spec"]["elastic"] = {"minNodes": 1, "maxNodes": 2}
    settle(Mortal(api))
    workers(api, "Running")
    settle(Mortal(api))

    class Meanwhile(Mortal):
        def list(self, version: str, kind: str, *arguments: Any) -> list[dict[str, Any]]:
            if kind == "Pod":
                done = {"conditions": [{"type": "SuccessCriteriaMet", "status": "True"}]}
                api.put(ATTEMPT, {**api.objects[ATTEMPT], "status": done})
                for name in api.names(PODS):
                    pod = api.objects[f"{PODS}/{name}"]
                    pod["metadata"]["deletionTimestamp"] = "2026-11-22T11:00:00Z"
            return super().list(version, kind, *arguments)

    objects = Meanwhile(api)
    Reconciler(objects, Facts(objects, "tools@sha256:1"), now=lambda: NOW).job("team", "vit")
    assert (phase(api), api.objects[JOB]["status"]["restarts"]) == (n.PHASE_RUNNING, 0)


def test_a_job_waits_for_its_queue_and_begins_when_it_is_there(api: FakeApi) -> None:
    stage(api, queue=False)
    settle(Mortal(api))
    assert (phase(api), api.objects[JOB]["status"]["reason"]) == (n.PHASE_PENDING, n.REASON_QUEUE_NOT_FOUND)
    assert ATTEMPT not in api.objects
    stage(api)
    settle(Mortal(api))
    assert phase(api) == n.PHASE_PROVISIONING


def test_nothing_is_refused_by_what_was_known_before(api: FakeApi) -> None:
    stage(api)
    api.objects[QUEUE]["spec"]["storage"] = {
        "checkpoints": {"enabled": True, "size": "1Gi", "storageClass": "fsx"}
    }
    objects = Mortal(api)
    facts = Facts(objects, "tools@sha256:1")
    facts.cluster("team", claims=False)
    shared = {**thing("storage.k8s.io/v1", "StorageClass", "fsx", {}), "provisioner": "fsx.csi.aws.com"}
    api.put("/apis/storage.k8s.io/v1/storageclasses/fsx", shared)
    Reconciler(objects, facts, now=lambda: NOW).job("team", "vit")
    assert phase(api) != n.PHASE_FAILED, api.objects[JOB]["status"]["message"]


def test_claims_are_not_made_by_classes_that_were_known_before(api: FakeApi) -> None:
    stage(api)
    api.objects[QUEUE]["spec"]["storage"] = {
        "workspace": {"enabled": True, "size": "1Gi", "storageClass": "fsx"}
    }
    objects = Mortal(api)
    facts = Facts(objects, "tools@sha256:1")
    facts.cluster("team", claims=False)
    shared = {**thing("storage.k8s.io/v1", "StorageClass", "fsx", {}), "provisioner": "fsx.csi.aws.com"}
    api.put("/apis/storage.k8s.io/v1/storageclasses/fsx", shared)
    Reconciler(objects, facts, now=lambda: NOW).job("team", "vit")
    made = [
        each["spec"]["accessModes"]
        for path, each in api.objects.items()
        if "/persistentvolumeclaims/" in path
    ]
    assert made == [["ReadWriteMany"]]


def test_what_cannot_be_is_refused_for_ever(api: FakeApi) -> None:
    stage(api)
    api.objects[QUEUE]["spec"]["storage"] = {
        "checkpoints": {"enabled": True, "size": "1Gi", "storageClass": "disk"}
    }
    settle(Mortal(api))
    assert (phase(api), api.objects[JOB]["status"]["reason"]) == (n.PHASE_FAILED, n.REASON_INVALID_SPEC)


def test_a_name_that_another_has_is_left_alone_and_told_until_it_is_free(api: FakeApi) -> None:
    stage(api)
    theirs = thing("v1", "Service", "vit", {"clusterIP": "10.0.0.1"})
    api.put(SERVICE, theirs)
    objects = Mortal(api)
    reconciler = Reconciler(objects, Facts(objects, "tools@sha256:1"), now=lambda: NOW)
    for _ in range(6):
        reconciler.job("team", "vit")
    assert api.objects[SERVICE]["spec"] == {"clusterIP": "10.0.0.1"}
    assert api.objects[JOB]["status"]["reason"] == n.REASON_NAME_TAKEN
    assert ATTEMPT not in api.objects
    api.remove(SERVICE)
    for _ in range(8):
        reconciler.job("team", "vit")
    assert phase(api) == n.PHASE_PROVISIONING
    assert api.objects[SERVICE]["spec"]["clusterIP"] == "None"


def test_a_job_that_changed_since_it_was_read_is_decided_anew(api: FakeApi) -> None:
    stage(api)

    def suspend(method: str, path: str) -> None:
        if (method, path) == ("PUT", f"{JOB}/status") and not api.objects[JOB]["spec"].get("suspend"):
            item = api.objects[JOB]
            api.put(JOB, {**item, "spec": {**item["spec"], "suspend": True}})

    api.on_request = suspend
    settle(Mortal(api))
    assert phase(api) == n.PHASE_SUSPENDED
    assert ATTEMPT not in api.objects


def test_who_writes_annotations_all_the_time_holds_up_no_status(api: FakeApi) -> None:
    stage(api)
    written = 0

    def annotate(method: str, path: str) -> None:
        nonlocal written
        if (method, path) == ("PUT", f"{JOB}/status") and written < 3:
            written += 1
            item = api.objects[JOB]
            api.put(JOB, {**item, "metadata": {**item["metadata"], "annotations": {"count": str(written)}}})

    api.on_request = annotate
    objects = Mortal(api)
    Reconciler(objects, Facts(objects, "tools@sha256:1"), now=lambda: NOW).job("team", "vit")
    assert (written, phase(api)) == (3, n.PHASE_PROVISIONING)
    assert api.objects[JOB]["metadata"]["annotations"] == {"count": "3"}


KAI = f"/apis/{n.KAI_GROUP}/{n.KAI_QUEUE_VERSION}"
KAI_GANGS = f"/apis/{n.KAI_GROUP}/{n.KAI_POD_GROUP_VERSION}"


def install_kai(api: FakeApi, *, whole: bool = True) -> None:
    """Its two kinds are served; one alone is a cluster in which it is just being installed. It makes a queue, too."""
    api.put(KAI, {"metadata": {}, "resources": [{"name": "queues"}, {"name": "queues/status"}]})
    api.put(KAI_GANGS, {"metadata": {}, "resources": [{"name": "podgroups"}] if whole else []})
    parent = thing(f"{n.KAI_GROUP}/{n.KAI_QUEUE_VERSION}", "Queue", n.KAI_PARENT_QUEUE, {})
    api.put(f"{KAI}/queues/{n.KAI_PARENT_QUEUE}", parent)


def settle_queue(api: FakeApi) -> dict[str, Any]:
    """Look at the queue until nothing changes; returns its conditions, each with its status and message."""
    objects = Mortal(api)
    reconciler = Reconciler(objects, Facts(objects, "tools@sha256:1"), now=lambda: NOW)
    before = ""
    for _ in range(10):
        reconciler.queue("team", "h100")
        now = json.dumps(api.objects, sort_keys=True)
        if now == before:
            conditions = api.objects.get(QUEUE, {}).get("status", {}).get("conditions", ())
            return {each["type"]: (each["status"], each.get("message", "")) for each in conditions}
        before = now
    raise AssertionError("it comes to no end")


def test_a_queue_is_ready_when_a_pod_of_it_would_be_taken_and_none_is_made(api: FakeApi) -> None:
    stage(api)
    assert settle_queue(api)[n.READY][0] == "True"
    assert api.names(PODS) == []
    assert api.objects[QUEUE]["status"]["jobs"] == {"active": 0, "pending": 1}
    api.refused = {("POST", PODS)}
    told = settle_queue(api)
    assert (told[n.READY][0], told[n.POD_TEMPLATE_VALID][0]) == ("False", "False")
    assert "Forbidden" in told[n.POD_TEMPLATE_VALID][1]


def test_a_queue_has_its_own_in_kai_as_long_as_it_is_there_and_takes_nobody_elses(api: FakeApi) -> None:
    stage(api)
    item = api.objects[QUEUE]
    api.put(QUEUE, {**item, "spec": {**item["spec"], "kaiQueue": "gpu"}})
    assert settle_queue(api)[n.KAI_QUEUE_READY][0] == "False"
    assert f"{KAI}/queues/gpu" not in api.objects
    install_kai(api)
    theirs = {
        "apiVersion": f"{n.KAI_GROUP}/{n.KAI_QUEUE_VERSION}",
        "kind": "Queue",
        "metadata": {"name": "gpu"},
    }
    api.put(f"{KAI}/queues/gpu", {**theirs, "spec": {"parentQueue": "theirs"}})
    settle_queue(api)
    assert api.objects[f"{KAI}/queues/gpu"]["spec"] == {"parentQueue": "theirs"}
    api.remove(f"{KAI}/queues/gpu")
    settle_queue(api)
    assert api.objects[f"{KAI}/queues/gpu"]["metadata"]["labels"][n.LABEL_QUEUE_NAME] == "h100"
    assert n.QUEUE_FINALIZER in api.objects[QUEUE]["metadata"]["finalizers"]
    item = api.objects[QUEUE]
    api.put(QUEUE, {**item, "metadata": {**item["metadata"], "deletionTimestamp": "2026-11-22T11:00:00Z"}})
    settle_queue(api)
    assert f"{KAI}/queues/gpu" not in api.objects
    assert QUEUE not in api.objects


def test_kai_that_is_half_installed_is_none(api: FakeApi) -> None:
    stage(api)
    api.objects[QUEUE]["spec"]["scheduling"] = {"scheduler": n.KAI_SCHEDULER}
    install_kai(api, whole=False)
    settle_of_all(api)
    assert api.objects[JOB]["status"]["reason"] == n.REASON_SCHEDULER_NOT_INSTALLED
    install_kai(api)
    settle_of_all(api)
    assert phase(api) == n.PHASE_PROVISIONING


def test_a_gang_waits_for_the_queue_that_the_job_names_instead(api: FakeApi) -> None:
    stage(api)
    install_kai(api)
    api.objects[QUEUE]["spec"] |= {"scheduling": {"scheduler": n.KAI_SCHEDULER}, "kaiQueue": "gpu"}
    api.objects[JOB]["spec"]["overrides"] = {"kaiQueue": "urgent"}
    settle_queue(api)
    settle_of_all(api)
    assert api.objects[JOB]["status"]["reason"] == n.REASON_KAI_QUEUE_NOT_FOUND
    assert "no queue urgent" in api.objects[JOB]["status"]["message"]
    assert ATTEMPT not in api.objects
    queue = {"apiVersion": f"{n.KAI_GROUP}/{n.KAI_QUEUE_VERSION}", "kind": "Queue", "spec": {}}
    api.put(f"{KAI}/queues/urgent", {**queue, "metadata": {"name": "urgent"}})
    settle_of_all(api)
    assert phase(api) == n.PHASE_PROVISIONING
    assert api.objects[f"{KAI_GANGS}{TEAM}/podgroups/vit-0"]["spec"]["queue"] == "urgent"


def settle_of_all(api: FakeApi) -> None:
    objects = Mortal(api)
    reconciler = Reconciler(objects, Facts(objects, "tools@sha256:1"), now=lambda: NOW)
    for _ in range(6):
        reconciler.job("team", "vit")


def test_a_queue_of_kai_goes_after_the_gangs_in_it_wherever_they_are(api: FakeApi) -> None:
    stage(api)
    install_kai(api)
    api.objects[QUEUE]["spec"] |= {"scheduling": {"scheduler": n.KAI_SCHEDULER}, "kaiQueue": "gpu"}
    settle_queue(api)
    settle_of_all(api)
    assert f"{KAI}/queues/gpu" in api.objects
    item = api.objects[QUEUE]
    api.put(QUEUE, {**item, "metadata": {**item["metadata"], "deletionTimestamp": "2026-11-22T11:00:00Z"}})
    told = settle_queue(api)[n.READY]
    assert told == ("False", "is deleted when nothing is left in KAI's queue gpu: PodGroup team/vit-0")
    assert f"{KAI}/queues/gpu" in api.objects
    gang = api.objects[f"{KAI_GANGS}{TEAM}/podgroups/vit-0"]
    api.remove(f"{KAI_GANGS}{TEAM}/podgroups/vit-0")
    elsewhere = f"{KAI_GANGS}/namespaces/other/podgroups/bert-0"
    # Not of a job of ours, and so without its label.
    api.put(elsewhere, {**gang, "metadata": {"name": "bert-0", "namespace": "other"}})
    settle_queue(api)
    assert f"{KAI}/queues/gpu" in api.objects
    api.remove(elsewhere)
    below = thing(f"{n.KAI_GROUP}/{n.KAI_QUEUE_VERSION}", "Queue", "below", {"parentQueue": "gpu"})
    api.put(f"{KAI}/queues/below", below)
    assert settle_queue(api)[n.READY][1].endswith("KAI's queue gpu: Queue team/below")
    assert f"{KAI}/queues/gpu" in api.objects
    api.remove(f"{KAI}/queues/below")
    settle_queue(api)
    assert f"{KAI}/queues/gpu" not in api.objects
    assert QUEUE not in api.objects


READ = [
    QUEUE,
    "/apis/storage.k8s.io/v1/storageclasses",
    f"/apis/batch/v1{TEAM}/jobs",
    f"/api/v1{TEAM}/services",
]


@pytest.mark.parametrize("path", READ)
def test_a_right_to_read_that_is_missing_is_told_by_the_job_until_it_is_given(
    api: FakeApi, path: str
) -> None:
    stage(api)
    api.refused = {("GET", path)}
    objects = Mortal(api)
    reconciler = Reconciler(objects, Facts(objects, "tools@sha256:1"), now=lambda: NOW)
    for _ in range(2):
        with pytest.raises(ApiError, match="403"):
            reconciler.job("team", "vit")
    status = api.objects[JOB]["status"]
    assert (status["phase"], status["reason"]) == (n.PHASE_PENDING, n.REASON_REFUSED)
    assert f"GET {path}" in status["message"]
    assert status["observedGeneration"] == 1
    (condition,) = status["conditions"]
    assert (condition["type"], condition["status"]) == (n.ACCEPTED, "False")
    (event,) = (api.objects[f"/api/v1{TEAM}/events/{name}"] for name in api.names(f"/api/v1{TEAM}/events"))
    assert (event["type"], event["reason"], event["message"]) == ("Warning", "Refused", status["message"])
    api.refused = set()
    settle(objects)
    assert phase(api) == n.PHASE_PROVISIONING


def test_how_a_job_ended_stays_told_when_a_right_is_missing_later(api: FakeApi) -> None:
    stage(api)
    api.objects[JOB]["spec"]["maxRestarts"] = 0
    settle(Mortal(api))
    workers(api, "Failed", exit_code=7)
    api.objects[ATTEMPT]["status"] = {"conditions": [{"type": "Failed", "status": "True"}]}
    settle(Mortal(api))
    ended = copy.deepcopy(api.objects[JOB]["status"])
    assert (ended["phase"], ended["exitCode"]) == (n.PHASE_FAILED, 7)
    api.refused = {("GET", f"/api/v1{TEAM}/services")}
    objects = Mortal(api)
    with pytest.raises(ApiError, match="403"):
        Reconciler(objects, Facts(objects, "tools@sha256:1"), now=lambda: NOW).job("team", "vit")
    assert (api.objects[JOB]["status"], objects.writes) == (ended, 0)


def test_a_right_to_read_that_is_missing_is_told_by_the_queue(api: FakeApi) -> None:
    stage(api)
    api.refused = {("GET", f"/apis/{n.API_VERSION}{TEAM}/torchrunjobs")}
    objects = Mortal(api)
    with pytest.raises(ApiError, match="403"):
        Reconciler(objects, Facts(objects, "tools@sha256:1"), now=lambda: NOW).queue("team", "h100")
    (condition,) = api.objects[QUEUE]["status"]["conditions"]
    assert (condition["type"], condition["reason"]) == (n.READY, n.REASON_REFUSED)


def outcome(api: FakeApi) -> dict[str, Any]:
    """What there is in the end, but for what the clock and the order of writes say."""
    return {
        path: (item.get("spec"), item.get("status"), item["metadata"].get("labels"))
        for path, item in api.objects.items()
        if "/events/" not in path
    }


def whole(api: FakeApi, kill: int, *, after: bool) -> int:
    """A job's life with a controller that dies at its write of this number; returns the writes of all."""
    stage(api)
    written = 0
    for change in (lambda: None, lambda: workers(api, "Running"), lambda: finish(api)):
        change()
        objects = Mortal(api, max(0, kill - written), after=after)
        try:
            settle(objects)
        except Killed:
            settle(Mortal(api))
        written += objects.writes
    return written


def test_a_kill_at_any_write_ends_as_if_nothing_had_been() -> None:
    with serving(FakeApi()) as api:
        writes = whole(api, 0, after=False)
        undisturbed = outcome(api)
    assert writes > 5
    for kill in range(1, writes + 1):
        for after in (False, True):
            with serving(FakeApi()) as api:
                whole(api, kill, after=after)
                assert outcome(api) == undisturbed, (kill, after)
