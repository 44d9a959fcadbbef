"""What each verb of `kubectl torchrun` does."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from datetime import UTC, datetime

from trainyard.kubectl import output
from trainyard.kubectl.cluster import Cluster, namespace_of, shown
from trainyard.kubectl.errors import DONE, PROGRAM, USAGE, PluginError
from trainyard.kubectl.packing import Packed
from trainyard.kubectl.progress import say
from trainyard.operator import names as n


def run(options: argparse.Namespace, packed: Packed, environment: Mapping[str, str]) -> int:
    """Runs the verb and returns the exit code. Raises PluginError."""
    given = (
        getattr(options, "kubeconfig", None),
        getattr(options, "context", None),
        getattr(options, "namespace", None),
    )
    if options.verb == "submit" and options.dry_run:
        from trainyard.kubectl.submit import dry_run

        print(dry_run(options, _namespace(*given), packed, environment), end="")
        return DONE
    cluster = Cluster.connect(*given)
    if options.verb == "submit":
        from trainyard.kubectl.submit import submit

        return submit(options, cluster, packed, environment)
    if options.verb == "sync":
        from trainyard.kubectl.submit import sync

        return sync(options, cluster, packed)
    if options.verb == "cp":
        from trainyard.kubectl.cp import copy

        return copy(options, cluster)
    if options.verb == "logs":
        return _logs(options, cluster)
    if options.verb in ("cancel", "suspend", "resume"):
        return _change(options, cluster)
    return _show(options, cluster)


def _namespace(kubeconfig: str | None, context: str | None, namespace: str | None) -> str:
    """That of the flag, else of the kubeconfig if there is one: a dry run needs no cluster."""
    if namespace:
        return namespace
    try:
        return namespace_of(kubeconfig, context)
    except PluginError:
        if kubeconfig or context:
            raise
        return "default"


def _logs(options: argparse.Namespace, cluster: Cluster) -> int:
    from trainyard.kubectl.follow import follow, show_log

    if options.follow:
        if options.attempt is not None or options.previous:
            raise PluginError(
                USAGE,
                f"--{'previous' if options.previous else 'attempt'}: excludes --follow, which shows each attempt from "
                "the last one on",
            )
        job = cluster.job(options.name)
        return follow(cluster, job, options.node_rank or 0, options.tail, every=options.all)
    attempt = options.attempt
    if options.previous:
        attempt = int(cluster.job(options.name).get("status", {}).get("attempt") or 0) - 1
        if attempt < 0:
            raise PluginError(USAGE, f"--previous: job {options.name} has had one attempt. Leave it out.")
    show_log(cluster, options.name, options.node_rank, attempt, options.tail, every=options.all)
    return DONE


def _change(options: argparse.Namespace, cluster: Cluster) -> int:
    """Each job by itself: one that can't be changed does not keep the others from it."""
    code = DONE
    for name in options.names:
        try:
            done = _changed(options.verb, name, cluster)
            told = f"{n.JOB_SINGULAR}.{n.GROUP}/{name}"
            print(told if options.output == "name" else f"{told} {done}", flush=True)
        except PluginError as error:
            say(f"{PROGRAM}: {error}")
            code = error.code
    return code


def _changed(verb: str, name: str, cluster: Cluster) -> str:
    job = cluster.job(name)
    uid, phase = job["metadata"]["uid"], job.get("status", {}).get("phase")
    if verb == "cancel":
        cluster.delete(name, uid)
        return "deleted"
    if phase in n.FINAL_PHASES:
        raise PluginError(USAGE, f"job {name}: has {phase.lower()} and stays so; submit another one")
    wanted = verb == "suspend"
    word = "suspended" if wanted else "resumed"
    if bool(job["spec"].get("suspend")) == wanted:
        return f"{word} already"
    cluster.change(name, {"suspend": wanted}, uid)
    return word


def _show(options: argparse.Namespace, cluster: Cluster) -> int:
    now = datetime.now(UTC)
    if options.verb == "status":
        job = cluster.job(options.name)
        print(shown(job, options.output) if options.output else output.status(job, now), end="")
        return DONE
    everywhere = options.all_namespaces
    items = cluster.jobs(everywhere) if options.verb == "list" else cluster.queues(everywhere)
    items.sort(key=lambda item: (item["metadata"]["namespace"], item["metadata"]["name"]))
    singular = n.JOB_SINGULAR if options.verb == "list" else n.QUEUE_SINGULAR
    if options.output in ("yaml", "json"):
        print(shown_list(items, options.output), end="")
    elif options.output == "name":
        print("".join(f"{singular}.{n.GROUP}/{item['metadata']['name']}\n" for item in items), end="")
    elif not items:
        where = "any namespace" if everywhere else f"namespace {cluster.namespace}"
        say(f"No {'jobs' if options.verb == 'list' else 'queues'} in {where}.")
    else:
        draw = output.jobs if options.verb == "list" else output.queues
        print(draw(items, now, namespaces=everywhere, wide=options.output == "wide"), end="")
    return DONE


def shown_list(items: list[output.JsonObject], output: str) -> str:
    """A List, of one item, too: who reads it need not know how many there are."""
    return shown({"apiVersion": "v1", "kind": "List", "items": items}, output)
