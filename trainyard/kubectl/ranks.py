"""Check `--node-rank` against the number of the job's nodes, if it is known. Pure."""

from __future__ import annotations

from typing import Any

JsonObject = dict[str, Any]


def beyond(job: JsonObject, rank: int) -> str:
    """What is wrong with the node of this number, "" where the job has or may yet have it."""
    spec, status = job.get("spec", {}), job.get("status", {})
    elastic = spec.get("elastic") or {}
    # A job that is to get another size has the former one still.
    known = [each for each in (elastic.get("maxNodes"), spec.get("numNodes"), status.get("nodes")) if each]
    if not known or rank < max(known):
        return ""
    most, name = max(known), job["metadata"]["name"]
    nodes = "1 node, number 0" if most == 1 else f"{most} nodes, number 0 to {most - 1}"
    return f"--node-rank: {rank} should be a node of job {name}, which has {'at most ' if elastic else ''}{nodes}"
