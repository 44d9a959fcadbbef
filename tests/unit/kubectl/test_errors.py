"""Everything that a person can get wrong: one clear line, and nothing half done."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.unit.kubectl.conftest import JOBS, SUBMIT, Run, TorchrunApi, only_line, sent
from trainyard.k8s.client import ApiError
from trainyard.kubectl import upload
from trainyard.kubectl.__main__ import main
from trainyard.kubectl.cluster import explained
from trainyard.kubectl.output import PluginError
from trainyard.operator import names as n

ROOT = Path(__file__).parents[3]


def test_a_dry_run_needs_no_kubeconfig(
    code: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    assert main([*SUBMIT, "--dry-run", "x"], {}) == 0
    assert yaml.safe_load(capfd.readouterr().out)["metadata"]["namespace"] == "default"


# After SUBMIT: exit code 64.
BAD_SUBMITS = [
    (("python", "a.py", "--nodes", "1"), "--nodes: may belong to the command or to submit; quote"),
    (("-n", "../..", "c"), r"'\.\./\.\.' must be a namespace: a-z, 0-9 and -"),
    (("python", "a.py", "--epochs", "3"), "words: --epochs.*; quote a command"),
    (("--dry-run=client", "c"), "--dry-run: takes no value; leave 'client' out; see .* submit -h"),
    (("--dry-run", "client", "python x"), "--dry-run: takes no value; leave 'client' out"),
    (("--no-workspace", "--workspace", "big", "c"), "--workspace: not allowed with .*--no-workspace"),
    (("--nodes", "3", "c"), "--nodes: 3 does not divide --gpus 8"),
    (("--min", "3", "--max", "2", "c"), "--min: 3 is above --max 2"),
    (("--min", "3", "c"), "--max: is missing; an elastic job needs --min"),
    (("--min", "1", "--max", "3", "c"), "--max: 3 does not divide --gpus 8"),
    (("--min", "1", "--max", "2", "--nodes", "2", "c"), "--nodes: excludes --min and --max"),
    (("--env", "1A=2", "c"), "--env: the name '1A' must have letters .* not start with a digit"),
    (("--env", "A B=2", "c"), r"--env: the name 'A B' must have letters \(A-Z, a-z\), digits, '_'"),
    (("--env", "=2", "c"), "--env: a name must precede the equals sign: NAME=VALUE"),
    (("--env", "ABSENT", "c"), "--env: ABSENT is not set here"),
    (("--env", "A=\udcff", "c"), r"--env: A: '\\udcff' must be UTF-8"),
    (("echo \udcff",), r"command: 'echo \\udcff' must be UTF-8"),
    (("--output", "wide", "c"), "--output"),
    ((" ",), "command: is empty"),
    (("python 'a",), "command: .*No closing quotation"),
    (("--workspace", "", "c"), "--workspace: is empty; name the directory"),
]
BAD = [
    *(((*SUBMIT, *words), 64, said) for words, said in BAD_SUBMITS),
    ((*SUBMIT[:-2], "--name", "x" * 300, "c"), 64, r"--name: x{60}\.\.\. has 300 characters; .* at most 40"),
    ((*SUBMIT[:-2], "--name", "A_b", "c"), 64, "--name: 'A_b' must be a-z"),
    (("submit", "--queue", "", "--gpus", "8", "c"), 64, "--queue: '' must be a name: a-z"),
    (("submit", "--queue", "q", "--gpus", "9" * 5000, "c"), 64, "--gpus: 9{60} must have at most 9 digits"),
    (("status", ""), 64, "JOB: '' must be a name: a-z, 0-9, - and ., with a letter or digit at both ends"),
    (("cancel", "a", "../queues/q"), 64, r"JOB: '\.\./queues/q' must be a name"),
    (("logs", "a/log?x=1"), 64, r"JOB: 'a/log\?x=1' must be a name"),
    (("cp", "..:/x", "y"), 64, r"cp: \.\.:/x: job '\.\.' must be a name"),
    (("submit", "--queue", "q", "--gpu", "8", "c"), 64, r"--gpu; did you mean --gpus\?; see .* submit -h"),
    ((*SUBMIT, "--workspace", "x/" * 3000, "c"), 65, r"workspace: (x/){100}\.\.\. .{1,60}; name the"),
    (("delete", "one"), 64, r"unknown command 'delete'; did you mean cancel\?; see kubectl torchrun -h"),
    (("frobnicate",), 64, r"unknown command 'frobnicate'; it must be one of submit, logs, .*, cp; see"),
    (("submti",), 64, r"unknown command 'submti'; did you mean submit\?; see kubectl torchrun -h"),
    (("--bogus", "list"), 64, "unknown flags or words: --bogus; see kubectl torchrun -h"),
    (("logs", "j", "--node", "1"), 64, r"words: --node .*; did you mean --node-rank\?; see .* logs -h"),
    (("cp", "j:a", "b", "--rank=1"), 64, r"words: --rank=1; did you mean --node-rank\?; see .* cp -h"),
    (("list", "--al-namespaces"), 64, r"words: --al-namespaces; did you mean --all-namespaces\?"),
    (("sync", "none", "more"), 64, "unknown flags or words: more; see kubectl torchrun sync -h"),
    (("submit", "--gpus", "8", "c"), 64, "required: --queue; see kubectl torchrun submit -h"),
    (("submit", "--queue", "q", "--gpus", "-1", "c"), 64, "--gpus"),
    (("submit", "--queue", "q", "--gpus", "eight", "c"), 64, "--gpus: 'eight' must be a whole number"),
    ((*SUBMIT, "--workspace", "none", "c"), 65, "workspace: none does not exist"),
    ((*SUBMIT, "--workspace", "own", "c"), 65, "workspace: own can't be read: Too many levels of symbolic"),
    ((*SUBMIT, "--max-size", "1", "--workspace", "big", "c"), 65, "the largest: weights 2.0 MiB"),
    (("logs", "one", "--all", "--node-rank", "1"), 64, "--node-rank"),
    (("logs", "-f", "one", "--attempt", "0"), 64, "--attempt: excludes --follow"),
    (("cancel", "none"), 66, "job none: is not in namespace team"),
    (("cp", "a", "b"), 64, "one of FROM and TO must be JOB:PATH"),
    (("cp", "j:", "b"), 64, "a path must follow the colon"),
    (("cp", "torchrunjob.torchrun.ai/none:/a", "b"), 66, "job none: is not in namespace team"),
    (("cp", "directory/none:/a", "b"), 64, "one of FROM and TO must be JOB:PATH"),
    (("list", "--context", "absent"), 78, r"absent is not in --kubeconfig \S+/kubeconfig; it has here$"),
]


def test_main_with_bad_words_prints_one_clear_line(api: TorchrunApi, run: Run, code: Path) -> None:
    (code / "own").symlink_to("own")
    (code / "big").mkdir()
    (code / "big" / "weights").write_bytes(bytes(2 * 2**20))
    for words, expected, said in BAD:
        result, out, err = run(*words)
        assert (result, out) == (expected, ""), words
        assert re.search(said, only_line(err)), (words, err)
        assert err.startswith("kubectl torchrun: "), words
        assert sent(api, "POST") == [], words


@pytest.mark.parametrize(
    ("text", "said"),
    [
        *((text, "") for text in ("{", "[]", "text", "contexts: [1]")),
        ("../..", "namespace: '../..' must be a namespace"),
    ],
)
def test_an_invalid_kubeconfig_is_reported(
    api: TorchrunApi, capfd: pytest.CaptureFixture[str], tmp_path: Path, text: str, said: str
) -> None:
    file = api.kubeconfig(tmp_path / "kubeconfig")
    file.write_text(file.read_text().replace("team", text) if said else text)
    assert main(["list", "--kubeconfig", str(file)], {}) == 78
    assert (said or f"--kubeconfig {file}: ") in only_line(capfd.readouterr().err)


@pytest.mark.parametrize("closed", [">&-", ">&- 2>&- <&-"])
def test_closed_standard_output_ends_before_any_request(
    api: TorchrunApi, tmp_path: Path, code: Path, closed: str
) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "KUBECONFIG": str(api.kubeconfig(tmp_path / "k"))}
    command = f"{sys.executable} -m trainyard.kubectl submit --queue q --gpus 8 --no-workspace x {closed}"
    ended = subprocess.run(
        ["bash", "-c", command], env=environment, cwd=code, capture_output=True, text=True, timeout=60
    )
    assert ended.returncode == 74
    reported = "kubectl torchrun: standard output: is closed. Nothing was done\n"
    assert (ended.stdout, ended.stderr) == ("", reported if closed == ">&-" else "")
    assert not api.requests


TEAM = "namespace team"
UNAUTHORIZED = 'pods "a" is forbidden: User "u" cannot create resource "pods"'
OVER_QUOTA = 'pods "a" is forbidden: exceeded quota: q, requested: pods=1'
DENIED = 'admission webhook "w" denied the request: no'


@pytest.mark.parametrize(
    ("action", "code", "message", "expected"),
    [
        ("create torchrunjobs", 422, "spec: bad", (64, "job: the API server refuses it: spec: bad")),
        ("patch torchrunjobs", 409, "modified", (64, "job: the API server refuses it: modified")),
        ("list torchrunjobs", 400, "bad", (69, "list torchrunjobs: refused: bad")),
        ("create pods", 422, "spec: bad", (69, "create pods: refused: spec: bad")),
        ("create pods", 403, UNAUTHORIZED, (77, f"{TEAM}: you may not create pods there: {UNAUTHORIZED}")),
        ("create pods", 403, OVER_QUOTA, (77, f"{TEAM}: create pods: refused: {OVER_QUOTA}")),
        ("create torchrunjobs", 403, DENIED, (77, f"{TEAM}: create torchrunjobs: refused: {DENIED}")),
    ],
)
def test_refusal_names_the_refused_action(
    action: str, code: int, message: str, expected: tuple[int, str]
) -> None:
    with pytest.raises(PluginError) as reported, explained(action, "team"):
        raise ApiError("POST", "/x", code, "", message)
    assert (reported.value.code, str(reported.value)) == expected


def test_a_cluster_without_the_kinds(api: TorchrunApi, run: Run) -> None:
    api.installed = False
    for words in (("list",), ("status", "a"), (*SUBMIT, "x")):
        result, _, err = run(*words)
        assert result == 69
        assert "torchrun.ai/v1alpha1 is not installed" in only_line(err)


def test_job_refused_by_the_api_server_is_not_sent(
    api: TorchrunApi, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    api.queue("q", storage={"workspace": {"bucket": "s3://code"}})
    monkeypatch.setattr(upload, "to_bucket", lambda *_: pytest.fail("sent before the job was judged"))
    api.judge = lambda _job: "spec.numGPUs: Invalid value: 8: too many"
    result, _, err = run(*SUBMIT, "x")
    assert result == 64
    assert only_line(err).endswith("spec.numGPUs: Invalid value: 8: too many")
    assert api.objects.keys() == {f"{JOBS.rsplit('/', 1)[0]}/{n.QUEUE_PLURAL}/q"}
