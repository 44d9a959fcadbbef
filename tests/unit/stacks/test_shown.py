"""Checks of a deployed stack other than its nodes: each detects the fault it exists for."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from botocore.exceptions import ClientError

from tests.identity.session import is_denied
from tests.stacks import shown
from tests.stacks.shown import accounts, debugging, jobs_of_mpi, mounted, queues

Allowed = Callable[[str, str, str], bool]


class Bucket:
    """S3 client that permits the actions, buckets and keys for which `allowed` is true."""

    def __init__(self, allowed: Allowed) -> None:
        self.allowed = allowed

    def _check(self, action: str, bucket: str, key: str) -> None:
        if not self.allowed(action, bucket, key):
            raise ClientError({"Error": {"Code": "AccessDenied"}}, action)

    def put_object(self, Bucket: str, Key: str, Body: bytes) -> None:
        self._check("put", Bucket, Key)

    def delete_object(self, Bucket: str, Key: str) -> None:
        self._check("delete", Bucket, Key)


class Life:
    """A deployed stack with the methods that the checks call. `pods` are (name, node, phase).

    `log` is the log of every pod, and `objects` are single objects by kind. `output` returns what a command in a
    pod prints.
    """

    def __init__(
        self,
        settings: dict[str, Any],
        log: str = "",
        pods: tuple[tuple[str, str, str], ...] = (),
        objects: dict[str, Any] | None = None,
        output: Callable[..., str] = lambda pod, *command: "",
    ):
        self.made = SimpleNamespace(settings=settings, client=None, stack="test")
        self.engine = SimpleNamespace(outputs=lambda: {"modelBucket": "ours"})
        self.pools = settings.get("trainyard:pools", [{"name": "p", "instanceType": "p3dn.24xlarge"}])
        self.log = log
        self.pods = pods
        self.objects = objects or {}
        self.output = output
        self.calls: list[tuple[str, ...]] = []

    def kubectl(self, *arguments: str) -> str:
        self.calls.append(arguments)
        if arguments[0] == "exec":
            assert arguments[2:5] == ("-n", "training", "--")
            return self.output(arguments[1], *arguments[5:])
        return self.log if arguments[0] == "logs" else ""

    def apply(self, manifest: dict[str, Any]) -> None:
        self.calls.append(("apply", manifest["kind"]))

    def one(self, kind: str, *_: str) -> dict[str, Any]:
        if kind in self.objects:
            found: dict[str, Any] = self.objects[kind]
            return found
        return {"metadata": {"annotations": {"eks.amazonaws.com/role-arn": "arn:role"}}}

    def get(self, *_: str) -> list[dict[str, Any]]:
        return [
            {"metadata": {"name": name}, "spec": {"nodeName": node}, "status": {"phase": phase}}
            for name, node, phase in self.pods
        ]

    def nodes(self, _pool: dict[str, Any]) -> list[dict[str, Any]]:
        return [{"metadata": {"name": name}} for name in ("node-1", "node-2")]

    @contextmanager
    def other_bucket(self) -> Iterator[str]:
        yield "other"


def below_the_prefix(action: str, bucket: str, key: str) -> bool:
    return action == "put" and bucket == "ours" and key.startswith("models/")


def account_lines(monkeypatch: pytest.MonkeyPatch, allowed: Allowed, *more: dict[str, str]) -> list[str]:
    monkeypatch.setattr(shown, "assumed", lambda *_: Bucket(allowed))
    return list(accounts(Life({"trainyard:serviceAccounts": list(more)})))


def test_accounts_write_below_own_prefix_only_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    account = {"name": "theirs", "bucket": "models", "access": "write"}
    assert account_lines(monkeypatch, below_the_prefix, account) == []


@pytest.mark.parametrize(
    ("allowed", "message"),
    [
        (lambda action, bucket, key: False, "may not write s3://ours/models/probe"),
        (lambda action, bucket, key: action == "put" and bucket == "ours", "which is outside models/"),
        (lambda action, bucket, key: bucket == "ours" and key.startswith("models/"), "may delete"),
        (
            lambda action, bucket, key: action == "put" and key.startswith("models/"),
            "which is not the stack's",
        ),
    ],
)
def test_accounts_wrong_permission_is_reported(
    monkeypatch: pytest.MonkeyPatch, allowed: Allowed, message: str
) -> None:
    (line,) = account_lines(monkeypatch, allowed)
    assert line.startswith("service account training/trainer: ")
    assert message in line


def test_accounts_reader_that_can_write_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    (line,) = account_lines(monkeypatch, below_the_prefix, {"name": "reader", "bucket": "models"})
    assert line == "service account default/reader: may write s3://ours/models/probe"


def test_is_denied_other_client_error_is_raised() -> None:
    def call() -> None:
        raise ClientError({"Error": {"Code": "NoSuchBucket"}}, "put")

    with pytest.raises(ClientError):
        is_denied(call)


class Mount:
    """A stack with a file system and warm nodes; the pod writes to `written`, by default below `root`."""

    def __init__(self, root: Path, written: Path | None = None) -> None:
        self.settings: dict[str, Any] = {
            "trainyard:storage": {"lustre": {"mountPath": "/fsx"}},
            "trainyard:pools": [{"name": "p", "instanceType": "p3dn.24xlarge", "warmNodes": 1}],
        }
        self.objects: dict[str, Any] = {
            "pvc": {
                "metadata": {"name": "lustre"},
                "spec": {"volumeName": "v"},
                "status": {"phase": "Bound"},
            },
            "pv": {
                "metadata": {"name": "v"},
                "spec": {"csi": {"volumeHandle": "fs-1"}},
                "status": {"phase": "Bound"},
            },
        }
        self.log = "df\nwritten and read on /fsx\n"
        self.home = SimpleNamespace(volumes=root)
        self.written = written or root / "fsx" / "fs-1"
        self.written.mkdir(parents=True)
        self.calls: list[tuple[str, ...]] = []

    def lines(self) -> list[str]:
        life = Life(self.settings, self.log, objects=self.objects, output=self.output)
        life.made.home = self.home
        self.calls = life.calls
        return list(mounted(life))

    def output(self, pod: str, *command: str) -> str:
        assert pod == "attach-pvc"
        here = [word.replace("/fsx", str(self.written)) for word in command]
        return subprocess.run(here, check=True, capture_output=True, text=True).stdout


def test_mounted_pod_with_working_mount_passes(tmp_path: Path) -> None:
    mount = Mount(tmp_path)
    assert mount.lines() == []
    assert list(mount.written.iterdir()) == [], "the probe file is removed"
    assert mount.calls[0][:2] == ("wait", "pod/attach-pvc")
    (proof,) = [call for call in mount.calls if call[0] == "logs"]
    assert proof[1:] == ("attach-pvc", "-n", "training", "--container", "prove")


@pytest.mark.parametrize("log", ["written and read on /other\n", ""])
def test_mounted_log_without_proof_is_reported(tmp_path: Path, log: str) -> None:
    mount = Mount(tmp_path)
    mount.log = log
    (line,) = mount.lines()
    assert "the log of its proof ends with" in line


def test_mounted_pod_writing_elsewhere_is_reported(tmp_path: Path) -> None:
    mount = Mount(tmp_path / "volumes", written=tmp_path / "elsewhere")
    assert mount.lines() == ["pod/attach-pvc: /fsx/probe is not in the file system fs-1"]


@pytest.mark.parametrize(("kind", "name"), [("pvc", "lustre"), ("pv", "v")])
def test_mounted_unbound_claim_or_volume_is_reported(tmp_path: Path, kind: str, name: str) -> None:
    mount = Mount(tmp_path)
    mount.objects[kind]["status"]["phase"] = "Pending"
    assert mount.lines() == [f"{kind}/{name} is Pending, not Bound"]


def test_mounted_without_warm_nodes_or_lustre_checks_no_pod(tmp_path: Path) -> None:
    mount = Mount(tmp_path)
    mount.settings["trainyard:pools"] = [{"name": "p", "instanceType": "p4d.24xlarge"}]
    assert mount.lines() == []
    assert mount.calls == []
    mount.settings["trainyard:storage"] = {"prefix": "models"}
    mount.objects = {}
    assert mount.lines() == []


def host_name(pod: str, *_: str) -> str:
    return f"{pod}\n"


def ring(second: str = "node-2", output: Callable[..., str] = host_name) -> Life:
    pods = (
        ("ring-launcher", "system", "Running"),
        ("ring-worker-0", "node-1", "Running"),
        ("ring-worker-1", second, "Running"),
    )
    return Life({"trainyard:mpi": True}, pods=pods, output=output)


@pytest.mark.parametrize(("second", "count"), [("node-2", 0), ("node-1", 1), ("elsewhere", 1)])
def test_jobs_of_mpi_workers_run_on_two_nodes_of_the_pool(second: str, count: int) -> None:
    life = ring(second)
    assert len(list(jobs_of_mpi(life))) == count
    assert ("apply", "MPIJob") in life.calls
    assert life.calls[-1][:2] == ("delete", "mpijob/ring")


def test_jobs_of_mpi_launcher_can_exec_into_workers() -> None:
    life = ring()
    assert list(jobs_of_mpi(life)) == []
    who = "--as=system:serviceaccount:training:ring-launcher"
    rights = [call for call in life.calls if call[0] == "auth"]
    assert [(call[3], call[-1]) for call in rights] == [
        ("pods/ring-worker-0", who),
        ("pods/ring-worker-1", who),
    ]
    wrong_pod = list(jobs_of_mpi(ring(output=lambda *_: "ring-worker-0\n")))
    assert wrong_pod == ["pod/ring-worker-1: exec runs in another pod"]


def test_debugging_pending_pod_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shown, "MACHINE_SECONDS", 0)
    settings = {"trainyard:debugPod": True}
    with pytest.raises(AssertionError, match="network-debug"):
        list(debugging(Life(settings, pods=(("network-debug-0", "system", "Pending"),))))
    assert list(debugging(Life({}))) == []


@pytest.mark.parametrize(("address", "count"), [("10.100.0.1", 0), ("10.100.0.10", 1)])
def test_debugging_wrong_service_address_is_reported(address: str, count: int) -> None:
    life = Life(
        {"trainyard:debugPod": True},
        pods=(("network-debug-0", "system", "Running"),),
        objects={"service": {"spec": {"clusterIP": "10.100.0.1"}}},
        output=lambda _pod, *command: f"Name:\t{command[-1]}\nAddress: {address}\n",
    )
    assert len(list(debugging(life))) == count
    assert life.calls[-1][5:] == ("nc", "-z", "kubernetes.default.svc.cluster.local", "443")


TRN1 = {"name": "trn1", "instanceType": "trn1.32xlarge", "warmNodes": 2}
OF_TRN1 = {"aws.amazon.com/neuron": "16", "vpc.amazonaws.com/efa": "8"}


class Gang(Life):
    """A stack with a queue; `workers` are the node and devices of each worker."""

    def __init__(self, *workers: tuple[str, dict[str, str]]) -> None:
        settings = {"trainyard:queues": [{"name": "q", "pool": "trn1"}], "trainyard:pools": [TRN1]}
        super().__init__(settings, objects={"torchrunqueue": {"spec": {"nodeResources": {"cpus": "1"}}}})
        self.workers = workers

    def get(self, *_: str) -> list[dict[str, Any]]:
        return [
            {
                "metadata": {"name": f"gang-{index}"},
                "spec": {
                    "nodeName": node,
                    "containers": [{"resources": {"limits": {"cpu": "1", **devices}}}],
                },
            }
            for index, (node, devices) in enumerate(self.workers)
        ]


def test_queues_job_gets_nodes_and_devices() -> None:
    life = Gang(("node-1", OF_TRN1), ("node-2", OF_TRN1))
    assert list(queues(life)) == []
    assert [call[:2] for call in life.calls] == [
        ("wait", "torchrunqueue/q"),
        ("apply", "TorchrunJob"),
        ("wait", "torchrunjob/gang"),
        ("delete", "torchrunjob/gang"),
    ]
    assert list(queues(Life({}))) == []


@pytest.mark.parametrize(
    ("workers", "message"),
    [
        ((("node-1", OF_TRN1), ("node-1", OF_TRN1)), "2 workers of a job of queue q ran on ['node-1']"),
        ((("node-1", OF_TRN1),), "1 workers of a job of queue q ran on ['node-1'], not on 2 machines"),
        ((("node-1", OF_TRN1), ("node-2", {})), "pod/gang-1 had {} of its machine"),
    ],
)
def test_queues_job_without_nodes_or_devices_is_reported(
    workers: tuple[tuple[str, dict[str, str]], ...], message: str
) -> None:
    life = Gang(*workers)
    (line,) = queues(life)
    assert message in line
    assert life.calls[-1][:2] == ("delete", "torchrunjob/gang")
