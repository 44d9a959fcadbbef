"""Check each node of a pool with the pool's CronJob, and print which nodes are fit for training.

No node is launched. Busy nodes are left alone.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trainyard.cli.follow import job_result
from trainyard.k8s import kubeconfig as kubeconfigs
from trainyard.k8s import names
from trainyard.k8s.client import ApiError, ApiUnavailable, Client, RetryPolicy

Object = dict[str, Any]

HOSTNAME_LABEL = "kubernetes.io/hostname"
JOB_LABEL = "batch.kubernetes.io/job-name"
POLL_SECONDS = 1.0
# A scheduler places a pod within a second; one that still waits waits for devices that others have.
BUSY_SECONDS = 20.0
# An image of 20 GB takes minutes; the Job itself ends a little later, and its pod goes with it.
PATIENCE_SECONDS = 600.0


class CheckError(Exception):
    """The nodes can't be checked."""


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """The result of one node's check. `fit` is None if it was not checked. `lines` are printed."""

    fit: bool | None
    lines: tuple[str, ...]


def job_for(cron: Object, node: str, hostname: str) -> Object:
    """Return a Job of the CronJob's template that runs on exactly this node. Pure."""
    template = cron["spec"]["jobTemplate"]
    spec = template["spec"]
    pod = spec["template"]["spec"]
    selector = {**pod.get("nodeSelector", {}), HOSTNAME_LABEL: hostname}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            "generateName": f"{cron['metadata']['name']}-",
            "labels": template.get("metadata", {}).get("labels", {}),
            "annotations": {"trainyard.dev/node": node},
        },
        "spec": {
            **spec,
            "template": {**spec["template"], "spec": {**pod, "nodeSelector": selector}},
        },
    }


def lacking(cron: Object, node: Object) -> list[str]:
    """Return lines about devices that the Node does not offer. A pod that requests them would wait forever. Pure."""
    (container,) = cron["spec"]["jobTemplate"]["spec"]["template"]["spec"]["containers"]
    offered = node["status"].get("allocatable") or {}
    return [
        f"{node['metadata']['name']}: the Node offers {offered.get(name, '0')} {name}; it must be {wanted}:"
        " look at the log of its device plugin"
        for name, wanted in container["resources"].get("limits", {}).items()
        if "/" in name and int(offered.get(name, "0")) < int(wanted)
    ]


def judged(
    node: str, pod: Object | None, *, log: str = "", ended: str = "", warning: str = "", waited: float
) -> Verdict | None:
    """Return the result of a check, None while it runs. Pure.

    Args:
        node: The name of the node.
        pod: The pod of the check.
        log: Its log.
        ended: Why its Job ended, empty while it runs.
        warning: The last warning about the pod.
        waited: Seconds since the creation of the Job.
    """

    def unchecked(reason: str) -> Verdict:
        return Verdict(fit=None, lines=(f"{node} was not checked: {reason}",))

    status = (pod or {}).get("status") or {}
    phase = status.get("phase")
    if phase in ("Succeeded", "Failed") and log:
        return Verdict(fit=phase == "Succeeded", lines=tuple(log.splitlines()))
    if phase == "Failed":
        return unchecked(status.get("message") or status.get("reason") or "its pod ended without a word")
    if pod is None and ended:
        return unchecked(f"its pod was removed ({ended})")
    placed = [each for each in status.get("conditions") or () if each["type"] == "PodScheduled"]
    refused = [each.get("message") or "" for each in placed if each["status"] == "False"]
    if refused and waited >= BUSY_SECONDS:
        return unchecked("it is in use" if "Insufficient" in refused[0] else refused[0])
    if waited >= PATIENCE_SECONDS:
        why = warning or "nothing says why"
        return Verdict(
            fit=False, lines=(f"{node}: its check did not start in {PATIENCE_SECONDS:.0f} s: {why}",)
        )
    return None


def find_cron(client: Client, namespace: str, prefix: str, pool: str) -> Object:
    """Return the CronJob `<prefix><pool>`. Raise CheckError if there is none."""
    path = f"/apis/batch/v1/namespaces/{namespace}/cronjobs"
    try:
        return client.request("GET", f"{path}/{prefix}{pool}")
    except ApiError as error:
        if error.status != 404:
            raise
        there = [each["metadata"]["name"] for each in client.list_objects(path)]
        pools = sorted(name.removeprefix(prefix) for name in there if name.startswith(prefix))
        right = (
            f"it must be one of {', '.join(pools)}"
            if pools
            else "set trainyard:nodeCheck: true in the stack file, then run `up`"
        )
        raise CheckError(f"POOL={pool}: the stack has no check of such a pool; {right}") from None


@dataclass
class NodeChecks:
    """The checks on one cluster. Without `context`, they use the current context of the kubeconfig."""

    kubeconfig: Path
    context: str | None
    namespace: str
    say: Callable[[str], None]
    _client: Client = field(init=False)

    def __post_init__(self) -> None:
        self._client, _ = kubeconfigs.connect(str(self.kubeconfig), self.context, RetryPolicy())
        self._pods = f"/api/v1/namespaces/{self.namespace}/pods"
        self._jobs = f"/apis/batch/v1/namespaces/{self.namespace}/jobs"

    def run(self, pool: str) -> int:
        """Check each node of the pool. Return 0 if at least one was checked and all checked ones are fit, else 1.

        Raises:
            CheckError: The pool has no check, or the API server refused or does not respond.
        """
        try:
            return self._run(pool)
        except ApiError as error:
            raise CheckError(f"checking pool {pool}: the API server refused: {error}") from error
        except ApiUnavailable as error:
            raise CheckError(f"checking pool {pool}: the API server does not answer: {error}") from error

    def _run(self, pool: str) -> int:
        cron = find_cron(self._client, self.namespace, names.NODE_CHECK_PREFIX, pool)
        selector = f"{names.LABEL_NODEPOOL}={pool},{names.LABEL_INITIALIZED}=true"
        nodes = self._client.list_objects("/api/v1/nodes", {"labelSelector": selector})
        if not nodes:
            self.say(
                f"pool {pool} has no machine to check, and none was bought: warmNodes keeps some, and a run brings some"
            )
            return 1
        jobs: dict[str, str] = {}
        verdicts = []
        try:
            for node in nodes:
                name = node["metadata"]["name"]
                if missing := lacking(cron, node):
                    verdicts.append(self._report(Verdict(fit=False, lines=tuple(missing))))
                    continue
                if node["spec"].get("unschedulable"):
                    verdicts.append(
                        self._report(Verdict(fit=None, lines=(f"{name} was not checked: it is cordoned",)))
                    )
                    continue
                body = job_for(cron, name, node["metadata"]["labels"][HOSTNAME_LABEL])
                made = self._client.request("POST", self._jobs, body=body, repeatable=False)
                jobs[name] = made["metadata"]["name"]
            verdicts += self._follow(jobs)
        finally:
            for job in jobs.values():
                self._remove(job)
        fit = [verdict.fit for verdict in verdicts]
        self.say(
            f"{fit.count(True)} of {len(nodes)} machines of pool {pool} are fit, {fit.count(False)} are not,"
            f" {fit.count(None)} were not checked"
        )
        return 0 if True in fit and False not in fit else 1

    def _follow(self, jobs: dict[str, str]) -> list[Verdict]:
        """Return the verdicts, and print each at once."""
        began, verdicts = time.monotonic(), []
        waiting = dict(jobs)
        while waiting:
            for node, job in list(waiting.items()):
                verdict = self._check_pod(node, job, time.monotonic() - began)
                if verdict is None:
                    continue
                del waiting[node]
                verdicts.append(self._report(verdict))
            if waiting:
                time.sleep(POLL_SECONDS)
        return verdicts

    def _report(self, verdict: Verdict) -> Verdict:
        for line in verdict.lines:
            self.say(line)
        return verdict

    def _check_pod(self, node: str, job: str, waited: float) -> Verdict | None:
        pods = self._client.list_objects(self._pods, {"labelSelector": f"{JOB_LABEL}={job}"})
        pod = pods[0] if pods else None
        log = ""
        if pod is not None and pod["status"].get("phase") in ("Succeeded", "Failed"):
            try:
                log = self._client.read_text(f"{self._pods}/{pod['metadata']['name']}/log")
            except (ApiError, ApiUnavailable):  # a pod that never started has no log
                log = ""
        result = job_result(self._client.request("GET", f"{self._jobs}/{job}"))
        warning = self._warning(pod) if pod is not None and waited >= PATIENCE_SECONDS else ""
        ended = result[1] if result else ""
        return judged(node, pod, log=log, ended=ended, warning=warning, waited=waited)

    def _warning(self, pod: Object) -> str:
        """Return the last warning about a pod, such as a failed mount."""
        selector = f"type=Warning,involvedObject.uid={pod['metadata']['uid']}"
        path = f"/api/v1/namespaces/{self.namespace}/events"
        events = self._client.list_objects(path, {"fieldSelector": selector})
        return str(events[-1].get("message") or "") if events else ""

    def _remove(self, job: str) -> None:
        try:
            self._client.request("DELETE", f"{self._jobs}/{job}", body={"propagationPolicy": "Background"})
        except ApiError as error:
            if error.status != 404:
                raise
