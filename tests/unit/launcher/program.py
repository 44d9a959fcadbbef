"""The launcher as a process of its own against the fake API server, and its metrics as Prometheus reads them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

import yaml
from prometheus_client.parser import text_string_to_metric_families

from tests.unit.launcher.api_server import FakeApi

ROOT = Path(__file__).resolve().parents[3]
# The values of the metrics by name and labels.
Scraped = dict[tuple[str, frozenset[tuple[str, str]]], float]


def launched(api: FakeApi, document: dict[str, Any], directory: Path, address: str) -> subprocess.Popen[str]:
    """`python -m launcher` with this request and its metrics on this address."""
    kubeconfig = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "test",
        "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
        "clusters": [{"name": "test", "cluster": {"server": api.url}}],
        "users": [{"name": "test", "user": {"token": "x"}}],
    }
    (directory / "kubeconfig").write_text(yaml.safe_dump(kubeconfig))
    return subprocess.Popen(
        [sys.executable, "-m", "launcher", "--metrics-address", address],
        env={
            "PATH": os.environ["PATH"],
            "PYTHONPATH": str(ROOT),
            "KUBECONFIG": str(directory / "kubeconfig"),
            "TRAINYARD_REQUEST": json.dumps(document),
        },
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def scrape(host: str, port: int) -> Scraped:
    """What GET /metrics answers now."""
    with urllib.request.urlopen(f"http://{host}:{port}/metrics", timeout=10) as answer:
        assert answer.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
        text = answer.read().decode()
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def value(scraped: Scraped, name: str, **labels: str) -> float | None:
    """One value by its name without the prefix; None where there is none with exactly these labels."""
    return scraped.get((f"trainyard_launcher_{name}", frozenset(labels.items())))
