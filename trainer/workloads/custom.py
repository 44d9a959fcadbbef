"""A user's own model and data sets as a workload: `--workload package.module:function`.

The function gets the value of `--data` and returns a `CustomWorkload`. examples/trainer has one in 30 lines.
"""

from __future__ import annotations

import hashlib
import importlib
from collections.abc import Callable
from typing import Any, Literal, Protocol, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.parameter import UninitializedParameter
from torch.utils.data import IterableDataset, default_collate

from trainer.contract import Exit, TrainerError
from trainer.workloads import Split, Workload
from trainer.workloads.loss import with_sums

# The number of samples of each data set in the digest.
_DIGEST_SAMPLES = 64


class Dataset(Protocol):
    """A map-style data set, for instance a `torch.utils.data.Dataset`: sample i is a pair of inputs and target.

    If it has `__getitems__(indices)`, that is called for a batch, as torch's data loader does.
    """

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> Any: ...


class CustomWorkload:
    """A `trainer.workloads.Workload` of a user's model and data sets."""

    unit: Literal["samples", "tokens"] = "samples"
    units_per_sample = 1

    def __init__(
        self,
        name: str,
        *,
        model: Callable[[], nn.Module],
        loss: Callable[[Any, Any], Tensor],
        train: Dataset,
        test: Dataset,
        correct: Callable[[Any, Any], Tensor | float] | None = None,
        flops_per_sample: int | None = None,
    ) -> None:
        """Define the workload. All processes must define the same.

        Args:
            name: The name of the model, for the log and the saved model.
            model: Creates the model on the CPU. It may use torch's random state, but no other randomness.
            loss: The mean loss of a batch from the model's outputs and the targets, such as `F.cross_entropy`.
            train: The training data.
            test: The data of the evaluations.
            correct: The number of correct samples of a batch, from outputs and targets. Without it, accuracy is 0.
            flops_per_sample: Floating-point operations of forward and backward pass of one sample, for MFU. Without
                it, 6 per weight, which holds for linear layers.

        Raises:
            TrainerError: A data set is empty or not map-style, its samples can't be a batch, or the model can't learn.
        """
        for split, data in (("train", train), ("test", test)):
            has_samples = hasattr(data, "__getitem__") or hasattr(data, "__getitems__")
            if isinstance(data, IterableDataset) or not (hasattr(data, "__len__") and has_samples):
                raise TrainerError(
                    Exit.CONFIGURATION,
                    f"workload {name}: {split} is a {type(data).__name__}; it must be a map-style data set, with "
                    "__len__ and __getitem__",
                )
            if len(data) < 1:
                raise TrainerError(
                    Exit.DATA, f"workload {name}: {split} has no samples; it must have at least one"
                )
        self.name, self.source = name, name
        self._model, self._loss, self._correct = model, loss, correct
        self._parts: dict[str, Dataset] = {"train": train, "test": test}
        self.train_samples, self.test_samples = len(train), len(test)
        with torch.random.fork_rng(devices=()):
            self.parameters = _count_parameters(name, model())
        self.flops_per_sample = 6 * self.parameters if flops_per_sample is None else flops_per_sample
        self.digest = self._hash()

    def model(self) -> nn.Module:
        """Create the model and wrap it with the loss. Its weights have names that begin with `network.`."""
        return _WithLoss(self._model(), self._loss, self._correct)

    def batch(self, indices: NDArray[np.int64], split: Split) -> tuple[Tensor, Tensor]:
        """Return inputs and targets of these samples, collated as torch's data loader does."""
        data: Any = self._parts[split]
        # A process may have no share of a batch. Its tensors still need their shapes and types.
        wanted = [int(index) for index in indices] or [0]
        samples = (
            data.__getitems__(wanted) if hasattr(data, "__getitems__") else [data[each] for each in wanted]
        )
        try:
            pair = default_collate(samples)
        except (TypeError, RuntimeError) as error:  # samples of other types, or of unequal shapes
            reason = str(error).partition("\n")[0]
            raise TrainerError(
                Exit.CONFIGURATION,
                f"workload {self.name}: samples of {split} cannot be stacked into a batch: {reason}. A sample must be "
                "a pair of inputs and target, each a tensor, an array or a number, with equal shapes in all samples",
            ) from error
        if not (
            isinstance(pair, list | tuple)
            and len(pair) == 2
            and all(isinstance(each, Tensor) for each in pair)
        ):
            kind = type(samples[0]).__name__
            raise TrainerError(
                Exit.CONFIGURATION,
                f"workload {self.name}: a sample of {split} is a {kind}; it must be a pair of inputs and target, each "
                "a tensor, an array or a number",
            )
        return pair[0][: len(indices)].cpu(), pair[1][: len(indices)].cpu()

    def describe(self) -> dict[str, Any]:
        """Return digest and sizes of the data."""
        return {
            "source": self.source,
            "sha256": self.digest,
            "train": self.train_samples,
            "test": self.test_samples,
        }

    def _hash(self) -> str:
        total = hashlib.sha256()
        splits: tuple[Split, ...] = ("train", "test")
        for split in splits:
            count = len(self._parts[split])
            indices = np.unique(np.linspace(0, count - 1, min(count, _DIGEST_SAMPLES)).astype(np.int64))
            inputs, targets = self.batch(indices, split)
            total.update(f"{split} {count} ".encode())
            for tensor in (inputs, targets):
                total.update(tensor.contiguous().view(torch.uint8).numpy().tobytes())
        return total.hexdigest()


def _count_parameters(name: str, network: object) -> int:
    """Return the number of parameters of a user's model. Raise TrainerError if it can't learn."""
    problem = ""
    if not isinstance(network, nn.Module):
        problem = f"model returns a {type(network).__name__}; it must return a torch.nn.Module"
    elif any(isinstance(parameter, UninitializedParameter) for parameter in network.parameters()):
        problem = "model has a lazy module; it must create all parameters with their shapes"
    elif not any(parameter.requires_grad for parameter in network.parameters()):
        problem = "model has no parameter with requires_grad; at least one must learn"
    if problem:
        raise TrainerError(Exit.CONFIGURATION, f"workload {name}: {problem}")
    return sum(parameter.numel() for parameter in cast(nn.Module, network).parameters())


class _WithLoss(nn.Module):
    """A model whose `forward` returns the summed loss, as the training loop needs it (`trainer.workloads.Workload`)."""

    def __init__(
        self,
        network: nn.Module,
        loss: Callable[[Any, Any], Tensor],
        correct: Callable[[Any, Any], Tensor | float] | None,
    ) -> None:
        super().__init__()
        self.network = network
        self._loss, self._correct = loss, correct

    @property
    def blocks(self) -> object:
        """The user's `model.blocks`, which `trainer.parallel.distribute` shards separately; None if there are none."""
        return getattr(self.network, "blocks", None)

    def forward(self, inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        outputs = self.network(inputs)
        count = len(targets)
        # The mean of nothing is NaN. The zero depends on all weights, whose gradients are exchanged.
        loss = self._mean_loss(outputs, targets) * count if count else outputs.float().sum()
        correct = self._correct(outputs, targets) if self._correct and count else 0
        return with_sums(loss, torch.as_tensor(correct, dtype=torch.float64, device=loss.device), count)

    def _mean_loss(self, outputs: Any, targets: Tensor) -> Tensor:
        loss = self._loss(outputs, targets)
        if not isinstance(loss, Tensor) or loss.dim():
            what = f"tensor of shape {list(loss.shape)}" if isinstance(loss, Tensor) else type(loss).__name__
            raise TrainerError(
                Exit.CONFIGURATION,
                f"workload: loss returned a {what}; it must return the mean of the batch, a tensor without dimensions",
            )
        return loss.float()


def load(place: str, data: str) -> Workload:
    """Load the workload of `package.module:function` with the value of `--data`.

    Raises:
        TrainerError: There is no such function, or it does not return a workload. Other errors of the module and the
            function stay as they are, because their stack traces show the line.
    """
    module, _, function = place.partition(":")
    problem, found = "", None
    try:
        found = importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise  # the module imports another one, which is missing
        problem = str(error)
    create = getattr(found, function, None)
    if found is not None and not callable(create):
        problem = f"module {module!r} has no function {function!r}"
    if problem:
        raise TrainerError(
            Exit.CONFIGURATION,
            f"workload: {place!r}: {problem}. It must be package.module:function, importable in the working directory "
            "or by PYTHONPATH",
        )
    assert create is not None  # noqa: S101 - callable
    workload = create(data)
    if not isinstance(workload, CustomWorkload):
        raise TrainerError(
            Exit.CONFIGURATION,
            f"workload: {place!r} returned a {type(workload).__name__}; it must return a "
            "trainer.workloads.custom.CustomWorkload",
        )
    return workload
