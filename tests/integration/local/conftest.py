"""One local cloud for the run, in a home of its own, so that a person's `make up` is left alone."""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest
import yaml

from local.guard import cloud_environment
from local.home import Home
from tests import cluster_reads
from tests.account import connected
from tests.integration.local.account import Inventory, inventory, without
from tests.integration.local.own_api_server import ApiServer
from tests.integration.local.own_api_server import api_server as running_api_server
from tests.world import World, world
from trainyard.cli.engine import ROOT, Engine
from trainyard.cli.stack_file import write
from trainyard.operator import names as n
from trainyard.stack_files import read

TEST_HOME = ROOT / ".local-test"
# The files that share one stack, in this order: a run's machines, and with them its pods, go a minute after its end.
STORY = (
    "test_main_job",
    "test_made_stack",
    "test_identity",
    # From here on the pool has at most two nodes, spot ones, and keeps one of them.
    "test_updates",
    "test_ceiling",
    "test_submit",
    "test_elastic",
    "test_restarts",
    # For three minutes after a notice Karpenter buys no spot node of this type and zone.
    "test_spot",
    "test_no_capacity",
    # From here on the stack has Kubeflow Trainer in place of the training operator.
    "test_trainjob",
)
# The files that share the second stack, in this order; the last one deletes its cluster.
SECOND_STORY = (
    "test_torchrun_training",
    "test_torchrun_inside",
    "test_torchrun_trouble",
    "test_torchrun_queue",
    "test_destroy",
)
SECOND = "zz-second"
# Each job with its status, a line each.
JOB_STATES = 'jsonpath={range .items[*]}{.kind}/{.metadata.name} {.status}{"\\n"}{end}'
EXAMPLES = ROOT / "examples" / "torchrun"
# Of the torchrun controller, in the order in which they are applied.
INSTALLED_FILES = (
    "crd",
    "config/deployment.yaml",
    "config/rbac/role.yaml",
    "config/admission.yaml",
    "config/network.yaml",
)
# It ends the stack; what reads what all of it left behind in the logs comes after.
END, AFTERWARDS = "test_down_leaves_nothing", "test_permissions"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the tests that share a stack first, one after the other, and among them its end last."""

    def place(item: pytest.Item) -> int:
        file = item.path.stem
        if file == AFTERWARDS:
            return len(STORY) + 1
        return len(STORY) if item.name == END else STORY.index(file)

    shared = sorted((each for each in items if each.path.stem in (*STORY, AFTERWARDS)), key=place)
    shared += sorted(
        (each for each in items if each.path.stem in SECOND_STORY),
        key=lambda item: SECOND_STORY.index(item.path.stem),
    )
    chosen = set(shared)
    items[:] = shared + [each for each in items if each not in chosen]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add the state of the test's clusters to the report of a failed test."""
    report = yield
    if report.when == "call" and report.failed:
        stacks = (each for each in getattr(item, "funcargs", {}).values() if isinstance(each, Stack))
        for stack in dict.fromkeys(stacks):  # a stack may have two fixtures
            report.sections.append((f"cluster of stack {stack.name}", stack.state_of_cluster()))
    return report


@dataclass(frozen=True, kw_only=True)
class Command:
    """A command that a person typed, and what it answered."""

    code: int
    output: str


def deploy(*arguments: str, environment: dict[str, str] | None = None, seconds: float = 900) -> Command:
    """Run `python -m trainyard.cli ...` as the Makefile does; its output is also shown by pytest on failure."""
    return run([sys.executable, "-m", "trainyard.cli", *arguments], environment, seconds)


def run(
    command: list[str],
    environment: dict[str, str] | None = None,
    seconds: float = 900,
    stdin: str | None = None,
    cwd: Path = ROOT,
) -> Command:
    result = subprocess.run(
        command, cwd=cwd, env={**os.environ, **(environment or {})}, timeout=seconds,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, input=stdin,
    )  # fmt: skip
    print(result.stdout)
    return Command(code=result.returncode, output=result.stdout)


class Stack:
    """A stack on the test's local cloud."""

    def __init__(self, home: Home, name: str = "local") -> None:
        self.home = home
        self.name = name
        self.cloud: dict[str, Any] = json.loads(home.cloud_file.read_text())
        self.environment = cloud_environment(home)
        self.engine = Engine(home.root, name, self.environment)
        self.outputs = self.engine.outputs()

    def settings(self) -> dict[str, Any]:
        """What the engine's copy of the stack file says now."""
        return read(self.engine.config_file)

    def configure(self, change: Callable[[dict[str, Any]], None]) -> None:
        """Edit the settings of the stack as a person edits the stack file."""
        document = self.settings()
        change(document["config"])
        write(document, self.engine.config_file)

    def update(self, change: Callable[[dict[str, Any]], None]) -> None:
        """Edit the settings and deploy them."""
        self.configure(change)
        updated = self.pulumi("up", "--yes", "--skip-preview")
        assert updated.code == 0, updated.output

    def pulumi(self, command: str, *arguments: str) -> Command:
        return run(
            [
                "pulumi",
                command,
                *arguments,
                "--stack",
                self.name,
                "--config-file",
                str(self.engine.config_file),
            ],
            self.engine.environment,
        )

    def pulumi_state(self) -> Any:
        """The stack's state as the engine keeps it."""
        command = ["pulumi", "stack", "export", "--stack", self.name]
        answer = subprocess.run(
            command, cwd=ROOT, env=self.engine.environment, capture_output=True, text=True
        )
        assert answer.returncode == 0, answer.stderr
        return json.loads(answer.stdout)["deployment"]

    @property
    def kubectl_environment(self) -> dict[str, str]:
        return {**self.engine.environment, "KUBECONFIG": str(self.home.kubeconfig)}

    def kubectl(self, *arguments: str, stdin: str | None = None) -> Command:
        return run(["kubectl", *arguments], self.kubectl_environment, 240, stdin)

    def state_of_cluster(self) -> str:
        """Return the status of jobs, the pods, nodes and Events, and what Karpenter logged."""
        reads = (
            *(("get", kind, "-A", "-o", JOB_STATES) for kind in ("torchrunjobs", "pytorchjobs", "trainjobs")),
            ("get", "pods,nodes,nodeclaims", "-A", "-o", "wide"),
            ("get", "events", "-A", "--sort-by=.metadata.creationTimestamp"),
            ("logs", "-n", "kube-system", "-l", "app.kubernetes.io/name=karpenter", "--tail", "60"),
        )
        return "\n".join(
            f"kubectl {' '.join(words)}\n{self.kubectl('--request-timeout=20s', *words).output}"
            for words in reads
        )

    @contextmanager
    def following(self, *arguments: str) -> Iterator[Path]:
        """`kubectl logs -f` meanwhile; the file that it writes to."""
        with tempfile.NamedTemporaryFile() as sink:
            command = ["kubectl", "logs", "-f", *arguments]
            process = subprocess.Popen(command, env=self.kubectl_environment, stdout=sink)
            try:
                yield Path(sink.name)
            finally:
                process.terminate()
                process.wait(10)

    @property
    def emulator_headers(self) -> dict[str, str]:
        """What opens the emulator's own paths."""
        return {"Authorization": f"Bearer {self.cloud['emulatorToken']}"}

    def faults(self, rules: list[dict[str, Any]]) -> None:
        """Set the emulator's failure plan."""
        plan = json.dumps({"faults": rules}).encode()
        url = f"{self.cloud['awsEndpoint']}/_trainyard/faults"
        with urlopen(Request(url, plan, self.emulator_headers, method="PUT"), timeout=10) as answer:  # noqa: S310  (our own)
            assert answer.status == 200

    def left(self) -> Inventory:
        """What the account still holds."""
        return without(inventory(self.aws), {})

    def get(self, *arguments: str) -> Any:
        """What `kubectl get ... -o json` prints."""
        return cluster_reads.read(self.home.kubeconfig, *arguments)

    def logs(self, *pods: str) -> str:
        """What pods of the training namespace wrote until now."""
        return cluster_reads.read_logs(self.home.kubeconfig, *pods, namespace="training")

    def aws(self, service: str) -> Any:
        """A client of the emulated account, as the deployer."""
        return connected(self.cloud, self.cloud["region"])(service)


@pytest.fixture(scope="session")
def home() -> Iterator[Home]:
    """A fresh home; whatever an earlier run left there is ended first."""
    previous = os.environ.get("TRAINYARD_HOME")
    os.environ["TRAINYARD_HOME"] = str(TEST_HOME)
    assert run([sys.executable, "-m", "local", "reset"]).code == 0
    yield Home()
    run([sys.executable, "-m", "local", "down"])
    if previous is None:
        del os.environ["TRAINYARD_HOME"]
    else:
        os.environ["TRAINYARD_HOME"] = previous


@pytest.fixture(scope="session")
def first_up(home: Home) -> Command:
    """`make up` on the fresh home."""
    return run(["make", "--no-print-directory", "up"])


@pytest.fixture(scope="session")
def stack(first_up: Command, home: Home) -> Stack:
    assert first_up.code == 0, first_up.output
    return Stack(home)


@pytest.fixture(scope="session")
def second_world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """The stack `local` under another name, with at most two nodes, on a local cloud of its own."""
    document = read(ROOT / "Pulumi.local.yaml")
    document["config"]["trainyard:pools"][0]["maxNodes"] = 2
    document["config"]["trainyard:training"].update(minNodes=1, maxNodes=1, args=["--epochs", "1"])
    file = ROOT / f"Pulumi.{SECOND}.yaml"
    write(document, file)
    try:
        with world(tmp_path_factory.mktemp("second") / "home", SECOND) as made:
            made.up()
            yield made
    finally:
        file.unlink()


@pytest.fixture(scope="session")
def second_stack(second_world: World) -> Stack:
    return Stack(second_world.home, SECOND)


def image(stack: Stack, name: str) -> str:
    """An image of the stack by its digest."""
    return str(stack.outputs[f"{name}Image"])


@pytest.fixture(scope="session")
def installation(second_stack: Stack, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The manifests of the torchrun controller, installed as docs/torchrun.md says."""
    directory = tmp_path_factory.mktemp("install")
    words = ["--into", str(directory), "--image", image(second_stack, "launcher")]
    written = run([sys.executable, "-m", "trainyard.operator.manifests", *words])
    assert written.code == 0, written.output
    for each in INSTALLED_FILES:
        applied = second_stack.kubectl("apply", "-f", str(directory / each))
        assert applied.code == 0, applied.output
    rolled = second_stack.kubectl(
        "rollout", "status", f"deployment/{n.CONTROLLER}", "-n", n.CONTROLLER_NAMESPACE, "--timeout=120s"
    )
    assert rolled.code == 0, rolled.output
    return directory


@pytest.fixture(scope="module")
def installed(second_stack: Stack, installation: Path) -> Iterator[Stack]:
    """The second stack with the torchrun controller and the queues of the examples."""
    queues = list(yaml.safe_load_all((EXAMPLES / "queues.yaml").read_text()))
    queues.append(requirements_queue(queues))
    for each in queues:
        each["spec"]["image"] = image(second_stack, "trainer")
        if each["spec"]["nodeResources"]["gpus"]:
            pool = second_stack.settings()["config"]["trainyard:pools"][0]["name"]
            each["spec"]["scheduling"] = {"pool": pool}
    space = ("-n", "training")
    applied = second_stack.kubectl("apply", *space, "-f", "-", stdin=yaml.safe_dump_all(queues))
    assert applied.code == 0, applied.output
    yield second_stack
    second_stack.kubectl("delete", "torchrunjobs,torchrunqueues", "--all", *space, "--timeout=120s")


def requirements_queue(queues: list[dict[str, Any]]) -> dict[str, Any]:
    """The queue that the requirement's command names: its machines here have four GPUs each."""
    prod = copy.deepcopy(next(each for each in queues if each["metadata"]["name"] == "prod"))
    prod["metadata"]["name"] = "h100-training"
    del prod["spec"]["storage"]["checkpoints"]
    prod["spec"]["storage"]["workspace"] = {"enabled": True, "sizePerGPU": "1Gi"}
    return prod


def two_spot_nodes(config: dict[str, Any]) -> None:
    """Give the pool and its run two spot nodes, whose end EC2 announces."""
    config["trainyard:pools"][0].update(maxNodes=2, purchase="spot")
    # Only the first run has to reach 95 %; the later ones train for less time.
    config["trainyard:training"].update(minNodes=2, maxNodes=2, args=["--epochs", "5"])


@pytest.fixture(scope="session")
def pool_of_two(stack: Stack) -> Stack:
    """The stack with the pool of tests/integration/local/test_updates.py, also where a test file runs alone."""
    if stack.settings()["config"]["trainyard:pools"][0].get("purchase") != "spot":
        stack.update(two_spot_nodes)
        assert stack.kubectl("delete", "nodeclaims", "--all", "--timeout=120s").code == 0
    return stack


@pytest.fixture(scope="session")
def api_server() -> Iterator[ApiServer]:
    """A Kubernetes API server without the rest of a cluster, for what it alone decides."""
    with running_api_server() as server:
        yield server


@pytest.fixture(scope="session")
def torchrun_api(api_server: ApiServer) -> ApiServer:
    """The same, with the torchrun kinds as a person installs them."""
    applied = api_server.kubectl("apply", "-f", "crd/")
    assert applied.returncode == 0, applied.stderr
    kinds = [f"crd/{each}.{n.GROUP}" for each in (n.QUEUE_PLURAL, n.JOB_PLURAL)]
    api_server.established(*kinds)
    return api_server
