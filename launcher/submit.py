"""Start a run from the stack's output `launcherManifest`, without `pulumi up`.

pulumi stack output launcherManifest | python -m launcher.submit --min 2 --max 4
"""

from __future__ import annotations

import argparse
import copy
import json
import sys
from collections.abc import Sequence
from typing import Any

from launcher.request import RequestError, parse_request
from trainyard.k8s import names
from trainyard.k8s.client import ApiError, ApiUnavailable, Client
from trainyard.k8s.kubeconfig import connect_in_pod_or_outside


class ManifestError(ValueError):
    """The input is not a launcher manifest."""


def read_manifest(text: str) -> dict[str, Any]:
    """Return the Job in this text, the stack's output."""
    try:
        job: dict[str, Any] = json.loads(text)
        (container,) = job["spec"]["template"]["spec"]["containers"]
        is_launcher_job = job["kind"] == "Job" and job["metadata"]["namespace"] and container["env"]
    except (ValueError, KeyError, TypeError):
        is_launcher_job = False
    if not is_launcher_job:
        raise ManifestError("the manifest is not a Job; it must be the stack's output launcherManifest")
    return job


def with_range(manifest: dict[str, Any], minimum: int, maximum: int) -> dict[str, Any]:
    """Return a copy of the Job with these MIN_NODES and MAX_NODES.

    Raises:
        RequestError: The launcher would refuse the result.
    """
    job = copy.deepcopy(manifest)
    (container,) = job["spec"]["template"]["spec"]["containers"]
    changed = {names.ENV_MIN_NODES: str(minimum), names.ENV_MAX_NODES: str(maximum)}
    kept = [entry for entry in container["env"] if entry["name"] not in changed]
    container["env"] = kept + [{"name": name, "value": value} for name, value in changed.items()]
    values = {entry["name"]: entry["value"] for entry in container["env"] if "value" in entry}
    values[names.ENV_JOB_NAME] = job["metadata"].get("name") or f"{names.LAUNCHER_JOB_PREFIX}xxxxx"
    parse_request(values)
    return job


def create_job(client: Client, manifest: dict[str, Any]) -> str:
    """Create this Job and return its name. With `generateName`, the API server chooses it."""
    path = f"/apis/batch/v1/namespaces/{manifest['metadata']['namespace']}/jobs"
    return str(client.request("POST", path, body=manifest, repeatable=False)["metadata"]["name"])


def main(arguments: Sequence[str]) -> int:
    """Create the Job with the current kubeconfig, print how to follow it, and return an exit code."""
    parser = argparse.ArgumentParser(prog="python -m launcher.submit", description=__doc__.splitlines()[0])
    parser.add_argument("--min", type=int, required=True, dest="minimum", help="MIN_NODES of this run")
    parser.add_argument("--max", type=int, required=True, dest="maximum", help="MAX_NODES of this run")
    options = parser.parse_args(arguments)
    try:
        job = with_range(read_manifest(sys.stdin.read()), options.minimum, options.maximum)
    except (UnicodeDecodeError, ManifestError, RequestError) as error:
        print(f"submit: {error}", file=sys.stderr)
        return names.EXIT_BAD_REQUEST
    try:
        name = create_job(connect_in_pod_or_outside(), job)
    except (ApiError, ApiUnavailable) as error:
        print(f"submit: {error}", file=sys.stderr)
        return names.EXIT_API_ERROR
    namespace = job["metadata"]["namespace"]
    print(f"job.batch/{name} created. Follow it with: kubectl logs -f -n {namespace} job/{name}")
    return names.EXIT_SUCCEEDED


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
