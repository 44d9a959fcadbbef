"""Which precision a device gets, and which it is refused."""

from __future__ import annotations

import pytest
import torch

from trainer import parallel
from trainer.contract import Exit, TrainerError
from trainer.parallel import FP32, check_build, choose, set_precision

pytestmark = pytest.mark.long


@pytest.mark.parametrize(
    ("name", "capability", "expected"),
    [
        ("Tesla V100-SXM2-32GB", (7, 0), "FP16"),
        ("Tesla T4", (7, 5), "FP16"),
        ("NVIDIA A100-SXM4-80GB", (8, 0), "BF16"),
        ("NVIDIA A10G", (8, 6), "BF16"),
        ("NVIDIA H100 80GB HBM3", (9, 0), "BF16"),
    ],
)
def test_the_compute_capability_chooses(name: str, capability: tuple[int, int], expected: str) -> None:
    assert choose("auto", "cuda", name, capability) == getattr(parallel, expected)
    assert choose("fp32", "cuda", name, capability) == FP32
    assert choose("fp16", "cuda", name, capability).scaled


def test_cpu_computes_in_fp32_by_default() -> None:
    device = torch.device("cpu")
    assert set_precision("auto", device) == FP32
    with set_precision("bf16", device).autocast(device):
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == torch.bfloat16
    with set_precision("auto", device).autocast(device):
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == torch.float32


def test_unsupported_precision_is_refused_with_the_right_one() -> None:
    with pytest.raises(
        TrainerError, match=r"^precision: bf16 needs .* Tesla T4 has 7\.5\. Use fp16"
    ) as error:
        choose("bf16", "cuda", "Tesla T4", (7, 5))
    assert error.value.code == Exit.CONFIGURATION
    with pytest.raises(TrainerError, match=r"^precision: fp16 needs a GPU"):
        choose("fp16", "cpu")


BUILT = ["sm_75", "sm_80", "sm_86", "sm_90a", "sm_100", "sm_120", "compute_120"]


@pytest.mark.parametrize(
    "capability", [(7, 5), (8, 0), (8, 6), (8, 9), (9, 0), (10, 0), (12, 0), (12, 1), (13, 0)]
)
def test_check_build_accepts_same_generation_and_portable_code(
    capability: tuple[int, int],
) -> None:
    check_build("some GPU", capability, BUILT)


@pytest.mark.parametrize("capability", [(7, 0), (6, 1), (11, 0)])
def test_a_gpu_that_the_build_has_no_code_for_is_named(capability: tuple[int, int]) -> None:
    with pytest.raises(
        TrainerError, match=r"some GPU has compute capability \d+\.\d, and torch .* sm_75"
    ) as error:
        check_build("some GPU", capability, BUILT)
    assert error.value.code == Exit.NO_CUDA
