"""Runs a request: observes, lets the core decide, does what it says, tells of it."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from launcher.core import contract as c
from launcher.core import machine, manifests, report
from launcher.core.machine import Action, End, Hold, Memory, Recount, Remove, Report, Start
from launcher.core.manifests import Owner
from launcher.core.observe import Observation
from launcher.core.request import Request
from launcher.kube.gateway import Gateway
from launcher.kube.rest import ApiError, ApiUnavailable

log = logging.getLogger(__name__)

# A round comes with each change of the cluster, and this often for what only the clock decides. It asks nothing of the
# API: what the watches have told is in memory.
POLL_SECONDS = 2.0
# An API server that is restarted or upgraded is back long before; after this the launcher's Job starts another pod.
UNAVAILABLE_SECONDS = 600.0
# A refused request that is no fault of the request: another try of the same step may succeed.
_PASSING = frozenset({409, 410})

_EVENT_REASONS = {
    c.STATE_WAITING: ("Normal", "WaitingForNodes"),
    c.STATE_HOLDING: ("Normal", "HoldingForMoreNodes"),
    c.STATE_SUBMITTING: ("Normal", "Submitting"),
    c.STATE_FOLLOWING: ("Normal", "Following"),
    c.STATE_SUCCEEDED: ("Normal", "TrainingSucceeded"),
    c.STATE_FAILED: ("Warning", "LaunchFailed"),
}


def _print(text: str) -> None:
    print(text, flush=True)


@dataclass
class Launcher:
    """One launcher process of one run. `stopping` is set by a signal."""

    request: Request
    job: str
    gateway: Gateway
    stopping: threading.Event = field(default_factory=threading.Event)
    say: Callable[[str], None] = _print
    wall_clock: Callable[[], float] = time.time
    clock: Callable[[], float] = time.monotonic
    poll_seconds: float = POLL_SECONDS

    def __post_init__(self) -> None:
        self._began = self.clock()
        self._memory = Memory()
        self._owner: Owner | None = None
        self._told: Report | None = None

    def run(self) -> int:
        """Follows the run to its end and returns the exit code."""
        reachable = self.clock()
        while True:
            try:
                code = self._round()
                reachable = self.clock()
            except ApiError as error:
                if error.status not in _PASSING:
                    return self._refused(error)
                code = None
            except ApiUnavailable as error:
                code = self._unreachable(error, self.clock() - reachable)
            if code is not None:
                return code
            self.gateway.wait(self.poll_seconds)

    def _round(self) -> int | None:
        """One round, up to the point where nothing is left to do now; an exit code at the end."""
        if self._owner is None:
            self._owner = self.gateway.owner(self.request, self.job)
            lacking = self.gateway.lacking(self.request)
            if lacking:
                return self._end(
                    End(code=c.EXIT_IMPOSSIBLE, reason=f"the cluster has no {' and no '.join(lacking)}")
                )
        fresh = False
        while True:
            seen = self.gateway.observe(self.request, fresh=fresh)
            if self.stopping.is_set():
                return self._do(machine.stop(self.request, seen), seen, self._owner)
            step = machine.step(self.request, self._memory, seen)
            self._memory = step.memory
            recount = any(isinstance(action, Recount) for action in step.actions)
            if not recount:  # what a recount may still change is no news
                self._tell(step.report)
            code = self._do(step.actions, seen, self._owner)
            if code is not None:
                return code
            if any(isinstance(action, Start) for action in step.actions):
                continue  # follow at once
            if not recount:
                return None
            fresh = True

    def _do(self, actions: tuple[Action, ...], seen: Observation, owner: Owner) -> int | None:
        for action in actions:
            match action:
                case Hold(index=index, waiting_since=since):
                    pod = manifests.placeholder(self.request, index, owner, since)
                    self.gateway.create_pod(self.request, pod)
                case Remove(name=name, uid=uid):
                    self.gateway.delete_pod(self.request, name, uid)
                case Start(nodes=nodes, reason=reason):
                    job = manifests.training_job(self.request, nodes, reason)
                    made = self.gateway.create_training(self.request, job)
                    word = "created" if made else "found"
                    log.info(
                        "%s PyTorchJob %s for %d nodes, %.3f s after the lists were read",
                        word,
                        self.request.training_job,
                        nodes,
                        self.wall_clock() - seen.now,
                    )
                case End():
                    return self._end(action)
                case Recount():
                    pass  # the caller's business
        return None

    def _end(self, end: End) -> int:
        succeeded = end.code == c.EXIT_SUCCEEDED
        last = self._told or Report(state="", nodes=0, of=self.request.max_nodes, claims=0, reason="")
        self._tell(
            Report(
                state=c.STATE_SUCCEEDED if succeeded else c.STATE_FAILED,
                nodes=last.nodes,
                of=last.of,
                claims=last.claims,
                reason=end.reason,
            )
        )
        return end.code

    def _tell(self, news: Report) -> None:
        """Prints a report that differs from the last one, and records an Event when the state does."""
        last, self._told = self._told, news
        if news == last:
            return
        self.say(report.line(news, self.clock() - self._began))
        if self._owner is None or (last is not None and last.state == news.state):
            return
        kind, reason = _EVENT_REASONS[news.state]
        message = f"{news.nodes} of {news.of} nodes: {news.reason}"
        event = manifests.event(
            self.request, self._owner, now=self.wall_clock(), kind=kind, reason=reason, message=message
        )
        try:
            self.gateway.record(self.request, event)
        except (ApiError, ApiUnavailable) as error:
            log.warning("no Event recorded: %s", error)  # it only tells of the run; the run goes on

    def _refused(self, error: ApiError) -> int:
        log.error("the Kubernetes API refused: %s", error)
        self._release()
        return self._end(End(code=c.EXIT_API_ERROR, reason=f"the API refused: {error}"))

    def _release(self) -> None:
        """Removes the placeholders after a refusal, as far as the API lets it."""
        try:
            seen = self.gateway.observe(self.request, fresh=True)
            for pod in machine.placeholders(self.request, seen):
                self.gateway.delete_pod(self.request, pod.name, pod.uid)
        except (ApiError, ApiUnavailable) as error:
            log.warning("placeholders may be left: %s", error)

    def _unreachable(self, error: ApiUnavailable, silent: float) -> int | None:
        log.warning("the Kubernetes API does not answer: %s", error)
        if self.stopping.is_set():
            return self._end(End(code=c.EXIT_STOPPED, reason="stopped by a signal; placeholders may be left"))
        if silent > UNAVAILABLE_SECONDS:
            return self._end(
                End(code=c.EXIT_API_ERROR, reason=f"the API did not answer for {silent:.0f} s: {error}")
            )
        return None
