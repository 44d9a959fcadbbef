"""The launcher of a command, and which of its flags do not fit the job."""

from __future__ import annotations

import time
from typing import Any

import pytest

from tests.unit.operator.life import Life
from trainyard.operator.api.job import parse_job
from trainyard.operator.launcher_detection import detect_launcher
from trainyard.operator.launcher_flags import find_conflict
from trainyard.operator.resources import Size


def rows(text: str) -> list[tuple[str, str]]:
    """Return the result and the command of each line."""
    lines = text.strip().replace("\\n", "\0").splitlines()
    return [(each.split(": ", 1)[0], each.split(": ", 1)[1].replace("\0", "\n")) for each in lines]


SCRIPTS = {
    "train.sh": "#!/bin/bash\nset -e\ntorchrun train.py\n",
    "plain.sh": '#!/bin/bash\nset -euo pipefail\nexport A=1\npython train.py "$@" | tee log\n',
    "outer.sh": 'cd "$(dirname "$0")"\nbash scripts/inner.sh\n',
    "scripts/inner.sh": "source common.sh\ntorchrun train.py\n",
    "scripts/run.sh": '. "$(dirname "$0")/inner.sh"\n',
    "scripts/common.sh": "export A=1\n",
    "here.sh": "DIR=$(cd $(dirname $0); pwd)\n. $DIR/train.sh\n",
    "loop.sh": "bash loop.sh\npython train.py\n",
    "run": "#!/usr/bin/env python3\nprint(1)\n",
    "run-uv": "#!/usr/bin/env -S uv run --script\nprint(1)\n",
    "tune.sh": "tune run x\n",
    "words.sh": 'ARGS="\n  --nproc_per_node 8 \\\n  --nnodes 1"\npython -m torch.distributed.launch $ARGS train.py\n',
    "one.sh": "NNODES=1\nGPUS=2\nARGS=(--nproc_per_node $GPUS --nnodes $NNODES)\ntorchrun ${ARGS[@]} train.py\n",
}
# In each line the result and a command: `plain`, the launcher that the command starts, or `?` and the unknown program.
COMMANDS = r"""
plain: python train.py --epochs 10
plain: python3.12 -u -m own.train --lr 1
plain: /opt/venv/bin/python -W ignore -X faulthandler train.py
plain: python -c 'print(1)' -m torch.distributed.run
plain: $PYTHON train.py torchrun
plain: ${PYTHON:-python} -m own.train
plain: PYTHON=python3; $PYTHON train.py
plain: CMD='python train.py'; eval "$CMD"
plain: uv sync; poetry install; uv run --with deepspeed --index-url https://x.y/simple python train.py
plain: uv run --only-group deepspeed -p 3.12 -m own.train
plain: pixi run -e deepspeed python train.py
plain: conda run -n deepspeed --no-capture-output python train.py
plain: eval "$(conda shell.bash hook)"; eval $(ssh-agent); conda activate own && python train.py
plain: env -u B A=torchrun python train.py
plain: NCCL_DEBUG=INFO LAUNCHER=deepspeed nohup python train.py > torchrun 2>&1 &
plain: timeout -k 30 -s INT 3600 nice -n 10 python train.py
plain: numactl --cpunodebind=0 -m 0 taskset -c 0-7 python train.py
plain: stdbuf -oL python train.py |& tee log
plain: sudo -u mpirun python train.py
plain: uv run --no-sync -w deepspeed --env-file .env src/2_train.py
plain: mapfile -t A < x; umount /x; truncate -s 0 x; vmstat 1 & conda run -n torchrun --live-stream python train.py
plain: conda run -p /opt/envs/torchrun python train.py; uv run -p /usr/bin/python3 src/train.py
plain: nsys profile --cuda-graph-trace node python train.py; ncu --replay-mode application python train.py
plain: /usr/bin/time -f %e -a -o time.txt python train.py; sudo -n -u deepspeed -D /src python -u -m own.train
plain: nsys profile -t cuda,nvtx -o deepspeed -f true --capture-range cudaProfilerApi python train.py
plain: ncu --set full -k regex:gemm -o deepspeed -f python train.py
plain: cd torchrun && pip install -r requirements.txt torchrun deepspeed && exec python train.py
plain: set -ex; apt-get update; source .venv/bin/activate; python train.py
plain: bash -c "$(curl https://x.y/a.sh)"; curl https://x.y/b.sh | sh && uv sync && uv run train.py
plain: wandb login && dvc pull && hf download x && python train.py
plain: accelerate config default; accelerate --help; deepspeed --version; mpirun --version; ds_report; ./train.py
plain: command -v torchrun; which deepspeed; command -v mpirun >/dev/null && python train.py
plain: echo torchrun starts; printf '%s' deepspeed '; torchrun'; python train.py a#b --deepspeed ds.json # torchrun
plain: python torchrun_demo.py; python -m torchrunner; python recipes/torchrun; $(which python) - deepspeed
plain: bash -euo pipefail -c 'A=1 python train.py | tee log'
plain: bash <<END\npython train.py\nEND
plain: bash -c 'python train.py' # don't\n: torchrun
plain: cat > NOTES <<EOF; python train.py\ntorchrun train.py\nEOF\n
plain: cat <<-'A' <<B\nB\ntorchrun a.py\n\tA\ndeepspeed b.py\nB\npython train.py
plain: cat <<EOF\ntorchrun train.py\n EOF\n
plain: python train.py --steps $((1<<2)) --fail-at -1 # via torchrun
plain: for ((i = 1 << 2; i; i--)); do python train.py $i; done
plain: [[ $X = a || torchrun = $X ]] && python train.py
plain: L=(\n  a\n  torchrun\n); python train.py "${L[@]}"
plain: case $A in\na) python a.py;;\n*) python b.py;;\nesac
plain: log() { echo "$(date) $*"; }\nfunction run { python train.py; }\nlog start; run
plain: if [ -d src ]; then cd src; fi; while ! python train.py; do sleep 5; done || { echo failed; exit 1; }
plain: (python train.py; python eval.py) 2> >(tee err >&2) | tee log
torchrun: torchrun train.py
torchrun: python3.11 -W ignore -um torch.distributed.launch train.py
torchrun: python -mtorch.distributed.run train.py
torchrun: python /opt/conda/bin/torchrun train.py
torchrun: python "$(command -v torchrun)" train.py
torchrun: $(which torchrun) train.py | tee log; nvidia-smi
torchrun: ${PYTHON:-/usr/bin/python} -u -m torch.distributed.run train.py
torchrun: $PREFIX torchrun train.py
torchrun: CMD="torchrun train.py"; echo $CMD; $CMD
plain: L=python; test $A && L=python3; $L train.py
torchrun: accelerate launch a.py; torchrun b.py
torchrun: env -u A B=1 /usr/bin/env torchrun train.py
torchrun: sudo -s torchrun train.py
torchrun: poetry -n run torchrun train.py
torchrun: uv --directory src run --frozen --with torch -- torchrun train.py
torchrun: uv run -n torchrun train.py
torchrun: uv run --module torch.distributed.run train.py
torchrun: nsys profile -o trace -t cuda torchrun train.py
torchrun: bash -lc 'A=1 torchrun train.py'
torchrun: bash -c "sh -c \"exec torchrun train.py\""
torchrun: eval 'torchrun train.py'; true
torchrun: run() { /opt/bin/torchrun a.py; }; export A=1 && cd src # as ever\ntorchrun train.py
torchrun: cd src && \\n  torchrun \\n  train.py
torchrun: if [ -d src ]; then cd src; fi; for i in 1 2; do torchrun train.py; done
torchrun: (cd src; >log 2>&1 exec torchrun train.py)
torchrun: N=$(((1 << 2) * (3 + (1)))) PATH=`pwd`:$PATH torchrun train.py $(nproc)
torchrun: N=$(cat <<END\n'\nEND\n) torchrun train.py
torchrun: cat <<END; torchrun train.py\nwords\nEND
torchrun: /bin/bash -eu <<'END' | tee log\ncd src\nexec torchrun train.py\nEND\n
torchrun: cat > a.yaml <<END-1.x\nx y\nEND-1.x\ntorchrun train.py
plain: cat > a.sh <<\EOF\ntorchrun a.py\nEOF\npython train.py
torchrun: cat <<< word\n[[ -d src && ! -d lib ]] && torchrun train.py
torchrun: OUT=$(torchrun train.py) && echo $OUT
torchrun: torchrun train.py # don't\necho 'open
accelerate launch: pip install -r requirements.txt\naccelerate config default\naccelerate launch train.py\n
accelerate launch: LAUNCHER="accelerate launch"; $LAUNCHER train.py
accelerate-launch: accelerate-launch train.py
python -m accelerate.commands.launch: uv run -m accelerate.commands.launch train.py
deepspeed: NCCL_DEBUG=INFO exec deepspeed train.py
deepspeed: uv run --with deepspeed --active deepspeed train.py
deepspeed: time -p deepspeed train.py; time -p bash missing.sh
deepspeed: x=`deepspeed train.py`
deepspeed: uv run -p python3.12 deepspeed train.py
mpirun: setsid --wait mpirun -np 8 python train.py
python -m deepspeed.launcher.runner: python -m deepspeed.launcher.runner train.py
mpiexec.hydra: mpiexec.hydra -n 8 python train.py
fabric run: uvx --from lightning fabric run train.py
colossalai run: colossalai run train.py
? tune run: tune run --nproc_per_node 2 full_finetune
? tune run: python /opt/venv/bin/tune run x
? python -m torchtune._cli.tune run: python -m torchtune._cli.tune run x
? python -m accelerate.commands.accelerate_cli launch: python -m accelerate.commands.accelerate_cli launch train.py
? my-train: uv run --frozen my-train --lr 1 --fast
? ./train: timeout --preserve-status 3600 ./train
? a: eval '$PY a; python b.py'
? scripts/missing.sh: bash -x scripts/missing.sh --lr 1
? missing.sh: source missing.sh
? tune run in tune.sh: bash tune.sh
torchrun in train.sh: bash train.sh 8
torchrun in train.sh: sh -x -o pipefail -e ./train.sh
torchrun in train.sh: ./train.sh
torchrun in train.sh: . train.sh
torchrun in train.sh: bash -c 'exec ./train.sh'
torchrun in scripts/inner.sh: bash outer.sh
torchrun in scripts/inner.sh: bash scripts/run.sh
torchrun in scripts/inner.sh: cd scripts && bash inner.sh
torchrun in train.sh: bash here.sh
plain: bash plain.sh; bash loop.sh
plain: ./run --lr 1; ./run-uv
? make train: make train
? $TRAIN: $TRAIN --lr 1
? $(cat command.txt): $(cat command.txt)
torchrun: if test $A; then L="torchrun --nnodes=1"; else L="python -m torch.distributed.run"; fi; $L train.py
deepspeed: L=python; test $A && L=deepspeed; L=python3; eval $L train.py
? srun torchrun: srun torchrun train.py
? launch: conda run -n accelerate launch train.py
? retry: python train.py; retry 3
"""


@pytest.mark.parametrize(("expected", "command"), rows(COMMANDS))
def test_detect_launcher_command_decides(expected: str, command: str) -> None:
    found = detect_launcher(command, (), SCRIPTS.get)
    result = f"? {found.unknown}" if found.unknown else found.own_launcher or "plain"
    assert (f"{result} in {found.place}" if found.place else result) == expected
    assert found.launcher == ("torchrun" if expected == "plain" else "none")


@pytest.mark.parametrize(
    ("command", "args", "own"),
    [
        ("env", ("A=1", "torchrun", "train.py"), "torchrun"),
        ("bash -c", ("torchrun train.py",), "torchrun"),
        ("cd src && bash -c", ("A=1; torchrun train.py",), "torchrun"),
        ("cd src && exec", ("deepspeed", "train.py"), "deepspeed"),
        ("python", ("-u", "-m", "torch.distributed.run", "train.py"), "torchrun"),
        ("accelerate", ("launch", "train.py"), "accelerate launch"),
        ("python train.py", ("torchrun",), ""),
        ("cd src && python train.py", ("; torchrun", "accelerate", "launch"), ""),
    ],
)
def test_detect_launcher_args_are_words_of_command(command: str, args: tuple[str, ...], own: str) -> None:
    assert detect_launcher(command, args).own_launcher == own


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
        "((" * 9000 + "))" * 9000,
        "bash <<a\n" * 3000,
        "bash " + "-a " * 5000 + "<<a " * 4000 + "\n",
        "".join(f"cat <<a{each}\na{each}\n" for each in range(3000)),
        "! " * 8000 + "[[ " + "|" * 10000,
        "A=1;" + "A=$A$A;" * 4000 + "$A" * 1000,
    ],
)
def test_detect_launcher_long_command_takes_under_2_s(command: str) -> None:
    started = time.process_time()
    detect_launcher(command)
    assert time.process_time() - started < 2


def test_detect_launcher_many_scripts_stops_reading() -> None:
    read_names = []

    def read(name: str) -> str:
        read_names.append(name)
        return f"bash x{len(read_names)}.sh\n" * 3

    assert detect_launcher("bash x.sh", (), read).launcher == "none"
    assert len(read_names) < 300


SIZES = {
    "two": Size(nodes=2, minimum=2, gpus=8),
    "one": Size(nodes=1, minimum=1, gpus=8),
    "range": Size(nodes=4, minimum=2, gpus=8),
    "cpu": Size(nodes=2, minimum=2, gpus=0),
}


def conflict(command: str, size: str, **spec: Any) -> tuple[str, str]:
    job, problems = parse_job({"jobQueue": "q", "numGPUs": 16, "command": command, **spec})
    assert job is not None, problems
    return find_conflict(job, detect_launcher(command, (), SCRIPTS.get), SIZES[size], "c10d")


@pytest.mark.parametrize(
    ("expected", "command"),
    rows(r"""
--standalone: torchrun --standalone --nproc-per-node 8 train.py
--nnodes 1:2: torchrun --nnodes 1:2 train.py
--nnodes 4: torchrun -t 3 --no-python --nnodes 4 train.py
--nproc_per_node 4: torchrun --nproc_per_node 4 train.py
--node-rank 0: torchrun --node-rank 0 train.py
--rdzv-endpoint localhost:29500: torchrun --rdzv-endpoint localhost:29500 train.py
--master_addr=127.0.0.1: torchrun --master_addr=127.0.0.1 train.py
--rdzv-backend static: torchrun --rdzv-backend static train.py
--nnodes=1: python -m torch.distributed.run --nnodes=1 train.py
--nproc_per_node=2: python -u -m torch.distributed.launch --nproc_per_node=2 train.py
--nnodes=1: (cd src; conda run -n own torchrun --nnodes=1 train.py) || true
--nnodes=1: N=1; torchrun --nnodes=$N train.py
--nnodes 1: torchrun --nnodes ${NNODES:-1} train.py
--nnodes 1: bash words.sh
--nnodes=1: env -S 'torchrun --nnodes=1' train.py
--nproc_per_node 2: bash one.sh
--num_machines 1: accelerate launch --num_machines 1 train.py
--num_processes=8, but the job has 16 GPUs: accelerate launch --num_processes=8 train.py
starts accelerate launch: accelerate launch train.py
--num_nodes=1: deepspeed --num_nodes=1 train.py
starts deepspeed: deepspeed train.py
-n 4, but the job has 8 GPUs on each node: composer -n 4 train.py
starts composer: composer -n 8 train.py
-np 8: mpirun -mca btl self -x A=1 --hostfile a/b -np 8 ./train
starts lightning run: lightning run model train.py
"""),
)
def test_find_conflict_wrong_flag_is_named(expected: str, command: str) -> None:
    place, wrong = conflict(command, "two")
    assert expected in wrong
    assert place == (command.removeprefix("bash ") if command.endswith(".sh") else "spec.command")


@pytest.mark.parametrize(
    ("size", "command"),
    rows(r"""
two: torchrun --nnodes=2 --nproc-per-node=8 train.py
two: torchrun --nnodes 2:2 --nproc-per-node gpu train.py
range: torchrun --nnodes 2:4 train.py
two: torchrun --nnodes $NNODES --nproc-per-node $(nvidia-smi -L | wc -l) train.py
two: torchrun train.py --nnodes=1 --standalone
two: torchrun --node-rank $TORCHRUN_NODE_RANK train.py
two: torchrun --rdzv-backend etcd-v2 --rdzv-endpoint etcd:2379 train.py
two: if true; then N=2; else N=1; fi; torchrun --nnodes=$N train.py
cpu: torchrun --nproc-per-node 32 train.py
one: torchrun --standalone --nnodes=1 --nproc-per-node=8 train.py
one: accelerate launch --num_machines 1 --num_processes 8 train.py
one: accelerate launch train.py --num_processes 3
one: composer -n 8 train.py
one: accelerate launch --num_processes 8 -m own.train --num_processes 3 -n 3
one: accelerate launch own-train --devices 3 -n 3
one: mpirun -np 8 ./train -n 3
two: python train.py --nnodes 1
"""),
)
def test_find_conflict_matching_flags_is_empty(size: str, command: str) -> None:
    assert conflict(command, size) == ("", "")


def test_find_conflict_switch_in_env_counts_if_set() -> None:
    for value, place in (("0", ""), ("1", "spec.env")):
        variables = [{"name": "PET_STANDALONE", "value": value}]
        assert conflict("python train.py", "two", env=variables)[0] == place


def test_find_conflict_launcher_none_accepts_own_nodes() -> None:
    own = "accelerate launch --num_machines 2 --machine_rank $TORCHRUN_NODE_RANK train.py"
    assert conflict(own, "two", launcher="none") == ("", "")
    wrong = conflict("accelerate launch --num_machines 1 train.py", "two", launcher="none")[1]
    assert "the job has 2 nodes. It must be 2" in wrong


N_OF_ENV = {"command": "torchrun --nnodes $N train.py", "env": [{"name": "N", "value": "1"}]}


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ({"command": "torchrun --standalone train.py"}, "spec.command: torchrun has --standalone"),
        ({"env": [{"name": "PET_NNODES", "value": "1"}]}, "spec.env: has PET_NNODES=1"),
        (N_OF_ENV, "spec.command: torchrun has --nnodes 1"),
        ({"command": "torchrun train.py", "launcher": "torchrun"}, "spec.launcher: is torchrun"),
    ],
)
def test_reconcile_launcher_conflict_fails_before_pods(spec: dict[str, Any], expected: str) -> None:
    life = Life({**spec, "numNodes": 2}).begin()
    assert life.state == ("Failed", "InvalidSpec")
    assert expected in life.message
    assert life.names("Job") == []


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ({"command": "tune run x"}, "tune run is not known to be a plain program"),
        ({"command": "tune run x", "launcher": "none"}, ""),
        ({"command": "torchrun train.py"}, ""),
    ],
)
def test_reconcile_unknown_program_is_in_accepted(spec: dict[str, Any], expected: str) -> None:
    life = Life(spec).run()
    (accepted,) = (each for each in life.status["conditions"] if each["type"] == "Accepted")
    assert (accepted["status"], bool(accepted.get("message"))) == ("True", bool(expected))
    assert expected in (accepted.get("message") or "")
