"""The settings' minimum GPU capability is that of the trainer's torch build."""

from __future__ import annotations

import re

import pytest
import torch

from components.documents import instance_types

pytestmark = pytest.mark.trainer


def test_minimum_capability_is_that_of_the_torch_build() -> None:
    if torch.version.cuda is None:
        pytest.skip("a torch without CUDA names no architecture")
    # torch.cuda.get_arch_list() returns the same, but only on a node with a GPU.
    names = re.findall(r"sm_(\d+)(\d)", torch._C._cuda_getArchFlags())
    assert min((int(major), int(minor)) for major, minor in names) == instance_types.TORCH_MINIMUM_CAPABILITY
