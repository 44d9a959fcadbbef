"""Fixtures of the rules for pods."""

from __future__ import annotations

from typing import Any

from components.documents.torchrun_queue import OPENING
from tests.unit.policies.building import Cases, made
from tests.unit.policies.kubernetes_cases import binding
from trainyard.policies import pods as p
from trainyard.policies.model import UNKNOWN, Resource

POD_SECURITY = {"runAsGroup": 10001}


def job(container: dict[str, Any] | None = None, /, **pod: Any) -> Resource:
    """A Job with one container that no rule refuses, with changes to the container and to the pod."""
    spec = {"securityContext": POD_SECURITY, "containers": [{"name": "c", **(container or {})}], **pod}
    return made(
        "kubernetes:batch/v1:Job", metadata={"namespace": "training"}, spec={"template": {"spec": spec}}
    )


def training(container: dict[str, Any]) -> Resource:
    """A PyTorchJob, which has a template for each kind of replica."""
    spec = {"template": {"spec": {"securityContext": POD_SECURITY, "containers": [container]}}}
    return made("kubernetes:kubeflow.org/v1:PyTorchJob", spec={"pytorchReplicaSpecs": {"Master": spec}})


def account(automount: bool | None = None) -> Resource:
    metadata = {"name": "trainer", "namespace": "training"}
    more = {} if automount is None else {"automountServiceAccountToken": automount}
    return made(p.SERVICE_ACCOUNT, metadata=metadata, **more)


IN_PLAIN_TEXT = ("AWS_SECRET_ACCESS_KEY", "HF_TOKEN", "db_password", "WANDB_API_KEY")
NO_CREDENTIALS = ("TOKENIZERS_PARALLELISM", "MAX_TOKENS", "AWS_WEB_IDENTITY_TOKEN_FILE", "KEYBOARD")
CASES: dict[str, Cases] = {
    "pod-groups": Cases(
        rejects=[
            job(securityContext={}),
            job(securityContext={**POD_SECURITY, "runAsGroup": 0}),
            job({"securityContext": {"runAsGroup": 0}}),
            job(initContainers=[{"name": "first", "securityContext": {"runAsGroup": 0}}]),
            # Only in a queue is this container root.
            job(initContainers=[{"name": OPENING, "securityContext": {"runAsGroup": 0}}]),
            job(securityContext={**POD_SECURITY, "supplementalGroups": [1, 0]}),
            job(securityContext={**POD_SECURITY, "fsGroup": 0}),
            training({"name": "c", "securityContext": {"runAsGroup": 0}}),
            # Without a template, the workers have the group of their image.
            made(p.TORCHRUN_QUEUE, spec={"image": "a"}),
        ],
        accepts=[job(), training({"name": "c"}), job({"securityContext": POD_SECURITY}, securityContext={})],
    ),
    "volumes-off-the-host": Cases(
        rejects=[
            job(volumes=[{"name": "v", "hostPath": {"path": "/"}}]),
            job(volumes=[{"name": "v", "nfs": {"server": "a", "path": "/"}}]),
            made(p.PERSISTENT_VOLUME, spec={"local": {"path": "/"}}),
            made(p.PERSISTENT_VOLUME, spec={"csi": {"driver": "fsx.csi.aws.com"}, "hostPath": {"path": "/"}}),
        ],
        accepts=[
            job(),
            job(volumes=[{"name": "v", "emptyDir": {}}]),
            made(p.PERSISTENT_VOLUME, spec={"csi": {"driver": "fsx.csi.aws.com"}}),
        ],
    ),
    "pod-no-credentials": Cases(
        rejects=[
            *(job({"env": [{"name": name, "value": "x"}]}) for name in IN_PLAIN_TEXT),
            job({"env": [{"name": "A", "value": "id=AKIAIOSFODNN7EXAMPLE"}]}),
        ],
        accepts=[
            *(job({"env": [{"name": name, "value": "x"}]}) for name in NO_CREDENTIALS),
            job({"env": [{"name": "HF_TOKEN", "value": ""}, {"name": "A", "value": UNKNOWN}]}),
            job({"env": [{"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}]}),
        ],
    ),
    "pod-token-needed": Cases(
        rejects=[
            job(),
            (job(serviceAccountName="trainer"), account()),
            (job(serviceAccountName="trainer", automountServiceAccountToken=True), account(False)),
            (job(serviceAccountName="trainer"), account(), binding("launcher")),
        ],
        accepts=[
            job(automountServiceAccountToken=False),
            (job(serviceAccountName="trainer"), account(False)),
            (job(serviceAccountName="trainer"), account(), binding("trainer")),
        ],
    ),
}
