"""`kubectl torchrun` as it is typed, against a small API server: what it makes, prints and ends with."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
import yaml

from launcher.core import contract as c
from launcher.core.torchrun import names
from launcher.plugin.__main__ import main
from launcher.plugin.cluster import Cluster
from launcher.plugin.follow import Follower
from tests.unit.launcher.api_server import FakeApi, serving

JOBS = f"/apis/{names.API_VERSION}/namespaces/team/torchrunjobs"
QUEUES = f"/apis/{names.API_VERSION}/namespaces/team/torchrunqueues"
PODS = "/api/v1/namespaces/team/pods"
Type = Callable[..., int]


@pytest.fixture
def api() -> Iterator[FakeApi]:
    with serving(FakeApi()) as api:
        yield api


@pytest.fixture
def typed(api: FakeApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Type:
    """Run the plugin in a directory of its own with the API server's kubeconfig; returns the exit code."""
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "c", "cluster": {"server": api.url}}],
        "users": [{"name": "u", "user": {}}],
        "contexts": [
            {"name": "other", "context": {"cluster": "c", "user": "u", "namespace": "elsewhere"}},
            {"name": "usual", "context": {"cluster": "c", "user": "u", "namespace": "team"}},
        ],
        "current-context": "usual",
    }
    (tmp_path / "kubeconfig").write_text(yaml.safe_dump(config))
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "kubeconfig"))
    place = tmp_path / "My_Project 2"
    place.mkdir()
    monkeypatch.chdir(place)

    def run(*words: str) -> int:
        try:
            return main(words)
        except SystemExit as end:
            return int(end.code or 0)

    return run


def job(name: str, phase: str | None = "Running", **status: Any) -> dict[str, Any]:
    return {
        "apiVersion": names.API_VERSION,
        "kind": names.JOB_KIND,
        "metadata": {"name": name, "namespace": "team", "creationTimestamp": "2026-11-22T10:00:00Z"},
        "spec": {"jobQueue": "h100", "numGPUs": 16, "command": "python train.py"},
        **(
            {"status": {"phase": phase, "attempt": 0, "nodes": 2, "gpusPerNode": 8, **status}}
            if phase
            else {}
        ),
    }


def test_the_seeds_submit_makes_the_job(
    api: FakeApi, typed: Type, capsys: pytest.CaptureFixture[str]
) -> None:
    api.put(f"{QUEUES}/h100-training", {"metadata": {"name": "h100-training"}, "spec": {}})
    words = ("--queue", "h100-training", "--gpus", "8", "python train.py --epochs 10")
    assert typed("submit", "--no-workspace", *words) == 0
    (name,) = api.names(JOBS)
    assert re.fullmatch(r"my-project-2-[a-z0-9]{5}", name)
    made = api.objects[f"{JOBS}/{name}"]
    assert made["spec"] == {
        "jobQueue": "h100-training",
        "numGPUs": 8,
        "command": "python train.py --epochs 10",
    }
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err == f"torchrunjob.torchrun.ai/{name} created; kubectl torchrun logs -f {name} follows it\n"


def test_every_flag_of_submit_is_in_the_object_and_a_dry_run_sends_nothing(
    api: FakeApi, typed: Type, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [
        "submit",
        "--queue",
        "q",
        "--name",
        "a-b",
        "--gpus",
        "32",
        "--min",
        "2",
        "--max",
        "4",
        "-n",
        "other",
    ]
    words += ["--env", "A=1", "-e", "B=x=y", "--no-workspace", "--dry-run", "-o", "yaml"]
    assert typed(*words, "--", "python", "train.py", "--name", "two words") == 0
    told = capsys.readouterr()
    assert yaml.safe_load(told.out) == {
        "apiVersion": "torchrun.ai/v1alpha1",
        "kind": "TorchrunJob",
        "metadata": {"name": "a-b", "namespace": "other"},
        "spec": {
            "jobQueue": "q",
            "numGPUs": 32,
            "elastic": {"minNodes": 2, "maxNodes": 4},
            "command": "python train.py --name 'two words'",
            "env": [{"name": "A", "value": "1"}, {"name": "B", "value": "x=y"}],
        },
    }
    assert told.err == ""
    assert typed("submit", "--queue", "q", "--nodes", "3", "--no-workspace", "--dry-run", "true") == 0
    assert yaml.safe_load(capsys.readouterr().out)["spec"] == {
        "jobQueue": "q",
        "numGPUs": 0,
        "numNodes": 3,
        "command": "true",
    }
    assert api.requests == []


def test_a_queue_that_is_not_there_is_told_and_the_job_waits_for_it(
    api: FakeApi, typed: Type, capsys: pytest.CaptureFixture[str]
) -> None:
    assert typed("submit", "--queue", "later", "--gpus", "1", "--no-workspace", "--name", "a", "true") == 0
    assert "queue 'later' is not there yet: the job waits for it" in capsys.readouterr().err
    assert api.names(JOBS) == ["a"]


SIZE = ("--queue", "q", "--gpus", "8")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("submit", "--gpus", "8", "x"), "--queue"),
        (("submit", "--queue", "q", "x"), "--gpus is missing"),
        (("submit", "--queue", "q", "--gpus", "-1", "x"), "--gpus: '-1' is no whole number of 0 or more"),
        (("submit", "--queue", "q", "--gpus", "1.5", "x"), "--gpus: '1.5' is no whole number of 0 or more"),
        (("submit", "--queue", "q", "--gpus", "٣", "x"), "--gpus"),
        (("submit", "--queue", "q", "--nodes", "0", "x"), "--nodes: '0' is no whole number of 1 or more"),
        (("submit", *SIZE, "--nodes", "3", "x"), "--gpus: 8 can't be spread evenly over 3 nodes (--nodes)"),
        (("submit", *SIZE, "--min", "1", "x"), "--min without --max"),
        (("submit", *SIZE, "--max", "1", "x"), "--max without --min"),
        (("submit", *SIZE, "--min", "3", "--max", "2", "x"), "--min: 3 is more than --max: 2"),
        (
            ("submit", *SIZE, "--min", "1", "--max", "3", "x"),
            "--gpus: 8 can't be spread evenly over 3 nodes (--max)",
        ),
        (("submit", *SIZE, "--min", "1", "--max", "2", "--nodes", "2", "x"), "leave --nodes out"),
        (("submit", *SIZE, "--env", "A", "x"), "--env: 'A' is no variable; right would be NAME=VALUE"),
        (("submit", *SIZE, "--env", "=1", "x"), "'=1' is no variable"),
        (("submit", *SIZE, "--name", "a" * 300, "x"), "... (300 characters)' is no name of a job"),
        (
            ("submit", *SIZE, "--name", "Train", "x"),
            "--name: 'Train' is no name of a job; right would be at most 40",
        ),
        (("submit", *SIZE, "  "), "COMMAND is empty"),
        (("submit", *SIZE), "COMMAND"),
        (("submit", *SIZE, "--epochs", "3", "x"), "unrecognized arguments: --epochs"),
        (("submit", *SIZE, "-o", "xml", "x"), "invalid choice: 'xml'"),
        (("train", "x"), "invalid choice: 'train'"),
        ((), "VERB"),
        (("status",), "JOB"),
        (("logs", "a", "--node", "-1"), "--node: '-1'"),
    ],
)
def test_what_is_typed_wrong_is_told_in_one_line_and_nothing_is_sent(
    words: tuple[str, ...], says: str, api: FakeApi, typed: Type, capsys: pytest.CaptureFixture[str]
) -> None:
    assert typed(*words) == c.EXIT_BAD_REQUEST
    told = capsys.readouterr()
    assert says in told.err
    assert told.err.count("\n") == 1
    assert told.err.startswith("error: ")
    assert (told.out, api.requests) == ("", [])


def test_jobs_and_queues_are_listed_in_tables_and_documents(
    api: FakeApi, typed: Type, capsys: pytest.CaptureFixture[str]
) -> None:
    progress = {"step": 1200, "loss": 2.31412, "throughput": 184012.5, "unit": "tokens"}
    api.put(f"{JOBS}/vit", job("vit", progress=progress, restarts=1))
    late = job("young", None)
    late["metadata"]["creationTimestamp"] = "2026-11-22T11:00:00Z"
    api.put(f"{JOBS}/young", late)
    assert typed("list") == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[:-1] for line in lines[1:]] == [
        ["vit", "h100", "Running", "2", "16", "1200", "2.314", "1"],
        ["young", "h100", "Pending", "-", "16", "-", "-", "-"],
    ]
    assert lines[0].split() == ["NAME", "QUEUE", "PHASE", "NODES", "GPUS", "STEP", "LOSS", "RESTARTS", "AGE"]
    assert typed("list", "-o", "wide") == 0
    assert "1.84e+05 tokens/s" in capsys.readouterr().out
    assert typed("list", "-o", "name") == 0
    assert capsys.readouterr().out == "torchrunjob.torchrun.ai/vit\ntorchrunjob.torchrun.ai/young\n"
    assert typed("list", "-o", "json") == 0
    document = yaml.safe_load(capsys.readouterr().out)
    assert (document["kind"], len(document["items"])) == ("List", 2)
    queue = {"nodeResources": {"gpus": 8, "gpuType": "h100-80gb"}, "image": "team/pytorch:1"}
    told = {"conditions": [{"type": "Ready", "status": "True"}], "jobs": {"active": 2, "pending": 1}}
    meta = {"name": "h100", "namespace": "team", "creationTimestamp": "2026-11-22T10:00:00Z"}
    api.put(f"{QUEUES}/h100", {"kind": names.QUEUE_KIND, "metadata": meta, "spec": queue, "status": told})
    assert typed("queues") == 0
    assert capsys.readouterr().out.splitlines()[1].split()[:-1] == [
        "h100",
        "True",
        "8",
        "h100-80gb",
        "2",
        "1",
    ]
    assert typed("list", "--context", "other") == 0
    assert capsys.readouterr().err == "no torchrunjobs in namespace elsewhere\n"
    assert typed("list", "-A") == 0
    assert [path for _, path, _ in api.requests][-1] == f"/apis/{names.API_VERSION}/torchrunjobs"


def test_status_tells_all_that_there_is(
    api: FakeApi, typed: Type, capsys: pytest.CaptureFixture[str]
) -> None:
    condition = {
        "type": names.RENDEZVOUS_SUBSTITUTED,
        "status": "True",
        "reason": "NoEndpoint",
        "message": "c10d is used",
    }
    failed = job(
        "vit", "Failed", reason="DeadlineExceeded", message="after 60 s", exitCode=9, conditions=[condition]
    )
    api.put(f"{JOBS}/vit", failed)
    assert typed("status", "vit") == 0
    told = capsys.readouterr().out
    assert "Phase                  Failed (DeadlineExceeded): after 60 s\n" in told
    assert "Nodes                  2 x 8 GPUs\n" in told
    assert "Exit code              9\n" in told
    assert "RendezvousSubstituted  True NoEndpoint: c10d is used\n" in told
    assert typed("status", "vit", "-o", "yaml") == 0
    assert yaml.safe_load(capsys.readouterr().out)["status"]["exitCode"] == 9


def test_a_job_is_suspended_resumed_and_cancelled(
    api: FakeApi, typed: Type, capsys: pytest.CaptureFixture[str]
) -> None:
    api.put(f"{JOBS}/vit", job("vit"))
    assert typed("suspend", "vit") == 0
    assert api.objects[f"{JOBS}/vit"]["spec"]["suspend"] is True
    assert api.objects[f"{JOBS}/vit"]["spec"]["numGPUs"] == 16
    assert typed("resume", "vit") == 0
    assert api.objects[f"{JOBS}/vit"]["spec"]["suspend"] is False
    assert typed("cancel", "vit") == 0
    assert api.names(JOBS) == []
    api.put(f"{JOBS}/old", job("old", "Succeeded"))
    capsys.readouterr()
    assert typed("resume", "old") == c.EXIT_API_ERROR
    assert capsys.readouterr().err == "error: old is over (Succeeded); submit it again\n"
    assert "suspend" not in api.objects[f"{JOBS}/old"]["spec"]


@pytest.mark.parametrize("verb", ["status", "cancel", "suspend", "resume", "logs"])
def test_a_job_that_is_not_there_is_told_by_its_name(
    verb: str, typed: Type, capsys: pytest.CaptureFixture[str]
) -> None:
    assert typed(verb, "lost") == c.EXIT_API_ERROR
    told = capsys.readouterr().err
    assert (
        told
        == "error: there is no job 'lost' in this namespace; 'kubectl torchrun list' shows those that there are\n"
    )


def test_a_cluster_that_refuses_is_told_in_its_words(
    api: FakeApi, typed: Type, capsys: pytest.CaptureFixture[str]
) -> None:
    api.refused = {("GET", JOBS)}
    assert typed("list") == c.EXIT_API_ERROR
    assert capsys.readouterr().err == f"error: GET {JOBS}: 403 Forbidden: Forbidden\n"


def test_a_kubeconfig_that_is_not_there_or_broken_is_named(
    typed: Type, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert typed("list", "--kubeconfig", "/no/such") == c.EXIT_API_ERROR
    assert capsys.readouterr().err.startswith("error: no usable kubeconfig (/no/such): ")
    (tmp_path / "broken").write_text("a: [")
    assert typed("list", "--kubeconfig", str(tmp_path / "broken")) == c.EXIT_API_ERROR
    told = capsys.readouterr().err
    assert told.startswith(f"error: no usable kubeconfig ({tmp_path}/broken): ")
    assert told.count("\n") == 1
    assert typed("list", "--context", "nowhere") == c.EXIT_API_ERROR
    assert "nowhere" in capsys.readouterr().err


def worker(name: str, attempt: int, phase: str = "Running") -> dict[str, Any]:
    labels = {
        names.LABEL_JOB: "vit",
        names.LABEL_ATTEMPT: str(attempt),
        "batch.kubernetes.io/job-completion-index": "0",
    }
    meta = {"name": name, "namespace": "team", "labels": labels, "creationTimestamp": "2026-11-22T10:00:00Z"}
    return {"metadata": meta, "status": {"phase": phase}}


@pytest.mark.parametrize(
    ("phase", "status", "code"),
    [("Succeeded", {}, 0), ("Failed", {"exitCode": 9, "reason": "WorkersFailed"}, 9), ("Failed", {}, 1)],
)
def test_following_prints_each_attempts_log_and_ends_with_the_jobs_code(
    phase: str,
    status: dict[str, Any],
    code: int,
    api: FakeApi,
    typed: Type,
    capsys: pytest.CaptureFixture[str],
) -> None:
    api.put(f"{JOBS}/vit", job("vit", "Pending", reason="QueueNotFound"))
    steps = iter(
        [
            [("job", job("vit")), ("pod", worker("vit-0-0-abcde", 0))],
            [("job", job("vit", "Restarting", attempt=0))],
            [("job", job("vit", attempt=1, restarts=1)), ("pod", worker("vit-1-0-fghij", 1))],
            [("job", job("vit", phase, attempt=1, **status))],
        ]
    )
    api.logs = {
        f"{PODS}/vit-0-0-abcde/log": [b"first\n", b"lost\n"],
        f"{PODS}/vit-1-0-fghij/log": [b"second\n"],
    }

    def next_step(_seconds: float) -> None:
        for kind, item in next(steps):
            path = f"{JOBS}/vit" if kind == "job" else f"{PODS}/{item['metadata']['name']}"
            api.put(path, item)

    printed = BytesIO()
    follower = Follower(Cluster.connect(None, None, None), "vit", out=printed, sleep=next_step)
    assert follower.run() == code
    told = capsys.readouterr()
    assert printed.getvalue() == b"first\nlost\nsecond\n"
    last = f"vit {phase}" + (f" ({status['reason']})" if "reason" in status else "")
    assert told.err.splitlines() == [
        "vit Pending (QueueNotFound)",
        "vit Running",
        "vit Restarting",
        "vit Running",
        last,
    ]
