from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from local.nodes.images import Images, Program, PullError, simulated

REPOSITORY = "123456789012.dkr.ecr.us-west-2.amazonaws.com/trainer"


@pytest.fixture
def images(tmp_path: Path) -> Images:
    (tmp_path / "Dockerfile").write_text(
        'FROM x\nWORKDIR /app\nENV PATH=/opt/bin A=1\nENTRYPOINT ["python", "-m", "t"]\nCMD ["all"]\n'
    )
    entry = {"context": str(tmp_path), "dockerfile": str(tmp_path / "Dockerfile"), "target": None}
    (tmp_path / "images.json").write_text(
        json.dumps({f"{REPOSITORY}@sha256:d": entry, f"{REPOSITORY}:v1": entry})
    )
    return Images(tmp_path / "images.json", tmp_path / "bin", tmp_path / "helpers", "123456789012")


def find(images: Images, image: str, name: str = "c", **container: Any) -> Program:
    environment = {"WORD": "word", "METRICS_PORT": "9090"}
    return images.find(
        {"name": name, "image": image, **container}, "127.96.0.2", environment, lambda port: port + 10000
    )


@pytest.mark.parametrize("suffix", [":v1", "@sha256:d", ":other@sha256:d"])
def test_image_built_runs_its_entrypoint_in_its_context(images: Images, suffix: str) -> None:
    program = find(images, REPOSITORY + suffix)
    assert program.argv == ("python", "-m", "t", "all")
    assert (program.workdir, program.context) == ("/app", str(images.file.parent))


def test_command_line_command_replaces_all_args_only_cmd(images: Images) -> None:
    assert find(images, f"{REPOSITORY}:v1", args=["one", "$(WORD)"]).argv == (
        "python",
        "-m",
        "t",
        "one",
        "word",
    )
    assert find(images, f"{REPOSITORY}:v1", command=["sh"]).argv == ("sh",)
    assert find(images, f"{REPOSITORY}:v1", command=["sh"], args=["-c"]).argv == ("sh", "-c")


def test_image_environment_ignores_only_its_path(images: Images) -> None:
    environment = find(images, f"{REPOSITORY}:v1").environment
    assert environment["A"] == "1"
    assert "/opt/bin" not in environment["PATH"]


def test_karpenter_gets_its_own_ports_by_environment(images: Images) -> None:
    program = find(images, "public.ecr.aws/karpenter/controller:1.14.1@sha256:abc")
    assert program.argv == (str(images.tools / "karpenter"),)
    assert program.forced["METRICS_PORT"] == "19090"
    assert program.forced["HEALTH_PROBE_PORT"] == "18081"


@pytest.mark.parametrize(
    "image",
    [
        "ghcr.io/kubeflow/training-v1/training-operator:v1-7f2a0a5",
        "kubeflow/training-operator",
        "registry.local/training-operator:1@sha256:abc",
    ],
)
def test_training_operator_listens_on_the_pods_address(images: Images, image: str) -> None:
    program = find(images, image, command=["/manager"], args=["--enable-scheme=pytorchjob"])
    assert program.argv == (
        str(images.tools / "training-operator"),
        "--enable-scheme=pytorchjob",
        "--metrics-bind-address=127.96.0.2:8080",
        "--health-probe-bind-address=127.96.0.2:8081",
        "--webhook-server-port=19443",
    )


@pytest.mark.parametrize(
    ("image", "program"),
    [
        ("ghcr.io/kubeflow/trainer/trainer-controller-manager:v2.3.0", "trainer-controller-manager"),
        ("mirror.example/m/kubeflow/trainer/trainer-controller-manager", "trainer-controller-manager"),
        ("registry.k8s.io/jobset/jobset:v0.12.0@sha256:abc", "jobset-manager"),
    ],
)
def test_trainjob_manager_listens_on_the_pods_address(images: Images, image: str, program: str) -> None:
    found = find(images, image, command=["/manager"], args=["--config=/c.yaml", "--zap-log-level=2"])
    assert found.argv[2:] == (
        str(images.helpers / "manager.py"),
        "127.96.0.2",
        str(images.tools / program),
        "--config=/c.yaml",
        "--zap-log-level=2",
    )
    assert found.binary == str(images.tools / program), "the container does not see it"


def test_lookup_container_has_our_nslookup_first(images: Images) -> None:
    program = find(images, "alpine:3.10", "init-pytorch", command=["sh", "-c", "nslookup x"])
    assert program.kind == "process"
    assert program.environment["PATH"].startswith(f"{images.helpers}:")


def test_debug_pod_has_our_nslookup_first(images: Images) -> None:
    image = "registry.k8s.io/e2e-test-images/agnhost:2.43@sha256:abc"
    program = find(images, image, "tools", command=["sleep", "60"])
    assert (program.kind, program.argv) == ("process", ("sleep", "60"))
    assert program.environment["PATH"].startswith(f"{images.helpers}:")
    # Its own entry point is not on this machine.
    assert find(images, image, "tools").kind == "simulated"


def test_image_unknown_is_simulated(images: Images) -> None:
    assert find(images, "registry.k8s.io/pause:3.10").kind == "simulated"
    assert find(images, "602401143452.dkr.ecr.us-west-2.amazonaws.com/eks/coredns:v1").kind == "simulated"
    assert simulated({"name": "c", "image": "registry.k8s.io/pause:3.10"}, images)


def test_image_of_own_registry_not_built_fails(images: Images) -> None:
    with pytest.raises(PullError, match=r"other:v1: not in .*images\.json"):
        find(images, "123456789012.dkr.ecr.us-west-2.amazonaws.com/other:v1")
    assert not simulated({"name": "c", "image": f"{REPOSITORY}:unknown"}, images)


def test_image_missing_context_names_the_file(images: Images) -> None:
    (images.file.parent / "Dockerfile").unlink()
    with pytest.raises(PullError, match="Dockerfile"):
        find(images, f"{REPOSITORY}:v1")


def test_image_record_without_builds_is_empty(images: Images) -> None:
    images.file.unlink()
    assert find(images, "anything").kind == "simulated"
