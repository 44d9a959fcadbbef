"""The sync pods of other jobs that have the same archive."""

from __future__ import annotations

from typing import Any, Final

from launcher.core.torchrun import names as n
from launcher.core.torchrun.addresses import sync_pod_url
from launcher.plugin.cluster import Cluster
from launcher.plugin.exits import PluginError

JsonObject = dict[str, Any]
# Each one that does not answer costs seconds.
_MOST: Final = 3


def pods_that_have(cluster: Cluster, digest: str, job: str) -> list[str]:
    """Their addresses, for a pod of `job`, as far as this person may see the jobs; those of running jobs first.

    A job that names this archive has a pod with it from when it was submitted to its end, if nothing went wrong.
    """
    try:
        found = cluster.jobs()
    except PluginError:
        return []
    phases = {
        each["metadata"]["name"]: each.get("status", {}).get("phase", "")
        for each in found
        if each["metadata"]["name"] != job and _names(each, digest)
    }
    there = [name for name, phase in phases.items() if phase not in n.FINAL_PHASES]
    there.sort(key=lambda name: phases[name] != n.PHASE_RUNNING)
    return [sync_pod_url(name, cluster.namespace) for name in there[:_MOST]]


def _names(job: JsonObject, digest: str) -> bool:
    workspace = job["spec"].get("workspace", {})
    return bool(workspace.get("digest") == digest and not workspace.get("url"))
