"""Against AWS: the person's own kubeconfig may point at another cluster, so it is neither used nor changed."""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
from botocore.exceptions import ClientError, EndpointConnectionError, NoCredentialsError, TokenRetrievalError

from local.home import Home
from trainyard.cli import aws_commands, commands, dispatch
from trainyard.cli.arguments import parse
from trainyard.cli.aws_commands import AwsStack
from trainyard.cli.engine import EngineError, state_file
from trainyard.cli.errors import CommandError
from trainyard.preflight import command
from trainyard.preflight.__main__ import run

OUTPUTS = {"clusterName": "trainyard-dev", "region": "us-west-2"}


@pytest.fixture
def aws(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A program named `aws` on PATH; a test writes what it does."""
    program = tmp_path / "bin" / "aws"
    program.parent.mkdir()
    program.touch()
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")
    for name in ("PULUMI_ACCESS_TOKEN", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "x")
    monkeypatch.setenv("PULUMI_SKIP_CONFIRMATIONS", "true")
    monkeypatch.setenv("TRAINYARD_HOME", str(tmp_path / "home"))
    return program


def test_the_stacks_cluster_gets_a_kubeconfig_of_its_own(aws: Path, tmp_path: Path) -> None:
    aws.write_text(f'#!/bin/sh\necho "$@" > {tmp_path}/said\n')
    with AwsStack(name="dev").kubeconfig(OUTPUTS) as file:
        said = (tmp_path / "said").read_text().strip()
    assert said == f"eks update-kubeconfig --name trainyard-dev --region us-west-2 --kubeconfig {file}"


def test_a_refusal_of_the_aws_command_is_one_line_with_its_reason(aws: Path, tmp_path: Path) -> None:
    aws.write_text("#!/bin/sh\necho 'No cluster found\nfor name: trainyard-dev.' >&2; exit 254\n")
    stack = AwsStack(name="dev")
    with (
        pytest.raises(EngineError, match="No cluster found for name: trainyard-dev") as refused,
        stack.kubeconfig(OUTPUTS),
    ):
        pytest.fail("there is no kubeconfig")
    assert "\n" not in str(refused.value)


@pytest.fixture
def pulumi(aws: Path, tmp_path: Path) -> Path:
    """A program named `pulumi` on PATH that notes what it is asked."""
    program = aws.with_name("pulumi")
    program.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/asked\necho "{{}}"\n')
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    return tmp_path / "asked"


@pytest.fixture
def checked(monkeypatch: pytest.MonkeyPatch) -> None:
    """The stack file has no mistake; to read it takes a process."""
    monkeypatch.setattr(aws_commands.program, "check", lambda _stack, *_more: None)


@pytest.mark.parametrize(
    ("code", "message"),
    [
        (aws_commands.program.NOT_ASKED, r"AWS could not be asked for stack dev, .* add CLOUD=local$"),
        (1, "make up STACK=dev PREFLIGHT=no$"),
    ],
    ids=("not asked", "something is missing"),
)
def test_preflight_that_fails_stops_up_before_the_engine(
    code: int, message: str, checked: None, pulumi: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = subprocess.CompletedProcess([], code)
    monkeypatch.setattr(aws_commands.program.subprocess, "run", lambda *_words, **_options: ended)
    with pytest.raises(CommandError, match=message):
        aws_commands.up("dev")
    assert not pulumi.exists()


def test_preflight_of_an_unreachable_account_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    # Nothing listens on this port.
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "x")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "x")
    monkeypatch.setattr(
        "botocore.endpoint.time", SimpleNamespace(sleep=lambda _seconds: None)
    )  # between tries
    monkeypatch.setattr("sys.argv", ["preflight", "--stack", "dev"])
    assert command.main("trainyard.preflight", "", run) == aws_commands.program.NOT_ASKED


def test_both_sides_know_the_exit_code_of_an_account_that_can_not_be_asked() -> None:
    assert aws_commands.program.NOT_ASKED == command.NOT_ASKED


@pytest.fixture
def signed_out(checked: None, pulumi: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Install the CLI without any login; return the local cloud's home."""
    for name in ("PULUMI_ACCESS_TOKEN", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, os.devnull)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("PULUMI_HOME", str(tmp_path / "pulumi-home"))
    monkeypatch.setenv("TRAINYARD_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def log_in(tmp_path: Path, current: str) -> None:
    (tmp_path / "pulumi-home").mkdir()
    (tmp_path / "pulumi-home" / "credentials.json").write_text(json.dumps({"current": current}))


COMMANDS: list[Callable[[], int]] = [
    lambda: commands.up("dev", "aws"),
    lambda: commands.down("dev", "aws"),
    lambda: commands.submit("dev", "aws", 1, 2),
    lambda: commands.check_nodes("dev", "aws", "small"),
    lambda: commands.check_fabric("dev", "aws", "small", 2),
]
NAMES = ("up", "down", "submit", "check-nodes", "check-fabric")
SIGN_IN = "sign in (README, step 3); for the local cloud add CLOUD=local"


@pytest.mark.parametrize("called", COMMANDS, ids=NAMES)
@pytest.mark.parametrize(
    ("current", "message"),
    [
        (None, f"pulumi is not logged in to the backend with the stack's state: {SIGN_IN}"),
        ("", f"pulumi is not logged in to the backend with the stack's state: {SIGN_IN}"),
        ("s3://states", f"there are no AWS credentials: {SIGN_IN}"),
    ],
    ids=("never logged in", "logged out", "no credentials"),
)
def test_commands_without_login_say_how_to_sign_in(
    current: str | None,
    message: str,
    called: Callable[[], int],
    signed_out: Path,
    pulumi: Path,
    tmp_path: Path,
) -> None:
    if current is not None:
        log_in(tmp_path, current)
    with pytest.raises(EngineError) as refused:
        called()
    assert str(refused.value) == message
    assert not pulumi.exists(), "pulumi was started"


def test_the_local_clouds_own_cli_is_none_for_aws(
    signed_out: Path, pulumi: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (signed_out / "bin").mkdir(parents=True)
    shutil.copy(pulumi.parent / "bin" / "pulumi", signed_out / "bin" / "pulumi")
    monkeypatch.setenv("PATH", f"{signed_out / 'bin'}{os.pathsep}{os.environ['PATH']}")
    with pytest.raises(
        EngineError, match=r"CLI on PATH \(that of .*/home/bin is the local cloud's\) .* CLOUD=local"
    ):
        aws_commands.down("dev")


@pytest.mark.parametrize(("generation", "first"), [("g", True), ("earlier", False)])
def test_deployed_local_stack_is_reported_first(
    generation: str, first: bool, signed_out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trainyard.cli.sign_in.running", lambda _home: object())
    home = Home(signed_out)
    home.make()
    home.cloud_file.write_text('{"generation": "g"}')
    state = state_file(home.root / "stacks", "dev")
    state.parent.mkdir(parents=True)
    resources = [{"type": "pulumi:pulumi:Stack"}, {"type": "aws:ec2/vpc:Vpc"}]
    state.write_text(json.dumps({"checkpoint": {"latest": {"resources": resources}}}))
    (home.root / "stacks" / "Pulumi.dev.generation").write_text(generation)
    with pytest.raises(EngineError) as refused:
        commands.submit("dev", "aws", 1, 2)
    assert str(refused.value).startswith("stack dev is up on this machine's local cloud; ") is first


@pytest.mark.parametrize(("word", "asked"), [("no", []), ("No", []), ("", ["dev"]), ("yes", ["dev"])])
def test_preflight_is_made_unless_a_variable_says_no(
    word: str, asked: list[str], checked: None, pulumi: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[str] = []
    monkeypatch.setattr(aws_commands.program, "preflight", found.append)
    monkeypatch.setenv("PREFLIGHT", word)
    assert commands.up("dev", "aws") == 0
    assert found == asked


def test_another_word_stops_up_before_all(pulumi: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PREFLIGHT", "maybe")
    with pytest.raises(CommandError, match="PREFLIGHT is 'maybe'; it must be"):
        aws_commands.up("dev")
    assert not pulumi.exists()


@pytest.mark.parametrize("called", COMMANDS, ids=NAMES)
def test_without_the_official_cli_each_command_says_where_it_is(
    called: Callable[[], int], checked: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(EngineError, match=r"needs the official Pulumi CLI on PATH .* add CLOUD=local"):
        called()


@pytest.mark.parametrize(
    ("called", "question"),
    list(zip(COMMANDS[1:], ("export", "output", "output", "output"), strict=True)),
    ids=NAMES[1:],
)
def test_a_stack_that_is_not_there_is_named(called: Callable[[], int], question: str, aws: Path) -> None:
    program = aws.with_name("pulumi")
    program.write_text("#!/bin/sh\necho 'error: no stack found' >&2; exit 255\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    with pytest.raises(EngineError) as refused:
        called()
    assert str(refused.value) == (
        f"stack dev can't be read: pulumi stack {question}: error: no stack found"
        " (`pulumi stack ls` lists those that there are)"
    )


@pytest.mark.parametrize(
    ("stack", "option"),
    [("dev", ""), ("p4d", " --config-file examples/stacks/p4d.yaml"), ("nowhere", "")],
)
def test_pulumi_gets_the_path_of_a_stack_file_that_it_does_not_find(
    stack: str, option: str, pulumi: Path
) -> None:
    assert aws_commands.down(stack) == 0
    *_, destroy = pulumi.read_text().splitlines()
    assert destroy.startswith("destroy --refresh --yes --skip-preview ")
    assert destroy.endswith(f" --stack {stack}{option}")


AWS_ERRORS: list[tuple[Exception, str]] = [
    (
        ClientError(
            {"Error": {"Code": "ExpiredTokenException", "Message": "expired\nnow"}}, "DescribeCluster"
        ),
        "ExpiredTokenException expired now. Sign in (README, step 3)",
    ),
    (
        ClientError({"Error": {"Code": "AccessDeniedException", "Message": "no"}}, "DescribeCluster"),
        "AccessDeniedException no",
    ),
    (
        TokenRetrievalError(provider="sso", error_msg="Token has expired and refresh failed"),
        "TokenRetrievalError Error when retrieving token from sso: Token has expired and refresh failed. Sign in"
        " (README, step 3)",
    ),
    (
        NoCredentialsError(),
        "NoCredentialsError Unable to locate credentials. Sign in (README, step 3)",
    ),
    (
        EndpointConnectionError(endpoint_url="https://eks"),
        'EndpointConnectionError Could not connect to the endpoint URL: "https://eks"',
    ),
]
KINDS = [type(error).__name__ for error, _ in AWS_ERRORS]


@pytest.mark.parametrize(("error", "reason"), AWS_ERRORS, ids=KINDS)
def test_down_without_access_to_eks_changes_nothing(
    error: Exception, reason: str, pulumi: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(AwsStack, "outputs", lambda _stack: OUTPUTS)
    monkeypatch.setattr(aws_commands, "is_gone", Mock(side_effect=error))
    with pytest.raises(EngineError) as refused:
        aws_commands.down("dev")
    assert str(refused.value) == f"stack dev: EKS can't be read, and nothing was changed: {reason}"
    assert "destroy" not in pulumi.read_text()


@pytest.mark.parametrize(("error", "reason"), AWS_ERRORS, ids=KINDS)
def test_dispatch_aws_error_is_one_line(
    error: Exception, reason: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(commands, "down", Mock(side_effect=error))
    assert dispatch.run(parse(["down", "--stack", "dev"])) == 1
    assert capsys.readouterr().err == f"error: AWS: {reason}\n"


@pytest.mark.parametrize("command", ["up", "preview"])
def test_settings_of_an_example_reach_up_and_preview(
    command: str, checked: None, pulumi: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PREFLIGHT", "no")
    resources = {"resources": [{"type": "aws:ec2/vpc:Vpc", "custom": True}]}
    monkeypatch.setattr(AwsStack, "deployment", lambda _stack: resources)
    getattr(aws_commands, command)("p4d")
    (line,) = (each for each in pulumi.read_text().splitlines() if each.startswith(f"{command} --"))
    assert line.endswith(" --stack p4d --config-file examples/stacks/p4d.yaml")


def test_a_stack_file_that_is_not_there_stops_up_before_all(pulumi: Path) -> None:
    with pytest.raises(CommandError, match=r"Pulumi\.nowhere\.yaml does not exist"):
        aws_commands.up("nowhere")
    assert not pulumi.exists()
