"""Image classification: scikit-learn's handwritten digits or MNIST, and a small convolutional network.

The digits are the 1797 images of 8 by 8 pixels in scikit-learn (from the UCI data set "Optical Recognition of
Handwritten Digits"). MNIST is four IDX files, plain or gzipped; http://yann.lecun.com/exdb/mnist/ has the format.
"""

from __future__ import annotations

import gzip
import hashlib
import math
import struct
import zlib
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from trainer.contract import Exit, TrainerError
from trainer.workloads import DIGITS, Split
from trainer.workloads.loss import cross_entropy, with_sums

CLASSES = 10
TEST_SHARE = 0.2
# The split does not depend on the run: runs with different seeds are evaluated on the same test images.
SPLIT_SEED = 0
UNSIGNED_BYTE = 0x08  # the only data type in MNIST
MNIST_FILES = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)

Bytes = NDArray[np.uint8]
Images = tuple[Bytes, Bytes]  # pixels (count, size, size) and labels (count)


def load(source: str) -> ImageClassification:
    """Load the images of `source`: `digits` or a directory. Raise TrainerError if they can't be read."""
    try:
        return load_digits() if source == DIGITS else load_mnist(Path(source))
    except (OSError, EOFError, zlib.error, ValueError) as error:
        raise TrainerError(Exit.DATA, f"data: {error}") from error


def load_digits() -> ImageClassification:
    """Read the digits file of scikit-learn directly: the import of sklearn.datasets takes seconds and needs scipy."""
    found = find_spec("sklearn")
    if found is None or not found.submodule_search_locations:
        raise ValueError("digits: the package scikit-learn is not installed. Install it")
    file = Path(found.submodule_search_locations[0], "datasets", "data", "digits.csv.gz")
    with gzip.open(file, "rt") as lines:
        table = np.loadtxt(lines, delimiter=",", dtype=np.uint8)
    pixels, labels = table[:, :-1].reshape(-1, 8, 8), table[:, -1]
    train, test = stratified_split(labels, TEST_SHARE, SPLIT_SEED)
    return ImageClassification(DIGITS, 16, (pixels[train], labels[train]), (pixels[test], labels[test]))


def stratified_split(labels: Bytes, share: float, seed: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the indices for training and for test: `share` of each class is for test."""
    random = np.random.default_rng(seed)
    train, test = [], []
    for label in np.unique(labels):
        members = random.permutation(np.flatnonzero(labels == label))
        cut = round(len(members) * share)
        test.append(members[:cut])
        train.append(members[cut:])
    return np.sort(np.concatenate(train)), np.sort(np.concatenate(test))


def load_mnist(directory: Path) -> ImageClassification:
    """Load the four files of MNIST in `directory`, each plain or with the suffix .gz."""
    files = [_find(directory, name) for name in MNIST_FILES]
    parts = []
    for images_file, labels_file in (files[:2], files[2:]):
        pixels, labels = read_idx(images_file, dimensions=3), read_idx(labels_file, dimensions=1)
        if len(pixels) != len(labels) or not len(labels):
            raise ValueError(
                f"{images_file} has {len(pixels)} images and {labels_file} has {len(labels)} labels"
            )
        if labels.max() >= CLASSES:
            raise ValueError(f"{labels_file} has the label {labels.max()}; it must be 0 to {CLASSES - 1}")
        if pixels.shape[1] != pixels.shape[2] or pixels.shape[1] < 8:
            height, width = pixels.shape[1:]
            raise ValueError(
                f"{images_file} has images of {height} x {width}; they must be squares of at least 8 x 8"
            )
        parts.append((pixels, labels))
    if parts[0][0].shape[1:] != parts[1][0].shape[1:]:
        raise ValueError(f"{files[0]} and {files[2]} have images of different sizes")
    return ImageClassification(str(directory), 255, *parts)


def _find(directory: Path, name: str) -> Path:
    for candidate in (name, f"{name}.gz"):
        if (directory / candidate).is_file():
            return directory / candidate
    raise ValueError(f"{directory / name} is missing, and so is {name}.gz")


def read_idx(file: Path, dimensions: int) -> Bytes:
    """Read an IDX file of bytes. Raise ValueError if the file is damaged or has another type."""
    try:
        raw = gzip.decompress(file.read_bytes()) if file.suffix == ".gz" else file.read_bytes()
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise ValueError(f"{file} is damaged: {error}") from error
    start = 4 + 4 * dimensions
    expected = bytes((0, 0, UNSIGNED_BYTE, dimensions))
    if len(raw) < start or raw[:4] != expected:
        raise ValueError(
            f"{file} begins with {raw[:4].hex() or 'nothing'}; an IDX file of bytes must begin with {expected.hex()}"
        )
    shape = struct.unpack(f">{dimensions}I", raw[4:start])
    if len(raw) - start != math.prod(shape):
        size = " x ".join(map(str, shape))
        raise ValueError(f"{file} is damaged: {len(raw) - start} bytes of values; its header says {size}")
    return np.frombuffer(raw, np.uint8, offset=start).reshape(shape)


class ConvNet(nn.Module):
    """Two 3 x 3 convolutions and two linear layers: 151 thousand weights at 8 x 8, 421 thousand at 28 x 28.

    It has no batch normalisation, so that the gradient of a global batch does not depend on the number of processes.
    """

    def __init__(self, image_size: int, classes: int, white: int) -> None:
        super().__init__()
        self.white = white
        pools = 1 if image_size < 16 else 2
        side = image_size // 2**pools
        self.features = nn.Sequential(
            nn.Conv2d(1, 32, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2) if pools == 2 else nn.Identity(),
            nn.Conv2d(32, 64, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
        )
        self.classifier = nn.Sequential(
            nn.Flatten(),
            nn.Linear(64 * side * side, 128),
            nn.ReLU(),
            nn.Linear(128, classes),
        )

    def forward(self, pixels: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Return the summed loss of images (n, size, size) of bytes, and (loss, correct, images) as float64."""
        scores = self.scores(pixels.unsqueeze(1).to(next(self.parameters()).dtype) / self.white)
        correct = (scores.argmax(1) == labels).sum()
        return with_sums(cross_entropy(scores, labels), correct, len(labels))

    def scores(self, images: Tensor) -> Tensor:
        """Return the scores (n, classes) of images (n, 1, size, size) from 0 to 1."""
        found: Tensor = self.classifier(self.features(images))
        return found


class ImageClassification:
    """A `trainer.workloads.Workload`: classify the digit in a grey image of bytes from 0 to `white`."""

    name = "convnet"
    unit: Literal["samples", "tokens"] = "samples"
    units_per_sample = 1

    def __init__(self, source: str, white: int, train: Images, test: Images) -> None:
        self.source, self.white = source, white
        self.parts = {"train": train, "test": test}
        self.image_size = int(train[0].shape[1])
        self.train_samples, self.test_samples = len(train[1]), len(test[1])
        total = hashlib.sha256()
        for pixels, labels in (train, test):
            total.update(repr(pixels.shape).encode())
            total.update(pixels.tobytes())
            total.update(labels.tobytes())
        self.digest = total.hexdigest()
        with torch.device("meta"):  # only shapes: no memory, no random numbers
            shapes = self.model()
            image = torch.empty(1, 1, self.image_size, self.image_size)
            with FlopCounterMode(display=False) as counter:
                shapes.scores(image)
        self.parameters = sum(parameter.numel() for parameter in shapes.parameters())
        # The backward pass counts as two forward passes: the gradients of the weights and of the inputs.
        self.flops_per_sample = 3 * counter.get_total_flops()

    def model(self) -> ConvNet:
        return ConvNet(self.image_size, CLASSES, self.white)

    def batch(self, indices: NDArray[np.int64], split: Split) -> tuple[Tensor, Tensor]:
        """Return the pixels (n, size, size) and labels (n) of these images."""
        pixels, labels = self.parts[split]
        return torch.from_numpy(pixels[indices]), torch.from_numpy(labels[indices].astype(np.int64))

    def describe(self) -> dict[str, Any]:
        return {
            "source": self.source,
            "sha256": self.digest,
            "train": self.train_samples,
            "test": self.test_samples,
            "imageSize": self.image_size,
        }
