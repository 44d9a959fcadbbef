"""The launcher of a command, and which of its flags do not fit the job."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.operator.life import Life
from tests.unit.operator.made import container
from tests.unit.operator.test_command import ALONE
from trainyard.operator.command import build_command, check_command, detect_launcher
from trainyard.operator.launcher_detection import find_flag_conflict
from trainyard.operator.resources import Size

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("command", "named"),
    [
        ("accelerate launch train.py", "accelerate launch"),
        ("accelerate launch --num_processes 8 -m own.train", "accelerate launch"),
        ("accelerate-launch train.py", "accelerate-launch"),
        ("python -m accelerate.commands.launch train.py", "python -m accelerate.commands.launch"),
        ("python -u -m accelerate.commands.accelerate_cli launch train.py", "accelerate launch"),
        ("deepspeed train.py", "deepspeed"),
        ("python -m deepspeed.launcher.runner train.py", "python -m deepspeed.launcher.runner"),
        ("python $(which deepspeed) train.py", "deepspeed"),
        ("mpirun -np 8 python train.py", "mpirun"),
        ("accelerate launch a.py; torchrun b.py", "torchrun"),
        ("mpiexec -n 8 python train.py", "mpiexec"),
        ("horovodrun -np 8 python train.py", "horovodrun"),
        # In the same places as torchrun.
        ("cd src && accelerate launch train.py", "accelerate launch"),
        (
            "pip install -r requirements.txt\naccelerate config default\naccelerate launch train.py\n",
            "accelerate launch",
        ),
        ("NCCL_DEBUG=INFO exec deepspeed train.py", "deepspeed"),
        ("bash -c 'cd src && deepspeed train.py'", "deepspeed"),
        ("uv run accelerate launch train.py", "accelerate launch"),
        ("uv run --frozen deepspeed train.py", "deepspeed"),
        ("uv run -m accelerate.commands.launch train.py", "python -m accelerate.commands.launch"),
        ("conda run -n own --no-capture-output deepspeed train.py", "deepspeed"),
        ("if [ -d src ]; then cd src; fi; mpirun python train.py", "mpirun"),
        # After here-documents and arithmetic.
        ("cat > ds.json <<EOF\n{}\nEOF\ndeepspeed train.py", "deepspeed"),
        ("bash <<EOF\naccelerate launch train.py\nEOF", "accelerate launch"),
        ("echo $((1 << 2)); mpirun x y", "mpirun"),
        # After options without a value.
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
        # Options of wrappers that have an operand.
        ("timeout --preserve-status 3600 torchrun train.py", "torchrun"),
        ("timeout --foreground 1h accelerate launch train.py", "accelerate launch"),
        ("timeout -k 5 -s INT 3600 deepspeed train.py", "deepspeed"),
        ("taskset -c 0-7 torchrun train.py", "torchrun"),
        ("chrt -f 99 deepspeed train.py", "deepspeed"),
        ("flock -n /tmp/lock torchrun train.py", "torchrun"),
        ("flock -w 5 /tmp/lock -c 'torchrun train.py'", "torchrun"),
        # Within command substitutions.
        ("OUT=$(torchrun train.py) && echo $OUT", "torchrun"),
        ("x=`deepspeed train.py`", "deepspeed"),
    ],
)
def test_detect_launcher_other_launcher_is_found(command: str, named: str) -> None:
    found = detect_launcher(command)
    assert (found.own_launcher, found.launcher) == (named, "none")


@pytest.mark.parametrize(
    "command",
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
        "uv run --with accelerate --with deepspeed -- python train.py",
        "conda run -n deepspeed python train.py",
        "conda run -n mpirun python train.py",
        "uv run --only-group deepspeed python train.py",
        "nsys profile -o deepspeed python train.py",
        "ncu -o deepspeed python train.py",
        "sudo -u mpirun python train.py",
        # Scripts of the user, and words that are no programs.
        "python recipes/deepspeed --lr 1",
        "python deepspeed --lr 1",
        "bash -c 'L=(deepspeed mpirun); python train.py'",
        "L=(a\nmpirun x\n); declare -a M+=(deepspeed x); python train.py",
        "[[ $X = a || deepspeed = $X ]] && python train.py",
        "if ! [[ ($X = a) && mpirun = $X ]]; then python train.py; fi",
        "# don't\npython train.py \"open; deepspeed train.py",
    ],
)
def test_detect_launcher_name_elsewhere_is_ignored(command: str) -> None:
    assert detect_launcher(command).own_launcher in ("", "torchrun")


def test_detect_launcher_args_are_words_of_command() -> None:
    assert detect_launcher("accelerate", ("launch", "train.py")).own_launcher == "accelerate launch"
    assert detect_launcher("cd src && exec", ("deepspeed", "train.py")).own_launcher == "deepspeed"
    assert detect_launcher("python train.py", ("accelerate", "launch")).own_launcher == ""


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
    "eval $(ssh-agent); python train.py",
    "curl -LsSf https://astral.sh/uv/install.sh | sh && uv run train.py",
    "exit 3",
    "wandb login && dvc pull && uv sync && uv run train.py",
    "python -m lightning_app_of_mine.train",
]


@pytest.mark.parametrize("command", PLAIN)
def test_detect_launcher_plain_program_is_torchrun(command: str) -> None:
    found = detect_launcher(command)
    assert (found.launcher, found.unknown) == ("torchrun", "")
    assert "--no-python" in build_command(command, (), ALONE).words


@pytest.mark.parametrize(
    ("command", "named"),
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
        ("python /opt/venv/bin/tune run x", "tune run"),
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
        ("conda run -n accelerate launch train.py", "launch"),
        ("timeout --preserve-status 3600 ./train", "./train"),
        ("uv run --frozen my-train --lr 1 --fast", "my-train"),
        ("sudo -E ./train --lr=1", "./train"),
        ("stdbuf -oL my-train x", "my-train"),
        ("nsys profile -o report my-train x", "my-train"),
    ],
)
def test_detect_launcher_unknown_program_is_none(command: str, named: str) -> None:
    found = detect_launcher(command)
    assert (found.launcher, found.unknown) == ("none", named)
    built = build_command(command, (), ALONE)
    assert "--no-python" not in built.words
    assert built.environment["PET_NNODES"] == "1"
    assert "--no-python" in build_command(command, (), ALONE, "torchrun").words


def test_build_command_launcher_spec_overrides_detection() -> None:
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
    ("command", "own_launcher", "unknown", "place"),
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
def test_detect_launcher_script_in_workspace_is_read(
    command: str, own_launcher: str, unknown: str, place: str
) -> None:
    found = detect_launcher(command, (), SCRIPTS.get)
    assert (found.own_launcher, found.unknown, found.place) == (own_launcher, unknown, place)
    assert found.launcher == ("none" if own_launcher or unknown else "torchrun")


def test_detect_launcher_many_scripts_stops_reading() -> None:
    read_names = []

    def read(name: str) -> str:
        read_names.append(name)
        return f"bash x{len(read_names)}.sh\n" * 3

    assert detect_launcher("bash x.sh", (), read).launcher == "none"
    assert len(read_names) < 100


TWO = Size(nodes=2, least=2, gpus=8)
ONE = Size(nodes=1, least=1, gpus=8)
RANGE = Size(nodes=4, least=2, gpus=8)
ON_CPUS = Size(nodes=2, least=2, gpus=0)


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("torchrun --standalone train.py", "--standalone"),
        ("torchrun --standalone --nproc-per-node 8 train.py", "--standalone"),
        ("torchrun --stand train.py", "--standalone"),
        ("torchrun --nnodes=1 train.py", "--nnodes=1"),
        ("torchrun --nnodes 1:1 train.py", "--nnodes=1:1"),
        ("torchrun --nnodes 1:2 train.py", "--nnodes=1:2"),
        ("torchrun --tee 3 --nnodes 4 train.py", "--nnodes=4"),
        ("torchrun -t 3 --no-python --nnodes 4 train.py", "--nnodes=4"),
        ("torchrun --nproc-per-node=4 train.py", "--nproc-per-node=4"),
        ("torchrun --nproc_per_node 4 train.py", "--nproc-per-node=4"),
        ("torchrun --nproc 4 train.py", "--nproc-per-node=4"),
        ("torchrun --node-rank 0 train.py", "--node-rank=0"),
        ("torchrun --rdzv-endpoint localhost:29500 train.py", "--rdzv-endpoint=localhost:29500"),
        ("torchrun --master_addr=127.0.0.1 train.py", "--master-addr=127.0.0.1"),
        ("torchrun --rdzv-backend static train.py", "--rdzv-backend=static"),
        ("python -m torch.distributed.run --nnodes=1 train.py", "--nnodes=1"),
        ("python -u -m torch.distributed.launch --nproc_per_node=2 train.py", "--nproc-per-node=2"),
        ("bash -c 'torchrun --standalone train.py'", "--standalone"),
        ("sh -c 'cd src; exec torchrun --nnodes=1 train.py'", "--nnodes=1"),
        ("conda run -n own torchrun --nnodes=1 train.py", "--nnodes=1"),
        ("PET_NNODES=1 torchrun train.py", "PET_NNODES=1"),
        ("export PET_NNODES=1; torchrun train.py", "PET_NNODES=1"),
        ("env -S 'torchrun --nnodes=1' train.py", "--nnodes=1"),
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
def test_find_flag_conflict_wrong_flag_is_named(command: str, expected: str) -> None:
    place, wrong = find_flag_conflict(detect_launcher(command, (), SCRIPTS.get), TWO, "c10d")
    assert expected in wrong
    assert place == (command.removeprefix("bash ") if command.endswith(".sh") else "")


@pytest.mark.parametrize(
    ("command", "size"),
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
        ("if true; then N=2; else N=1; fi; torchrun --nnodes=$N train.py", TWO),
        ("PET_STANDALONE=0 torchrun train.py", TWO),
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
def test_find_flag_conflict_matching_flags_is_empty(command: str, size: Size) -> None:
    assert find_flag_conflict(detect_launcher(command), size, "c10d") == ("", "")


def test_find_flag_conflict_launcher_none_accepts_own_nodes() -> None:
    own = "accelerate launch --num_machines 2 --machine_rank $TORCHRUN_NODE_RANK train.py"
    assert find_flag_conflict(detect_launcher(own), TWO, "c10d", "none") == ("", "")
    wrong = "accelerate launch --num_machines 1 train.py"
    assert (
        "the number of nodes must be 2" in find_flag_conflict(detect_launcher(wrong), TWO, "c10d", "none")[1]
    )


@pytest.mark.parametrize(
    ("spec", "expected"),
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
def test_reconcile_launcher_conflict_fails_before_pods(spec: dict[str, Any], expected: str) -> None:
    life = Life({**spec, "numNodes": 2})
    life.reconcile()
    assert (life.status["phase"], life.status["reason"]) == ("Failed", "InvalidSpec")
    assert expected in life.status["message"]
    assert life.names("Job") == []


def test_reconcile_standalone_on_one_node_starts() -> None:
    life = Life({"command": "torchrun --standalone train.py", "numNodes": 1, "numGPUs": 8})
    life.reconcile()
    assert life.names("Job")


def test_reconcile_new_size_with_conflict_keeps_running() -> None:
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
    ("spec", "expected"),
    [
        ({"command": "tune run x"}, "tune run is not known to be a plain program"),
        ({"command": "tune run x", "launcher": "none"}, ""),
        ({"command": "python train.py"}, ""),
        ({"command": "torchrun train.py"}, ""),
    ],
)
def test_reconcile_unknown_program_is_in_accepted(spec: dict[str, Any], expected: str) -> None:
    life = Life(spec).run()
    (accepted,) = (each for each in life.status["conditions"] if each["type"] == "Accepted")
    assert (accepted["status"], bool(accepted.get("message"))) == ("True", bool(expected))
    assert expected in (accepted.get("message") or "")
