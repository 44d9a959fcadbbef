"""The main job from an empty machine to an empty machine, as a person runs it.

The tests of the files in tests/integration/local/conftest.py, STORY, are one story, in order; its last test stands
here.
"""

from __future__ import annotations

import io
import re
import time
from pathlib import Path
from typing import Any

import pytest

from launcher.manifests import read_marks
from tests.integration.local.conftest import Command, Stack, run
from tests.integration.local.own_cloud import processes_that_name

# A whole `up`, on a machine that may be busy.
pytestmark = [pytest.mark.local, pytest.mark.timeout(1200)]


def conditions(thing: dict[str, Any]) -> set[str]:
    return {c["type"] for c in thing["status"].get("conditions", []) if c["status"] == "True"}


def ranks(stack: Stack, run_id: str) -> list[str]:
    """The lines in which each rank of a run says what world it is in."""
    pods = stack.get("pods", "-n", "training", "-l", f"training.kubeflow.org/job-name=train-{run_id}")[
        "items"
    ]
    log = stack.logs(*(pod["metadata"]["name"] for pod in pods))
    return [line for line in log.splitlines() if line.startswith("rank=")]


def gone_within(seconds: float, leftovers: Any) -> list[str]:
    """Wait until `leftovers()` is empty; returns what is still there at the end."""
    deadline = time.monotonic() + seconds
    while True:
        rest: list[str] = leftovers()
        if not rest or time.monotonic() > deadline:
            return rest
        time.sleep(1)


def pool_nodes(stack: Stack) -> list[str]:
    """The names of the NodeClaims of Karpenter."""
    items = stack.get("nodes", "-l", "karpenter.sh/nodepool")["items"]
    return [node["metadata"]["name"] for node in items]


def is_running(pid: int) -> bool:
    """Whether the process exists and is more than an entry that its parent has yet to read."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def test_up_trains_to_the_end_and_says_where_everything_is(first_up: Command) -> None:
    assert first_up.code == 0
    assert "node ready:" in first_up.output
    assert re.search(r"step=\d+ .*loss=[\d.]+", first_up.output), "the loss is not shown"
    assert re.search(r"^model: .*model\.pt", first_up.output, re.M)
    assert re.search(r"^kubeconfig: ", first_up.output, re.M)


def test_the_job_has_as_many_replicas_as_nodes_were_ready(stack: Stack, first_up: Command) -> None:
    # Karpenter itself says on each NodeClaim for whose placeholders it was made, and labels no node with that.
    claims, nodes = stack.get("nodeclaims")["items"], stack.get("nodes")["items"]
    assert claims
    assert all(len(read_marks(each)) == 1 for each in claims), claims
    assert not any(key.startswith("hold.") for each in nodes for key in each["metadata"]["labels"])
    launcher = stack.get("job", stack.outputs["launcherJobName"], "-n", "training")
    assert "Complete" in conditions(launcher)
    job = stack.get("pytorchjob", "train-r1", "-n", "training")
    assert "Succeeded" in conditions(job)
    replicas = sum(spec.get("replicas", 1) for spec in job["spec"]["pytorchReplicaSpecs"].values())
    ready = set(re.findall(r"node ready: (\S+)", first_up.output.partition("state=submitting")[0]))
    assert replicas == len(ready)
    pods = stack.get("pods", "-n", "training", "-l", "training.kubeflow.org/job-name=train-r1")["items"]
    assert {pod["spec"]["nodeName"] for pod in pods} == ready
    assert 2 <= replicas <= 4
    # Karpenter's price of the nodes.
    used = job["metadata"]["annotations"]
    log = stack.kubectl("logs", "-n", "training", f"job/{stack.outputs['launcherJobName']}").output
    hours, usd = float(used["trainyard.dev/node-hours"]), float(used["trainyard.dev/cost-usd"])
    assert 0 < hours < replicas, log
    assert 0.1 < usd / hours < 100, log
    assert re.search(r"trained on \d+ nodes; [\d.]+ node-hours, \d+% idle, about [\d.]+ USD", log), log


def test_every_rank_logged_the_same_world(stack: Stack) -> None:
    job = stack.get("pytorchjob", "train-r1", "-n", "training")
    nodes = int(job["metadata"]["annotations"]["trainyard.dev/nodes"])
    lines = ranks(stack, "r1")
    assert sorted(int(re.search(r"rank=(\d+)", line)[1]) for line in lines) == list(range(nodes))
    assert all(f"world_size={nodes} " in line for line in lines)


def model(stack: Stack, run_id: str) -> bytes:
    """The model that a run left in the bucket."""
    key = f"{stack.outputs['modelUri'].split('/', 3)[3].rstrip('/')}/{run_id}/model.pt"
    body: bytes = stack.aws("s3").get_object(Bucket=stack.outputs["modelBucket"], Key=key)["Body"].read()
    return body


def test_the_model_is_in_the_bucket_and_loads_with_weights_only(stack: Stack) -> None:
    import torch

    weights = torch.load(io.BytesIO(model(stack, "r1")), weights_only=True)
    assert sum(tensor.numel() for tensor in weights.values()) > 1000


def test_the_model_is_at_least_95_percent_accurate(first_up: Command) -> None:
    # The pod goes with its node, which Karpenter soon removes.
    accuracy = float(re.search(r"result=succeeded .*test_accuracy=([\d.]+)", first_up.output)[1])
    assert accuracy >= 0.95


def test_everything_ran_as_pods_with_tokens_of_their_own(stack: Stack) -> None:
    for namespace, account in (
        ("kube-system", "karpenter"),
        ("kubeflow", "training-operator"),
        ("training", "launcher"),
        ("training", "trainer"),
    ):
        pods = stack.get("pods", "-n", namespace)["items"]
        own = [pod["spec"] for pod in pods if pod["spec"]["serviceAccountName"] == account]
        assert own, f"nothing runs as {account}"
        if account == "trainer":
            continue  # it calls AWS alone, by the token that its role is bound to
        for spec in own:
            projected = [each["projected"]["sources"] for each in spec["volumes"] if "projected" in each]
            assert any("serviceAccountToken" in each for sources in projected for each in sources), account


def test_a_forbidden_call_of_the_launcher_is_refused_by_its_role(stack: Stack) -> None:
    account = "--as=system:serviceaccount:training:launcher"
    assert (
        stack.kubectl("auth", "can-i", "create", "pytorchjobs", "-n", "training", account).output.strip()
        == "yes"
    )
    assert stack.kubectl("auth", "can-i", "get", "secrets", "-n", "training", account).output.strip() == "no"
    assert (
        stack.kubectl("auth", "can-i", "create", "pytorchjobs", "-n", "default", account).output.strip()
        == "no"
    )


def test_the_wrong_service_account_is_refused_by_the_role(stack: Stack) -> None:
    from botocore.exceptions import ClientError

    token = stack.kubectl(
        "create", "token", "launcher", "-n", "training", "--audience", "sts.amazonaws.com"
    ).output.strip()
    account = stack.get("serviceaccount", "trainer", "-n", "training")
    role = account["metadata"]["annotations"]["eks.amazonaws.com/role-arn"]
    with pytest.raises(ClientError) as refused:
        stack.aws("sts").assume_role_with_web_identity(
            RoleArn=role, RoleSessionName="wrong", WebIdentityToken=token
        )
    assert refused.value.response["Error"]["Code"] == "AccessDenied"


def test_down_leaves_nothing(stack: Stack) -> None:
    destroyed = stack.pulumi("destroy", "--yes", "--skip-preview")
    assert destroyed.code == 0, destroyed.output
    assert stack.left() == {}

    pid = stack.cloud["pid"]
    ended = run(["make", "--no-print-directory", "down"])
    assert ended.code == 0
    assert gone_within(10, lambda: [str(pid)] if is_running(pid) else []) == []
    assert gone_within(10, lambda: processes_that_name(str(stack.home.root))) == []
    assert not stack.home.cloud_file.exists()
