"""Against AWS: the person's own kubeconfig may point at another cluster, so it is neither used nor changed."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from local.deploy import official
from local.deploy.engine import EngineError

pytestmark = pytest.mark.unit

OUTPUTS = {"clusterName": "trainyard-dev", "region": "us-west-2"}


@pytest.fixture
def aws(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A program named `aws` on PATH; a test writes what it does."""
    program = tmp_path / "bin" / "aws"
    program.parent.mkdir()
    program.touch()
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")
    return program


def test_the_stacks_cluster_gets_a_kubeconfig_of_its_own(aws: Path, tmp_path: Path) -> None:
    aws.write_text(f'#!/bin/sh\necho "$@" > {tmp_path}/said\n')
    file = official._kubeconfig(OUTPUTS, tmp_path)
    assert file.parent == tmp_path
    said = (tmp_path / "said").read_text().strip()
    assert said == f"eks update-kubeconfig --name trainyard-dev --region us-west-2 --kubeconfig {file}"


def test_a_refusal_of_the_aws_command_is_one_line_with_its_reason(aws: Path, tmp_path: Path) -> None:
    aws.write_text("#!/bin/sh\necho 'No cluster found\nfor name: trainyard-dev.' >&2; exit 254\n")
    with pytest.raises(EngineError, match="No cluster found for name: trainyard-dev") as refused:
        official._kubeconfig(OUTPUTS, tmp_path)
    assert "\n" not in str(refused.value)
