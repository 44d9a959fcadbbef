"""The cluster of a stack that is up on the local cloud: its objects as the administrator, its processes by signals."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from kubernetes import client, config

from launcher.submit import read_manifest
from local.cluster.usage import descendants
from local.home import Home
from tests.account import connected
from tests.faults.proxy import Proxy
from trainyard.k8s.client import ApiError, ApiUnavailable, Client, JsonObject, api_client

SPACE = "training"
CLAIMS = "/apis/karpenter.sh/v1/nodeclaims"
POOLS = "/apis/karpenter.sh/v1/nodepools"
NODES = "/api/v1/nodes"
WEBHOOKS = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations"
KARPENTER = "/api/v1/namespaces/kube-system/pods"
# As long as a step of a row takes on a machine that is busy with other things.
LONGEST_SECONDS = 120.0
# Between two checks of `until`: so many times the last check's duration, within these limits.
PAUSE_FACTOR = 3.0
SHORTEST_PAUSE_SECONDS = 0.2
LONGEST_PAUSE_SECONDS = 1.0
_OF_PYTORCH_JOBS = "validator.pytorchjob.training-operator.kubeflow.org"


def until(holds: Callable[[], object], what: str, seconds: float = LONGEST_SECONDS) -> None:
    """Wait for something to hold. Raises AssertionError if it does not in this time.

    A check that starts a process (kubectl takes a tenth of a second of a processor, the plugin five) takes processor
    time from what it waits for, so the pause after it is longer.
    """
    end = time.monotonic() + seconds
    while True:
        began = time.monotonic()
        if holds():
            return
        now = time.monotonic()
        assert now < end, f"not within {seconds:g} s: {what}"
        time.sleep(min(max(SHORTEST_PAUSE_SECONDS, PAUSE_FACTOR * (now - began)), LONGEST_PAUSE_SECONDS))


class Place:
    """One cluster. `outputs` are those of the stack; its first pool is the one that runs use."""

    def __init__(self, home: Home, outputs: Mapping[str, Any]) -> None:
        settings = client.Configuration()
        config.load_kube_config(str(home.kubeconfig), outputs["clusterName"], settings)
        self.api = Client(api_client(settings))
        self.manifest = read_manifest(outputs["launcherManifest"])
        self.pool = str(self.request()["pool"]["name"])
        self._home = home
        self._cluster = str(outputs["clusterName"])
        self._server, self._authority = settings.host, settings.ssl_ca_cert

    def proxy(self) -> Proxy:
        """A proxy before this cluster's API server."""
        return Proxy(self._server, self._authority)

    def request(self) -> JsonObject:
        """What the stack's launcher manifest asks for."""
        (container,) = self.manifest["spec"]["template"]["spec"]["containers"]
        values = {entry["name"]: entry.get("value") for entry in container["env"]}
        document: JsonObject = json.loads(values["TRAINYARD_REQUEST"])
        return document

    def token(self) -> str:
        """A token of the launcher's service account, as its pod has one: with the rights of its roles."""
        path = f"/api/v1/namespaces/{SPACE}/serviceaccounts/launcher/token"
        made = self.api.request("POST", path, body={"spec": {"expirationSeconds": 3600}})
        return str(made["status"]["token"])

    # -- objects

    def items(self, path: str, selector: str = "") -> list[JsonObject]:
        """The objects of a list."""
        query = {"labelSelector": selector} if selector else {}
        return self.api.list_items(path, query, lambda item: item)

    def get(self, path: str) -> JsonObject | None:
        """One object, if there is one."""
        try:
            return self.api.request("GET", path)
        except ApiError as error:
            if error.status == 404:
                return None
            raise

    def delete(self, path: str) -> None:
        """Delete one object, if there is one; what it owns goes with it."""
        with suppress_not_found():
            self.api.request("DELETE", path, body={"propagationPolicy": "Background"})

    def change(self, path: str, change: Callable[[JsonObject], object], part: str = "") -> None:
        """Read an object, change it, write it; again where somebody else was faster. `part` is "/status" or so."""
        while True:
            item = self.api.request("GET", path)
            change(item)
            try:
                self.api.request("PUT", path + part, body=item)
                return
            except ApiError as error:
                if error.status != 409:
                    raise

    # -- machines

    def claims(self) -> list[JsonObject]:
        """The pool's NodeClaims."""
        return self.items(CLAIMS, f"karpenter.sh/nodepool={self.pool}")

    def nodes(self) -> list[JsonObject]:
        """The pool's nodes."""
        return self.items(NODES, f"karpenter.sh/nodepool={self.pool}")

    def without_machines(self) -> None:
        """Give all of the pool's machines back."""
        for claim in self.claims():
            self.delete(f"{CLAIMS}/{claim['metadata']['name']}")
        until(lambda: not self.claims() and not self.nodes(), "the machines are given back")

    @contextmanager
    def settings_of_pool(self, *, machines: int, idle: str) -> Iterator[None]:
        """For a while the pool may have so many machines, and keeps one that is empty for this long."""
        path, size = f"{POOLS}/{self.pool}", self.request()["pool"]
        before = self.api.request("GET", path)["spec"]

        def put(limits: JsonObject, after: str) -> None:
            def change(item: JsonObject) -> None:
                item["spec"]["limits"] = limits
                item["spec"]["disruption"]["consolidateAfter"] = after

            self.change(path, change)

        put({**before["limits"], size["resource"]: str(machines * size["perNode"])}, idle)
        try:
            yield
        finally:
            put(before["limits"], before["disruption"]["consolidateAfter"])

    def fresh_karpenter(self) -> None:
        """Restart Karpenter, so that it forgets refusals, which it otherwise remembers for three minutes."""
        label = "app.kubernetes.io/name=karpenter"
        old = {pod["metadata"]["uid"] for pod in self.items(KARPENTER, label)}
        for pod in self.items(KARPENTER, label):
            self.delete(f"{KARPENTER}/{pod['metadata']['name']}")

        def is_back() -> bool:
            pods = self.items(KARPENTER, label)
            return any(_is_ready(pod) for pod in pods) and not old & {pod["metadata"]["uid"] for pod in pods}

        until(is_back, "Karpenter is back")

    @contextmanager
    def closed_to_new_machines(self) -> Iterator[None]:
        """For a while EKS lets no kubelet in that is not there yet: machines are bought, and never register."""
        cloud = self._home.cloud() or {}
        eks = connected(cloud, cloud["region"])("eks")
        every = eks.list_access_entries(clusterName=self._cluster)["accessEntries"]
        entries = [
            eks.describe_access_entry(clusterName=self._cluster, principalArn=each)["accessEntry"]
            for each in every
        ]
        of_machines = [entry for entry in entries if entry["type"] == "EC2_LINUX"]
        assert of_machines, "no machine has an access entry"
        for entry in of_machines:
            eks.delete_access_entry(clusterName=self._cluster, principalArn=entry["principalArn"])
        try:
            yield
        finally:
            for entry in of_machines:
                kept = {key: entry[key] for key in ("principalArn", "type", "tags") if entry.get(key)}
                eks.create_access_entry(clusterName=self._cluster, **kept)

    @contextmanager
    def disks_without_key(self) -> Iterator[None]:
        """For a while the account's default key for EBS is a disabled one, so that new machines end at launch."""
        cloud = self._home.cloud() or {}
        client = connected(cloud, cloud["region"])
        ec2, kms = client("ec2"), client("kms")
        before = ec2.get_ebs_default_kms_key_id()["KmsKeyId"]
        key = kms.create_key()["KeyMetadata"]["KeyId"]
        kms.disable_key(KeyId=key)
        ec2.modify_ebs_default_kms_key_id(KmsKeyId=key)
        try:
            yield
        finally:
            ec2.modify_ebs_default_kms_key_id(KmsKeyId=before)
            kms.schedule_key_deletion(KeyId=key, PendingWindowInDays=7)

    # -- processes

    def process(self, *words: str) -> int:
        """The one process of this cloud of which each word is the program's name or an argument."""
        cloud = self._home.cloud() or {}
        found: list[int] = []

        def is_alone() -> bool:
            # A process that was just forked has its parent's command line for a moment.
            found[:] = [pid for pid in descendants(int(cloud["pid"])) if _says(pid, words)]
            return len(found) == 1

        until(is_alone, f"one process {' '.join(words)}", seconds=5)
        return found[0]

    @property
    def operator_process(self) -> int:
        """The training operator."""
        return self.process("training-operator")

    def kill_api_server(self) -> None:
        """SIGKILL; the local cloud starts it again half a second later."""
        port = urlsplit(self._server).port
        os.kill(self.process("kube-apiserver", f"--secure-port={port}"), signal.SIGKILL)

    def answers(self) -> bool:
        """Whether the API server is there."""
        try:
            self.api.request("GET", "/version")
        except (ApiError, ApiUnavailable):
            return False
        return True

    @contextmanager
    def tolerant_webhook(self) -> Iterator[None]:
        """For a while a PyTorchJob may be made that nobody could look at.

        A webhook that does not answer would else refuse it.
        """
        (path,) = [
            f"{WEBHOOKS}/{item['metadata']['name']}"
            for item in self.items(WEBHOOKS)
            if any(hook["name"] == _OF_PYTORCH_JOBS for hook in item["webhooks"])
        ]

        def put(policy: str, seconds: int) -> None:
            def change(item: JsonObject) -> None:
                for hook in item["webhooks"]:
                    hook |= {"failurePolicy": policy, "timeoutSeconds": seconds}

            self.change(path, change)

        first = self.api.request("GET", path)["webhooks"][0]
        put("Ignore", 1)
        try:
            yield
        finally:
            put(first["failurePolicy"], first["timeoutSeconds"])


@contextmanager
def paused(pid: int) -> Iterator[None]:
    """The process stands still for a while."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


@contextmanager
def suppress_not_found() -> Iterator[None]:
    """What is not there is what was asked for."""
    try:
        yield
    except ApiError as error:
        if error.status != 404:
            raise


def _is_ready(pod: JsonObject) -> bool:
    conditions = pod["status"].get("conditions") or []
    return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)


def _says(pid: int, words: tuple[str, ...]) -> bool:
    """Whether each word is the name of the process' program or one of its arguments."""
    try:
        program, *arguments = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
    except (FileNotFoundError, ProcessLookupError):
        return False
    return all(word in (Path(program).name, *arguments) for word in words)
