"""What whoever deploys is told, although nothing of it is wrong."""

from __future__ import annotations

from datetime import date
from typing import Any

import pytest

from infra import cautions
from infra.settings import read
from tests.shipped import shipped
from tests.unit.infra.changing import GIVEN_CLUSTER, GIVEN_VPC, NOW, POOL, settings, stack_file, with_

pytestmark = pytest.mark.unit

TODAY = NOW.date()
RUN = {"pool": "small", "minNodes": 1, "maxNodes": 4}


def told(config: dict[str, Any], today: date = TODAY) -> list[str]:
    return cautions.lines(settings(config), today)


def on_spot(**run: Any) -> dict[str, Any]:
    """A stack with two pools, the second one of spot machines."""
    return with_(
        {
            "pools": [POOL, {**POOL, "name": "cheap", "purchase": "spot"}],
            "training": {**RUN, "pool": "cheap", **run},
        }
    )


@pytest.mark.parametrize("name", shipped())
def test_no_shipped_stack_file_has_anything_to_be_warned_of(name: str) -> None:
    assert cautions.lines(read(name, stack_file(name), NOW), TODAY) == []


def test_several_spot_machines_that_train_together_are_told() -> None:
    (line,) = told(on_spot())
    assert line.startswith("trainyard:pools[1].purchase is spot, and up to 4 machines train together: ")
    assert (
        "each one that EC2 takes back makes all of them begin anew from the newest checkpoint, 3 times at most"
        " (training.maxRestarts), and the next one ends the run; on-demand"
    ) in line


def test_the_number_in_the_line_is_that_of_the_restarts() -> None:
    (line,) = told(on_spot(maxRestarts=1))
    assert "from the newest checkpoint, once at most (training.maxRestarts), and the next one ends" in line
    (line,) = told(on_spot(maxRestarts=0))
    assert "each one that EC2 takes back ends the run, since training.maxRestarts is 0; on-demand" in line


def test_without_checkpoints_each_of_these_restarts_is_said_to_begin_with_the_first_step() -> None:
    (line,) = told(on_spot(checkpoints="none", maxRestarts=5))
    assert "from the first step, since training.checkpoints is none, 5 times at most" in line


def test_an_elastic_world_is_promised_no_number_of_restarts() -> None:
    for most in (0, 3):
        (line,) = told(on_spot(shape="elastic", maxRestarts=most))
        assert "makes all of them begin anew from the newest checkpoint; on-demand" in line


def test_one_spot_machine_or_a_run_elsewhere_or_none_is_nobodys_concern() -> None:
    assert told(on_spot(maxNodes=1)) == []
    assert told(on_spot(pool="small")) == []
    assert told(with_({"pools": [{**POOL, "purchase": "spot"}]})) == []
    assert told(with_({"training": RUN})) == []


def test_the_end_of_a_version_is_told_of_a_cluster_that_the_stack_makes() -> None:
    (line,) = told(with_({}), date(2027, 3, 1))
    assert line.startswith("Kubernetes 1.35: standard support ends on 2027-03-27")
    given = {**with_({"network": GIVEN_VPC}), "trainyard:cluster": {"existing": GIVEN_CLUSTER}}
    assert told(given, date(2027, 3, 1)) == []


def with_lustre(*pools: dict[str, Any], efa: bool = True) -> dict[str, Any]:
    """A stack with pools that differ in this, and a file system."""
    named = [{**POOL, "name": f"p{index}", **pool} for index, pool in enumerate(pools)]
    lustre = {"throughput": 1000, "capacityGiB": 4800, "efa": efa}
    return with_({"pools": named, "storage": {"lustre": lustre}})


P5, P4D, TRN2 = ({"instanceType": name} for name in ("p5.48xlarge", "p4d.24xlarge", "trn2.48xlarge"))


def test_a_file_system_with_efa_is_said_to_be_experimental() -> None:
    (line,) = told(with_lustre(P5))
    assert line.startswith("trainyard:storage.lustre.efa is experimental: ")
    assert told(with_lustre(P5, P4D, efa=False)) == []


def test_pools_that_reach_it_over_tcp_are_named() -> None:
    _, line = told(with_lustre(P5, P4D, TRN2))
    assert "the machines of p1 (p4d.24xlarge), p2 (trn2.48xlarge) reach it over TCP" in line
    _, line = told(with_lustre({**P5, "efa": "none"}))
    assert "the machines of p0 (p5.48xlarge) reach it over TCP" in line


def test_credentials_in_plain_text_are_told_with_the_setting_for_secrets() -> None:
    run = {**RUN, "env": {"HF_TOKEN": "x", "NCCL_DEBUG": "WARN", "TOKENIZERS_PARALLELISM": "false"}}
    (line,) = told(with_({"training": run}))
    assert line.startswith("trainyard:training.env.HF_TOKEN looks like a credential")
    assert "training.secrets" in line
    assert told(with_({"training": {**RUN, "secrets": ["HF_TOKEN"]}})) == []


def test_queue_without_gpus_on_a_pool_with_gpus_is_told() -> None:
    def of(gpus: int) -> list[str]:
        queue = {"name": "prepare", "pool": "small", "nodeResources": {"gpus": gpus}}
        return told(with_({"queues": [{"name": "train", "pool": "small"}, queue]}))

    (line,) = of(0)
    assert line.startswith(
        "trainyard:queues[1].nodeResources.gpus is 0, and each node of pool small has 4 GPUs"
    )
    assert of(1) == []
