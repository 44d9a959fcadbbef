"""A small API server for plans: objects with uids and versions, garbage collection, a Job controller, nodes.

The controller may be killed before any write.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

from launcher.manifests import stamp
from trainyard.operator import names as n
from trainyard.operator.failures import FOLLOWING_SETTLE_SECONDS
from trainyard.operator.plan import WARNING, ReconcilePlan

JsonObject = dict[str, Any]
T = TypeVar("T")
Key = tuple[str, str]
SCHEDULED: JsonObject = {"type": "PodScheduled", "status": "True"}


def copied(item: T) -> T:
    """Return a deep copy, in a fifth of the time of copy.deepcopy: nothing here takes longer than copies."""
    made: T = pickle.loads(pickle.dumps(item, pickle.HIGHEST_PROTOCOL))  # noqa: S301
    return made


def owners_of(item: JsonObject) -> set[str]:
    return {each["uid"] for each in item["metadata"].get("ownerReferences", [])}


class Crash(Exception):
    """The controller ends before this write."""


class Api:
    """Objects, and what Kubernetes does with them. `now` is in seconds since the epoch."""

    places = True  # workers have their nodes at once
    sends = True  # a sync pod has its archive at once

    def __init__(self) -> None:
        self.now = 1_000_000.0
        self.objects: dict[Key, JsonObject] = {}
        self.events: list[str] = []
        self.warning_reasons: list[str] = []
        self.ran: list[tuple[str, str]] = []  # (TorchrunJob's uid, Job's name) of Jobs whose pods ran
        self.count = 0
        self.written: list[str] = []
        self.crash_at: int | None = None  # Crash is raised once, before this number of writes
        self.machines: int | None = None  # the number of nodes; without it there are enough
        self.prompt = True  # the Job controller completes a succeeded Job at once

    # --- what a client does

    def get(self, kind: str, name: str) -> JsonObject | None:
        found = self.objects.get((kind, name))
        return copied(found) if found is not None else None

    def list(self, *kinds: str) -> list[JsonObject]:
        return [copied(item) for (kind, _), item in self.objects.items() if not kinds or kind in kinds]

    def of_kind(self, wanted: str) -> Iterator[JsonObject]:
        """The objects themselves, for who does not change them."""
        return (item for (kind, _), item in self.objects.items() if kind == wanted)

    def create(self, item: JsonObject) -> bool:
        key = (item["kind"], item["metadata"]["name"])
        if key in self.objects:
            return False
        if item["kind"] == "Job":
            assert needed(item) <= item["spec"]["completions"], "the API server refuses such a successPolicy"
        made = copied(item)
        self.count += 1
        made["metadata"] |= {"uid": f"u{self.count}", "resourceVersion": str(self.count), "generation": 1}
        made["metadata"]["creationTimestamp"] = stamp(self.now)
        self.objects[key] = made
        return True

    def touch(self, item: JsonObject) -> None:
        self.count += 1
        item["metadata"]["resourceVersion"] = str(self.count)

    def edit(self, kind: str, name: str, **spec: Any) -> None:
        item = self.objects[kind, name]
        item["spec"] = {**item["spec"], **spec}
        item["metadata"]["generation"] += 1
        self.touch(item)

    def change(self, item: JsonObject) -> None:
        """Server-side apply of exactly this object."""
        live = self.objects.get((item["kind"], item["metadata"]["name"]))
        if live is None or live["metadata"]["uid"] != item["metadata"]["uid"]:
            return
        merge(live, {key: value for key, value in item.items() if key != "metadata"})
        live["metadata"].setdefault("annotations", {}).update(item["metadata"].get("annotations", {}))
        self.touch(live)

    def _put(self, item: JsonObject, change: Callable[[JsonObject], None]) -> bool:
        """Change an object that has not changed since it was read. Return whether that is so."""
        live = self.objects.get((item["kind"], item["metadata"]["name"]))
        if live is None or live["metadata"]["resourceVersion"] != item["metadata"]["resourceVersion"]:
            return False
        change(live)
        self.touch(live)
        return True

    def put_status(self, item: JsonObject, status: JsonObject) -> bool:
        return self._put(item, lambda live: live.update(status=copied(status)))

    def delete(
        self, kind: str, name: str, uid: str = "", version: str = "", *, foreground: bool = False
    ) -> None:
        live = self.objects.get((kind, name))
        if live is None or (uid and live["metadata"]["uid"] != uid):
            return
        if version and live["metadata"]["resourceVersion"] != version:
            return
        live["metadata"].setdefault("deletionTimestamp", stamp(self.now))
        if foreground:
            live["metadata"]["foreground"] = True
        self.touch(live)

    # --- what carries a decision out

    def crash_after(self, writes: int) -> None:
        """The controller ends, once, when it has written so often more."""
        self.crash_at = len(self.written) + writes

    def _write(self, what: str) -> None:
        if self.crash_at == len(self.written):
            self.crash_at = None
            raise Crash(what)
        self.written.append(what)

    def apply(self, item: JsonObject, plan: ReconcilePlan) -> bool:
        """Write a plan as `apply_plan` does. Return False after a conflict."""
        live = self.get(item["kind"], item["metadata"]["name"]) or {}
        is_changed = any(live.get(key) != item.get(key) for key in ("spec", "status"))
        if is_changed and any(each.kind == "NodeClaim" for each in plan.deletions):
            return False
        for each in plan.deletions:
            self._write(f"delete {each.kind} {each.name}")
            self.delete(each.kind, each.name, each.uid, each.version, foreground=each.foreground)
        for made in plan.creations:
            self._write(f"create {made['kind']} {made['metadata']['name']}")
            if not self.create(made):
                return False
        for changed in plan.patches:
            self._write(f"apply {changed['kind']} {changed['metadata']['name']}")
            self.change(changed)
        if plan.finalizers is not None:
            self._write(f"put finalizers {' '.join(plan.finalizers)}".strip())
            finalizers = [*plan.finalizers]
            if not self._put(item, lambda live: live["metadata"].update(finalizers=finalizers)):
                return False
        if plan.status is not None:
            self._write("put status")
            if not self.put_status(item, plan.status):
                return False
        self.events += [event.reason for event in plan.events]
        self.warning_reasons += [event.reason for event in plan.events if event.type == WARNING]
        return True

    # --- what Kubernetes does

    def settle(self) -> None:
        """Garbage collection and the Job controller, until nothing changes."""
        before = -1
        while before != self.count:
            before = self.count
            self._collect()
            self._send()
            for item in [each for (kind, _), each in self.objects.items() if kind == "Job"]:
                self._work(item)

    def _send(self) -> None:
        for (kind, name), item in self.objects.items():
            if self.sends and kind == "Pod" and name.endswith("-sync-0") and "status" not in item:
                item["status"] = sync_pod_status(ready=True)
                self.touch(item)

    def _collect(self) -> None:
        uids = {each["metadata"]["uid"] for each in self.objects.values()}
        for key, item in list(self.objects.items()):
            meta = item["metadata"]
            owners = owners_of(item)
            if owners and not owners & uids:
                self.delete(*key) if "deletionTimestamp" not in meta else None
            if "deletionTimestamp" not in meta or meta.get("finalizers"):
                continue
            mine = [each for each in self.objects.values() if meta["uid"] in owners_of(each)]
            if meta.get("foreground") and mine:
                for each in mine:
                    if "deletionTimestamp" not in each["metadata"]:
                        self.delete(each["kind"], each["metadata"]["name"])
                continue
            if key[0] == "Pod" and meta.get("stuck"):
                continue  # its node does not answer
            del self.objects[key]
            self.count += 1

    def pods(self, job: JsonObject) -> Iterable[JsonObject]:
        return [each for each in self.of_kind("Pod") if job["metadata"]["uid"] in owners_of(each)]

    def _work(self, job: JsonObject) -> None:
        meta, spec, status = job["metadata"], job["spec"], job.setdefault("status", {})
        reported = [each["type"] for each in status.get("conditions", [])]
        if reported not in ([], ["SuccessCriteriaMet"]) or "deletionTimestamp" in meta:
            return
        pods = list(self.pods(job))
        phases = [each["status"]["phase"] for each in pods]
        gone = [each for each in pods if "deletionTimestamp" in each["metadata"]]
        made = status.get("made", 0)
        live = [each for each in pods if each["status"]["phase"] in ("Pending", "Running")]
        if reported:
            for each in live:
                self.delete("Pod", each["metadata"]["name"]) if each not in gone else None
            if self.prompt and not live:
                status["conditions"].append({"type": "Complete", "status": "True"})
                self.touch(job)
            return
        if spec["suspend"]:
            for each in pods:
                self.delete("Pod", each["metadata"]["name"]) if each not in gone else None
            status.pop("made", None)  # they are made again
            return
        if "Failed" in phases or gone or len(pods) < made:
            status["conditions"] = [{"type": "Failed", "status": "True"}]
            for each in live:
                self.delete("Pod", each["metadata"]["name"])
            self.touch(job)
        elif made and phases.count("Succeeded") >= needed(job):
            status["conditions"] = [{"type": "SuccessCriteriaMet", "status": "True"}]
            self.touch(job)
        elif not made:
            status |= {"made": spec["completions"], "startTime": stamp(self.now)}
            self.ran.append((meta["ownerReferences"][0]["uid"], meta["name"]))
            for index in range(spec["completions"]):
                self.create(_pod(job, index, self.count, f"n{index}" if self.has_room() else ""))
            self.touch(job)

    def workers(self) -> list[JsonObject]:
        """Pods of Jobs that are not over."""
        pods = (each for each in self.of_kind("Pod") if n.LABEL_ATTEMPT in each["metadata"]["labels"])
        return [each for each in pods if each["status"]["phase"] in ("Pending", "Running")]

    def has_room(self) -> bool:
        """Whether one more worker gets a node."""
        placed = sum(bool(each["spec"]["nodeName"]) for each in self.workers())
        return self.places and (self.machines is None or placed < self.machines)

    def bring(self, machines: int | None) -> None:
        """From now on there are so many machines."""
        self.machines = machines
        for index, each in enumerate(self.workers()):
            if not each["spec"]["nodeName"] and self.has_room():
                each["spec"]["nodeName"] = f"m{index}"
                self.touch(each)

    def run_pods(
        self, phase: str, *, exit_code: int | None = None, message: str = "", only: int | None = None
    ) -> bool:
        """Pods that are not over come to this phase, one of them or all; whether there were any."""
        placed = (each for each in self.workers() if each["spec"]["nodeName"])
        live = [each for each in placed if "deletionTimestamp" not in each["metadata"]]
        chosen = live if only is None else live[only % len(live) :][:1] if live else []
        for each in chosen:
            ready = "True" if phase == "Running" else "False"
            each["status"] = {"phase": phase, "conditions": [{"type": "Ready", "status": ready}]}
            if exit_code is not None:
                # So long ago that no earlier failure of another worker is waited for.
                at = self.now - FOLLOWING_SETTLE_SECONDS
                ended = {"exitCode": exit_code, "finishedAt": stamp(at), "message": message}
                each["status"]["containerStatuses"] = [{"name": "torchrun", "state": {"terminated": ended}}]
            self.touch(each)
        self.settle()
        return bool(chosen)


def sync_pod_status(*, ready: bool, **more: Any) -> JsonObject:
    """The status of a sync pod that runs; it is ready where it has an archive."""
    container = {"name": n.SYNC_CONTAINER, "ready": ready, "state": {"running": {}}, **more}
    return {"phase": "Running", "conditions": [SCHEDULED], "containerStatuses": [container]}


def needed(job: JsonObject) -> int:
    """With how many pods a Job succeeds."""
    policy = job["spec"].get("successPolicy", {"rules": [{"succeededCount": job["spec"]["completions"]}]})
    return int(policy["rules"][0]["succeededCount"])


def _pod(job: JsonObject, index: int, serial: int, node: str) -> JsonObject:
    template = job["spec"]["template"]
    name, uid = job["metadata"]["name"], job["metadata"]["uid"]
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": name, "uid": uid}
    meta = {
        **copied(template["metadata"]),
        "name": f"{name}-{index}-{serial}",
        "namespace": job["metadata"]["namespace"],
        "ownerReferences": [owner],
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": meta,
        "spec": {"nodeName": node, "containers": copied(template["spec"]["containers"])},
        "status": {"phase": "Pending", "conditions": [SCHEDULED] if node else []},
    }


def merge(live: JsonObject, wanted: JsonObject) -> None:
    """Puts fields, and leaves the others."""
    for key, value in wanted.items():
        if isinstance(value, dict) and isinstance(live.get(key), dict):
            merge(live[key], value)
        else:
            live[key] = copied(value)
