"""The placeholders that a run should have, and what to do about those that it has. Pure."""

from __future__ import annotations

from launcher.actions import Action, Hold, placeholders, remove
from launcher.capacity import is_placeholder
from launcher.observe import Observation, Pod
from launcher.progress import Progress
from launcher.request import Request
from trainyard.k8s import names


def hold(candidate: Request, seen: Observation, progress: Progress, number: int) -> tuple[Action, ...]:
    """So many placeholders, one per node: makes what is missing, removes what is too much, finished or old."""
    wanted = {candidate.placeholder_name(index): index for index in range(number)}
    bad = tuple(
        pod
        for pod in placeholders(candidate, seen)
        if pod.name not in wanted
        or pod.phase in ("Succeeded", "Failed")
        or not is_of_this_wait(pod, progress)
    )
    # A name that is still on its way out can't be made again yet.
    present = {pod.name for pod in seen.pods if is_placeholder(pod, candidate)}
    missing = (
        Hold(index=index, wait=progress.label) for name, index in wanted.items() if name not in present
    )
    return (*remove(bad), *missing)


def is_of_this_wait(pod: Pod, progress: Progress) -> bool:
    """Whether this placeholder was made in the wait that the run is in."""
    return pod.labels.get(names.LABEL_ATTEMPT) == progress.label
