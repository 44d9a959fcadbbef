"""Objects in an existing cluster: what the stack would create twice, what it needs, its VPC CNI and KAI Scheduler."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import boto3
import pytest

from components.documents.efa import cni_problem
from components.documents.eks import VALUES
from tests.unit.emulator import REGION, Cloud
from tests.unit.infra.changing import mistakes, with_
from tests.unit.infra.changing import settings as read_settings
from tests.unit.preflight.accounts import EXISTING, TAGS, Answers, checks, expect, findings, only, stack
from trainyard.k8s.client import RetryPolicy
from trainyard.preflight import cluster_objects
from trainyard.preflight.aws import Denied
from trainyard.preflight.checks import examine
from trainyard.preflight.cluster_objects import ClusterReader
from trainyard.preflight.findings import WARNING

NAME, REPAIR = "trainyard:cluster.existing.name", "trainyard:cluster.nodeRepair"
OBJECTS, VPC_CNI = "objects in the existing cluster", "VPC CNI of the existing cluster"
KAI = "KAI Scheduler of the existing cluster"
GPU, AGENT = "nvidia.com/gpu", "eks-node-monitoring-agent"
CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
DAEMON_SETS = "/apis/apps/v1/daemonsets"
TORCHRUN = "/api/v1/namespaces/torchrun-system"
DEPLOYMENTS = "/apis/apps/v1/deployments"


class Api:
    """An API server with the objects of some paths; `refuses` is its answer to every request, if set."""

    def __init__(self) -> None:
        self.paths: dict[str, Any] = {}
        self.refuses: int | None = None
        self.tokens: list[str] = []
        api = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                api.tokens.append(self.headers["Authorization"])
                body = api.paths.get(self.path)
                text = json.dumps(body).encode()
                self.send_response(api.refuses or (404 if body is None else 200))
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

            def log_message(self, format: str, *args: Any) -> None:
                return

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(
            target=self.server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True
        ).start()
        self.url = f"http://127.0.0.1:{self.server.server_port}"


@pytest.fixture
def api(monkeypatch: pytest.MonkeyPatch) -> Iterator[Api]:
    monkeypatch.setattr(cluster_objects, "RETRY", RetryPolicy(timeout=0.1, initial_delay=0.05))
    made = Api()
    yield made
    made.server.shutdown()
    made.server.server_close()


class Account(Answers):
    """An account with an active cluster at an API and the node monitoring agent as an add-on."""

    def __init__(self, api: Api, **answers: Any) -> None:
        cluster = {"name": "research", "status": "ACTIVE", "endpoint": api.url}
        given = {"describe_cluster": {"cluster": cluster}, "list_addons": [AGENT], **answers}
        super().__init__(**given)

    def signing(self) -> Any:
        return session()


@cache
def session() -> Any:
    """Return a session of all tests: a new one reads botocore's models again."""
    return boto3.session.Session("a", "b", region_name=REGION)


def check(
    api: Api, *pools: dict[str, Any], answers: dict[str, Any] | None = None, **changes: Any
) -> list[str]:
    cluster = {"existing": EXISTING, **changes.pop("cluster", {})}
    return findings(Account(api, **(answers or {})), stack(*pools, cluster=cluster, **changes), OBJECTS)


def daemon_set(name: str, image: str = "a", **pod: Any) -> dict[str, Any]:
    namespace, _, name = name.rpartition("/")
    spec = {"containers": [{"name": name, "image": image}], **pod}
    return {
        "metadata": {"namespace": namespace or "kube-system", "name": name},
        "spec": {"template": {"spec": spec}},
    }


LUSTRE = {"storage": {"lustre": {"capacityGiB": 1200}}}
TRAINJOB = {"training": {"pool": "small", "minNodes": 1, "maxNodes": 1, "backend": "trainjob"}}
QUEUE = {"queues": [{"name": "research", "pool": "small"}]}


@pytest.mark.parametrize(
    ("paths", "changes", "parts"),
    [
        ([], {}, []),
        ([f"{CRDS}/nodepools.karpenter.sh", f"{CRDS}/ec2nodeclasses.karpenter.k8s.aws"], {},
         ["has Karpenter already (nodepools.karpenter.sh, ec2nodeclasses.karpenter.k8s.aws)"]),
        ([f"{CRDS}/nodepools.karpenter.sh", f"{CRDS}/pytorchjobs.kubeflow.org"], {},
         ["has Karpenter already (", "has Kubeflow's training operator already"]),
        ([f"{CRDS}/mpijobs.kubeflow.org", f"{CRDS}/torchrunjobs.torchrun.ai", TORCHRUN], {}, []),
        ([f"{CRDS}/mpijobs.kubeflow.org"], {"mpi": True}, ["an operator for MPIJobs"]),
        ([f"{CRDS}/jobsets.jobset.x-k8s.io", f"{CRDS}/trainjobs.trainer.kubeflow.org"], {}, []),
        ([f"{CRDS}/jobsets.jobset.x-k8s.io", f"{CRDS}/pytorchjobs.kubeflow.org", "/api/v1/namespaces/kubeflow",
          "/api/v1/namespaces/kubeflow-system"], TRAINJOB,
         ["has JobSet already (jobsets.jobset.x-k8s.io)", "has the namespace kubeflow-system already"]),
        ([f"{CRDS}/torchrunjobs.torchrun.ai", TORCHRUN], QUEUE,
         ["a controller of torchrun jobs", "the namespace torchrun-system already"]),
        (["/api/v1/namespaces/training"], {}, ["has the namespace training already"]),
        (["/api/v1/namespaces/training", "/api/v1/namespaces/device-plugins"], {},
         ["the namespaces training, device-plugins"]),
    ],
)  # fmt: skip
def test_objects_that_the_stack_creates_must_not_exist(
    api: Api, paths: list[str], changes: dict[str, Any], parts: list[str]
) -> None:
    api.paths |= {path: {"kind": "x"} for path in paths}
    lines = check(api, **changes)
    assert len(lines) == len(parts), lines
    for line, part in zip(lines, parts, strict=True):
        only([line], NAME, part)
    assert {token.split(".")[0] for token in api.tokens} == {"Bearer k8s-aws-v1"}


def test_objects_of_the_stack_itself_are_no_problem_but_missing_ones_are(api: Api) -> None:
    api.paths |= {
        f"{CRDS}/nodepools.karpenter.sh": {"kind": "x"},
        "/api/v1/namespaces/training": {"kind": "x"},
    }
    own = {"get_queue_url": {"QueueUrl": "u"}, "list_queue_tags": {"Tags": TAGS}}
    assert check(api, answers=own) == []
    only(check(api, answers={**own, "list_addons": []}), REPAIR, AGENT)


@pytest.mark.parametrize(
    ("image", "is_found"),
    [
        ("nvcr.io/nvidia/k8s-device-plugin:v0.17.0", True),
        ("registry:5000/k8s-device-plugin@sha256:" + "0" * 64, True),
        ("k8s-device-plugin", True),
        ("public.ecr.aws/neuron/neuron-device-plugin:2.1", False),
        ("x.amazonaws.com/eks/aws-efa-k8s-device-plugin:v0.5.20", False),
        ("registry.example/not-k8s-device-plugin:1", False),
    ],
)
def test_plugin_for_the_same_devices_on_every_node_is_refused(api: Api, image: str, is_found: bool) -> None:
    api.paths[DAEMON_SETS] = {"items": [daemon_set("plugin", image)]}
    lines = check(api)
    expect(lines, NAME if is_found else "", "the DaemonSet kube-system/plugin", GPU)
    # A node selector keeps it away from the pools.
    api.paths[DAEMON_SETS] = {"items": [daemon_set("plugin", image, nodeSelector={"a": "b"})]}
    assert check(api) == []


def test_fsx_driver_is_an_addon_or_installed_otherwise(api: Api) -> None:
    only(check(api, **LUSTRE), "trainyard:storage.lustre", "fsx.csi.aws.com", "create-addon", "research")
    assert check(api, answers={"list_addons": [AGENT, "aws-fsx-csi-driver"]}, **LUSTRE) == []
    api.paths["/apis/storage.k8s.io/v1/csidrivers/fsx.csi.aws.com"] = {"kind": "CSIDriver"}
    assert check(api, **LUSTRE) == []


def test_node_repair_needs_the_monitoring_agent(api: Api) -> None:
    without = {"list_addons": []}
    only(check(api, answers=without), REPAIR, AGENT)
    assert check(api, answers=without, cluster={"nodeRepair": False}) == []
    api.paths[DAEMON_SETS] = {"items": [daemon_set(AGENT)]}
    assert check(api, answers=without) == []


@pytest.mark.parametrize(
    ("tolerations", "is_right"),
    [
        ([], False),
        ([{"key": "other", "operator": "Exists"}], False),
        ([{"key": GPU, "operator": "Exists", "effect": "NoExecute"}], False),
        ([{"key": GPU, "value": "true"}], False),
        ([{"operator": "Exists"}], True),
        ([{"key": GPU, "operator": "Exists", "effect": "NoSchedule"}], True),
        ([{"key": GPU}], True),
    ],
)
def test_dcgm_server_must_tolerate_gpu_taint(
    api: Api, tolerations: list[dict[str, str]], is_right: bool
) -> None:
    values = json.dumps({"dcgmAgent": {"tolerations": tolerations}})
    addon = {"describe_addon": {"addon": {"configurationValues": values}}}
    lines = check(api, answers=addon)
    key = "" if is_right else REPAIR
    expect(lines, key, "dcgm-server", f"{GPU}:NoSchedule", "dcgmAgent.tolerations")
    assert check(api, answers=addon, cluster={"nodeRepair": False}) == []
    assert check(api, {"instanceType": "trn1.32xlarge", "efa": "none"}, answers=addon) == []
    # Installed by its chart.
    api.paths[DAEMON_SETS] = {"items": [daemon_set("dcgm-server", tolerations=tolerations)]}
    assert bool(check(api)) is not is_right


def test_tolerations_are_read_from_the_emulators_addon(deployer: Cloud, api: Api) -> None:
    deployer.cluster("research")
    eks = deployer.client("eks")

    def problems() -> list[str]:
        account = Account(api, list_addons=[AGENT], describe_addon=aws_addon())
        return findings(account, stack(cluster={"existing": EXISTING}), OBJECTS)

    def aws_addon() -> dict[str, Any]:
        return dict(eks.describe_addon(clusterName="research", addonName=AGENT))

    eks.create_addon(clusterName="research", addonName=AGENT)
    only(problems(), REPAIR, "does not tolerate")
    eks.update_addon(clusterName="research", addonName=AGENT, configurationValues=VALUES[AGENT])
    assert problems() == []


@pytest.mark.parametrize(
    ("code", "part"),
    [(401, "permission to get /api/x in the cluster"), (403, "permission to get"), (503, "a connection to")],
)
def test_cluster_that_refuses_is_not_checked(api: Api, code: int, part: str) -> None:
    api.refuses = code
    reader = ClusterReader(Account(api), {"name": "research", "endpoint": api.url})
    with pytest.raises(Denied, match=part):
        reader.get("/api/x")


def test_private_cluster_out_of_reach_is_not_checked(api: Api) -> None:
    reader = ClusterReader(Account(api), {"name": "research", "endpoint": "http://127.0.0.1:1"})
    with pytest.raises(Denied, match=r"a connection to the cluster's API at http://127.0.0.1:1"):
        reader.get("/api/x")


def test_new_or_inactive_cluster_is_not_read(api: Api) -> None:
    names = (OBJECTS, VPC_CNI, KAI)
    assert findings(Answers(), stack({"efa": None}, **QUEUE), *names) == []
    creating = {"describe_cluster": {"cluster": {"name": "research", "status": "CREATING"}}}
    settings = stack(cluster={"existing": EXISTING}, **QUEUE)
    assert findings(Account(api, **creating), settings, *names) == []


@pytest.mark.parametrize(
    ("version", "is_right"),
    [
        ("v1.18.4-eksbuild.9", False),
        ("v1.9.10-eksbuild.1", False),
        ("v0.99.0", False),
        ("v1.18.5-eksbuild.1", True),
        ("v1.18.10-eksbuild.1", True),
        ("v2.0.0", True),
    ],
)
def test_efa_only_interfaces_need_a_minimum_version(version: str, is_right: bool) -> None:
    assert (cni_problem(version) is None) is is_right


def test_pinned_vpc_cni_must_support_efa_only_interfaces() -> None:
    config = with_({"cluster": {"addonVersions": {"vpc-cni": "v1.18.4-eksbuild.1"}}})
    only(mistakes(config), "trainyard:cluster.addonVersions.vpc-cni", "v1.18.5 or newer", "efa of small")
    newer = with_({"cluster": {"addonVersions": {"vpc-cni": "v1.18.5-eksbuild.1"}}})
    assert read_settings(newer).pools[0].efa == 1


EFA = {"instanceType": "g5.48xlarge", "efa": "ip"}
REGISTRY = "602401143452.dkr.ecr.us-west-2.amazonaws.com"
DIGEST = f"sha256:{'0' * 64}"


@pytest.mark.parametrize(
    ("addon", "image", "part"),
    [
        ("v1.15.1-eksbuild.1", "", "VPC CNI v1.15.1-eksbuild.1"),
        ("v1.19.0-eksbuild.1", "", ""),
        (None, None, ""),
        (None, f"{REGISTRY}/amazon-k8s-cni:v1.18.3-eksbuild.3", "VPC CNI v1.18.3-eksbuild.3"),
        (None, f"registry.example:5000/amazon-k8s-cni:v1.18.0@{DIGEST}", "VPC CNI v1.18.0"),
        (None, f"registry.example:5000/amazon-k8s-cni:v1.19.0@{DIGEST}", ""),
    ],
)
def test_vpc_cni_of_the_cluster_must_support_efa(
    api: Api, addon: str | None, image: str | None, part: str
) -> None:
    answers = {"describe_addon": {"addon": {"addonVersion": addon}}} if addon else {}
    if image:
        found = daemon_set("aws-node", image)
        found["spec"]["template"]["spec"]["containers"].insert(0, {"name": "agent", "image": "agent:v9.9.9"})
        api.paths["/apis/apps/v1/namespaces/kube-system/daemonsets/aws-node"] = found
    for pool, expected in ((EFA, part), ({}, "")):
        lines = findings(Account(api, **answers), stack(pool, cluster={"existing": EXISTING}), VPC_CNI)
        expect(lines, NAME, expected, "v1.18.5 or newer", "Its owner must update it")


def test_vpc_cni_without_a_version_is_not_checked(api: Api) -> None:
    answers = {"describe_addon": {"addon": {"addonVersion": "latest"}}}
    report = examine(stack(EFA, cluster={"existing": EXISTING}), Account(api, **answers), checks(VPC_CNI))
    assert report.denied == [(VPC_CNI, "a VPC CNI with a valid version instead of 'latest'")]


IMAGE = "ghcr.io/kai-scheduler/kai-scheduler/scheduler"
CONF = "--scheduler-conf=/etc/config/config.yaml"


def deployment(name: str, image: str, *args: str) -> dict[str, Any]:
    spec = {"containers": [{"image": image, "args": list(args)}]}
    return {"metadata": {"namespace": "kai", "name": name}, "spec": {"template": {"spec": spec}}}


def kai(api: Api, *deployments: dict[str, Any], **changes: Any) -> list[str]:
    api.paths |= {
        f"{CRDS}/podgroups.scheduling.run.ai": {"kind": "x"},
        DEPLOYMENTS: {"items": list(deployments)},
    }
    settings = stack(cluster={"existing": EXISTING}, **(changes or QUEUE))
    return findings(Account(api), settings, KAI, kind=WARNING)


@pytest.mark.parametrize(
    ("version", "argument", "part"),
    [
        ("v0.14.7", "", "It must be v0.15.0 or newer"),
        ("v0.15.0", "", ""),
        ("v0.16.1", "", ""),
        ("v0.16.2", "", "It must be v0.17.1 or newer"),
        ("v0.16.8-fips", "--default-staleness-grace-period=60s", "It must be v0.17.1 or newer"),
        ("v0.16.4@sha256:1", "", "KAI Scheduler v0.16.4 (Deployment kai/one)"),
        ("v0.17.0", "--default-staleness-grace-period=-1s", ""),
        ("v0.17.1", "", ""),
        ("0.20.3", "", ""),
    ],
)
def test_kai_scheduler_with_a_defect_is_a_warning(api: Api, version: str, argument: str, part: str) -> None:
    lines = kai(api, deployment("one", f"{IMAGE}:{version}", CONF, argument))
    expect(lines, NAME, part)


def test_each_shard_of_kai_is_found_with_any_registry(api: Api) -> None:
    lines = kai(
        api,
        deployment("one", "mirror.local:5000/gang/scheduler:v0.16.4", CONF),
        deployment("two", f"{IMAGE}:v0.17.0", CONF),
        deployment("binder", "ghcr.io/kai-scheduler/kai-scheduler/binder:v0.17.0", CONF),
        deployment("other", "example.com/scheduler:v0.1.0"),
    )
    assert [line.split("Deployment ")[1].split(")")[0] for line in lines] == ["kai/one", "kai/two"]
    assert kai(api, deployment("one", f"{IMAGE}:v0.16.4", CONF), mpi=False) == [], "no torchrun jobs"
    api.paths.pop(f"{CRDS}/podgroups.scheduling.run.ai")
    assert findings(Account(api), stack(cluster={"existing": EXISTING}, **QUEUE), KAI, kind=WARNING) == []


def test_kai_scheduler_without_a_version_is_not_checked(api: Api) -> None:
    api.paths |= {
        f"{CRDS}/podgroups.scheduling.run.ai": {"kind": "x"},
        DEPLOYMENTS: {"items": [deployment("one", f"{IMAGE}:latest", CONF)]},
    }
    report = examine(stack(cluster={"existing": EXISTING}, **QUEUE), Account(api), checks(KAI))
    assert report.denied == [(KAI, f"an image of KAI Scheduler with a version instead of '{IMAGE}:latest'")]
