"""`cancel`, `suspend` and `resume`: change or delete jobs."""

from __future__ import annotations

import argparse

from trainyard.kubectl.cluster import Cluster
from trainyard.kubectl.errors import DONE, PROGRAM, USAGE, PluginError
from trainyard.kubectl.output import job_reference
from trainyard.kubectl.progress import say
from trainyard.operator import names as n


def run(options: argparse.Namespace, cluster: Cluster) -> int:
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
