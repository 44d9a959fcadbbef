"""The command of a worker: torchrun around the user's command, and where the parser finds the user's own torchrun."""

from __future__ import annotations

import os
import subprocess
import time
from dataclasses import replace
from pathlib import Path

import pytest

from trainyard.operator.command import (
    RENDEZVOUS_SECONDS,
    Command,
    Rendezvous,
    build_command,
    check_command,
    detect_launcher,
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


@pytest.mark.parametrize(
    "command",
    [
        "torchrun train.py",
        "/opt/conda/bin/torchrun train.py",
        "python -m torch.distributed.run train.py",
        "python3.11 -m torch.distributed.launch train.py",
        "cd src && torchrun train.py",
        # Options of Python, and torchrun as its script.
        "python -u -m torch.distributed.run train.py",
        "python -W ignore -Xfaulthandler -um torch.distributed.run train.py",
        "python -OOmtorch.distributed.run train.py",
        "python /opt/conda/bin/torchrun train.py",
        # Programs that run others.
        "env A=1 torchrun train.py",
        "env -u A B=1 /usr/bin/env torchrun train.py",
        "time nice -n 5 torchrun train.py",
        "timeout -k 5 3600 torchrun train.py",
        "numactl --cpunodebind=0 -m 0 torchrun train.py",
        "uv --directory src run --frozen --with torch -- torchrun train.py",
        "uv run -m torch.distributed.run train.py",
        "conda run -n a --no-capture-output torchrun train.py",
        "nsys profile -o trace -t cuda torchrun train.py",
        # Inline scripts.
        "bash -c 'torchrun train.py'",
        "sh -e -o pipefail -c 'exec torchrun train.py'",
        """bash -c "sh -c 'torchrun train.py'" """,
        "eval 'torchrun train.py'",
        "eval torchrun train.py",
        # Syntax of a shell.
        "export A=1\ntorchrun train.py",
        "cd src # as ever\ntorchrun train.py",
        "cd src && \\\n  torchrun \\\n  train.py",
        "if [ -d src ]; then cd src; fi; torchrun train.py",
        "for i in 1 2; do torchrun train.py; done",
        "run() { torchrun train.py; }; run",
        "(cd src; exec torchrun train.py)",
        ">log 2>&1 torchrun train.py",
        "torchrun --nproc-per-node $(nproc) train.py",
        "N=$(nproc)0 PATH=`pwd`:$PATH torchrun train.py",
        "$(which torchrun) train.py",
        'python "$(command -v torchrun)" train.py',
        "${PYTHON:-python} -u -m torch.distributed.run train.py",
        # Here-documents, arithmetic and conditions.
        "cat <<END; torchrun train.py\nwords\nEND",
        "cat >a <<A >b <<-'B C'\nit's\nB C\nA\n\tA\n\tB C\ntorchrun train.py",
        "N=$(cat <<END\n'\nEND\n) torchrun train.py",
        "cat <<< word\ntorchrun train.py",
        "/bin/bash -eu <<'END' | tee log\ncd src\nexec torchrun train.py\nEND\n",
        "N=$(((1 << 2) * (3 + (1)))) torchrun train.py",
        "for ((i = 1 << 2; i; i--)); do torchrun train.py; done",
        "$((cd src; pwd); nproc) ; torchrun train.py",
        "[[ -d src && ! -d lib ]] && torchrun train.py",
        "L=(a b) torchrun train.py",
        # After a variable.
        "$PREFIX torchrun train.py",
        "$HOME/bin/torchrun train.py",
        "${PYTHON:-/usr/bin/python} -m torch.distributed.run train.py",
        # The parser stops at an open quote.
        "torchrun train.py # don't\necho 'open",
    ],
)
def test_build_command_own_torchrun_gets_environment(command: str) -> None:
    built = build_command(command, (), ALONE)
    assert "--no-python" not in built.words
    assert built.environment["PET_NNODES"] == "1"
    assert built.environment["PET_RDZV_ID"] == "u1-0"
    assert built.environment["PET_MAX_RESTARTS"] == "0"
    assert built.environment["PET_NPROC_PER_NODE"] == "2"


@pytest.mark.parametrize(
    "command",
    [
        "python torchrun_demo.py",
        "python train.py torchrun",
        "python -m torchrunner",
        "python train.py -m torch.distributed.run",
        "python -c 'print()' -m torch.distributed.run",
        "env A=torchrun python train.py",
        "uv run --frozen python train.py torchrun",
        "uv pip list torchrun",
        "bash -c 'echo torchrun starts; python train.py'",
        "cd torchrun && python train.py",
        "echo torchrun starts; python train.py",
        "echo '; torchrun' ; python train.py",
        "echo $(nproc) torchrun `nproc` torchrun; python train.py",
        "python train.py > torchrun",
        "python train.py # torchrun is around it",
        "python train.py a#b; : ; true torchrun_demo",
        "command -v torchrun && python train.py",
        "pip install torchrun && python train.py",
        "$PYTHON train.py",
        "$PYTHON train.py torchrun",
        "python recipes/torchrun --steps 4",
        # Here-documents, arithmetic, conditions and arrays.
        "python train.py --steps $((1<<2)) --fail-at -1 # via torchrun",
        "((N = 1 << 2)); python train.py torchrun # torchrun train.py",
        "cat > NOTES <<EOF\ntorchrun train.py\nEOF\npython train.py --steps 4",
        "cat > NOTES <<- \\\n 'E F'; python train.py\ntorchrun train.py\n\tE F\n",
        "cat <<A <<B\nB\ntorchrun a.py\nA\ntorchrun b.py\nB\npython train.py",
        "bash -c 'python train.py' <<EOF\ntorchrun train.py\nEOF",
        "cat <<EOF\ntorchrun train.py\n EOF\n",
        "[[ $X = a || torchrun = $X ]] && python train.py",
        "if [[ $X =~ ^(a|torchrun)$ ]]; then python train.py; fi",
        "L=(\n  a\n  torchrun\n); python train.py",
        "# don't\npython train.py \"open; torchrun train.py",
    ],
)
def test_build_command_word_torchrun_elsewhere_is_ignored(command: str) -> None:
    assert "--no-python" in build_command(command, (), ALONE).words


@pytest.mark.parametrize(
    ("command", "args", "own"),
    [
        ("env", ("A=1", "torchrun", "train.py"), True),
        ("bash -c", ("torchrun train.py",), True),
        ("cd src && exec", ("torchrun", "train.py"), True),
        ("cd src && bash -c", ("A=1; torchrun train.py",), True),
        ("python", ("-u", "-m", "torch.distributed.run", "train.py"), True),
        ("python train.py", ("torchrun",), False),
        ("cd src && python train.py", ("; torchrun", "torchrun"), False),
    ],
)
def test_build_command_args_are_words_of_command(command: str, args: tuple[str, ...], own: bool) -> None:
    assert ("--no-python" not in build_command(command, args, ALONE).words) == own


@pytest.mark.long
@pytest.mark.parametrize(
    "command",
    [
        "env -a " * 4000 + "x",
        "env " + "-o sh " * 5000 + "-c 'sh -o sh -c x'",
        "$(" * 9000 + ")" * 9000,
        "`" * 30000,
        "uv run -a uv -b run -c;" * 1300,
        "$(which " * 3000,
        "$((" * 9000,
        "((" * 9000 + "))" * 9000,
        "bash <<a\n" * 3000,
        "bash " + "-a " * 5000 + "<<a " * 4000 + "\n",
        "".join(f"cat <<a{each}\na{each}\n" for each in range(3000)),
        "! " * 8000 + "[[ " + "|" * 10000,
    ],
)
def test_detect_launcher_long_command_takes_under_2_s(command: str) -> None:
    started = time.process_time()
    detect_launcher(command)
    assert time.process_time() - started < 2


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
