"""Pinned versions: digests and exact tags, with exceptions that docs/decisions justify."""

from __future__ import annotations

import re

import pytest

from components.documents import versions
from local.tools import OPTIONAL_TOOLS, TOOLS

PINS = {name: value for name, value in vars(versions).items() if name.isupper() and isinstance(value, str)}
# docs/decisions/0007: no published file names a digest of these.
BY_TAG = {
    "DEVICE_PLUGIN_IMAGE",
    "KUBECTL_DELIVERY_IMAGE",
    "KUBEFLOW_TRAINER_IMAGE",
    "NEURON_PLUGIN_IMAGE",
    "TRAINING_OPERATOR_IMAGE",
}
VERSION = r"v?[0-9]+(\.[0-9]+){1,3}"
# Images that are built from a commit.
OF_COMMIT = r"v1-[0-9a-f]{7,40}"


def images() -> dict[str, str]:
    """Return all image references except repositories, which have no version."""
    return {name: pin for name, pin in PINS.items() if name.endswith("_IMAGE") and name != "KARPENTER_IMAGE"}


@pytest.mark.parametrize(("name", "image"), images().items())
def test_an_image_has_its_digest_or_an_exact_tag(name: str, image: str) -> None:
    if name in BY_TAG:
        assert re.fullmatch(rf"[a-z0-9./-]+:({VERSION}|{OF_COMMIT})", image), image
    else:
        assert re.fullmatch(r"[a-z0-9./:-]+@sha256:[0-9a-f]{64}", image), image


def test_image_without_digest_is_a_known_exception() -> None:
    assert {name for name, image in images().items() if "@sha256:" not in image} == BY_TAG


@pytest.mark.parametrize("address", [pin for pin in PINS.values() if pin.startswith("https://")])
def test_repository_address_has_a_commit(address: str) -> None:
    assert re.search(r"\?ref=[0-9a-f]{40}$", address), address


@pytest.mark.parametrize("chart", [pin for pin in PINS.values() if pin.startswith("oci://")])
def test_chart_address_has_no_tag_and_an_exact_version(chart: str) -> None:
    assert re.fullmatch(r"oci://[a-z0-9.-]+(/[a-z0-9-]+)+(@sha256:[0-9a-f]{64})?", chart), chart
    assert re.fullmatch(r"[0-9]+\.[0-9]+\.[0-9]+", versions.KARPENTER)


def test_the_local_cloud_runs_what_stacks_pin() -> None:
    assert TOOLS["karpenter"].version == f"v{versions.KARPENTER}"
    assert TOOLS["training-operator"].version == versions.TRAINING_OPERATOR
    assert OPTIONAL_TOOLS["kubeflow-trainer"].version == versions.KUBEFLOW_TRAINER
    assert OPTIONAL_TOOLS["jobset"].version == versions.JOBSET
