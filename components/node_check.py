"""Checks of the pools' machines, started by hand before a training."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pulumi
import pulumi_kubernetes as k8s

from components.documents.node_check import cron_spec, name_of
from components.documents.pool import Pool
from trainyard.k8s import names


@dataclass(frozen=True, kw_only=True)
class NodeCheckArgs:
    """`image` is the trainer's, `mounts` maps the claims that training pods have to their directories.

    `after` are the training namespace and what a pod with those claims needs.
    """

    pools: tuple[Pool, ...]
    image: pulumi.Input[str]
    mounts: Mapping[str, str]
    after: list[pulumi.Resource]


class NodeCheck(pulumi.ComponentResource):
    """Afterwards there is, per pool, the suspended CronJob `check-<pool>` in the training namespace.

    It never starts by itself and costs nothing. A Job made of it proves on a machine that is there, and free, what a
    worker will need: devices and their driver, EFA interfaces, the mount of the file system. It buys no machine.

        kubectl create job --from=cronjob/check-small check-1 -n training && kubectl logs -f job/check-1 -n training
    """

    def __init__(self, name: str, args: NodeCheckArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("trainyard:training:NodeCheck", name, None, opts)
        for pool in args.pools:
            k8s.batch.v1.CronJob(
                name_of(pool),
                metadata={"name": name_of(pool), "namespace": names.TRAINING_NAMESPACE},
                spec=cron_spec(pool, args.image, args.mounts),
                opts=pulumi.ResourceOptions(parent=self, depends_on=args.after),
            )
        self.register_outputs({"pools": [pool.name for pool in args.pools]})
