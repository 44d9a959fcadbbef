"""`kubectl torchrun`: submit torchrun jobs to a queue, and look after them."""

from __future__ import annotations

import sys
import time
from argparse import Namespace
from collections.abc import Callable, Sequence

from launcher.core import contract as c
from launcher.core.torchrun import names
from launcher.kube.rest import ApiError, ApiUnavailable
from launcher.plugin import show
from launcher.plugin.arguments import PROGRAM, parser
from launcher.plugin.cluster import Cluster
from launcher.plugin.follow import Follower
from launcher.plugin.manifest import UsageError, torchrun_job

INTERRUPTED = 130
_NOT_FOUND = 404


def main(arguments: Sequence[str] | None = None) -> int:
    """Does what was typed; returns the exit code."""
    options = parser().parse_args(arguments)
    try:
        return VERBS[options.verb](options)
    except UsageError as error:
        return _fails(str(error), c.EXIT_BAD_REQUEST)
    except ApiError as error:
        return _fails(_told(error, options), c.EXIT_API_ERROR)
    except ApiUnavailable as error:
        return _fails(str(error), c.EXIT_API_ERROR)
    except BrokenPipeError:  # whoever read has seen enough
        return 0


def _fails(text: str, code: int) -> int:
    print(f"error: {text}", file=sys.stderr)
    return code


def _told(error: ApiError, options: Namespace) -> str:
    job = getattr(options, "job", None)
    if error.status == _NOT_FOUND and job:
        return f"there is no job {job!r} in this namespace; '{PROGRAM} list' shows those that there are"
    if error.status == _NOT_FOUND:
        return f"this cluster knows no torchrun jobs ({error}); kubectl apply -f crd/ installs them"
    return str(error)


def _cluster(options: Namespace) -> Cluster:
    return Cluster.connect(options.kubeconfig, options.context, options.namespace)


def submit(options: Namespace) -> int:
    """Make the job, tell how to look after it, follow it where that is asked for."""
    cluster = _cluster(options)
    job = torchrun_job(options, cluster.namespace, None)
    if options.dry_run:
        print(
            show.documents("yaml" if options.output == "table" else options.output, [job], alone=True), end=""
        )
        return 0
    queue = cluster.queue(options.queue)
    made = cluster.create(job)
    name = made["metadata"]["name"]
    if options.output != "table":
        print(show.documents(options.output, [made], alone=True), end="")
    else:
        place = f" -n {options.namespace}" if options.namespace else ""
        print(
            f"torchrunjob.{names.GROUP}/{name} created; {PROGRAM} logs{place} -f {name} follows it",
            file=sys.stderr,
        )
    if queue is None:
        print(f"queue {options.queue!r} is not there yet: the job waits for it", file=sys.stderr)
    return _follow(cluster, name) if options.follow else 0


def logs(options: Namespace) -> int:
    """Print what one node's worker prints, to the job's end where that is asked for."""
    cluster = _cluster(options)
    item = cluster.job(options.job)
    if options.follow and options.tail is None:
        return _follow(cluster, options.job, options.node)
    attempt = (item.get("status") or {}).get("attempt", 0)
    pod = cluster.worker(options.job, attempt, options.node)
    if pod is None:
        return _fails(
            f"{options.job} has no worker of node {options.node}: {show.state(item)}", c.EXIT_API_ERROR
        )
    for piece in cluster.log(pod["metadata"]["name"], follow=options.follow, tail=options.tail):
        sys.stdout.buffer.write(piece)
        sys.stdout.buffer.flush()
    return 0


def _follow(cluster: Cluster, job: str, node: int = 0) -> int:
    try:
        return Follower(cluster, job, node).run()
    except KeyboardInterrupt:
        print(f"\n{job} goes on without you; {PROGRAM} cancel {job} ends it", file=sys.stderr)
        return INTERRUPTED


def status(options: Namespace) -> int:
    """One job."""
    item = _cluster(options).job(options.job)
    if options.output in ("table", "wide"):
        print(show.status(item, time.time()), end="")
    else:
        print(show.documents(options.output, [item], alone=True), end="")
    return 0


def listed(plural: str, form: Callable[..., str]) -> Callable[[Namespace], int]:
    """A verb that lists a kind."""

    def work(options: Namespace) -> int:
        cluster = _cluster(options)
        items = cluster.every(plural, everywhere=options.all_namespaces)
        if options.output not in ("table", "wide"):
            print(show.documents(options.output, items, alone=False), end="")
        elif items:
            wide = options.output == "wide"
            print(form(items, time.time(), wide=wide, everywhere=options.all_namespaces), end="")
        else:
            place = "any namespace" if options.all_namespaces else f"namespace {cluster.namespace}"
            print(f"no {plural} in {place}", file=sys.stderr)
        return 0

    return work


def cancel(options: Namespace) -> int:
    """Delete the job."""
    _cluster(options).delete(options.job)
    print(f"{options.job} is cancelled", file=sys.stderr)
    return 0


def suspended(value: bool) -> Callable[[Namespace], int]:
    """The verb that sets whether a job is suspended."""

    def work(options: Namespace) -> int:
        cluster = _cluster(options)
        phase = show.phase(cluster.job(options.job))
        if phase in names.FINAL_PHASES:
            return _fails(f"{options.job} is over ({phase}); submit it again", c.EXIT_API_ERROR)
        cluster.change(options.job, {"suspend": value})
        print(f"{options.job} is {'suspended' if value else 'resumed'}", file=sys.stderr)
        return 0

    return work


VERBS: dict[str, Callable[[Namespace], int]] = {
    "submit": submit,
    "logs": logs,
    "status": status,
    "list": listed(names.JOB_PLURAL, show.jobs),
    "queues": listed(names.QUEUE_PLURAL, show.queues),
    "cancel": cancel,
    "suspend": suspended(True),
    "resume": suspended(False),
}

if __name__ == "__main__":
    sys.exit(main())
