"""The sync pods of other jobs that have the same archive."""

from __future__ import annotations

from itertools import islice
from typing import Any, Final

from trainyard.kubectl.cluster import Cluster
from trainyard.kubectl.exits import PluginError
from trainyard.kubectl.upload import has_archive
from trainyard.operator.core import names as n
from trainyard.operator.core.addresses import sync_pod_url

JsonObject = dict[str, Any]
# Each one that does not answer costs seconds.
_MOST: Final = 3
# Each is a question to the API server; of a hundred jobs that wait together no pod may be there.
_ASKED: Final = 12


def pods_that_have(cluster: Cluster, digest: str, job: str) -> list[str]:
    """Their addresses, for a pod of `job`, as far as this person may see the jobs; those of running jobs first.

    A job that names this archive has it in its sync pod from when it was submitted, or found room, to its end.
    """
    try:
        phases = {
            each["metadata"]["name"]: each.get("status", {}).get("phase", "")
            for each in cluster.jobs()
            if each["metadata"]["name"] != job and _names(each, digest)
        }
        there = [name for name, phase in phases.items() if phase not in n.FINAL_PHASES]
        there.sort(key=lambda name: phases[name] != n.PHASE_RUNNING)
        having = (name for name in there[:_ASKED] if _has_pod(cluster, name))
        return [sync_pod_url(name, cluster.namespace) for name in islice(having, _MOST)]
    except PluginError:
        return []


def _has_pod(cluster: Cluster, job: str) -> bool:
    pod = cluster.pod(n.sync_pod(job))
    return pod is not None and has_archive(pod)


def _names(job: JsonObject, digest: str) -> bool:
    workspace = job["spec"].get("workspace", {})
    return bool(workspace.get("digest") == digest and not workspace.get("url"))
