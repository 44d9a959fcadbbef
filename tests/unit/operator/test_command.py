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
    Command,
    Rendezvous,
    build_command,
    check_command,
    needs_shell,
)
from trainyard.operator.resources import Size

pytestmark = pytest.mark.unit

ALONE = Rendezvous(
    backend="c10d",
    endpoint="localhost:29500",
    id="u1-0",
    size=Size(nodes=1, least=1, gpus=2),
    is_external=False,
)
SEVERAL = replace(ALONE, size=Size(nodes=3, least=3, gpus=2), endpoint="vit-0-0.vit.team.svc:29500")


def executed(built: Command) -> list[str]:
    """Return the words that run: the kubelet and torchrun have replaced $$ by $, torchrun not in the first word."""
    kept = [each.replace("$$", "$") for each in built.words[built.words.index("--no-python") + 1 :]]
    return [kept[0], *(each.replace("$$", "$") for each in kept[1:])]


@pytest.mark.parametrize(
    "command",
    [
        "python train.py --epochs 10",
        "python train.py --name 'a && b'",
        'python train.py --name "a; b"',
        r"python train.py --name a\&b",
        "python train.py model={a,b} --x=y",
        "python train.py a#b a~b",
    ],
)
def test_needs_shell_plain_words_is_false(command: str) -> None:
    assert not needs_shell(command)


@pytest.mark.parametrize(
    "command",
    [
        "cd src && python train.py",
        "python train.py | tee log",
        "python train.py > log",
        "python train.py $HOME",
        'python train.py "$HOME"',
        "python train.py `nproc`",
        "python train.py *.yaml",
        "SEED=1 python train.py",
        "exec python train.py",
        "python train.py ~/data",
        "python train.py # as before",
        "python train.py & wait",
        "python train.py \\\n  --epochs 10",
        'python train.py "\\$5"',
        'python train.py "\\`x\\`"',
        "command python train.py",
    ],
)
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
    # torch's own timeout is 60 s.
    assert built.environment == {"PET_RDZV_CONF": "join_timeout=604800,read_timeout=604800"}


def test_build_command_own_torchrun_gets_environment() -> None:
    built = build_command("torchrun train.py", (), ALONE)
    assert "--no-python" not in built.words
    assert built.environment["PET_NNODES"] == "1"
    assert built.environment["PET_RDZV_ID"] == "u1-0"
    assert built.environment["PET_MAX_RESTARTS"] == "0"
    assert built.environment["PET_NPROC_PER_NODE"] == "2"


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
    built = build_command(command, ("--lr", "1"), ALONE)
    words = executed(built)
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    assert done.stdout.endswith("--lr|1|")


@pytest.mark.parametrize(
    "command",
    [
        "cd src && python train.py --workers $(nproc)",
        "cd src && python train.py --workers `nproc`",
        "python train.py --to ${HOME}",
        "cd src && python train.py > log 2>&1",
        "python a.py; python train.py --phase done",
        "# a comment (first)\npython train.py 'x)' \"<<\"",
        "cat > run.py <<EOF\nprint(1)\nEOF\npython run.py",
        "python train.py --steps $((1 << 2))",
    ],
)
def test_check_command_end_of_word_takes_args(command: str) -> None:
    assert check_command(command, ("--lr", "1")) == ""


@pytest.mark.parametrize(
    "command",
    [
        "cd src && python train.py # as before",
        "cat > run.py <<EOF\nprint(1)\nEOF\n",
        "bash <<EOF\npython train.py\nEOF\n",
        "((N = 1 << 2))",
        "python a.py; python b.py &",
        "(cd src && python train.py)",
        "if true; then python train.py; fi",
        "for each in 1 2; do python train.py; done\n",
        "{ python train.py; }",
    ],
)
def test_check_command_end_without_words_refuses_args(command: str) -> None:
    assert check_command(command) == ""
    assert "write them into the command" in check_command(command, ("--lr", "1"))


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("echo yes # don't resume", "yes\n"),
        ("cat <<EOF\nit's fine\nEOF\n", "it's fine\n"),
    ],
)
def test_check_command_quote_in_comment_is_accepted(command: str, expected: str) -> None:
    assert check_command(command) == ""
    words = executed(build_command(command, (), ALONE))
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    assert done.stdout == expected


def test_build_command_args_with_quotes_stay_unchanged(tmp_path: Path) -> None:
    built = build_command(f"cd {tmp_path} && printf '%s|'", ("a b", "$HOME", "'"), ALONE)
    words = executed(built)
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    assert done.stdout == "a b|$HOME|'|"


@pytest.mark.parametrize(("rank", "host"), [("0", "1"), ("1", "0"), ("11", "0")])
def test_build_command_several_nodes_first_serves_store(rank: str, host: str) -> None:
    built = build_command("python train.py", (), SEVERAL)
    assert built.words[:2] == ("sh", "-c")
    prefix = built.words[: built.words.index("torchrun")]
    environment = {**os.environ, **built.environment, "TORCHRUN_NODE_RANK": rank}
    done = subprocess.run(
        [*prefix, "sh", "-c", "echo $PET_RDZV_CONF"],
        capture_output=True,
        text=True,
        check=True,
        env=environment,
    )
    assert done.stdout.strip() == f"is_host={host},join_timeout=604800,read_timeout=604800"


def test_build_command_no_own_store_has_no_shell() -> None:
    for other in (ALONE, replace(SEVERAL, is_external=True), replace(SEVERAL, backend="etcd-v2")):
        assert build_command("python train.py", (), other).words[0] == "torchrun"


@pytest.mark.parametrize(
    ("backend", "word"), [("etcd", "timeout"), ("etcd-v2", "join_timeout"), ("static", "timeout")]
)
def test_rendezvous_backend_sets_its_timeout(backend: str, word: str) -> None:
    built = build_command("python train.py", (), replace(SEVERAL, backend=backend, is_external=True))
    assert built.environment == {"PET_RDZV_CONF": f"{word}={RENDEZVOUS_SECONDS}"}


def test_rendezvous_elastic_or_static_sets_flags() -> None:
    elastic = replace(SEVERAL, size=Size(nodes=3, least=2, gpus=2))
    assert "--nnodes=2:3" in build_command("python x.py", (), elastic).words
    static = build_command("torchrun x", (), replace(SEVERAL, backend="static"))
    assert static.environment["PET_NODE_RANK"] == "$(TORCHRUN_NODE_RANK)"


def test_check_command_invalid_command_is_refused() -> None:
    assert check_command("python train.py") == ""
    assert "No closing quotation" in check_command("python 'train.py")
    assert check_command("   ") == "spec.command is '   '; it must be a command, such as python train.py"
    assert "It must be none" in check_command("torchrun train.py", (), "torchrun")
    assert check_command("torchrun train.py", (), "none") == ""
