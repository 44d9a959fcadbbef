"""Which launcher a command starts, what is put around it, and what of it contradicts the job."""

from __future__ import annotations

import time
from typing import Any

import pytest

from tests.unit.operator.life import Life
from tests.unit.operator.made import container
from tests.unit.operator.test_command import ALONE
from trainyard.operator.command import build_command, check_command, detect_launcher
from trainyard.operator.launcher_detection import JobShape, find_flag_conflict

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
def test_another_launcher_is_found_by_its_name(typed: str, named: str) -> None:
    found = detect_launcher(typed)
    assert (found.own_launcher, found.launcher) == (named, "none")


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
def test_a_word_that_only_looks_like_a_launcher(typed: str) -> None:
    assert detect_launcher(typed).own_launcher in ("", "torchrun")


def test_args_are_words_of_the_command() -> None:
    assert detect_launcher("accelerate", ("launch", "train.py")).own_launcher == "accelerate launch"
    assert detect_launcher("cd src && exec", ("deepspeed", "train.py")).own_launcher == "deepspeed"
    assert detect_launcher("python train.py", ("accelerate", "launch")).own_launcher == ""


@pytest.mark.parametrize(
    "typed",
    ["env -a " * 4000 + "x", "eval env -a " * 2000 + "x", "$(" * 9000 + ")" * 9000, "uv -a run -b " * 2000],
)
def test_no_command_takes_long_to_judge(typed: str) -> None:
    began = time.process_time()
    detect_launcher(typed)
    assert time.process_time() - began < 2


PLAIN = [
    "python train.py",
    "python3.12 -u -m own.train --lr 1",
    "python -",
    "python -c 'print(1)'",
    "./train.py --lr 1",
    "/opt/venv/bin/python train.py",
    "$PYTHON train.py",
    "$PYTHON -m own.train",
    "uv run train.py",
    "uv run --with torch python train.py",
    "uv run -m own.train",
    "poetry run python train.py",
    "conda run -n composer python train.py",
    "conda activate own && python train.py",
    "nice -n 5 python train.py",
    "timeout -k 5 3600 python train.py",
    "env A=1 python train.py",
    "cd src && pip install -r requirements.txt && exec python train.py | tee log",
    "source .venv/bin/activate && python train.py",
    'eval "$(conda shell.bash hook)"; conda activate own; python train.py',
    "if [ -d src ]; then cd src; fi; for i in 1 2; do python train.py; done",
    "case $A in\na) python a.py;;\n*) python b.py;;\nesac",
    "run() { python train.py; }\nrun",
    "bash -c 'set -e; python train.py'",
    "bash <<END\npython train.py\nEND",
    "nvidia-smi; sleep 5",
    "exit 3",
    "wandb login && dvc pull && uv sync && uv run train.py",
    "python -m lightning_app_of_mine.train",
    "accelerate config default && python train.py",
]


@pytest.mark.parametrize("typed", PLAIN)
def test_torchrun_is_put_around_plain_programs(typed: str) -> None:
    found = detect_launcher(typed)
    assert (found.launcher, found.unknown) == ("torchrun", "")
    assert "--no-python" in build_command(typed, (), ALONE).words


@pytest.mark.parametrize(
    ("typed", "named"),
    [
        ("tune run --nproc_per_node 2 full_finetune", "tune run"),
        ("python -m torchtune._cli.tune run x", "python -m torchtune._cli.tune"),
        ("ray job submit -- python train.py", "ray job"),
        ("torchx run -s local dist.ddp", "torchx run"),
        ("llamafactory-cli train a.yaml", "llamafactory-cli train"),
        ("axolotl train a.yaml", "axolotl train"),
        ("nemo llm pretrain", "nemo llm"),
        ("swift sft", "swift sft"),
        ("wandb agent team/sweep", "wandb agent"),
        ("cd src && uv run tune run x", "tune run"),
        ("env A=1 nice tune run x", "tune run"),
        ("timeout -k 5 3600 tune run x", "tune run"),
        ("python /opt/venv/bin/tune run x", "tune"),
        ("./train", "./train"),
        ("bash train.sh", "train.sh"),
        ("bash -x scripts/train.sh --lr 1", "scripts/train.sh"),
        ("sh ./train.sh", "./train.sh"),
        ("./train.sh", "./train.sh"),
        ("make train", "make train"),
        ("$TRAIN --lr 1", "$TRAIN"),
        ("$(cat command.txt)", "$(...)"),
        ("srun python train.py", "srun python"),
        ("bash -c 'tune run x'", "tune run"),
        ("source train.sh", "train.sh"),
    ],
)
def test_nothing_is_put_around_what_is_not_known(typed: str, named: str) -> None:
    found = detect_launcher(typed)
    assert (found.launcher, found.unknown) == ("none", named)
    built = build_command(typed, (), ALONE)
    assert "--no-python" not in built.words
    assert built.environment["PET_NNODES"] == "1"
    assert "--no-python" in build_command(typed, (), ALONE, "torchrun").words


def test_launcher_of_the_job_is_stronger_than_what_is_detected() -> None:
    assert "--no-python" not in build_command("python train.py", (), ALONE, "none").words
    assert "It must be none" in check_command("torchrun train.py", (), "torchrun")
    assert check_command("torchrun train.py", (), "none") == ""
    words = container({"command": "python train.py", "launcher": "none"})["command"]
    assert "torchrun" not in words


SCRIPTS = {
    "train.sh": "#!/bin/bash\nset -e\ntorchrun train.py\n",
    "plain.sh": '#!/bin/bash\nset -euo pipefail\nexport A=1\npython train.py "$@" | tee log\n',
    "outer.sh": 'cd "$(dirname "$0")"\nbash scripts/inner.sh\n',
    "scripts/inner.sh": "source common.sh\ntorchrun train.py\n",
    "scripts/common.sh": "export A=1\n",
    "here.sh": "DIR=$(cd $(dirname $0); pwd)\n. $DIR/train.sh\n",
    "loop.sh": "bash loop.sh\npython train.py\n",
    "run": "#!/usr/bin/env python3\nprint(1)\n",
    "run-uv": "#!/usr/bin/env -S uv run --script\nprint(1)\n",
    "tune.sh": "tune run x\n",
    "words.sh": 'ARGS="\n  --nproc_per_node 8 \\\n  --nnodes 1"\npython -m torch.distributed.launch $ARGS train.py\n',
    "one.sh": "NNODES=1\nGPUS=2\nARGS=(--nproc_per_node $GPUS --nnodes $NNODES)\ntorchrun ${ARGS[@]} train.py\n",
}


@pytest.mark.parametrize(
    ("typed", "own_launcher", "unknown", "place"),
    [
        ("bash train.sh", "torchrun", "", "train.sh"),
        ("sh train.sh 8", "torchrun", "", "train.sh"),
        ("bash -x ./train.sh", "torchrun", "", "train.sh"),
        ("bash -o pipefail -e train.sh", "torchrun", "", "train.sh"),
        ("./train.sh", "torchrun", "", "train.sh"),
        ("source ./train.sh", "torchrun", "", "train.sh"),
        (". train.sh", "torchrun", "", "train.sh"),
        ("env A=1 bash train.sh", "torchrun", "", "train.sh"),
        ("timeout 60 ./train.sh", "torchrun", "", "train.sh"),
        ("bash -c 'exec ./train.sh'", "torchrun", "", "train.sh"),
        ("bash outer.sh", "torchrun", "", "scripts/inner.sh"),
        ("cd scripts && bash inner.sh", "torchrun", "", "scripts/inner.sh"),
        ("bash here.sh", "torchrun", "", "train.sh"),
        ("uv run bash train.sh", "torchrun", "", "train.sh"),
        ("bash plain.sh", "", "", ""),
        ("bash loop.sh", "", "", ""),
        ("./run --lr 1", "", "", ""),
        ("./run-uv", "", "", ""),
        ("bash tune.sh", "", "tune run", "tune.sh"),
        ("bash other.sh", "", "other.sh", ""),
    ],
)
def test_scripts_of_the_workspace_are_read(typed: str, own_launcher: str, unknown: str, place: str) -> None:
    found = detect_launcher(typed, (), SCRIPTS.get)
    assert (found.own_launcher, found.unknown, found.place) == (own_launcher, unknown, place)
    assert found.launcher == ("none" if own_launcher or unknown else "torchrun")


def test_reading_scripts_ends() -> None:
    asked = []

    def read(name: str) -> str:
        asked.append(name)
        return f"bash x{len(asked)}.sh\n" * 3

    assert detect_launcher("bash x.sh", (), read).launcher == "none"
    assert len(asked) < 100


TWO = JobShape(nodes=2, minimum=2, processes=8, backend="c10d")
ONE = JobShape(nodes=1, minimum=1, processes=8, backend="c10d")
RANGE = JobShape(nodes=4, minimum=2, processes=8, backend="c10d")
ON_CPUS = JobShape(nodes=2, minimum=2, processes=None, backend="c10d")


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ("torchrun --standalone train.py", "--standalone"),
        ("torchrun --standalone --nproc-per-node 8 train.py", "--standalone"),
        ("torchrun --stand train.py", "--standalone"),
        ("torchrun --nnodes=1 train.py", "--nnodes=1"),
        ("torchrun --nnodes 1:1 train.py", "--nnodes=1:1"),
        ("torchrun --nnodes 1:2 train.py", "--nnodes=1:2"),
        ("torchrun --tee 3 --nnodes 4 train.py", "--nnodes=4"),
        ("torchrun --nproc-per-node=4 train.py", "--nproc-per-node=4"),
        ("torchrun --nproc_per_node 4 train.py", "--nproc-per-node=4"),
        ("torchrun --nproc 4 train.py", "--nproc-per-node=4"),
        ("torchrun --node-rank 0 train.py", "--node-rank=0"),
        ("torchrun --rdzv-endpoint localhost:29500 train.py", "--rdzv-endpoint=localhost:29500"),
        ("torchrun --master_addr=127.0.0.1 train.py", "--master-addr=127.0.0.1"),
        ("torchrun --rdzv-backend static train.py", "--rdzv-backend=static"),
        ("python -m torch.distributed.run --nnodes=1 train.py", "--nnodes=1"),
        ("python -u -m torch.distributed.launch --nproc_per_node=2 train.py", "--nproc-per-node=2"),
        ("env X=1 torchrun --standalone train.py", "--standalone"),
        ("bash -c 'torchrun --standalone train.py'", "--standalone"),
        ("sh -c 'cd src; exec torchrun --nnodes=1 train.py'", "--nnodes=1"),
        ("exec torchrun --nnodes=1 train.py", "--nnodes=1"),
        ("nice -n 5 torchrun --nnodes=1 train.py", "--nnodes=1"),
        ("uv run torchrun --nnodes=1 train.py", "--nnodes=1"),
        ("poetry run torchrun --nnodes=1 train.py", "--nnodes=1"),
        ("conda run -n own torchrun --nnodes=1 train.py", "--nnodes=1"),
        ("PET_NNODES=1 torchrun train.py", "PET_NNODES=1"),
        ("export PET_NNODES=1; torchrun train.py", "PET_NNODES=1"),
        ("env -S 'torchrun --nnodes=1' train.py", "--nnodes=1"),
        ("busybox sh -c 'torchrun --nnodes=1 train.py'", "--nnodes=1"),
        ("(cd src; uvx torchrun --nnodes=1 train.py) || true", "--nnodes=1"),
        ("bash words.sh", "--nnodes=1"),
        ("N=1; torchrun --nnodes=$N train.py", "--nnodes=1"),
        ("export N=1 && torchrun --nnodes ${N} train.py", "--nnodes=1"),
        ("torchrun --nnodes ${NNODES:-1} train.py", "--nnodes=1"),
        ("bash one.sh", "--nnodes=1"),
        ("accelerate launch --num_machines 1 train.py", "--num_machines 1"),
        ("accelerate launch --num_processes=8 train.py", "--num_processes=8"),
        ("accelerate launch train.py", "starts accelerate launch"),
        ("deepspeed --num_nodes=1 train.py", "--num_nodes=1"),
        ("deepspeed train.py", "starts deepspeed"),
        ("composer -n 4 train.py", "-n 4"),
        ("composer -n 8 train.py", "starts composer"),
        ("mpirun -np 8 python train.py", "-np 8"),
        ("lightning run model train.py", "starts lightning run"),
        ("fabric run train.py", "starts fabric run"),
        ("colossalai run train.py", "starts colossalai run"),
    ],
)
def test_launcher_that_contradicts_two_nodes_is_refused(typed: str, said: str) -> None:
    place, wrong = find_flag_conflict(detect_launcher(typed, (), SCRIPTS.get), TWO)
    assert said in wrong
    assert place == (typed.removeprefix("bash ") if typed.endswith(".sh") else "")


@pytest.mark.parametrize(
    ("typed", "shape"),
    [
        ("torchrun train.py", TWO),
        ("torchrun --nnodes=2 --nproc-per-node=8 train.py", TWO),
        ("torchrun --nnodes 2:2 --nproc-per-node gpu train.py", TWO),
        ("torchrun --nnodes 2:4 train.py", RANGE),
        ("torchrun --nnodes $NNODES --nproc-per-node $(nvidia-smi -L | wc -l) train.py", TWO),
        ("torchrun train.py --nnodes=1 --standalone", TWO),
        ("torchrun -m own.train --nnodes 1", TWO),
        ("torchrun --node-rank $TORCHRUN_NODE_RANK train.py", TWO),
        ("torchrun --rdzv-backend etcd-v2 --rdzv-endpoint etcd:2379 train.py", TWO),
        ("N=1; N=2; torchrun --nnodes=$N train.py", TWO),
        ("torchrun --nproc-per-node 32 train.py", ON_CPUS),
        ("torchrun --standalone train.py", ONE),
        ("torchrun --standalone --nnodes=1 --nproc-per-node=8 train.py", ONE),
        ("accelerate launch train.py", ONE),
        ("accelerate launch --num_machines 1 --num_processes 8 train.py", ONE),
        ("accelerate launch train.py --num_processes 3", ONE),
        ("deepspeed train.py", ONE),
        ("composer -n 8 train.py", ONE),
        ("python train.py --nnodes 1", TWO),
        ("tune run x", TWO),
        ("export PET_NNODES=1; torchrun --nnodes=2 train.py", TWO),
    ],
)
def test_launcher_that_fits_the_job_is_not_refused(typed: str, shape: JobShape) -> None:
    assert find_flag_conflict(detect_launcher(typed), shape) == ("", "")


def test_launcher_none_takes_a_launcher_with_flags_of_its_own_for_the_nodes() -> None:
    own = "accelerate launch --num_machines 2 --machine_rank $TORCHRUN_NODE_RANK train.py"
    assert find_flag_conflict(detect_launcher(own), TWO, "none") == ("", "")
    wrong = "accelerate launch --num_machines 1 train.py"
    assert "the number of nodes must be 2" in find_flag_conflict(detect_launcher(wrong), TWO, "none")[1]


@pytest.mark.parametrize(
    ("of_job", "said"),
    [
        (
            {"command": "torchrun --standalone train.py"},
            "spec.command: torchrun has --standalone, but the job has 2",
        ),
        ({"command": "torchrun --nproc-per-node 2 train.py"}, "It must be 8"),
        ({"command": "deepspeed train.py"}, "spec.command: starts deepspeed"),
        (
            {"env": [{"name": "PET_NNODES", "value": "1"}]},
            "spec.env: has PET_NNODES=1, but the job has 2 nodes",
        ),
        (
            {"command": "torchrun --nnodes $N train.py", "env": [{"name": "N", "value": "1"}]},
            "spec.command: torchrun has --nnodes=1",
        ),
        ({"command": "torchrun train.py", "launcher": "torchrun"}, "spec.launcher: is torchrun"),
    ],
)
def test_a_job_that_is_contradicted_fails_before_the_first_pod(of_job: dict[str, Any], said: str) -> None:
    life = Life({**of_job, "numNodes": 2})
    life.reconcile()
    assert (life.status["phase"], life.status["reason"]) == ("Failed", "InvalidSpec")
    assert said in life.status["message"]
    assert life.names("Job") == []


def test_a_job_of_one_node_may_be_standalone() -> None:
    life = Life({"command": "torchrun --standalone train.py", "numNodes": 1, "numGPUs": 8})
    life.reconcile()
    assert life.names("Job")


def test_a_size_that_the_running_command_contradicts_is_not_taken() -> None:
    life = Life({"command": "torchrun --nnodes=2 train.py", "numNodes": 2, "numGPUs": 16}).run()
    before = life.names("Job")
    life.api.edit("TorchrunJob", "vit", numNodes=4)
    life.reconcile()
    assert (life.status["phase"], life.names("Job")) == ("Running", before)
    assert life.condition("Accepted") == ("False", "InvalidSpec")
    life.api.edit("TorchrunJob", "vit", numNodes=2)
    life.reconcile()
    assert life.condition("Accepted")[0] == "True"


@pytest.mark.parametrize(
    ("of_job", "said"),
    [
        ({"command": "tune run x"}, "tune run is not known to be a plain program"),
        ({"command": "tune run x", "launcher": "none"}, ""),
        ({"command": "python train.py"}, ""),
        ({"command": "torchrun train.py"}, ""),
    ],
)
def test_accepted_says_what_is_started_without_torchrun(of_job: dict[str, Any], said: str) -> None:
    life = Life(of_job).run()
    (accepted,) = (each for each in life.status["conditions"] if each["type"] == "Accepted")
    assert (accepted["status"], bool(accepted.get("message"))) == ("True", bool(said))
    assert said in (accepted.get("message") or "")
