from __future__ import annotations

from pathlib import Path

import pytest

from local.cluster.pki import KUBELET_CLIENT, Authority


@pytest.fixture
def pki(tmp_path: Path) -> Path:
    """Certificates as a control plane writes them, and those of another cluster."""
    for name in ("ours", "others"):
        authority = Authority(name)
        (tmp_path / name).mkdir()
        (tmp_path / name / "ca.crt").write_bytes(authority.certificate)
        kubelet = authority.issue("kubelet", hosts=["localhost"], addresses=["127.0.0.1"])
        kubelet.write(tmp_path / name, "kubelet")
        authority.issue(KUBELET_CLIENT).write(tmp_path / name, "kubelet-client")
        authority.issue("system:kube-scheduler").write(tmp_path / name, "scheduler")
    return tmp_path
