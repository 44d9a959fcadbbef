"""TrainJobs of Kubeflow Trainer v2.3.0 (github.com/kubeflow/trainer) with JobSet v0.12.0. Pure.

A TrainJob creates a JobSet, which creates one Indexed Job with a pod per node. The pod template is in a
TrainingRuntime. The launcher writes one for each job, because a TrainJob alone can't set the priority class, the
resources and the init containers of its pods. Trainer copies the runtime when it first sees the TrainJob
(pkg/runtime/core/snapshot.go). Its torch plugin sets PET_NNODES, PET_NPROC_PER_NODE, PET_NODE_RANK, PET_MASTER_ADDR and
PET_MASTER_PORT (pkg/runtime/framework/plugins/torch/torch.go). It has no elastic jobs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from launcher import manifests, observe
from launcher.backends.backend import Backend
from launcher.manifests import JsonObject, Owner
from launcher.observe import Pod, Training
from launcher.request import Request
from trainyard.k8s import names

_GROUP: Final = "trainer.kubeflow.org"
_API_VERSION: Final = f"{_GROUP}/v1alpha1"
_KIND: Final = "TrainJob"
_RUNTIME_KIND: Final = "TrainingRuntime"
# The only names that the torch plugin accepts for the replicated job and for its container (pkg/constants).
_NODE: Final = "node"


def build(request: Request, nodes: int, reason: str, restart: int = 0) -> JsonObject:
    """Return the TrainJob for exactly this number of nodes. Its TrainingRuntime must already exist.

    Args:
        restart: How many training jobs the run had before.
    """
    deadline = request.active_deadline_seconds
    return {
        "apiVersion": _API_VERSION,
        "kind": _KIND,
        "metadata": manifests.training_metadata(request, nodes, reason, restart),
        "spec": {
            "runtimeRef": {"apiGroup": _GROUP, "kind": _RUNTIME_KIND, "name": request.training_job},
            "trainer": {"numNodes": nodes, "numProcPerNode": request.worker.processes_per_node},
            **({"activeDeadlineSeconds": deadline} if deadline is not None else {}),
        },
    }


def runtime(request: Request, nodes: int, restart: int, owner: Owner) -> JsonObject:
    """Return the TrainingRuntime with the workers' pods. Kubernetes deletes it with the launcher's Job.

    A failed worker neither ends nor replaces the others (`backoffLimitPerIndex`): they report the cause, and all pods
    are kept for their logs and exit codes. With `backoffLimit: 0` the Job controller would delete them
    (https://kubernetes.io/docs/concepts/workloads/controllers/job/#backoff-limit-per-index). The launcher restarts
    all workers together.
    """
    rendezvous = {
        names.ENV_EXPECTED_NODES: str(nodes),
        "PET_RDZV_ID": manifests.rendezvous_id(request, restart),
    }
    template = manifests.worker_template(request, restart, rendezvous, container_name=_NODE, leads=True)
    # The label of a PyTorchJob's pods, by which the network policies and the log commands choose workers.
    template["metadata"]["labels"][names.LABEL_JOB_NAME] = request.training_job
    template["spec"]["restartPolicy"] = "Never"
    job = {
        "completionMode": "Indexed",
        "completions": nodes,
        "parallelism": nodes,
        "backoffLimitPerIndex": 0,
        "template": template,
    }
    return {
        "apiVersion": _API_VERSION,
        "kind": _RUNTIME_KIND,
        "metadata": {
            "name": request.training_job,
            "namespace": request.namespace,
            "labels": manifests.labels(request, names.ROLE_WORKER),
            "ownerReferences": [manifests.owner_reference(owner)],
        },
        "spec": {
            "mlPolicy": {"numNodes": nodes, "torch": {}},
            "template": {
                "spec": {
                    "failurePolicy": {"maxRestarts": 0},
                    "network": {"enableDNSHostnames": True, "publishNotReadyAddresses": True},
                    "replicatedJobs": [
                        {
                            "name": _NODE,
                            "replicas": 1,
                            "template": {
                                "metadata": {"labels": {f"{_GROUP}/trainjob-ancestor-step": "trainer"}},
                                "spec": job,
                            },
                        }
                    ],
                }
            },
        },
    }


def parse(item: Mapping[str, Any], run_id: str) -> Training:
    """Convert a TrainJob.

    Trainer copies the conditions of the JobSet of this name. It may still be the JobSet of the last TrainJob: Build
    waits for its deletion, Status does not (pkg/runtime/framework/plugins/jobset/jobset.go). Such a condition is older
    than the TrainJob.
    """
    spec, status = item.get("spec", {}), item.get("status", {})
    created = observe.seconds(item["metadata"].get("creationTimestamp"))
    own = [
        each
        for each in status.get("conditions") or ()
        if not each.get("lastTransitionTime") or observe.seconds(each["lastTransitionTime"]) >= created
    ]
    return observe.training(
        {**item, "status": {**status, "conditions": own}},
        run_id,
        nodes=int((spec.get("trainer") or {}).get("numNodes") or 0),
        outcomes={"Complete": "Succeeded", "Failed": "Failed"},
        suspended=bool(spec.get("suspend")),
    )


def settle(training: Training, pods: tuple[Pod, ...]) -> Training:
    """Return the job as failed if one of its workers failed. Its status has that only after the last worker ended.

    Pods of a suspended job, and lost ones, are being deleted.
    """
    failed = [pod.name for pod in pods if pod.phase == "Failed" and not pod.deleting]
    if training.outcome or not failed:
        return training
    message = f"{len(failed)} of {training.nodes} workers failed"
    return replace(training, outcome="Failed", message=message)


BACKEND: Final = Backend(
    kind=_KIND,
    operator="Kubeflow Trainer",
    api_version=_API_VERSION,
    resource="trainjobs",
    suspend_field="spec.suspend",
    container=_NODE,
    # TrainJobDeadlineExceededMessage in pkg/constants. It deletes the JobSet, and so the pods.
    deadline_message="TrainJob exceeded its active deadline",
    # In the foreground, Trainer would create the JobSet again as long as the TrainJob exists: Reconcile in
    # pkg/controller/trainjob_controller.go ignores its deletion. The launcher waits for the pods.
    propagation="Background",
    build=build,
    parse=parse,
    settle=settle,
    runtime=runtime,
    # Its webhook reads runtimes from a cache (ValidateObjects in pkg/runtime/core/trainingruntime.go).
    runtime_unseen="specified trainingRuntime must be created before",
)
