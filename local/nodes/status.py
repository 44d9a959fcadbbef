"""Compute a pod's status from the states of its containers, as a kubelet reports it. Pure. See `pod_status`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from local.nodes.api import Object, epoch, timestamp

Stage = Literal["waiting", "running", "terminated"]
KILLED = 137
BACK_OFF_SECONDS = 10.0


@dataclass
class ContainerState:
    """The state of one container. Times are seconds since 1970. `last` is the previous run's `terminated`."""

    name: str
    image: str = ""
    image_id: str = ""
    stage: Stage = "waiting"
    reason: str = "ContainerCreating"
    message: str = ""
    exit_code: int = 0
    started_at: float = 0.0
    finished_at: float = 0.0
    restarts: int = 0
    last: Object | None = None
    ready: bool = False
    started: bool = False

    def run(self, now: float) -> None:
        self.stage, self.reason, self.message, self.started_at = "running", "", "", now
        self.ready = self.started = False

    def wait(self, reason: str, message: str) -> None:
        """Record that the container waits, with a reason. A previous run becomes the last state."""
        if self.stage == "terminated":
            self.last = self.terminated()
        self.stage, self.reason, self.message = "waiting", reason, message
        self.ready = self.started = False

    def end(self, exit_code: int, now: float, reason: str = "", message: str = "") -> None:
        self.stage, self.exit_code, self.finished_at = "terminated", exit_code, now
        self.reason = reason or ("Completed" if exit_code == 0 else "Error")
        self.message = message
        self.ready = self.started = False

    def terminated(self) -> Object:
        """Return the last run as ContainerStateTerminated."""
        found: Object = {
            "exitCode": self.exit_code,
            "reason": self.reason,
            "startedAt": timestamp(self.started_at or self.finished_at),
            "finishedAt": timestamp(self.finished_at),
            "containerID": f"trainyard://{self.name}-{self.restarts}",
        }
        return found | ({"message": self.message} if self.message else {})

    def state(self) -> Object:
        if self.stage == "running":
            return {"running": {"startedAt": timestamp(self.started_at)}}
        if self.stage == "terminated":
            return {"terminated": self.terminated()}
        return {"waiting": {"reason": self.reason} | ({"message": self.message} if self.message else {})}

    def report(self, init: bool = False) -> Object:
        """Return the ContainerStatus. An init container is ready after it has succeeded."""
        done = init and self.stage == "terminated" and self.exit_code == 0
        return {
            "name": self.name,
            "image": self.image,
            "imageID": self.image_id or self.image,
            "containerID": "" if self.stage == "waiting" else f"trainyard://{self.name}-{self.restarts}",
            "ready": self.ready or done,
            "started": self.started,
            "restartCount": self.restarts,
            "state": self.state(),
            "lastState": {"terminated": self.last} if self.last else {},
        }

    @classmethod
    def of(cls, report: Object) -> ContainerState:
        """Return the state of a ContainerStatus, from which a restarted local/nodes process continues."""
        found = cls(
            name=report["name"],
            image=report.get("image", ""),
            image_id=report.get("imageID", ""),
            restarts=report.get("restartCount", 0),
            last=report.get("lastState", {}).get("terminated"),
            ready=report.get("ready", False),
            started=report.get("started") or False,
        )
        state = report.get("state", {})
        if "running" in state:
            found.stage, found.reason = "running", ""
            found.started_at = epoch(state["running"]["startedAt"])
        elif "terminated" in state:
            ended = state["terminated"]
            found.stage, found.exit_code = "terminated", ended["exitCode"]
            found.reason, found.message = ended.get("reason", ""), ended.get("message", "")
            found.started_at = epoch(ended["startedAt"]) if ended.get("startedAt") else 0.0
            found.finished_at = epoch(ended["finishedAt"]) if ended.get("finishedAt") else 0.0
        elif "waiting" in state:
            found.reason = state["waiting"].get("reason", "")
            found.message = state["waiting"].get("message", "")
        return found


def restarts_after(policy: str, exit_code: int) -> bool:
    """Return whether a container with this restartPolicy restarts after this exit code."""
    return policy == "Always" or (policy == "OnFailure" and exit_code != 0)


def back_off(restarts: int) -> float:
    """Return the seconds before a restart: 0 for the first one, then BACK_OFF_SECONDS, doubled up to 30 times that."""
    return 0.0 if restarts == 0 else BACK_OFF_SECONDS * min(2 ** (restarts - 1), 30)


def phase(policy: str, init: list[ContainerState], containers: list[ContainerState]) -> str:
    """Return the pod's phase.

    Containers that will restart keep the pod Running. Only a final exit fails it. `init` has the run-once init
    containers only (no sidecars).
    """
    for state in init:
        if state.stage != "terminated" or state.exit_code != 0:
            final = state.stage == "terminated" and policy == "Never"
            return "Failed" if final else "Pending"
    if all(s.stage == "terminated" and not restarts_after(policy, s.exit_code) for s in containers):
        return "Succeeded" if all(s.exit_code == 0 for s in containers) else "Failed"
    all_started = all(s.stage != "waiting" or s.restarts or s.last for s in containers)
    return "Running" if all_started else "Pending"


def condition(kind: str, holds: bool, now: float, before: list[Object], reason: str, message: str) -> Object:
    """Return one pod condition. The last transition time stays while the status stays the same."""
    value = "True" if holds else "False"
    old = next((c for c in before if c["type"] == kind and c["status"] == value), None)
    since = old.get("lastTransitionTime") if old else None
    found = {
        "type": kind,
        "status": value,
        "lastProbeTime": None,
        "lastTransitionTime": since or timestamp(now),
    }
    # Explicit nulls, because a strategic merge patch keeps omitted fields.
    return found | {"reason": reason if not holds else None, "message": message if not holds else None}


def conditions(
    pod_phase: str,
    init: list[ContainerState],
    containers: list[ContainerState],
    before: list[Object],
    now: float,
) -> list[Object]:
    """Return the conditions that a kubelet owns. Those of others (DisruptionTarget ...) stay unchanged."""
    initialized = all(s.stage == "terminated" and s.exit_code == 0 for s in init)
    unready = [s.name for s in containers if not s.ready]
    completed = pod_phase in ("Succeeded", "Failed")
    reason = (
        "PodCompleted" if pod_phase == "Succeeded" else "PodFailed" if completed else "ContainersNotReady"
    )
    message = "" if completed else f"containers with unready status: [{' '.join(unready)}]"
    ready = not unready and initialized and not completed
    waiting = (
        f"containers with incomplete status: [{' '.join(s.name for s in init if s.stage != 'terminated')}]"
    )
    return [
        condition("PodReadyToStartContainers", not completed, now, before, "", ""),
        condition("Initialized", initialized, now, before, "ContainersNotInitialized", waiting),
        condition("Ready", ready, now, before, reason, message),
        condition("ContainersReady", ready, now, before, reason, message),
        condition("PodScheduled", True, now, before, "", ""),
    ]


def pod_status(
    pod: Object,
    init: list[ContainerState],
    sidecars: list[ContainerState],
    containers: list[ContainerState],
    ip: str,
    host_ip: str,
    now: float,
    forced_phase: str = "",
) -> Object:
    """Return the whole status to patch.

    Args:
        sidecars: The init containers with restartPolicy Always.
        forced_phase: The final phase of a deleted pod whose containers would otherwise restart.
    """
    policy = pod["spec"].get("restartPolicy", "Always")
    before = pod.get("status", {})
    pod_phase = forced_phase or phase(policy, init, containers)
    found: Object = {
        "phase": pod_phase,
        "conditions": conditions(pod_phase, init, containers, before.get("conditions", []), now),
        "hostIP": host_ip,
        "hostIPs": [{"ip": host_ip}],
        "podIP": ip,
        "podIPs": [{"ip": ip}],
        "startTime": before.get("startTime") or timestamp(now),
        "containerStatuses": [state.report() for state in containers],
    }
    if init or sidecars:
        once = {state.name: state.report(init=True) for state in init}
        always = {state.name: state.report() for state in sidecars}
        names = [c["name"] for c in pod["spec"].get("initContainers", [])]
        found["initContainerStatuses"] = [(once | always)[name] for name in names]
    return found


def end_phase(containers: list[ContainerState]) -> str:
    """Return the phase of a deleted pod: Succeeded only if every container exited with 0."""
    good = all(s.stage == "terminated" and s.exit_code == 0 for s in containers)
    return "Succeeded" if good else "Failed"
