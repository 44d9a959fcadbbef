"""The supervisor's API on its unix socket, and what it refuses."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from local.cluster import supervisor
from local.cluster.control import ControlError, request, serve
from local.cluster.control_plane import Request
from local.cluster.record import Process
from local.cluster.supervisor import Supervisor, child_environment
from local.cluster.usage import descendants, everything
from local.home import Home

CLUSTER = {
    "name": "c1",
    "version": "1.35",
    "issuer": "https://i",
    "region": "us-west-2",
    "arn": "arn:aws:eks",
}


class Fake:
    """Remembers what it was asked."""

    def __init__(self) -> None:
        self.asked: list[Any] = []

    def create_cluster(self, body: dict[str, Any]) -> dict[str, Any]:
        self.asked.append(Request(**body))
        return {"endpoint": "https://127.0.0.1:1"}

    def delete_cluster(self, name: str) -> None:
        raise ControlError(404, f"there is no cluster {name}")

    def status(self) -> dict[str, Any]:
        return {"processes": []}

    def shut_down(self) -> None:
        self.asked.append("shutdown")


@pytest.fixture
def served(tmp_path: Path) -> tuple[Path, Fake]:
    fake = Fake()
    path = tmp_path / "s"
    serve(path, fake)
    return path, fake


def test_requests_reach_the_supervisor_and_answers_come_back(served: tuple[Path, Fake]) -> None:
    path, fake = served
    assert request(path, "GET", "/status") == {"processes": []}
    assert request(path, "POST", "/clusters", CLUSTER) == {"endpoint": "https://127.0.0.1:1"}
    request(path, "POST", "/shutdown")
    assert fake.asked[0].name == "c1"
    assert fake.asked[1] == "shutdown"


def test_a_refusal_carries_its_status_and_one_line(served: tuple[Path, Fake]) -> None:
    with pytest.raises(ControlError, match="there is no cluster x") as caught:
        request(served[0], "DELETE", "/clusters/x")
    assert caught.value.status == 404
    with pytest.raises(ControlError, match="there is no POST /nothing"):
        request(served[0], "POST", "/nothing", {})


def test_only_the_owner_may_use_the_socket(served: tuple[Path, Fake]) -> None:
    assert served[0].stat().st_mode & 0o077 == 0


def test_processes_of_the_cloud_see_nothing_of_anybodys_account(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inherited = {
        "PATH": "/bin",
        "AWS_PROFILE": "prod",
        "AWS_ACCESS_KEY_ID": "x",
        "PULUMI_ACCESS_TOKEN": "x",
        "KUBECONFIG": "/x",
        "HTTPS_PROXY": "http://proxy",
        "LANG": "C",
    }
    monkeypatch.setenv("TRAINYARD_CACHE", str(tmp_path / "cache"))
    environment = child_environment(Home(tmp_path), inherited)
    assert environment["TRAINYARD_CACHE"] == str(tmp_path / "cache"), "the preloaded library goes there too"
    assert not [name for name in environment if name.startswith(("AWS_", "PULUMI_", "KUBECONFIG"))]
    assert environment["LANG"] == "C"
    assert environment["NO_PROXY"] == "*"
    assert environment["PATH"].startswith(str(tmp_path / "bin"))
    assert environment["TRAINYARD_HOME"] == str(tmp_path)


def test_descendants_are_found_through_the_process_table() -> None:
    import os
    import subprocess

    child = subprocess.Popen(["/bin/sh", "-c", "sleep 5 & echo; wait"], stdout=subprocess.PIPE)
    try:
        assert child.stdout is not None
        child.stdout.readline()
        found = descendants(os.getpid())
        assert child.pid in found
        assert set(descendants(child.pid)) < set(found)
        assert len(descendants(child.pid)) == 1
        assert everything()[os.getpid()].rss_bytes > 1_000_000
    finally:
        for pid in [*descendants(child.pid), child.pid]:
            os.kill(pid, 9)
        child.wait()


@pytest.mark.parametrize("lost", ["when it is ready", "while it starts"])
def test_cluster_of_a_lost_account_is_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lost: str
) -> None:
    home = Home(tmp_path / "home")
    home.make()
    monkeypatch.setattr(supervisor, "Processes", Mock())
    monkeypatch.setattr(Supervisor, "_start_aws", lambda _: None)
    cloud = Supervisor(home, Process(1, 1), 1)
    planes: list[Mock] = []

    def create(*_: object) -> Mock:
        plane = Mock(administrator={"clusters": [], "users": [], "contexts": []})
        plane.start.return_value = {"endpoint": "https://127.0.0.1:1"}
        if lost == "while it starts" and not planes:
            plane.start.side_effect = lambda *_: cloud._aws_lost()
        planes.append(plane)
        return plane

    monkeypatch.setattr(supervisor, "ControlPlane", create)
    if lost == "while it starts":
        with pytest.raises(ControlError, match="the emulated account was lost meanwhile") as refused:
            cloud.create_cluster(CLUSTER)
        assert refused.value.status == 500
    else:
        cloud.create_cluster(CLUSTER)
        cloud._aws_lost()
    planes[0].stop.assert_called_once()
    assert cloud.create_cluster(CLUSTER) == {"endpoint": "https://127.0.0.1:1"}
    planes[1].stop.assert_not_called()
