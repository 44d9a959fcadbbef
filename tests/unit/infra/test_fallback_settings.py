"""Fallback pools of a run: which pools can serve it, and which resources a worker requests on their nodes."""

from __future__ import annotations

import re
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from components.documents import instance_types
from components.documents.launch import Candidate, WorkerSize
from infra import warnings
from infra.settings import Training
from tests.unit.infra.changing import NOW, POOL, ROOT, error_lines, mistakes, settings, with_
from trainyard.k8s import quantity

FALLBACKS = "trainyard:training.fallbackPools"
TRAINER = f"registry.example/trainer@sha256:{'0' * 64}"
POOLS = [
    POOL,
    {**POOL, "name": "elsewhere", "zone": "us-west-2a"},
    {**POOL, "name": "large", "instanceType": "p4d.24xlarge"},
    {**POOL, "name": "one", "maxNodes": 1},
    {**POOL, "name": "old", "instanceType": "p3dn.24xlarge"},
    {**POOL, "name": "trn", "instanceType": "trn1.32xlarge"},
    {**POOL, "name": "cores", "instanceType": "m5.large"},
    {**POOL, "name": "more-cores", "instanceType": "m5.xlarge"},
]
RUN = {"pool": "small", "minNodes": 2, "maxNodes": 4}


def stack(*fallbacks: Any, pools: list[dict[str, Any]] = POOLS, **run: Any) -> dict[str, Any]:
    """Return a stack with pools of every kind, whose run has these fallbacks."""
    return with_({"pools": pools, "training": {**RUN, "fallbackPools": [*fallbacks], **run}})


def training(*fallbacks: Any, **run: Any) -> Training:
    found = settings(stack(*fallbacks, **run)).training
    assert found is not None
    return found


def fallback(entry: Any, **run: Any) -> Candidate:
    """Return the candidate that is read from a single fallback."""
    _, found = training(entry, **run).candidates
    return found


def test_run_without_fallbacks_has_its_pool_and_one_attempt() -> None:
    found = settings(with_({"training": RUN})).training
    assert found is not None
    (only,) = found.candidates
    assert (only.pool.name, only.capacity_deadline_seconds) == ("small", 1200)
    assert (found.node_start_seconds, found.attempts, found.retry_seconds) == (900, 1, 240)
    assert (found.max_restarts, found.shape) == (3, "static")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"shape": "rigid"}, "trainyard:training.shape: 'rigid'"),
        ({"cpu": "0"}, "trainyard:training.cpu: '0' is 0 cores; it must be at least 100m"),
        (
            {"cpu": "48000m"},
            "training.cpu: '48000m' leaves nothing of the 48 cores of g5.12xlarge to the system",
        ),
        (
            {"memory": "192Gi"},
            "training.memory: '192Gi' leaves nothing of the 192 GiB of g5.12xlarge to the system",
        ),
        ({"sharedMemory": "0Gi"}, "trainyard:training.sharedMemory: '0Gi' is 0 bytes"),
        (
            # Three quarters of the node's 192 GiB.
            {"sharedMemory": "145Gi"},
            "trainyard:training.sharedMemory: '145Gi' is more than the worker's memory, of which it is a part; it must"
            " be at most '144Gi'",
        ),
        ({"memory": "16Gi", "sharedMemory": "16385Mi"}, "it must be at most '16Gi'"),
        (
            # A fallback inherits the value; the error is reported only for the run.
            {"sharedMemory": "1Ti", "fallbackPools": ["large"]},
            "trainyard:training.sharedMemory: '1Ti' is more",
        ),
        ({"memory": "192Gi", "sharedMemory": "193Gi"}, "training.memory: '192Gi' leaves nothing"),
    ],
)
def test_invalid_worker_size_is_reported_once(change: dict[str, Any], message: str) -> None:
    (line,) = mistakes(stack(**change))
    assert message in line


@pytest.mark.parametrize(
    "change",
    [
        {"sharedMemory": "144Gi"},
        {"memory": "16Gi", "sharedMemory": "16384Mi"},
        # The default decreases with the memory, as the kubelet's does.
        {"memory": "4Gi"},
        {"memory": "4Gi", "fallbackPools": ["elsewhere", "large"]},
    ],
)
def test_shared_memory_may_equal_the_memory_of_a_worker(change: dict[str, Any]) -> None:
    assert settings(stack(**change)).training is not None


def test_fallbacks_as_names_or_mappings_keep_their_order() -> None:
    found = training(
        "large", {"pool": "elsewhere", "capacityDeadlineSeconds": 1}, capacityDeadlineSeconds=300
    )
    assert [(each.pool.name, each.capacity_deadline_seconds) for each in found.candidates] == [
        ("small", 300),
        ("large", 300),
        ("elsewhere", 1),
    ]


def test_fallback_inherits_worker_size_only_on_the_same_type() -> None:
    worker = {"cpu": "30", "memory": "100Gi", "processesPerNode": 2, "sharedMemory": "64Gi"}
    assert fallback("elsewhere", **worker).size == WorkerSize(
        processes_per_node=2, cpu="30", memory="100Gi", shared_memory="64Gi"
    )
    assert fallback("large", **worker).size == WorkerSize(
        processes_per_node=8, cpu="81", memory="864Gi", shared_memory="64Gi"
    )
    assert fallback("large").size.shared_memory == "8Gi"


def test_fallback_may_set_its_own_worker_size() -> None:
    own = {"processesPerNode": 4, "cpu": "64", "memory": "512Gi", "sharedMemory": "16Gi"}
    assert fallback({"pool": "large", **own}, cpu="30").size == WorkerSize(
        processes_per_node=4, cpu="64", memory="512Gi", shared_memory="16Gi"
    )


def test_processes_on_cpu_are_equal_on_every_type() -> None:
    """The default is one process per GPU, and the number of GPUs depends on the type."""
    on_cpu = {"pool": "cores", "device": "cpu"}
    assert fallback("more-cores", **on_cpu, processesPerNode=2).size.processes_per_node == 2
    assert fallback("more-cores", **on_cpu).size.processes_per_node == 1
    assert fallback("large", **on_cpu).size.processes_per_node == 8
    assert fallback("large", **on_cpu, processesPerNode=2).size.processes_per_node == 2


@pytest.mark.parametrize(
    ("entry", "run", "message"),
    [
        ("larg", {}, ".pool: 'larg' is not a pool; did you mean large? (pools: small, elsewhere, large"),
        ("small", {}, ".pool: 'small' is trainyard:training.pool already; it must be another pool"),
        ("trn", {}, ".pool: 'trn' has trn1.32xlarge, whose Neuron devices the trainer can't use"),
        ("trn", {"device": "cpu"}, ".pool: 'trn' has trn1.32xlarge, whose Neuron devices"),
        (
            "cores",
            {},
            ".pool: 'cores' is of m5.large, which has no GPUs, and device is cuda; it must be a pool with GPUs",
        ),
        (
            "one",
            {},
            ".pool: 'one' may have at most 1 nodes, fewer than minNodes (2); it must be a pool whose maxNodes is at"
            " least 2",
        ),
        ({}, {}, ".pool: is missing; it must be the name of a pool"),
        (None, {}, ": null is nothing; it must be a pool's name or a mapping"),
        (3, {}, ": 3 is a whole number; it must be a pool's name or a mapping"),
        (
            {"pool": "large", "processesPerNode": 9},
            {},
            ".processesPerNode: 9 is more than the GPUs of p4d.24xlarge; it must be at most 8",
        ),
        (
            {"pool": "large", "cpu": "96"},
            {},
            ".cpu: '96' leaves nothing of the 96 cores of p4d.24xlarge to the system; it must be less, such as '81'",
        ),
        (
            {"pool": "large", "memory": "1152Gi"},
            {},
            ".memory: '1152Gi' leaves nothing of the 1152 GiB of p4d.24xlarge to the system; it must be less, such as"
            " '864Gi'",
        ),
        (
            {"pool": "large", "sharedMemory": "865Gi"},
            {},
            ".sharedMemory: '865Gi' is more than the worker's memory, of which it is a part; it must be at"
            " most '864Gi'",
        ),
        (
            {"pool": "large", "memory": "32Gi"},
            {"sharedMemory": "64Gi"},
            ".sharedMemory: '64Gi', as the training has it, is more than the worker's memory, of which it is a part; it"
            " must be at most '32Gi'",
        ),
        (
            {"pool": "large", "memory": "0"},
            {},
            ".memory: '0' is 0 bytes; it must be a quantity of at least 1Mi",
        ),
        (
            {"pool": "cores", "cpu": "1500m"},
            {"device": "cpu"},
            ".cpu: '1500m' is not what nodes of m5.large are counted by; it must be '1', or left out",
        ),
    ],
)
def test_fallback_that_cannot_serve_is_reported_once(entry: Any, run: dict[str, Any], message: str) -> None:
    (line,) = mistakes(stack(entry, **run))
    assert line.startswith(f"{FALLBACKS}[0]{message}"), line


def test_duplicate_pool_is_reported_at_the_second_entry() -> None:
    (line,) = mistakes(stack("large", "elsewhere", {"pool": "large"}))
    assert line == f"{FALLBACKS}[2].pool: 'large' is {FALLBACKS}[0] already; it must be another pool"


def test_fallbacks_that_are_no_list_are_reported() -> None:
    (line,) = mistakes(with_({"pools": POOLS, "training": {**RUN, "fallbackPools": "large"}}))
    assert line.startswith(f"{FALLBACKS}: 'large' is a text; it must be a list of names or mappings")


def test_invalid_pool_is_no_error_of_the_fallbacks() -> None:
    broken = {**POOL, "name": "broken", "maxNodes": "four"}
    (line,) = mistakes(stack("broken", pools=[POOL, broken]))
    assert line.startswith("trainyard:pools[1].maxNodes: 'four' is a text")


def test_fallbacks_are_checked_when_the_runs_pool_is_invalid() -> None:
    first, second = mistakes(stack("large", "large", pool="smal"))
    assert first.startswith("trainyard:training.pool: 'smal' is not a pool")
    assert second.startswith(f"{FALLBACKS}[1].pool: 'large' is {FALLBACKS}[0] already")


def test_invalid_worker_of_the_run_is_not_repeated_in_fallbacks() -> None:
    wrong = {"cpu": "many", "memory": "0", "processesPerNode": 5}
    lines = mistakes(stack("elsewhere", **wrong))
    assert sorted(line.split(": ")[0].rpartition(".")[2] for line in lines) == sorted(wrong)


def test_built_image_on_v100_fallback_is_refused() -> None:
    (line,) = mistakes(stack("old"))
    assert line.startswith("trainyard:images.trainer: is missing; ")
    assert "no kernels for the V100 of p3dn.24xlarge (pool 'old'); it must be" in line
    given_image = {**stack("old"), "trainyard:images": {"trainer": TRAINER}}
    assert len(settings(given_image).training.candidates) == 2
    assert fallback("old", device="cpu").pool.name == "old"


def test_fallback_in_another_zone_than_lustre_is_reported() -> None:
    elsewhere = {
        **stack("elsewhere", pools=POOLS[:2]),
        "trainyard:storage": {"lustre": {"zone": "us-west-2b"}},
    }
    (line,) = mistakes(elsewhere)
    assert line.startswith("trainyard:storage.lustre.zone: is 'us-west-2b', but pools are in us-west-2a")
    same = {**stack("large", pools=[POOL, POOLS[2]]), "trainyard:storage": {"lustre": {"zone": "us-west-2b"}}}
    assert settings(same).storage.lustre is not None


def test_spot_fallback_warning_names_the_pool() -> None:
    cheap = {**POOL, "name": "cheap", "purchase": "spot"}
    found = settings(stack("cheap", pools=[POOL, cheap]))
    (line,) = warnings.find_warnings(found, NOW.date())
    assert line.startswith("trainyard:pools[1].purchase is spot, and the run uses up to 4 nodes")
    assert warnings.find_warnings(settings(stack(pools=[POOL, cheap])), NOW.date()) == []


def test_example_in_waiting_docs_is_valid_and_sums_up() -> None:
    page = (ROOT / "docs" / "waiting.md").read_text()
    (example,) = re.findall(r"```yaml\n(trainyard:.+?)```", page, re.DOTALL)
    pools = [{**POOL, "name": name} for name in ("large", "elsewhere", "smaller")]
    found = settings({**with_({"pools": pools}), **yaml.safe_load(example)}).training
    assert found is not None
    deadlines = sum(each.capacity_deadline_seconds for each in found.candidates)
    longest = deadlines * found.attempts + (found.attempts - 1) * found.retry_seconds * 6 // 5
    assert f"= {longest} seconds" in page


NAMES = [str(pool["name"]) for pool in POOLS]
ENTRIES = st.one_of(
    st.sampled_from([*NAMES, "nowhere"]),
    st.fixed_dictionaries(
        {"pool": st.sampled_from(NAMES)},
        optional={
            "capacityDeadlineSeconds": st.integers(0, 3000),
            "processesPerNode": st.integers(1, 16),
            "cpu": st.sampled_from(["1", "2", "30", "48", "96", "1500m"]),
            "memory": st.sampled_from(["1Gi", "100Gi", "200Gi", "2Ti"]),
        },
    ),
)


@hypothesis_settings(max_examples=80)
@given(
    st.lists(ENTRIES, max_size=4),
    st.sampled_from(NAMES),
    st.sampled_from(["cuda", "cpu"]),
    st.integers(1, 4),
    st.fixed_dictionaries(
        {},
        optional={
            "processesPerNode": st.integers(1, 8),
            "cpu": st.sampled_from(["1", "30", "90"]),
            "memory": st.sampled_from(["1Gi", "100Gi", "2Ti"]),
        },
    ),
)
@pytest.mark.long
def test_fallbacks_can_all_serve_or_are_reported(
    entries: list[Any], pool: str, device: str, minimum: int, sizes: dict[str, Any]
) -> None:
    """Either all fallbacks can serve the run on their own nodes, or a line names the one that cannot."""
    config = stack(*entries, pool=pool, device=device, minNodes=minimum, **sizes)
    lines = error_lines(config)
    if lines:
        assert all(each.startswith(("trainyard:training.", "trainyard:images.trainer")) for each in lines)
        return
    found = settings(config).training
    assert found is not None
    names = [each.pool.name for each in found.candidates]
    assert names == [pool, *(each if isinstance(each, str) else each["pool"] for each in entries)]
    assert len(set(names)) == len(names)
    for index, each in enumerate(found.candidates):
        facts = instance_types.TYPES[each.pool.instance_type]
        assert index == 0 or each.pool.max_nodes >= minimum
        assert each.capacity_deadline_seconds >= 1
        assert facts.resource != "aws.amazon.com/neuron"
        assert 0 < quantity.parse(each.size.cpu) < facts.vcpus
        assert 0 < quantity.parse(each.size.memory) < facts.memory_gib * 2**30
        if device == "cuda":
            assert instance_types.torch_serves(facts)
            assert 1 <= each.size.processes_per_node <= facts.accelerators
        if not facts.accelerators:
            assert quantity.parse(each.size.cpu) == quantity.parse(each.pool.worker_cpu), (
                "the launcher computes with the pool's value"
            )


@hypothesis_settings(max_examples=25)
@given(st.data(), st.integers(1, 4), st.sampled_from(["cuda", "cpu"]))
def test_serving_pools_are_accepted_in_any_order(data: st.DataObject, minimum: int, device: str) -> None:
    """The image supports every GPU."""
    serving = [
        pool["name"]
        for pool in POOLS
        if pool["maxNodes"] >= minimum
        and instance_types.TYPES[pool["instanceType"]].resource in ("nvidia.com/gpu", "cpu")
        and (device == "cpu" or instance_types.TYPES[pool["instanceType"]].accelerators)
    ]
    first, *others = data.draw(st.permutations(serving))
    config = stack(*others, pool=first, minNodes=minimum, device=device)
    found = settings({**config, "trainyard:images": {"trainer": TRAINER}}).training
    assert found is not None
    assert [each.pool.name for each in found.candidates] == [first, *others]
