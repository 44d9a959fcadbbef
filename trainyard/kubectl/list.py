"""`list`, `queues` and `status`: show jobs and queues."""

from __future__ import annotations

import argparse
from datetime import UTC, datetime

from trainyard.kubectl import output
from trainyard.kubectl.cluster import Cluster
from trainyard.kubectl.errors import DONE
from trainyard.kubectl.progress import say
from trainyard.operator import names as n


def run(options: argparse.Namespace, cluster: Cluster) -> int:
    """Run the verb and return the exit code."""
    now = datetime.now(UTC)
    if options.verb == "status":
        job = cluster.job(options.name)
        print(output.serialize(job, options.output) if options.output else output.status(job, now), end="")
        return DONE
    is_jobs, everywhere = options.verb == "list", options.all_namespaces
    items = cluster.jobs(everywhere) if is_jobs else cluster.queues(everywhere)
    items.sort(key=lambda item: (item["metadata"]["namespace"], item["metadata"]["name"]))
    if options.output in ("yaml", "json"):
        # A List even for one item, as programs that read it need not know the number.
        print(output.serialize({"apiVersion": "v1", "kind": "List", "items": items}, options.output), end="")
    elif options.output == "name":
        singular = n.JOB_SINGULAR if is_jobs else n.QUEUE_SINGULAR
        print("".join(f"{singular}.{n.GROUP}/{item['metadata']['name']}\n" for item in items), end="")
    elif not items:
        where = "any namespace" if everywhere else f"namespace {cluster.namespace}"
        say(f"No {'jobs' if is_jobs else 'queues'} in {where}.")
    else:
        draw = output.jobs if is_jobs else output.queues
        print(draw(items, now, namespaces=everywhere, wide=options.output == "wide"), end="")
    return DONE
