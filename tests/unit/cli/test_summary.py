"""Which lines of a deployment and of a run are printed without `-v`."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from trainyard.cli.engine import engine_summary
from trainyard.cli.output import OUTPUT
from trainyard.cli.summary import EngineSummary, PlanSummary, RunSummary, deletion_total, planned_totals

# All lines of an `up` of the stack `local` on an empty machine.
RECORDED = Path(__file__).with_name("recorded_up.txt").read_text().splitlines()
MAX_LINES = 60


def engine_lines(lines: list[str], totals: dict[str, int] | None = None, named: int = 0) -> list[str]:
    summary = EngineSummary(totals, rows=named, clock=lambda: 0.0)
    return [shown for line in lines for shown in summary.lines(line)]


def run_lines(*texts: str) -> list[str]:
    """The texts of what is shown of a follower's lines with these texts."""
    summary = RunSummary()
    shown = [each for text in texts for each in summary.lines(f"   1.0 s  {text}")]
    return [line.removeprefix("   1.0 s  ") for line in shown]


def launcher(state: str, *reasons: str) -> list[str]:
    return [
        f'[launch-r1-x] launcher state={state} nodes=0/4 claims=4 reason="{reason}" elapsed={second}s'
        for second, reason in enumerate(reasons)
    ]


def rows(count: int, verb: str = "created") -> list[str]:
    return [f" +  aws:ec2:Subnet private-{number} {verb} (0.5s) " for number in range(count)]


def test_recorded_up_keeps_events_within_60_lines() -> None:
    engine, run = EngineSummary(rows=0), RunSummary()
    in_run, shown = False, []
    for line in RECORDED:
        shown += run.lines(line) if in_run else engine.lines(line)
        in_run = in_run or line.startswith("stack local is up")
    assert len(RECORDED) > 250
    assert len(shown) <= MAX_LINES
    text = "\n".join(shown)
    for event in (
        "created 150 resources after",
        r"\+ 180 created",
        "stack local is up after",
        "state=waiting",
        "state=submitting",
        "state=succeeded",
        "result=succeeded",
        "run r1 succeeded in",
        r"^model: .*model\.pt",
        "^kubeconfig: ",
    ):
        assert re.search(event, text, re.M), event
    everything = "\n".join(RECORDED)
    for always in (r"node ready: (\S+)", r"state=(\w+)"):
        assert set(re.findall(always, text)) == set(re.findall(always, everything))
    steps = re.findall(r"\] step=(\d+)", everything)
    sampled = re.findall(r"\] step=(\d+)", text)
    assert (sampled[0], sampled[-1]) == (steps[0], steps[-1])
    assert len(sampled) <= 12 < len(steps)


@pytest.mark.parametrize(
    ("verb", "totals", "expected"),
    [
        ("created", {}, ["created 25", "created 50"]),
        ("created", {"created": 155}, ["created 25 of 155", "created 50 of 155"]),
        ("deleted", {"deleted": 30, "created": 155}, ["deleted 25 of 30", "deleted 50"]),
    ],
)
def test_resources_are_counted_of_known_total(verb: str, totals: dict[str, int], expected: list[str]) -> None:
    lines = engine_lines(rows(55, verb), totals)
    assert lines == [f"    {each} resources after 0 s" for each in expected]


def test_update_of_deployed_stack_names_its_first_changes() -> None:
    changed = [" ~  aws:iam:Role node updated (0.3s) [diff: ~tags]", *rows(40, "deleted")]
    lines = engine_lines(changed, named=10)
    assert lines == [*changed[:10], "    deleted 25 resources after 0 s"]


@pytest.mark.parametrize(
    ("command", "resources", "named"),
    [("up", 0, 0), ("up", 1, 0), ("up", 2, 1), ("destroy", 2, 0), ("refresh", 2, 1)],
)
def test_whole_stack_is_counted_and_change_is_named(
    command: str, resources: int, named: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(OUTPUT, "_given_live", False)
    summary = engine_summary(command, {"resources": [{}] * resources})
    assert len(summary.lines(rows(1)[0])) == named


def step(operation: str, kind: str, name: str = "x", **state: Any) -> dict[str, Any]:
    side = "old" if operation in ("delete", "delete-replaced") else "new"
    made = {"type": kind, "urn": f"urn:pulumi:dev::trainyard::{kind}::{name}", **state}
    return {"resourcePreEvent": {"metadata": {"op": operation, side: made}}}


def test_plan_gives_the_number_of_rows_to_come() -> None:
    events = [
        {"preludeEvent": {}},
        step("create", "pulumi:pulumi:Stack"),
        step("create", "trainyard:aws:Network"),
        step("create", "pulumi:providers:eks", "default_4_4_0", custom=True),
        step("create", "pulumi:providers:kubernetes", "cluster", custom=True),
        step("create", "aws:ec2/vpc:Vpc", custom=True),
        step("read", "aws:ec2/vpc:Vpc", custom=True, external=True),
        step("same", "aws:ec2/subnet:Subnet", custom=True),
        step("update", "aws:iam/role:Role", custom=True),
        step("create-replacement", "aws:iam/role:Role", custom=True),
        step("replace", "aws:iam/role:Role", custom=True),
        step("delete-replaced", "aws:iam/role:Role", custom=True),
        step("delete", "aws:iam/role:Role", custom=True),
    ]
    lines = [*map(json.dumps, events), '{"resourcePre']
    assert planned_totals(lines) == {"created": 4, "updated": 1, "deleted": 2}


def test_state_gives_the_number_of_deletions() -> None:
    resources = [
        {"type": "pulumi:pulumi:Stack", "urn": "urn:s"},
        {"type": "aws:ec2/vpc:Vpc", "urn": "urn:v", "custom": True},
        {"type": "aws:ec2/vpc:Vpc", "urn": "urn:w", "custom": True, "external": True},
        {"type": "trainyard:aws:Network", "urn": "urn:n"},
    ]
    assert deletion_total({"resources": resources}) == {"deleted": 2}
    assert deletion_total({}) == {"deleted": 0}


def test_plan_names_changes_and_first_creations() -> None:
    creations = [f" +  aws:ec2:Subnet private-{number} create" for number in range(30)]
    changes = [
        " ~  aws:iam:Role node update [diff: ~tags]",
        " +- aws:eks:Cluster c replace [diff: ~name]",
        " -  aws:s3:Bucket b delete",
    ]
    summary = PlanSummary(rows=2)
    lines = ["Previewing update (dev):", *creations, *changes, "", "Resources:", "    + 30 to create"]
    shown = [each for line in lines for each in summary.lines(line)]
    assert shown == [lines[0], *creations[:2], *changes, *lines[-2:]]


@pytest.mark.parametrize(
    "line",
    [
        " +  aws:ec2:Subnet a created (2s) warning: acl is deprecated",
        " +  aws:ec2:Subnet a **creating failed** error: no room",
        " +  aws:ec2:Subnet a creating (3s) warning: acl is deprecated",
        " -  kubernetes:batch/v1:Job launch-lab1 kept, no longer in the state",
        "    pulumi:pulumi:Stack trainyard-local  drain of trainyard-local: 0 s: deleting launcher Jobs: launch-r1",
        "stopping pulumi up in order; once more stops it at once",
        "Resources:",
        "    + 180 created",
    ],
)
def test_problem_or_message_of_engine_is_shown(line: str) -> None:
    assert engine_lines([line]) == [line]


def test_diagnostics_are_shown_whole() -> None:
    text = [
        "",
        "Diagnostics:",
        "  aws:ec2:Vpc (a):",
        "    error: no room",
        "",
        "    more",
        "",
        "Resources:",
        "",
    ]
    assert engine_lines(text) == [*text[1:-1]]


def test_slow_resource_is_named_once() -> None:
    def wait(seconds: int, message: str) -> str:
        return f" +  kubernetes:apps/v1:Deployment app creating ({seconds}s) Waiting for {message}"

    lines = [wait(3, "pods"), wait(31, "0 of 2 pods"), wait(40, "1 of 2 pods")]
    assert engine_lines(lines) == [lines[1]]


def test_launcher_state_is_shown_when_it_changes_in_substance() -> None:
    waiting = launcher(
        "waiting",
        "4 placeholders wait for a node",
        "4 nodes are starting (small-5mdnz, small-7qrfq, small-abcde, small-zc6k2)",
        "1 node is starting (small-5mdnz); 1 placeholder waits for a node",
        "3 nodes: not initialized; 1 placeholder waits for a node",
        "1 node: not initialized",
        "node ip-10-64-64-5.us-west-2.compute.internal: taint a; 1 node: not initialized",
        "node ip-10-64-64-6.us-west-2.compute.internal: taint a",
        "small: InsufficientInstanceCapacity for g5.12xlarge",
    )
    holding = launcher("holding", "1 node: not initialized", "2 nodes: not initialized")
    following = launcher(
        "following",
        "0 of 4 workers running",
        "3 of 4 workers running, 1 finished",
        "4 of 4 workers finished",
        "3 of 4 workers running, 1 failed",
    )
    shown = run_lines(*waiting, *holding, *following)
    expected = [*(waiting[index] for index in (0, 1, 3, 5, 7)), holding[0], following[0], following[3]]
    assert shown == expected


def test_other_launcher_line_is_shown_unless_it_is_information() -> None:
    lines = ["[launch-r1-x] INFO launcher.loop: created", "[launch-r1-x] ERROR launcher.loop: refused"]
    assert run_lines(*lines) == lines[1:]


def test_nodes_are_named_until_there_are_many() -> None:
    events = [f"node {state}: n{number} g5" for number in range(25) for state in ("joined", "ready")]
    shown = run_lines(*events)
    assert shown == [*(f"node ready: n{number} g5" for number in range(10)), "nodes ready: 20"]


def test_steps_are_sampled_with_first_and_last() -> None:
    pod = "[train-r1-master-0] "
    steps = [f"step={step} loss=0.5 samples_per_second=9.0" for step in range(5, 1001, 5)]
    head, result = ["rank=0 world_size=1", "model=convnet step=0/1000"], "result=succeeded steps=1000"
    shown = run_lines(*(pod + line for line in [*head, *steps, result]))
    assert shown[:2] == [pod + line for line in head]
    assert shown[-1] == pod + result
    assert (shown[2], shown[-2]) == (pod + steps[0], pod + steps[-1])
    assert 10 <= len(shown) - 3 <= 12


def test_long_output_of_another_trainer_is_sampled() -> None:
    lines = [f"[train-r1-master-0] batch {number}" for number in range(1000)]
    shown = run_lines(*lines)
    assert shown[:10] == lines[:10]
    assert len(shown) < 20


@pytest.mark.parametrize("pod", ["train-r1-master-0", "train-r1-worker-3"])
def test_problem_of_worker_is_shown_whole(pod: str) -> None:
    problem = [
        "alarm=loss step=3 reason=nan",
        "checkpoint=damaged step=3 reason=sha256",
        "UserWarning: old",
        "Traceback (most recent call last):",
        "  File x, line 1",
        "ValueError: wrong",
    ]
    lines = [f"[{pod}] {text}" for text in problem]
    assert run_lines(f"[{pod}] rank=3 world_size=4", *lines)[-len(lines) :] == lines


def test_usual_lines_of_other_workers_are_hidden() -> None:
    assert run_lines("[train-r1-worker-0] rank=1 world_size=4", "[train-r1-worker-0] step=3 loss=1") == []


def test_status_shows_progress_of_resources_and_of_run() -> None:
    engine, run = EngineSummary({"created": 155}, rows=0, every=0), RunSummary()
    assert [shown for row in rows(57) for shown in engine.lines(row)] == []
    assert engine.status() == "created 57 of 155"
    for text in (
        *launcher("following", "4 of 4 workers running"),
        "node ready: a",
        "node ready: b",
        "node gone: a",
    ):
        run.lines(f"   1.0 s  {text}")
    run.lines("   2.0 s  [train-r1-master-0] step=20 epoch=1/2 loss=2.15 samples_per_second=60.5")
    assert run.status() == "following, 1 node ready, step 20, loss 2.15, samples/s 60.5"
