"""Against AWS: the person's own kubeconfig may point at another cluster, so it is neither used nor changed."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from local.deploy import official
from local.deploy.engine import EngineError
from local.deploy.program import RefusedError

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


@pytest.fixture
def pulumi(aws: Path, tmp_path: Path) -> Path:
    """A program named `pulumi` on PATH that notes what it is asked."""
    program = aws.with_name("pulumi")
    program.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/asked\necho "{{}}"\n')
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    return tmp_path / "asked"


def test_what_the_account_lacks_stops_up_before_the_engine_starts(
    pulumi: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A port that nothing listens on: the account can't even be asked.
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "x")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "x")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    with pytest.raises(RefusedError, match="PREFLIGHT=no"):
        official.up("dev")
    assert not pulumi.exists()
    monkeypatch.setenv("PREFLIGHT", "no")
    assert official.up("dev") == 0
    assert pulumi.read_text().startswith("up --stack dev\n")


def test_a_stack_file_that_is_not_there_stops_up_before_all(pulumi: Path) -> None:
    with pytest.raises(RefusedError, match=r"Pulumi\.nowhere\.yaml does not exist"):
        official.up("nowhere")
    assert not pulumi.exists()
