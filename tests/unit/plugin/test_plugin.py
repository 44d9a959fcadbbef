"""Every verb of `kubectl torchrun` against an API server, and everything that a person can get wrong."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType

import pytest
import yaml
from kubernetes.config import kube_config

from launcher.core.torchrun import names as n
from launcher.kube.rest import Patience
from launcher.plugin import complete, following, tables, upload
from launcher.plugin.__main__ import main
from launcher.plugin.cluster import LABEL_INDEX, Cluster
from launcher.workspace.store import Store
from tests.unit.launcher.api_history import Object
from tests.unit.launcher.api_server import serving, status
from tests.unit.plugin.plugin_api import JOBS, PODS, TorchrunApi, sent

pytestmark = pytest.mark.unit
ROOT = Path(__file__).parents[3]
Run = Callable[..., tuple[int, str, str]]
SUBMIT = ("submit", "--queue", "q", "--gpus", "8", "--name", "one")


@pytest.fixture
def api() -> Iterator[TorchrunApi]:
    with serving(TorchrunApi()) as served:
        assert isinstance(served, TorchrunApi)
        yield served


@pytest.fixture
def code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with a script, in which the plugin runs."""
    directory = tmp_path / "My_project"
    directory.mkdir()
    (directory / "train.py").write_text("print(1)\n")
    monkeypatch.chdir(directory)
    return directory


@pytest.fixture
def run(api: TorchrunApi, tmp_path: Path, code: Path, capfd: pytest.CaptureFixture[str]) -> Run:
    """Runs the plugin: exit code, standard output and error."""
    kubeconfig = api.kubeconfig(tmp_path / "kubeconfig")

    def call(*words: str, **environment: str) -> tuple[int, str, str]:
        capfd.readouterr()
        result = main([*words[:1], "--kubeconfig", str(kubeconfig), *words[1:]], environment)
        out, err = capfd.readouterr()
        return result, out, err

    return call


class Receiving:
    """What the sync pod runs, as a process here; `cut` is after how many bytes its connection breaks."""

    def __init__(self, root: Path, command: list[str], cut: int = -1) -> None:
        self.process = subprocess.Popen(
            [sys.executable, *command[1:], "--root", str(root)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=ROOT,
        )
        self.cut = cut

    def __enter__(self) -> Receiving:
        return self

    def __exit__(
        self, a: type[BaseException] | None, b: BaseException | None, c: TracebackType | None
    ) -> None:
        self.process.kill()
        self.process.communicate()

    def write(self, data: bytes) -> None:
        from launcher.kube.rest import ApiUnavailable

        assert self.process.stdin
        self.process.stdin.write(data)
        self.process.stdin.flush()
        if self.cut >= 0:
            self.process.stdin.close()
            self.process.stdin = None
            self.process.wait()
            raise ApiUnavailable("exec: the connection broke")

    def line(self) -> str:
        assert self.process.stdout
        return self.process.stdout.readline().decode().rstrip("\n")

    def result(self) -> tuple[int, str]:
        assert self.process.stderr
        return self.process.wait(), self.process.stderr.read().decode()


@pytest.fixture
def pod(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    """The store of the sync pod that uploads go to."""
    monkeypatch.setattr(
        upload.to_sync_pod,
        "__defaults__",
        (lambda _cluster, _pod, _container, command: Receiving(tmp_path / "store", command),),
    )
    return Store(tmp_path / "store")


def only_line(err: str) -> str:
    assert err.count("\n") == 1, err
    return err.strip()


def test_submit_sends_the_directory_and_makes_the_job(api: TorchrunApi, run: Run, pod: Store) -> None:
    api.queue("q")
    api.pod("one-sync-0", n.SYNC_CONTAINER)
    result, out, err = run(
        *SUBMIT, "--env", "A=1", "--env", "HERE", "python train.py --epochs 10", HERE="x y"
    )
    assert (result, out) == (0, "torchrunjob.torchrun.ai/one created\n")
    spec = api.objects[f"{JOBS}/one"]["spec"]
    digest = spec["workspace"]["digest"]
    assert spec == {
        "jobQueue": "q",
        "numGPUs": 8,
        "command": "python train.py --epochs 10",
        "env": [{"name": "A", "value": "1"}, {"name": "HERE", "value": "x y"}],
        "workspace": {"digest": digest, "sizeBytes": pod.archive(digest).stat().st_size},
    }
    current = pod.current()
    assert current is not None
    assert current.digest == digest
    assert "sent" in only_line(err)
    api.pod("two-sync-0", n.SYNC_CONTAINER)
    result, _, err = run("submit", "--queue", "q", "--gpus", "8", "--name", "two", "python train.py")
    assert "unchanged" in only_line(err)


def test_a_broken_upload_goes_on_where_it_was(
    api: TorchrunApi, run: Run, tmp_path: Path, code: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (code / "data").write_bytes(os.urandom(300_000))
    api.queue("q")
    api.pod("one-sync-0", n.SYNC_CONTAINER)
    cuts = [0, -1]
    monkeypatch.setattr(
        upload.to_sync_pod,
        "__defaults__",
        (lambda _c, _p, _n, command: Receiving(tmp_path / "store", command, cuts.pop(0)),),
    )
    result, _, err = run(*SUBMIT, "x")
    assert result == 0, err
    assert "going on where it broke" in err
    assert not cuts
    digest = api.objects[f"{JOBS}/one"]["spec"]["workspace"]["digest"]
    assert Store(tmp_path / "store").archive(digest).exists()


def test_a_job_whose_workspace_cant_be_sent_is_not_left(
    api: TorchrunApi, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    api.queue("q")
    monkeypatch.setattr(upload, "WAIT_SECONDS", 0.0)
    result, out, err = run(*SUBMIT, "x")
    assert (result, out) == (69, "")
    assert "pod one-sync-0: is not ready after 0 s" in err
    assert "deleted again" in err
    assert f"{JOBS}/one" not in api.objects


def test_what_keeps_the_pod_for_the_workspace_is_said_once(
    api: TorchrunApi, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upload, "PATIENCE_SECONDS", 0.0)
    monkeypatch.setattr(upload, "_ASK_SECONDS", 0.01)
    cluster = Cluster.connect(str(api.kubeconfig(tmp_path / "kubeconfig")), None, None)
    api.job("one", phase="Pending")["status"]["message"] = "queue q: spec.image: is empty"
    assert not upload.wait_for_sync_pod(cluster, "one", 0.3)
    waits = "waiting for pod one-sync-0, which takes the workspace\n"
    assert capfd.readouterr().err == waits + "one: Pending: queue q: spec.image: is empty\n"
    condition = {"type": "PodScheduled", "status": "False", "message": "0/1 nodes are available: 1 no. more"}
    api.pod("one-sync-0", n.SYNC_CONTAINER)["status"] = {"conditions": [condition]}
    assert not upload.wait_for_sync_pod(cluster, "one", 0.3)
    said = "pod one-sync-0 waits for a node: 0/1 nodes are available: 1 no\n"
    assert capfd.readouterr().err == waits + said


def test_an_unknown_queue_is_submitted_to_and_waited_for(api: TorchrunApi, run: Run) -> None:
    result, out, err = run(*SUBMIT, "x")
    assert (result, out) == (0, "torchrunjob.torchrun.ai/one created\n")
    assert "queue q: is not in namespace team yet; job one waits for it" in err
    assert "kubectl torchrun sync one" in err
    assert f"{JOBS}/one" in api.objects


def test_a_dry_run_prints_the_job_and_nothing_else(run: Run, api: TorchrunApi) -> None:
    result, out, err = run(
        "submit",
        "--queue",
        "q",
        "--gpus",
        "16",
        "--min",
        "1",
        "--max",
        "2",
        "--dry-run",
        "-o",
        "yaml",
        "python",
        "a b",
    )
    assert (result, err) == (0, "")
    job = yaml.safe_load(out)
    assert job["metadata"]["namespace"] == "team"
    assert job["metadata"]["name"].startswith("my-project-")
    assert job["spec"]["elastic"] == {"minNodes": 1, "maxNodes": 2}
    assert job["spec"]["command"] == "python 'a b'"
    assert job["spec"]["workspace"]["digest"].startswith("sha256:")
    assert not api.requests


def test_a_dry_run_needs_no_kubeconfig(
    code: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr("kubernetes.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION", str(tmp_path / "none"))
    assert main([*SUBMIT, "--dry-run", "x"], {}) == 0
    assert yaml.safe_load(capfd.readouterr().out)["metadata"]["namespace"] == "default"


BAD = [
    ((*SUBMIT[:-2], "--name", "x" * 300, "c"), 64, r"--name: x{60}\.\.\. has 300 characters; .* at most 40"),
    ((*SUBMIT[:-2], "--name", "A_b", "c"), 64, "--name: 'A_b' should have a-z"),
    (
        (*SUBMIT, "--colour", "c"),
        64,
        "unknown flags or words: --colour; a command with words of its own goes in quotes; see .* submit -h",
    ),
    ((*SUBMIT, "python", "a.py", "--nodes", "1"), 64, "--nodes: may be the command's or ours .* in quotes"),
    ((*SUBMIT, "python", "a.py", "-nother"), 64, "-nother: may be the command's or ours here"),
    ((*SUBMIT, "-n", "../..", "c"), 64, r"'\.\./\.\.' should be a namespace: a-z, 0-9 and -"),
    (("submit", "--queue", "", "--gpus", "8", "c"), 64, "--queue: '' should be a name: a-z"),
    (("submit", "--queue", "q", "--gpus", "9" * 5000, "c"), 64, "--gpus: 9{60} should have at most 9 digits"),
    (("status", ""), 64, "JOB: '' should be a name: a-z, 0-9, - and ., with a letter or digit at both ends"),
    (("cancel", "a", "../queues/q"), 64, r"JOB: '\.\./queues/q' should be a name"),
    (("logs", "a/log?x=1"), 64, r"JOB: 'a/log\?x=1' should be a name"),
    (("cp", "..:/x", "y"), 64, r"cp: \.\.:/x: job '\.\.' should be a name"),
    ((*SUBMIT, "python", "a.py", "--epochs", "3"), 64, "words: --epochs.*; a command with .* goes in quotes"),
    (("submit", "--queue", "q", "--gpu", "8", "c"), 64, r"words: --gpu; did you mean --gpus\?; see .* submit -h"),
    (("list", "--al-namespaces"), 64, r"words: --al-namespaces; did you mean --all-namespaces\?"),
    (("sync", "none", "more"), 64, "unknown flags or words: more; see kubectl torchrun sync -h"),
    (("submit", "--gpus", "8", "c"), 64, "required: --queue; see kubectl torchrun submit -h"),
    (("submit", "--queue", "q", "--gpus", "-1", "c"), 64, "--gpus"),
    (("submit", "--queue", "q", "--gpus", "eight", "c"), 64, "--gpus: 'eight' should be a whole number"),
    ((*SUBMIT, "--nodes", "3", "c"), 64, "--nodes: 3 does not divide --gpus 8"),
    ((*SUBMIT, "--min", "3", "--max", "2", "c"), 64, "--min: 3 is above --max 2"),
    ((*SUBMIT, "--min", "3", "c"), 64, "--max: is missing beside --min"),
    ((*SUBMIT, "--min", "1", "--max", "3", "c"), 64, "--max: 3 does not divide --gpus 8"),
    ((*SUBMIT, "--min", "1", "--max", "2", "--nodes", "2", "c"), 64, "--nodes: excludes --min and --max"),
    ((*SUBMIT, "--env", "1=2", "c"), 64, "--env: '1=2' should be NAME=VALUE"),
    ((*SUBMIT, "--env", "NONE", "c"), 64, "--env: NONE is not set here"),
    ((*SUBMIT, "--output", "wide", "c"), 64, "--output"),
    ((*SUBMIT, " "), 64, "command: is empty"),
    ((*SUBMIT, "python 'a"), 64, "command: .*No closing quotation"),
    ((*SUBMIT, "--workspace", "none", "c"), 65, "workspace: none does not exist"),
    ((*SUBMIT, "--workspace", "", "c"), 64, "--workspace: is empty; name the directory"),
    ((*SUBMIT, "--workspace", "empty", "c"), 65, "has no files to send"),
    ((*SUBMIT, "--max-size", "1", "--workspace", "big", "c"), 65, "the largest: weights 2.0 MiB"),
    (("status", "none"), 66, "job none: is not in namespace team"),
    (("logs", "none"), 66, "job none: is not in namespace team"),
    (("suspend", "none"), 66, "job none: is not in namespace team"),
    (("cancel", "none"), 66, "job none: is not in namespace team"),
    (("sync", "none"), 66, "job none: is not in namespace team"),
    (("cp", "", "j:b"), 64, "one of FROM and TO should be JOB:PATH"),
    (("cp", "a", "b"), 64, "one of FROM and TO should be JOB:PATH"),
    (("cp", "j:", "b"), 64, "a path should follow the colon"),
    (("list", "--context", "none"), 78, "--context none: .*none"),
]  # fmt: skip


@pytest.mark.parametrize(("words", "expected", "said"), BAD, ids=[" ".join(bad[0])[-50:] for bad in BAD])
def test_bad_words_get_one_clear_line(
    api: TorchrunApi, run: Run, tmp_path: Path, words: tuple[str, ...], expected: int, said: str
) -> None:
    import re

    (Path.cwd() / "empty").mkdir()
    (Path.cwd() / "big").mkdir()
    (Path.cwd() / "big" / "weights").write_bytes(bytes(2 * 2**20))
    result, out, err = run(*words)
    assert (result, out) == (expected, "")
    assert re.search(said, only_line(err)), err
    assert err.startswith("kubectl torchrun: ")
    assert sent(api, "POST") == []


def test_a_missing_kubeconfig_is_told(
    api: TorchrunApi, capfd: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["list", "--kubeconfig", str(tmp_path / "none")], {}) == 78
    assert str(tmp_path / "none") in only_line(capfd.readouterr().err)
    for broken in ("{", "[]", "text", "contexts: [1]"):
        (tmp_path / "broken").write_text(broken)
        assert main(["list", "--kubeconfig", str(tmp_path / "broken")], {}) == 78
        assert f"--kubeconfig {tmp_path / 'broken'}: " in only_line(capfd.readouterr().err)
    (tmp_path / "broken").write_text(api.kubeconfig(tmp_path / "broken").read_text().replace("team", "../.."))
    assert main(["list", "--kubeconfig", str(tmp_path / "broken")], {}) == 78
    assert "namespace: '../..' should be a namespace" in only_line(capfd.readouterr().err)
    gone = str(tmp_path / "gone")
    monkeypatch.setenv("KUBECONFIG", gone)
    monkeypatch.setattr(kube_config, "KUBE_CONFIG_DEFAULT_LOCATION", gone)  # of when it was imported
    assert main(["list"], {}) == 78
    assert f"KUBECONFIG {gone}: " in only_line(capfd.readouterr().err)


def test_a_forbidden_namespace_is_named(api: TorchrunApi, run: Run) -> None:
    other = JOBS.replace("/team/", "/other/")
    api.refused.update({("GET", JOBS), ("POST", other), ("GET", other)})
    result, _, err = run("list")
    assert result == 77
    assert "namespace team: you may not list torchrunjobs there" in only_line(err)
    result, _, err = run(*SUBMIT, "-n", "other", "x")
    assert result == 77
    assert "namespace other: you may not create torchrunjobs there" in err
    assert api.objects == {}


def test_a_cluster_without_the_kinds(api: TorchrunApi, run: Run) -> None:
    api.installed = False
    for words in (("list",), ("status", "a"), (*SUBMIT, "x")):
        result, _, err = run(*words)
        assert result == 69
        assert "torchrun.ai/v1alpha1 is not installed" in only_line(err)


def test_what_the_api_server_refuses_is_told_before_anything_is_sent(
    api: TorchrunApi, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    api.queue("q", storage={"workspace": {"bucket": "s3://code"}})
    monkeypatch.setattr(upload, "to_bucket", lambda *_: pytest.fail("sent before the job was judged"))
    api.judge = lambda _job: "spec.numGPUs: Invalid value: 8: too many"
    result, _, err = run(*SUBMIT, "x")
    assert result == 64
    assert only_line(err).endswith("spec.numGPUs: Invalid value: 8: too many")
    assert api.objects.keys() == {f"{JOBS.rsplit('/', 1)[0]}/{n.QUEUE_PLURAL}/q"}


def test_a_name_that_is_taken(api: TorchrunApi, run: Run) -> None:
    api.queue("q")
    api.job("one")
    api.pod("one-sync-0", n.SYNC_CONTAINER)
    result, _, err = run(*SUBMIT, "--no-workspace", "x")
    assert result == 64
    assert "--name: there is a job one" in only_line(err)
    assert f"{JOBS}/one" in api.objects


def test_suspend_resume_and_cancel(api: TorchrunApi, run: Run) -> None:
    api.job("a", phase="Running")
    api.job("b", phase="Succeeded")
    result, out, err = run("suspend", "a", "b")
    assert (result, out) == (64, "torchrunjob.torchrun.ai/a suspended\n")
    assert "job b: has succeeded and stays so" in only_line(err)
    assert api.objects[f"{JOBS}/a"]["spec"]["suspend"] is True
    assert run("suspend", "a")[1].endswith("suspended already\n")
    assert run("resume", "a")[:2] == (0, "torchrunjob.torchrun.ai/a resumed\n")
    assert api.objects[f"{JOBS}/a"]["spec"]["suspend"] is False
    assert run("cancel", "torchrunjob.torchrun.ai/a", "torchrunjob/b")[0] == 0
    assert api.objects == {}


def test_lists_as_tables_and_as_documents(api: TorchrunApi, run: Run) -> None:
    assert run("list") == (0, "", "No jobs in namespace team.\n")
    api.job("b", phase="Running")
    api.job("a")
    _, out, _ = run("list", "-A")
    lines = out.splitlines()
    assert lines[0].split()[:4] == ["NAMESPACE", "NAME", "QUEUE", "PHASE"]
    assert [line.split()[1] for line in lines[1:]] == ["a", "b"]
    assert run("list", "-o", "name")[1] == "torchrunjob.torchrun.ai/a\ntorchrunjob.torchrun.ai/b\n"
    assert len(json.loads(run("list", "-o", "json")[1])["items"]) == 2
    api.queue("q", nodeResources={"gpus": 8, "memory": "1Ti"})
    assert run("queues", "-o", "wide")[1].splitlines()[1].split()[:5] == ["q", "-", "8", "-", "1Ti"]
    assert yaml.safe_load(run("status", "a", "-o", "yaml")[1])["metadata"]["name"] == "a"


def test_the_table_and_the_status_of_a_job() -> None:
    now = datetime(2026, 1, 1, 1, 30, tzinfo=UTC)
    item = {
        "metadata": {"name": "vit", "namespace": "team", "creationTimestamp": "2026-01-01T00:00:00Z"},
        "spec": {"jobQueue": "h100", "numGPUs": 16, "command": "python train.py"},
        "status": {
            "phase": "Running",
            "nodes": 2,
            "gpusPerNode": 8,
            "gpus": 16,
            "restarts": 1,
            "attempt": 1,
            "workers": {"active": 2, "failed": 0},
            "progress": {"step": 120, "loss": 0.123456, "throughput": 1000.0, "unit": "tokens/s"},
            "conditions": [{"type": "Accepted", "status": "True", "reason": "Ok", "message": "fits"}],
        },
    }
    header, row = tables.jobs([item], now).splitlines()
    assert header == "NAME   QUEUE   PHASE     NODES   GPUS   STEP   LOSS     RESTARTS   AGE"
    assert row == "vit    h100    Running   2       16     120    0.1235   1          90m"
    shown = tables.status(item, now)
    assert "Size:       2 nodes, 16 GPUs (8 on each)\n" in shown
    assert "Workers:    2 active\n" in shown
    assert "Progress:   step 120, loss 0.1235, 1000 tokens/s\n" in shown
    one = {**item, "status": {"nodes": 1, "gpusPerNode": 1, "gpus": 1}}
    assert "Size:       1 node, 1 GPU\n" in tables.status(one, now)
    assert shown.endswith("CONDITION   STATUS   REASON   MESSAGE\nAccepted    True     Ok       fits\n")


def worker(api: TorchrunApi, attempt: int, state: str = "terminated") -> str:
    name = f"one-{attempt}-0-abcde"
    labels = {n.LABEL_JOB: "one", n.LABEL_ATTEMPT: str(attempt), LABEL_INDEX: "0"}
    api.pod(name, n.WORKER_CONTAINER, state, **labels)
    return name


def test_what_a_message_has_does_not_reach_the_terminal(api: TorchrunApi, run: Run) -> None:
    bad = "\x1b[2Jgone\r\x9b31m\nnext"
    item = api.job("one", phase="Failed")
    item["status"] |= {"message": bad, "conditions": [{"type": "T", "status": "False", "message": bad}]}
    for words in (("status", "one"), ("list", "-o", "wide"), ("logs", "-f", "one")):
        _, out, err = run(*words)
        assert not set("\x1b\r\x9b") & set(out + err)
    assert "Reason:     ?[2Jgone ?31m next\n" in run("status", "one")[1]


def test_a_worker_that_has_not_begun_has_no_log(
    api: TorchrunApi, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    api.job("one", phase="Provisioning")
    worker(api, 0, "waiting")
    real = api.answer
    waits = 'container "torchrun" in pod "one" is waiting to start: ContainerCreating'

    def answer(method: str, target: str, body: Object) -> object:
        return status(400, "BadRequest", waits) if "/log" in target else real(method, target, body)

    monkeypatch.setattr(api, "answer", answer)
    result, _, err = run("logs", "one")
    assert result == 69
    assert only_line(err).endswith(f"has no log yet: {waits}; logs -f waits for it")


def test_an_answer_that_is_no_object_is_told(
    api: TorchrunApi, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Cluster.connect.__func__, "__defaults__", (Patience(total=0.1),))
    for answer in ([], [1], "x", {"items": [1]}, {"items": [[]]}):
        monkeypatch.setattr(api, "answer", lambda *_, answer=answer: (200, answer))
        words = ("list",) if isinstance(answer, dict) else ("status", "one")
        result, _, err = run(*words)
        assert result == 69
        assert "no JSON object" in only_line(err)


def test_follow_prints_each_attempt_and_ends_with_the_jobs_code(
    api: TorchrunApi, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(following, "_ASK_SECONDS", 0.01)
    api.queue("q")
    first = worker(api, 0)
    api.logs[first] = [b"2026-01-01T00:00:00.1Z one\n2026-01-01T00:00:00.12", b"Z two\n"]

    def next_attempt(pod: str) -> None:
        if pod == first:
            second = worker(api, 1)
            api.logs[second] = [b"2026-01-01T00:00:09Z three\n"]
        else:
            item = api.objects[f"{JOBS}/one"]
            item["status"] = {"phase": "Failed", "exitCode": 7, "message": "worker 0 ended with 7"}

    api.on_log = next_attempt
    result, out, err = run(*SUBMIT, "--no-workspace", "--follow", "python train.py")
    assert (result, out) == (7, "torchrunjob.torchrun.ai/one created\none\ntwo\nthree\n")
    assert "one: Failed: worker 0 ended with 7" in err


def test_a_log_that_breaks_off_is_gone_on_with_and_nothing_is_shown_twice(
    api: TorchrunApi, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(following, "_ASK_SECONDS", 0.01)
    api.job("one", phase="Running")
    name = worker(api, 0, "running")
    # Lines that come in one piece have one time.
    once = b"2026-01-01T00:00:00.1Z a\n2026-01-01T00:00:00.2Z b\n2026-01-01T00:00:00.2Z b2\n"
    api.logs[name] = [once, None]  # type: ignore[list-item]

    def end(_pod: str) -> None:
        if len(api.log_queries) == 2:
            api.logs[name] = [once, b"2026-01-01T00:00:00.20Z b3\n2026-01-01T00:00:00.21Z c\n"]
            worker(api, 0)
            api.objects[f"{PODS}/{name}"]["metadata"]["uid"] = "uid-2"
            api.objects[f"{JOBS}/one"]["status"] = {"phase": "Succeeded"}

    api.on_log = end
    result, out, _ = run("logs", "-f", "one")
    assert (result, out) == (0, "a\nb\nb2\nb3\nc\n")
    assert api.log_queries[1]["sinceTime"] == "2026-01-01T00:00:00Z"


@pytest.mark.parametrize(
    ("status", "code"),
    [
        ({"phase": "Succeeded", "exitCode": 0}, 0),
        ({"phase": "Failed", "exitCode": 137}, 137),
        ({"phase": "Failed"}, 1),
        ({"phase": "Failed", "exitCode": 0}, 1),
        ({"phase": "Failed", "exitCode": 256}, 1),
    ],
)
def test_the_exit_code_is_the_jobs(status: dict[str, object], code: int) -> None:
    assert following.exit_code(status) == code


def test_sync_sends_the_change_and_tells_the_job(api: TorchrunApi, run: Run, pod: Store, code: Path) -> None:
    api.job("one", phase="Running", workspace={"digest": "sha256:" + "0" * 64, "sizeBytes": 1})
    api.pod("one-sync-0", n.SYNC_CONTAINER)
    result, out, _ = run("sync", "one", "--restart")
    assert (result, out) == (0, "torchrunjob.torchrun.ai/one synced\n")
    now = api.objects[f"{JOBS}/one"]["spec"]["workspace"]
    current = pod.current()
    assert current is not None
    assert (now["digest"], now["restartOnSync"]) == (current.digest, True)
    api.job("two", phase="Failed", workspace=now)
    assert "job two: has failed" in run("sync", "two")[2]
    api.job("three", phase="Running")
    assert "job three: was submitted without a workspace" in run("sync", "three")[2]


def test_completion() -> None:
    asked: list[str] = []

    def names(kind: str, words: object) -> list[str]:
        asked.append(kind)
        return ["vit", "bert"]

    def ask(*words: str) -> list[str]:
        return complete.suggestions(words, names)[0]

    assert ask("s") == ["status", "submit", "suspend", "sync"]
    assert ask("submit", "--q") == ["--queue"]
    assert ask("submit", "--queue", "v") == ["vit"]
    assert ask("logs", "b") == ["bert"]
    assert ask("cp", "b") == ["bert:"]
    assert ask("list", "-o", "") == ["yaml", "json", "name", "wide"]
    assert ask("submit", "python tr") == []
    assert asked == ["queues", "jobs", "jobs"]


def test_the_bucket_of_a_queue_is_used_and_pointed_to(
    deployer: object,
    cloud,
    api: TorchrunApi,
    run: Run,
    monkeypatch: pytest.MonkeyPatch,
    code: Path,  # type: ignore[no-untyped-def]
) -> None:
    monkeypatch.setenv("AWS_REGION", "us-west-2")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-west-2")
    s3 = cloud.client("s3")
    s3.create_bucket(Bucket="code", CreateBucketConfiguration={"LocationConstraint": "us-west-2"})
    api.queue("q", storage={"workspace": {"enabled": True, "bucket": "s3://code/team"}})
    result, _, err = run(*SUBMIT, "x")
    assert result == 0, err
    first = api.objects[f"{JOBS}/one"]["spec"]["workspace"]
    digits = first["digest"].removeprefix("sha256:")
    assert first["url"] == f"s3://code/team/workspaces/{digits}.tar.zst"
    (code / "train.py").write_text("print(2)\n")
    assert run("sync", "one")[0] == 0
    second = api.objects[f"{JOBS}/one"]["spec"]["workspace"]
    uid = api.objects[f"{JOBS}/one"]["metadata"]["uid"]
    pointer = json.loads(s3.get_object(Bucket="code", Key=f"team/jobs/{uid}/current")["Body"].read())
    assert pointer == {"digest": second["digest"], "size": second["sizeBytes"], "url": second["url"]}
    assert second["digest"] != first["digest"]
    api.queue("q", storage={"workspace": {"enabled": True, "bucket": "s3://nobodys-bucket"}})
    result, _, err = run("submit", "--queue", "q", "--gpus", "8", "--name", "two", "x")
    assert result == 65
    assert "bucket: nobodys-bucket does not exist" in only_line(err)
    assert f"{JOBS}/two" not in api.objects


def test_the_cluster_of_a_context(api: TorchrunApi, tmp_path: Path) -> None:
    file = str(api.kubeconfig(tmp_path / "k"))
    assert Cluster.connect(file, "here", None).namespace == "team"
    assert Cluster.connect(file, None, "mine").namespace == "mine"
