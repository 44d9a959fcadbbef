"""What is in a given cluster: what the stack would make a second time, and what it relies on."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from components.documents.eks import VALUES
from tests.unit.emulator import REGION, SESSION, Cloud
from tests.unit.infra.changing import GIVEN_CLUSTER, GIVEN_VPC, settings, with_
from tests.unit.preflight.accounts import NOW, account, checks, only, wanted
from trainyard.preflight import inside, read_inside
from trainyard.preflight.account import Account, Denied
from trainyard.preflight.inside import DaemonSet, Inside, check
from trainyard.preflight.mapping import wanted_of
from trainyard.preflight.run import examine
from trainyard.preflight.services import Cluster
from trainyard.preflight.wanted import WantedCluster

pytestmark = pytest.mark.unit

NAME, REPAIR = "trainyard:cluster.existing.name", "trainyard:cluster.nodeRepair"
GPU, EFA = "nvidia.com/gpu", "vpc.amazonaws.com/efa"
GIVEN = WantedCluster(
    name="research",
    versions=("1.35",),
    definitions=("nodepools.karpenter.sh", "ec2nodeclasses.karpenter.k8s.aws", "pytorchjobs.kubeflow.org"),
    namespaces=("training", "kubeflow", "device-plugins"),
    devices=(GPU,),
    drivers=("fsx.csi.aws.com",),
    node_repair=True,
)
READY = Inside(
    definitions=frozenset(),
    namespaces=frozenset(),
    drivers=frozenset({"fsx.csi.aws.com"}),
    addons=frozenset({"eks-node-monitoring-agent"}),
)


def told(deployed: bool = False, **changes: Any) -> list[str]:
    return [str(problem) for problem in check(GIVEN, replace(READY, **changes), deployed=deployed)]


def plugin(image: str, *, everywhere: bool = True) -> tuple[DaemonSet, ...]:
    return (DaemonSet(name="kube-system/plugin", images=(image,), everywhere=everywhere),)


def test_a_cluster_with_what_the_stack_relies_on_and_nothing_of_what_it_makes_is_right() -> None:
    assert told() == []


def test_karpenter_that_is_there_is_told_once_for_all_of_its_definitions() -> None:
    there = frozenset({"nodepools.karpenter.sh", "ec2nodeclasses.karpenter.k8s.aws"})
    only(told(definitions=there), NAME, "has Karpenter already (nodepools.karpenter.sh, ec2nodeclasses")
    both = told(definitions=there | {"pytorchjobs.kubeflow.org"})
    assert [line.split(" already")[0].rsplit("has ")[-1] for line in both] == [
        "Karpenter",
        "Kubeflow's training operator",
    ]


def test_a_namespace_that_destroy_would_delete_must_not_be_there() -> None:
    only(told(namespaces=frozenset({"training"})), NAME, "has the namespace training already")
    only(told(namespaces=frozenset({"training", "kubeflow"})), NAME, "the namespaces training, kubeflow")


@pytest.mark.parametrize(
    ("image", "is_told"),
    [
        ("nvcr.io/nvidia/k8s-device-plugin:v0.17.0", True),
        ("registry:5000/k8s-device-plugin@sha256:" + "0" * 64, True),
        ("k8s-device-plugin", True),
        ("public.ecr.aws/neuron/neuron-device-plugin:2.1", False),
        ("x.amazonaws.com/eks/aws-efa-k8s-device-plugin:v0.5.20", False),
        ("registry.example/not-k8s-device-plugin:1", False),
    ],
)
def test_a_plugin_for_the_same_devices_on_every_machine_is_told(image: str, is_told: bool) -> None:
    lines = told(daemon_sets=plugin(image))
    assert bool(lines) is is_told
    if is_told:
        only(lines, NAME, "the DaemonSet kube-system/plugin", GPU)
    assert told(daemon_sets=plugin(image, everywhere=False)) == [], "its owner keeps it off by a selector"


def test_the_driver_is_there_by_eks_or_by_anybody_else() -> None:
    assert told(drivers=frozenset(), addons=READY.addons | {"aws-fsx-csi-driver"}) == []
    only(told(drivers=frozenset()), "trainyard:storage.lustre", "fsx.csi.aws.com", "create-addon", "research")


def test_node_repair_needs_somebody_who_tells_what_is_broken() -> None:
    only(told(addons=frozenset()), REPAIR, "eks-node-monitoring-agent")
    agent = DaemonSet(name="kube-system/eks-node-monitoring-agent", images=("a",), everywhere=True)
    assert told(addons=frozenset(), daemon_sets=(agent,)) == []
    off = replace(GIVEN, node_repair=False)
    assert check(off, replace(READY, addons=frozenset()), deployed=False) == []


@pytest.mark.parametrize(
    ("tolerations", "is_right"),
    [
        ((), False),
        (({"key": "other", "operator": "Exists"},), False),
        (({"key": GPU, "operator": "Exists", "effect": "NoExecute"},), False),
        (({"key": GPU, "value": "true"},), False),
        (({"operator": "Exists"},), True),
        (({"key": GPU, "operator": "Exists", "effect": "NoSchedule"},), True),
        (({"key": GPU},), True),
    ],
)
def test_dcgm_server_must_tolerate_gpu_taint(tolerations: tuple[dict[str, str], ...], is_right: bool) -> None:
    lines = told(agent_tolerations=tolerations)
    assert bool(lines) is not is_right
    if lines:
        only(lines, REPAIR, "dcgm-server", f"{GPU}:NoSchedule", "dcgmAgent.tolerations")
    running = DaemonSet(
        name="kube-system/dcgm-server", images=("a",), everywhere=False, tolerations=tolerations
    )
    assert bool(told(daemon_sets=(running,))) is not is_right, "installed by its chart"
    off = replace(GIVEN, node_repair=False)
    assert check(off, replace(READY, agent_tolerations=tolerations), deployed=True) == []
    without_gpus = replace(GIVEN, devices=("aws.amazon.com/neuron",))
    assert check(without_gpus, replace(READY, agent_tolerations=tolerations), deployed=False) == []


def test_tolerations_of_the_agent_are_read_from_its_addon(api: Api, asked: Account, deployer: Cloud) -> None:
    deployer.cluster("main")
    eks, agent = deployer.client("eks"), "eks-node-monitoring-agent"

    def read() -> Any:
        reader = read_inside.reader(asked, cluster(api))
        return read_inside.inside(asked, replace(GIVEN, name="main"), reader).agent_tolerations

    assert read() is None
    eks.create_addon(clusterName="main", addonName=agent)
    assert read() == ()
    eks.update_addon(clusterName="main", addonName=agent, configurationValues=VALUES[agent])
    assert read() == ({"operator": "Exists"},)


def test_what_a_stack_that_is_up_made_itself_is_no_problem_but_what_it_lacks_is() -> None:
    there = {"definitions": frozenset(GIVEN.definitions), "namespaces": frozenset(GIVEN.namespaces)}
    assert told(deployed=True, **there) == []
    only(told(deployed=True, drivers=frozenset(), **there), "trainyard:storage.lustre")


def test_what_the_settings_ask_for_is_looked_for() -> None:
    given: dict[str, Any] = {"cluster": {"existing": GIVEN_CLUSTER}, "network": GIVEN_VPC}
    config = with_(given)
    config["trainyard:cluster"] = given["cluster"]
    found = wanted_of(settings(config)).existing_cluster
    assert found is not None
    asked = ("mpijobs.kubeflow.org", "torchrunqueues.torchrun.ai", "torchrunjobs.torchrun.ai")
    assert found.definitions == tuple(name for name in inside.DEFINITIONS if name not in asked)
    assert found.namespaces == ("training", "kubeflow", "device-plugins")
    assert (found.devices, found.drivers, found.node_repair) == ((GPU, EFA), (), True)
    more = {**config, "trainyard:mpi": True, "trainyard:storage": {"lustre": {"capacityGiB": 1200}}}
    found = wanted_of(settings(more)).existing_cluster
    assert found is not None
    assert "mpijobs.kubeflow.org" in found.definitions
    assert found.drivers == ("fsx.csi.aws.com",)
    with_queue = {**config, "trainyard:queues": [{"name": "research", "pool": "small"}]}
    found = wanted_of(settings(with_queue)).existing_cluster
    assert found is not None
    assert {name for name in found.definitions if name in asked} == set(asked[1:])
    assert found.namespaces[-1] == "torchrun-system"


class Api:
    """An API server that has some paths; `refuses` is what it answers instead of anything."""

    def __init__(self) -> None:
        self.paths: dict[str, str] = {}
        self.refuses: int | None = None
        self.tokens: list[str] = []
        api = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                api.tokens.append(self.headers["Authorization"])
                body = api.paths.get(self.path)
                code = api.refuses or (404 if body is None else 200)
                text = (body or "{}").encode()
                self.send_response(code)
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

            def log_message(self, format: str, *args: Any) -> None:
                return

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self.server.server_port}"


@pytest.fixture
def api() -> Iterator[Api]:
    made = Api()
    made.paths["/apis/apps/v1/daemonsets"] = '{"items": []}'
    yield made
    made.server.shutdown()
    made.server.server_close()


@pytest.fixture
def asked(deployer: Cloud) -> Account:
    """An account with credentials of its own, which sign the token."""
    import boto3

    session = boto3.session.Session(deployer.key, deployer.secret, region_name=REGION)
    assert session is not SESSION
    return Account(REGION, session)


def cluster(api: Api) -> Cluster:
    return Cluster(name="main", status="ACTIVE", version="1.35", mode="API", vpc_id="v", endpoint=api.url)


def test_the_cluster_is_asked_for_each_thing_with_a_token_of_eks(
    api: Api, asked: Account, deployer: Cloud
) -> None:
    deployer.cluster("main")
    deployer.client("eks").create_addon(clusterName="main", addonName="coredns")
    api.paths |= {
        "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/nodepools.karpenter.sh": '{"kind": "x"}',
        "/api/v1/namespaces/training": '{"kind": "Namespace"}',
        "/apis/storage.k8s.io/v1/csidrivers/fsx.csi.aws.com": '{"kind": "CSIDriver"}',
        "/apis/apps/v1/daemonsets": """{"items": [
            {"metadata": {"namespace": "kube-system", "name": "plugin"},
             "spec": {"template": {"spec": {"containers": [{"image": "nvidia/k8s-device-plugin:1"}]}}}},
            {"metadata": {"namespace": "gpu", "name": "chosen"},
             "spec": {"template": {"spec": {"nodeSelector": {"a": "b"}, "containers": [{"image": "x"}]}}}}]}""",
    }
    found = read_inside.inside(asked, replace(GIVEN, name="main"), read_inside.reader(asked, cluster(api)))
    assert found == Inside(
        definitions=frozenset({"nodepools.karpenter.sh"}),
        namespaces=frozenset({"training"}),
        drivers=frozenset({"fsx.csi.aws.com"}),
        addons=frozenset({"coredns"}),
        daemon_sets=(
            DaemonSet(name="kube-system/plugin", images=("nvidia/k8s-device-plugin:1",), everywhere=True),
            DaemonSet(name="gpu/chosen", images=("x",), everywhere=False),
        ),
    )
    assert {each.split(".")[0] for each in api.tokens} == {"Bearer k8s-aws-v1"}


@pytest.mark.parametrize(
    ("code", "says"),
    [(401, "the right to get /api/x in the cluster"), (403, "the right to get"), (503, "a way from here")],
)
def test_a_cluster_that_does_not_tell_is_not_checked_with_the_reason(
    api: Api, asked: Account, code: int, says: str
) -> None:
    api.refuses = code
    with pytest.raises(Denied, match=says):
        read_inside.reader(asked, cluster(api))("/api/x")


def test_a_private_cluster_that_is_not_reached_from_here_is_not_checked(api: Api, asked: Account) -> None:
    get = read_inside.reader(asked, replace(cluster(api), endpoint="http://127.0.0.1:1"))
    with pytest.raises(Denied, match=r"a way from here to the cluster's API at http://127.0.0.1:1"):
        get("/api/x")


def test_no_given_cluster_no_question(cloud: Cloud) -> None:
    report = examine(account(cloud), wanted(), NOW, checks("what is in the given cluster"))
    assert (report.problems, report.not_checked) == ([], [])
