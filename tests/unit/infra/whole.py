"""The whole program under mocks: each shipped stack file once in a process, for all test files that read it."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pulumi
import pytest

from components import operators
from infra import stack
from infra.foundation import Foundation
from infra.settings import Settings, read
from tests.unit.components.recording import Recorded, deploy
from tests.unit.infra.changing import NOW, stack_file

POD = {"spec": {"containers": [{"name": "training-operator", "image": "published"}]}}
# Stand-ins for the training operator's manifests, which are rendered elsewhere.
OPERATOR_OBJECTS: list[dict[str, Any]] = [
    {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "kubeflow"}},
    {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "training-operator", "namespace": "kubeflow"},
        "spec": {"template": POD},
    },
    *(
        {
            "apiVersion": "apiextensions.k8s.io/v1",
            "kind": "CustomResourceDefinition",
            "metadata": {"name": f"{kind}.kubeflow.org"},
        }
        for kind in ("pytorchjobs", "mpijobs")
    ),
]


def small_checkout(root: Path) -> Path:
    """A checkout with nothing but the images' files, so that their digests don't read this one."""
    for name in stack.IMAGES:
        (root / name).mkdir(parents=True)
        (root / name / "Dockerfile").write_text("FROM scratch")
    return root


@contextmanager
def in_a_small_checkout() -> Iterator[None]:
    """Use a small checkout, which is the same on every machine."""
    with tempfile.TemporaryDirectory() as directory, pytest.MonkeyPatch.context() as patch:
        patch.setenv("PULUMI_ERROR_OUTPUT_STRING", "true")
        patch.setattr(stack, "ROOT", small_checkout(Path(directory)))
        patch.setattr(operators, "render", lambda source, definitions: OPERATOR_OBJECTS)
        patch.setattr(stack, "start_rendering", lambda source: None)
        yield


def whole(settings: Settings) -> Recorded:
    """Return all resources for these settings, in the current checkout."""
    return deploy(lambda: stack.deploy(settings))


def images(settings: Settings) -> Recorded:
    """Return only the images and repositories for these settings, in the current checkout."""
    foundation = cast(
        Foundation, SimpleNamespace(keys=SimpleNamespace(data_key_arn="arn:aws:kms:::key/data"))
    )
    return deploy(lambda: stack._images(settings, foundation, pulumi.ResourceOptions()) and None)


def shipped(name: str) -> Recorded:
    """Return the resources of a shipped stack file in a small checkout. Read-only: tests share them."""
    recorded, before = _shipped(name)
    assert _contents(recorded) == before, (
        f"a test changed what stack {name} registers, which others read, too"
    )
    return recorded


@cache
def _shipped(name: str) -> tuple[Recorded, str]:
    with in_a_small_checkout():
        recorded = whole(read(name, stack_file(name), NOW))
    return recorded, _contents(recorded)


def _contents(recorded: Recorded) -> str:
    parts: tuple[Callable[[Recorded], object], ...] = (
        lambda all_: all_.resources,
        lambda all_: all_.result,
        lambda all_: sorted(all_.edges),
        lambda all_: sorted(all_.protected),
        lambda all_: all_.invokes,
    )
    return repr([part(recorded) for part in parts])
