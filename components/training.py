"""The training namespace: service accounts, permissions of the launcher, priority classes.

The launcher's service account has exactly the verbs that the launcher calls.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import pulumi
import pulumi_kubernetes as k8s

from trainyard.k8s import names

from . import identity
from .documents import pods

Rule = dict[str, Any]

_SCRAPERS = {names.LABEL_SCRAPER: names.SCRAPER}
_LAUNCHER_METRICS = pods.scraped({names.LABEL_ROLE: names.ROLE_LAUNCHER}, names.METRICS_PORT, _SCRAPERS)
_TRAINER_METRICS = pods.scraped({names.LABEL_ROLE: names.ROLE_WORKER}, names.TRAINER_METRICS_PORT, _SCRAPERS)


@dataclass(frozen=True, kw_only=True)
class TrainingSpaceArgs:
    """The training namespace."""

    trainer_role_arn: pulumi.Input[str]
    """The role of the trainer's service account."""
    after: list[pulumi.Resource]
    mpi: bool = False
    """Whether MPIJobs run in the namespace."""
    lustre: bool = False
    """Whether pods mount FSx for Lustre."""
    backend: str = names.BACKEND_PYTORCHJOB
    """The kind of the launcher's training jobs."""


class TrainingSpace(pulumi.ComponentResource):
    """The namespace of training jobs.

    Creates:

    - the namespace `training`, which enforces the restricted pod security standard. With MPIJobs or a Lustre file
      system, it enforces the baseline standard and warns of pods that do not meet the restricted one;
    - the service accounts of launcher and trainer. The trainer's has its IAM role. The trainer's and `default` have
      no API token;
    - the launcher's RBAC, with exactly the verbs that it needs in each namespace;
    - network policies: pods of jobs reach each other, labelled namespaces reach the metrics of launchers and
      workers, and nothing reaches any other pod of the namespace;
    - the priority classes of placeholders and workers: a worker preempts only placeholders.
    """

    def __init__(
        self, name: str, args: TrainingSpaceArgs, opts: pulumi.ResourceOptions | None = None
    ) -> None:
        super().__init__("trainyard:training:TrainingSpace", name, None, opts)
        after = pulumi.ResourceOptions(parent=self, depends_on=args.after)
        self.namespace = k8s.core.v1.Namespace(
            names.TRAINING_NAMESPACE,
            metadata={
                "name": names.TRAINING_NAMESPACE,
                "labels": {
                    # `restricted` would refuse the init container that the training operator gives to the launcher
                    # of an MPIJob, which has no security context and no template; and a container that runs
                    # as the owner of a new file system's root.
                    "pod-security.kubernetes.io/enforce": (
                        "baseline" if args.mpi or args.lustre else "restricted"
                    ),
                    "pod-security.kubernetes.io/warn": "restricted",
                },
            },
            opts=after,
        )
        """The namespace."""
        self._inside = pulumi.ResourceOptions(parent=self, depends_on=[self.namespace])
        self.objects: list[pulumi.Resource] = [self.namespace]
        """The namespace, its service accounts, RBAC, network policies and priority classes."""
        self._accounts(args.trainer_role_arn)
        for scope, rules in launcher_rules(args.backend).items():
            self.objects += identity.bind_role(
                names.MANAGED_BY,
                rules,
                account=names.LAUNCHER_SERVICE_ACCOUNT,
                account_namespace=names.TRAINING_NAMESPACE,
                namespace=scope or None,
                parent=self,
                after=[self.namespace],
            )
        self._network()
        self._priorities(after)
        self.register_outputs({"namespace": names.TRAINING_NAMESPACE})

    def _accounts(self, role_arn: pulumi.Input[str]) -> None:
        launcher = k8s.core.v1.ServiceAccount(
            names.LAUNCHER_SERVICE_ACCOUNT,
            metadata={"name": names.LAUNCHER_SERVICE_ACCOUNT, "namespace": names.TRAINING_NAMESPACE},
            opts=self._inside,
        )
        trainer = k8s.core.v1.ServiceAccount(
            names.TRAINER_SERVICE_ACCOUNT,
            metadata={
                "name": names.TRAINER_SERVICE_ACCOUNT,
                "namespace": names.TRAINING_NAMESPACE,
                "annotations": {"eks.amazonaws.com/role-arn": role_arn},
            },
            automount_service_account_token=False,
            opts=self._inside,
        )
        default = identity.disable_default_token(names.TRAINING_NAMESPACE, self, self.namespace)
        self.objects += [launcher, trainer, default]

    def _network(self) -> None:
        for name, spec in (
            ("closed", pods.deny_ingress()),
            ("jobs", pods.jobs_from(pods.JOB_PODS)),
            ("launcher-metrics", _LAUNCHER_METRICS),
            ("trainer-metrics", _TRAINER_METRICS),
        ):
            self.objects.append(
                k8s.networking.v1.NetworkPolicy(
                    f"{names.TRAINING_NAMESPACE}-{name}",
                    metadata={"name": name, "namespace": names.TRAINING_NAMESPACE},
                    spec=spec,
                    opts=self._inside,
                )
            )

    def _priorities(self, after: pulumi.ResourceOptions) -> None:
        for name, value, policy, purpose in (
            (
                names.WORKER_PRIORITY_CLASS,
                names.WORKER_PRIORITY,
                "PreemptLowerPriority",
                "Workers of a training job: they take the place of placeholders",
            ),
            (
                names.PLACEHOLDER_PRIORITY_CLASS,
                names.PLACEHOLDER_PRIORITY,
                "Never",
                "Pods that hold a node until a worker comes",
            ),
        ):
            self.objects.append(
                k8s.scheduling.v1.PriorityClass(
                    name,
                    metadata={"name": name},
                    value=value,
                    preemption_policy=policy,
                    global_default=False,
                    description=purpose,
                    opts=after,
                )
            )


def _rule(group: str, resources: str, verbs: str) -> Rule:
    return {"apiGroups": [group], "resources": resources.split(), "verbs": verbs.split()}


_JOB_RULES: Final = {
    names.BACKEND_PYTORCHJOB: (_rule("kubeflow.org", "pytorchjobs", "create delete get list patch watch"),),
    names.BACKEND_TRAINJOB: (
        _rule("trainer.kubeflow.org", "trainjobs", "create delete get list patch watch"),
        # Server-side apply of an object that may not exist
        # (https://kubernetes.io/docs/reference/using-api/server-side-apply/#api-implementation).
        _rule("trainer.kubeflow.org", "trainingruntimes", "create patch"),
    ),
}


def launcher_rules(backend: str = names.BACKEND_PYTORCHJOB) -> dict[str, list[Rule]]:
    """Return the launcher's permissions by namespace; "" is the whole cluster.

    Those on training jobs are for this backend only. The launcher can also watch what it can list, so that it does not
    poll.

    Raises:
        ValueError: The backend is unknown.
    """
    if backend not in _JOB_RULES:
        raise ValueError(f"backend: {backend!r} is unknown. It must be one of {', '.join(_JOB_RULES)}.")
    return {
        "": [
            _rule("", "nodes pods", "list watch"),
            # The launcher deletes nodes that never become usable (`training.nodeStartSeconds`), which Karpenter keeps
            # forever. NodeClaims have no namespace, and Karpenter generates their names, so the permission is for all
            # of them.
            _rule("karpenter.sh", "nodeclaims", "delete list watch"),
            _rule("karpenter.sh", "nodepools", "list watch"),
            _rule("scheduling.k8s.io", "priorityclasses", "get"),
        ],
        names.CLUSTER_EVENTS_NAMESPACE: [_rule("", "events", "list watch")],
        names.TRAINING_NAMESPACE: [
            _rule("", "pods", "create delete list watch"),
            _rule("", "events", "create"),
            _rule("batch", "jobs", "get"),
            # The run's launcher, and the data for its next launcher (the Lease launch-<run>). It is deleted with
            # the launcher's Job, which owns it. Permission to create can't be limited to a name
            # (https://kubernetes.io/docs/reference/access-authn-authz/rbac/#referring-to-resources).
            _rule("coordination.k8s.io", "leases", "create get update"),
            *_JOB_RULES[backend],
        ],
    }
