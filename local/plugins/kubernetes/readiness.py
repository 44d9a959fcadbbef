"""The readiness of an object by kind, as pulumi-kubernetes waits for it.

https://www.pulumi.com/registry/packages/kubernetes/how-to-guides/managing-resources-with-server-side-apply/ and the
"waits until its status is ready" notes in the official SDK's docstrings.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from local.plugins.kubernetes.client import ApiError, Client

Manifest = Mapping[str, Any]


@dataclass(frozen=True)
class Readiness:
    """`ready`, or the reason for the wait. With `failed`, the object can't become ready."""

    ready: bool
    text: str = ""
    failed: bool = False


READY = Readiness(True)
_POD = ("v1", "Pod")


def judge(client: Client, live: Manifest) -> Readiness:
    """Return the readiness of an object, from it and, if its kind needs it, from its Pods."""
    rule = _RULES.get((str(live.get("apiVersion")), str(live.get("kind"))))
    return rule(client, live) if rule else READY


def pod_problems(pods: list[Any]) -> list[str]:
    """Return why Pods do not run, one line each.

    A line is the scheduler's message, or a container's waiting or termination reason.
    """
    lines = []
    for pod in pods:
        name = pod["metadata"]["name"]
        status = pod.get("status") or {}
        for condition in status.get("conditions") or []:
            if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
                lines.append(f"Pod {name}: [{condition.get('reason')}] {condition.get('message')}")
        for container in [
            *(status.get("initContainerStatuses") or []),
            *(status.get("containerStatuses") or []),
        ]:
            state = container.get("state") or {}
            halted = state.get("waiting") or state.get("terminated") or {}
            reason = halted.get("reason")
            if reason and reason not in ("ContainerCreating", "PodInitializing", "Completed"):
                text = f"{reason}: {halted['message']}" if halted.get("message") else reason
                code = f" (exit code {halted['exitCode']})" if "exitCode" in halted else ""
                lines.append(f"Pod {name}, container {container.get('name')}: {text}{code}")
    return lines


def _conditions(live: Manifest) -> dict[str, Mapping[str, Any]]:
    found = (live.get("status") or {}).get("conditions") or []
    return {str(condition.get("type")): condition for condition in found}


def _condition_text(condition: Mapping[str, Any]) -> str:
    return f"[{condition.get('reason')}] {condition.get('message')}"


def _observed(live: Manifest) -> bool:
    status = live.get("status") or {}
    return int(status.get("observedGeneration") or 0) >= int(live["metadata"].get("generation") or 0)


def _pods(client: Client, live: Manifest, labels: Mapping[str, str]) -> list[Any]:
    selector = ",".join(f"{key}={value}" for key, value in sorted(labels.items()))
    return client.list(client.kind(*_POD), live["metadata"].get("namespace"), selector) if selector else []


def _with_pods(client: Client, live: Manifest, text: str) -> str:
    labels = ((live.get("spec") or {}).get("selector") or {}).get("matchLabels") or {}
    return "; ".join([text, *pod_problems(_pods(client, live, labels))])


def _deployment(client: Client, live: Manifest) -> Readiness:
    status = live.get("status") or {}
    wanted = int((live.get("spec") or {}).get("replicas", 1))
    conditions = _conditions(live)
    if not _observed(live):
        return Readiness(False, "Waiting for the Deployment controller")
    progressing = conditions.get("Progressing") or {}
    if progressing.get("reason") == "ProgressDeadlineExceeded":
        return Readiness(False, _with_pods(client, live, _condition_text(progressing)), failed=True)
    updated, available = int(status.get("updatedReplicas") or 0), int(status.get("availableReplicas") or 0)
    if updated >= wanted and available >= wanted and int(status.get("replicas") or 0) == updated:
        return READY
    text = f"Waiting for app ReplicaSet to be available ({available}/{wanted} Pods available)"
    failing = conditions.get("Available") or {}
    if failing.get("status") == "False":
        text = f"{text}; {_condition_text(failing)}"
    return Readiness(False, _with_pods(client, live, text))


def _stateful_set(client: Client, live: Manifest) -> Readiness:
    status = live.get("status") or {}
    wanted = int((live.get("spec") or {}).get("replicas", 1))
    ready = int(status.get("readyReplicas") or 0)
    rolled = status.get("updateRevision") == status.get("currentRevision")
    if _observed(live) and rolled and ready == wanted:
        return READY
    text = f"Waiting for StatefulSet to be ready ({ready}/{wanted} Pods ready)"
    return Readiness(False, _with_pods(client, live, text))


def _daemon_set(client: Client, live: Manifest) -> Readiness:
    status = live.get("status") or {}
    wanted = int(status.get("desiredNumberScheduled") or 0)
    ready = min(int(status.get("numberReady") or 0), int(status.get("updatedNumberScheduled") or 0))
    if _observed(live) and ready >= wanted:
        return READY
    text = f"Waiting for DaemonSet to be ready ({ready}/{wanted} Pods ready)"
    return Readiness(False, _with_pods(client, live, text))


def _job(client: Client, live: Manifest) -> Readiness:
    conditions = _conditions(live)
    failed = conditions.get("Failed") or {}
    if failed.get("status") == "True":
        return Readiness(
            False, _with_pods(client, live, f"Job failed: {_condition_text(failed)}"), failed=True
        )
    if (conditions.get("Complete") or {}).get("status") == "True":
        return READY
    status = live.get("status") or {}
    wanted = int((live.get("spec") or {}).get("completions") or 1)
    done = int(status.get("succeeded") or 0)
    return Readiness(
        False, _with_pods(client, live, f"Waiting for Job to complete ({done}/{wanted} Pods succeeded)")
    )


def _pod(client: Client, live: Manifest) -> Readiness:
    phase = (live.get("status") or {}).get("phase")
    if phase == "Succeeded" or (_conditions(live).get("Ready") or {}).get("status") == "True":
        return READY
    why = pod_problems([dict(live)]) or _warning(client, live)
    text = "; ".join([f"Waiting for Pod to be ready (phase {phase})", *why])
    return Readiness(False, text, failed=phase == "Failed")


def _warning(client: Client, live: Manifest) -> list[str]:
    """Return the newest Warning about a scheduled Pod. Only Events report a volume that can't be mounted."""
    metadata = live["metadata"]
    if not (live.get("spec") or {}).get("nodeName"):
        return []
    about = f"type=Warning,reason!=FailedScheduling,involvedObject.uid={metadata.get('uid')}"
    try:
        events = client.list(client.kind("v1", "Event"), metadata.get("namespace"), fields=about)
    except ApiError as error:
        if error.code != 403:
            raise
        return []
    newest = max(events, key=lambda event: str(event.get("lastTimestamp") or ""), default=None)
    return [f"[{newest.get('reason')}] {newest.get('message')}"] if newest else []


def _service(client: Client, live: Manifest) -> Readiness:
    """Return the readiness of a Service. One with a selector needs a ready Pod.

    Pods replace endpoints here: the API server accepts no endpoints on loopback.
    """
    spec = live.get("spec") or {}
    headless = spec.get("clusterIP") == "None"
    selector = spec.get("selector") or {}
    if spec.get("type") == "ExternalName" or not selector or headless:
        return READY
    pods = _pods(client, live, selector)
    if not any((_conditions(pod).get("Ready") or {}).get("status") == "True" for pod in pods):
        text = f"[1/3] Finding Pods to direct traffic to (0 of {len(pods)} ready)"
        return Readiness(False, "; ".join([text, *pod_problems(pods)]))
    ingress = ((live.get("status") or {}).get("loadBalancer") or {}).get("ingress")
    if spec.get("type") == "LoadBalancer" and not ingress:
        return Readiness(False, "[3/3] Waiting for the load balancer to be given an address")
    return READY


def _claim(client: Client, live: Manifest) -> Readiness:
    """Return the readiness of a claim. One whose class binds at the first use counts as ready."""
    phase = (live.get("status") or {}).get("phase")
    if phase == "Bound":
        return READY
    if phase == "Lost":
        return Readiness(False, "PersistentVolumeClaim has lost its volume", failed=True)
    name = (live.get("spec") or {}).get("storageClassName")
    if name:
        try:
            found = client.get(client.kind("storage.k8s.io/v1", "StorageClass"), None, name) or {}
        except ApiError as error:
            if error.code != 403:
                raise
            found = {}
        if found.get("volumeBindingMode") == "WaitForFirstConsumer":
            return READY
    return Readiness(False, f"Waiting for PersistentVolumeClaim to be bound (phase {phase})")


def _definition(_client: Client, live: Manifest) -> Readiness:
    conditions = _conditions(live)
    refused = conditions.get("NamesAccepted") or {}
    if refused.get("status") == "False":
        return Readiness(False, _condition_text(refused), failed=True)
    if (conditions.get("Established") or {}).get("status") == "True":
        return READY
    return Readiness(False, "Waiting for CustomResourceDefinition to be established")


_RULES: dict[tuple[str, str], Callable[[Client, Manifest], Readiness]] = {
    ("apps/v1", "Deployment"): _deployment,
    ("apps/v1", "StatefulSet"): _stateful_set,
    ("apps/v1", "DaemonSet"): _daemon_set,
    ("batch/v1", "Job"): _job,
    ("v1", "Pod"): _pod,
    ("v1", "Service"): _service,
    ("v1", "PersistentVolumeClaim"): _claim,
    ("apiextensions.k8s.io/v1", "CustomResourceDefinition"): _definition,
}
