"""Compute the content and the mounts of a pod's volumes, and write the files."""

from __future__ import annotations

import base64
import os
import shutil
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from local.nodes import environment
from local.nodes.environment import TOKEN_FILE, Facts, MissingReference
from trainyard.k8s.quantity import parse

Object = dict[str, Any]
IDENTITY_VOLUME = "aws-iam-token"
IDENTITY_AUDIENCE = "sts.amazonaws.com"
DEFAULT_TOKEN_SECONDS = 3600


@dataclass(frozen=True)
class Token:
    """A service account token to request: its path, its audience ("" is the API server's), its seconds."""

    path: str
    audience: str
    seconds: int


@dataclass(frozen=True)
class Content:
    """The files of one volume by relative path, and the tokens that must still be requested."""

    files: dict[str, bytes] = field(default_factory=dict)
    tokens: tuple[Token, ...] = ()


def identity_volume() -> Object:
    """Return the projected volume that EKS's webhook adds for a role."""
    token = {"audience": IDENTITY_AUDIENCE, "expirationSeconds": 86400, "path": Path(TOKEN_FILE).name}
    return {"name": IDENTITY_VOLUME, "projected": {"sources": [{"serviceAccountToken": token}]}}


def identity_mount() -> Object:
    """Return the mount of `identity_volume` in every container."""
    return {"name": IDENTITY_VOLUME, "mountPath": str(Path(TOKEN_FILE).parent), "readOnly": True}


def chosen(kind: str, item: Object | None, source: Object, name: str) -> dict[str, bytes]:
    """Return the files of a ConfigMap or Secret: all of them, or those that `items` names."""
    if item is None:
        if source.get("optional"):
            return {}
        raise MissingReference(f"{kind} {name!r} not found")
    data = item.get("data") or {}
    if kind == "secret":
        files = {key: base64.b64decode(value) for key, value in data.items()}
    else:
        files = {key: value.encode() for key, value in data.items()}
        files |= {key: base64.b64decode(value) for key, value in (item.get("binaryData") or {}).items()}
    if not source.get("items"):
        return files
    missing = [entry["key"] for entry in source["items"] if entry["key"] not in files]
    if missing and not source.get("optional"):
        raise MissingReference(f"{kind} {name!r} has no key {missing[0]!r}")
    return {entry["path"]: files[entry["key"]] for entry in source["items"] if entry["key"] in files}


def downward(facts: Facts, items: list[Object]) -> dict[str, bytes]:
    """Return the files of a downwardAPI volume."""
    found = {}
    for item in items:
        if "fieldRef" in item:
            value = environment.field(facts, item["fieldRef"]["fieldPath"])
        else:
            value = environment.resource(facts, item["resourceFieldRef"])
        found[item["path"]] = value.encode()
    return found


def content(facts: Facts, volume: Object) -> Content | None:
    """Return the current content of a volume of API objects, None for other kinds of volumes.

    Raises:
        MissingReference: An object does not exist (yet).
    """
    if "configMap" in volume:
        source = volume["configMap"]
        return Content(chosen("configmap", facts.config_map(source["name"]), source, source["name"]))
    if "secret" in volume:
        source = volume["secret"]
        return Content(chosen("secret", facts.secret(source["secretName"]), source, source["secretName"]))
    if "downwardAPI" in volume:
        return Content(downward(facts, volume["downwardAPI"].get("items") or []))
    if "projected" not in volume:
        return None
    files: dict[str, bytes] = {}
    tokens: list[Token] = []
    for source in volume["projected"].get("sources") or []:
        if "serviceAccountToken" in source:
            wanted = source["serviceAccountToken"]
            seconds = wanted.get("expirationSeconds") or DEFAULT_TOKEN_SECONDS
            tokens.append(Token(wanted["path"], wanted.get("audience", ""), seconds))
        elif "configMap" in source:
            part = source["configMap"]
            files |= chosen("configmap", facts.config_map(part["name"]), part, part["name"])
        elif "secret" in source:
            part = source["secret"]
            files |= chosen("secret", facts.secret(part["name"]), part, part["name"])
        elif "downwardAPI" in source:
            files |= downward(facts, source["downwardAPI"].get("items") or [])
        else:
            raise MissingReference(
                f"projected source {sorted(source)} is not supported by the local machines"
            )
    return Content(files, tuple(tokens))


def size_limit(volume: Object) -> int:
    """Return the size limit of an emptyDir in memory in bytes.

    It is 0 if none is set. Then the limit is half of the machine's memory, as tmpfs does.
    """
    limit = (volume.get("emptyDir") or {}).get("sizeLimit")
    return int(parse(limit)) if limit else 0


def mounts(container: Object, directories: dict[str, Path], volumes: dict[str, Object]) -> list[Object]:
    """Return the mounts of a container for the sandbox. Volumes of API objects are read-only.

    The sandbox resolves subPath, because containers write the links on its way.

    Raises:
        MissingReference: The mount has a subPathExpr.
    """
    found = []
    for mount in container.get("volumeMounts") or []:
        volume = volumes[mount["name"]]
        if mount.get("subPathExpr"):
            raise MissingReference(
                f"volumeMount {mount['name']}: subPathExpr is not supported by the local nodes"
            )
        source = directories[mount["name"]]
        written = any(kind in volume for kind in ("emptyDir", "persistentVolumeClaim"))
        if written:
            source.mkdir(parents=True, exist_ok=True)
        found.append(
            {
                "source": str(source),
                "subPath": mount.get("subPath", ""),
                "create": written,
                "target": mount["mountPath"],
                "readOnly": mount.get("readOnly", False) or not written,
            }
        )
    return found


def write(directory: Path, files: dict[str, bytes]) -> None:
    """Replace all files of a volume at once, by replacing a symbolic link as kubelets do.

    Readers see the old or the new set: `name -> ..data/name`, `..data -> ..<time>`.
    """
    link = directory / "..data"
    if current(directory) == files:
        return
    directory.mkdir(parents=True, exist_ok=True)
    fresh = directory / f"..{time.time_ns()}"
    for name, data in files.items():
        path = fresh / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    fresh.mkdir(exist_ok=True)
    before = link.resolve() if link.is_symlink() else None
    temporary = directory / "..data_new"
    temporary.unlink(missing_ok=True)
    temporary.symlink_to(fresh.name)
    os.replace(temporary, link)
    tops = {Path(name).parts[0] for name in files}
    for top in tops:
        if not (directory / top).is_symlink():
            (directory / top).symlink_to(Path("..data") / top)
    for stale in directory.iterdir():
        if not stale.name.startswith("..") and stale.name not in tops:
            stale.unlink()
    if before is not None:
        shutil.rmtree(before, ignore_errors=True)


def current(directory: Path) -> dict[str, bytes] | None:
    """Return the current files of a volume, or None before the first write."""
    data = directory / "..data"
    if not data.is_dir():
        return None
    return {str(path.relative_to(data)): path.read_bytes() for path in data.rglob("*") if path.is_file()}
