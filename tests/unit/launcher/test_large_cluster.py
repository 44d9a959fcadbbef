"""What watching a large cluster costs: memory and time of the stores, and of the whole launcher as a process."""

from __future__ import annotations

import dataclasses
import json
import re
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from launcher.gateway import Gateway
from launcher.loop import Launcher
from launcher.request import Request
from tests.unit.launcher import cluster
from tests.unit.launcher.api_server import FakeApi, serving, until
from tests.unit.launcher.program import launched, scrape, value
from trainyard.k8s import names
from trainyard.k8s.client import RetryPolicy

pytestmark = pytest.mark.long

LARGE = (256, 2000)
MEGABYTE = 1e6
# One of its own on the loopback network, so that no other launcher has the port.
METRICS_ADDRESS = "127.83.0.1"


@pytest.fixture(scope="module")
def large() -> Iterator[FakeApi]:
    """An API server with 256 nodes, their NodeClaims and 2000 pods of others on them."""
    api = cluster.prepare(FakeApi())
    cluster.grow(api, *LARGE)
    with serving(api) as served:
        yield served


def size(value: object, counted: set[int]) -> int:
    """Bytes of an object and all that it refers to, each counted once."""
    if id(value) in counted or isinstance(value, type):
        return 0
    counted.add(id(value))
    inner: list[object] = list(value) if isinstance(value, list | tuple | set) else []
    if isinstance(value, dict):
        inner = [*value, *value.values()]
    if hasattr(value, "__dict__"):
        inner.append(value.__dict__)
    return sys.getsizeof(value) + sum(size(each, counted) for each in inner)


def test_informers_large_cluster_are_small_and_fast(large: FakeApi, request_: Request) -> None:
    sent = sum(len(json.dumps(item)) for item in large.objects.values())
    with closing(Gateway(large.client(retry=RetryPolicy()), time.time)) as gateway:
        took = []
        gateway.observe(request_, fresh=False)
        for _ in range(10):
            began = time.perf_counter()
            seen = gateway.observe(request_, fresh=False)
            took.append(time.perf_counter() - began)
        kept = size(seen, set())
        began, busy = time.perf_counter(), time.thread_time()
        fresh = gateway.observe(request_, fresh=True)
        read, busy = time.perf_counter() - began, time.thread_time() - busy
    assert (len(seen.nodes), len(seen.claims), len(seen.pods)) == (256, 256, 2000)
    assert len(fresh.pods) == 2000
    print(
        f"{sent / MEGABYTE:.1f} MB of objects: stores {kept / MEGABYTE:.1f} MB, one observation "
        f"{min(took) * 1000:.1f} ms from memory, {read:.2f} s ({busy:.2f} s of processor) from fresh lists"
    )
    assert kept < sent / 4
    assert min(took) < 0.1
    assert busy < 2.0


def decided(request: Request, nodes: int) -> float:
    """Seconds from the last of these nodes to the answer that the training is made for all of them."""
    request = dataclasses.replace(
        request,
        min_nodes=1,
        max_nodes=nodes,
        hold_seconds=100,
        pool=dataclasses.replace(request.pool, max_nodes=nodes),
    )
    api = cluster.prepare(FakeApi())
    with serving(api), closing(Gateway(api.client(retry=RetryPolicy()), time.time)) as gateway:
        for index in range(nodes - 1):
            cluster.put_node(api, f"n{index}")
        runner = Launcher(request, "launch-r1", gateway, log_line=lambda _: None)
        running = threading.Thread(target=runner.run)
        running.start()
        until(lambda: api.watching == 7 and len(api.names(cluster.PODS)) == nodes, 60.0)
        time.sleep(0.2)
        cluster.put_node(api, "last")
        began = time.monotonic()
        until(lambda: f"{cluster.JOBS}/train-r1" in api.objects, 20.0)
        took = time.monotonic() - began
        made = api.objects[f"{cluster.JOBS}/train-r1"]
        runner.stopping.set()
        gateway.wake()
        running.join(20.0)
    replicas = made["spec"]["pytorchReplicaSpecs"].values()
    assert sum(each["replicas"] for each in replicas) == nodes
    return took


def test_the_last_node_starts_the_training_at_once(request_: Request) -> None:
    small = sorted(decided(request_, 4) for _ in range(10))
    large = decided(request_, 256)
    print(
        f"from the last node to the training: 4 nodes median {small[5]:.3f} s, most {small[-1]:.3f} s; "
        f"256 nodes {large:.3f} s"
    )
    # On an idle processor 0.3, 1 and 2 seconds are kept; a busy one gets more.
    assert small[5] < 1.0
    assert small[-1] < 2.0
    assert large < 10.0


def memory(pid: int, field: str) -> float:
    """Megabytes of a process (10**6 bytes), from proc(5): VmRSS now, VmHWM at most so far."""
    text = Path(f"/proc/{pid}/status").read_text()
    found = re.search(rf"^{field}:\s+(\d+) kB$", text, re.MULTILINE)
    assert found is not None
    return int(found[1]) * 1024 / MEGABYTE


def test_process_256_nodes_memory_is_small(large: FakeApi, tmp_path: Path, document: dict[str, Any]) -> None:
    """Every node is taken by pods of others, so that the launcher waits, and recounts as nodes flap."""
    document.update(minNodes=2, maxNodes=256, capacityDeadlineSeconds=3000)
    document["pool"]["maxNodes"] = 256
    for name in list(large.objects):
        if name.startswith(cluster.NODES):
            item = large.objects[name]
            large.put(name, {**item, "spec": {**item["spec"], "unschedulable": True}})
    process = launched(large, document, tmp_path, METRICS_ADDRESS)
    said: list[str] = []
    assert process.stdout is not None
    reading = threading.Thread(target=said.extend, args=(process.stdout,), daemon=True)
    reading.start()
    try:
        until(lambda: large.watching == 7 and len(large.names(cluster.PODS)) == 256, 60.0)
        paths = [name for name in large.objects if name.startswith(f"{cluster.NODES}/")]
        before = len(large.requests)
        for round_ in range(2):
            for name in paths:
                item = large.objects[name]
                ready = "True" if round_ % 2 else "Unknown"
                conditions = {**item["status"], "conditions": [{"type": "Ready", "status": ready}]}
                large.put(name, {**item, "status": conditions})
        for _ in range(100):
            scraped = scrape(METRICS_ADDRESS, names.METRICS_PORT)
        time.sleep(1.0)
        # The Lease is renewed every 5 s.
        asked = [
            each
            for each in large.requests[before:]
            if not each[1].endswith(f"/leases/{names.LAUNCHER_JOB_PREFIX}r1")
        ]
        now, most = memory(process.pid, "VmRSS"), memory(process.pid, "VmHWM")
        threads = len(list(Path(f"/proc/{process.pid}/task").iterdir()))
    finally:
        began = time.monotonic()
        process.send_signal(signal.SIGTERM)
        try:
            code = process.wait(60)
        finally:
            process.kill()
            reading.join(5.0)
    print(
        f"launcher at 256 nodes: {now:.1f} MB now, {most:.1f} MB at most, {threads} threads; {len(asked)} requests for "
        f"{2 * len(paths)} changes; ended {time.monotonic() - began:.2f} s after the signal"
    )
    assert code == names.EXIT_STOPPED, "".join(said)
    assert large.names(cluster.PODS) == []
    of_pool = {"run": "r1", "pool": "small"}
    assert value(scraped, "waiting", run="r1") == 1
    assert value(scraped, "ready_nodes", **of_pool) == 0
    assert value(scraped, "nodes_wanted", **of_pool) == 256
    assert asked == []
    assert now < 80
    assert most < 80
