"""Updates of a stack that is up: nothing to change, drift, other settings of its pool, and the next run."""

from __future__ import annotations

import json
import re
import sys
from typing import Any

import pytest

from tests.integration.local.conftest import Stack, deploy, run, two_spot_nodes
from tests.integration.local.test_main_job import conditions, gone_within, model, pool_nodes
from trainyard.cli.stack_file import write

pytestmark = [pytest.mark.local, pytest.mark.timeout(1200)]


def modified(stack: Stack) -> dict[str, str]:
    """When the engine last changed each resource of the stack; providers have the settings for their own."""
    return {
        each["urn"]: each.get("modified", "")
        for each in stack.pulumi_state()["resources"]
        if not each["type"].startswith("pulumi:providers:")
    }


def test_up_without_a_change_shows_the_finished_run(stack: Stack) -> None:
    before = modified(stack)
    again = deploy("up", "--stack", "local", "--cloud", "local")
    assert again.code == 0
    assert "run r1 has already succeeded" in again.output
    plan = deploy("preview", "--stack", "local", "--cloud", "local")
    assert plan.code == 0
    assert "the plan of an up against its state" in plan.output
    assert re.findall(r"\d+ to (?:create|update|delete|replace)", plan.output) == []
    assert modified(stack) == before


def test_another_range_of_the_network_is_refused_and_nothing_is_touched(stack: Stack) -> None:
    """By `pulumi` itself, which a person starts by `local exec`."""
    before, document = modified(stack), stack.settings()
    stack.configure(lambda config: config.update({"trainyard:network": {"cidr": "10.65.0.0/16"}}))
    own = [sys.executable, "-m", "local", "exec", "--", "pulumi"]
    of_stack = ("--non-interactive", "--stack", stack.name, "--config-file", str(stack.engine.config_file))
    refused = run(
        [*own, "up", "--yes", "--skip-preview", *of_stack], {"TRAINYARD_HOME": str(stack.home.root)}
    )
    assert refused.code != 0
    assert "trainyard:network.cidr: is '10.65.0.0/16'" in refused.output
    write(document, stack.engine.config_file)
    assert modified(stack) == before


def test_idle_nodes_go_away(stack: Stack) -> None:
    """Those of the first run; the tests since its end have passed most of their `idleSeconds`."""
    assert gone_within(300, lambda: pool_nodes(stack)) == []


def test_update_repairs_drift_and_lowers_the_ceiling(stack: Stack) -> None:
    """It finds no other drift. From then on the pool keeps a node without a job and buys spot nodes."""
    pool = stack.get("nodepool", "small")
    patch = json.dumps({"spec": {"disruption": {"consolidateAfter": "17m"}}})
    assert stack.kubectl("patch", "nodepool", "small", "--type=merge", "-p", patch).code == 0
    drift = deploy("drift", "--stack", "local", "--cloud", "local")
    assert drift.code == 3, drift.output
    (changed,) = re.findall(r"^  (\S+ \S+): changed: (.*)$", drift.output, re.M)
    assert changed == ("kubernetes:karpenter.sh/v1:NodePool pools-small", "spec.disruption.consolidateAfter")

    def change(config: dict[str, Any]) -> None:
        two_spot_nodes(config)
        config["trainyard:pools"][0]["warmNodes"] = 1

    stack.configure(change)
    updated = stack.pulumi("up", "--refresh", "--yes", "--skip-preview")
    assert updated.code == 0, updated.output
    assert re.search(r"run r1: .*trainyard:training\.args", updated.output)
    assert re.findall(r"^ *~ +\S+ (\S+) refresh \(\S+\) \[diff", updated.output, re.M) == ["pools-small"]
    after = stack.get("nodepool", "small")
    assert after["metadata"]["uid"] == pool["metadata"]["uid"]
    assert after["spec"]["limits"]["nvidia.com/gpu"] == "8"
    assert after["spec"]["disruption"] == pool["spec"]["disruption"]


def read_kept_data(stack: Stack) -> dict[str, str]:
    """The nodes that are kept by a running pod, each with that pod's uid."""
    pods = stack.get("pods", "-n", "training", "-l", "trainyard.dev/role=warm")["items"]
    return {
        pod["spec"]["nodeName"]: pod["metadata"]["uid"]
        for pod in pods
        if pod["status"]["phase"] == "Running" and "deletionTimestamp" not in pod["metadata"]
    }


def test_a_kept_node_whose_gpus_fail_is_replaced(stack: Stack) -> None:
    assert gone_within(60, lambda: [] if read_kept_data(stack) else ["the kept node"]) == []
    (sick,) = read_kept_data(stack)
    instance = stack.get("node", sick)["spec"]["providerID"].rpartition("/")[2]
    rule = {"condition": "AcceleratedHardwareReady", "code": "NvidiaXID79Error", "since": 900}
    stack.faults([{**rule, "instanceId": instance}])

    def unrepaired() -> list[str]:
        names = [node["metadata"]["name"] for node in stack.get("nodes")["items"]]
        left = [name for name in names if name == sick]
        return left if read_kept_data(stack) else [*left, "no node is kept"]

    assert gone_within(90, unrepaired) == []
    stack.faults([])


def test_the_next_run_id_starts_a_run_on_a_kept_node(stack: Stack) -> None:
    """The last run and its model stay."""
    before = read_kept_data(stack)
    nodes = {node["metadata"]["name"] for node in stack.get("nodes")["items"]}

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
    assert read_kept_data(stack) == before
    assert {node["metadata"]["name"] for node in stack.get("nodes")["items"]} <= nodes
