"""What a stack's life is asked besides its machines: each look sees the wrong it is there for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from botocore.exceptions import ClientError

from tests.identity.session import is_denied
from tests.stacks import shown
from tests.stacks.shown import accounts, debugging, jobs_of_mpi, mounted

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
    """A stack that is up, as far as the looks ask it. `pods` are name, machine, phase."""

    def __init__(self, settings: dict[str, Any], log: str = "", pods: tuple[tuple[str, str, str], ...] = ()):
        self.made = SimpleNamespace(settings=settings, client=None, stack="test")
        self.engine = SimpleNamespace(outputs=lambda: {"modelBucket": "ours"})
        self.pools = [{"name": "p", "instanceType": "p3dn.24xlarge"}]
        self.log = log
        self.pods = pods
        self.asked: list[tuple[str, ...]] = []

    def kubectl(self, *arguments: str) -> str:
        self.asked.append(arguments)
        return self.log if arguments[0] == "logs" else ""

    def apply(self, manifest: dict[str, Any]) -> None:
        self.asked.append(("apply", manifest["kind"]))

    def one(self, *_: str) -> dict[str, Any]:
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


@pytest.mark.parametrize(
    ("log", "count"), [("df\nwritten and read on /fsx\n", 0), ("written and read on /other\n", 1), ("", 1)]
)
def test_the_mounts_job_has_to_have_written_and_read(log: str, count: int) -> None:
    life = Life({"trainyard:storage": {"lustre": {"mountPath": "/fsx"}}}, log)
    assert len(list(mounted(life))) == count
    assert life.asked[0][:2] == ("wait", "job/attach-pvc")
    assert list(mounted(Life({"trainyard:storage": {"prefix": "models"}}))) == []


@pytest.mark.parametrize(("second", "count"), [("node-2", 0), ("node-1", 1), ("elsewhere", 1)])
def test_the_workers_of_an_mpijob_run_on_two_machines_of_the_pool(second: str, count: int) -> None:
    pods = (
        ("ring-launcher", "system", "Running"),
        ("ring-worker-0", "node-1", "Running"),
        ("ring-worker-1", second, "Running"),
    )
    life = Life({"trainyard:mpi": True}, pods=pods)
    assert len(list(jobs_of_mpi(life))) == count
    assert ("apply", "MPIJob") in life.asked
    assert life.asked[-1][:2] == ("delete", "mpijob/ring")


def test_a_debug_pod_that_does_not_run_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shown, "MACHINE_SECONDS", 0)
    settings = {"trainyard:debugPod": True}
    assert list(debugging(Life(settings, pods=(("network-debug", "system", "Running"),)))) == []
    with pytest.raises(AssertionError, match="network-debug"):
        list(debugging(Life(settings, pods=(("network-debug", "system", "Pending"),))))
