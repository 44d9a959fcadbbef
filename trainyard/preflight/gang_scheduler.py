"""Check the KAI Scheduler of a given cluster, which torchrun jobs may use. No stack installs it.

The facts are of github.com/kai-scheduler/KAI-Scheduler, by its tags v0.15.0 to v0.17.0 and its branch v0.17.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from trainyard.k8s import names
from trainyard.preflight.account import Denied
from trainyard.preflight.inside import NAME_KEY
from trainyard.preflight.wanted import Caution, WantedCluster

DEFINITION: Final = "podgroups.scheduling.run.ai"
# The definition of what uses KAI Scheduler.
JOBS: Final = f"{names.TORCHRUN_JOBS}.{names.TORCHRUN_GROUP}"
# CHANGELOG.md of v0.15.0: kai.scheduler/skip-podgrouper.
OLDEST: Final = (0, 15, 0)
# kai-scheduler/KAI-Scheduler#1968: tags from the first on have filterTerminalPods in pkg/scheduler/cache/cache.go. Pull
# request 2022 removed it from the branch v0.17 after v0.17.0; the branch v0.16 still has it.
FIRST_EVICTING: Final = (0, 16, 2)
FIRST_FIXED: Final = (0, 17, 1)
_VERSION: Final = re.compile(r"v?(\d+)\.(\d+)\.(\d+)(?:[-+].*)?")
_PERIOD: Final = re.compile(r"--default-staleness-grace-period[= ](-?)")


@dataclass(frozen=True, kw_only=True)
class Scheduler:
    """The scheduler's Deployment. `never_stale` says whether it never evicts a gang that lost members."""

    name: str
    image: str
    never_stale: bool


def read(get: Callable[[str], Any]) -> tuple[Scheduler, ...]:
    """Return the schedulers of KAI in a cluster; `get` is `read_inside.reader`.

    KAI's operator runs one for each shard, with an image named `scheduler`, whatever the registry is (buildArgsList in
    pkg/operator/operands/scheduler/resources_for_shard.go).

    Raises:
        Denied: the caller may not ask, or does not reach the cluster.
    """
    if not get(f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{DEFINITION}"):
        return ()
    found = []
    for item in (get("/apis/apps/v1/deployments") or {"items": []})["items"]:
        for container in item["spec"]["template"]["spec"]["containers"]:
            words = " ".join([*container.get("command", ()), *container.get("args", ())])
            repository = container["image"].partition("@")[0].rpartition("/")[2].partition(":")[0]
            if repository != "scheduler" or "--scheduler-conf" not in words:
                continue
            period = _PERIOD.search(words)
            found.append(
                Scheduler(
                    name=f"{item['metadata']['namespace']}/{item['metadata']['name']}",
                    image=container["image"],
                    never_stale=period is not None and period[1] == "-",
                )
            )
    return tuple(found)


def check(wanted: WantedCluster, found: tuple[Scheduler, ...]) -> list[Caution]:
    """Return one line for each scheduler with a defect that matters to gangs.

    Raises:
        Denied: a version can't be read.
    """
    if JOBS not in wanted.definitions:
        return []
    return [
        Caution(
            key=NAME_KEY,
            message=f"'{wanted.name}' has KAI Scheduler {_tag(each)} (Deployment {each.name}), which {problem}",
        )
        for each in found
        if (problem := _problem(each))
    ]


def _tag(scheduler: Scheduler) -> str:
    return scheduler.image.partition("@")[0].rpartition("/")[2].partition(":")[2]


def _problem(scheduler: Scheduler) -> str:
    version = _VERSION.fullmatch(_tag(scheduler))
    if version is None:
        raise Denied(f"an image of KAI Scheduler with a version, instead of '{scheduler.image}'")
    numbers = tuple(map(int, version.groups()))
    if numbers < OLDEST:
        return (
            "ignores kai.scheduler/skip-podgrouper, so gangs of torchrun jobs start with one worker; it must be"
            f" {_shown(OLDEST)} or newer"
        )
    if FIRST_EVICTING <= numbers < FIRST_FIXED and not scheduler.never_stale:
        return (
            "evicts the other pods of a gang 60 s after the first has succeeded (kai-scheduler/KAI-Scheduler#1968);"
            f" torchrun jobs avoid that, other gangs do not: it must be {_shown(FIRST_FIXED)} or newer, or have the"
            " argument --default-staleness-grace-period=-1s"
        )
    return ""


def _shown(version: tuple[int, ...]) -> str:
    return f"v{'.'.join(map(str, version))}"
