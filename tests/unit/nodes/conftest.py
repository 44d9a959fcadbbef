from __future__ import annotations

from pathlib import Path

import pytest

from local.cluster.pki import Authority


@pytest.fixture
def pki(tmp_path: Path) -> Path:
    """Certificates as a control plane writes them, and those of another cluster."""
    for name in ("ours", "others"):
        authority = Authority(name)
        (tmp_path / name).mkdir()
        (tmp_path / name / "ca.crt").write_bytes(authority.certificate)
        kubelet = authority.issue("kubelet", hosts=["localhost"], addresses=["127.0.0.1"])
        kubelet.write(tmp_path / name, "kubelet")
        authority.issue("kube-apiserver-kubelet-client").write(tmp_path / name, "kubelet-client")
    return tmp_path
