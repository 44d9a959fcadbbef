"""Measure the network between nodes of a pool: run its CronJob's pod on as many nodes as the user says.

No node is launched, and busy nodes are left alone. The entry point is `FabricCheck.run`.
"""

from __future__ import annotations

import copy
import secrets
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from trainyard.cli.node_checks import BUSY_SECONDS, JOB_LABEL, PATIENCE_SECONDS, CheckError, find_cron
from trainyard.k8s import kubeconfig as kubeconfigs
from trainyard.k8s import names
from trainyard.k8s.client import ApiError, ApiUnavailable, Client, RetryPolicy

Object = dict[str, Any]

POLL_SECONDS = 1.0
# The exit codes of a check that ran to its end (trainer/fabric_check.py).
_RESULTS = (0, 1)
_GRACE_SECONDS = 10.0
_LAST_LINES = 10
INDEX_LABEL = "batch.kubernetes.io/job-completion-index"


def job_for(cron: Object, name: str, nodes: int) -> Object:
    """Return a Job of the CronJob's template with a pod on each of `nodes` nodes. Pure."""
    job: Object = copy.deepcopy(cron["spec"]["jobTemplate"])
    spec = job["spec"]
    pod = spec["template"]["spec"]
    first = f"{name}-0.{pod['subdomain']}"
    (container,) = pod["containers"]
    changed = {"PET_NNODES": str(nodes), "PET_MASTER_ADDR": first}
    container["env"] = [
        {"name": each["name"], "value": changed[each["name"]]} if each["name"] in changed else each
        for each in container["env"]
    ]
    spec |= {"completions": nodes, "parallelism": nodes}
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
    refused = [
        condition.get("message") or ""
        for pod in pods
        for condition in pod["status"].get("conditions") or ()
        if condition["type"] == "PodScheduled" and condition["status"] == "False"
    ]
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


class FabricCheck:
    """The check on one cluster. Without `context`, it uses the current context of the kubeconfig."""

    def __init__(
        self, kubeconfig: Path, context: str | None, namespace: str, say: Callable[[str], None]
    ) -> None:
        self._client: Client
        self._client, _ = kubeconfigs.connect(str(kubeconfig), context, RetryPolicy())
        self._namespace, self._say = namespace, say
        self._pods = f"/api/v1/namespaces/{namespace}/pods"
        self._jobs = f"/apis/batch/v1/namespaces/{namespace}/jobs"

    def run(self, pool: str, nodes: int) -> int:
        """Run the check on `nodes` nodes and print what its first process prints. Return its exit code.

        Raises:
            CheckError: There is no check of this pool, there are fewer nodes, or the API server refused.
        """
        if nodes < 1:
            raise CheckError(f"NODES={nodes} must be at least 1")
        try:
            cron = find_cron(self._client, self._namespace, names.FABRIC_CHECK_PREFIX, pool)
            selector = f"{names.LABEL_NODEPOOL}={pool},{names.LABEL_INITIALIZED}=true"
            there = len(self._client.list_objects("/api/v1/nodes", {"labelSelector": selector}))
            if nodes > there:
                raise CheckError(
                    f"NODES={nodes}: pool {pool} has {there} nodes, and the check launches none. "
                    "Set warmNodes, or start a run"
                )
            name = f"{cron['metadata']['name']}-{secrets.token_hex(3)}"
            self._client.request("POST", self._jobs, body=job_for(cron, name, nodes), repeatable=False)
            try:
                return self._follow(pool, name, nodes)
            finally:
                self._remove(name)
        except ApiError as error:
            raise CheckError(f"pool {pool}: the API server refused: {error}") from error
        except ApiUnavailable as error:
            raise CheckError(f"pool {pool}: the API server does not respond: {error}") from error

    def _follow(self, pool: str, job: str, nodes: int) -> int:
        began, printed, failed_since = time.monotonic(), 0, None
        while True:
            pods = self._client.list_objects(self._pods, {"labelSelector": f"{JOB_LABEL}={job}"})
            pod, failed = first_pod(pods), failed_pod(pods)
            now = time.monotonic()
            if pod is not None:
                code = exit_code(pod)
                text = self._log(pod["metadata"]["name"])
                # The last line of a running container may be incomplete.
                lines = text.splitlines() if code is not None else text.split("\n")[:-1]
                for line in lines[printed:]:
                    self._say(line)
                printed = max(printed, len(lines))
                if code in _RESULTS or (code is not None and failed is None):
                    return code
            # The first pod ends soon after another one that found the same. Otherwise it waits for that one.
            if failed is not None:
                failed_since = failed_since or now
                if pod is None or exit_code(pod) is not None or now - failed_since >= _GRACE_SECONDS:
                    raise CheckError(self._describe_failure(pool, failed))
            if not printed and (why := pending_reason(pods, nodes, now - began)):
                raise CheckError(f"pool {pool}: {why}")
            time.sleep(POLL_SECONDS)

    def _describe_failure(self, pool: str, pod: Object) -> str:
        for line in self._log(pod["metadata"]["name"]).splitlines()[-_LAST_LINES:]:
            self._say(line)
        node = pod["spec"].get("nodeName") or "no node"
        return f"pool {pool}: pod {pod['metadata']['name']} on {node} failed with exit code {exit_code(pod)}"

    def _log(self, pod: str) -> str:
        try:
            return self._client.read_text(f"{self._pods}/{pod}/log")
        except ApiError:  # the container has not started
            return ""

    def _remove(self, job: str) -> None:
        try:
            self._client.request("DELETE", f"{self._jobs}/{job}", body={"propagationPolicy": "Background"})
        except ApiError as error:
            if error.status != 404:
                raise
