"""The queues that there are, told where the one that was named is not there."""

from __future__ import annotations

from contextlib import suppress
from difflib import get_close_matches

from trainyard.kubectl.cluster import Cluster
from trainyard.kubectl.exits import USAGE, PluginError
from trainyard.kubectl.nearest import SHOWN, nearest


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


def unknown_queue(cluster: Cluster, name: str) -> PluginError:
    """Return the error for a queue that does not exist in the namespace, with suggestions."""
    try:
        found = cluster.queues(everywhere=True)
    except PluginError:
        found = []
    if not found:
        with suppress(PluginError):
            found = cluster.queues()
    here = [each["metadata"]["name"] for each in found if each["metadata"]["namespace"] == cluster.namespace]
    elsewhere = sorted(each["metadata"]["namespace"] for each in found if each["metadata"]["name"] == name)
    if elsewhere:
        advice = f"it is in {', '.join(elsewhere[:SHOWN])}: submit with -n {elsewhere[0]}"
    elif near := get_close_matches(name, here, 1):
        advice = f"did you mean {near[0]}?"
    else:
        advice = f"the namespace has {nearest(name, sorted(here))}; `{cluster.command('torchrun queues -A')}` shows all"
    return PluginError(
        USAGE, f"--queue: queue {name} does not exist in namespace {cluster.namespace}; {advice}"
    )
