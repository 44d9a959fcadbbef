"""The launcher's course as a function: what was seen and remembered goes in, actions come out. No input or output here.

Nothing that matters is only remembered. What the next launcher needs after a crash stands in the cluster: the run's
progress in its Lease, where it is written before the actions of a step are done, the placeholders labelled with the
wait that they are of, and the PyTorchJob with its deterministic name. A restart is counted there before the training
that failed is touched, and the next one is submitted only when that one, known by its uid, has left nothing.
"""

from __future__ import annotations

from dataclasses import replace

from launcher import giveback
from launcher import progress as progresses
from launcher.actions import Action, End, Memory, Step, placeholders, remove
from launcher.following import follow
from launcher.observe import Observation
from launcher.request import Request
from launcher.restarting import retire, retired
from launcher.waiting import pause, wait
from trainyard.k8s import names


def step(request: Request, memory: Memory, seen: Observation, jitter: float = 0.0) -> Step:
    """One step of the run. `seen` is of the pool of `memory.candidate`; `jitter`, from 0 to below 1, is chance."""
    if memory.progress is not None:
        memory = replace(memory, progress=progresses.not_ahead(memory.progress, request, seen.now))
    progress = memory.progress or progresses.begun(seen.now)
    if progress.retiring:
        if not seen.fresh or not retired(progress, request, seen):
            return retire(request, memory, progress, seen)
        progress = progresses.gone(progress, seen.now)
        memory = Memory(progress=progress)
    if seen.training is not None or memory.training_uid:
        return follow(request, memory, seen)
    if progress.resumes is not None and seen.now < progress.resumes:
        return pause(request, replace(memory, progress=progress), progress, seen)
    if progress.resumes is not None:
        progress = progresses.resumed(progress, seen.now)
    return wait(request, memory, progress, seen, jitter)


def stop(request: Request, memory: Memory, seen: Observation) -> tuple[Action, ...]:
    """What to do when a signal ends the launcher; `seen` is of fresh lists.

    A training that was submitted goes on, and keeps its machines.
    """
    gone: tuple[Action, ...] = remove(placeholders(request, seen))
    if seen.training is None and memory.progress is not None:
        candidate = request.candidate(memory.candidate)
        gone = (*gone, *giveback.unneeded(candidate, seen, since=memory.progress.since))
    return (*gone, End(code=names.EXIT_STOPPED, reason="stopped by a signal"))
