"""The queues that there are, told where the one that was named is not there."""

from __future__ import annotations

from difflib import get_close_matches
from typing import Final

from launcher.plugin.cluster import Cluster
from launcher.plugin.exits import PluginError

_SHOWN: Final = 5


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
    named = list(dict.fromkeys([*get_close_matches(name, here, _SHOWN), *here]))[:_SHOWN]
    more = f" and {len(here) - len(named)} more" if len(here) > len(named) else ""
    there = f", and one of this name in {', '.join(elsewhere[:_SHOWN])}" if elsewhere else ""
    return f", which has {', '.join(named) or 'none'}{more}{there}"
