"""What a stack's life is asked besides its machines: each look sees the wrong it is there for."""

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

pytestmark = pytest.mark.unit

Allowed = Callable[[str, str, str], bool]


class Bucket:
    """S3 as a session sees it that may do what `allowed` says of action, bucket and key."""

    def __init__(self, allowed: Allowed) -> None:
        self.allowed = allowed

    def _ask(self, action: str, bucket: str, key: str) -> None:
        if not self.allowed(action, bucket, key):
            raise ClientError({"Error": {"Code": "AccessDenied"}}, action)

    def put_object(self, Bucket: str, Key: str, Body: bytes) -> None:
        self._ask("put", Bucket, Key)

    def delete_object(self, Bucket: str, Key: str) -> None:
        self._ask("delete", Bucket, Key)


class Life:
    """A stack that is up, as far as the looks ask it. `pods` are name, machine, phase.

    `log` is every log, `objects` are those that are looked at one by one, and `said` is what commands in pods say.
    """

    def __init__(
        self,
        settings: dict[str, Any],
        log: str = "",
        pods: tuple[tuple[str, str, str], ...] = (),
        objects: dict[str, Any] | None = None,
        said: Callable[..., str] = lambda pod, *command: "",
    ):
        self.made = SimpleNamespace(settings=settings, client=None, stack="test")
        self.engine = SimpleNamespace(outputs=lambda: {"modelBucket": "ours"})
        self.pools = settings.get("trainyard:pools", [{"name": "p", "instanceType": "p3dn.24xlarge"}])
        self.log = log
        self.pods = pods
        self.objects = objects or {}
        self.said = said
        self.asked: list[tuple[str, ...]] = []

    def kubectl(self, *arguments: str) -> str:
        self.asked.append(arguments)
        if arguments[0] == "exec":
            assert arguments[2:5] == ("-n", "training", "--")
            return self.said(arguments[1], *arguments[5:])
        return self.log if arguments[0] == "logs" else ""

    def apply(self, manifest: dict[str, Any]) -> None:
        self.asked.append(("apply", manifest["kind"]))

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


def asked(monkeypatch: pytest.MonkeyPatch, allowed: Allowed, *more: dict[str, str]) -> list[str]:
    monkeypatch.setattr(shown, "assumed", lambda *_: Bucket(allowed))
    return list(accounts(Life({"trainyard:serviceAccounts": list(more)})))


def test_an_account_that_may_write_below_its_prefix_alone_is_right(monkeypatch: pytest.MonkeyPatch) -> None:
    account = {"name": "theirs", "bucket": "models", "access": "write"}
    assert asked(monkeypatch, below_the_prefix, account) == []


@pytest.mark.parametrize(
    ("allowed", "told"),
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
def test_each_wrong_right_of_an_account_is_told(
    monkeypatch: pytest.MonkeyPatch, allowed: Allowed, told: str
) -> None:
    (line,) = asked(monkeypatch, allowed)
    assert line.startswith("service account training/trainer: ")
    assert told in line


def test_a_reader_that_may_write_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    (line,) = asked(monkeypatch, below_the_prefix, {"name": "reader", "bucket": "models"})
    assert line == "service account default/reader: may write s3://ours/models/probe"


def test_another_refusal_than_of_rights_is_no_denial() -> None:
    def call() -> None:
        raise ClientError({"Error": {"Code": "NoSuchBucket"}}, "put")

    with pytest.raises(ClientError):
        is_denied(call)


class Mount:
    """A stack with a file system and kept machines; `root` is the file system, and where its pod writes to."""

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
        self.asked: list[tuple[str, ...]] = []

    def told(self) -> list[str]:
        life = Life(self.settings, self.log, objects=self.objects, said=self.said)
        life.made.home = self.home
        self.asked = life.asked
        return list(mounted(life))

    def said(self, pod: str, *command: str) -> str:
        assert pod == "attach-pvc"
        here = [word.replace("/fsx", str(self.written)) for word in command]
        return subprocess.run(here, check=True, capture_output=True, text=True).stdout


def test_the_mounts_pod_has_proven_it_and_is_entered(tmp_path: Path) -> None:
    mount = Mount(tmp_path)
    assert mount.told() == []
    assert list(mount.written.iterdir()) == [], "what was written is removed"
    assert mount.asked[0][:2] == ("wait", "pod/attach-pvc")
    (proof,) = [words for words in mount.asked if words[0] == "logs"]
    assert proof[1:] == ("attach-pvc", "-n", "training", "--container", "prove")


@pytest.mark.parametrize("log", ["written and read on /other\n", ""])
def test_a_mount_that_was_not_proven_is_told(tmp_path: Path, log: str) -> None:
    mount = Mount(tmp_path)
    mount.log = log
    (line,) = mount.told()
    assert "the log of its proof ends with" in line


def test_a_mounts_pod_that_writes_elsewhere_than_to_the_file_system_is_told(tmp_path: Path) -> None:
    mount = Mount(tmp_path / "volumes", written=tmp_path / "elsewhere")
    assert mount.told() == ["pod/attach-pvc: /fsx/probe is not in the file system fs-1"]


@pytest.mark.parametrize(("kind", "name"), [("pvc", "lustre"), ("pv", "v")])
def test_a_claim_without_its_volume_is_told(tmp_path: Path, kind: str, name: str) -> None:
    mount = Mount(tmp_path)
    mount.objects[kind]["status"]["phase"] = "Pending"
    assert mount.told() == [f"{kind}/{name} is Pending, not Bound"]


def test_where_no_machine_is_kept_there_is_no_pod_to_look_at(tmp_path: Path) -> None:
    mount = Mount(tmp_path)
    mount.settings["trainyard:pools"] = [{"name": "p", "instanceType": "p4d.24xlarge"}]
    assert mount.told() == []
    assert mount.asked == []
    mount.settings["trainyard:storage"] = {"prefix": "models"}
    mount.objects = {}
    assert mount.told() == []


def host_name(pod: str, *_: str) -> str:
    return f"{pod}\n"


def ring(second: str = "node-2", said: Callable[..., str] = host_name) -> Life:
    pods = (
        ("ring-launcher", "system", "Running"),
        ("ring-worker-0", "node-1", "Running"),
        ("ring-worker-1", second, "Running"),
    )
    return Life({"trainyard:mpi": True}, pods=pods, said=said)


@pytest.mark.parametrize(("second", "count"), [("node-2", 0), ("node-1", 1), ("elsewhere", 1)])
def test_the_workers_of_an_mpijob_run_on_two_machines_of_the_pool(second: str, count: int) -> None:
    life = ring(second)
    assert len(list(jobs_of_mpi(life))) == count
    assert ("apply", "MPIJob") in life.asked
    assert life.asked[-1][:2] == ("delete", "mpijob/ring")


def test_the_workers_of_an_mpijob_are_entered_and_its_launcher_may_do_so() -> None:
    life = ring()
    assert list(jobs_of_mpi(life)) == []
    who = "--as=system:serviceaccount:training:ring-launcher"
    rights = [words for words in life.asked if words[0] == "auth"]
    assert [(words[3], words[-1]) for words in rights] == [
        ("pods/ring-worker-0", who),
        ("pods/ring-worker-1", who),
    ]
    lost = list(jobs_of_mpi(ring(said=lambda *_: "ring-worker-0\n")))
    assert lost == ["whoever enters pod/ring-worker-1 is somewhere else"]


def test_a_debug_pod_that_does_not_run_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shown, "MACHINE_SECONDS", 0)
    settings = {"trainyard:debugPod": True}
    with pytest.raises(AssertionError, match="network-debug"):
        list(debugging(Life(settings, pods=(("network-debug-0", "system", "Pending"),))))
    assert list(debugging(Life({}))) == []


@pytest.mark.parametrize(("address", "count"), [("10.100.0.1", 0), ("10.100.0.10", 1)])
def test_a_debug_pod_that_finds_another_address_is_told(address: str, count: int) -> None:
    life = Life(
        {"trainyard:debugPod": True},
        pods=(("network-debug-0", "system", "Running"),),
        objects={"service": {"spec": {"clusterIP": "10.100.0.1"}}},
        said=lambda _pod, *command: f"Name:\t{command[-1]}\nAddress: {address}\n",
    )
    assert len(list(debugging(life))) == count
    assert life.asked[-1][5:] == ("nc", "-z", "kubernetes.default.svc.cluster.local", "443")


TRN1 = {"name": "trn1", "instanceType": "trn1.32xlarge", "warmNodes": 2}
OF_TRN1 = {"aws.amazon.com/neuron": "16", "vpc.amazonaws.com/efa": "8"}


class Gang(Life):
    """A stack with a queue; `workers` are machine and devices of each."""

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


def test_a_job_of_each_queue_has_machines_and_their_devices() -> None:
    life = Gang(("node-1", OF_TRN1), ("node-2", OF_TRN1))
    assert list(queues(life)) == []
    assert [words[:2] for words in life.asked] == [
        ("wait", "torchrunqueue/q"),
        ("apply", "TorchrunJob"),
        ("wait", "torchrunjob/gang"),
        ("delete", "torchrunjob/gang"),
    ]
    assert list(queues(Life({}))) == []


@pytest.mark.parametrize(
    ("workers", "told"),
    [
        ((("node-1", OF_TRN1), ("node-1", OF_TRN1)), "2 workers of a job of queue q ran on ['node-1']"),
        ((("node-1", OF_TRN1),), "1 workers of a job of queue q ran on ['node-1'], not on 2 machines"),
        ((("node-1", OF_TRN1), ("node-2", {})), "pod/gang-1 had {} of its machine"),
    ],
)
def test_a_job_without_its_machines_or_devices_is_told(
    workers: tuple[tuple[str, dict[str, str]], ...], told: str
) -> None:
    life = Gang(*workers)
    (line,) = queues(life)
    assert told in line
    assert life.asked[-1][:2] == ("delete", "torchrunjob/gang")
