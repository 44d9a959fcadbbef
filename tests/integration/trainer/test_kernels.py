"""Which GPUs the trainer's torch is built for is what the settings take it to be."""

from __future__ import annotations

import re

import pytest
import torch

from components.documents import instance_types

pytestmark = pytest.mark.trainer


def test_the_least_capability_is_what_torch_says_itself() -> None:
    if torch.version.cuda is None:
        pytest.skip("a torch without CUDA names no architecture")
    # torch.cuda.get_arch_list() tells the same, but only where there is a GPU.
    names = re.findall(r"sm_(\d+)(\d)", torch._C._cuda_getArchFlags())
    assert min((int(major), int(minor)) for major, minor in names) == instance_types.TORCH_LEAST_CAPABILITY
