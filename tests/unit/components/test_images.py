"""Names of container images."""

from __future__ import annotations

import pytest

from components.documents.images import mirrored


@pytest.mark.parametrize(
    ("image", "found"),
    [
        ("registry.k8s.io/pause:3.9@sha256:0", "m.example/x/registry.k8s.io/pause:3.9@sha256:0"),
        ("alpine:3", "m.example/x/docker.io/library/alpine:3"),
        ("kubeflow/operator:v1", "m.example/x/docker.io/kubeflow/operator:v1"),
        ("localhost/a", "m.example/x/localhost/a"),
        ("host:5000/a:1", "m.example/x/host:5000/a:1"),
    ],
)
def test_a_mirror_holds_an_image_under_its_whole_name(image: str, found: str) -> None:
    assert mirrored(image, "m.example/x") == found
    assert mirrored(image, None) == image
