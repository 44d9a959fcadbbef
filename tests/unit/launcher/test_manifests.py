"""The objects that a request becomes, compared with a file; `UPDATE_GOLDEN=1` writes it again."""

from __future__ import annotations

import dataclasses
import json
import os
import stat
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from launcher import manifests
from launcher.__main__ import dry_run
from launcher.backends import pytorchjob
from launcher.manifests import Owner
from launcher.request import Request
from tests.unit.launcher.conftest import DOCUMENT, asked, fallback

GOLDEN = Path(__file__).parent / "golden.yaml"
OWNER = Owner(name="launch-r1", uid="0f1e")


def test_the_objects_are_those_of_the_golden_file(request_: Request) -> None:
    objects = [
        manifests.placeholder(request_, 0, OWNER, "1-0"),
        pytorchjob.build(request_, 3, "all 3 nodes are ready"),
        manifests.event(
            request_, OWNER, now=1_800_000_000.0, kind="Normal", reason="Submitting", message="3 of 4 nodes"
        ),
    ]
    text = yaml.safe_dump_all(json.loads(json.dumps(objects)), sort_keys=False, width=110)
    if os.environ.get("UPDATE_GOLDEN"):
        GOLDEN.write_text(text)
    assert text == GOLDEN.read_text()


def test_training_job_elastic_has_workers_only() -> None:
    spec = pytorchjob.build(asked(shape="elastic", maxRestarts=3), 3, "", restart=1)["spec"]
    assert spec["elasticPolicy"] == {
        "minReplicas": 2,
        "maxReplicas": 3,
        "maxRestarts": 3,
        "rdzvBackend": "c10d",
        "rdzvId": "r1-1",
    }
    assert spec["nprocPerNode"] == "4", "and not in the elasticPolicy, too: both are refused"
    (worker,) = spec["pytorchReplicaSpecs"].values()
    assert (list(spec["pytorchReplicaSpecs"]), worker["replicas"]) == (["Worker"], 3)
    assert worker["restartPolicy"] == "Never"
    env = worker["template"]["spec"]["containers"][0]["env"]
    values = {each["name"]: each["value"] for each in env}
    assert "TRAINYARD_EXPECTED_NODES" not in values
    assert "PET_RDZV_ID" not in values, "the operator sets it"
    assert (values["TRAINYARD_RESTART"], values["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"]) == ("1", "1")


@pytest.mark.parametrize(("nodes", "least"), [(1, 1), (2, 2), (4, 2)])
def test_an_elastic_world_never_shrinks_below_the_minimum(nodes: int, least: int) -> None:
    job = pytorchjob.build(asked(shape="elastic"), nodes, "")
    assert job["spec"]["elasticPolicy"]["minReplicas"] == least
    assert replicas(job) == {"Worker": nodes}


def test_each_training_of_a_run_has_a_rendezvous_of_its_own(request_: Request) -> None:
    for restart in (0, 2):
        job = pytorchjob.build(request_, 2, "", restart=restart)
        assert job["metadata"]["annotations"]["trainyard.dev/restart"] == str(restart)
        assert job["metadata"]["name"] == "train-r1"
        for replica in job["spec"]["pytorchReplicaSpecs"].values():
            env = replica["template"]["spec"]["containers"][0]["env"]
            values = {each["name"]: each["value"] for each in env}
            assert (values["PET_RDZV_ID"], values["TRAINYARD_RESTART"]) == (f"r1-{restart}", str(restart))
        assert "backoffLimit" not in job["spec"]["runPolicy"], "at which the operator deletes the pods"


def replicas(job: dict[str, Any]) -> dict[str, int]:
    return {kind: spec["replicas"] for kind, spec in job["spec"]["pytorchReplicaSpecs"].items()}


def test_one_node_is_a_master_alone(request_: Request) -> None:
    assert replicas(pytorchjob.build(request_, 1, "")) == {"Master": 1}
    assert replicas(pytorchjob.build(request_, 4, "")) == {"Master": 1, "Worker": 3}


def test_placeholder_has_resources_of_worker(request_: Request) -> None:
    pool = dataclasses.replace(request_.pool, efa_per_node=1)
    request = dataclasses.replace(request_, pool=pool)
    place = manifests.placeholder(request, 0, OWNER, "1-0")["spec"]
    work = pytorchjob.build(request, 2, "")["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]
    resources = place["containers"][0]["resources"]
    assert resources == work["containers"][0]["resources"]
    assert resources["requests"] == resources["limits"]
    assert resources["limits"]["vpc.amazonaws.com/efa"] == "1"
    assert {"name": "FI_EFA_USE_HUGE_PAGE", "value": "0"} in work["containers"][0]["env"]
    assert not [name for name in resources["limits"] if name.startswith("hugepages")], "Karpenter buys none"
    assert place["nodeSelector"] == work["nodeSelector"]
    assert all(toleration in place["tolerations"] for toleration in work["tolerations"])


def templates(worker: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """The pod templates of a job of three nodes with these values of its worker, by the kind of their replica."""
    request = asked(worker={**DOCUMENT["worker"], **worker}, **changes)
    replicas = pytorchjob.build(request, 3, "")["spec"]["pytorchReplicaSpecs"]
    return {kind: each["template"] for kind, each in replicas.items()}


def test_training_job_mounts_and_opens_volumes() -> None:
    worker = {"mounts": {"lustre": "/fsx"}, "writes": ["/fsx/trainyard/dev"]}
    for template in templates(worker).values():
        pod = template["spec"]
        claim = {"name": "lustre", "persistentVolumeClaim": {"claimName": "lustre"}}
        assert claim in pod["volumes"]
        assert {"name": "lustre", "mountPath": "/fsx"} in pod["containers"][0]["volumeMounts"]
        [opening] = pod["initContainers"]
        assert opening["command"] == ["sh", "-c", manifests.OPEN, "10001", "/fsx/trainyard/dev"]
        assert opening["volumeMounts"] == [{"name": "lustre", "mountPath": "/fsx"}]
        assert opening["securityContext"]["runAsUser"] == 0
        assert opening["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert "initContainers" not in templates({**worker, "writes": []})["Worker"]["spec"]


@pytest.mark.parametrize(("given", "found"), [({}, "/tmp"), ({"HOME": "/own"}, "/own")])
def test_workers_have_a_home_that_the_stack_may_set(given: dict[str, str], found: str) -> None:
    for template in templates({"env": given}).values():
        variables = template["spec"]["containers"][0]["env"]
        assert [each["value"] for each in variables if each["name"] == "HOME"] == [found]


@pytest.mark.parametrize(("env", "seconds"), [({}, 45), ({"TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "120"}, 135)])
def test_grace_period_covers_torchrun_timeout(env: dict[str, str], seconds: int) -> None:
    graces = [each["spec"]["terminationGracePeriodSeconds"] for each in templates({"env": env}).values()]
    assert graces == [seconds, seconds]


def test_metrics_are_looked_for_on_the_pod_of_rank_0_alone() -> None:
    env = {"TRAINYARD_METRICS_PORT": "9465"}
    leader, other = templates({"env": env}).values()
    port = {"name": "metrics", "containerPort": 9465, "protocol": "TCP"}
    assert leader["spec"]["containers"][0]["ports"] == [port]
    assert leader["metadata"]["annotations"] == {
        "karpenter.sh/do-not-disrupt": "true",
        "prometheus.io/scrape": "true",
        "prometheus.io/port": "9465",
        "prometheus.io/path": "/metrics",
    }
    assert "ports" not in other["spec"]["containers"][0]
    assert list(other["metadata"]["annotations"]) == ["karpenter.sh/do-not-disrupt"]
    (elastic,) = templates({"env": env}, shape="elastic").values()
    assert elastic["metadata"]["annotations"]["prometheus.io/port"] == "9465", "any pod may have rank 0"


def opened(*places: Path) -> subprocess.CompletedProcess[str]:
    words = ["sh", "-c", manifests.OPEN, "10001", *map(str, places)]
    return subprocess.run(words, check=True, capture_output=True, text=True)


def test_open_script_opens_root_directory(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    opened(tmp_path)
    mine = tmp_path.stat().st_uid == 0
    assert stat.S_IMODE(tmp_path.stat().st_mode) == (0o1777 if mine else 0o755)


def test_open_script_creates_directory(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    own = tmp_path / "trainyard" / "dev"
    for _ in range(2):
        assert opened(own).stderr == ""
    mine = own.stat().st_uid == 0
    modes = [stat.S_IMODE(path.stat().st_mode) for path in (tmp_path, own.parent, own)]
    assert modes == [0o755, 0o755, 0o1777 if mine else 0o755]


def test_open_script_without_permission_continues(tmp_path: Path) -> None:
    other = tmp_path / "other"
    (tmp_path / "file").touch()
    assert "/file/x is left to the user 10001" in opened(tmp_path / "file" / "x", other).stderr
    assert other.is_dir()


def test_a_command_and_an_active_deadline_are_passed_on(request_: Request) -> None:
    worker = dataclasses.replace(request_.worker, command=("sh", "-c"))
    request = dataclasses.replace(request_, worker=worker, active_deadline_seconds=60)
    spec = pytorchjob.build(request, 1, "")["spec"]
    assert spec["runPolicy"]["activeDeadlineSeconds"] == 60
    container = spec["pytorchReplicaSpecs"]["Master"]["template"]["spec"]["containers"][0]
    assert container["command"] == ["sh", "-c"]


def test_a_dry_run_prints_the_objects_of_each_candidate() -> None:
    request = asked(attempts=2, fallbacks=[fallback()])
    documents = list(yaml.safe_load_all(dry_run(request, "launch-r1")))
    assert documents[0]["request"]["min_nodes"] == 2
    assert documents[0]["request"]["fallbacks"][0]["deadline_seconds"] == 120
    placed = [
        (item["metadata"]["labels"]["trainyard.dev/attempt"], item["spec"]["nodeSelector"])
        for item in documents[1:]
        if item["kind"] == "Pod"
    ]
    small, large = {"karpenter.sh/nodepool": "small"}, {"karpenter.sh/nodepool": "large"}
    assert placed == [("1-0", small)] * 4 + [("1-1", large)] * 4
    jobs = [item["metadata"]["annotations"] for item in documents[1:] if item["kind"] == "PyTorchJob"]
    assert ["pool small" in jobs[0]["trainyard.dev/reason"], len(jobs)] == [True, 2]


def test_a_dry_run_shows_no_more_than_each_pool_may_have(caplog: pytest.LogCaptureFixture) -> None:
    """As a run would: of a pool that may have fewer than MIN it makes nothing."""
    request = asked(minNodes=5, maxNodes=999_999, fallbacks=[fallback(maxNodes=6)])
    documents = list(yaml.safe_load_all(dry_run(request, "launch-r1")))
    assert [document.get("kind") for document in documents[1:]] == ["Pod"] * 6 + ["PyTorchJob"]
    assert documents[-1]["metadata"]["annotations"]["trainyard.dev/nodes"] == "6"
    assert "pool small may have 4 nodes, fewer than MIN (5): no run starts there" in caplog.text
