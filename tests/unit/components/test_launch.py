"""The launcher's request for a run, and the Job that starts it."""

from __future__ import annotations

import json
from dataclasses import replace

from components.documents.launch import job_spec, launch_request, manifest
from tests.unit.components.pools import pool
from tests.unit.components.runs import RESOLVED, candidate, run
from trainyard.k8s import names


def test_the_request_says_what_the_launcher_must_know() -> None:
    request = launch_request(run(), RESOLVED)
    assert request["worker"]["mounts"] == {"lustre": "/fsx"}
    assert request["worker"]["writes"] == ["/fsx"]
    assert request["pool"] == {
        "name": "small",
        "instanceType": "g5.12xlarge",
        "zone": "us-west-2b",
        "resource": "nvidia.com/gpu",
        "perNode": 4,
        "maxNodes": 4,
        "efaPerNode": 0,
        "nodeSelector": {"karpenter.sh/nodepool": "small"},
        "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}],
        "block": None,
    }
    assert request["worker"]["env"] == {
        "NCCL_DEBUG": "WARN",
        "TRAINYARD_DEVICE": "cuda",
        "TRAINYARD_MODEL_URI": "s3://b/models",
        "TRAINYARD_CHECKPOINT_URI": "s3://b/checkpoints",
        "TRAINYARD_DATA": "digits",
        "TRAINYARD_METRICS_PORT": "9465",
        "AWS_REGION": "us-west-2",
    }
    assert request["worker"]["args"] == ["--epochs", "3"]


def test_run_without_checkpoints_gets_no_location() -> None:
    request = launch_request(run(), replace(RESOLVED, checkpoint_uri=None))
    assert "TRAINYARD_CHECKPOINT_URI" not in request["worker"]["env"]


def test_worker_env_includes_known_trainer_revision() -> None:
    # Without it, the variable is not set (the test above): an empty one would hide what the image says.
    env = launch_request(run(revision="0123abc-dirty"), RESOLVED)["worker"]["env"]
    assert env["TRAINYARD_REVISION"] == "0123abc-dirty"


def test_the_request_has_every_key_of_the_waits_and_only_those_that_there_are() -> None:
    request = launch_request(
        run(node_start_seconds=600, attempts=3, retry_seconds=300, max_restarts=5, shape="elastic"), RESOLVED
    )
    assert launch_request(run(backend="trainjob"), RESOLVED)["backend"] == "trainjob"
    assert sorted(request) == [
        "activeDeadlineSeconds",
        "attempts",
        "backend",
        "capacityDeadlineSeconds",
        "fallbacks",
        "holdSeconds",
        "maxNodes",
        "maxRestarts",
        "minNodes",
        "namespace",
        "nodeStartSeconds",
        "placeholder",
        "pool",
        "retrySeconds",
        "runId",
        "shape",
        "worker",
    ]
    assert [request[key] for key in ("nodeStartSeconds", "attempts", "retrySeconds")] == [600, 3, 300]
    assert (request["maxRestarts"], request["shape"]) == (5, "elastic")
    assert (request["capacityDeadlineSeconds"], request["fallbacks"]) == (1200, [])


def test_a_fallback_is_a_pool_a_worker_and_a_deadline_of_its_own() -> None:
    other = pool(name="other", instance_type="p4d.24xlarge", accelerators=8, vcpus=96, memory_gib=1152, efa=4)
    fallback = candidate(other, seconds=300, processes_per_node=8, cpu="81", memory="864Gi")
    request = launch_request(run(candidates=(candidate(), fallback)), RESOLVED)
    (found,) = request["fallbacks"]
    assert sorted(found) == ["capacityDeadlineSeconds", "pool", "worker"]
    assert found["capacityDeadlineSeconds"] == 300
    assert sorted(found["pool"]) == sorted(request["pool"])
    assert (found["pool"]["name"], found["pool"]["perNode"], found["pool"]["efaPerNode"]) == ("other", 8, 4)
    own = {"processesPerNode": 8, "cpu": "81", "memory": "864Gi"}
    assert found["worker"] == {**request["worker"], **own}
    assert request["worker"]["cpu"] == "40", "the first pool keeps its own"


def test_the_launchers_job_is_not_removed_and_ends_at_once_where_trying_again_is_no_use() -> None:
    spec = job_spec(run(), RESOLVED)
    assert "ttlSecondsAfterFinished" not in spec
    assert spec["podFailurePolicy"]["rules"][0]["onExitCodes"]["values"] == [2, 10, 11, 12]
    assert spec["template"]["spec"]["restartPolicy"] == "Never"


def test_the_manifest_names_no_run_so_that_each_creation_is_another() -> None:
    job = json.loads(manifest(run(), RESOLVED))
    assert job["metadata"]["generateName"] == "launch-"
    assert "name" not in job["metadata"]
    environment = {e["name"]: e.get("value") for e in job["spec"]["template"]["spec"]["containers"][0]["env"]}
    assert json.loads(environment["TRAINYARD_REQUEST"] or "")["runId"] is None
    assert environment["MIN_NODES"] == "2"


def test_prometheus_finds_the_launchers_metrics_by_annotations_and_by_the_name_of_a_port() -> None:
    template = job_spec(run(), RESOLVED)["template"]
    (container,) = template["spec"]["containers"]
    (port,) = container["ports"]
    assert port == {"name": "metrics", "containerPort": names.METRICS_PORT, "protocol": "TCP"}
    found = {k: v for k, v in template["metadata"]["annotations"].items() if k.startswith("prometheus.io/")}
    assert found == {
        "prometheus.io/scrape": "true",
        "prometheus.io/port": str(names.METRICS_PORT),
        "prometheus.io/path": names.METRICS_PATH,
    }


def test_launcher_job_has_every_variable_that_the_launcher_reads() -> None:
    (container,) = job_spec(run(), RESOLVED)["template"]["spec"]["containers"]
    assert {each["name"] for each in container["env"]} == {
        names.ENV_REQUEST,
        names.ENV_MIN_NODES,
        names.ENV_MAX_NODES,
        names.ENV_POD_NAME,
        names.ENV_POD_NAMESPACE,
        names.ENV_POD_UID,
        names.ENV_JOB_NAME,
    }
