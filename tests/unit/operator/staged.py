"""A job of two nodes, its queue and its workers on a small API server, and a controller that may be killed."""

from __future__ import annotations

import copy
import json
import time
from collections.abc import Callable
from typing import Any

from tests.unit.launcher.api_server import FakeApi
from trainyard.k8s.objects import Objects
from trainyard.operator import admission
from trainyard.operator import names as n
from trainyard.operator.cluster_reader import ClusterReader
from trainyard.operator.index import RESOURCES, ObjectIndex, converter
from trainyard.operator.reconciler import Reconciler

TEAM = "/namespaces/team"
JOB = f"/apis/{n.API_VERSION}{TEAM}/torchrunjobs/vit"
QUEUE = f"/apis/{n.API_VERSION}{TEAM}/torchrunqueues/h100"
SERVICE = f"/api/v1{TEAM}/services/vit"
ATTEMPT = f"/apis/batch/v1{TEAM}/jobs/vit-0"
PODS = f"/api/v1{TEAM}/pods"
NOW = 1_800_000_000.0
PLURALS = {
    admission.POLICY: "validatingadmissionpolicies",
    admission.BINDING: "validatingadmissionpolicybindings",
}
GUARDED_SINCE = "2026-11-22T09:00:00Z"


class Killed(Exception):
    """The controller was killed here."""


class Mortal(Objects):
    """A client that is killed at this write, before or after it was done; never with 0."""

    def __init__(self, api: FakeApi, at: int = 0, *, after: bool = False) -> None:
        super().__init__(api.client(), n.FIELD_MANAGER)
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

    def put_finalizers(self, *arguments: Any) -> Any:
        return self._write(super().put_finalizers, *arguments)

    def put_status(self, *arguments: Any) -> Any:
        return self._write(super().put_status, *arguments)

    def delete(self, *arguments: Any, **options: Any) -> Any:
        return self._write(super().delete, *arguments, **options)


def stage(api: FakeApi, *, queue: bool = True) -> None:
    """Create a job of two nodes and its queue, on an API server with the admission policies."""
    for each in admission.objects():
        made = {**each, "metadata": {**each["metadata"], "creationTimestamp": GUARDED_SINCE}}
        api.put(f"/apis/{each['apiVersion']}/{PLURALS[each['kind']]}/{each['metadata']['name']}", made)
    spec: dict[str, Any] = {"jobQueue": "h100", "numGPUs": 16, "command": "python train.py"}
    api.put(JOB, thing(n.API_VERSION, n.JOB_KIND, "vit", spec))
    if queue:
        of_queue = {"image": "team/pytorch:1", "nodeResources": {"gpus": 8, "cpus": 96, "memory": "512Gi"}}
        api.put(QUEUE, thing(n.API_VERSION, n.QUEUE_KIND, "h100", of_queue))


def thing(version: str, kind: str, name: str, spec: dict[str, Any]) -> dict[str, Any]:
    meta = {"name": name, "namespace": "team", "generation": 1, "creationTimestamp": "2026-11-22T10:00:00Z"}
    return {"apiVersion": version, "kind": kind, "metadata": meta, "spec": spec}


def reconciler(objects: Objects, clock: Callable[[], float] = time.monotonic, **options: Any) -> Reconciler:
    """Return a controller with an empty cache, at the time NOW unless the options have another one.

    `clock` counts the seconds for which it keeps what it has read.
    """
    reader = ClusterReader(objects, "tools@sha256:1", clock=clock)
    return Reconciler(objects, reader, **{"now": lambda: NOW, **options})


def settle(objects: Objects, index: ObjectIndex | None = None) -> None:
    """Reconcile until nothing is due at once."""
    controller = reconciler(objects, index=index)
    for _ in range(30):
        requeue_after = controller.reconcile_job("team", "vit")
        if requeue_after is None or requeue_after > 1:
            return
    raise AssertionError("it comes to no end")


def index_of(api: FakeApi) -> ObjectIndex:
    """Return the index of the present objects."""
    index = ObjectIndex()
    for kind, (path, _) in RESOURCES.items():
        root, plural = path.rsplit("/", 1)
        for each, item in list(api.objects.items()):
            if each.startswith(f"{root}{TEAM}/{plural}/"):
                index.change(None, converter(kind)(item))
        index.mark_synced(kind)
    return index


def edit(api: FakeApi, path: str, **spec: Any) -> None:
    """Change fields of the spec as a user."""
    item = api.objects[path]
    meta = {**item["metadata"], "generation": item["metadata"]["generation"] + 1}
    api.put(path, {**item, "metadata": meta, "spec": {**item["spec"], **spec}})


def delete(api: FakeApi, path: str) -> None:
    """Delete the object as a user. It stays as long as it has finalizers."""
    item = api.objects[path]
    meta = {**item["metadata"], "deletionTimestamp": "2026-11-22T11:00:00Z"}
    api.put(path, {**item, "metadata": meta})


def phase(api: FakeApi) -> str:
    return str(api.objects[JOB]["status"]["phase"])


def workers(api: FakeApi, state: str, *, exit_code: int | None = None) -> None:
    """Create the workers in this state, as the Job controller and the kubelets do."""
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


KAI = f"/apis/{n.KAI_GROUP}/{n.KAI_QUEUE_VERSION}"
KAI_GANGS = f"/apis/{n.KAI_GROUP}/{n.KAI_POD_GROUP_VERSION}"


def install_kai(api: FakeApi, *, whole: bool = True) -> None:
    """Serve KAI's two kinds and its parent queue; an installation that is not complete has one kind."""
    api.put(KAI, {"metadata": {}, "resources": [{"name": "queues"}, {"name": "queues/status"}]})
    api.put(KAI_GANGS, {"metadata": {}, "resources": [{"name": "podgroups"}] if whole else []})
    put_kai_queue(api, n.KAI_PARENT_QUEUE)


def put_kai_queue(api: FakeApi, name: str, **spec: Any) -> None:
    version = f"{n.KAI_GROUP}/{n.KAI_QUEUE_VERSION}"
    api.put(f"{KAI}/queues/{name}", thing(version, "Queue", name, spec))


def settle_queue(api: FakeApi) -> dict[str, Any]:
    """Reconcile the queue until nothing changes. Return the status and message of each condition."""
    controller = reconciler(Mortal(api), index=index_of(api))
    before = ""
    for _ in range(10):
        controller.reconcile_queue("team", "h100")
        now = json.dumps(api.objects, sort_keys=True)
        if now == before:
            conditions = api.objects.get(QUEUE, {}).get("status", {}).get("conditions", ())
            return {each["type"]: (each["status"], each.get("message", "")) for each in conditions}
        before = now
    raise AssertionError("it comes to no end")
