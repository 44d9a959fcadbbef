"""Start a run from the stack's output `launcherManifest`, without `pulumi up`.

pulumi stack output launcherManifest | python -m launcher.submit --min 2 --max 4
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeGuard

from launcher.gateway import Gateway
from launcher.request import RequestError, parse_request
from trainyard.k8s import names
from trainyard.k8s.client import ApiError, ApiUnavailable
from trainyard.k8s.kubeconfig import connect_in_pod_or_outside


class ManifestError(ValueError):
    """The input is not a launcher manifest."""


def read_manifest(text: str) -> dict[str, Any]:
    """Return the Job in this text: the manifest, the manifest as a JSON string, or all outputs of a stack."""
    try:
        value: Any = json.loads(text)
        if isinstance(value, dict) and "launcherManifest" in value:
            value = value["launcherManifest"]
        if isinstance(value, str):
            value = json.loads(value)
    except (ValueError, RecursionError) as error:
        raise ManifestError(f"the manifest is not JSON: {error}") from None
    if not _is_launcher_job(value):
        raise ManifestError("the manifest is not a Job; it must be the stack's output launcherManifest")
    return value


def _is_launcher_job(value: Any) -> TypeGuard[dict[str, Any]]:
    """Return whether this is a Job with a namespace, containers and environment variables."""
    try:
        containers = value["spec"]["template"]["spec"]["containers"]
        entries = [entry for container in containers for entry in container["env"]]
        named = isinstance(value["metadata"]["namespace"], str) and all(entry["name"] for entry in entries)
        return bool(value["kind"] == "Job" and containers and named)
    except (KeyError, TypeError):
        return False


def with_range(manifest: Mapping[str, Any], lowest: int | None, highest: int | None) -> dict[str, Any]:
    """Return a copy of the Job with these MIN_NODES and MAX_NODES; None keeps a value.

    Raises:
        RequestError: The launcher would refuse the result.
    """
    job: dict[str, Any] = json.loads(json.dumps(manifest))
    for container in job["spec"]["template"]["spec"]["containers"]:
        wanted = {names.ENV_MIN_NODES: lowest, names.ENV_MAX_NODES: highest}
        changed = {name: str(value) for name, value in wanted.items() if value is not None}
        kept = [entry for entry in container.get("env", ()) if entry["name"] not in changed]
        container["env"] = kept + [{"name": name, "value": value} for name, value in changed.items()]
        values = {entry["name"]: entry["value"] for entry in container["env"] if "value" in entry}
        values[names.ENV_JOB_NAME] = job["metadata"].get("name") or f"{names.LAUNCHER_JOB_PREFIX}xxxxx"
        parse_request(values)
    return job


def main(arguments: Sequence[str]) -> int:
    """Create the Job with the current kubeconfig, print how to follow it, and return an exit code."""
    parser = argparse.ArgumentParser(prog="python -m launcher.submit", description=__doc__.splitlines()[0])
    parser.add_argument("--manifest", default="-", help="file with the stack's output; - is standard input")
    parser.add_argument("--min", type=int, dest="lowest", help="MIN_NODES of this run")
    parser.add_argument("--max", type=int, dest="highest", help="MAX_NODES of this run")
    options = parser.parse_args(arguments)
    try:
        text = sys.stdin.read() if options.manifest == "-" else Path(options.manifest).read_text()
        job = with_range(read_manifest(text), options.lowest, options.highest)
    except (OSError, UnicodeDecodeError, ManifestError, RequestError) as error:
        print(f"submit: {error}", file=sys.stderr)
        return names.EXIT_BAD_REQUEST
    try:
        name = Gateway(connect_in_pod_or_outside(), time.time).create_job(job)
    except (ApiError, ApiUnavailable) as error:
        print(f"submit: {error}", file=sys.stderr)
        return names.EXIT_API_ERROR
    namespace = job["metadata"]["namespace"]
    print(f"job.batch/{name} created. Follow it with: kubectl logs -f -n {namespace} job/{name}")
    return names.EXIT_SUCCEEDED


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
