"""`list`, `queues` and `status` show jobs and queues; `cancel`, `suspend` and `resume` change jobs."""

from __future__ import annotations

import argparse
from datetime import UTC, datetime

from trainyard.kubectl import output
from trainyard.kubectl.cluster import Cluster
from trainyard.kubectl.output import DONE, PROGRAM, USAGE, PluginError, job_reference, say
from trainyard.operator import names as n


def run(options: argparse.Namespace, cluster: Cluster) -> int:
    """Run the verb and return the exit code."""
    if options.verb in ("list", "queues"):
        _list(options, cluster)
    elif options.verb == "status":
        job = cluster.job(options.name)
        text = (
            output.serialize(job, options.output) if options.output else output.status(job, datetime.now(UTC))
        )
        print(text, end="")
    else:
        return _change_all(options, cluster)
    return DONE


def _list(options: argparse.Namespace, cluster: Cluster) -> None:
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
        draw, now = output.jobs if is_jobs else output.queues, datetime.now(UTC)
        print(draw(items, now, namespaces=everywhere, wide=options.output == "wide"), end="")


def _change_all(options: argparse.Namespace, cluster: Cluster) -> int:
    """Change each job. Report an error and go on with the next job; return the last error's code."""
    code = DONE
    for name in options.names:
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
