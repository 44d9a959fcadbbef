"""Models with their data: the interface `Workload`, and `load`, which chooses one.

Each workload is one file. This module needs neither torch nor numpy before `load`, so that settings can be checked
without them.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

from trainer.contract import Exit, TrainerError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor, nn

# Data that is part of the trainer: the digits of scikit-learn, and a book of 144 KB.
DIGITS = "digits"
CORPUS = "corpus"
CORPUS_DIRECTORY = Path(__file__).parents[1] / "corpus"
TRAIN_TOKENS, TEST_TOKENS = "train.bin", "val.bin"  # nanoGPT's names

IMAGE_MODELS = ("convnet",)
TOKEN_MODELS = ("gpt-tiny", "gpt-124M", "gpt-350M", "gpt-774M", "gpt-1558M")
MODELS = IMAGE_MODELS + TOKEN_MODELS

Split = Literal["train", "test"]


class Workload(Protocol):
    """A data set and a model for it. All members are the same in every process.

    `model()` returns a module. Its `forward(inputs, targets)` takes the result of `batch`, on the device of the model.
    It returns the summed loss and a float64 tensor of three sums: loss, correct units, units. It must not wait for the
    device. It returns sums instead of means, because processes have unequal shares and sums over processes are exact.
    """

    name: str  # of the model: one of MODELS, or that of a user's workload
    unit: Literal["samples", "tokens"]  # of loss and accuracy
    units_per_sample: int  # 1 for images, the sequence length for tokens
    train_samples: int
    test_samples: int
    source: str  # the data, as in the settings
    digest: str  # a hash of the data, 64 hexadecimal digits
    parameters: int  # the number of parameters of the model
    flops_per_sample: int  # of the forward and backward pass of one sample; a multiply-add is two

    def model(self) -> nn.Module:
        """Create a model on the CPU. Its weights only depend on torch's random state."""
        ...

    def batch(self, indices: NDArray[np.int64], split: Split) -> tuple[Tensor, Tensor]:
        """Return a copy of the inputs and targets of these samples, on the CPU. Raise TrainerError."""
        ...

    def describe(self) -> dict[str, Any]:
        """Describe the data for the log and for the metadata of the model."""
        ...


def load(data: str, model: str | None = None, sequence: int | None = None) -> Workload:
    """Load `data`: `digits`, `corpus` or a directory. Without a model or a sequence length, the default is used.

    Raises:
        TrainerError: The data can't be read (Exit.DATA), or the model does not support it (Exit.CONFIGURATION).
    """
    tokens = has_tokens(data)
    models = TOKEN_MODELS if tokens else IMAGE_MODELS
    if model is not None and model not in models:
        kind = "tokens" if tokens else "images"
        raise TrainerError(
            Exit.CONFIGURATION,
            f"model: {model!r} cannot learn from {data!r}, which has {kind}. Use {' or '.join(models)}",
        )
    if not tokens and sequence is not None:
        raise TrainerError(
            Exit.CONFIGURATION,
            f"sequence length: {sequence} is set, but {data!r} has images. Remove the option",
        )
    if tokens:
        from trainer.workloads import gpt

        return gpt.load(data, model or ("gpt-tiny" if data == CORPUS else "gpt-124M"), sequence)
    from trainer.workloads import images

    return images.load(data)


def has_tokens(data: str) -> bool:
    """Return whether `data` has tokens instead of images. Raise TrainerError if it has neither."""
    if data in (DIGITS, CORPUS):
        return data == CORPUS
    directory = Path(data)
    try:
        if directory.is_dir():
            return any((directory / name).exists() for name in (TRAIN_TOKENS, TEST_TOKENS))
        problem = "is not a directory"
    except OSError as error:  # no permission, or the file system is gone
        problem = f"cannot be read: {error.strerror or error}"
    raise TrainerError(
        Exit.DATA,
        f"data: {directory} {problem}; it must be {DIGITS!r}, {CORPUS!r}, or a directory with MNIST's IDX files "
        f"or with {TRAIN_TOKENS} and {TEST_TOKENS}",
    )
