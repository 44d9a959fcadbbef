"""A language model: GPT-2 and token files in the format of nanoGPT.

The network is from "Language Models are Unsupervised Multitask Learners" (Radford et al., 2019) and its code
(github.com/openai/gpt-2, src/model.py), without dropout. The files train.bin and val.bin of
github.com/karpathy/nanoGPT only have token numbers. They are mapped, so that they may be larger than the memory.
"""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray
from torch import Tensor, nn

from trainer.contract import Exit, TrainerError
from trainer.workloads import CORPUS, CORPUS_DIRECTORY, TEST_TOKENS, TRAIN_TOKENS, Split
from trainer.workloads.loss import cross_entropy, with_sums

META = "meta.json"
# Always little-endian.
DTYPES: dict[str, np.dtype[Any]] = {
    "uint8": np.dtype("u1"),
    "uint16": np.dtype("<u2"),
    "uint32": np.dtype("<u4"),
}
# The default without a meta.json: GPT-2's, which nanoGPT's prepare.py writes.
GPT2_DTYPE, GPT2_VOCABULARY = "uint16", 50257
# The rows of the embedding are a multiple of this, which tensor cores need: 50257 becomes 50304.
VOCABULARY_MULTIPLE = 64
# A larger file may have tens of gigabytes. At the start, only this number of evenly spaced blocks of it is read.
BLOCK_BYTES, BLOCKS = 65536, 1024

Tokens = NDArray[Any]


@dataclass(frozen=True)
class Shape:
    """Layers, attention heads, width of the token vectors, and sequence length."""

    layers: int
    heads: int
    width: int
    sequence: int


# Radford et al., table 2, by the sizes of the published models. Each head has 64 dimensions.
PRESETS = {
    "gpt-tiny": Shape(layers=2, heads=2, width=64, sequence=64),  # for tests and a first run on a CPU
    "gpt-124M": Shape(layers=12, heads=12, width=768, sequence=1024),
    "gpt-350M": Shape(layers=24, heads=16, width=1024, sequence=1024),
    "gpt-774M": Shape(layers=36, heads=20, width=1280, sequence=1024),
    "gpt-1558M": Shape(layers=48, heads=25, width=1600, sequence=1024),
}


class Attention(nn.Module):
    """Causal self-attention."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.heads = shape.heads
        self.qkv = nn.Linear(shape.width, 3 * shape.width)
        self.output = nn.Linear(shape.width, shape.width)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        query, key, value = (
            part.view(batch, length, self.heads, width // self.heads).transpose(1, 2)
            for part in self.qkv(x).split(width, dim=2)
        )
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        out: Tensor = self.output(mixed.transpose(1, 2).reshape(batch, length, width))
        return out


class Block(nn.Module):
    """Attention, then an MLP for each token, both with a residual connection."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(shape.width)
        self.attention = Attention(shape)
        self.mlp_norm = nn.LayerNorm(shape.width)
        self.mlp = nn.Sequential(
            nn.Linear(shape.width, 4 * shape.width),
            nn.GELU(approximate="tanh"),
            nn.Linear(4 * shape.width, shape.width),
        )

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x))
        out: Tensor = x + self.mlp(self.mlp_norm(x))
        return out


class GPT(nn.Module):
    """GPT-2. `vocabulary` is the number of rows of the embedding, which is tied to the output layer."""

    def __init__(self, shape: Shape, vocabulary: int) -> None:
        super().__init__()
        self.embedding = empty_embedding(vocabulary, shape.width)
        self.positions = empty_embedding(shape.sequence, shape.width)
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.layers))
        self.norm = nn.LayerNorm(shape.width)

    def initialise(self) -> None:
        """Initialise all weights: normal with 0.02, smaller in residual projections; biases are 0."""
        for name, module in self.named_modules():
            if isinstance(module, nn.LayerNorm):
                module.reset_parameters()
            elif isinstance(module, nn.Linear | nn.Embedding):
                is_residual = name.endswith(("attention.output", "mlp.2"))
                deviation = 0.02 / math.sqrt(2 * len(self.blocks)) if is_residual else 0.02
                nn.init.normal_(module.weight, std=deviation)
                if isinstance(module, nn.Linear):
                    nn.init.zeros_(module.bias)

    def forward(self, tokens: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Return the summed loss of targets (n, length) for tokens (n, length), and (loss, correct, tokens) as float64.

        `correct` is only counted in evaluations and is 0 in training, because it would read all scores again.
        """
        return self.compute_loss(self.scores(tokens), targets)

    def compute_loss(self, scores: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Return the result of `forward` for scores (n, length, vocabulary)."""
        scores, targets = scores.flatten(0, 1), targets.flatten()
        loss = cross_entropy(scores, targets)
        correct = (scores.argmax(1) == targets).sum() if not self.training else torch.zeros_like(loss)
        return with_sums(loss, correct, targets.numel())

    def scores(self, tokens: Tensor) -> Tensor:
        """Return the scores (n, length, vocabulary) of the token after each of tokens (n, length)."""
        places = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.embedding(tokens) + self.positions(places)
        for block in self.blocks:
            x = block(x)
        return F.linear(self.norm(x), self.embedding.weight)


def empty_embedding(rows: int, width: int) -> nn.Embedding:
    """Return an embedding without initial values. The default initialisation on the meta device takes seconds."""
    made: nn.Embedding = nn.Embedding.from_pretrained(torch.empty(rows, width), freeze=False)  # type: ignore[no-untyped-call]
    return made


def flops_per_token(parameters: int, shape: Shape) -> int:
    """Return the FLOPs of forward and backward pass, as in nanoGPT: 6 N + 12 L H Q T, N without position embedding.

    The formula is from appendix B of PaLM (Chowdhery et al., 2022, arxiv.org/abs/2204.02311).
    """
    weights = parameters - shape.sequence * shape.width
    return 6 * weights + 12 * shape.layers * shape.width * shape.sequence  # H Q is the width


@dataclass(frozen=True, eq=False)
class TokenFile:
    """The tokens of one file as samples: sample i is tokens i T to i T + T, the last one only as a target."""

    path: Path
    tokens: Tokens
    vocabulary: int
    sequence: int

    @property
    def samples(self) -> int:
        """The number of whole samples. Up to T tokens at the end are not used."""
        return (len(self.tokens) - 1) // self.sequence

    def rows(self, indices: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return a copy of the T + 1 tokens of each sample. Raise TrainerError for one outside the vocabulary."""
        rows = sliding_window_view(self.tokens, self.sequence + 1)[:: self.sequence][indices]
        if rows.size and rows.max() >= self.vocabulary:
            row, column = np.argwhere(rows >= self.vocabulary)[0]
            raise self._bad_token(int(indices[row]) * self.sequence + int(column))
        return rows.astype(np.int64)

    def examine(self, total: Any) -> None:
        """Add the file to the hash `total`. Raise TrainerError for a token outside the vocabulary.

        Of a file above 64 MiB, this reads the length and evenly spaced blocks; `rows` checks each token that is used.
        """
        dtype, count = self.tokens.dtype, len(self.tokens)
        total.update(f"{dtype.name} {count} ".encode())
        for start, size in blocks(count, dtype.itemsize):
            # Read instead of map: one call per block, instead of a page fault for each few kilobytes.
            block = np.fromfile(self.path, dtype, size, offset=start * dtype.itemsize)
            if block.max() >= self.vocabulary:
                raise self._bad_token(start + int(np.argmax(block >= self.vocabulary)))
            total.update(block.tobytes())

    def _bad_token(self, position: int) -> TrainerError:
        return TrainerError(
            Exit.DATA,
            f"data: {self.path} has the token {self.tokens[position]} at position {position}; "
            f"it must be 0 to {self.vocabulary - 1}. Correct the file, or set vocabulary in {META}",
        )


def blocks(count: int, itemsize: int) -> list[tuple[int, int]]:
    """Return start and length, in tokens, of the blocks to examine: all `count` tokens, or evenly spaced blocks."""
    size = BLOCK_BYTES // itemsize
    if math.ceil(count / size) <= BLOCKS:
        return [(start, min(size, count - start)) for start in range(0, count, size)]
    return [((count - size) * number // (BLOCKS - 1), size) for number in range(BLOCKS)]


class LanguageModel:
    """A `trainer.workloads.Workload`: predict the next token."""

    unit: Literal["samples", "tokens"] = "tokens"

    def __init__(
        self, name: str, shape: Shape, source: str, train: TokenFile, test: TokenFile, digest: str
    ) -> None:
        self.name, self.shape, self.source = name, shape, source
        self._parts = {"train": train, "test": test}
        self.units_per_sample = shape.sequence
        self.train_samples, self.test_samples = train.samples, test.samples
        self.digest = digest
        self.vocabulary = train.vocabulary
        with torch.device("meta"):  # only shapes: no memory, no random numbers
            self.parameters = sum(parameter.numel() for parameter in self._network().parameters())
        self.flops_per_sample = shape.sequence * flops_per_token(self.parameters, shape)

    def _network(self) -> GPT:
        return GPT(self.shape, math.ceil(self.vocabulary / VOCABULARY_MULTIPLE) * VOCABULARY_MULTIPLE)

    def model(self) -> GPT:
        with torch.device("meta"):  # without the default initialisation of each layer
            network = self._network()
        network.to_empty(device="cpu")
        network.initialise()
        return network

    def batch(self, indices: NDArray[np.int64], split: Split) -> tuple[Tensor, Tensor]:
        """Return tokens (n, T) and the token after each (n, T), as int64. Raise TrainerError for an invalid token."""
        rows = self._parts[split].rows(indices)
        inputs, targets = np.ascontiguousarray(rows[:, :-1]), np.ascontiguousarray(rows[:, 1:])
        return torch.from_numpy(inputs), torch.from_numpy(targets)

    def describe(self) -> dict[str, Any]:
        return {
            "source": self.source,
            "sha256": self.digest,
            "train": self.train_samples,
            "test": self.test_samples,
            "sequence": self.shape.sequence,
            "vocabulary": self.vocabulary,
        }


def load(source: str, model: str, sequence: int | None = None) -> LanguageModel:
    """Load the tokens of `source`, `corpus` or a directory, for one of PRESETS. Raise TrainerError on a failure."""
    shape = PRESETS[model] if sequence is None else replace(PRESETS[model], sequence=sequence)
    directory = CORPUS_DIRECTORY if source == CORPUS else Path(source)
    try:
        dtype, vocabulary = read_meta(directory)
        train, test = (
            open_tokens(directory / name, dtype, vocabulary, shape.sequence)
            for name in (TRAIN_TOKENS, TEST_TOKENS)
        )
        total = hashlib.sha256()
        for part in (train, test):
            part.examine(total)
    except (OSError, ValueError) as error:
        raise TrainerError(Exit.DATA, f"data: {error}") from error
    return LanguageModel(model, shape, source, train, test, total.hexdigest())


def read_meta(directory: Path) -> tuple[np.dtype[Any], int]:
    """Read dtype and vocabulary from meta.json, or return those of GPT-2. Raise ValueError if the file is invalid."""
    file = directory / META
    if not file.exists():
        return DTYPES[GPT2_DTYPE], GPT2_VOCABULARY
    try:
        document = json.loads(file.read_bytes())
    except ValueError as error:
        raise ValueError(f"{file} is not JSON: {error}") from error
    if not isinstance(document, dict):
        raise ValueError(f'{file} must be an object such as {{"dtype": "uint16", "vocabulary": 50257}}')
    name = document.get("dtype", GPT2_DTYPE)
    if not isinstance(name, str) or name not in DTYPES:
        raise ValueError(f"{file}: dtype is {name!r}; it must be {', '.join(DTYPES)}")
    maximum = 2 ** (8 * DTYPES[name].itemsize)
    vocabulary = document.get("vocabulary", min(maximum, GPT2_VOCABULARY))
    if not isinstance(vocabulary, int) or not 1 < vocabulary <= maximum:
        raise ValueError(f"{file}: vocabulary is {vocabulary!r}; it must be 2 to {maximum} for {name}")
    return DTYPES[name], vocabulary


def open_tokens(file: Path, dtype: np.dtype[Any], vocabulary: int, sequence: int) -> TokenFile:
    """Map a file of tokens. Raise ValueError if it is missing, truncated or too small."""
    if not file.is_file():
        raise ValueError(f"{file} is missing")
    size = file.stat().st_size
    if size % dtype.itemsize:
        raise ValueError(
            f"{file} is damaged: {size} bytes is not a multiple of {dtype.itemsize}, the size of {dtype.name}"
        )
    if size // dtype.itemsize <= sequence:
        raise ValueError(
            f"{file} has {size // dtype.itemsize} tokens; it must have at least {sequence + 1}, "
            f"one sample of {sequence} and the token after it"
        )
    # A plain array, because slices of numpy's memmap class are slower.
    return TokenFile(file, np.asarray(np.memmap(file, dtype, mode="r")), vocabulary, sequence)
