"""`logs`: print the present or archived logs of a job's workers. follow.py has `logs --follow`.

The log of a worker comes from its pod, else from the bucket of its queue, else from the job's status.
"""

from __future__ import annotations

import argparse
from typing import Any

from trainyard.kubectl.cluster import Cluster
from trainyard.kubectl.errors import DONE, NOT_FOUND, USAGE, PluginError
from trainyard.kubectl.log_archive import line_prefix, logs_url, report_errors, show_archived, show_log_tail
from trainyard.kubectl.log_stream import print_line, read_lines
from trainyard.kubectl.pod_state import attempt_of, check_node_rank, failed_start, newest_pods
from trainyard.kubectl.progress import say
from trainyard.operator import names as n

JsonObject = dict[str, Any]


def run(options: argparse.Namespace, cluster: Cluster) -> int:
    """Print or follow the logs. Return the exit code."""
    if options.follow:
        if options.attempt is not None or options.previous:
            flag = "--previous" if options.previous else "--attempt"
            raise PluginError(
                USAGE, f"{flag}: excludes --follow, which shows each attempt from the last one on"
            )
        from trainyard.kubectl.follow import follow

        job = cluster.job(options.name)
        return follow(cluster, job, options.node_rank or 0, options.tail, every=options.all)
    attempt = options.attempt
    if options.previous:
        attempt = int(cluster.job(options.name).get("status", {}).get("attempt") or 0) - 1
        if attempt < 0:
            raise PluginError(USAGE, f"--previous: job {options.name} has had one attempt. Leave it out.")
    show_log(cluster, options.name, options.node_rank, attempt, options.tail, every=options.all)
    return DONE


def show_log(
    cluster: Cluster, name: str, node_rank: int | None, attempt: int | None, tail: int | None, *, every: bool
) -> None:
    """Print the present log of a worker, or of all workers.

    If the pod or node of a worker is gone, print its archived log, or the end of the log that the job's status has of
    the first failed worker.

    Raises:
        PluginError: There is no log.
    """
    job = cluster.job(name)
    pods = newest_pods(cluster.workers(job), attempt)
    shown = {node: pod for node, pod in pods.items() if every or node == (node_rank or 0)}
    if every and shown:
        _show_missing(cluster, job, shown, tail)
    if not shown:
        try:
            if show_archived(cluster, job, None if every else node_rank or 0, attempt, tail):
                return
        except PluginError as error:
            if not show_log_tail(job, None if every else node_rank, attempt, tail):
                raise
            say(str(error))
            return
    if not shown and not every and node_rank is None:
        shown = _first_failed(job, pods)
    if not shown and not show_log_tail(job, None if every else node_rank, attempt, tail):
        if not every:
            check_node_rank(job, node_rank or 0)
        raise PluginError(NOT_FOUND, _describe_missing(job, node_rank, attempt, every=every))
    for node, pod in shown.items():
        _show_pod(cluster, job, node, pod, tail, prefixed=every)


def _show_pod(
    cluster: Cluster, job: JsonObject, node: int, pod: JsonObject, tail: int | None, *, prefixed: bool
) -> None:
    prefix = line_prefix(node) if prefixed else b""
    failed = failed_start(pod)
    if failed is not None:
        say(f"pod {pod['metadata']['name']}: {failed}")
    container = failed.container if failed else n.WORKER_CONTAINER
    query = {"container": container, **({"tailLines": str(tail)} if tail is not None else {})}
    try:
        for line in read_lines(cluster, pod, query):
            print_line(prefix + line)
    except PluginError:
        with report_errors():
            if show_archived(cluster, job, node, attempt_of(pod), tail, prefixed=prefixed):
                return
        if not show_log_tail(job, node, attempt_of(pod), tail, prefix):
            raise


def _show_missing(cluster: Cluster, job: JsonObject, shown: dict[int, JsonObject], tail: int | None) -> None:
    """Print the archived logs of the nodes without a pod, or say that there are none."""
    nodes = int(job.get("status", {}).get("nodes") or 0)
    if len(shown) >= nodes:
        return
    found = False
    with report_errors():
        attempt = max(map(attempt_of, shown.values()))
        found = show_archived(cluster, job, None, attempt, tail, excluded=frozenset(shown))
    if not found:
        missing = ", ".join(str(node) for node in range(nodes) if node not in shown)
        name = job["metadata"]["name"]
        say(f"job {name}: the pods of these node ranks are gone, and their logs with them: {missing}")


def _first_failed(job: JsonObject, pods: dict[int, JsonObject]) -> dict[int, JsonObject]:
    """Return the pod of the worker that failed first, if it still exists, and say that node 0 has none."""
    failed = job.get("status", {}).get("firstFailure") or {}
    shown = {node: pod for node, pod in pods.items() if pod["metadata"]["name"] == failed.get("pod")}
    for node in shown:
        name = job["metadata"]["name"]
        say(f"job {name}: node 0 has no pod now. This is the log of node {node}, which failed first")
    return shown


def _describe_missing(job: JsonObject, node_rank: int | None, attempt: int | None, *, every: bool) -> str:
    status = job.get("status", {})
    which = "worker" if every else f"worker node {node_rank or 0}"
    which += "" if attempt is None else f" of attempt {attempt}"
    phase, message = status.get("phase") or "not known yet", status.get("message")
    summary = f"job {job['metadata']['name']}: has no {which} now; its phase is {phase}"
    summary = f"{summary}: {message}" if message else summary
    ended = phase in n.FINAL_PHASES or (attempt or 0) < len(status.get("attempts") or ())
    if not ended or logs_url(job):
        return summary
    return (
        f"{summary}. Its log was deleted with its pod: queue {job['spec']['jobQueue']} has no bucket for logs"
    )
