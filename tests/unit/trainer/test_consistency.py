"""What must be the same in all processes, and the message where it is not."""

from __future__ import annotations

from dataclasses import fields

import pytest
import torch

from trainer.config import Config
from trainer.consistency import _PER_NODE, common_settings, describe_workload, differences
from trainer.workloads import load

pytestmark = pytest.mark.long


def test_processes_that_agree_differ_in_nothing() -> None:
    assert differences([{"seed": "0", "steps": "5"}] * 3) == []


def test_difference_names_its_values_and_ranks() -> None:
    descriptions = [{"seed": "0", "steps": "5"}, {"seed": "1", "steps": "5"}, {"seed": "0"}]
    assert differences(descriptions) == [
        "seed: 0 in processes 0, 2, 1 in process 1",
        "steps: 5 in processes 0, 1, nothing in process 2",
    ]


def test_of_many_processes_eight_are_named() -> None:
    descriptions = [{"seed": str(int(rank == 300))} for rank in range(512)]
    assert differences(descriptions) == [
        "seed: 0 in processes 0, 1, 2, 3, 4, 5, 6, 7 and 503 more, 1 in process 300"
    ]


def test_every_setting_is_of_the_run_or_of_a_machine() -> None:
    agree = common_settings(Config(batch_size=96), torch.device("cpu"))
    assert set(agree) == {each.name for each in fields(Config)} - _PER_NODE | {"device"}
    assert {each.name for each in fields(Config)} > _PER_NODE
    assert (agree["batch_size"], agree["device"]) == ("96", "cpu")


def test_workload_description_has_model_and_data() -> None:
    digits = load("digits")
    described = describe_workload(digits)
    assert (described["model"], described["sha256"], described["train_samples"]) == (
        "convnet",
        digits.digest,
        "1438",
    )
