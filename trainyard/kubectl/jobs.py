"""`list`, `queues` and `status` show jobs and queues; `cancel`, `suspend` and `resume` change jobs."""

from __future__ import annotations

import argparse
from datetime import UTC, datetime

from trainyard.kubectl import output
from trainyard.kubectl.cluster import Cluster
from trainyard.kubectl.output import DONE, PROGRAM, USAGE, PluginError, job_reference, say
from trainyard.operator import names as n


def run(options: argparse.Namespace, cluster: Cluster) -> int:
    if options.verb in ("list", "queues"):
        _list(options, cluster)
    elif options.verb == "status":
        job, form = cluster.job(options.name), options.output
        print(output.serialize(job, form) if form else output.status(job, datetime.now(UTC)), end="")
    else:
        return _change_all(options, cluster)
    return DONE


def _list(options: argparse.Namespace, cluster: Cluster) -> None:
    plural, singular = (n.JOB_PLURAL, n.JOB_SINGULAR)
    if options.verb == "queues":
        plural, singular = (n.QUEUE_PLURAL, n.QUEUE_SINGULAR)
    everywhere, form = options.all_namespaces, options.output
    items = cluster.items(plural, everywhere=everywhere)
    items.sort(key=lambda item: (item["metadata"]["namespace"], item["metadata"]["name"]))
    if form in ("yaml", "json"):
        # A List even for one item, as programs that read it need not know the number.
        print(output.serialize({"apiVersion": "v1", "kind": "List", "items": items}, form), end="")
    elif form == "name":
        print("".join(f"{singular}.{n.GROUP}/{item['metadata']['name']}\n" for item in items), end="")
    elif not items:
        where = "any namespace" if everywhere else f"namespace {cluster.namespace}"
        say(f"No {'jobs' if options.verb == 'list' else 'queues'} in {where}.")
    else:
        now, wide = datetime.now(UTC), form == "wide"
        print(output.listing(options.verb, items, now, namespaces=everywhere, wide=wide), end="")


def _change_all(options: argparse.Namespace, cluster: Cluster) -> int:
    """Change each job. Report an error and go on with the next job; return the last error's code."""
    code = DONE
    for name in dict.fromkeys(options.names):
        try:
            done = _change(options.verb, name, cluster)
            print(job_reference(name) + ("" if options.output == "name" else f" {done}"), flush=True)
        except PluginError as error:
            say(f"{PROGRAM}: {error}")
            code = error.code
    return code


def _change(verb: str, name: str, cluster: Cluster) -> str:
    job = cluster.job(name)
    uid, phase = job["metadata"]["uid"], job.get("status", {}).get("phase")
    if verb == "cancel":
        cluster.delete(name, uid)
        return "deleted"
    if phase in n.FINAL_PHASES:
        raise PluginError(USAGE, f"job {name}: has already {phase.lower()}. Submit another job")
    is_suspended = verb == "suspend"
    done = "suspended" if is_suspended else "resumed"
    if bool(job["spec"].get("suspend")) == is_suspended:
        return f"{done} already"
    cluster.change(name, {"suspend": is_suspended}, uid)
    return done
