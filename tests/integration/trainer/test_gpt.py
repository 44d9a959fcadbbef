"""The language model against a reference in numpy, the published sizes, and torch's counts of operations."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch.utils.flop_counter import FlopCounterMode

from tests.integration.trainer.conftest import ROOT
from trainer.workloads import TOKEN_MODELS, load
from trainer.workloads.gpt import GPT, PRESETS, LanguageModel, Shape, flops_per_token

pytestmark = pytest.mark.trainer

SMALL = Shape(layers=2, heads=3, width=24, sequence=10)
Array = NDArray[np.float64]


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Use one thread: small models are slower on several threads, above all on a busy machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def small() -> GPT:
    torch.manual_seed(0)
    network = GPT(SMALL, vocabulary=50).double()
    network.initialise()
    with torch.no_grad():  # change biases and norms, too, so that the test covers them
        for parameter in network.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return network


@pytest.fixture(scope="module")
def corpus() -> LanguageModel:
    workload = load("corpus")
    assert isinstance(workload, LanguageModel)
    return workload


def batch(*shape: int, vocabulary: int = 50) -> tuple[torch.Tensor, torch.Tensor]:
    random = torch.Generator().manual_seed(1)
    tokens = torch.randint(vocabulary, (shape[0], shape[1] + 1), generator=random)
    return tokens[:, :-1], tokens[:, 1:]


def reference(network: GPT, tokens: list[int]) -> Array:
    """Compute GPT-2's scores of one sequence, token by token and head by head."""
    state = {name: value.detach().double().numpy() for name, value in network.state_dict().items()}

    def norm(x: Array, name: str) -> Array:
        centred = x - x.mean(-1, keepdims=True)
        scaled = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5)
        return scaled * state[f"{name}.weight"] + state[f"{name}.bias"]

    def linear(x: Array, name: str) -> Array:
        return x @ state[f"{name}.weight"].T + state[f"{name}.bias"]

    x = state["embedding.weight"][tokens] + state["positions.weight"][: len(tokens)]
    for number in range(SMALL.layers):
        block = f"blocks.{number}"
        q, k, v = np.split(linear(norm(x, f"{block}.attention_norm"), f"{block}.attention.qkv"), 3, axis=1)
        seen, size = np.zeros_like(x), SMALL.width // SMALL.heads
        for head in range(SMALL.heads):
            own = slice(head * size, (head + 1) * size)
            for place in range(len(tokens)):
                weights = np.exp(k[: place + 1, own] @ q[place, own] / math.sqrt(size))
                seen[place, own] = weights / weights.sum() @ v[: place + 1, own]
        x = x + linear(seen, f"{block}.attention.output")
        hidden = linear(norm(x, f"{block}.mlp_norm"), f"{block}.mlp.0")
        gelu = hidden / 2 * (1 + np.tanh(math.sqrt(2 / math.pi) * (hidden + 0.044715 * hidden**3)))
        x = x + linear(gelu, f"{block}.mlp.2")
    return norm(x, "norm") @ state["embedding.weight"].T


def test_scores_and_loss_match_the_numpy_reference(small: GPT) -> None:
    inputs, targets = batch(2, 10)
    expected = np.stack([reference(small, row.tolist()) for row in inputs])
    np.testing.assert_allclose(small.scores(inputs).detach().numpy(), expected, rtol=1e-9, atol=1e-11)
    likelihood = expected - np.log(np.exp(expected).sum(-1, keepdims=True))
    loss = -np.take_along_axis(likelihood, targets.numpy()[..., None], -1).sum()
    correct = int((expected.argmax(-1) == targets.numpy()).sum())
    # The model's own predictions as targets, so that the count is not 0.
    named = torch.from_numpy(expected.argmax(-1))
    small.eval()
    found, sums = small(inputs, targets)
    assert found.item() == pytest.approx(loss, rel=1e-9)
    assert sums.tolist() == [found.item(), correct, 20]
    assert small(inputs, named)[1][1] == 20


def test_training_mode_skips_the_count_of_correct_tokens(small: GPT) -> None:
    inputs, targets = batch(2, 10)
    loss, sums = small.train()(inputs, targets)
    assert sums.dtype == torch.float64
    assert sums.tolist() == [loss.item(), 0, 20]
    assert loss.requires_grad
    assert not sums.requires_grad


@pytest.mark.parametrize(
    # The sizes of the published models: openai-community/gpt2, -medium, -large and -xl on huggingface.co.
    ("name", "parameters"),
    [
        ("gpt-124M", 124_439_808),
        ("gpt-350M", 354_823_168),
        ("gpt-774M", 774_030_080),
        ("gpt-1558M", 1_557_611_200),
    ],
)
def test_models_have_the_published_sizes(name: str, parameters: int) -> None:
    with torch.device("meta"):
        network = GPT(PRESETS[name], vocabulary=50257)
    assert sum(each.numel() for each in network.parameters()) == parameters


def test_every_model_of_the_settings_exists_and_is_documented() -> None:
    assert tuple(PRESETS) == TOKEN_MODELS
    page = (ROOT / "docs" / "workloads.md").read_text()
    for name, shape in PRESETS.items():
        with torch.device("meta"):
            network = GPT(shape, vocabulary=256 if name == "gpt-tiny" else 50304)
        weights = sum(each.numel() for each in network.parameters())
        row = f"| `{name}` | {shape.layers} | {shape.heads} | {shape.width} | {shape.sequence} | {weights:,} "
        assert row in page


def test_operations_match_nanogpt_and_are_close_to_torch() -> None:
    shape = PRESETS["gpt-124M"]
    with torch.device("meta"):
        network = GPT(shape, vocabulary=50304)
        tokens = torch.zeros((1, shape.sequence), dtype=torch.int64)
        with FlopCounterMode(display=False) as counter:
            network(tokens, tokens)[0].backward()
    parameters = sum(each.numel() for each in network.parameters())
    assert (
        f"{flops_per_token(parameters, shape):,} for `gpt-124M`" in (ROOT / "docs/workloads.md").read_text()
    )
    # 6 x 123,689,472 weights without positions, and 12 x 12 layers x 768 x 1024.
    assert flops_per_token(parameters, shape) == 742_136_832 + 113_246_208
    ratio = counter.get_total_flops() / (1024 * flops_per_token(parameters, shape))
    assert 0.97 < ratio < 1.06  # the count of attention depends on the kernel


def test_initial_weights_follow_gpt2(corpus: LanguageModel) -> None:
    torch.manual_seed(5)
    network = GPT(Shape(layers=8, heads=2, width=128, sequence=64), vocabulary=256)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.fill_(math.nan)  # as uninitialised memory
    network.initialise()
    for name, value in network.named_parameters():
        if name.endswith("bias"):
            assert not value.any(), name
        elif "norm" in name:
            assert (value == 1).all(), name
        else:
            adds = name.endswith(("attention.output.weight", "mlp.2.weight"))
            assert value.std().item() == pytest.approx(0.02 / 4 if adds else 0.02, rel=0.05), name


def test_new_model_depends_on_the_seed_only(corpus: LanguageModel) -> None:
    torch.manual_seed(1)
    before = torch.get_rng_state()
    first = load("corpus")
    assert torch.equal(torch.get_rng_state(), before)  # counting the weights draws no random numbers
    torch.manual_seed(1)
    one = first.model()
    torch.manual_seed(1)
    two = corpus.model()
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), two.parameters(), strict=True))
    assert sum(each.numel() for each in one.parameters()) == first.parameters
    assert len(one.state_dict()) == len(list(one.parameters()))  # the tied embedding appears once
    sums = one(*first.batch(np.arange(8), "train"))[1]
    assert sums[0] / sums[2] == pytest.approx(math.log(256), abs=0.05)


def test_few_steps_on_the_corpus_learn_byte_frequencies(corpus: LanguageModel) -> None:
    torch.manual_seed(0)
    network = corpus.model()
    optimizer = torch.optim.AdamW(network.parameters(), lr=0.001)
    for step in range(80):
        loss, sums = network(*corpus.batch(np.arange(step * 16, step * 16 + 16), "train"))
        (loss / sums[2].item()).backward()
        optimizer.step()
        optimizer.zero_grad()
    network.eval()
    with torch.no_grad():
        sums = network(*corpus.batch(np.arange(64), "test"))[1]
    counts = np.bincount(corpus.batch(np.arange(64), "test")[1].flatten().numpy())
    shares = counts[counts > 0] / counts.sum()
    # Better than a prediction from the byte frequencies of this text.
    assert sums[0] / sums[2] < -(shares * np.log(shares)).sum()
    assert sums[1] / sums[2] > shares.max()
