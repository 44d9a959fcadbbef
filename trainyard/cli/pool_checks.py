"""Check the nodes of a pool, or the network between them, with the pool's CronJobs.

No node is launched, and busy nodes are left alone. The entry points are `NodeChecks.run` and `FabricCheck.run`.
"""

from __future__ import annotations

import contextlib
import copy
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainyard.cli.errors import CommandError
from trainyard.cli.follow import job_result
from trainyard.cli.make_variables import user_variable
from trainyard.k8s import kubeconfig as kubeconfigs
from trainyard.k8s import names
from trainyard.k8s.client import ApiError, ApiUnavailable, RetryPolicy

Object = dict[str, Any]

HOSTNAME_LABEL = "kubernetes.io/hostname"
JOB_LABEL = "batch.kubernetes.io/job-name"
INDEX_LABEL = "batch.kubernetes.io/job-completion-index"
POLL_SECONDS = 1.0
# A scheduler places a pod within a second; one that still waits waits for devices that others have.
BUSY_SECONDS = 20.0
# An image of 20 GB takes minutes; the Job itself ends a little later, and its pod goes with it.
PATIENCE_SECONDS = 600.0
# The exit codes of a fabric check that ran to its end (trainer/fabric_check.py).
_RESULTS = (0, 1)
_GRACE_SECONDS = 10.0
_LAST_LINES = 10


class _PoolCheck:
    """The cluster of a kubeconfig, and the namespace of the checks."""

    def __init__(self, kubeconfig: Path, namespace: str, report: Callable[[str], None]) -> None:
        self._client, _ = kubeconfigs.connect(str(kubeconfig), None, RetryPolicy())
        self._report = report
        self._namespace = namespace
        self._pods = f"/api/v1/namespaces/{namespace}/pods"
        self._jobs = f"/apis/batch/v1/namespaces/{namespace}/jobs"

    @contextlib.contextmanager
    def _explain(self, pool: str) -> Iterator[None]:
        """Raise CommandError where the API server refuses or does not respond."""
        try:
            yield
        except ApiError as error:
            raise CommandError(f"checking pool {pool}: the API server refused: {error}") from error
        except ApiUnavailable as error:
            raise CommandError(f"checking pool {pool}: the API server does not respond: {error}") from error

    def _find_cron(self, prefix: str, pool: str) -> Object:
        """Return the CronJob `<prefix><pool>`. Raise CommandError if there is none."""
        path = f"/apis/batch/v1/namespaces/{self._namespace}/cronjobs"
        try:
            return self._client.request("GET", f"{path}/{prefix}{pool}")
        except ApiError as error:
            if error.status != 404:
                raise
        found = [str(each["metadata"]["name"]) for each in self._client.list_objects(path)]
        pools = ", ".join(sorted(name.removeprefix(prefix) for name in found if name.startswith(prefix)))
        way = (
            f"it must be one of {pools}"
            if pools
            else "set trainyard:nodeCheck: true in the stack file, then run `up`"
        )
        raise CommandError(f"{user_variable('POOL', pool)}: the stack has no check of such a pool; {way}")

    def _nodes(self, pool: str) -> list[Object]:
        selector = f"{names.LABEL_NODEPOOL}={pool},{names.LABEL_INITIALIZED}=true"
        return self._client.list_objects("/api/v1/nodes", {"labelSelector": selector})

    def _start(self, body: Object) -> str:
        """Create a Job and return its name."""
        return str(self._client.request("POST", self._jobs, body=body, repeatable=False)["metadata"]["name"])

    def _pods_of(self, job: str) -> list[Object]:
        return self._client.list_objects(self._pods, {"labelSelector": f"{JOB_LABEL}={job}"})

    def _log(self, pod: Object) -> str:
        try:
            return self._client.read_text(f"{self._pods}/{pod['metadata']['name']}/log")
        except (ApiError, ApiUnavailable):  # a container that has not started has no log
            return ""

    def _remove(self, job: str) -> None:
        try:
            self._client.request("DELETE", f"{self._jobs}/{job}", body={"propagationPolicy": "Background"})
        except ApiError as error:
            if error.status != 404:
                raise


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """The result of one node's check. `fit` is None if it was not checked. `lines` are printed."""

    fit: bool | None
    lines: tuple[str, ...]


def node_job(cron: Object, node: str, hostname: str) -> Object:
    """Return a Job of the CronJob's template that runs on exactly this node. Pure."""
    template = copy.deepcopy(cron["spec"]["jobTemplate"])
    template["spec"]["template"]["spec"].setdefault("nodeSelector", {})[HOSTNAME_LABEL] = hostname
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            "generateName": f"{cron['metadata']['name']}-",
            "labels": template.get("metadata", {}).get("labels", {}),
            "annotations": {"trainyard.dev/node": node},
        },
        "spec": template["spec"],
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


def evaluate(
    node: str, pod: Object | None, *, log: str = "", ended: str = "", warning: str = "", waited: float
) -> Verdict | None:
    """Return the result of a check, None while it runs. Pure.

    Args:
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
    refused = [] if pod is None else _unschedulable([pod])
    if refused and waited >= BUSY_SECONDS:
        return unchecked("it is in use" if "Insufficient" in refused[0] else refused[0])
    if waited < PATIENCE_SECONDS:
        return None
    line = f"{node}: its check did not start in {PATIENCE_SECONDS:.0f} s: {warning or 'nothing says why'}"
    return Verdict(fit=False, lines=(line,))


def _unschedulable(pods: Sequence[Object]) -> list[str]:
    """Return why the scheduler finds no node for pods."""
    return [
        condition.get("message") or ""
        for pod in pods
        for condition in pod["status"].get("conditions") or ()
        if condition["type"] == "PodScheduled" and condition["status"] == "False"
    ]


class NodeChecks(_PoolCheck):
    """Checks each node of a pool on its own, and prints which nodes are fit for training."""

    def run(self, pool: str) -> int:
        """Check each node of the pool. Return 0 if at least one was checked and all checked ones are fit, else 1.

        Raises:
            CommandError: The pool has no check, or the API server refused or does not respond.
        """
        with self._explain(pool):
            cron = self._find_cron(names.NODE_CHECK_PREFIX, pool)
            nodes = self._nodes(pool)
            if not nodes:
                self._report(
                    f"pool {pool}: has no node, and the check launches none. Set warmNodes, or start a run"
                )
                return 1
            fit = []
            for verdict in self._verdicts(cron, nodes):
                for line in verdict.lines:
                    self._report(line)
                fit.append(verdict.fit)
        self._report(
            f"{fit.count(True)} of {len(nodes)} nodes of pool {pool} are fit, {fit.count(False)} are not,"
            f" {fit.count(None)} were not checked"
        )
        return 0 if True in fit and False not in fit else 1

    def _verdicts(self, cron: Object, nodes: Sequence[Object]) -> Iterator[Verdict]:
        """Start the checks of all nodes, and yield each verdict when it is known."""
        waiting: dict[str, str] = {}
        try:
            for node in nodes:
                name = node["metadata"]["name"]
                if missing := lacking(cron, node):
                    yield Verdict(fit=False, lines=tuple(missing))
                elif node["spec"].get("unschedulable"):
                    yield Verdict(fit=None, lines=(f"{name} was not checked: it is cordoned",))
                else:
                    body = node_job(cron, name, node["metadata"]["labels"][HOSTNAME_LABEL])
                    waiting[name] = self._start(body)
            began = time.monotonic()
            while waiting:
                for name, job in list(waiting.items()):
                    if verdict := self._verdict(name, job, time.monotonic() - began):
                        yield verdict
                        self._remove(waiting.pop(name))
                time.sleep(POLL_SECONDS if waiting else 0)
        finally:
            for job in waiting.values():
                self._remove(job)

    def _verdict(self, node: str, job: str, waited: float) -> Verdict | None:
        pod = next(iter(self._pods_of(job)), None)
        log = ""
        if pod is not None and pod["status"].get("phase") in ("Succeeded", "Failed"):
            log = self._log(pod)
        result = job_result(self._client.request("GET", f"{self._jobs}/{job}"))
        warning = self._warning(pod) if pod is not None and waited >= PATIENCE_SECONDS else ""
        return evaluate(node, pod, log=log, ended=result[1] if result else "", warning=warning, waited=waited)

    def _warning(self, pod: Object) -> str:
        """Return the last warning about a pod, such as a failed mount."""
        selector = f"type=Warning,involvedObject.uid={pod['metadata']['uid']}"
        path = f"/api/v1/namespaces/{self._namespace}/events"
        events = self._client.list_objects(path, {"fieldSelector": selector})
        return str(events[-1].get("message") or "") if events else ""


def fabric_job(cron: Object, name: str, nodes: int) -> Object:
    """Return a Job of the CronJob's template with a pod on each of `nodes` nodes. Pure."""
    job: Object = copy.deepcopy(cron["spec"]["jobTemplate"])
    pod = job["spec"]["template"]["spec"]
    changed = {"PET_NNODES": str(nodes), "PET_MASTER_ADDR": f"{name}-0.{pod['subdomain']}"}
    (container,) = pod["containers"]
    for variable in container["env"]:
        if variable["name"] in changed:
            variable["value"] = changed[variable["name"]]
    job["spec"] |= {"completions": nodes, "parallelism": nodes}
    return {"apiVersion": "batch/v1", "kind": "Job", **job, "metadata": {**job["metadata"], "name": name}}


def first_pod(pods: Sequence[Object]) -> Object | None:
    """Return the pod that prints the measurements."""
    return next((pod for pod in pods if pod["metadata"]["labels"].get(INDEX_LABEL) == "0"), None)


def exit_code(pod: Object) -> int | None:
    """Return the exit code of a pod's container; None while it runs."""
    for status in pod["status"].get("containerStatuses") or ():
        if "terminated" in status["state"]:
            return int(status["state"]["terminated"]["exitCode"])
    return None


def pending_reason(pods: Sequence[Object], nodes: int, waited: float) -> str:
    """Return why the check can't start, "" while it may still start. Pure.

    Args:
        pods: The pods of the Job.
        nodes: How many there must be.
        waited: The seconds since the creation of the Job.
    """
    refused = _unschedulable(pods)
    if refused and waited >= BUSY_SECONDS:
        return (
            f"{len(refused)} of {nodes} pods have no free node: {refused[0]}. "
            "Use fewer nodes, or wait until a run has ended"
        )
    if waited < PATIENCE_SECONDS:
        return ""
    running = sum(pod["status"].get("phase") == "Running" for pod in pods)
    if running < nodes:
        return f"{running} of {nodes} pods run after {waited:.0f} s. Check the Events of the others"
    return (
        f"the {nodes} pods are not connected after {waited:.0f} s. Check security groups and NetworkPolicies"
    )


def failed_pod(pods: Sequence[Object]) -> Object | None:
    """Return a pod other than the first that has failed."""
    first = first_pod(pods)
    return next((pod for pod in pods if pod is not first and exit_code(pod) not in (None, 0)), None)


class FabricCheck(_PoolCheck):
    """Measures the network between as many nodes of a pool as the user says."""

    def run(self, pool: str, nodes: int) -> int:
        """Run the check on `nodes` nodes and print what its first process prints. Return its exit code.

        Raises:
            CommandError: There is no check of this pool, there are fewer nodes, or the API server refused.
        """
        wanted = user_variable("NODES", str(nodes))
        if nodes < 1:
            raise CommandError(f"{wanted} must be at least 1")
        with self._explain(pool):
            cron = self._find_cron(names.FABRIC_CHECK_PREFIX, pool)
            if nodes > (found := len(self._nodes(pool))):
                raise CommandError(
                    f"{wanted}: pool {pool} has {found} nodes, and the check launches none. "
                    "Set warmNodes, or start a run"
                )
            name = f"{cron['metadata']['name']}-{secrets.token_hex(3)}"
            self._start(fabric_job(cron, name, nodes))
            try:
                return self._follow(pool, name, nodes)
            finally:
                self._remove(name)

    def _follow(self, pool: str, job: str, nodes: int) -> int:
        began, printed, failed_since = time.monotonic(), 0, None
        while True:
            pods = self._pods_of(job)
            pod, failed = first_pod(pods), failed_pod(pods)
            now = time.monotonic()
            if pod is not None:
                code = exit_code(pod)
                text = self._log(pod)
                # The last line of a running container may be incomplete.
                lines = text.splitlines() if code is not None else text.split("\n")[:-1]
                for line in lines[printed:]:
                    self._report(line)
                printed = max(printed, len(lines))
                if code in _RESULTS or (code is not None and failed is None):
                    if not lines:
                        name = pod["metadata"]["name"]
                        raise CommandError(
                            f"pool {pool}: the log of pod {name}, which has the result, can't be read; its exit code is"
                            f" {code}. Run the check again"
                        )
                    return code
            # The first pod ends soon after another one that found the same. Otherwise it waits for that one.
            if failed is not None:
                failed_since = failed_since or now
                if pod is None or exit_code(pod) is not None or now - failed_since >= _GRACE_SECONDS:
                    raise CommandError(self._describe_failure(pool, failed))
            if not printed and (why := pending_reason(pods, nodes, now - began)):
                raise CommandError(f"pool {pool}: {why}")
            time.sleep(POLL_SECONDS)

    def _describe_failure(self, pool: str, pod: Object) -> str:
        for line in self._log(pod).splitlines()[-_LAST_LINES:]:
            self._report(line)
        node = pod["spec"].get("nodeName") or "no node"
        return f"pool {pool}: pod {pod['metadata']['name']} on {node} failed with exit code {exit_code(pod)}"
