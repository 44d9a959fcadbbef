"""What an upgrade may take away, and why that does no harm. A rule lets through what it names and nothing else."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from tests.integration.graph.paths import covers
from tests.integration.graph.upgrades import Harm, How


@dataclass(frozen=True, kw_only=True)
class Intended:
    """`resource` fits the whole of a URN behind the project: types of parents, type and name.

    `how` is what may become of it; `paths` are the inputs that may be the cause, where there is one.
    """

    resource: str
    how: How
    paths: tuple[str, ...] = ()
    reason: str

    def lets_through(self, harm: Harm) -> bool:
        """Whether this is the harm that is meant."""
        return (
            harm.how is self.how
            and re.fullmatch(self.resource, harm.resource) is not None
            and (not harm.path or any(covers(each, harm.path) for each in self.paths))
        )


PROOF: Final = r"trainyard:storage:LustreVolume\$kubernetes:{kind}::(lustre-proof|attach-pvc)"

INTENDED: Final = (
    Intended(
        resource=PROOF.format(kind="(batch/v1:Job|core/v1:Pod)"),
        how=How.REPLACED,
        paths=("spec",),
        reason="It holds no data and nothing waits for it; open shells in it end. Its image is the trainer's, "
        "named by its digest, so that each new trainer starts another one, which proves that it can use the mount.",
    ),
    Intended(
        resource=PROOF.format(kind="batch/v1:Job"),
        how=How.DELETED,
        reason="A Pod of the same name proves the mount in its place; what the Job wrote is gone when it ends.",
    ),
    Intended(
        resource=r"trainyard:training:DebugPod\$kubernetes:core/v1:Pod::network-debug",
        how=How.DELETED,
        reason="A StatefulSet's pod, network-debug-0, does the same in its place and outlives its node; it holds no "
        "data and nothing waits for it; open shells in the old one end.",
    ),
    Intended(
        resource=r"trainyard:identity:NodeRoles\$aws:iam/rolePolicyAttachment:RolePolicyAttachment::"
        r"[A-Za-z0-9-]+-(system|worker)-node-AmazonEKS_CNI_Policy",
        how=How.DELETED,
        reason="The VPC CNI has a role of its own, which the add-on takes up before the engine deletes this.",
    ),
    Intended(
        resource=r"trainyard:training:LauncherJob\$kubernetes:batch/v1:Job::launch-[a-z0-9-]+",
        how=How.LEFT_BEHIND,
        reason="Its name has the run's id, and another run is another Job. The earlier one stays in the cluster with "
        "its training and its logs, until the drain (docs/decisions/0004-launcher-job-kept.md).",
    ),
    Intended(
        resource=r"pulumi-python:dynamic/settings:StartedRun::run-[a-z0-9-]+",
        how=How.DELETED,
        reason="It records what the run of its name was started with, and makes nothing.",
    ),
)


def unintended(harms: Iterable[Harm], rules: Iterable[Intended] = INTENDED) -> list[Harm]:
    """The harms that no rule lets through."""
    known = tuple(rules)
    return [harm for harm in harms if not any(rule.lets_through(harm) for rule in known)]
