"""The queues that there are, told where the one that was named is not there."""

from __future__ import annotations

from launcher.plugin.cluster import Cluster
from launcher.plugin.exits import PluginError
from launcher.plugin.nearest import SHOWN, nearest


def queues_that_are_there(cluster: Cluster, name: str) -> str:
    """What queues there are, as far as this person may see them: the name may be mistyped, or the namespace."""
    try:
        found = cluster.queues(everywhere=True)
    except PluginError:
        try:
            found = cluster.queues()
        except PluginError:
            return ""
    here = sorted(
        each["metadata"]["name"] for each in found if each["metadata"]["namespace"] == cluster.namespace
    )
    elsewhere = sorted(each["metadata"]["namespace"] for each in found if each["metadata"]["name"] == name)
    there = f", and one of this name in {', '.join(elsewhere[:SHOWN])}" if elsewhere else ""
    return f", which has {nearest(name, here)}{there}"
