"""A language model: GPT-2, and token files as nanoGPT has them.

The network is that of "Language Models are Unsupervised Multitask Learners" (Radford et al., 2019) and of its code
(github.com/openai/gpt-2, src/model.py), without dropout. The files are those of github.com/karpathy/nanoGPT: train.bin
and val.bin, numbers and nothing else. They are mapped, so that they may be larger than the memory.
"""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import dataclass
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

META = "meta.json"
# Little-endian, whatever machine reads them.
DTYPES: dict[str, np.dtype[Any]] = {
    "uint8": np.dtype("u1"),
    "uint16": np.dtype("<u2"),
    "uint32": np.dtype("<u4"),
}
# GPT-2's own, which is what nanoGPT's prepare.py writes: without a meta.json it is assumed.
GPT2_DTYPE, GPT2_VOCABULARY = "uint16", 50257
# Rows of the embedding come in multiples of this, so that tensor cores take the product with it: 50257 becomes 50304.
VOCABULARY_MULTIPLE = 64
# Of a larger file, at the start, this many blocks are read, evenly spaced: it may be tens of gigabytes.
BLOCK_BYTES, BLOCKS = 65536, 1024

Tokens = NDArray[Any]


@dataclass(frozen=True)
class Shape:
    """Layers, attention heads, width of a token's vector, and the tokens that the model sees at once."""

    layers: int
    heads: int
    width: int
    sequence: int


# Radford et al., table 2, by the sizes that the published models have. Each of their heads has 64 numbers.
PRESETS = {
    "gpt-tiny": Shape(layers=2, heads=2, width=64, sequence=64),  # for tests and a first run on a CPU
    "gpt-124M": Shape(layers=12, heads=12, width=768, sequence=1024),
    "gpt-350M": Shape(layers=24, heads=16, width=1024, sequence=1024),
    "gpt-774M": Shape(layers=36, heads=20, width=1280, sequence=1024),
    "gpt-1558M": Shape(layers=48, heads=25, width=1600, sequence=1024),
}


class Attention(nn.Module):
    """Each token looks at itself and at those before it."""

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
        seen = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        out: Tensor = self.output(seen.transpose(1, 2).reshape(batch, length, width))
        return out


class Block(nn.Module):
    """Attention, then two linear layers for each token, both added to what came in."""

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
    """GPT-2. `vocabulary` is the number of rows of the embedding, which also turns vectors into scores."""

    def __init__(self, shape: Shape, vocabulary: int) -> None:
        super().__init__()
        self.embedding = undrawn(vocabulary, shape.width)
        self.positions = undrawn(shape.sequence, shape.width)
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.layers))
        self.norm = nn.LayerNorm(shape.width)

    def initialise(self) -> None:
        """Draw every weight anew: normal with 0.02, less where a layer adds to the sum of all; biases are 0."""
        for name, module in self.named_modules():
            if isinstance(module, nn.LayerNorm):
                module.reset_parameters()
            elif isinstance(module, nn.Linear | nn.Embedding):
                adds = name.endswith(("attention.output", "mlp.2"))
                deviation = 0.02 / math.sqrt(2 * len(self.blocks)) if adds else 0.02
                nn.init.normal_(module.weight, std=deviation)
                if isinstance(module, nn.Linear):
                    nn.init.zeros_(module.bias)

    def forward(self, tokens: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Summed loss of targets (n, length) after tokens (n, length), and (loss, correct, tokens) as float64.

        What is named rightly is counted in evaluations alone and is 0 in training: it would read all scores again.
        """
        return self.judge(self.scores(tokens), targets)

    def judge(self, scores: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """What `forward` gives, of scores (n, length, vocabulary) that are there already."""
        scores, wanted = scores.flatten(0, 1), targets.flatten()
        # Autocast does this by itself, FSDP's mixed precision does not: a sum over a batch needs 32 bits.
        exact = scores.to(torch.promote_types(scores.dtype, torch.float32))
        loss = F.cross_entropy(exact, wanted, reduction="sum")
        correct = (scores.argmax(1) == wanted).sum() if not self.training else torch.zeros_like(loss)
        seen = torch.full((), wanted.numel(), dtype=torch.float64, device=loss.device)
        return loss, torch.stack([loss.detach().double(), correct.double(), seen])

    def scores(self, tokens: Tensor) -> Tensor:
        """Scores (n, length, vocabulary) of what comes after each of tokens (n, length)."""
        places = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.embedding(tokens) + self.positions(places)
        for block in self.blocks:
            x = block(x)
        return F.linear(self.norm(x), self.embedding.weight)


def undrawn(rows: int, width: int) -> nn.Embedding:
    """An embedding without numbers. Its default ones, on the meta device, import seconds of torch's Python."""
    made: nn.Embedding = nn.Embedding.from_pretrained(torch.empty(rows, width), freeze=False)  # type: ignore[no-untyped-call]
    return made


def flops_per_token(parameters: int, shape: Shape) -> int:
    """Of forward and backward pass, as nanoGPT counts it: 6 N + 12 L H Q T, N without the positions' embedding.

    The formula is that of PaLM's appendix B (Chowdhery et al., 2022, arxiv.org/abs/2204.02311).
    """
    weights = parameters - shape.sequence * shape.width
    return 6 * weights + 12 * shape.layers * shape.width * shape.sequence  # H Q is the width


@dataclass(frozen=True, eq=False)
class TokenFile:
    """The tokens of one file, cut into samples: sample i is tokens i T to i T + T, the last one as a target only."""

    path: Path
    tokens: Tokens
    vocabulary: int
    sequence: int

    @property
    def samples(self) -> int:
        """How many whole samples there are; up to T tokens at the end belong to none."""
        return (len(self.tokens) - 1) // self.sequence

    def rows(self, indices: NDArray[np.int64]) -> NDArray[np.int64]:
        """T + 1 tokens of each of these samples, a copy. Raises TrainerError for one outside the vocabulary."""
        rows = sliding_window_view(self.tokens, self.sequence + 1)[:: self.sequence][indices]
        if rows.size and rows.max() >= self.vocabulary:
            row, column = np.argwhere(rows >= self.vocabulary)[0]
            raise self._stranger(int(indices[row]) * self.sequence + int(column))
        return rows.astype(np.int64)

    def examine(self, total: Any) -> None:
        """Add the file to the hash `total`. Raises TrainerError for a token outside the vocabulary.

        Of a file above 64 MiB that is its length and evenly spaced blocks; `rows` looks at every token that is used.
        """
        dtype, count = self.tokens.dtype, len(self.tokens)
        total.update(f"{dtype.name} {count} ".encode())
        for start, size in blocks(count, dtype.itemsize):
            # Read, not mapped: one call for a block, where the map takes a page fault for each few kilobytes.
            block = np.fromfile(self.path, dtype, size, offset=start * dtype.itemsize)
            if block.max() >= self.vocabulary:
                raise self._stranger(start + int(np.argmax(block >= self.vocabulary)))
            total.update(block.tobytes())

    def _stranger(self, position: int) -> TrainerError:
        return TrainerError(
            Exit.DATA,
            f"data: {self.path} holds the token {self.tokens[position]} at position {position}; "
            f"expected 0 to {self.vocabulary - 1}, or a {META} that says otherwise",
        )


def blocks(count: int, itemsize: int) -> list[tuple[int, int]]:
    """Start and length, in tokens, of what is examined of `count` tokens: all of them, or evenly spaced blocks."""
    size = BLOCK_BYTES // itemsize
    if math.ceil(count / size) <= BLOCKS:
        return [(start, min(size, count - start)) for start in range(0, count, size)]
    return [((count - size) * number // (BLOCKS - 1), size) for number in range(BLOCKS)]


class LanguageModel:
    """The workload (`trainer.workloads.Workload`): name the next token."""

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
        with torch.device("meta"):  # shapes alone: no memory, no random numbers
            self.parameters = sum(parameter.numel() for parameter in self._network().parameters())
        self.flops_per_sample = shape.sequence * flops_per_token(self.parameters, shape)

    def _network(self) -> GPT:
        return GPT(self.shape, math.ceil(self.vocabulary / VOCABULARY_MULTIPLE) * VOCABULARY_MULTIPLE)

    def model(self) -> GPT:
        """A new network on the CPU."""
        with torch.device("meta"):  # so that each weight is drawn once, and not by its layer's default first
            network = self._network()
        network.to_empty(device="cpu")
        network.initialise()
        return network

    def batch(self, indices: NDArray[np.int64], split: Split) -> tuple[Tensor, Tensor]:
        """Tokens (n, T) and those that follow each (n, T), as int64. Raises TrainerError for one that cannot be."""
        rows = self._parts[split].rows(indices)
        inputs, targets = np.ascontiguousarray(rows[:, :-1]), np.ascontiguousarray(rows[:, 1:])
        return torch.from_numpy(inputs), torch.from_numpy(targets)

    def describe(self) -> dict[str, Any]:
        """Source, digest and sizes of the data."""
        return {
            "source": self.source,
            "sha256": self.digest,
            "train": self.train_samples,
            "test": self.test_samples,
            "sequence": self.shape.sequence,
            "vocabulary": self.vocabulary,
        }


def load(source: str, model: str, sequence: int | None = None) -> LanguageModel:
    """The tokens of `source`, `corpus` or a directory, for one of PRESETS. Raises TrainerError when it cannot be."""
    preset = PRESETS[model]
    shape = Shape(
        preset.layers, preset.heads, preset.width, preset.sequence if sequence is None else sequence
    )
    if shape.sequence < 1:
        raise TrainerError(Exit.CONFIGURATION, f"sequence length: {sequence} is less than 1")
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
    """Type and number of different tokens, as meta.json says them, or GPT-2's. Raises ValueError when it is wrong."""
    file = directory / META
    if not file.exists():
        return DTYPES[GPT2_DTYPE], GPT2_VOCABULARY
    try:
        said = json.loads(file.read_bytes())
    except ValueError as error:
        raise ValueError(f"{file} is not JSON: {error}") from error
    if not isinstance(said, dict):
        raise ValueError(f'{file} holds no object; expected {{"dtype": "uint16", "vocabulary": 50257}}')
    name = said.get("dtype", GPT2_DTYPE)
    if not isinstance(name, str) or name not in DTYPES:
        raise ValueError(f"{file}: dtype is {name!r}; expected {', '.join(DTYPES)}")
    most = 2 ** (8 * DTYPES[name].itemsize)
    vocabulary = said.get("vocabulary", min(most, GPT2_VOCABULARY))
    if not isinstance(vocabulary, int) or not 1 < vocabulary <= most:
        raise ValueError(f"{file}: vocabulary is {vocabulary!r}; expected 2 to {most}, as {name} can hold")
    return DTYPES[name], vocabulary


def open_tokens(file: Path, dtype: np.dtype[Any], vocabulary: int, sequence: int) -> TokenFile:
    """A file of tokens, mapped and not read. Raises ValueError when it is missing, cut off or too small."""
    if not file.is_file():
        raise ValueError(f"{file} is missing")
    size = file.stat().st_size
    if size % dtype.itemsize:
        raise ValueError(
            f"{file} is damaged: {size} bytes are no whole number of {dtype.name}, of {dtype.itemsize} bytes each"
        )
    if size // dtype.itemsize <= sequence:
        raise ValueError(
            f"{file} holds {size // dtype.itemsize} tokens; expected at least {sequence + 1}, "
            f"one sample of {sequence} and the token after it"
        )
    # A plain array over the map: numpy's own class for maps makes each slice dearer.
    return TokenFile(file, np.asarray(np.memmap(file, dtype, mode="r")), vocabulary, sequence)
