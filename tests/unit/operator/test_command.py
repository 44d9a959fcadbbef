"""The command of a worker: torchrun around the user's command."""

from __future__ import annotations

import os
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from tests.unit.operator.made import container
from trainyard.operator.command import (
    RENDEZVOUS_SECONDS,
    Rendezvous,
    build_command,
    check_command,
    needs_shell,
)
from trainyard.operator.resources import Size

ALONE = Rendezvous(
    backend="c10d",
    endpoint="localhost:29500",
    id="u1-0",
    size=Size(nodes=1, minimum=1, gpus=2),
    is_external=False,
)
SEVERAL = replace(ALONE, size=Size(nodes=3, minimum=3, gpus=2), endpoint="vit-0-0.vit.team.svc:29500")


def output(command: str, args: tuple[str, ...] = ()) -> str:
    """Run the words after the kubelet and torchrun have replaced $$ by $, torchrun not in the first word."""
    words = build_command(command, args, ALONE).words
    first, *rest = (each.replace("$$", "$") for each in words[words.index("--no-python") + 1 :])
    run = [first, *(each.replace("$$", "$") for each in rest)]
    return subprocess.run(run, capture_output=True, text=True, check=True).stdout


def test_needs_shell_plain_words_is_false() -> None:
    for words in ("--epochs 10", "--name 'a && b'", '-x "a; b"', r"-x a\&b", "m={a,b} --x=y", "a#b a~b"):
        assert not needs_shell(f"python train.py {words}")


@pytest.mark.parametrize("command", [
    "cd src && python train.py", "python train.py | tee log", "python train.py > log", "python train.py $HOME",
    'python train.py "$HOME"', "python train.py `nproc`", "python train.py *.yaml", "SEED=1 python train.py",
    "exec python train.py", "python train.py ~/data", "python train.py # as before", "python train.py & wait",
    "python train.py \\\n  --epochs 10", 'python train.py "\\$5"', 'python train.py "\\`x\\`"',
    "command python train.py",
])  # fmt: skip
def test_needs_shell_special_character_runs_shell(command: str) -> None:
    assert needs_shell(command)
    words = build_command(command, (), ALONE).words
    assert words[words.index("--no-python") + 1 :] == ("sh", "-c", command.replace("$", "$$$$"))


def test_build_command_plain_program_runs_under_torchrun() -> None:
    built = build_command("python train.py", ("--lr", "1"), ALONE)
    assert built.words == (
        "torchrun", "--nnodes=1", "--nproc-per-node=2", "--rdzv-backend=c10d", "--rdzv-endpoint=localhost:29500",
        "--rdzv-id=u1-0", "--max-restarts=0", "--tee=3", "--no-python", "python", "train.py", "--lr", "1",
    )  # fmt: skip
    # torchrun does not expand the first word.
    assert build_command("'a$b' 'c$d'", (), ALONE, "torchrun").words[-2:] == ("a$$b", "c$$$$d")
    # torch's own timeout is 60 s.
    assert built.environment == {"PET_RDZV_CONF": "join_timeout=604800,read_timeout=604800"}


def test_build_command_own_torchrun_gets_environment() -> None:
    built = build_command("torchrun train.py", (), ALONE)
    assert "--no-python" not in built.words
    expected = {"NNODES": "1", "NPROC_PER_NODE": "2", "RDZV_ID": "u1-0", "MAX_RESTARTS": "0"}
    assert {each: built.environment[f"PET_{each}"] for each in expected} == expected


@pytest.mark.parametrize(("command", "launcher"), [("tune run x", "torchrun"), ("python train.py", "none")])
def test_build_command_launcher_overrides_detection(command: str, launcher: str) -> None:
    assert ("--no-python" in build_command(command, (), ALONE, launcher).words) == (launcher == "torchrun")
    assert ("--no-python" in build_command(command, (), ALONE).words) == (launcher == "none")
    words = container({"command": command, "launcher": launcher})["command"]
    assert ("torchrun" in words) == (launcher == "torchrun")


@pytest.mark.parametrize("end", ["\n", "\n\n  ", " \\\n", " '#'\n", '  "a # b"', " a#b"])
def test_build_command_end_of_line_keeps_args(tmp_path: Path, end: str) -> None:
    """YAML's `command: |` always ends with one."""
    command = f"cd {tmp_path} && printf '%s|'{end}"
    assert check_command(command, ("--lr", "1")) == ""
    assert output(command, ("--lr", "1")).endswith("--lr|1|")


@pytest.mark.parametrize(
    ("command", "takes"),
    [
        ("cd src && python train.py --workers $(nproc)", True),
        ("cd src && python train.py --workers `nproc`", True),
        ("python train.py --to ${HOME}", True),
        ("cd src && python train.py > log 2>&1", True),
        ("python a.py; python train.py --phase done", True),
        ("# a comment (first)\npython train.py 'x)' \"<<\"", True),
        ("cat > run.py <<EOF\nprint(1)\nEOF\npython run.py", True),
        ("python train.py --steps $((1 << 2))", True),
        ("cd src && python train.py # as before", False),
        ("cat > run.py <<EOF\nprint(1)\nEOF\n", False),
        ("bash <<EOF\npython train.py\nEOF\n", False),
        ("((N = 1 << 2))", False),
        ("python a.py; python b.py &", False),
        ("(cd src && python train.py)", False),
        ("if true; then python train.py; fi", False),
        ("for each in 1 2; do python train.py; done\n", False),
        ("{ python train.py; }", False),
    ],
)
def test_check_command_args_need_open_end(command: str, *, takes: bool) -> None:
    assert check_command(command) == ""
    assert ("write them into the command" not in check_command(command, ("--lr", "1"))) == takes


@pytest.mark.parametrize(
    ("command", "args", "expected"),
    [
        ("echo yes # don't resume", (), "yes\n"),
        ("cat <<EOF\nit's fine\nEOF\n", (), "it's fine\n"),
        ("cd /tmp && printf '%s|'", ("a b", "$HOME", "'"), "a b|$HOME|'|"),
    ],
)
def test_build_command_text_stays_unchanged(command: str, args: tuple[str, ...], expected: str) -> None:
    assert check_command(command, args) == ""
    assert output(command, args) == expected


@pytest.mark.parametrize(("rank", "host"), [("0", "1"), ("1", "0"), ("11", "0")])
def test_build_command_several_nodes_first_serves_store(rank: str, host: str) -> None:
    built = build_command("python train.py", (), SEVERAL)
    assert built.words[:2] == ("sh", "-c")
    words = [*built.words[: built.words.index("torchrun")], "sh", "-c", "echo $PET_RDZV_CONF"]
    environment = {**os.environ, **built.environment, "TORCHRUN_NODE_RANK": rank}
    done = subprocess.run(words, capture_output=True, text=True, check=True, env=environment)
    assert done.stdout.strip() == f"is_host={host},join_timeout=604800,read_timeout=604800"


@pytest.mark.parametrize(
    ("backend", "settings"),
    [
        ("c10d", ("join_timeout", "read_timeout")),
        ("etcd", ("timeout",)),
        ("etcd-v2", ("join_timeout",)),
        ("static", ("timeout",)),
    ],
)
def test_build_command_external_store_sets_timeout(backend: str, settings: tuple[str, ...]) -> None:
    built = build_command("python train.py", (), replace(SEVERAL, backend=backend, is_external=True))
    assert built.words[0] == "torchrun"
    expected = ",".join(f"{each}={RENDEZVOUS_SECONDS}" for each in settings)
    assert built.environment == {"PET_RDZV_CONF": expected}


def test_build_command_elastic_or_static_sets_flags() -> None:
    elastic = replace(SEVERAL, size=Size(nodes=3, minimum=2, gpus=2))
    assert "--nnodes=2:3" in build_command("python x.py", (), elastic).words
    static = build_command("torchrun x", (), replace(SEVERAL, backend="static"))
    assert static.environment["PET_NODE_RANK"] == "$(TORCHRUN_NODE_RANK)"


def test_check_command_invalid_command_is_refused() -> None:
    assert check_command("python train.py") == ""
    assert "No closing quotation" in check_command("python 'train.py")
    assert "It must be none" in check_command("torchrun train.py", (), "torchrun")
    assert check_command("torchrun train.py", (), "none") == ""
