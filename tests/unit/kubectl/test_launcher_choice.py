"""What `submit` and `sync` decide about the launcher of a command, with the scripts of the workspace."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from tests.torchrun_manifests import manifest
from tests.unit.kubectl.conftest import SUBMIT, Run, TorchrunApi, only_line
from trainyard.kubectl.__main__ import main
from trainyard.kubectl.launcher_choice import script_reader
from trainyard.operator import names as n
from trainyard.workspace.sync_pod import Store

QUEUE = manifest("TorchrunQueue", "q", {"nodeResources.gpus": 8})["spec"]
DIGEST = "sha256:" + "0" * 64
Dry = Callable[..., tuple[int, dict[str, object], str]]


@pytest.fixture
def dry(code: Path, capfd: pytest.CaptureFixture[str]) -> Dry:
    """Submits without a cluster: exit code, spec, and all of standard error."""
    (code / "train.sh").write_text("set -e\n# --nnodes=1 is for a laptop\ntorchrun $A train.py\n")
    (code / "one.sh").write_text("set -e\n# --standalone\ntorchrun \\\n  --standalone train.py\n")
    (code / "plain.sh").write_text("set -e\npython train.py | tee log\n")
    (code / "tune.sh").write_text("tune run x\n")

    def call(*words: str) -> tuple[int, dict[str, object], str]:
        capfd.readouterr()
        result = main(["submit", "--queue", "q", "--name", "one", "--dry-run", *words], {})
        out, err = capfd.readouterr()
        return result, yaml.safe_load(out)["spec"] if out else {}, err

    return call


@pytest.mark.parametrize(
    ("typed", "said", "launcher"),
    [
        ("python train.py", "torchrun starts train.py once for each GPU", None),
        ("cd src && python -u -m own.train --lr 1", "torchrun starts python -m own.train once", None),
        ("nvidia-smi; uv run src/a.py b.txt", "torchrun starts src/a.py once", None),
        ("nvidia-smi", "torchrun starts it once", None),
        ("bash plain.sh", "torchrun starts plain.sh once for each GPU", "torchrun"),
        ("bash train.sh", "train.sh starts torchrun, so it runs once on each node", "none"),
        ("torchrun train.py", "starts torchrun, so it runs once on each node", None),
        ("tune run x", "runs once on each node, without torchrun: tune run is not known", None),
        ("bash tune.sh", "without torchrun: tune run, which tune.sh runs, is not known", "none"),
        ("bash /opt/train.sh", "/opt/train.sh is not in the workspace and can't be read", None),
        ("make train", "without torchrun: make train is not known to be a plain program", None),
    ],
)
def test_submit_says_what_starts_the_processes(dry: Dry, typed: str, said: str, launcher: str | None) -> None:
    code, spec, err = dry("--gpus", "8", typed)
    assert code == 0
    assert said in err
    assert spec.get("launcher") == launcher
    assert ("--launcher" in err) == ("starts torchrun" not in err)


@pytest.mark.parametrize("launcher", ["torchrun", "none"])
def test_launcher_flag_is_sent(dry: Dry, launcher: str) -> None:
    code, spec, err = dry("--gpus", "8", "--launcher", launcher, "tune run x")
    assert (code, spec["launcher"]) == (0, launcher)
    assert f"(--launcher {launcher})" in err


@pytest.mark.parametrize(
    ("flags", "command", "said"),
    [
        ("--nodes 2", "torchrun --standalone train.py", "command: torchrun has --standalone"),
        ("--nodes 2", "bash one.sh", "one.sh, line 4: torchrun has --standalone"),
        ("--min 1 --max 2", "bash one.sh", "the job has 1:2 nodes"),
        ("--nodes 2", "accelerate launch train.py", "command: starts accelerate launch"),
        ("--nodes 2 --env PET_NNODES=1", "torchrun train.py", "--env: has PET_NNODES=1"),
        ("--launcher torchrun", "bash train.sh", "--launcher: is torchrun, but train.sh starts"),
    ],
)
def test_launcher_that_contradicts_the_job_is_refused(dry: Dry, flags: str, command: str, said: str) -> None:
    code, spec, err = dry("--gpus", "16", *flags.split(), command)
    assert (code, spec) == (64, {})
    assert said in err


def test_launcher_check_uses_the_size_of_the_queue(api: TorchrunApi, run: Run) -> None:
    queue = manifest("TorchrunQueue", "q", {"nodeResources.gpus": 4})
    api.queue("q", **queue["spec"])
    words = ("submit", "--queue", "q", "--name", "one", "--no-workspace", "torchrun --nnodes=1 train.py")
    assert run(*words[:-1], "--gpus", "4", words[-1])[0] == 0
    result, _, err = run(*words[:-1], "--gpus", "8", words[-1])
    assert result == 64
    assert "torchrun has --nnodes=1, but the job has 2 nodes. It must be 2" in err


@pytest.mark.parametrize(
    ("script", "launcher", "result", "said"),
    [
        ("torchrun train.py", "torchrun", 64, "train.sh starts torchrun now"),
        ("python train.py", "none", 0, "once on each node, but train.sh starts no launcher now"),
    ],
)
def test_sync_of_a_script_with_another_launcher_is_reported(
    api: TorchrunApi, run: Run, pod: Store, code: Path, script: str, launcher: str, result: int, said: str
) -> None:
    (code / "train.sh").write_text(script)
    api.job("one", command="bash train.sh", launcher=launcher, workspace={"digest": DIGEST, "sizeBytes": 1})
    assert run("sync", "one")[0] == result
    assert said in run("sync", "one")[2]


NOT_SENT = [
    ("python trian.py", "trian.py"),
    ("python -u ./src/a.py --lr 1", "./src/a.py"),
    ("NAME=1 nohup python3 -O a.py b.py", "a.py"),
    ("torchrun --nproc-per-node 8 a.py train.py", "a.py"),
    ("accelerate launch --config_file c.yaml a.py", "a.py"),
    ("bash run.sh", "run.sh"),
    ("./bin/run --lr 1", "./bin/run"),
    ("pip install -r requirements.txt && cd src && python a.py", "src/a.py"),
    ("python out/big.py", "out/big.py"),
    ("python data/c.py", "data/c.py"),
    ("python link.py", "link.py"),
    ("cd out && bash run.sh", "out/run.sh"),
]
SENT_OR_UNKNOWN = [
    "python train.py", "cd own && python -m own.a a.py", "python own", "python kept/b.py", "cd $DIR && python a.py",
    "python /opt/a.py", "cd /opt && python a.py", ". ./a.sh; python train.py", "python ../a.py", "python $NAME.py",
    "python -c 'import a' a.py", "python -m a b.py", "python - a.py", "a.py", "torchrun --no-python ./run a.py",
    "torchrun -m a b.py", "mpirun --wdir /opt a.py", "git clone x && python x/a.py",
    "cat > a.py <<END\nEND\npython a.py", "test -f a.py || exec python train.py; python a.py",
    "python mounted/a.py",
]  # fmt: skip


@pytest.mark.parametrize(("command", "name"), [*NOT_SENT, *((each, "") for each in SENT_OR_UNKNOWN)])
def test_script_that_is_not_sent_is_refused(
    api: TorchrunApi, run: Run, pod: Store, code: Path, command: str, name: str
) -> None:
    (code / ".torchrunignore").write_text("out/\nkept/*\n!kept/b.py\nlink.py\nc.py\n")
    for each in ("train.py", "out/big.py", "out/run.sh", "kept/b.py", "data/c.py", "own/__main__.py"):
        (code / each).parent.mkdir(exist_ok=True)
        (code / each).touch()
    (code / "link.py").symlink_to("out/big.py")
    mounts = [{"name": "scripts", "mountPath": "/app/mounted"}]
    template = {"containers": [{"name": n.WORKER_CONTAINER, "volumeMounts": mounts}]}
    api.queue("q", **QUEUE, podTemplate={"spec": template})
    result, _, err = run(*SUBMIT, command)
    assert result == (64 if name else 0), err
    assert (f"command: script {name!r} is " in err) == bool(name)
    assert not name or ("of the workspace, or an absolute path in the image" in only_line(err))
    assert run(*SUBMIT[:-1], "two", "--no-workspace", command)[0] == 0


@pytest.mark.parametrize(
    "queue",
    [
        {"workingDir": "/srv", "storage": {"workspace": {"enabled": True, "mountPath": "/code"}}},
        {"podTemplate": {"spec": {"initContainers": [{"name": "a", "image": "i:1"}]}}},
    ],
)
def test_script_of_the_image_is_accepted(
    api: TorchrunApi, run: Run, pod: Store, queue: dict[str, object]
) -> None:
    api.queue("q", **QUEUE, **queue)
    assert run(*SUBMIT, "python a.py")[0] == 0


def test_sync_without_the_script_of_the_job_is_refused(api: TorchrunApi, run: Run, pod: Store) -> None:
    api.queue("q", **QUEUE)
    api.job("one", command="python a.py", workspace={"digest": DIGEST, "sizeBytes": 1})
    result, _, err = run("sync", "one")
    assert result == 64
    assert "script 'a.py' is not in the workspace" in only_line(err)


def test_only_text_files_of_the_workspace_are_read(tmp_path: Path) -> None:
    root = tmp_path / "code"
    root.mkdir()
    (root / "a.sh").write_text("a")
    (root / "binary").write_bytes(b"\x7fELF\0")
    (tmp_path / "out.sh").write_text("out")
    (root / "link.sh").symlink_to("../out.sh")
    (root / "inner.sh").symlink_to("a.sh")
    (root / "d.sh").mkdir()
    read = script_reader(root)
    assert [read(each) for each in ("a.sh", "/app/a.sh", "x/../a.sh", "inner.sh")] == ["a"] * 4
    for each in ("binary", "link.sh", "../out.sh", "../code/a.sh", "/opt/a.sh", "d.sh", "none.sh", "a\0b"):
        assert read(each) is None
    assert script_reader(None)("a.sh") is None
