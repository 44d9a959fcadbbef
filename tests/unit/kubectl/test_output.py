"""Tables, the status of a job, logs, and the progress bar."""

from __future__ import annotations

import io
import json
import os
import re
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

import pytest
import yaml

from tests.unit.kubectl.conftest import JOBS, PODS, ROOT, SUBMIT, Run, TorchrunApi, only_line
from tests.unit.launcher.api_server import status
from trainyard.kubectl import logs, output
from trainyard.kubectl.output import Bar, render_bar
from trainyard.operator import names as n
from trainyard.operator.api.crd import torchrun_job
from trainyard.workspace.sync_pod import Store

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def test_list_columns_are_those_of_the_definition() -> None:
    (version,) = torchrun_job()["spec"]["versions"]
    columns = [each["name"] for each in version["additionalPrinterColumns"]]
    header = output.listing("list", [], NOW, wide=True).split()
    assert [each.upper() for each in header] == ["NAME", *(each.upper() for each in columns)]


def test_lists_as_tables_and_as_documents(api: TorchrunApi, run: Run) -> None:
    assert run("list") == (0, "", "No jobs in namespace team.\n")
    api.job("b", phase="Running")
    api.job("a")
    _, out, _ = run("list", "-A")
    lines = out.splitlines()
    assert lines[0].split()[:4] == ["NAMESPACE", "NAME", "QUEUE", "PHASE"]
    assert [line.split()[1] for line in lines[1:]] == ["a", "b"]
    assert len(json.loads(run("list", "-o", "json")[1])["items"]) == 2
    api.queue("q", nodeResources={"gpus": 8, "memory": "1Ti"})
    assert run("queues", "-o", "wide")[1].splitlines()[1].split()[:5] == ["q", "-", "8", "-", "1Ti"]
    assert yaml.safe_load(run("status", "a", "-o", "yaml")[1])["metadata"]["name"] == "a"
    api.put(f"{ROOT}/namespaces/other/{n.QUEUE_PLURAL}/p", {"metadata": {"name": "p", "namespace": "other"}})
    listed = [line.split()[:2] for line in run("queues", "-A")[1].splitlines()]
    assert listed == [["NAMESPACE", "NAME"], ["other", "p"], ["team", "q"]]
    assert run("queues", "-o", "name")[1] == "torchrunqueue.torchrun.ai/q\n"


def test_table_and_status_of_a_job() -> None:
    now = datetime(2026, 1, 1, 1, 30, tzinfo=UTC)
    progress = {"step": 120, "loss": 0.123456, "checkpointStep": 40, "throughput": 1e3, "unit": "t/s"}
    lost = "worker vit-0-1-abcde on node b is lost (PreemptionByScheduler); restart 1 of 3"
    item = {
        "metadata": {"name": "vit", "namespace": "team", "creationTimestamp": "2026-01-01T00:00:00Z"},
        "spec": {"jobQueue": "h100", "numGPUs": 16, "command": "python train.py"},
        "status": {
            **{"phase": "Running", "nodes": 2, "gpusPerNode": 8, "gpus": 16, "restarts": 1, "attempt": 1},
            "lastRestart": {"attempt": 0, "time": "2026-01-01T01:00:00Z", "message": lost},
            "workers": {"active": 2, "failed": 0},
            "progress": progress,
            "cost": {"nodeHours": 25.6, "idleNodeHours": 1.024, "usd": 838.938},
            "conditions": [
                {"type": "Accepted", "status": "True", "reason": "Ok", "message": "fits"},
                {"type": "WorkersReady", "status": "False", "reason": "Starting", "message": "1 of 2"},
                {"type": "Suspended", "status": "False", "reason": "NotRequested", "message": ""},
            ],
        },
    }
    header, row = output.listing("list", [item], now).splitlines()
    assert header == "NAME   QUEUE   PHASE     NODES   GPUS   STEP   LOSS     RESTARTS   AGE"
    assert row == "vit    h100    Running   2       16     120    0.1235   1          90m"
    wide = output.listing("list", [item, {**item, "status": {"reason": "Starting"}}], now, wide=True)
    assert [line.split("90m")[1].split() for line in wide.splitlines()[1:]] == [
        ["1000", "t/s", "40", "838.94", "-"],
        ["-", "-", "-", "Starting"],
    ]
    shown = output.status(item, now)
    assert "Size:       2 nodes, 16 GPUs (8 on each)\n" in shown
    assert "Workers:    2 active\n" in shown
    assert "Progress:   step 120, loss 0.1235, 1000 t/s\n" in shown
    assert "Cost:       25.60 node-hours (1.02 idle), about 838.94 USD\n" in shown
    assert f"Restarted:  2026-01-01T01:00:00Z: {lost}\n" in shown
    one = {**item, "status": {"nodes": 1, "gpusPerNode": 1, "gpus": 1}}
    assert "Size:       1 node, 1 GPU\n" in output.status(one, now)
    rows = [line.split() for line in shown.split("\n\n")[1].splitlines()]
    assert rows == [
        ["CONDITION", "STATUS", "REASON", "MESSAGE"],
        ["Accepted", "True", "Ok", "fits"],
        ["WorkersReady", "False", "Starting", "1", "of", "2"],
    ]


@pytest.mark.parametrize(
    ("cost", "shown"),
    [
        ({"usd": 2}, "about 2.00 USD"),
        ({"nodeHours": 1.5}, "1.50 node-hours"),
        ({"nodeHours": 1.5, "usd": 2, "unpricedNodeHours": 1}, "1.50 node-hours, at least 2.00 USD"),
        ({"idleNodeHours": 1}, ""),
    ],
)
def test_status_shows_the_known_fields_of_the_cost(cost: dict[str, float], shown: str) -> None:
    spec = {"jobQueue": "q", "numGPUs": 1, "command": "true"}
    item = {"metadata": {"name": "one"}, "spec": spec, "status": {"cost": cost}}
    lines = output.status(item, datetime(2026, 1, 1, tzinfo=UTC)).splitlines()
    assert [line.split(maxsplit=1)[1] for line in lines if line.startswith("Cost:")] == [shown] * bool(shown)


def worker(api: TorchrunApi, attempt: int, state: str = "terminated") -> str:
    name = f"one-{attempt}-0-abcde"
    api.worker(name, state, **{n.LABEL_ATTEMPT: str(attempt)})
    return name


def test_control_characters_do_not_reach_the_terminal(api: TorchrunApi, run: Run) -> None:
    bad = "\x1b[2Jgone\r\x9b31m\nnext"
    item = api.job("one", phase="Failed")
    item["status"] |= {"message": bad, "conditions": [{"type": "T", "status": "False", "message": bad}]}
    for words in (("status", "one"), ("list", "-o", "wide"), ("logs", "-f", "one")):
        _, out, err = run(*words)
        assert not set("\x1b\r\x9b") & set(out + err)
    assert "Reason:     ?[2Jgone ?31m next\n" in run("status", "one")[1]


def test_a_worker_that_has_not_started_has_no_log(api: TorchrunApi, run: Run) -> None:
    api.job("one", phase="Provisioning")
    worker(api, 0, "waiting")
    waits = 'container "torchrun" in pod "one" is waiting to start: ContainerCreating'
    refused = status(400, "BadRequest", waits)
    api.intercept = lambda _, target: refused if "/log" in target else None
    result, _, err = run("logs", "one")
    assert result == 69
    assert only_line(err).endswith(f"has no log yet: {waits}; logs -f waits for it")


def test_split_joins_lines_over_chunks() -> None:
    pieces = [b"a\nb", b"", b"b\n\nc", b"\n", b"d"]
    assert list(logs.split(iter(pieces))) == [b"a", b"bb", b"", b"c", b"d"]
    assert list(logs.split(iter([b"a\n"]))) == [b"a"]
    long = [bytes(4096)] * 25_600  # 100 MB in one line
    began = time.process_time()
    assert [len(line) for line in logs.split(iter(long))] == [104_857_600]
    assert time.process_time() - began < 5


def test_follow_prints_the_kubelets_own_messages(api: TorchrunApi, run: Run) -> None:
    api.job("one", phase="Running")
    name = worker(api, 0, "running")
    said = b"failed to create fsnotify watcher: too many open files"
    api.logs[name] = [b"2026-01-01T00:00:00.1Z a\n" + said]

    def end(_pod: str) -> None:
        if len(api.log_queries) == 2:
            assert api.log_queries[1]["sinceTime"] == "2026-01-01T00:00:00Z"
            api.logs[name] = [b"2026-01-01T00:00:00.1Z a\n2026-01-01T00:00:01Z b\n"]
            worker(api, 0)
            api.objects[f"{JOBS}/one"]["status"] = {"phase": "Succeeded"}

    api.on_log = end
    assert run("logs", "-f", "one")[:2] == (0, f"a\n{said.decode()}\nb\n")


def test_follow_of_a_broken_log_continues_without_repeats(api: TorchrunApi, run: Run) -> None:
    api.job("one", phase="Running")
    name = worker(api, 0, "running")
    # Lines that come in one piece have one time.
    once = b"2026-01-01T00:00:00.1Z a\n2026-01-01T00:00:00.2Z b\n2026-01-01T00:00:00.2Z b2\n"
    api.logs[name] = [once, None]  # type: ignore[list-item]

    def end(_pod: str) -> None:
        if len(api.log_queries) == 2:
            api.logs[name] = [once, b"2026-01-01T00:00:00.20Z b3\n2026-01-01T00:00:00.21Z c\n"]
            worker(api, 0)
            api.objects[f"{PODS}/{name}"]["metadata"]["uid"] = "uid-2"
            api.objects[f"{JOBS}/one"]["status"] = {"phase": "Succeeded"}

    api.on_log = end
    result, out, _ = run("logs", "-f", "one")
    assert (result, out) == (0, "a\nb\nb2\nb3\nc\n")
    assert api.log_queries[1]["sinceTime"] == "2026-01-01T00:00:00Z"


class Terminal(io.StringIO):
    """A terminal without a width, such as a serial line."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("term", "count"), [("dumb", 0), ("xterm", 2)])  # once, and cleared
def test_bar_is_drawn_on_a_capable_terminal(term: str, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", term)
    with Bar("sending", terminal := Terminal()) as bar:
        bar(1, 1)
    assert terminal.getvalue().count("\r\x1b[K") == count


def test_an_upload_is_drawn_to_its_end_on_a_terminal(
    api: TorchrunApi, run: Run, pod: Store, code: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(output, "_EVERY_SECONDS", 0.0)
    (code / "data").write_bytes(os.urandom(2 * 2**20))
    monkeypatch.setattr(sys, "stderr", Terminal())
    result, out, _ = run(*SUBMIT, "x")
    text = sys.stderr.getvalue()
    assert (result, out) == (0, "torchrunjob.torchrun.ai/one created\n"), text
    bars = re.findall(r"sending \[([#.]*)\] (\S+ \S+) of (\S+ \S+)", text)
    shares = [bar.count("#") / len(bar) for bar, _, _ in bars]
    assert (len(bars) > 10, shares[0] < 0.2, shares[-1]) == (True, True, 1)
    assert shares == sorted(shares)
    assert bars[-1][1:] == ("2.0 MiB", "2.0 MiB")
    # Its line is empty again when the next one comes.
    assert "of 2.0 MiB\r\x1b[Kworkspace sha256:" in text


@pytest.mark.parametrize(
    ("columns", "line"),
    [
        (62, f"sending [{'#' * 15}{'.' * 15}] 512.0 MiB of 1.0 GiB"),
        (36, "50 % sending"),
        (37, "sending [##...] 512.0 MiB of 1.0 GiB"),
        (13, "50 % sending"),
        (8, "50 % se"),
        (1, ""),
    ],
)
def test_render_bar_fits_into_the_columns(columns: int, line: str) -> None:
    assert render_bar("sending", 2**29, 2**30, columns) == line
