"""Run a request: observe the cluster, let the state machine decide, execute the actions, and report.

The entry point is `Launcher.run()`.
"""

from __future__ import annotations

import logging
import random
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from launcher import backends, cost, manifests, state_machine
from launcher.actions import (
    Action,
    CreatePlaceholder,
    End,
    Memory,
    Recount,
    ReleaseNode,
    Remove,
    Report,
    Retire,
    Start,
    batches,
    is_news,
    line,
)
from launcher.capacity import placeholders
from launcher.gateway import Gateway
from launcher.lease import RunLease
from launcher.manifests import Owner
from launcher.metrics import Metrics
from launcher.observe import Observation
from launcher.progress import initial_progress
from launcher.request import Request
from trainyard.k8s import names
from trainyard.k8s.client import ApiError, ApiUnavailable
from trainyard.k8s.lease import Lost, Standing

log = logging.getLogger(__name__)

# A round runs after each change of the cluster, and at this interval for decisions that depend on the clock. It sends
# no requests, because the state from the watches is in memory.
POLL_SECONDS = 2.0
# A restart or an upgrade of the API server takes less time. After this time without an answer, or with conflicts only,
# the launcher ends, and its Job starts another pod.
UNAVAILABLE_SECONDS = 600.0
# Errors (Conflict, Gone) after which the same step may succeed.
_RETRYABLE = frozenset({409, 410})

_END_STATES = (names.STATE_SUCCEEDED, names.STATE_FAILED)
_EVENT_REASONS = {
    names.STATE_WAITING: ("Normal", "WaitingForNodes"),
    names.STATE_HOLDING: ("Normal", "HoldingForMoreNodes"),
    names.STATE_PAUSING: ("Warning", "AttemptFailed"),
    names.STATE_SUBMITTING: ("Normal", "Submitting"),
    names.STATE_FOLLOWING: ("Normal", "Following"),
    names.STATE_SUSPENDED: ("Warning", "Suspended"),
    names.STATE_RESTARTING: ("Warning", "Restarting"),
    names.STATE_SUCCEEDED: ("Normal", "TrainingSucceeded"),
    names.STATE_FAILED: ("Warning", "LaunchFailed"),
}


def _print(text: str) -> None:
    print(text, flush=True)


@dataclass
class Launcher:
    """One launcher process of one run.

    Attributes:
        stopping: Set by a signal.
        log_line: Prints a line of state.
        holder: The launcher's identity in the run's Lease.
        draw: Returns a random number from 0 to below 1.
        price: Returns the price of a node.
    """

    request: Request
    job: str
    gateway: Gateway
    stopping: threading.Event = field(default_factory=threading.Event)
    log_line: Callable[[str], None] = _print
    wall_clock: Callable[[], float] = time.time
    clock: Callable[[], float] = time.monotonic
    poll_seconds: float = POLL_SECONDS
    holder: str = field(default_factory=lambda: str(uuid.uuid4()))
    draw: Callable[[], float] = random.random
    price: cost.Price = cost.unknown

    def __post_init__(self) -> None:
        self._began = self.clock()
        self._memory = Memory()
        self.metrics = Metrics(self.request)
        self._meter = cost.Meter(self.price)
        self._lease: RunLease | None = None
        # The messages of all conflicts since the last round without one, and when each was first received.
        self._conflicts: dict[str, float] = {}
        self._last_report: Report | None = None
        self._last_printed: Report | None = None

    def run(self) -> int:
        """Run until the end, release the Lease, and return the exit code."""
        code = self._follow()
        if self._lease is not None:
            self._lease.end(self._memory.progress)
        return code

    def _follow(self) -> int:
        reachable = self.clock()
        while True:
            asked = 0.0
            try:
                code = self._round()
                reachable = self.clock()
                self._conflicts.clear()
            except Lost:
                code, reachable = None, self.clock()
            except ApiError as error:
                code, reachable = self._check_refusal(error), self.clock()
            except ApiUnavailable as error:
                code, asked = self._check_unreachable(error, self.clock() - reachable), error.retry_after
            if code is not None:
                return code
            if asked > 0:
                self._back_off(asked)
            else:
                self.gateway.wait(self._seconds_to_next_round())

    def _back_off(self, seconds: float) -> None:
        """Wait for the Retry-After of the API server, even if something changes; at most UNAVAILABLE_SECONDS."""
        until = self.clock() + min(seconds, UNAVAILABLE_SECONDS)
        while not self.stopping.is_set() and (left := until - self.clock()) > 0:
            self.gateway.wait(left)

    def _seconds_to_next_round(self) -> float:
        now = self.wall_clock()
        due = state_machine.due(self.request, self._memory, now)
        return self.poll_seconds if due is None else min(self.poll_seconds, due - now)

    def _round(self) -> int | None:
        """Take all due steps. Return the exit code at the end of the run, else None."""
        if self._lease is None:
            owner = self.gateway.owner(self.request, self.job)
            self._lease = RunLease(
                self.gateway, self.request, owner, self.holder, self.clock, self.wall_clock
            )
        lease = self._lease
        if not lease.is_holder:
            code = self._take_lease(lease)
            if code is not None or not lease.is_holder:
                return code
        fresh = False
        while True:
            lease.keep(self._memory.progress)
            index = self._memory.candidate_index
            candidate = self.request.candidate(index)
            stopping = self.stopping.is_set()
            seen = self.gateway.observe(candidate, fresh=fresh or stopping)
            if stopping:
                return self._apply(state_machine.stop(self.request, self._memory, seen), seen, lease)
            if self._meter.lacks_nodes(candidate, seen):
                seen = self.gateway.observe(candidate, fresh=True)
            usage = self._meter.count(candidate, seen, self.clock())
            step = state_machine.step(self.request, self._memory, seen, self.draw())
            if step.memory.progress is not None:
                counted = replace(step.memory.progress, usage=usage)
                step = replace(step, memory=replace(step.memory, progress=counted))
            if step.memory.progress != self._memory.progress:
                # Write before the actions, so that the next launcher knows them after a crash.
                lease.write(step.memory.progress)
            self.metrics.count_step(self._memory, step, seen)
            self._memory = step.memory
            kinds = {type(action) for action in step.actions}
            fresh = Recount in kinds
            if not fresh:  # a recount may change the report
                self._report(step.report)
            code = self._apply(step.actions, seen, lease)
            if code is not None:
                return code
            if self._memory.candidate_index != index and step.report.state != names.STATE_PAUSING:
                self._record("Warning", "PoolGivenUp", step.report.reason)
            elif not kinds & {Recount, Start}:
                return None

    def _take_lease(self, lease: RunLease) -> int | None:
        """Take the Lease if it is free. Return an exit code if another launcher holds it, or if the run can't start."""
        if self.stopping.is_set():
            return self._end(End(code=names.EXIT_STOPPED, reason="stopped by a signal"))
        before = lease.other
        standing = lease.take()
        if standing is Standing.TAKEN:
            return self._refuse_second_launcher(lease)
        if standing is not Standing.OURS:
            if lease.other != before:
                log.info(
                    "Lease %s is held by %s; it is taken over if it is not renewed for %d s",
                    self.request.lease,
                    lease.other,
                    names.LEASE_SECONDS,
                )
            return None
        noted = lease.progress()
        if noted is not None and noted != self._memory.progress:
            self._memory = Memory(progress=noted)
            self._meter.resume(noted.usage)
        candidates = map(self.request.candidate, range(self.request.candidate_count))
        lacking = dict.fromkeys(lack for each in candidates for lack in self.gateway.lacking(each))
        if not lacking:
            return None
        missing = ", ".join(lacking)
        reason = f"{missing}: missing in this cluster. Run pulumi up --refresh, then start the run again"
        return self._end(End(code=names.EXIT_IMPOSSIBLE, reason=reason))

    def _refuse_second_launcher(self, lease: RunLease) -> int:
        """End because another launcher acts for the run. Record no Event: the Job may belong to that launcher."""
        reason = (
            f"another launcher, {lease.other}, launches run {self.request.run_id}: it holds and renews Lease"
            f" {self.request.namespace}/{self.request.lease}. Use another run id, or wait for its end"
        )
        self.log_line(line(self._empty_report(reason), self.clock() - self._began))
        return names.EXIT_ALREADY_RUNNING

    def _apply(self, actions: tuple[Action, ...], seen: Observation, lease: RunLease) -> int | None:
        """Execute the actions in order. Return the exit code of `End`, else None."""
        request = self.request.candidate(self._memory.candidate_index)
        for batch in batches(actions):
            lease.keep(self._memory.progress)
            match batch[0]:
                case CreatePlaceholder():
                    new = [each for each in batch if isinstance(each, CreatePlaceholder)]
                    self.gateway.create_pods(
                        [manifests.placeholder(request, each.index, lease.owner, each.wait) for each in new]
                    )
                case Remove():
                    gone = [(each.name, each.uid) for each in batch if isinstance(each, Remove)]
                    self.gateway.delete_pods(request, gone)
                case ReleaseNode(claim=claim, uid=uid, reason=reason, late=late):
                    self.gateway.delete_claim(claim, uid)
                    log.info("deleted %s", reason)
                    self._record("Warning" if late else "Normal", "NodeReleased", reason)
                case Start() as start:
                    self._start(start, lease.owner, seen)
                case Retire(uid=uid):
                    self.gateway.delete_training(request, uid)
                case End() as end:
                    return self._end(end)
                case Recount():
                    pass  # the caller observes again
        return None

    def _start(self, start: Start, owner: Owner, seen: Observation) -> None:
        """Create the training job with the rest of activeDeadlineSeconds, unless it exists."""
        progress = self._memory.progress or initial_progress(self.wall_clock())
        request = progress.remaining_request(self.request)
        backend = backends.of(request)
        if backend.runtime is not None:
            self.gateway.apply_runtime(backend.runtime(request, start.nodes, progress.total_restarts, owner))
        job = backend.build(request, start.nodes, start.reason, progress.total_restarts)
        made = self.gateway.create_training(request, job)
        took = self.wall_clock() - seen.now
        self.metrics.count_decision(request, took)
        log.info(
            "%s %s %s for %d nodes, %.3f s after the lists were read",
            "created" if made else "found",
            backend.kind,
            request.training_job,
            start.nodes,
            took,
        )

    def _end(self, end: End) -> int:
        last = self._last_report or self._empty_report()
        self._report(replace(last, state=end.state, reason=end.reason))
        self._annotate()
        return end.code

    def _empty_report(self, reason: str = "") -> Report:
        return Report(state=names.STATE_FAILED, nodes=0, of=self.request.max_nodes, claims=0, reason=reason)

    def _annotate(self) -> None:
        """Write the usage on the training job, if it exists, the Lease is held, and the API server allows it."""
        if self._lease is None or not self._lease.is_holder:
            return
        usage = self._meter.usage
        uid = self._memory.progress.training_uid if self._memory.progress else ""
        if not uid or not usage.node_seconds:
            return
        try:
            self.gateway.annotate_training(self.request, uid, cost.to_annotations(usage))
        except (ApiError, ApiUnavailable) as error:
            log.warning("no usage written on %s: %s", self.request.training_job, error)

    def _report(self, news: Report) -> None:
        """Print a report with news, and record an Event when the state changes. The last report has the usage.

        A report that differs only in counts or names is a debug line.
        """
        used = self._meter.usage.describe() if news.state in _END_STATES else ""
        news = replace(news, reason=f"{news.reason}; {used}") if used else news
        last, self._last_report = self._last_report, news
        if news == last:
            return
        text = line(news, self.clock() - self._began)
        if is_news(news, self._last_printed):
            self._last_printed = news
            self.log_line(text)
        else:
            log.debug("%s", text)
        if last is not None and last.state == news.state:
            return
        kind, reason = _EVENT_REASONS[news.state]
        self._record(kind, reason, f"{news.nodes} of {news.of} nodes: {news.reason}")

    def _record(self, kind: str, reason: str, message: str) -> None:
        """Record an Event on the launcher's Job, if the API server allows it."""
        if self._lease is None:
            return
        event = manifests.event(
            self.request, self._lease.owner, now=self.wall_clock(), kind=kind, reason=reason, message=message
        )
        try:
            self.gateway.record(event)
        except (ApiError, ApiUnavailable) as error:
            log.warning("no Event recorded: %s", error)  # the run continues without it

    def _check_refusal(self, error: ApiError) -> int | None:
        """Return the exit code if the refusal is final or lasts too long, else log it once and return None."""
        if error.status not in _RETRYABLE:
            return self._end_refused(error)
        now, message = self.clock(), error.message or str(error)
        if message not in self._conflicts:
            self._conflicts[message] = now
            log.warning("%s. The launcher tries again.", message.rstrip("."))
        seconds = now - min(self._conflicts.values())
        return self._end_refused(error, f" for {seconds:.0f} s") if seconds > UNAVAILABLE_SECONDS else None

    def _end_refused(self, error: ApiError, duration: str = "") -> int:
        """End after a refusal. Delete the placeholders if the API server allows it; keep those of another launcher."""
        log.error("the Kubernetes API refused%s: %s", duration, error)
        if self._lease is not None and self._lease.is_holder:
            try:
                seen = self.gateway.observe(self.request, fresh=True)
                left = [(pod.name, pod.uid) for pod in placeholders(self.request, seen)]
                self.gateway.delete_pods(self.request, left)
            except (ApiError, ApiUnavailable) as problem:
                log.warning("placeholders may be left: %s", problem)
        return self._end(End(code=names.EXIT_API_ERROR, reason=f"the API refused{duration}: {error}"))

    def _check_unreachable(self, error: ApiUnavailable, silent: float) -> int | None:
        """Return the exit code if a signal came or the API server was silent for too long, else None."""
        log.warning("the Kubernetes API does not answer: %s", error)
        if self.stopping.is_set():
            end = End(code=names.EXIT_STOPPED, reason="stopped by a signal; placeholders may be left")
        elif silent > UNAVAILABLE_SECONDS:
            reason = f"the API did not answer for {silent:.0f} s: {error}"
            end = End(code=names.EXIT_API_ERROR, reason=reason)
        else:
            return None
        # The Lease expires. A request to release it would take longer than the pod's termination grace period.
        self._lease = None
        return self._end(end)
