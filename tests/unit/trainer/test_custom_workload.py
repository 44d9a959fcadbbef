"""A user's own model and data as a workload."""

from __future__ import annotations

import gc
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from examples.trainer import spirals
from trainer.config import Config
from trainer.contract import Exit, TrainerError
from trainer.workloads.custom import CustomWorkload, load

Sample = tuple[Tensor, Tensor]


def samples(count: int, shift: float = 0.0) -> list[Sample]:
    return [(torch.tensor([float(i) + shift]), torch.tensor([2.0 * i])) for i in range(count)]


def custom(train: list[Sample] | None = None, **changes: Any) -> CustomWorkload:
    arguments: dict[str, Any] = {
        "model": lambda: nn.Linear(1, 1),
        "loss": F.mse_loss,
        "train": samples(5) if train is None else train,
        "test": samples(3),
    }
    return CustomWorkload("line", **{**arguments, **changes})


def test_custom_workload_sums_the_users_mean_loss() -> None:
    workload = custom()
    network: Any = workload.model()
    inputs, targets = workload.batch(np.array([1, 4]), "train")
    assert inputs.tolist() == [[1.0], [4.0]]
    loss, sums = network(inputs, targets)
    mean = F.mse_loss(network.network(inputs), targets)
    assert loss.item() == pytest.approx(2 * mean.item())
    assert sums.tolist() == pytest.approx([loss.item(), 0.0, 2.0])
    loss.backward()
    assert network.network.weight.grad is not None


def test_custom_workload_fetches_a_batch_at_once_if_it_can() -> None:
    class Fetched(list[Sample]):
        def __getitems__(self, indices: list[int]) -> list[Sample]:
            return [(torch.tensor([-1.0]), torch.tensor([float(index)])) for index in indices]

    _, targets = custom(Fetched(samples(5))).batch(np.array([3, 0]), "train")
    assert targets.tolist() == [[3.0], [0.0]]


def test_custom_workload_of_no_samples_has_a_zero_loss() -> None:
    workload = custom(correct=lambda outputs, targets: (outputs > targets).sum())
    network: Any = workload.model()
    inputs, targets = workload.batch(np.array([], dtype=np.int64), "train")
    assert (inputs.shape, targets.shape) == ((0, 1), (0, 1))
    loss, sums = network(inputs, targets)
    loss.backward()
    assert sums.tolist() == [0.0, 0.0, 0.0]
    assert network.network.weight.grad.tolist() == [[0.0]]


def test_custom_workload_digest_depends_on_the_data() -> None:
    assert custom().digest == custom().digest
    assert custom(samples(5, shift=0.5)).digest != custom().digest
    assert custom(samples(6)).digest != custom().digest


def test_custom_workload_leaves_the_random_state() -> None:
    torch.manual_seed(7)
    before = torch.random.get_rng_state()
    custom()
    assert torch.equal(torch.random.get_rng_state(), before)


def test_custom_workload_without_samples_is_refused() -> None:
    with pytest.raises(TrainerError, match="train has no samples") as caught:
        custom([])
    assert caught.value.code == Exit.DATA


class Endless(torch.utils.data.IterableDataset[Sample]):
    def __iter__(self) -> Iterator[Sample]:
        raise NotImplementedError

    def __len__(self) -> int:
        return 5


class Unsized:
    def __getitem__(self, index: int) -> Sample:
        raise NotImplementedError


def frozen() -> nn.Module:
    return nn.Linear(1, 1).requires_grad_(False)


@pytest.mark.parametrize(
    ("changes", "phrase"),
    [
        ({"train": Endless()}, "train is a Endless; it must be a map-style"),
        ({"test": Unsized()}, "test is a Unsized; it must be a map-style"),
        ({"test": 5}, "test is a int; it must be a map-style"),
        ({"model": lambda: None}, "model returns a NoneType; it must return"),
        ({"model": nn.Identity}, "model has no parameter with requires_grad"),
        ({"model": frozen}, "model has no parameter with requires_grad"),
        ({"model": lambda: nn.LazyLinear(1)}, "model has a lazy module"),
        ({"train": [None, None]}, "samples of train cannot be stacked into a batch: default"),
        (
            {"test": [(torch.zeros(each), 0) for each in (1, 2)]},
            "samples of test cannot be stacked into a batch: stack expects each tensor to be equal",
        ),
        ({"test": [(0, 0), (0,)]}, "samples of test cannot be stacked"),
        ({"test": [("a", 0), ("b", 0)]}, "a sample of test is a tuple; it must be a pair"),
        ({"train": [{"x": torch.zeros(1)}]}, "a sample of train is a dict; it must be a pair"),
    ],
)
def test_custom_workload_that_cannot_train_is_refused(changes: dict[str, Any], phrase: str) -> None:
    with pytest.raises(TrainerError, match=f"^workload line: {re.escape(phrase)}.*$") as caught:
        custom(**changes)
    assert caught.value.code == Exit.CONFIGURATION


@pytest.mark.parametrize(
    ("loss", "phrase"),
    [
        (lambda _out, _targets: 1.0, "loss returned a float"),
        (lambda _out, _targets: None, "loss returned a NoneType"),
        (lambda out, targets: out - targets, r"loss returned a tensor of shape [5, 1]"),
    ],
)
def test_custom_workload_refuses_a_loss_that_is_no_scalar(loss: Any, phrase: str) -> None:
    workload = custom(loss=loss)
    with pytest.raises(TrainerError, match=re.escape(phrase)) as caught:
        workload.model()(*workload.batch(np.arange(5), "train"))
    assert caught.value.code == Exit.CONFIGURATION


@pytest.mark.parametrize(
    "correct",
    [
        lambda outputs, targets: (outputs > targets).sum(),
        lambda outputs, targets: int((outputs > targets).sum()),
        lambda outputs, targets: float((outputs > targets).sum()),
        lambda outputs, targets: (outputs > targets).sum().numpy(),
        lambda outputs, targets: (outputs > targets).float().sum().requires_grad_(),
    ],
)
def test_custom_workload_accepts_a_number_of_correct_samples(correct: Any) -> None:
    network: Any = custom(correct=correct, loss=lambda out, _: out.mean() * 0).model()
    nn.init.zeros_(network.network.weight)
    nn.init.constant_(network.network.bias, 3.0)
    _, sums = network(*custom().batch(np.arange(5), "train"))
    assert sums.tolist() == [0.0, 2.0, 5.0]
    assert not sums.requires_grad


@pytest.mark.parametrize(
    ("place", "phrase"),
    [
        ("no_such_module:workload", "No module named 'no_such_module'"),
        ("examples.trainer.missing:workload", "No module named 'examples.trainer.missing'"),
        ("examples.missing.spirals:workload", "No module named 'examples.missing'"),
        ("examples.trainer.spirals:missing", "module 'examples.trainer.spirals' has no function 'missing'"),
        ("examples.trainer.spirals:__doc__", "has no function '__doc__'"),
        ("examples.trainer.spirals:Spirals", "returned a Spirals"),
    ],
)
def test_load_of_a_wrong_place_is_one_clear_line(
    place: str, phrase: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spirals, "Spirals", type("Spirals", (), {"__init__": lambda *_: None}))
    with pytest.raises(TrainerError, match=re.escape(phrase)) as caught:
        load(place, "digits")
    assert caught.value.code == Exit.CONFIGURATION
    assert place in str(caught.value)


@pytest.mark.parametrize(
    ("code", "error"),
    [
        ("int('ten')", ValueError),
        ("import os; os.patth", AttributeError),
        ("from os import patth", ImportError),
        ("import missing", ModuleNotFoundError),
        ("def f(:", SyntaxError),
    ],
)
def test_error_of_the_users_module_keeps_its_stack(
    code: str, error: type[Exception], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / f"bad_{error.__name__}.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(error) as caught:
        load(f"bad_{error.__name__}:workload", "digits")
    assert not isinstance(caught.value, TrainerError)


@pytest.mark.parametrize(
    ("options", "phrase"),
    [
        (["--workload", "spirals"], "workload: 'spirals' must be package.module:function"),
        (["--workload", ".a:f"], "workload: '.a:f' must be package.module:function"),
        (["--workload", "a.:f"], "workload: 'a.:f' must be package.module:function"),
        (["--workload", "a:b", "--model", "convnet"], "model: 'convnet' is set beside workload"),
        (["--workload", "a:b", "--sequence-length", "8"], "sequence_length: 8 is set beside workload"),
    ],
)
def test_options_that_contradict_a_workload_are_refused(options: list[str], phrase: str) -> None:
    with pytest.raises(TrainerError, match=re.escape(phrase)):
        Config.read(options, {})


def test_users_code_loads_with_the_garbage_collector(monkeypatch: pytest.MonkeyPatch) -> None:
    from trainer.train import load_workload

    found = []

    def create(_data: str) -> CustomWorkload:
        found.append(gc.isenabled())
        return custom()

    monkeypatch.setattr(spirals, "workload", create)
    gc.disable()
    try:
        load_workload(Config(workload="examples.trainer.spirals:workload"))
    finally:
        gc.unfreeze()
        gc.enable()
    assert found == [True]
