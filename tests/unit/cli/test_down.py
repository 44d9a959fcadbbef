"""`make down` removes what an earlier one, killed between its steps, left of the stack, and nothing of others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from local.cluster import kubeconfig, lifecycle
from local.cluster.pki import Pair
from local.home import Home
from tests.unit.cli.test_sweep import launch, state
from tests.unit.emulator import REGION, Cloud
from trainyard.cli import commands
from trainyard.cli.errors import CommandError
from trainyard.cli.sweep import stack_tags


class Emptied:
    """An engine whose stack has no resources any more."""

    def __init__(self, home: Path, stack: str, variables: dict[str, str]) -> None:
        self.stack = stack
        self.environment = variables
        self.config_file = home / "stacks" / f"Pulumi.{stack}.yaml"
        self.forgotten = False

    def has_resources(self) -> bool:
        return False

    def deployment(self) -> dict[str, Any]:
        return {}

    def __getattr__(self, name: str) -> Any:
        # Nothing to restore, to wait for, to end or to forget.
        return lambda *_arguments: None


@pytest.fixture
def home(account: Cloud, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    monkeypatch.setattr(commands, "Engine", Emptied)
    monkeypatch.setattr(commands, "_join", lambda _home: True)
    monkeypatch.setattr(lifecycle, "down", lambda *_arguments: None)
    monkeypatch.setattr(commands, "cloud_environment", lambda _home: {})
    made = Home(tmp_path)
    made.cloud_file.parent.mkdir(parents=True)
    made.cloud_file.write_text(f'{{"generation": "g", "region": "{REGION}", "accountId": "1"}}')
    return made


def write(home: Home, cluster: object) -> None:
    file = home.root / "stacks" / "Pulumi.dev.yaml"
    file.parent.mkdir(exist_ok=True)
    file.write_text(yaml.safe_dump({"config": {"aws:region": REGION, "trainyard:cluster": cluster}}))


@pytest.mark.parametrize(
    ("cluster", "name"), [({}, "trainyard-dev"), ({"name": "own"}, "own"), ("bad", "trainyard-dev")]
)
def test_a_machine_that_outlived_the_destroy_goes(
    home: Home, deployer: Cloud, cluster: object, name: str
) -> None:
    write(home, cluster)
    left, others = launch(deployer, name), launch(deployer, f"{name}-two")
    assert commands._down(home, "dev", keep_data=False) == 0
    assert state(deployer, left) == "terminated"
    assert state(deployer, others) == "running"


def test_of_an_existing_cluster_only_the_stacks_own_machines_go(home: Home, deployer: Cloud) -> None:
    write(home, {"existing": {"name": "given"}})
    theirs, ours = launch(deployer, "given"), launch(deployer, "given")
    tags = [{"Key": key, "Value": value} for key, value in stack_tags("dev").items()]
    deployer.client("ec2").create_tags(Resources=[ours], Tags=tags)
    assert commands._down(home, "dev", keep_data=False) == 0
    assert state(deployer, theirs) == "running"
    assert state(deployer, ours) == "terminated"


def test_a_stack_that_never_was_up_has_nothing_to_sweep(home: Home, deployer: Cloud) -> None:
    machine = launch(deployer, "trainyard-dev")
    assert commands._down(home, "dev", keep_data=False) == 0
    assert state(deployer, machine) == "running"


class Lasting(Emptied):
    """An engine whose stack has resources."""

    def has_resources(self) -> bool:
        return True


def another_is_up(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stack `cpu` on the running local cloud."""
    monkeypatch.setattr(commands, "Engine", Lasting)
    folder = home.root / "stacks"
    folder.mkdir(exist_ok=True)
    (folder / "Pulumi.cpu.yaml").write_text(yaml.safe_dump({"config": {"aws:region": REGION}}))
    (folder / "Pulumi.cpu.generation").write_text("g")


def test_a_mistyped_stack_is_refused_while_another_is_up(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    another_is_up(home, monkeypatch)
    there = sorted((home.root / "stacks").rglob("*"))
    with pytest.raises(CommandError) as refused:
        commands._down(home, "cpi", keep_data=False)
    assert str(refused.value) == (
        "there is no stack cpi on this local cloud, and nothing was changed; up there: cpu"
    )
    assert sorted((home.root / "stacks").rglob("*")) == there


@pytest.mark.parametrize("trace", ["Pulumi.dev.yaml", "state/.pulumi/stacks/trainyard/dev.json"])
def test_a_stack_that_was_there_can_be_destroyed_again_while_another_is_up(
    trace: str, home: Home, deployer: Cloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    another_is_up(home, monkeypatch)
    file = home.root / "stacks" / trace
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("{}")
    monkeypatch.setattr(
        commands,
        "Engine",
        lambda home, stack, variables: (Lasting if stack == "cpu" else Emptied)(home, stack, variables),
    )
    assert commands._down(home, "dev", keep_data=False) == 0


def test_down_retained_data_names_delete_command(
    home: Home, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(commands, "Engine", Lasting)
    monkeypatch.setattr(commands, "check", lambda *_arguments: ["bucket models"])
    write(home, {})
    assert commands._down(home, "dev", keep_data=True) == 0
    assert (
        "stack dev is destroyed but for its data: bucket models; the local cloud stays up: "
        f"`.venv/bin/python -m local --home {home.root} down` ends it, and this data with it\n"
    ) in capsys.readouterr().out


@pytest.mark.parametrize(("others", "stacks"), [(["cpu"], "stack cpu"), (["cpu", "lab"], "stacks cpu, lab")])
def test_those_that_stay_up_are_named_in_their_number(
    others: list[str],
    stacks: str,
    home: Home,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(commands, "_up", lambda _home: others)
    write(home, {})
    assert commands._down(home, "dev", keep_data=False) == 0
    assert f"the local cloud stays up for {stacks}\n" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("current", "left", "message"),
    [
        ("trainyard-dev", ["trainyard-cpu"], "config use-context trainyard-cpu"),
        ("trainyard-dev", ["a", "b"], "use-context NAME (one of a, b)"),
        ("trainyard-dev", [], "context trainyard-dev is gone, so no current context is set"),
        ("trainyard-cpu", ["trainyard-cpu"], ""),
    ],
)
def test_down_that_removes_the_current_context_reports_it(
    current: str,
    left: list[str],
    message: str,
    home: Home,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    documents = {
        name: kubeconfig.document(name, "https://x", b"", Pair(certificate=b"", key=b"")) for name in left
    }
    before = {"current-context": current}
    kubeconfig.write(home.kubeconfig, before)
    sweep = commands.LocalStack.sweep

    def end(session: commands.LocalStack) -> None:
        kubeconfig.write(home.kubeconfig, kubeconfig.merge(documents, before))
        sweep(session)

    monkeypatch.setattr(commands.LocalStack, "sweep", end)
    monkeypatch.setattr(commands, "_up", lambda _home: ["cpu"])
    write(home, {})
    assert commands._down(home, "dev", keep_data=False) == 0
    out = capsys.readouterr().out
    assert message in out
    assert out.count("no current context is set") == bool(message)
