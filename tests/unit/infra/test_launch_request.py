"""The launch request of the program: the launcher reads every value and refuses none."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from components.documents.launch import Resolved, job_spec
from infra.settings import Training
from infra.stack import run_of
from launcher.request import Request, parse_request
from tests.shipped import shipped
from tests.unit.infra.changing import POOL, settings, stack_file, with_
from tests.unit.infra.examples import MAKES_EVERYTHING

IMAGE = f"registry.example/image@sha256:{'0' * 64}"
RESOLVED = Resolved(
    launcher_image=IMAGE,
    trainer_image=IMAGE,
    placeholder_image=IMAGE,
    model_uri="s3://bucket/models",
    checkpoint_uri="s3://bucket/checkpoints",
)
SHIPPED = shipped()
BLOCK = {
    "purchase": "reserved",
    "capacityReservationIds": ["cr-0123456789abcdef0"],
    "reservationType": "capacity-block",
    "reservationBegins": "2027-01-01T11:30:00Z",
    "reservationEnds": "2027-01-31T11:30:00Z",
}
POOLS = [
    POOL,
    {**POOL, "name": "elsewhere", "zone": "us-west-2a", "purchase": "spot"},
    {**POOL, "name": "large", "instanceType": "p4d.24xlarge"},
    {**POOL, "name": "block", "instanceType": "p5.48xlarge", **BLOCK},
    {**POOL, "name": "cores", "instanceType": "m5.large"},
    {**POOL, "name": "more-cores", "instanceType": "c6i.4xlarge"},
]


def request_of(training: Training) -> Request:
    """Return the request that a launcher pod reads from its environment."""
    (container,) = job_spec(run_of(training, "us-west-2", {"lustre": "/fsx"}), RESOLVED)["template"]["spec"][
        "containers"
    ]
    environment = {each["name"]: each["value"] for each in container["env"] if "value" in each}
    return parse_request({**environment, "JOB_NAME": "launch-r1"})


def training(config: dict[str, Any]) -> Training | None:
    return settings(config).training


@pytest.mark.parametrize("name", SHIPPED)
def test_launcher_reads_the_run_of_every_shipped_stack(name: str) -> None:
    run = training(stack_file(name))
    if run is not None:
        assert request_of(run).pool.name == run.candidates[0].pool.name


def test_launcher_reads_every_key_of_a_run() -> None:
    run = training(MAKES_EVERYTHING)
    assert run is not None
    read = request_of(run)
    assert (read.node_start_seconds, read.attempts, read.retry_seconds) == (900, 3, 240)
    assert (read.pool.name, read.deadline_seconds) == ("large", 1200)
    second = read.candidate(1)
    assert (second.pool.name, second.deadline_seconds) == ("reserved", 600)
    assert (second.worker.cpu, second.worker.memory) == ("80", "800Gi")


@hypothesis_settings(max_examples=30)
@given(
    st.data(),
    st.sampled_from(["cuda", "cpu"]),
    st.integers(60, 9000),
    st.integers(1, 9),
    st.integers(180, 9000),
    st.integers(0, 50),
    st.sampled_from(["static", "elastic"]),
)
def test_launcher_reads_every_valid_run(
    data: st.DataObject, device: str, start: int, attempts: int, retry: int, restarts: int, shape: str
) -> None:
    able = [pool["name"] for pool in POOLS if device == "cpu" or "cores" not in pool["name"]]
    order = data.draw(st.permutations(able))
    deadlines = data.draw(st.lists(st.integers(10, 9000), min_size=len(order), max_size=len(order)))
    waits = {
        "nodeStartSeconds": start,
        "attempts": attempts,
        "retrySeconds": retry,
        "maxRestarts": restarts,
        "shape": shape,
    }
    fallbacks = [
        {"pool": name, "capacityDeadlineSeconds": seconds}
        for name, seconds in zip(order[1:], deadlines[1:], strict=True)
    ]
    run = {
        "pool": order[0],
        "capacityDeadlineSeconds": deadlines[0],
        "fallbackPools": fallbacks,
        "device": device,
    }
    made = training(with_({"pools": POOLS, "training": {"minNodes": 1, "maxNodes": 4, **run, **waits}}))
    assert made is not None
    read = request_of(made)
    assert (read.node_start_seconds, read.attempts, read.retry_seconds) == (start, attempts, retry)
    assert (read.max_restarts, read.shape) == (restarts, shape)
    candidates = [read.candidate(index) for index in range(len(order))]
    assert [(each.pool.name, each.deadline_seconds) for each in candidates] == list(
        zip(order, deadlines, strict=True)
    )
    for each, known in zip(candidates, made.candidates, strict=True):
        assert each.pool.per_node == (known.pool.accelerators or int(known.size.cpu))
        assert each.worker.processes_per_node == known.size.processes_per_node
        begins = each.pool.block.begins if each.pool.block else None
        assert (begins is not None) == (each.pool.name == "block")
