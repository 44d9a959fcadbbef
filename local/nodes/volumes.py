"""Create the volumes of a pod, their content and tokens, and the mounts of its containers. See `PodVolumes`."""

from __future__ import annotations

import base64
import functools
import os
import shutil
import stat
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp

from local.nodes import csi, environment
from local.nodes.api import epoch
from local.nodes.context import PodSite
from local.nodes.environment import TOKEN_FILE, Facts, MissingReference
from local.nodes.images import Program
from trainyard.k8s.quantity import parse

Object = dict[str, Any]
IDENTITY_VOLUME = "aws-iam-token"
IDENTITY_AUDIENCE = "sts.amazonaws.com"
DEFAULT_TOKEN_SECONDS = 3600
TOKEN_LIFE_USED = 0.8  # kubelets renew a token after this part of its lifetime
# Directories of the host that images do not have: home directories, keys, and data of services.
HIDDEN = ("/root", "/home", "/etc/ssh", "/var/log", "/var/spool")
# Images do not have the host's files in these directories that only root or a group can read.
PRIVATE_PARTS = ("/etc", "/opt", "/srv", "/var")
SHARED_MEMORY = "size=64m"  # the default of container runtimes for /dev/shm


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


def select_keys(kind: str, item: Object | None, source: Object, name: str) -> dict[str, bytes]:
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


def downward_files(facts: Facts, items: list[Object]) -> dict[str, bytes]:
    """Return the files of a downwardAPI volume."""
    found = {}
    for item in items:
        if "fieldRef" in item:
            value = environment.field(facts, item["fieldRef"]["fieldPath"])
        else:
            value = environment.resource(facts, item["resourceFieldRef"])
        found[item["path"]] = value.encode()
    return found


def read_content(facts: Facts, volume: Object) -> Content | None:
    """Return the current content of a volume of API objects, None for other kinds of volumes.

    Raises:
        MissingReference: An object does not exist (yet).
    """
    if "configMap" in volume:
        source = volume["configMap"]
        return Content(select_keys("configmap", facts.config_map(source["name"]), source, source["name"]))
    if "secret" in volume:
        source = volume["secret"]
        return Content(
            select_keys("secret", facts.secret(source["secretName"]), source, source["secretName"])
        )
    if "downwardAPI" in volume:
        return Content(downward_files(facts, volume["downwardAPI"].get("items") or []))
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
            files |= select_keys("configmap", facts.config_map(part["name"]), part, part["name"])
        elif "secret" in source:
            part = source["secret"]
            files |= select_keys("secret", facts.secret(part["name"]), part, part["name"])
        elif "downwardAPI" in source:
            files |= downward_files(facts, source["downwardAPI"].get("items") or [])
        else:
            raise MissingReference(f"projected source {sorted(source)} is not supported by the local nodes")
    return Content(files, tuple(tokens))


def size_limit(volume: Object) -> int:
    """Return the size limit of an emptyDir in memory in bytes.

    It is 0 without a limit, which means half of the machine's memory, as in tmpfs.
    """
    limit = (volume.get("emptyDir") or {}).get("sizeLimit")
    return int(parse(limit)) if limit else 0


def container_mounts(
    container: Object, directories: dict[str, Path], volumes: dict[str, Object]
) -> list[Object]:
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


def write_files(directory: Path, files: dict[str, bytes]) -> None:
    """Replace all files of a volume at once, by replacing a symbolic link as kubelets do.

    Readers see the old or the new set: `name -> ..data/name`, `..data -> ..<time>`.
    """
    link = directory / "..data"
    if read_files(directory) == files:
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


def read_files(directory: Path) -> dict[str, bytes] | None:
    """Return the current files of a volume, or None before the first write."""
    data = directory / "..data"
    if not data.is_dir():
        return None
    return {str(path.relative_to(data)): path.read_bytes() for path in data.rglob("*") if path.is_file()}


class Unreadable(NamedTuple):
    """Paths that other users can't read. Paths below others are not listed."""

    directories: list[str]
    files: list[str]


@functools.cache
def find_unreadable(parts: tuple[str, ...] = PRIVATE_PARTS) -> Unreadable:
    """Return the paths that only the owner or a group can read.

    In a container these files can belong to its user (`drop_privileges`).
    """
    found = Unreadable([], [])
    waiting = list(parts)
    while waiting:
        try:
            entries = list(os.scandir(waiting.pop()))
        except OSError:  # it does not exist any more, or this user can't read it either
            continue
        for entry in entries:
            mode = entry.stat(follow_symlinks=False).st_mode
            if stat.S_ISDIR(mode) and mode & stat.S_IROTH and mode & stat.S_IXOTH:
                waiting.append(entry.path)
            elif stat.S_ISDIR(mode):
                found.directories.append(entry.path)
            elif stat.S_ISREG(mode) and not mode & stat.S_IROTH:
                found.files.append(entry.path)
    return found


class PodVolumes:
    """Creates and refreshes the volumes of one pod. Persistent volumes are directories of the whole cluster."""

    holders: dict[str, dict[str, str]] = {}  # noqa: RUF012 one per process: volume -> pod uid -> node

    def __init__(self, pod: PodSite) -> None:
        self.pod = pod
        self.directories: dict[str, Path] = {}
        self.by_name: dict[str, Object] = {v["name"]: v for v in pod.item["spec"].get("volumes") or []}
        self._tokens: dict[tuple[str, Token], tuple[bytes, float]] = {}
        self._memory: list[Path] = []

    async def prepare(self) -> None:
        """Create all volumes.

        Raises:
            MissingReference: An object does not exist yet.
            ApiError: The API server refused a request.
        """
        if self.pod.role:
            self.by_name[IDENTITY_VOLUME] = identity_volume()
        for name, volume in self.by_name.items():
            directory = self.pod.directory / "volumes" / name
            if "hostPath" in volume:
                raise MissingReference(
                    f"volume {name!r}: hostPath volumes are not supported by the local nodes"
                )
            if "persistentVolumeClaim" in volume:
                directory = await self._persistent(volume["persistentVolumeClaim"]["claimName"])
            directory.mkdir(parents=True, exist_ok=True)
            if (volume.get("emptyDir") or {}).get("medium") == "Memory":
                self._mount_memory(directory, size_limit(volume))
            self.directories[name] = directory
        await self.refresh()

    def _mount_memory(self, directory: Path, size: int) -> None:
        self._memory.append(directory)
        if not directory.is_mount():
            options = f"size={size}" if size else "size=50%"
            subprocess.run(
                ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(directory)],
                check=True,
                capture_output=True,
            )

    async def _persistent(self, claim_name: str) -> Path:
        """Return the directory of a bound claim's volume.

        Only one node at a time can use a ReadWriteOnce volume.
        """
        pod = self.pod
        path = f"/api/v1/namespaces/{pod.namespace}/persistentvolumeclaims/{claim_name}"
        claim = await pod.context.api.get(path)
        volume = str(claim["spec"].get("volumeName") or "")
        if not volume:
            raise MissingReference(f"persistentvolumeclaim {claim_name!r} is not bound")
        node = pod.item["spec"]["nodeName"]
        holders = self.holders.setdefault(volume, {})
        elsewhere = sorted(set(holders.values()) - {node})
        shared = {"ReadWriteMany", "ReadOnlyMany"} & set(claim["spec"]["accessModes"])
        if elsewhere and not shared:
            raise MissingReference(f"Multi-Attach error for volume {volume!r}: in use on node {elsewhere[0]}")
        # Before the requests, because the pods of other nodes also start meanwhile.
        holders[pod.uid] = node
        try:
            found = await pod.context.api.get(f"/api/v1/persistentvolumes/{volume}")
            if "csi" in found["spec"]:
                await self._require_driver(found["spec"]["csi"], pod.context.instances.get(node))
        except BaseException:
            holders.pop(pod.uid, None)
            raise
        directory: Path = csi.directory_of(pod.context.settings, found)
        return directory

    async def _require_driver(self, source: Object, instance: Object | None) -> None:
        """Check the node's driver and the access of its Lustre client.

        Raises:
            MissingReference: The node does not have the driver, or its Lustre client can't reach the file system.
        """
        if source["driver"] not in csi.drivers_of(instance):
            raise MissingReference(
                f"driver name {source['driver']} not found in the list of registered CSI drivers"
            )
        if instance is None or source["driver"] != "fsx.csi.aws.com":
            return
        attributes = source.get("volumeAttributes") or {}
        query = {
            "fileSystem": source["volumeHandle"],
            "dnsName": attributes.get("dnsname", ""),
            "mountName": attributes.get("mountname", "fsx"),
            "instance": instance["instanceId"],
        }
        address = f"{self.pod.context.settings.aws_endpoint}/_trainyard/mount"
        timeout = aiohttp.ClientTimeout(total=10)
        try:
            async with (
                aiohttp.ClientSession(timeout=timeout) as session,
                session.get(address, params=query, headers=self.pod.context.settings.aws_headers) as answer,
            ):
                refusal = (await answer.json(content_type=None)).get("refusal")
        except aiohttp.ClientError as error:
            raise MissingReference(f"mount of {source['volumeHandle']} failed: {error}") from None
        if refusal:
            raise MissingReference(f"mount of {source['volumeHandle']} failed: {refusal}")

    async def refresh(self) -> None:
        """Update the volumes that contain API objects, including tokens."""
        facts = self.pod.facts()
        for name in list(self.directories):
            found = read_content(facts, self.by_name[name])
            if found is None:
                continue
            tokens = {token.path: await self._token(name, token) for token in found.tokens}
            write_files(self.directories[name], found.files | tokens)

    async def _token(self, volume: str, token: Token) -> bytes:
        """Return a token that is bound to the pod. It is renewed after TOKEN_LIFE_USED of its lifetime."""
        held = self._tokens.get((volume, token))
        if held and time.time() < held[1]:
            return held[0]
        pod = self.pod
        reference = {"kind": "Pod", "apiVersion": "v1", "name": pod.name, "uid": pod.uid}
        audiences = {"audiences": [token.audience]} if token.audience else {}
        account = pod.item["spec"].get("serviceAccountName", "default")
        answer = await pod.context.api.create(
            f"/api/v1/namespaces/{pod.namespace}/serviceaccounts/{account}/token",
            {"spec": {"boundObjectRef": reference, "expirationSeconds": token.seconds} | audiences},
        )
        ends = epoch(answer["status"]["expirationTimestamp"])
        renew = time.time() + TOKEN_LIFE_USED * (ends - time.time())
        self._tokens[volume, token] = (answer["status"]["token"].encode(), renew)
        return self._tokens[volume, token][0]

    def plan(self, spec: Object, program: Program) -> Object:
        """Return the mounts, working directory and paths to keep of one container."""
        pod = self.pod
        mounted = list(spec.get("volumeMounts") or [])
        if pod.role:
            mounted.append(identity_mount())
        mounts = container_mounts({"volumeMounts": mounted}, self.directories, self.by_name)
        mounts.append({"source": str(pod.hosts_file), "target": "/etc/hosts"})
        if all(m["target"].rstrip("/") != "/dev/shm" for m in mounts):  # noqa: S108 the container's own
            mounts.append({"tmpfs": SHARED_MEMORY, "target": "/dev/shm"})  # noqa: S108
        temporary = pod.directory / "tmp" / spec["name"]
        temporary.mkdir(parents=True, exist_ok=True)
        temporary.chmod(0o1777)
        workdir = spec.get("workingDir") or program.workdir
        if program.context and program.workdir != "/" and not Path(program.workdir).exists():
            # The image's content, which a volume at the same path covers. The image's user can't write there
            # either.
            image = {"source": program.context, "target": program.workdir, "readOnly": True, "inside": True}
            mounts.insert(0, image)
        elif program.context and not spec.get("workingDir"):
            workdir = program.context
        settings = pod.context.settings
        keep = [sys.prefix, sys.base_prefix, program.context, program.argv[0], program.binary]
        keep += [str(path) for path in (pod.context.preload, pod.context.helpers)]
        return {
            "mounts": mounts,
            "cwd": workdir,
            "tmp": str(temporary),
            "keep": [path for path in keep if path.startswith("/")],
            "packages": os.path.realpath(sys.prefix),
            "hidden": [*HIDDEN, *find_unreadable().directories, str(Path.home()), str(settings.home.root)],
            "secrets": find_unreadable().files,
        }

    @staticmethod
    def release_left(directory: Path) -> None:
        """Unmount the memory volumes of a pod that was removed while no local/nodes process ran."""
        for left in (directory / "volumes").glob("*"):
            if left.is_mount():
                subprocess.run(["umount", "--lazy", str(left)], check=False, capture_output=True)

    def release(self) -> None:
        """Release what removing a directory does not: memory volumes and persistent volumes."""
        for directory in self._memory:
            subprocess.run(["umount", "--lazy", str(directory)], check=False, capture_output=True)
        self._memory = []
        for holders in self.holders.values():
            holders.pop(self.pod.uid, None)
