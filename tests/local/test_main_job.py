"""The main job from an empty machine to an empty machine, as a person runs it. The tests are one story, in order."""

from __future__ import annotations

import io
import json
import re
import subprocess
import time
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest

from local.deploy.engine import ROOT, Engine
from local.deploy.stack_file import write
from tests.local.conftest import Command, Stack, deploy, run
from tests.local.own_cloud import processes_that_name

# A whole `up`, on a machine that may be busy.
pytestmark = [pytest.mark.local, pytest.mark.timeout(1200)]


def conditions(thing: dict[str, Any]) -> set[str]:
    return {c["type"] for c in thing["status"].get("conditions", []) if c["status"] == "True"}


def ranks(stack: Stack, run_id: str) -> list[str]:
    """The lines in which each rank of a run says what world it is in."""
    pods = stack.get("pods", "-n", "training", "-l", f"training.kubeflow.org/job-name=train-{run_id}")[
        "items"
    ]
    logs = [stack.kubectl("logs", "-n", "training", pod["metadata"]["name"]).output for pod in pods]
    return [line for log in logs for line in log.splitlines() if line.startswith("rank=")]


def gone_within(seconds: float, leftovers: Any) -> list[str]:
    """Wait until `leftovers()` is empty; returns what is still there at the end."""
    deadline = time.monotonic() + seconds
    while True:
        rest: list[str] = leftovers()
        if not rest or time.monotonic() > deadline:
            return rest
        time.sleep(1)


def pool_nodes(stack: Stack) -> list[str]:
    """Names of the machines that Karpenter bought."""
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


def test_the_job_has_exactly_as_many_replicas_as_nodes_were_ready(stack: Stack, first_up: Command) -> None:
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


def test_the_model_is_at_least_95_percent_accurate(stack: Stack) -> None:
    log = stack.kubectl("logs", "-n", "training", "train-r1-master-0").output
    accuracy = float(re.search(r"result=succeeded .*test_accuracy=([\d.]+)", log)[1])
    assert accuracy >= 0.95


def test_everything_ran_as_pods_with_service_account_tokens_of_their_own(stack: Stack) -> None:
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


def test_the_first_preview_names_every_resource(stack: Stack) -> None:
    empty = Engine(stack.home.root, "local", {}, state="first-preview")
    empty.initialise()
    settings = {"config": stack.settings()["config"]}
    write(settings, empty.config_file)
    command = ["pulumi", "preview", "--json", "--stack", "local", "--config-file", str(empty.config_file)]
    answer = subprocess.run(command, cwd=ROOT, env=empty.environment, capture_output=True, text=True)
    assert answer.returncode == 0, answer.stdout + answer.stderr
    previewed = {step["urn"] for step in json.loads(answer.stdout)["steps"]}
    export = stack.pulumi_state()
    # The engine makes providers of its own for what the program names none for, and previews no step for them.
    made = {each["urn"] for each in export["resources"] if "::default" not in each["urn"]}
    assert previewed == made


def test_a_preview_of_an_aws_stack_needs_neither_an_account_nor_a_cloud(stack: Stack) -> None:
    answer = deploy("preview", "--stack", "dev", seconds=120)
    assert answer.code == 0
    for kind in (
        "aws:eks:Cluster",
        "aws:ec2:NatGateway",
        "aws:s3:Bucket",
        "NodePool",
        "docker-build:index:Image",
    ):
        assert kind in answer.output, f"no {kind}"


def test_up_again_reuses_everything_and_shows_the_finished_run(stack: Stack) -> None:
    again = deploy("up", "--stack", "local", "--cloud", "local")
    assert again.code == 0
    assert "run r1 succeeded" in again.output
    changes = stack.pulumi("preview", "--expect-no-changes")
    assert changes.code == 0, changes.output


def test_refresh_finds_no_change(stack: Stack) -> None:
    refreshed = stack.pulumi("refresh", "--yes", "--skip-preview", "--expect-no-changes")
    assert refreshed.code == 0, refreshed.output


def test_drift_behind_the_back_is_found_and_repaired(stack: Stack) -> None:
    patch = json.dumps({"spec": {"limits": {"nvidia.com/gpu": "4"}}})
    assert stack.kubectl("patch", "nodepool", "small", "--type=merge", "-p", patch).code == 0
    drift = stack.pulumi("preview", "--refresh", "--expect-no-changes")
    assert drift.code != 0
    assert "NodePool" in drift.output
    assert stack.pulumi("up", "--refresh", "--yes", "--skip-preview").code == 0
    assert stack.get("nodepool", "small")["spec"]["limits"]["nvidia.com/gpu"] == "16"


def test_a_lower_ceiling_updates_the_pool_in_place(stack: Stack) -> None:
    before = stack.get("nodepool", "small")

    def lower(config: dict[str, Any]) -> None:
        config["trainyard:pools"][0]["maxNodes"] = 2
        config["trainyard:training"].update(minNodes=2, maxNodes=2)

    stack.update(lower)
    after = stack.get("nodepool", "small")
    assert after["metadata"]["uid"] == before["metadata"]["uid"]
    assert after["spec"]["limits"]["nvidia.com/gpu"] == "8"


def test_with_room_for_two_nodes_a_job_of_two_to_four_runs_on_two(stack: Stack) -> None:
    # Those of the first run are above the new ceiling, and Karpenter gives back only what is idle.
    assert gone_within(300, lambda: pool_nodes(stack)[2:]) == []
    with stack.following("deployment/training-operator", "-n", "kubeflow", "--tail=0") as lines:
        answer = deploy("submit", "--stack", "local", "--cloud", "local", "--min", "2", "--max", "4")
        assert answer.code == 0
        run_id = re.search(r"run (\S+) succeeded", answer.output)[1]
        assert f"train-{run_id}" in lines.read_text(), "`kubectl logs -f` did not show what came later"
    lines = ranks(stack, run_id)
    assert len(lines) == 2
    assert all("world_size=2 " in line for line in lines)


def test_a_rule_that_the_launchers_role_lacks_fails_the_run_by_its_name(stack: Stack) -> None:
    def verbs(role: str, index: int, words: list[str]) -> None:
        patch = [{"op": "replace", "path": f"/rules/{index}/verbs", "value": words}]
        answer = stack.kubectl(
            "patch", "role", role, "-n", "training", "--type=json", "-p", json.dumps(patch)
        )
        assert answer.code == 0

    role, index, granted = next(
        (role["metadata"]["name"], index, rule["verbs"])
        for role in stack.get("roles", "-n", "training")["items"]
        for index, rule in enumerate(role["rules"])
        if "pytorchjobs" in rule["resources"] and "create" in rule["verbs"]
    )
    verbs(role, index, [verb for verb in granted if verb != "create"])
    try:
        answer = deploy("submit", "--stack", "local", "--cloud", "local", "--min", "2", "--max", "2")
    finally:
        verbs(role, index, granted)
    assert answer.code != 0
    assert re.search(r'state=failed .*cannot create resource \\?"pytorchjobs', answer.output)


def test_with_room_for_two_nodes_a_job_of_at_least_three_fails_with_the_reason(stack: Stack) -> None:
    before = {job["metadata"]["name"] for job in stack.get("pytorchjobs", "-n", "training")["items"]}
    machines = {claim["metadata"]["name"] for claim in stack.get("nodeclaims")["items"]}
    started = time.monotonic()
    answer = deploy("submit", "--stack", "local", "--cloud", "local", "--min", "3", "--max", "4", seconds=300)
    assert answer.code != 0
    deadline = stack.settings()["config"]["trainyard:training"]["capacityDeadlineSeconds"]
    assert time.monotonic() - started < deadline + 30
    bought = {claim["metadata"]["name"] for claim in stack.get("nodeclaims")["items"]} - machines
    assert bought == set(), "a machine was bought for a run that can't be had"
    assert re.search(r"state=failed .*reason=\"[^\"]*small", answer.output), (
        "the reason does not name the pool"
    )
    after = {job["metadata"]["name"] for job in stack.get("pytorchjobs", "-n", "training")["items"]}
    assert after == before, "something was submitted"


def keep_machines(stack: Stack, count: int) -> None:
    """So many machines stay without a job, from now on."""

    def change(config: dict[str, Any]) -> None:
        config["trainyard:pools"][0]["warmNodes"] = count

    stack.update(change)


def kept(stack: Stack) -> dict[str, str]:
    """The machines that are kept by a running pod, each with that pod's uid."""
    pods = stack.get("pods", "-n", "training", "-l", "trainyard.dev/role=warm")["items"]
    return {
        pod["spec"]["nodeName"]: pod["metadata"]["uid"]
        for pod in pods
        if pod["status"]["phase"] == "Running" and "deletionTimestamp" not in pod["metadata"]
    }


def put_faults(stack: Stack, *rules: dict[str, Any]) -> None:
    body = json.dumps({"faults": list(rules)}).encode()
    address = f"{stack.cloud['awsEndpoint']}/_trainyard/faults"
    with urlopen(Request(address, body, method="PUT"), timeout=10) as answer:  # noqa: S310
        assert answer.status == 200


def test_a_kept_machine_whose_gpus_fail_is_replaced(stack: Stack) -> None:
    keep_machines(stack, 1)
    assert gone_within(60, lambda: [] if kept(stack) else ["the kept machine"]) == []
    (sick,) = kept(stack)
    instance = stack.get("node", sick)["spec"]["providerID"].rpartition("/")[2]
    rule = {"condition": "AcceleratedHardwareReady", "code": "NvidiaXID79Error", "since": 900}
    put_faults(stack, {**rule, "instanceId": instance})

    def unrepaired() -> list[str]:
        names = [node["metadata"]["name"] for node in stack.get("nodes")["items"]]
        left = [name for name in names if name == sick]
        return left if kept(stack) else [*left, "no machine is kept"]

    assert gone_within(90, unrepaired) == []
    put_faults(stack)


def test_the_next_run_id_starts_a_run_on_a_kept_machine_and_leaves_the_last(stack: Stack) -> None:
    before = kept(stack)
    machines = {node["metadata"]["name"] for node in stack.get("nodes")["items"]}

    def next_run(config: dict[str, Any]) -> None:
        config["trainyard:training"].update(runId="r2", minNodes=1, maxNodes=1)

    stack.update(next_run)
    wait = ("wait", "job/launch-r2", "-n", "training", "--for=condition=Complete", "--timeout=180s")
    assert stack.kubectl(*wait).code == 0
    for run_id in ("r1", "r2"):
        assert "Complete" in conditions(stack.get("job", f"launch-{run_id}", "-n", "training"))
        assert "Succeeded" in conditions(stack.get("pytorchjob", f"train-{run_id}", "-n", "training"))
        model(stack, run_id)
    assert "state=waiting" not in stack.kubectl("logs", "-n", "training", "job/launch-r2").output
    assert kept(stack) == before
    assert {node["metadata"]["name"] for node in stack.get("nodes")["items"]} <= machines
    keep_machines(stack, 0)


def test_idle_nodes_go_away(stack: Stack) -> None:
    assert gone_within(300, lambda: pool_nodes(stack)) == []


def test_below_the_minimum_at_the_deadline_the_run_fails_and_nothing_is_left(stack: Stack) -> None:
    """The stack's manifest goes to `kubectl create -f -` as it stands; no machine can be had this time."""
    before = {job["metadata"]["name"] for job in stack.get("pytorchjobs", "-n", "training")["items"]}
    stack.faults([{"code": "InsufficientInstanceCapacity", "instanceType": "g5.*"}])
    try:
        created = stack.kubectl("create", "-f", "-", stdin=stack.outputs["launcherManifest"])
        name = re.search(r"job.batch/(\S+) created", created.output)[1]
        started = time.monotonic()
        wait = stack.kubectl(
            "wait", f"job/{name}", "-n", "training", "--for=condition=Failed", "--timeout=200s"
        )
        assert wait.code == 0
    finally:
        stack.faults([])
    deadline = stack.settings()["config"]["trainyard:training"]["capacityDeadlineSeconds"]
    assert time.monotonic() - started < deadline + 30
    log = stack.kubectl("logs", "-n", "training", f"job/{name}").output
    last = [line for line in log.splitlines() if "state=failed" in line][-1]
    assert "InsufficientInstanceCapacity" in last or "insufficient capacity" in last.lower()
    assert {job["metadata"]["name"] for job in stack.get("pytorchjobs", "-n", "training")["items"]} == before
    assert stack.get("nodeclaims")["items"] == []


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
