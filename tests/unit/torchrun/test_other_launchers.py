"""Commands that start a launcher of their own: torchrun around it would start it once for each GPU."""

from __future__ import annotations

import time

import pytest

from launcher.core.torchrun import command
from tests.unit.torchrun.life import Life

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("typed", "named"),
    [
        ("accelerate launch train.py", "accelerate launch"),
        ("accelerate launch --num_processes 8 -m own.train", "accelerate launch"),
        ("/opt/conda/bin/accelerate launch train.py", "accelerate launch"),
        ("accelerate-launch train.py", "accelerate-launch"),
        ("python -m accelerate.commands.launch train.py", "python -m accelerate.commands.launch"),
        ("python -u -m accelerate.commands.accelerate_cli launch train.py", "accelerate launch"),
        ("deepspeed train.py", "deepspeed"),
        ("deepspeed --num_gpus 8 train.py --deepspeed ds.json", "deepspeed"),
        ("python -m deepspeed.launcher.runner train.py", "python -m deepspeed.launcher.runner"),
        ("python $(which deepspeed) train.py", "deepspeed"),
        ("mpirun -np 8 python train.py", "mpirun"),
        ("mpiexec -n 8 python train.py", "mpiexec"),
        ("horovodrun -np 8 python train.py", "horovodrun"),
        # Wherever the reader finds torchrun it finds them.
        ("cd src && accelerate launch train.py", "accelerate launch"),
        (
            "pip install -r requirements.txt\naccelerate config default\naccelerate launch train.py\n",
            "accelerate launch",
        ),
        ("env A=1 deepspeed train.py", "deepspeed"),
        ("NCCL_DEBUG=INFO exec deepspeed train.py", "deepspeed"),
        ("timeout -k 5 3600 deepspeed train.py", "deepspeed"),
        ("bash -c 'cd src && deepspeed train.py'", "deepspeed"),
        ("uv run accelerate launch train.py", "accelerate launch"),
        ("uv run --frozen deepspeed train.py", "deepspeed"),
        ("uv run -m accelerate.commands.launch train.py", "python -m accelerate.commands.launch"),
        ("conda run -n own --no-capture-output deepspeed train.py", "deepspeed"),
        ("conda run -n own deepspeed train.py", "deepspeed"),
        ("deepspeed train.py 2>&1 | tee log", "deepspeed"),
        ("if [ -d src ]; then cd src; fi; mpirun python train.py", "mpirun"),
        # Behind here-documents and sums.
        ("cat > ds.json <<EOF\n{}\nEOF\ndeepspeed train.py", "deepspeed"),
        ("cat > a <<-A > b <<'B'\n\tA\nit's\nB\naccelerate launch train.py", "accelerate launch"),
        ("bash <<EOF\naccelerate launch train.py\nEOF", "accelerate launch"),
        ("echo $((1 << 2)); mpirun x y", "mpirun"),
        ("((N = 1 << 2)); mpirun x y", "mpirun"),
        # Behind options that have no such value.
        ("stdbuf -oL deepspeed train.py", "deepspeed"),
        ("numactl --interleave=all deepspeed train.py", "deepspeed"),
        ("sudo -E deepspeed train.py", "deepspeed"),
        ("env -i deepspeed train.py", "deepspeed"),
        ("time -p deepspeed train.py", "deepspeed"),
        ("uv run --active deepspeed train.py", "deepspeed"),
        ("uv run --with deepspeed --active deepspeed train.py", "deepspeed"),
        ("conda run -n env deepspeed train.py", "deepspeed"),
        ("conda run -n mpirun mpirun python train.py", "mpirun"),
        ("mpirun.openmpi -np 8 python train.py", "mpirun.openmpi"),
        ("mpiexec.hydra -n 8 python train.py", "mpiexec.hydra"),
        ("xvfb-run -a mpirun python train.py", "mpirun"),
        ("python /opt/conda/bin/deepspeed train.py", "deepspeed"),
    ],
)
def test_another_launcher_is_refused_by_its_name(typed: str, named: str) -> None:
    told = command.check(typed)
    assert told == (
        f"spec.command starts {named}, which starts processes of its own; right would be python train.py: torchrun "
        "starts it once for each GPU, and Accelerate and DeepSpeed read torchrun's variables"
    )


@pytest.mark.parametrize(
    "typed",
    [
        "python train.py --deepspeed ds.json",
        "python deepspeed.py",
        "python train.py accelerate launch",
        "python -m own.accelerate launch",
        "torchrun train.py --deepspeed ds.json",
        "accelerate config default && python train.py",
        "accelerate env; python train.py",
        "accelerate --help",
        "deepspeed --version; python train.py",
        "mpirun --version && python train.py",
        "ds_report; python train.py",
        "which deepspeed && python train.py",
        "command -v mpirun; python train.py",
        "pip install deepspeed accelerate && python train.py",
        "echo deepspeed train.py",
        "cd deepspeed && python train.py",
        "LAUNCHER=deepspeed python train.py",
        # Names of packages and environments.
        "uv run --with deepspeed python train.py",
        "uv run --with deepspeed train.py",
        "uv run --with accelerate --with deepspeed -- python train.py",
        "conda run -n deepspeed python train.py",
        "conda run -n deepspeed --no-capture-output python train.py",
        "conda run -n accelerate python train.py",
        "conda run -n mpirun python train.py",
        "conda run -n accelerate launch train.py",
        "uv run --only-group deepspeed python train.py",
        "nsys profile -o deepspeed python train.py",
        "ncu -o deepspeed python train.py",
        "sudo -u mpirun python train.py",
        # The user's own, and what is no program.
        "python recipes/deepspeed --lr 1",
        "python deepspeed --lr 1",
        "$PYTHON deepspeed --lr 1",
        "bash -c 'L=(deepspeed mpirun); python train.py'",
        "L=(a\nmpirun x\n); declare -a M+=(deepspeed x); python train.py",
        "[[ $X = a || deepspeed = $X ]] && python train.py",
        "if ! [[ ($X = a) && mpirun = $X ]]; then python train.py; fi",
        "cat <<END\ndeepspeed train.py\nEND\npython train.py",
        "# don't\npython train.py \"open; deepspeed train.py",
    ],
)
def test_what_starts_none_is_not(typed: str) -> None:
    assert command.check(typed) == ""


def test_args_are_words_of_the_command() -> None:
    assert "starts accelerate launch," in command.check("accelerate", ("launch", "train.py"))
    assert "starts deepspeed," in command.check("cd src && exec", ("deepspeed", "train.py"))
    assert command.check("python train.py", ("accelerate", "launch")) == ""


def test_a_job_with_one_is_refused_before_it_begins() -> None:
    life = Life({"command": "accelerate launch train.py"})
    life.look()
    assert (life.status["phase"], life.status["reason"]) == ("Failed", "InvalidSpec")
    assert life.status["message"].startswith("spec.command starts accelerate launch, which")
    assert life.names("Job") == []


@pytest.mark.parametrize(
    "typed",
    ["env -a " * 4000 + "x", "eval env -a " * 2000 + "x", "$(" * 9000 + ")" * 9000, "uv -a run -b " * 2000],
)
def test_no_command_takes_long_to_judge(typed: str) -> None:
    began = time.process_time()
    command.check(typed)
    assert time.process_time() - began < 2
