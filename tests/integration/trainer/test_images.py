"""Digits, IDX files, their network, and the errors for missing and damaged files."""

from __future__ import annotations

import gzip
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.flop_counter import FlopCounterMode

from tests.integration.trainer.conftest import ROOT
from trainer.contract import Exit, TrainerError
from trainer.workloads.images import MNIST_FILES, ImageClassification, load, stratified_split

pytestmark = pytest.mark.trainer

LAYERS = ("features.0", "features.3", "classifier.1", "classifier.3")
FIRST_WEIGHTS = [-0.33049100637435913, -0.2629537582397461]
DIGEST = "adf5a90f6611629ddfa29d3efd099a3bd60bdf0c8c753bd9756513a9ff401bd5"


@pytest.fixture(scope="module")
def digits() -> ImageClassification:
    return load("digits")


def idx(array: np.ndarray) -> bytes:
    header = bytes((0, 0, 8, array.ndim)) + struct.pack(f">{array.ndim}I", *array.shape)
    return header + array.astype(np.uint8).tobytes()


@pytest.fixture
def mnist(tmp_path: Path) -> Path:
    """Thirty training and ten test images of random pixels, in MNIST's format."""
    random = np.random.default_rng(0)
    for count, (images, labels) in ((30, MNIST_FILES[:2]), (10, MNIST_FILES[2:])):
        (tmp_path / images).write_bytes(idx(random.integers(0, 256, (count, 28, 28))))
        (tmp_path / labels).write_bytes(idx(np.arange(count) % 10))
    return tmp_path


def load_error(source: str) -> str:
    with pytest.raises(TrainerError) as caught:
        load(source)
    assert caught.value.code == Exit.DATA
    return str(caught.value)


def test_digits_are_complete_and_split_by_class(digits: ImageClassification) -> None:
    pixels, train_labels = digits.parts["train"]
    _, test_labels = digits.parts["test"]
    # The number of images per class, from the dataset's description.
    count = np.bincount(train_labels) + np.bincount(test_labels)
    assert count.tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]
    assert np.bincount(test_labels) / count == pytest.approx(np.full(10, 0.2), abs=0.01)
    assert pixels.max() == digits.white == 16
    sizes = {"train": 1438, "test": 359, "imageSize": 8}
    assert digits.describe() == {"source": "digits", "sha256": DIGEST, **sizes}
    assert (digits.train_samples, digits.test_samples, digits.units_per_sample) == (1438, 359, 1)


@given(st.lists(st.integers(0, 9), min_size=1, max_size=200), st.integers(0, 2**32))
def test_split_puts_every_index_on_exactly_one_side(labels: list[int], seed: int) -> None:
    train, test = stratified_split(np.array(labels, np.uint8), 0.2, seed)
    assert sorted([*train.tolist(), *test.tolist()]) == list(range(len(labels)))


def test_mnist_files_load_plain_and_gzipped(mnist: Path) -> None:
    plain = load(str(mnist))
    assert (plain.train_samples, plain.test_samples, plain.image_size, plain.white) == (30, 10, 28, 255)
    assert plain.parts["train"][1].tolist() == [index % 10 for index in range(30)]
    for name in MNIST_FILES:
        (mnist / f"{name}.gz").write_bytes(gzip.compress((mnist / name).read_bytes()))
        (mnist / name).unlink()
    assert load(str(mnist)).digest == plain.digest


def test_changed_pixel_changes_the_digest(mnist: Path) -> None:
    before = load(str(mnist)).digest
    raw = bytearray((mnist / MNIST_FILES[2]).read_bytes())
    raw[-1] ^= 1
    (mnist / MNIST_FILES[2]).write_bytes(raw)
    assert load(str(mnist)).digest != before


def test_missing_file_is_named(mnist: Path) -> None:
    (mnist / MNIST_FILES[3]).unlink()
    assert f"{mnist / MNIST_FILES[3]} is missing, and so is {MNIST_FILES[3]}.gz" in load_error(str(mnist))


@pytest.mark.parametrize(
    ("file", "damage", "reason"),
    [
        (0, lambda raw: b"", "begins with nothing; an IDX file of bytes must begin with 00000803"),
        (0, lambda raw: raw[:10], "must begin with 00000803"),
        (0, lambda raw: raw[:-1], "is damaged: 23519 bytes of values; its header says 30 x 28 x 28"),
        (1, lambda raw: raw + b"\0", "is damaged: 31 bytes of values; its header says 30"),
        (
            1,
            lambda raw: b"\0\0\x0d\x01" + raw[4:],
            "begins with 00000d01; an IDX file of bytes must begin with 00000801",
        ),
        (0, lambda raw: idx(np.zeros((30, 28, 27))), "has images of 28 x 27; they must be squares"),
        (0, lambda raw: idx(np.zeros((29, 28, 28))), "has 29 images and"),
        (0, lambda raw: idx(np.zeros((30, 12, 12))), "have images of different sizes"),
        (1, lambda raw: raw[:-1] + b"\x0a", "has the label 10; it must be 0 to 9"),
    ],
)
def test_damaged_file_is_named_with_found_and_expected(
    mnist: Path, file: int, damage: Callable[[bytes], bytes], reason: str
) -> None:
    path = mnist / MNIST_FILES[file]
    path.write_bytes(damage(path.read_bytes()))
    message = load_error(str(mnist))
    assert str(path) in message
    assert reason in message


@pytest.mark.parametrize(
    "damage", [lambda raw: raw[:-9], lambda raw: b"no gzip", lambda raw: raw[:20] + b"\xff" * 20]
)
def test_damaged_gzip_file_is_named(mnist: Path, damage: Callable[[bytes], bytes]) -> None:
    path = mnist / f"{MNIST_FILES[0]}.gz"
    path.write_bytes(damage(gzip.compress((mnist / MNIST_FILES[0]).read_bytes())))
    (mnist / MNIST_FILES[0]).unlink()
    assert f"{path} is damaged" in load_error(str(mnist))


def test_batch_has_the_pixels_and_labels_of_its_indices(digits: ImageClassification) -> None:
    for split, part in digits.parts.items():
        pixels, labels = digits.batch(np.array([5, 3, 5]), split)  # type: ignore[arg-type]
        assert pixels.dtype == torch.uint8
        assert torch.equal(pixels, torch.from_numpy(part[0][[5, 3, 5]]))
        assert labels.dtype == torch.int64
        assert labels.tolist() == part[1][[5, 3, 5]].tolist()
    pixels.zero_()  # a batch does not share memory with the data
    assert digits.batch(np.array([5]), "test")[0].any()


def test_weights_are_bitwise_those_of_the_first_release(digits: ImageClassification) -> None:
    torch.manual_seed(3)
    before = torch.get_rng_state()
    load("digits")  # draws no random numbers
    assert torch.equal(torch.get_rng_state(), before)
    ours = digits.model().state_dict()
    assert list(ours) == [f"{part}.{end}" for part in LAYERS for end in ("weight", "bias")]
    # The weights of the first release with this seed.
    assert ours["features.0.weight"].flatten()[:2].tolist() == FIRST_WEIGHTS
    assert digits.parameters == sum(each.numel() for each in ours.values())


@pytest.mark.parametrize("training", [True, False])
def test_loss_and_sums_match_the_scores(digits: ImageClassification, training: bool) -> None:
    network = digits.model().train(training)
    pixels, labels = digits.batch(np.arange(40), "train")
    loss, sums = network(pixels, labels)
    scores = network.scores(pixels[:, None].float() / 16)  # the digits' white
    assert torch.equal(loss, F.cross_entropy(scores, labels, reduction="sum"))
    assert sums.dtype == torch.float64
    assert sums.tolist() == [loss.item(), int((scores.argmax(1) == labels).sum()), 40]
    assert not sums.requires_grad


def test_operations_match_torch_and_weights_match_the_page(mnist: Path) -> None:
    page = (ROOT / "docs" / "workloads.md").read_text()
    for workload in (load("digits"), load(str(mnist))):
        assert f" {workload.parameters:,} " in page
        with FlopCounterMode(display=False) as counter:
            workload.model()(*workload.batch(np.arange(1), "train"))
        assert workload.flops_per_sample == 3 * counter.get_total_flops()
