"""What can be trained: the one interface that the loop knows, and the choice among those who have it.

A workload is a data set and a model for it, in one file each. Needs neither torch nor numpy before `load`, so that
settings are checked without them.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

from trainer.contract import Exit, TrainerError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor, nn

# Data that comes with the trainer: scikit-learn's digits, and a book of 144 KB.
DIGITS = "digits"
CORPUS = "corpus"
CORPUS_DIRECTORY = Path(__file__).parents[1] / "corpus"
TRAIN_TOKENS, TEST_TOKENS = "train.bin", "val.bin"  # nanoGPT's names

IMAGE_MODELS = ("convnet",)
TOKEN_MODELS = ("gpt-tiny", "gpt-124M", "gpt-350M", "gpt-774M", "gpt-1558M")
MODELS = IMAGE_MODELS + TOKEN_MODELS

Split = Literal["train", "test"]


class Workload(Protocol):
    """A data set and a model for it. Everything here is the same in every process.

    `model()` returns a module whose `forward(inputs, targets)` takes what `batch` returns, on the model's device, and
    gives the summed loss of these samples and a float64 tensor of three sums: loss, units named rightly, units. It is
    whole, so that it can be compiled whole, and never waits for the device. Sums and not means: processes have unequal
    shares, and what adds up over them stays exact.
    """

    @property
    def name(self) -> str:
        """The model, one of MODELS."""
        ...

    @property
    def unit(self) -> Literal["samples", "tokens"]:
        """What loss and accuracy are counted over."""
        ...

    @property
    def units_per_sample(self) -> int:
        """1 for images, the sequence's length for tokens."""
        ...

    @property
    def train_samples(self) -> int: ...

    @property
    def test_samples(self) -> int: ...

    @property
    def source(self) -> str:
        """Where the data come from, as it was given."""
        ...

    @property
    def digest(self) -> str:
        """64 hexadecimal digits that other data do not have."""
        ...

    @property
    def parameters(self) -> int:
        """How many numbers the model learns."""
        ...

    @property
    def flops_per_sample(self) -> int:
        """Floating-point operations of one sample's forward and backward pass (a multiply-add is two)."""
        ...

    def model(self) -> nn.Module:
        """A new model on the CPU; its weights depend on torch's random state alone."""
        ...

    def batch(self, indices: NDArray[np.int64], split: Split) -> tuple[Tensor, Tensor]:
        """Inputs and targets of these samples, on the CPU, in memory of their own. Raises TrainerError."""
        ...

    def describe(self) -> dict[str, Any]:
        """The data for the log and for the model's metadata."""
        ...


def load(data: str, model: str | None = None, sequence: int | None = None) -> Workload:
    """The workload of `data` (`digits`, `corpus` or a directory) with `model`, one of MODELS, or the data's own.

    `sequence` is the length of a sample in tokens, for GPT models. Raises TrainerError: for data that cannot be read,
    with Exit.DATA; for a model that is unknown or not made for these data, with Exit.CONFIGURATION.
    """
    tokens = has_tokens(data)
    fitting = TOKEN_MODELS if tokens else IMAGE_MODELS
    if model is not None and model not in fitting:
        kind = "tokens" if tokens else "images"
        raise TrainerError(
            Exit.CONFIGURATION,
            f"model: {model!r} cannot learn from {data!r}, which holds {kind}; expected {' or '.join(fitting)}",
        )
    if not tokens and sequence is not None:
        raise TrainerError(
            Exit.CONFIGURATION, f"sequence length: {sequence}; {data!r} holds images, which have none"
        )
    if tokens:
        from trainer.workloads import gpt

        return gpt.load(data, model or ("gpt-tiny" if data == CORPUS else "gpt-124M"), sequence)
    from trainer.workloads import images

    return images.ImageClassification(images.load(data))


def has_tokens(data: str) -> bool:
    """Whether `data` names token files (else: images). Raises TrainerError when it names neither."""
    if data in (DIGITS, CORPUS):
        return data == CORPUS
    directory = Path(data)
    try:
        if directory.is_dir():
            return any((directory / name).exists() for name in (TRAIN_TOKENS, TEST_TOKENS))
        complaint = "is not a directory"
    except OSError as error:  # nobody may look there, or the file system is gone
        complaint = f"cannot be looked at: {error.strerror or error}"
    raise TrainerError(
        Exit.DATA,
        f"data: {directory} {complaint}; expected {DIGITS!r}, {CORPUS!r}, or a directory of MNIST's IDX "
        f"files or of {TRAIN_TOKENS} and {TEST_TOKENS}",
    )
