"""Write the engine's copy of a stack file: the file of the repository with the settings of the local plugins.

The file of the checkout (trainyard/stack_files.py) is never changed. The copy is in <home>/stacks, where the engine
also keeps the salt of the stack's secrets.
"""

from __future__ import annotations

import copy
import ipaddress
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from local.home import write_atomically
from trainyard.k8s.names import BACKEND_TRAINJOB
from trainyard.stack_files import SALT, SECRETS_KEYS, StackFileError, dump

JsonObject = dict[str, Any]
# Ranges for examples in documents (RFC 5737), from which the preflight knows that nobody comes.
DOCUMENTS = ("192.0.2.0/24", "198.51.100.0/24", "203.0.113.0/24")
CPU, CUDA = "cpu", "cuda"
HERE = "127.0.0.1/32"


def runs_trainjobs(document: Mapping[str, Any]) -> bool:
    """Return whether the stack file asks for Kubeflow Trainer and JobSet."""
    training = (document.get("config") or {}).get("trainyard:training")
    return isinstance(training, dict) and training.get("backend") == BACKEND_TRAINJOB


def check_name(stack: str) -> None:
    """Check that a stack's name is only a name, because it becomes part of file names.

    Raises:
        StackFileError: It is not.
    """
    if not re.fullmatch(r"[A-Za-z0-9_-]{1,100}", stack):
        file = re.fullmatch(r"(?:.*/)?(?:Pulumi\.)?([A-Za-z0-9_-]{1,100})\.yaml", stack)
        meant = f"; did you mean {file[1]}?" if file else ""
        raise StackFileError(
            f"{stack!r} is no stack name; it must be 1 to 100 letters, digits, '-' and '_'{meant}"
        )


def with_sources(document: Mapping[str, Any], sources: Mapping[str, str]) -> JsonObject:
    """Return the document with charts and manifests from local directories, for a preview of an AWS deployment.

    `sources` is the value of `trainyard:sources`.
    """
    result = copy.deepcopy(dict(document))
    result["config"]["trainyard:sources"] = dict(sources)
    return result


def for_local_cloud(document: Mapping[str, Any], sources: Mapping[str, str], deployer_arn: str) -> JsonObject:
    """Return the document as the local cloud runs it.

    Its nodes have no GPUs, so a run uses the CPU with one process per node. The deployer is the emulator's identity,
    from this machine, and log groups of the control plane are not awaited. Data stays protected, so that a destroy
    can be rehearsed; it ends with the local cloud.
    """
    result = with_sources(document, sources)
    config = result["config"]
    # A profile would select an account on AWS.
    config.pop("aws:profile", None)
    training = config.get("trainyard:training")
    if isinstance(training, dict):
        # A wrong value stays, so that the checks report it.
        if training.get("device", CUDA) == CUDA:
            training["device"] = CPU
        processes = training.get("processesPerNode", 1)
        if isinstance(processes, int) and not isinstance(processes, bool) and processes > 0:
            training["processesPerNode"] = 1
    cluster = config.setdefault("trainyard:cluster", {})
    # The owner of an existing cluster chooses its administrators; here the emulator's deployer created it.
    if isinstance(cluster, dict) and cluster.get("existing") is None:
        administrators = cluster.get("administrators") or []
        if isinstance(administrators, list) and deployer_arn not in administrators:
            cluster["administrators"] = [*administrators, deployer_arn]
        # The emulator delivers late entries the moment their group is deleted: there is nothing to wait for.
        cluster["lateLogSeconds"] = 0
        cluster.update(_from_here(cluster))
        # Others may be of the account that the stack file is meant for.
        cluster["accountId"] = deployer_arn.split(":")[4]
    images = config.setdefault("trainyard:images", {})
    if isinstance(images, dict):
        images.update(build=True, launcher=None, trainer=None)
        config["trainyard:images"] = {key: value for key, value in images.items() if value is not None}
    return result


def _from_here(cluster: Mapping[str, Any]) -> JsonObject:
    """Return the ranges that reach the API. A placeholder of a stack file becomes the range of this machine."""
    blocks = cluster.get("publicAccessCidrs")
    if not isinstance(blocks, list) or not any(_is_example(each) for each in blocks):
        return {}
    others = [each for each in blocks if not _is_example(each) and each != HERE]
    return {"publicAccessCidrs": [HERE, *others]}


def _is_example(block: object) -> bool:
    """Return whether a range is reserved for documentation. The program reports values that are not ranges."""
    try:
        network = ipaddress.IPv4Network(str(block))
    except ValueError:
        return False
    return "/" in str(block) and any(network.subnet_of(ipaddress.IPv4Network(each)) for each in DOCUMENTS)


def cluster_name(config: Mapping[str, Any], stack: str) -> str:
    """Return the name of the stack's cluster, or of the existing one that it uses."""
    settings = config.get("trainyard:cluster")
    cluster = settings if isinstance(settings, dict) else {}
    existing = cluster.get("existing")
    name = existing.get("name") if isinstance(existing, dict) else cluster.get("name")
    return str(name or f"trainyard-{stack}")


def write(document: Mapping[str, Any], target: Path) -> None:
    """Write the engine's copy. The salt of an earlier copy stays.

    Raises:
        StackFileError: The earlier copy is damaged.

    `pulumi stack init` against AWS writes keys of the stack's secrets into the file of the checkout. They belong to
    another state, so the copy does not get them.
    """
    merged = {key: value for key, value in document.items() if key not in SECRETS_KEYS}
    if target.is_file():
        try:
            earlier = yaml.safe_load(target.read_text()) or {}
        except (yaml.YAMLError, ValueError):
            earlier = None
        if not isinstance(earlier, dict):
            raise StackFileError(
                f"{target}: is damaged; it must be a mapping. Delete it and run the command again"
            )
        if SALT in earlier:
            merged[SALT] = earlier[SALT]
    write_atomically(target, dump(merged))
