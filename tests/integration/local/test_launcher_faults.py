"""What the launcher does under faults, on a stack `local` of its own; docs/faults.md has the table of them.

Each row is a run of its own whose launcher is a process beside the cluster, with a proxy in the place of the API
server. The rows are one story, in order: nodes stay from one to the next, and what is refused comes last, since
Karpenter remembers it for three minutes. L11 and L2 run with PyTorchJobs. Then the stack gets Kubeflow Trainer, and
they run with TrainJobs, as L6 does. In L6 the workers train a model.
"""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from launcher.manifests import stamp
from launcher.submit import read_manifest
from local.tools import OPTIONAL_TOOLS, ensure
from tests.faults.launched import Launched
from tests.faults.place import NODES, Place, paused, until
from tests.faults.proxy import Call, Fault, Proxy
from tests.faults.run import LEASES, PODS, Run
from tests.integration.local.conftest import Stack
from tests.integration.local.test_main_job import model
from tests.integration.local.test_restarts import (
    EPOCHS,
    lose_machine,
    poll,
    went_on_from_the_newest_checkpoint,
)
from tests.integration.local.test_trainjob import use_trainjobs
from tests.integration.sweeps.kills import Kill, pause, sample
from tests.integration.sweeps.launcher import strike
from tests.seed import of_run
from trainyard.k8s import names
from trainyard.k8s.client import ApiError, ApiUnavailable, JsonObject

# A whole `up` before the first, on a machine that may be busy.
pytestmark = [pytest.mark.faults, pytest.mark.timeout(1200)]

# From the launcher's start to its end; the rows take less than a fifth of that on a quiet machine.
END_SECONDS = 180.0
# How long something is looked at that must not happen.
LOOK_SECONDS = 4.0
# The clock alone decides at a deadline, and what follows are a few lists; a poll is 2 s.
LATE_SECONDS = 6.0
# A run that buys a machine has so many writes at least: what the sample is drawn of.
WRITES = 10
# A node and its pods are forgotten a minute after its loss, and then the model is trained.
RESTART_SECONDS = 400.0
FOREIGN = "trainyard.dev/fault"
# The label of an Indexed Job's pods, with the index of the TrainJob's node.
INDEX = "batch.kubernetes.io/job-completion-index"


@pytest.fixture(scope="module")
def place(stack: Stack) -> Iterator[Place]:
    """The stack's cluster, with room for four machines, which stay where they are empty."""
    stack.faults([])
    here = Place(stack.home, stack.outputs)
    here.fresh_karpenter()
    with here.settings_of_pool(machines=4, idle="20m"):
        here.without_machines()
        yield here
        stack.faults([])
        here.without_machines()


@pytest.fixture(scope="module", params=[names.BACKEND_PYTORCHJOB, names.BACKEND_TRAINJOB])
def backend(stack: Stack, place: Place, request: pytest.FixtureRequest) -> str:
    """The backend of the stack's runs. The first test with TrainJobs changes it; no test changes it back."""
    chosen = str(request.param)
    if chosen != place.request()["backend"]:
        ensure(OPTIONAL_TOOLS, stack.home, quiet=True)
        stack.update(use_trainjobs)
        stack.outputs = stack.engine.outputs()
        place.manifest = read_manifest(stack.outputs["launcherManifest"])
    assert place.request()["backend"] == chosen
    return chosen


@pytest.fixture
def proxy(place: Place) -> Iterator[Proxy]:
    with place.proxy() as started:
        yield started


@pytest.fixture
def begin(place: Place, proxy: Proxy, tmp_path: Path) -> Iterator[Callable[..., Run]]:
    """Makes runs that leave nothing when the test ends."""
    started_runs: list[Run] = []

    def make(least: int, most: int, **changes: Any) -> Run:
        run = Run(place, proxy, tmp_path, least=least, most=most, **changes)
        started_runs.append(run.__enter__())
        return run

    yield make
    for run in started_runs:
        run.__exit__()


def ends_well(run: Run, launcher: Launched, nodes: int) -> None:
    """The run trains once, on so many machines."""
    assert run.wrongs(launcher.wait(END_SECONDS)) == []
    assert launcher.submitted[-1:] in ([nodes], []), "another number of machines"
    training = run.training()
    assert training is not None
    assert training["metadata"]["annotations"]["trainyard.dev/nodes"] == str(nodes)


def waited(proxy: Proxy) -> tuple[float, float]:
    """From the begin of the wait, which is noted in the Lease, to the first placeholder that goes; both monotonic."""
    first = next(call for call in proxy.writes if call.method == "PUT")
    last = next(call for call in proxy.writes if (call.method, call.path[: len(PODS)]) == ("DELETE", PODS))
    return first.at, last.at


def is_of(method: str, path: str) -> Callable[[Call], bool]:
    return lambda call: (call.method, call.path) == (method, path)


def put_ready(place: Place, node: str, status: str) -> None:
    """Let a node say this of being Ready, from now on: Karpenter repairs one that has not been for long."""
    now = stamp(time.time())

    def change(item: dict[str, Any]) -> None:
        for condition in item["status"]["conditions"]:
            if condition["type"] == "Ready":
                condition.update(status=status, lastTransitionTime=now, lastHeartbeatTime=now)

    place.change(f"{NODES}/{node}", change, "/status")


def put_gpus(place: Place, node: str, number: int) -> None:
    """Let a node say that so many of its GPUs can be given to pods."""
    place.change(
        f"{NODES}/{node}",
        lambda item: item["status"]["allocatable"].update({"nvidia.com/gpu": str(number)}),
        "/status",
    )


def taint(place: Place, node: str, effect: str) -> None:
    """Put a taint of somebody else on a node."""

    def change(item: dict[str, Any]) -> None:
        others = [each for each in item["spec"].get("taints") or [] if each["key"] != FOREIGN]
        item["spec"]["taints"] = [*others, *([{"key": FOREIGN, "effect": effect}] if effect else [])]

    place.change(f"{NODES}/{node}", change)


def node_names(place: Place) -> list[str]:
    """The pool's nodes."""
    return sorted(node["metadata"]["name"] for node in place.nodes())


def test_l3_instances_that_end_for_want_of_the_key_of_their_disks_are_explained(
    place: Place, proxy: Proxy, tmp_path: Path
) -> None:
    with place.disks_without_key():
        with Run(place, proxy, tmp_path, least=1, most=1) as run:
            launcher = run.launch()
            until(lambda: run.is_waiting(launcher, "EC2 terminated", "cluster.volumeKey"), "it names the key")
        until(lambda: not place.claims(), "the last of them has ended")
    assert node_names(place) == []


def test_l3_machines_that_do_not_register_are_named_and_not_counted(
    place: Place, begin: Callable[..., Run]
) -> None:
    with place.closed_to_new_machines():
        run = begin(2, 2)
        launcher = run.launch()
        until(lambda: run.is_waiting(launcher, "claims=2 "), "it sees two NodeClaims")
        named = ", ".join(sorted(claim["metadata"]["name"] for claim in place.claims()))
        until(lambda: run.is_waiting(launcher, f"2 nodes are starting ({named})"), "it names both")
        assert "nodes=0/2 claims=2" in launcher.last
        run.stays_unsubmitted(LOOK_SECONDS)
        assert node_names(place) == []
    ends_well(run, launcher, 2)
    assert len(run.bought) == 2


def test_l4_a_ready_node_with_a_taint_or_without_its_gpus_is_not_counted(
    place: Place, begin: Callable[..., Run]
) -> None:
    tainted, poor = node_names(place)
    with place.settings_of_pool(machines=2, idle="20m"):
        taint(place, tainted, "NoSchedule")
        put_gpus(place, poor, 2)
        run = begin(2, 2)
        launcher = run.launch()
        missing = f"1 node has taint {FOREIGN}", "1 node has 2 of 4 nvidia.com/gpu"
        until(lambda: run.is_waiting(launcher, *missing), "it reports both")
        assert "nodes=0/2" in launcher.last
        run.stays_unsubmitted(LOOK_SECONDS)
        taint(place, tainted, "")
        put_gpus(place, poor, 4)
        ends_well(run, launcher, 2)
    assert run.bought == set()


def test_l5_a_node_lost_between_count_and_submit_is_missed_in_the_fresh_list(
    place: Place, proxy: Proxy, begin: Callable[..., Run]
) -> None:
    lost = node_names(place)[0]
    # What it counted came from its watches; before it submits it reads the nodes once more.
    strikes = Fault(
        on=lambda call: call.path == NODES and call.is_fresh,
        moment="before",
        does=lambda _call: put_ready(place, lost, "Unknown"),
        then="pass",
    )
    proxy.plan(strikes)
    with place.settings_of_pool(machines=2, idle="20m"):
        run = begin(2, 2)
        launcher = run.launch()
        try:
            until(lambda: run.is_waiting(launcher, "1 node is not Ready"), "it waits on")
            assert strikes.times == 0
            assert "nodes=1/2" in launcher.last
            run.stays_unsubmitted(LOOK_SECONDS)
        finally:
            put_ready(place, lost, "True")
        ends_well(run, launcher, 2)
    assert run.bought == set()


def test_l8_a_create_whose_answer_is_lost_is_not_done_twice(proxy: Proxy, begin: Callable[..., Run]) -> None:
    # One more than there are, so that it has to hold.
    run = begin(3, 3)
    is_made = {PODS: "drop", LEASES: "drop", run.jobs: 500}
    proxy.plan(
        *(
            Fault(
                on=lambda call, path=path: call.path == path and call.status == 201,  # type: ignore[misc]
                moment="after",
                then=then,  # type: ignore[arg-type]
                times=9,
            )
            for path, then in is_made.items()
        )
    )
    launcher = run.launch()
    ends_well(run, launcher, 3)
    assert [call.status for call in run.submits()] == [201, 409]
    assert f"found PyTorchJob train-{run.id} for 3 nodes" in launcher.output
    assert [call.status for call in proxy.writes if is_of("POST", PODS)(call)] == [201, 409] * 3
    assert [call.status for call in proxy.writes if is_of("POST", LEASES)(call)] == [201, 409]


def test_l10_of_two_launchers_one_says_so_and_leaves(begin: Callable[..., Run]) -> None:
    # It waits for one more than there are.
    run = begin(4, 4, trains=8)
    first = run.launch()
    until(run.holder, "the first one has the Lease")
    second = run.launch()
    assert second.wait(END_SECONDS) == names.EXIT_ALREADY_RUNNING
    assert f"another launcher, {run.holder()}, launches run {run.id}" in second.last
    ends_well(run, first, 4)
    assert run.made(PODS) == 4, "two launchers made placeholders"


def test_l9_job_that_no_operator_reconciles_is_reported(place: Place, begin: Callable[..., Run]) -> None:
    with place.tolerant_webhook():
        with paused(place.operator_process):
            run = begin(1, 1)
            first = run.launch(unreconciled_seconds=4)
            until(lambda: "has not created its pods for 4 s" in first.last, "it reports the operator")
            assert "state=following" in first.last
            # It ends in order, and what it submitted stays.
            first.stop()
            assert first.wait(END_SECONDS) == names.EXIT_STOPPED
            second = run.launch(unreconciled_seconds=4)
            until(lambda: "state=following" in second.last, "the Job's next pod follows")
        assert run.wrongs(second.wait(END_SECONDS)) == []


def test_l7_an_api_server_that_is_killed_in_a_wait_changes_neither_its_deadline_nor_its_pods(
    place: Place, proxy: Proxy, begin: Callable[..., Run]
) -> None:
    place.without_machines()
    wanted = 1
    with place.closed_to_new_machines():  # so that it does not register
        run = begin(wanted, wanted, capacityDeadlineSeconds=30)
        launcher = run.launch()
        until(lambda: run.is_waiting(launcher, f"claims={wanted} "), "it sees the NodeClaim")
        # What the new one says to the first watch of the nodes.
        gone = Fault(on=lambda call: call.path == NODES and "watch" in call.query, moment="before", then=410)
        with proxy.away():
            proxy.plan(gone)
            place.kill_api_server()
            until(place.answers, "the API server is back")
        back_at = time.monotonic()
        code = launcher.wait(END_SECONDS)
    assert code == names.EXIT_BELOW_MINIMUM
    assert gone.times == 0
    began, ended = waited(proxy)
    assert 29 < ended - began < 30 + LATE_SECONDS
    lists = [call.at for call in proxy.calls if call.path == NODES and call.is_fresh and call.at > back_at]
    assert len(lists) >= 2, "it did not list the nodes again before it counted them at the end"
    assert f"0 of at least {wanted} nodes after 30 s" in launcher.last
    assert (run.made(PODS), run.submits()) == (wanted, [])
    assert run.leftovers() == []
    place.without_machines()


@contextmanager
def tainting(place: Place) -> Iterator[list[str]]:
    """Give each new node of the pool a taint that nothing tolerates. Return the nodes so far."""
    stop, seen = threading.Event(), list[str]()

    def work() -> None:
        while not stop.wait(0.2):
            with suppress(ApiError, ApiUnavailable):  # a node that is gone by now
                for name in set(node_names(place)) - set(seen):
                    taint(place, name, "NoExecute")
                    seen.append(name)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    try:
        yield seen
    finally:
        stop.set()
        thread.join()


def test_l12_machines_that_take_nobody_are_bought_up_to_the_ceiling_and_no_further(
    place: Place, proxy: Proxy, begin: Callable[..., Run]
) -> None:
    place.without_machines()
    with place.settings_of_pool(machines=3, idle="20m"), tainting(place) as struck:
        run = begin(2, 2, capacityDeadlineSeconds=25)
        launcher = run.launch()
        assert launcher.wait(END_SECONDS) == names.EXIT_BELOW_MINIMUM
    assert f"taint {FOREIGN}" in launcher.last
    assert 2 <= len(struck) <= 3
    assert 2 <= len(run.bought) <= 3
    assert run.placeholders_at_once == 2
    assert run.submits() == []
    until(lambda: not run.placeholders(), "no placeholder is left")
    place.without_machines()


@pytest.mark.parametrize("number", [0, 1])
def test_l11_killed_launcher_is_continued_by_the_next_pod(
    backend: str, place: Place, tmp_path: Path, number: int
) -> None:
    if number == 0:
        place.without_machines()
    seed = of_run()
    kill: Kill = sample(seed, 2, {"": WRITES})[number]
    # The first one buys two, and the second one more.
    outcome = strike(place, tmp_path, kill, pause(seed, kill), idle=False, most=2 + number)
    print(f"{kill}: {outcome.at}")
    assert outcome.wrongs == (), kill
    assert outcome.at, f"{kill}: the run has fewer writes"


def test_l2_capacity_for_three_of_four_nodes_runs_on_three(
    backend: str, stack: Stack, place: Place, begin: Callable[..., Run]
) -> None:
    three = begin(3, 3)
    ends_well(three, three.launch(), 3)
    stack.faults([{"code": "InsufficientInstanceCapacity", "instanceType": "g5.*"}])
    run = begin(2, 4, holdSeconds=60, trains=8)
    launcher = run.launch()
    until(run.submits, "it submits")
    # From now on a fourth node is available.
    stack.faults([])
    place.fresh_karpenter()
    ends_well(run, launcher, 3)
    # Karpenter asks for nothing in the three minutes after a refusal, so that nothing is held for.
    assert "no more came within" not in launcher.output
    assert re.search(r"state=submitting .*no more can come: Insufficient\w+ for g5.12xlarge", launcher.output)
    calls = [str(call) for call in run.writes]
    withdrawn = [
        index for index, each in enumerate(calls) if each.startswith(f"DELETE {PODS}/hold-{run.id}-")
    ]
    assert withdrawn, "no placeholder was withdrawn"
    assert withdrawn[0] < calls.index(f"POST {run.jobs}")
    # The NodeClaim that EC2 refused may still be there: the Karpenter that was to remove it is gone.
    machines = [each for each in place.claims() if each.get("status", {}).get("providerID")]
    assert len(machines) == 3, "a fourth machine arrived"


@pytest.mark.parametrize("backend", [names.BACKEND_TRAINJOB], indirect=True)
def test_l6_lost_node_restarts_trainjob_on_remaining_node(
    backend: str, stack: Stack, place: Place, begin: Callable[..., Run]
) -> None:
    def workers() -> dict[str, JsonObject]:
        """Return the pods by the index of their node."""
        return {pod["metadata"]["labels"][INDEX]: pod for pod in run.pods("worker")}

    def output() -> str:
        """Return the log of the first worker."""
        return stack.logs(workers()["0"]["metadata"]["name"])

    place.without_machines()
    worker = {**place.request()["worker"], "args": ["--epochs", EPOCHS, "--checkpoint-every", "20"]}
    run = begin(1, 2, worker=worker, maxRestarts=2, holdSeconds=60)
    launcher = run.launch()
    poll(lambda: "0" in workers() and "checkpoint=saved" in output(), "the first checkpoint")
    first, lost, remaining = run.training(), workers()["1"], workers()["0"]["spec"]["nodeName"]
    assert first is not None
    # No other node can be had, so that the second job has fewer nodes than the first.
    with place.settings_of_pool(machines=1, idle="20m"):
        lose_machine(stack, lost["metadata"]["name"])
        assert launcher.wait(RESTART_SECONDS) == 0
    restarts = [line for line in launcher.states if "state=restarting" in line]
    assert restarts
    assert all(f"restart 1 of 2: worker {lost['metadata']['name']} " in line for line in restarts), restarts
    assert (launcher.submitted[0], launcher.submitted[-1]) == (2, 1)
    assert "trained on 1 node (restart 1 of 2)" in launcher.last
    second = run.training()
    assert second is not None
    assert second["metadata"]["uid"] != first["metadata"]["uid"]
    assert second["spec"]["trainer"]["numNodes"] == 1
    (left,) = run.pods("worker")
    assert left["spec"]["nodeName"] == remaining
    assert re.search(r"^rank=0 world_size=1 nodes=1 .* restart=1$", output(), re.M), output()
    went_on_from_the_newest_checkpoint(stack, run.id, output())
    assert model(stack, run.id), "no model was saved"
    assert run.leftovers() == []


def test_l1_without_any_capacity_it_ends_at_the_deadline_and_asks_little_meanwhile(
    stack: Stack, place: Place, proxy: Proxy, begin: Callable[..., Run]
) -> None:
    place.without_machines()
    stack.faults([{"code": "InsufficientInstanceCapacity", "instanceType": "g5.*"}])
    run = begin(1, 2, capacityDeadlineSeconds=20)
    launcher = run.launch()
    assert launcher.wait(END_SECONDS) == names.EXIT_BELOW_MINIMUM
    began, ended = waited(proxy)
    assert 19 < ended - began < 20 + LATE_SECONDS
    assert re.search(r"Insufficient\w+ for g5.12xlarge in us-west-2b", launcher.last)
    # Without its first lists: a call a second at most.
    calls = [call for call in proxy.calls if began + 3 < call.at < ended - 1]
    assert len(calls) <= ended - began, json.dumps([str(call) for call in calls], indent=1)
    assert run.submits() == []
    assert run.leftovers() == []
    assert place.claims() == []
