"""Checks of a deployed stack beyond its nodes: policies, volume, jobs, pods and accounts."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tests.identity.session import AUDIENCE, ROLE_ANNOTATION, assumed, is_denied
from tests.integration.policy import checkov
from tests.stacks.life import MACHINE_SECONDS, Life, expected_devices
from tests.stacks.pods import gang, ring
from trainyard.cli.engine import ROOT
from trainyard.policies import waivers

TRAINING = "training"
WORKERS = "trainyard-worker"
MOUNT_POD = "attach-pvc"
DEBUG_POD = "network-debug-0"
API = "kubernetes.default.svc.cluster.local"
PROBE = "probe"


def faults(life: Life, folder: Path) -> list[str]:
    """All that a stack does not show of what its file says, a line each; `folder` is for checkov's files."""
    return [line for look in LOOKS for line in _findings(look, life)] + _findings(
        lambda each: not_waived(each, folder), life
    )


def _findings(look: Callable[[Life], Iterator[str]], life: Life) -> list[str]:
    """What one look finds; a kubectl that failed is a finding too."""
    try:
        return list(look(life))
    except AssertionError as error:
        return [str(error)]


def not_waived(life: Life, folder: Path) -> Iterator[str]:
    """What checkov holds against the state."""
    verdict = checkov.check_stack(life.resources(), folder)
    assert verdict.passed > 50, "checkov checked next to nothing"
    yield from (f"checkov: {each}" for each in verdict.unwaived(waivers.load()))


def preflight(life: Life) -> Iterator[str]:
    """What `make preflight` finds missing for a stack that has everything."""
    answer = subprocess.run(
        [sys.executable, "-m", "trainyard.cli", "preflight", "--stack", life.made.stack, "--cloud", "local"],
        cwd=ROOT,
        env={**os.environ, "TRAINYARD_HOME": str(life.made.home.root)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    lines = answer.stdout.splitlines()
    yield from (f"preflight: {line}" for line in lines if line.startswith(("missing: ", "not checked: ")))
    if answer.returncode != 0 or not any(line.endswith("no problems") for line in lines):
        yield f"preflight ended with {answer.returncode}: {answer.stdout[-500:]}{answer.stderr[-500:]}"


def mounted(life: Life) -> Iterator[str]:
    """The shared file system's claim; and where machines are kept, the pod that proves the mount, which is entered."""
    lustre = life.made.settings.get("trainyard:storage", {}).get("lustre")
    if lustre is None:
        return
    claim = life.one("pvc", "lustre", "-n", TRAINING)
    volume = life.one("pv", claim["spec"]["volumeName"])
    for kind, found in (("pvc", claim), ("pv", volume)):
        if found["status"]["phase"] != "Bound":
            yield f"{kind}/{found['metadata']['name']} is {found['status']['phase']}, not Bound"
    if not any(pool.get("warmNodes") for pool in life.pools):
        return
    wait = ("--for=condition=Ready", f"--timeout={MACHINE_SECONDS}s")
    life.kubectl("wait", f"pod/{MOUNT_POD}", "-n", TRAINING, *wait)
    output = life.kubectl("logs", MOUNT_POD, "-n", TRAINING, "--container", "prove").splitlines()
    if output[-1:] != [f"written and read on {lustre['mountPath']}"]:
        yield f"pod/{MOUNT_POD} is there, but the log of its proof ends with {output[-1:]}"
    yield from _entered(life, lustre["mountPath"], volume["spec"]["csi"]["volumeHandle"])


def _entered(life: Life, path: str, file_system: str) -> Iterator[str]:
    """What is written by who enters the pod is in the file system, and can be read there."""
    file = f"{path}/{PROBE}"
    _inside(life, MOUNT_POD, "/bin/bash", "-c", f"echo entered > {file}")
    try:
        if _inside(life, MOUNT_POD, "cat", file) != "entered\n":
            yield f"pod/{MOUNT_POD}: {file} does not hold what was written to it"
        if not (life.made.home.volumes / "fsx" / file_system / PROBE).exists():
            yield f"pod/{MOUNT_POD}: {file} is not in the file system {file_system}"
    finally:
        _inside(life, MOUNT_POD, "rm", file)


def _inside(life: Life, pod: str, *command: str) -> str:
    """What a command says in a pod of the training namespace; raises AssertionError where it fails."""
    return life.kubectl("exec", pod, "-n", TRAINING, "--", *command)


def jobs_of_mpi(life: Life) -> Iterator[str]:
    """An MPIJob on two machines, whose launcher may enter the workers, as `mpirun` would to start their processes."""
    if not life.made.settings.get("trainyard:mpi"):
        return
    pool = life.pools[0]
    life.apply(ring(pool["name"], expected_devices(pool), WORKERS, TRAINING))
    launcher, *workers = "ring-launcher", "ring-worker-0", "ring-worker-1"
    try:
        pods = _running(life, (launcher, *workers))
        machines = {pods[name]["spec"]["nodeName"] for name in workers}
        theirs = {node["metadata"]["name"] for node in life.nodes(pool)}
        if len(machines) != 2 or not machines <= theirs:
            yield f"the workers of an MPIJob run on {sorted(machines)}, not on two of {sorted(theirs)}"
        for worker in workers:
            _may_enter(life, launcher, worker)
            if _inside(life, worker, "hostname").strip() != worker:
                yield f"pod/{worker}: exec runs in another pod"
    finally:
        # Its pods first, so that none of them still has a machine.
        life.kubectl("delete", "mpijob/ring", "-n", TRAINING, "--cascade=foreground", "--wait")


def queues(life: Life) -> Iterator[str]:
    """Each queue is ready, and a job of it ends well on as many machines as are kept, with the devices of each."""
    for queue in life.made.settings.get("trainyard:queues") or []:
        name, where = queue["name"], ("-n", queue.get("namespace", TRAINING))
        pool = next(each for each in life.pools if each["name"] == queue["pool"])
        life.kubectl("wait", f"torchrunqueue/{name}", *where, "--for=condition=Ready", "--timeout=60s")
        gpus = life.one("torchrunqueue", name, *where)["spec"]["nodeResources"].get("gpus", 0)
        nodes = max(1, pool.get("warmNodes", 0))
        life.apply(gang(name, where[1], nodes, gpus))
        try:
            ended = "--for=jsonpath={.status.phase}=Succeeded"
            life.kubectl("wait", "torchrunjob/gang", *where, ended, f"--timeout={MACHINE_SECONDS}s")
            workers = life.get("pods", *where, "--selector", "torchrun-job-name=gang")
            yield from _gang(name, workers, nodes, expected_devices(pool))
        finally:
            life.kubectl("delete", "torchrunjob/gang", *where, "--wait")


def _gang(queue: str, workers: list[dict[str, Any]], nodes: int, devices: dict[str, str]) -> Iterator[str]:
    """What is wrong with where a job's workers ran, and with what they had there."""
    machines = {pod["spec"]["nodeName"] for pod in workers}
    if not len(machines) == len(workers) == nodes:
        yield f"{len(workers)} workers of a job of queue {queue} ran on {sorted(machines)}, not on {nodes} machines"
    for pod in workers:
        limits = pod["spec"]["containers"][0]["resources"]["limits"]
        had = {key: value for key, value in limits.items() if "/" in key}
        if had != devices:
            yield f"pod/{pod['metadata']['name']} had {had} of its machine, not {devices}"


def _may_enter(life: Life, account: str, pod: str) -> None:
    """Raises AssertionError where a service account of the training namespace may not enter a pod there."""
    who = f"--as=system:serviceaccount:{TRAINING}:{account}"
    life.kubectl("auth", "can-i", "create", f"pods/{pod}", "--subresource=exec", "-n", TRAINING, who)


def _running(life: Life, names: tuple[str, ...]) -> dict[str, Any]:
    """Pods of the training namespace by name, when these of them run; raises AssertionError where they don't."""
    end = time.monotonic() + MACHINE_SECONDS
    while True:
        pods = {pod["metadata"]["name"]: pod for pod in life.get("pods", "-n", TRAINING)}
        phases = {name: pods[name]["status"]["phase"] if name in pods else "not there" for name in names}
        if set(phases.values()) == {"Running"}:
            return pods
        assert time.monotonic() < end, f"not within {MACHINE_SECONDS} s: all Running; {phases}"
        time.sleep(1)


def debugging(life: Life) -> Iterator[str]:
    """The pod with network tools: a shell in it resolves a Service by its name, and reaches it."""
    if not life.made.settings.get("trainyard:debugPod"):
        return
    _running(life, (DEBUG_POD,))
    address = life.one("service", "kubernetes", "-n", "default")["spec"]["clusterIP"]
    output = _inside(life, DEBUG_POD, "nslookup", API)
    if f"Address: {address}" not in output.splitlines():
        yield f"pod/{DEBUG_POD} finds {API} elsewhere than at {address}: {output}"
    _inside(life, DEBUG_POD, "nc", "-z", API, "443")


def accounts(life: Life) -> Iterator[str]:
    """The roles of the trainer's account and of those of the settings, asked by tokens of these accounts."""
    settings = life.made.settings
    outputs = life.engine.outputs()
    prefix = settings.get("trainyard:storage", {}).get("prefix", "models")
    given = [{"name": "trainer", "namespace": TRAINING, "bucket": "models", "access": "write"}]
    for account in [*given, *settings.get("trainyard:serviceAccounts", [])]:
        # A bucket that is given is open to the account as a whole.
        own = account.get("bucket", "models") == "models"
        bucket = outputs["modelBucket"] if own else account["bucket"]
        yield from _rights(life, account, bucket, f"{prefix}/" if own else "")


def _rights(life: Life, account: dict[str, Any], bucket: str, prefix: str) -> Iterator[str]:
    name, namespace = account["name"], account.get("namespace", "default")
    role = life.one("serviceaccount", name, "-n", namespace)["metadata"]["annotations"][ROLE_ANNOTATION]
    token = life.kubectl("create", "token", name, "-n", namespace, "--audience", AUDIENCE)
    s3 = assumed(life.made.client, role, token, "s3")
    key = f"{prefix}{PROBE}"
    who = f"service account {namespace}/{name}"
    writes = account.get("access", "read") == "write"
    if is_denied(lambda: s3.put_object(Bucket=bucket, Key=key, Body=b"x")) is writes:
        yield f"{who}: {'may not' if writes else 'may'} write s3://{bucket}/{key}"
    if prefix and not is_denied(lambda: s3.put_object(Bucket=bucket, Key=PROBE, Body=b"x")):
        yield f"{who}: may write s3://{bucket}/{PROBE}, which is outside {prefix}"
    if not is_denied(lambda: s3.delete_object(Bucket=bucket, Key=key)):
        yield f"{who}: may delete s3://{bucket}/{key}"
    with life.other_bucket() as other:
        if not is_denied(lambda: s3.put_object(Bucket=other, Key=key, Body=b"x")):
            yield f"{who}: may write to s3://{other}, which is not the stack's"


LOOKS: tuple[Callable[[Life], Iterator[str]], ...] = (
    mounted,
    debugging,
    accounts,
    jobs_of_mpi,
    queues,
    preflight,
)
