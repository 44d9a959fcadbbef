"""The interface of a backend: the kind of the training job, and how to build and read one. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from launcher.manifests import JsonObject, Owner
from launcher.observe import Pod, Training
from launcher.request import Request


@dataclass(frozen=True, kw_only=True)
class Backend:
    """A kind of training job.

    Attributes:
        kind: The job's kind, in messages.
        operator: The operator that creates its pods, in messages.
        api_version: The job's group and version.
        resource: The resource of its kind.
        suspend_field: The field that suspends it.
        container: The name of the workers' container.
        deadline_message: A part of the operator's message about a job that exceeded its activeDeadlineSeconds.
        propagation: The propagationPolicy of the job's deletion, which also deletes its pods.
        build: Returns the job for exactly this number of nodes, for this reason, after this number of earlier jobs of
            the run. It has no owner, so that it continues when the launcher's Job is deleted.
        parse: Converts a job of the run with this id.
        settle: Returns the job with the outcome from its workers, which may be known before its status has it. By
            default, the job with the outcome from its status.
        runtime: Returns the object that must exist before the job of this number of nodes, after this number of earlier
            jobs. The launcher's Job owns it. None if there is no such object.
        runtime_unseen: A part of the refusal of a job whose runtime the operator has not seen yet.
    """

    kind: str
    operator: str
    api_version: str
    resource: str
    suspend_field: str
    container: str
    deadline_message: str
    build: Callable[[Request, int, str, int], JsonObject]
    parse: Callable[[Mapping[str, Any], str], Training]
    propagation: str = "Foreground"
    settle: Callable[[Training, tuple[Pod, ...]], Training] = field(default=lambda training, _pods: training)
    runtime: Callable[[Request, int, int, Owner], JsonObject] | None = None
    runtime_unseen: str | None = None

    def path(self, namespace: str) -> str:
        """Return the path of this namespace's jobs in the Kubernetes API."""
        return f"/apis/{self.api_version}/namespaces/{namespace}/{self.resource}"
