"""Further runs on a stack that is up, whose pool has room for two nodes."""

from __future__ import annotations

import json
import re
import time
from typing import Any

import pytest

from launcher.submit import read_manifest, with_range
from tests.integration.local.conftest import Stack, deploy
from tests.integration.local.test_main_job import ranks
from tests.integration.local.test_restarts import SPACE, begin, forget

pytestmark = [pytest.mark.local, pytest.mark.timeout(1200)]


def submit(stack: Stack, minimum: int, maximum: int) -> tuple[int, str]:
    """`make submit`: its exit code and output."""
    words = ("--stack", "local", "--cloud", "local", "--min", str(minimum), "--max", str(maximum))
    answer = deploy("submit", *words, seconds=300)
    return answer.code, answer.output


def test_submit_of_two_to_four_nodes_trains_on_the_two_there_are(pool_of_two: Stack) -> None:
    stack = pool_of_two
    with stack.following("deployment/training-operator", "-n", "kubeflow", "--tail=0") as lines:
        code, output = submit(stack, 2, 4)
        assert code == 0
        run_id = re.search(r"run (\S+) succeeded", output)[1]
        assert f"train-{run_id}" in lines.read_text(), "`kubectl logs -f` did not show what came later"
    said = ranks(stack, run_id)
    assert len(said) == 2
    assert all("world_size=2 " in line for line in said)


def test_submit_of_three_nodes_with_room_for_two_fails_at_once(pool_of_two: Stack) -> None:
    stack = pool_of_two
    before = {job["metadata"]["name"] for job in stack.get("pytorchjobs", *SPACE)["items"]}
    nodes = {claim["metadata"]["name"] for claim in stack.get("nodeclaims")["items"]}
    started = time.monotonic()
    code, output = submit(stack, 3, 4)
    assert code != 0
    deadline = stack.settings()["config"]["trainyard:training"]["capacityDeadlineSeconds"]
    assert time.monotonic() - started < deadline + 30
    bought = {claim["metadata"]["name"] for claim in stack.get("nodeclaims")["items"]} - nodes
    assert bought == set(), "a node was bought for a run that can't be had"
    assert re.search(r"state=failed .*reason=\"[^\"]*small", output), "the reason does not name the pool"
    after = {job["metadata"]["name"] for job in stack.get("pytorchjobs", *SPACE)["items"]}
    assert after == before, "something was submitted"


def test_launcher_without_a_right_fails_and_names_it(stack: Stack) -> None:
    role = next(
        role
        for role in stack.get("roles", *SPACE, "--show-managed-fields")["items"]
        if any("pytorchjobs" in rule["resources"] and "create" in rule["verbs"] for rule in role["rules"])
    )
    kept = ("name", "namespace", "labels", "annotations")
    metadata = {key: value for key, value in role["metadata"].items() if key in kept}
    # By the stack's own manager: fields of another one would be a conflict in the next `up`.
    (manager,) = {each["manager"] for each in role["metadata"]["managedFields"]}

    def grant(rules: list[dict[str, Any]]) -> None:
        api = {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role"}
        words = ("apply", "--server-side", "--force-conflicts", f"--field-manager={manager}", "-f", "-")
        answer = stack.kubectl(*words, stdin=json.dumps({**api, "metadata": metadata, "rules": rules}))
        assert answer.code == 0, answer.output

    job = with_range(read_manifest(stack.outputs["launcherManifest"]), 1, 2)
    # Kubernetes would try again after 10, 20 and 40 seconds.
    job["spec"]["backoffLimit"] = 0
    less = [dict(rule) for rule in role["rules"]]
    for rule in less:
        if "pytorchjobs" in rule["resources"]:
            rule["verbs"] = [verb for verb in rule["verbs"] if verb != "create"]
    grant(less)
    try:
        run_id = begin(stack, job)
        failed = ("wait", f"job/launch-{run_id}", *SPACE, "--for=condition=Failed", "--timeout=200s")
        assert stack.kubectl(*failed).code == 0
    finally:
        grant(role["rules"])
    log = stack.kubectl("logs", *SPACE, f"job/launch-{run_id}").output
    assert re.search(r'state=failed .*cannot create resource \\?"pytorchjobs', log), log
    forget(stack, run_id)
