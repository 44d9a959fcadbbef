"""Kubeflow Trainer (TrainJob) and JobSet on a test's API server: CRDs, webhooks, runtimes and both managers.

Entry point: `kubeflow_trainer()`. CRDs and webhooks come from the Go modules of the managers (local/tools/pins.py). The
managers are processes of this machine, with the rights of the given kubeconfig. Their webhooks are called: with the
managers' certificate management off, both take a certificate from outside, as they do from cert-manager; here its
authority is this module's. Differences to an installation: `url` instead of a Service, no leader election, no metrics.
"""

from __future__ import annotations

import base64
import json
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import yaml

from local.cluster.pki import Authority
from local.ports import free_ports
from local.tools import ensure_other, module_directory_of
from local.tools.pins import JOBSET, KUBEFLOW_TRAINER
from local.tools.tool import Tool
from tests.integration.local.own_api_server import ESTABLISHED

ADDRESS = "127.0.0.1"
READY_SECONDS = 60.0
# Of the ClusterTrainingRuntimes that Trainer brings; the others need images and CRDs that are not here.
RUNTIME = "manifests/base/runtimes/torch_distributed.yaml"


@dataclass(frozen=True, kw_only=True)
class Manager:
    """One of the two managers.

    Attributes:
        crds: Directory of the CRDs in the module.
        webhooks: Kustomization in the module that has the webhook configurations.
        configuration: Configuration file without addresses; the rest are the manager's defaults.
    """

    tool: Tool
    crds: str
    webhooks: str
    configuration: Mapping[str, Any] = field(default_factory=dict)


# kubernetes-sigs/jobset@v0.12.0 api/config/v1alpha1; kubeflow/trainer@v2.3.0 pkg/apis/config/v1alpha1.
# What is given here turns off certificate management and leader election; Trainer's rate limit is its installation's
# (manifests/base/manager/controller_manager_config.yaml), which is also the default.
MANAGERS = (
    Manager(
        tool=JOBSET,
        crds="config/components/crd/bases",
        webhooks="config/components/webhook",
        configuration={
            "apiVersion": "config.jobset.x-k8s.io/v1alpha1",
            "internalCertManagement": {"enable": False},
            "leaderElection": {"leaderElect": False},
        },
    ),
    Manager(
        tool=KUBEFLOW_TRAINER,
        crds="manifests/base/crds",
        webhooks="manifests/base/webhook",
        configuration={
            "apiVersion": "config.trainer.kubeflow.org/v1alpha1",
            "certManagement": {"enable": False},
            "leaderElection": {"leaderElect": False},
            "controller": {"groupKindConcurrency": {"TrainJob.trainer.kubeflow.org": 5}},
        },
    ),
)


@contextmanager
def kubeflow_trainer(environment: Mapping[str, str], directory: Path) -> Iterator[None]:
    """Install both and run their managers while the context is open.

    Args:
        environment: Variables with which `kubectl` finds the cluster as an administrator: KUBECONFIG and PATH, and what
            the kubeconfig's credentials need.
        directory: An empty directory for configurations, certificates and logs (`<manager>/log`).

    Raises:
        AssertionError: kubectl or a manager failed.
        ToolError: a manager can't be built.
    """
    authority = Authority("kubeflow-trainer")
    with ExitStack() as stack:
        for manager in MANAGERS:
            module = module_directory_of(manager.tool)
            crds = sorted((module / manager.crds).glob("*_*.yaml"))
            for file in crds:
                # A client-side apply copies the object into an annotation, which may not have 800 kB.
                _kubectl(environment, "apply", "--server-side", "-f", str(file))
            names = [f"crd/{crd_name(file)}" for file in crds]
            for condition in ESTABLISHED:
                _kubectl(environment, "wait", f"--for={condition}", "--timeout=60s", *names)
            stack.enter_context(_running(manager, module, environment, directory, authority))
        _kubectl(
            environment, "apply", "--server-side", "-f", str(module_directory_of(KUBEFLOW_TRAINER) / RUNTIME)
        )
        yield


def crd_name(file: Path) -> str:
    """Return the name of a CRD from its file `<group>_<plural>.yaml`."""
    group, _, plural = file.stem.partition("_")
    return f"{plural}.{group}"


@contextmanager
def _running(
    manager: Manager, module: Path, environment: Mapping[str, str], directory: Path, authority: Authority
) -> Iterator[None]:
    """Run a manager; its webhooks are registered once it is ready, and removed at the end."""
    (name,) = manager.tool.programs
    place = directory / name
    # controller-runtime: the default of webhook.Options.CertDir is below the directory of temporary files.
    certificates = place / "k8s-webhook-server" / "serving-certs"
    certificates.mkdir(parents=True)
    authority.issue(name, addresses=[ADDRESS]).write(certificates, "tls")
    health, webhook = free_ports(2)
    configuration = {
        **manager.configuration,
        "kind": "Configuration",
        "health": {"healthProbeBindAddress": f"{ADDRESS}:{health}"},
        "metrics": {"bindAddress": "0"},
        "webhook": {"host": ADDRESS, "port": webhook},
    }
    file = place / "configuration.yaml"
    file.write_text(json.dumps(configuration))
    hooks = webhook_configurations(
        _kubectl(environment, "kustomize", str(module / manager.webhooks)),
        name,
        webhook,
        authority.certificate,
    )
    log = place / "log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [str(ensure_other(manager.tool)[name]), f"--config={file}"],
            env={**environment, "TMPDIR": str(place)},
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    try:
        _wait_ready(process, f"http://{ADDRESS}:{health}/readyz", log)
        _kubectl(environment, "apply", "-f", "-", stdin=hooks)
        yield
    finally:
        _kubectl(environment, "delete", "--ignore-not-found", "-f", "-", stdin=hooks)
        process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(10)


def webhook_configurations(manifests: str, prefix: str, port: int, authority: bytes) -> str:
    """Return the webhook configurations of `manifests`, each webhook at `port` of this machine."""
    found = []
    for each in yaml.safe_load_all(manifests):
        if not str(each["kind"]).endswith("WebhookConfiguration"):
            continue
        each["metadata"]["name"] = f"{prefix}-{each['metadata']['name']}"
        for webhook in each["webhooks"]:
            path = webhook["clientConfig"]["service"]["path"]
            webhook["clientConfig"] = {
                "url": f"https://{ADDRESS}:{port}{path}",
                "caBundle": base64.b64encode(authority).decode(),
            }
        found.append(each)
    return yaml.safe_dump_all(found)


def _wait_ready(process: subprocess.Popen[bytes], url: str, log: Path) -> None:
    end = time.monotonic() + READY_SECONDS
    while not _is_ready(url):
        assert process.poll() is None, f"it ended with exit code {process.returncode}: {log.read_text()}"
        assert time.monotonic() < end, f"not ready within {READY_SECONDS:.0f} s: {log.read_text()}"
        time.sleep(0.1)


def _is_ready(url: str) -> bool:
    try:
        with urlopen(url, timeout=5):  # noqa: S310 - a loopback address
            return True
    except OSError:
        return False


def _kubectl(environment: Mapping[str, str], *arguments: str, stdin: str | None = None) -> str:
    answer = subprocess.run(
        ["kubectl", *arguments],
        env=dict(environment),
        input=stdin,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert answer.returncode == 0, f"kubectl {' '.join(arguments)}: {answer.stderr}"
    return answer.stdout
