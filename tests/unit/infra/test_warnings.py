"""Warnings of `up` and `preview`, although the stack file is valid."""

from __future__ import annotations

from datetime import date, timedelta
from typing import Any

import pytest

from components.documents import versions
from infra import warnings
from infra.settings import read
from tests.shipped import shipped
from tests.unit.infra.changing import (
    NOW,
    POOL,
    settings,
    stack_file,
    with_,
    with_existing_cluster,
)

TODAY = NOW.date()
RUN = {"pool": "small", "minNodes": 1, "maxNodes": 4}


def warned(config: dict[str, Any], today: date = TODAY) -> list[str]:
    return warnings.find_warnings(settings(config), today)


def on_spot(**run: Any) -> dict[str, Any]:
    """Return a stack with two pools, the second one with spot nodes."""
    return with_(
        {
            "pools": [POOL, {**POOL, "name": "cheap", "purchase": "spot"}],
            "training": {**RUN, "pool": "cheap", **run},
        }
    )


@pytest.mark.parametrize("name", shipped())
def test_shipped_stack_files_have_no_warnings(name: str) -> None:
    assert warnings.find_warnings(read(name, stack_file(name), NOW), TODAY) == []


def test_run_on_several_spot_nodes_is_warned_of() -> None:
    (line,) = warned(on_spot())
    assert line.startswith("trainyard:pools[1].purchase is spot, and the run uses up to 4 nodes: ")
    assert (
        "each Spot interruption restarts all workers from the newest checkpoint, 3 times at most"
        " (training.maxRestarts), and the next one ends the run. On-demand"
    ) in line


def test_spot_warning_has_the_number_of_restarts() -> None:
    (line,) = warned(on_spot(maxRestarts=1))
    assert "from the newest checkpoint, once at most (training.maxRestarts), and the next one ends" in line
    (line,) = warned(on_spot(maxRestarts=0))
    assert "each Spot interruption ends the run, because training.maxRestarts is 0. On-demand" in line


def test_spot_run_without_checkpoints_restarts_from_the_first_step() -> None:
    (line,) = warned(on_spot(checkpoints="none", maxRestarts=5))
    assert "from the first step, because training.checkpoints is none, 5 times at most" in line


def test_spot_warning_of_an_elastic_run_has_no_number() -> None:
    for most in (0, 3):
        (line,) = warned(on_spot(shape="elastic", maxRestarts=most))
        assert "restarts all workers from the newest checkpoint. On-demand" in line


def test_one_spot_node_or_a_run_elsewhere_has_no_warning() -> None:
    assert warned(on_spot(maxNodes=1)) == []
    assert warned(on_spot(pool="small")) == []
    assert warned(with_({"pools": [{**POOL, "purchase": "spot"}]})) == []
    assert warned(with_({"training": RUN})) == []


def test_end_of_support_of_a_created_cluster_is_warned_of() -> None:
    (line,) = warned(with_({}), date(2027, 3, 1))
    assert line.startswith("Kubernetes 1.35: standard support ends on 2027-03-27")
    assert warned(with_existing_cluster(), date(2027, 3, 1)) == []


def with_lustre(*pools: dict[str, Any], efa: bool = True) -> dict[str, Any]:
    """Return a stack with a file system and pools that differ in these keys."""
    named = [{**POOL, "name": f"p{index}", **pool} for index, pool in enumerate(pools)]
    lustre = {"throughput": 1000, "capacityGiB": 4800, "efa": efa}
    return with_({"pools": named, "storage": {"lustre": lustre}})


P5, P4D, TRN2 = ({"instanceType": name} for name in ("p5.48xlarge", "p4d.24xlarge", "trn2.48xlarge"))


def test_efa_for_the_file_system_is_experimental() -> None:
    (line,) = warned(with_lustre(P5))
    assert line.startswith("trainyard:storage.lustre.efa is experimental: ")
    assert warned(with_lustre(P5, P4D, efa=False)) == []


def test_pools_with_tcp_to_the_file_system_are_named() -> None:
    _, line = warned(with_lustre(P5, P4D, TRN2))
    assert "the nodes of p1 (p4d.24xlarge), p2 (trn2.48xlarge) reach it over TCP" in line
    _, line = warned(with_lustre({**P5, "efa": "none"}))
    assert "the nodes of p0 (p5.48xlarge) reach it over TCP" in line


def test_plain_credentials_are_warned_of_with_the_alternative() -> None:
    run = {**RUN, "env": {"HF_TOKEN": "x", "NCCL_DEBUG": "WARN", "TOKENIZERS_PARALLELISM": "false"}}
    (line,) = warned(with_({"training": run}))
    assert line.startswith("trainyard:training.env.HF_TOKEN looks like a credential")
    assert "training.secrets" in line
    assert warned(with_({"training": {**RUN, "secrets": ["HF_TOKEN"]}})) == []


def test_queue_without_gpus_on_a_gpu_pool_is_warned_of() -> None:
    def of(gpus: int) -> list[str]:
        queue = {"name": "prepare", "pool": "small", "nodeResources": {"gpus": gpus}}
        return warned(with_({"queues": [{"name": "train", "pool": "small"}, queue]}))

    (line,) = of(0)
    assert line.startswith(
        "trainyard:queues[1].nodeResources.gpus is 0, and each node of pool small has 4 GPUs"
    )
    assert of(1) == []


def test_every_supported_version_has_an_end_of_support() -> None:
    assert tuple(warnings.STANDARD_SUPPORT_ENDS) == versions.KUBERNETES_SUPPORTED


@pytest.mark.parametrize(
    ("version", "today", "warning"),
    [
        ("1.35", date(2026, 12, 26), None),
        ("1.35", date(2026, 12, 27), "support ends on 2027-03-27, in 90 days"),
        ("1.35", date(2027, 3, 26), "support ends on 2027-03-27, in 1 days"),
        ("1.35", date(2027, 3, 27), "support ended on 2027-03-27: EKS upgrades"),
        (
            "1.34",
            date(2026, 11, 21),
            "set trainyard:cluster.version to 1.35 or 1.36, one minor version at a time",
        ),
        ("1.36", date(2026, 11, 21), None),
    ],
)
def test_version_is_warned_of_ninety_days_before_its_end(
    version: str, today: date, warning: str | None
) -> None:
    lines = warnings.end_of_support(version, today)
    assert len(lines) == (warning is not None)
    assert warning is None or warning in lines[0]


def test_default_version_is_supported_for_months() -> None:
    end = warnings.STANDARD_SUPPORT_ENDS[versions.KUBERNETES]
    assert end is None or end > date(2026, 11, 21) + timedelta(days=90)
