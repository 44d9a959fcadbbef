"""An ordinary user's local cloud has a network of its own: plain kubectl reaches its cluster all the same."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.local.conftest import run
from tests.integration.local.own_cloud import own_cloud

pytestmark = pytest.mark.local

# What root may do and an ordinary user may not is refused, so that the cloud chooses the namespaces of the latter.
UNSHARE = """#!/bin/sh
case " $* " in
*" --user "*) exec {unshare} "$@" ;;
esac
echo "unshare failed: Operation not permitted" >&2
exit 1
"""
CREATE = """
import sys
from local.home import Home
from tests.integration.local.own_cloud import OwnCloud
OwnCloud(Home(sys.argv[1])).create_cluster("main")
"""


@pytest.fixture
def ordinary_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answer = subprocess.run(["unshare", "--user", "--map-root-user", "--net", "true"], capture_output=True)
    if answer.returncode != 0:
        pytest.skip(f"no user namespaces on this machine: {answer.stderr.decode().strip()}")
    program = tmp_path / "programs" / "unshare"
    program.parent.mkdir()
    program.write_text(UNSHARE.format(unshare=shutil.which("unshare")))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(program.parent), prepend=os.pathsep)


@pytest.mark.usefixtures("ordinary_user")
def test_kubectl_reaches_the_cluster_from_a_shell_outside(tmp_path: Path) -> None:
    with own_cloud(tmp_path / "home") as cloud:
        networks = {os.readlink(f"/proc/{process}/ns/net") for process in (cloud.record["pid"], "self")}
        assert len(networks) == 2
        created = cloud.local("exec", "--", sys.executable, "-c", CREATE, str(cloud.home.root))
        assert created.code == 0, created.output
        shell = {
            "KUBECONFIG": str(cloud.home.kubeconfig),
            "PATH": os.pathsep.join([str(cloud.home.bin), os.environ["PATH"]]),
        }
        answer = run(["kubectl", "get", "namespaces", "--output", "name"], shell, seconds=60)
        assert answer.code == 0, answer.output
        assert "namespace/kube-system" in answer.output.split()
