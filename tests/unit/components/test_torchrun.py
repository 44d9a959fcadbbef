"""The controller of torchrun jobs and the queues, as a stack makes them."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pulumi
import pytest
import yaml

from components import torchrun
from components.documents import pods
from components.documents.torchrun_queue import Queue
from components.torchrun import CHECKOUT, FILES, RBAC_FILE, Torchrun, TorchrunArgs, read_documents, waves
from tests.unit.components.queues import queue
from tests.unit.components.recording import Recorded, deploy
from tests.unit.components.test_network_policies import reached, selects
from trainyard.k8s import names
from trainyard.operator import names as n
from trainyard.operator.manifests import DEPLOYMENT as DEPLOYMENT_FILE
from trainyard.operator.manifests import files

LAUNCHER = f"registry.example/launcher@sha256:{'1' * 64}"
TRAINER = f"registry.example/trainer@sha256:{'2' * 64}"
DEPLOYMENT = ("kubernetes:apps/v1:Deployment", "torchrun-controller:torchrun-system/torchrun-controller")
QUEUE = "kubernetes:torchrun.ai/v1alpha1:TorchrunQueue"
CRD = "kubernetes:apiextensions.k8s.io/v1:CustomResourceDefinition"
POLICY = "kubernetes:networking.k8s.io/v1:NetworkPolicy"
RBAC = "kubernetes:rbac.authorization.k8s.io/v1"
POOL = "kubernetes:karpenter.sh/v1:NodePool"
CONTROLLER = {"app.kubernetes.io/name": "torchrun-controller"}
WORKER = {"torchrun-job-name": "a-job", "torchrun.ai/attempt": "0"}


def made(*queues: Queue) -> Recorded:
    def program() -> None:
        alive = pulumi.CustomResource("kubernetes:core/v1:Namespace", "training", {})
        pool = pulumi.CustomResource(POOL, "small", {})
        args = TorchrunArgs(
            queues=queues,
            launcher_image=pulumi.Output.from_input(LAUNCHER),
            trainer_image=pulumi.Output.from_input(TRAINER),
            bucket_name=pulumi.Output.from_input("b-models"),
            model_uri="s3://b-models/models",
            region="us-west-2",
            mounts={},
            writes=(),
            after=[alive],
            before_jobs=[pool],
        )
        Torchrun("torchrun", args)

    return deploy(program)


@pytest.fixture(scope="module")
def stack() -> Recorded:
    return made(queue(own_bucket=True), queue(name="other"))


def pod_of(found: Recorded) -> dict[str, Any]:
    result: dict[str, Any] = found.one(*DEPLOYMENT).inputs["spec"]["template"]["spec"]
    return result


def test_without_a_queue_there_is_nothing() -> None:
    assert [each.type for each in made().resources if "trainyard" in each.type] == [
        "trainyard:torchrun:Torchrun"
    ]
    assert len(made().resources) == 3


def test_all_that_people_install_by_kubectl_is_there(stack: Recorded) -> None:
    published = {
        (each["kind"], each["metadata"]["name"])
        for path in (*(CHECKOUT / "crd").iterdir(), *(CHECKOUT / "config").rglob("*.yaml"))
        for each in yaml.safe_load_all(path.read_text())
    }
    there = {
        (each.inputs["kind"], each.inputs["metadata"]["name"])
        for each in stack.resources
        if each.type.startswith("kubernetes:") and "kind" in each.inputs
    }
    assert published <= there
    assert {kind for kind, _ in there - published - {("ServiceAccount", "default")}} == {"TorchrunQueue"}


def test_but_for_image_place_priority_probe_and_notes_the_controller_is_as_published(stack: Recorded) -> None:
    (published,) = (
        each for each in yaml.safe_load_all(files(LAUNCHER)[DEPLOYMENT_FILE]) if each["kind"] == "Deployment"
    )
    here = copy.deepcopy(stack.one(*DEPLOYMENT).inputs)
    template = here["spec"]["template"]
    assert template["metadata"].pop("annotations")["prometheus.io/port"] == str(names.METRICS_PORT)
    pod = template["spec"]
    (term,) = pod.pop("affinity")["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"][
        "nodeSelectorTerms"
    ]
    assert term == {"matchExpressions": [{"key": "karpenter.sh/nodepool", "operator": "DoesNotExist"}]}
    assert pod.pop("priorityClassName") == "system-cluster-critical"
    (container,) = pod["containers"]
    ready = container.pop("readinessProbe")
    assert ready["httpGet"] == container["livenessProbe"]["httpGet"]
    assert here == {**published, "apiVersion": "apps/v1", "kind": "Deployment"}


def test_the_images_place_is_taken_wherever_the_published_one_stands() -> None:
    """A controller with a tools location also receives its own image."""
    given = json.loads(json.dumps(read_documents(*FILES, RBAC_FILE)))
    (published,) = (each for each in given if each["kind"] == "Deployment")
    container = published["spec"]["template"]["spec"]["containers"][0]
    container["env"] = [{"name": "TOOLS", "value": container["image"]}]
    (changed,) = (each for wave in waves(given, LAUNCHER) for each in wave if each["kind"] == "Deployment")
    (container,) = changed["spec"]["template"]["spec"]["containers"]
    assert (container["image"], container["env"][0]["value"]) == (LAUNCHER, LAUNCHER)
    assert "launcher.invalid" not in json.dumps(changed)


def test_a_queue_goes_before_the_controller_and_that_before_its_rights_and_definitions(
    stack: Recorded,
) -> None:
    """Deletion runs against the waiting of creation: the controller releases a queue that has its finalizer."""
    definitions = {(each.type, each.name) for each in stack.of(CRD)}
    rights = {
        (each.type, each.name)
        for kind in ("ClusterRole", "ClusterRoleBinding")
        for each in stack.of(f"{RBAC}:{kind}")
    }
    account = ("kubernetes:core/v1:ServiceAccount", "torchrun-controller:torchrun-system/torchrun-controller")
    namespace = ("kubernetes:core/v1:Namespace", "torchrun-controller:torchrun-system")
    assert (len(definitions), len(rights)) == (2, 5)
    below = {*definitions, *rights, account, namespace}
    assert below <= stack.needs(*DEPLOYMENT)
    for name in ("training-research", "training-other"):
        assert {DEPLOYMENT, *below, (POOL, "small")} <= stack.needs(QUEUE, name)
    for each in (*definitions, *rights):
        assert namespace in stack.needs(*each)
        assert ("kubernetes:core/v1:Namespace", "training") in stack.needs(*each)


def test_the_queues_are_there_with_what_the_stack_knows(stack: Recorded) -> None:
    first = stack.one(QUEUE, "training-research").inputs
    assert first["metadata"]["name"] == "research"
    assert first["metadata"]["namespace"] == "training"
    assert first["spec"]["image"] == TRAINER
    assert first["spec"]["storage"]["workspace"] == {"bucket": "s3://b-models/torchrun"}
    assert first["spec"]["scheduling"]["pool"] == "small"
    assert "workspace" not in stack.one(QUEUE, "training-other").inputs["spec"]["storage"]


def policies(found: Recorded, namespace: str, labels: dict[str, str]) -> dict[str, dict[str, Any]]:
    """The network policies that are about such a pod, by name."""
    return {
        each.inputs["metadata"]["name"]: each.inputs["spec"]
        for each in found.of(POLICY)
        if each.inputs["metadata"]["namespace"] == namespace
        and selects(each.inputs["spec"]["podSelector"], labels)
    }


def test_the_controller_is_reached_at_its_metrics_alone_and_by_marked_namespaces(stack: Recorded) -> None:
    about = policies(stack, n.CONTROLLER_NAMESPACE, CONTROLLER)
    assert about.pop("closed") == pods.deny_ingress()
    assert [name for name, each in about.items() if "Ingress" in each["policyTypes"]] == ["metrics"]
    (rule,) = about["metrics"]["ingress"]
    assert rule["from"] == [{"namespaceSelector": {"matchLabels": {"trainyard.dev/metrics": "enabled"}}}]
    (container,) = pod_of(stack)["containers"]
    ports = {each["name"]: each["containerPort"] for each in container["ports"]}
    assert [each["port"] for each in rule["ports"]] == [ports["metrics"]]
    assert sorted(policies(stack, n.CONTROLLER_NAMESPACE, {"other": "pod"})) == ["closed"]


def test_the_controller_reaches_the_api_server_names_and_metrics_of_workers_and_nothing_else(
    stack: Recorded,
) -> None:
    spec = policies(stack, n.CONTROLLER_NAMESPACE, CONTROLLER)["calls"]
    assert spec["policyTypes"] == ["Egress"]
    api, lookups, metrics, prices = spec["egress"]
    assert api == {"ports": [{"protocol": "TCP", "port": port} for port in (443, 6443)]}
    assert {(each["protocol"], each["port"]) for each in lookups["ports"]} == {("UDP", 53), ("TCP", 53)}
    assert lookups["to"][0]["namespaceSelector"]["matchLabels"] == {
        "kubernetes.io/metadata.name": "kube-system"
    }
    (peer,) = metrics["to"]
    assert peer["namespaceSelector"] == {}, "jobs may be in any namespace"
    assert selects(peer["podSelector"], WORKER)
    assert not selects(peer["podSelector"], {"training.kubeflow.org/job-name": "a-job"})
    assert [each["port"] for each in metrics["ports"]] == [names.TRAINER_METRICS_PORT]
    (karpenter,) = prices["to"]
    assert selects(karpenter["podSelector"], {"app.kubernetes.io/name": "karpenter"})
    assert not selects(karpenter["podSelector"], {"k8s-app": "kube-dns"})


def test_workers_reach_each_other_and_their_metrics_are_read_by_the_controller(stack: Recorded) -> None:
    about = policies(stack, "training", WORKER)
    assert sorted(about) == ["torchrun-jobs", "torchrun-metrics"]
    assert reached(about["torchrun-jobs"], WORKER, {"torchrun-job-name": "another"})
    assert not reached(about["torchrun-jobs"], WORKER, {"training.kubeflow.org/job-name": "a-job"})
    (rule,) = about["torchrun-metrics"]["ingress"]
    readers = [peer["namespaceSelector"]["matchLabels"] for peer in rule["from"]]
    assert {"kubernetes.io/metadata.name": "torchrun-system"} in readers
    assert {"trainyard.dev/metrics": "enabled"} in readers
    assert [each["port"] for each in rule["ports"]] == [9465]
    assert policies(stack, "training", {"trainyard.dev/role": "launcher"}) == {}


def test_pods_that_name_no_account_get_no_token_there(stack: Recorded) -> None:
    patch = stack.one("kubernetes:core/v1:ServiceAccountPatch").inputs
    assert patch["metadata"] == {"name": "default", "namespace": "torchrun-system"}
    assert patch["automountServiceAccountToken"] is False


def test_incomplete_files_error_names_missing_part() -> None:
    for missing in ("CustomResourceDefinition", "Deployment"):
        rest = [each for each in read_documents(*FILES, RBAC_FILE) if each["kind"] != missing]
        with pytest.raises(ValueError, match=f"hold no {missing} torchrun"):
            waves(rest, LAUNCHER)


def test_unreadable_file_error_names_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torchrun, "CHECKOUT", tmp_path)
    with pytest.raises(pulumi.RunError, match=r"crd/torchrunqueues.torchrun.ai.yaml: can't be read"):
        read_documents.__wrapped__(*FILES)
