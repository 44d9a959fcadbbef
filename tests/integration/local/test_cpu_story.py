"""Stack `cpu` from `make up` to `make down`, watched as a person watches it: every command of docs/monitoring.md.

The tests are one story, in order. Its first run is watched while it trains and looked at when it has ended; the second
one trains while the debug pod looks at its network, and until `make down` ends it.
"""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

import pytest

from local.guard import cloud_environment
from tests.account import things
from tests.integration.local.conftest import Command, run
from tests.integration.local.own_cloud import processes_that_name
from tests.world import World, world
from trainyard.cli.engine import ROOT, Engine
from trainyard.cli.stack_file import write
from trainyard.stack_files import read

# A whole `up`, a second run and a whole `down`, on a machine that may be busy.
pytestmark = [pytest.mark.local, pytest.mark.timeout(1200)]

WAIT_SECONDS = 600
MASTER, WORKER = "train-r1-master-0", "train-r1-worker-0"
NEXT = "train-r2-master-0"
SPACE = ("-n", "training")
POLL_SECONDS = 0.5


class Story:
    """Stack `cpu` on a local cloud of its own, and a person's kubectl there."""

    def __init__(self, made: World) -> None:
        self.made = made
        self.home = made.home
        self.first_up = Followed()

    @property
    def environment(self) -> dict[str, str]:
        path = f"{self.home.bin}{os.pathsep}{os.environ['PATH']}"
        return {**os.environ, "KUBECONFIG": str(self.home.kubeconfig), "PATH": path}

    @property
    def engine(self) -> Engine:
        return Engine(self.home.root, "cpu", cloud_environment(self.home))

    def kubectl(self, *words: str, typed: str | None = None) -> Command:
        return run(["kubectl", *words], self.environment, 120, typed)

    def output(self, *words: str) -> str:
        """The output of a kubectl command that succeeds."""
        answer = self.kubectl(*words)
        assert answer.code == 0, answer.output
        return answer.output

    def field(self, kind: str, name: str, path: str) -> str:
        """One field of an object in the training namespace, "" where it or the object is not there."""
        words = ("get", kind, name, *SPACE, "--ignore-not-found", "-o", f"jsonpath={{{path}}}")
        return self.kubectl(*words).output.strip()

    def wait(self, done: Callable[[], object], what: str) -> None:
        deadline = time.monotonic() + WAIT_SECONDS
        while not done():
            up = self.first_up
            assert up.process is None or not up.process.poll(), f"`up` failed before {what}:\n{up.text}"
            assert time.monotonic() < deadline, f"not within {WAIT_SECONDS} s: {what}\n{up.text}"
            time.sleep(POLL_SECONDS)

    @contextmanager
    def watching(self, *words: str) -> Iterator[Followed]:
        """A command of kubectl that goes on meanwhile."""
        process = subprocess.Popen(
            ["kubectl", *words], env=self.environment, stdout=subprocess.PIPE, text=True
        )
        followed = Followed()
        followed.start(process)
        try:
            yield followed
        finally:
            process.terminate()
            process.wait(30)

    def pulumi(self, command: str, *words: str) -> Command:
        engine = self.engine
        given = ["--stack", "cpu", "--config-file", str(engine.config_file), "--yes", "--skip-preview"]
        return run(["pulumi", command, *given, *words], engine.environment)

    def inside(self, script: str, pod: str = "network-debug-0") -> Command:
        """`kubectl exec` of a shell's command line."""
        return self.kubectl("exec", pod, *SPACE, "--", "sh", "-c", script)


class Followed:
    """The lines of a process as they come."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.process: subprocess.Popen[str] | None = None

    def start(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        threading.Thread(target=self._read, args=(process,), daemon=True).start()

    def _read(self, process: subprocess.Popen[str]) -> None:
        for line in process.stdout or []:
            self.lines.append(line)

    def ended(self) -> int:
        """Wait for its end; the exit code."""
        assert self.process is not None
        return self.process.wait(WAIT_SECONDS)

    @property
    def text(self) -> str:
        return "".join(self.lines)


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Story]:
    root = tmp_path_factory.mktemp("cpu") / "home"
    with world(root, "cpu") as made:
        found = Story(made)
        yield found
        up = found.first_up.process
        if up is not None and up.poll() is None:
            up.kill()
    assert processes_that_name(str(root)) == []


def test_up_trains_to_the_end_while_pods_and_logs_are_watched(story: Story) -> None:
    story.first_up.start(story.made.deploy("up"))
    story.wait(
        lambda: story.home.kubeconfig.exists() and "training" in story.kubectl("get", "namespaces").output,
        "the training namespace",
    )
    with story.watching("get", "pods", *SPACE, "-w") as pods:
        story.wait(lambda: story.field("pod", MASTER, ".status.phase") == "Running", "the master runs")
        with story.watching("logs", "-f", MASTER, *SPACE) as master:
            story.wait(lambda: story.field("pod", WORKER, ".status.phase") == "Running", "the worker runs")
            with story.watching("logs", "-f", WORKER, *SPACE) as worker:
                assert "result=succeeded" not in master.text
                assert (master.ended(), worker.ended()) == (0, 0)
        story.wait(
            lambda: re.search(rf"^{MASTER}\s.*Completed", pods.text, re.M), "`get pods -w` sees the end"
        )
    assert re.search(r"^rank=0 world_size=2 ", master.text, re.M)
    assert re.search(r"^result=succeeded .*model=s3://", master.text, re.M)
    assert re.search(r"^rank=1 world_size=2 ", worker.text, re.M)
    for state in ("Pending", "Running", "Completed"):
        assert re.search(rf"^{MASTER}\s.*{state}", pods.text, re.M), state
    assert story.first_up.ended() == 0, story.first_up.text
    assert re.search(r"^run r1 succeeded in ", story.first_up.text, re.M)


@pytest.mark.parametrize(
    ("command", "shown"),
    [
        ("get nodes", r"^ip-10-64-\S+ +Ready "),
        ("get events -n training --sort-by=.metadata.creationTimestamp", rf"Started +pod/{MASTER} "),
        ("get pytorchjob -n training", r"^train-r1 +Succeeded "),
        ("get po -n training", rf"^{MASTER} +0/1 +Completed(.|\n)*^{WORKER} +0/1 +Completed"),
        ("describe pytorchjob train-r1 -n training", r"^ +Type: +Succeeded(.|\n)*SuccessfulCreatePod"),
        (f"logs -f {MASTER} -n training", r"^result=succeeded "),
        (f"logs -f {WORKER} -n training", r"^rank=1 "),
        ("logs -l pytorch-job-name=train-r1 -n training", r"^result=succeeded "),
        ("logs -l pytorch-job-name=train-r1 -n training", r"^rank=1 "),
        ("get crd", r"^pytorchjobs\.kubeflow\.org "),
        ("get pods -n kubeflow", r"^training-operator-\S+ +1/1 +Running "),
        ("get serviceaccounts", r"^pytorch-training-sa "),
        (
            "describe serviceaccount pytorch-training-sa",
            r"eks\.amazonaws\.com/role-arn: arn:aws:iam::\d+:role/",
        ),
    ],
)
def test_what_the_monitoring_commands_show(story: Story, command: str, shown: str) -> None:
    text = story.output(*command.split())
    assert re.search(shown, text, re.M), text


def test_the_image_is_the_one_that_the_stack_built(story: Story) -> None:
    text = story.output("describe", "pod", MASTER, *SPACE)
    images = re.findall(r"^ +Image: +(\S+)$", text.partition("\nInit Containers:")[0] or text, re.M)
    assert any(image.startswith(story.engine.outputs()["repositoryUrls"]["trainer"]) for image in images), (
        images
    )


def test_a_pod_that_has_ended_can_not_be_entered(story: Story) -> None:
    answer = story.kubectl("exec", MASTER, *SPACE, "--", "true")
    assert answer.code != 0
    assert "completed pod" in answer.output


def test_the_model_is_in_the_bucket(story: Story) -> None:
    import torch

    outputs = story.engine.outputs()
    key = f"{outputs['modelUri'].split('/', 3)[3].rstrip('/')}/r1/model.pt"
    body = story.made.client("s3").get_object(Bucket=outputs["modelBucket"], Key=key)["Body"].read()
    weights = torch.load(io.BytesIO(body), weights_only=True)
    assert sum(tensor.numel() for tensor in weights.values()) > 1000


def test_a_pod_of_ones_own_writes_to_the_bucket_as_its_service_account(story: Story) -> None:
    outputs = story.engine.outputs()
    program = (
        "import boto3, botocore\n"
        f"boto3.client('s3').put_object(Bucket='{outputs['modelBucket']}', Key='models/own.txt', Body=b'mine')\n"
        "try: boto3.client('s3').create_bucket(Bucket='another')\n"
        "except botocore.exceptions.ClientError as error: print(error.response['Error']['Code'])\n"
    )
    image = story.field("pod", MASTER, ".spec.containers[0].image")
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "own", "namespace": "default"},
        "spec": {
            "serviceAccountName": "pytorch-training-sa",
            "restartPolicy": "Never",
            "containers": [{"name": "main", "image": image, "command": ["python", "-c", program]}],
        },
    }
    assert story.kubectl("apply", "-f", "-", typed=json.dumps(pod)).code == 0
    phase = ("wait", "pod/own", "--for=jsonpath={.status.phase}=Succeeded", "--timeout=60s")
    assert story.kubectl(*phase).code == 0, story.kubectl("logs", "own").output
    assert story.output("logs", "own").strip() == "AccessDenied"
    found = story.made.client("s3").get_object(Bucket=outputs["modelBucket"], Key="models/own.txt")
    assert found["Body"].read() == b"mine"
    story.output("delete", "pod", "own")


def test_the_trainer_runs_under_torchrun_on_this_machine() -> None:
    torchrun = str(ROOT / ".venv" / "bin" / "torchrun")
    words = ["--standalone", "--nnodes=1", "--nproc-per-node", "2", "-m", "trainer.train"]
    answer = run([torchrun, *words, "--device", "cpu", "--epochs", "2"], {"OMP_NUM_THREADS": "1"}, 200)
    assert answer.code == 0, answer.output
    assert sorted(re.findall(r"^rank=(\d) world_size=2 ", answer.output, re.M)) == ["0", "1"]
    assert "result=succeeded" in answer.output


def test_the_next_run_trains(story: Story) -> None:
    settings = read(story.engine.config_file)
    # Long enough for what comes: `make down` ends it.
    settings["config"]["trainyard:training"].update(runId="r2", args=["--epochs", "5000"])
    write(settings, story.engine.config_file)
    updated = story.pulumi("up")
    assert updated.code == 0, updated.output
    story.wait(lambda: steps(story), f"{NEXT} trains")
    story.output("wait", "pod/network-debug-0", *SPACE, "--for=condition=Ready", "--timeout=60s")


def steps(story: Story) -> int:
    """The last step that the running master has said."""
    found = re.findall(r"^step=(\d+) ", story.kubectl("logs", NEXT, *SPACE).output, re.M)
    return int(found[-1]) if found else 0


def test_a_command_in_a_training_pod_is_in_its_world(story: Story) -> None:
    found = story.inside('hostname; echo "$PET_NNODES"; tr "\\0" " " < /proc/1/cmdline', NEXT)
    assert found.code == 0, found.output
    *_, name, nodes, program = found.output.splitlines()
    assert (name, nodes) == (NEXT, "2")
    assert "trainer.entrypoint" in program


@pytest.mark.parametrize("long", [False, True])
def test_the_debug_pod_finds_the_masters_address_by_name(story: Story, long: bool) -> None:
    name = f"{NEXT}.training.svc.cluster.local" if long else NEXT
    found = story.inside(f"nslookup {name}")
    assert found.code == 0, found.output
    assert f"Address: {story.field('pod', NEXT, '.status.podIP')}" in found.output
    assert story.inside(f"nslookup no-{name}").code == 1


def test_the_debug_pod_pings_the_master(story: Story) -> None:
    for host in (story.field("pod", NEXT, ".status.podIP"), NEXT):
        found = story.inside(f"ping -c 1 {host}")
        assert found.code == 0, found.output
        assert re.search(r"1 packets? transmitted, 1 (packets )?received", found.output)


def test_the_debug_pod_reaches_the_masters_port_and_no_other(story: Story) -> None:
    port = story.inside("echo $MASTER_PORT", NEXT).output.split()[-1]
    for host in (NEXT, f"{NEXT}.training.svc.cluster.local"):
        found = story.inside(f"nc -zv {host} {port}")
        assert found.code == 0, found.output
        assert re.search("succeeded|open", found.output)
    assert story.inside(f"nc -zv {NEXT} 1").code == 1


def test_an_http_request_to_the_masters_port_gets_no_page_and_does_no_harm(story: Story) -> None:
    port = story.inside("echo $MASTER_PORT", NEXT).output.split()[-1]
    fetch = f"-O- -T 5 -t 1 http://{NEXT}:{port}"
    # It connects and gets no answer. The message is GNU wget's, or that of our wget.
    found = story.inside(f"wget {fetch}")
    assert found.code == 4, found.output
    assert re.search(r"Read error|No data received|closed connection|: timed out", found.output), found.output
    before = steps(story)
    story.wait(lambda: steps(story) > before, "training goes on")


def test_input_goes_to_the_debug_pod_and_its_end_too(story: Story) -> None:
    found = story.kubectl("exec", "-i", "network-debug-0", *SPACE, "--", "wc", "-c", typed="x" * 100_000)
    assert (found.code, found.output.strip()) == (0, "100000")


def test_a_person_works_in_the_debug_pods_shell(story: Story) -> None:
    ours, theirs = os.openpty()
    words = ["kubectl", "exec", "-it", "network-debug-0", *SPACE, "--", "sh"]
    shell = subprocess.Popen(words, env=story.environment, stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)
    os.write(ours, f"tty; nslookup {NEXT}; exit 7\n".encode())
    said = b""
    try:
        while data := os.read(ours, 1024):
            said += data
    except OSError:  # EIO: nobody holds the terminal any more
        pass
    assert shell.wait(30) == 7, said
    assert b"/dev/pts/" in said
    assert f"Address: {story.field('pod', NEXT, '.status.podIP')}".encode() in said


def test_port_forward_reaches_a_pods_loopback_address(story: Story) -> None:
    serve = "echo hello > /tmp/page; cd /tmp; nohup python3 -m http.server 8099 --bind 127.0.0.1 >/dev/null 2>&1 &"
    assert story.inside(serve).code == 0
    story.wait(lambda: story.inside("nc -zv 127.0.0.1 8099").code == 0, "the pod's HTTP server")
    with story.watching("port-forward", "network-debug-0", *SPACE, ":8099", ":1") as followed:
        story.wait(lambda: "-> 1\n" in followed.text, "both ports")
        open_port, closed_port = re.findall(r"127\.0\.0\.1:(\d+) ->", followed.text)
        for _ in range(2):
            with urlopen(f"http://127.0.0.1:{open_port}/page", timeout=30) as answer:
                assert answer.read() == b"hello\n"
        with pytest.raises((URLError, ConnectionError)):
            urlopen(f"http://127.0.0.1:{closed_port}/", timeout=30)


def test_attach_shows_the_output_from_now_on(story: Story) -> None:
    with story.watching("attach", NEXT, *SPACE) as followed:
        story.wait(lambda: "step" in followed.text, "steps of the running training")


def test_a_command_that_fails_says_so_by_its_exit_code(story: Story) -> None:
    assert story.inside("exit 5").code == 5
    assert story.kubectl("exec", "network-debug-0", *SPACE, "--", "no-such-program").code == 127


def test_a_file_is_copied_out_of_a_training_pod(story: Story, tmp_path: Path) -> None:
    target = tmp_path / "hosts"
    answer = story.kubectl("cp", f"training/{NEXT}:/etc/hosts", str(target))
    assert answer.code == 0, answer.output
    assert NEXT in target.read_text()


def test_down_in_the_middle_of_a_training_leaves_nothing(story: Story) -> None:
    assert story.field("pod", NEXT, ".status.phase") == "Running"
    code, output = story.made.down()
    assert code == 0, output
    assert things(story.made.client) - story.made.before == set()
