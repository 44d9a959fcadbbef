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
from pathlib import Path
from typing import NamedTuple

import aiohttp

from local.nodes import csi, environment
from local.nodes.api import Object, epoch
from local.nodes.context import PodSite
from local.nodes.environment import TOKEN_FILE, Facts, MissingReference
from local.nodes.images import Program
from trainyard.k8s.quantity import parse

# The projected volume that EKS's webhook adds for a role, and its mount in every container.
_TOKEN = {"audience": "sts.amazonaws.com", "expirationSeconds": 86400, "path": Path(TOKEN_FILE).name}
IDENTITY = "aws-iam-token"
IDENTITY_VOLUME = {"name": IDENTITY, "projected": {"sources": [{"serviceAccountToken": _TOKEN}]}}
IDENTITY_MOUNT = {"name": IDENTITY, "mountPath": str(Path(TOKEN_FILE).parent), "readOnly": True}
TOKEN_LIFE_USED = 0.8  # kubelets renew a token after this part of its lifetime
# Directories of the host that images do not have: home directories, keys, and data of services.
HIDDEN = ("/root", "/home", "/etc/ssh", "/var/log", "/var/spool")
# Images do not have the host's files in these directories that only root or a group can read.
PRIVATE_PARTS = ("/etc", "/opt", "/srv", "/var")
SHARED_MEMORY = "size=64m"  # the default of container runtimes for /dev/shm


def select_keys(kind: str, item: Object | None, source: Object) -> dict[str, bytes]:
    """Return the files of a ConfigMap or Secret: all of them, or those that `items` names."""
    name = source["name"]
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
    found = {}
    for item in items:
        if "fieldRef" in item:
            value = environment.field(facts, item["fieldRef"]["fieldPath"])
        else:
            value = environment.resource(facts, item["resourceFieldRef"])
        found[item["path"]] = value.encode()
    return found


def read_content(facts: Facts, volume: Object) -> tuple[dict[str, bytes], list[Object]] | None:
    """Return the current content of a volume of API objects, None for other kinds of volumes.

    Returns:
        The files by relative path, and the ServiceAccountTokenProjections that must still be requested.

    Raises:
        MissingReference: An object does not exist (yet).
    """
    if "projected" in volume:
        sources = volume["projected"].get("sources") or []
    elif "secret" in volume:
        sources = [{"secret": {**volume["secret"], "name": volume["secret"]["secretName"]}}]
    elif "configMap" in volume or "downwardAPI" in volume:
        sources = [volume]
    else:
        return None
    files: dict[str, bytes] = {}
    tokens: list[Object] = []
    for source in sources:
        if "serviceAccountToken" in source:
            tokens.append(source["serviceAccountToken"])
        elif "configMap" in source:
            part = source["configMap"]
            files |= select_keys("configmap", facts.config_map(part["name"]), part)
        elif "secret" in source:
            part = source["secret"]
            files |= select_keys("secret", facts.secret(part["name"]), part)
        elif "downwardAPI" in source:
            files |= downward_files(facts, source["downwardAPI"].get("items") or [])
        else:
            raise MissingReference(f"projected source {sorted(source)} is not supported by the local nodes")
    return files, tokens


def memory_size(empty_dir: Object) -> str:
    """Return the size of an emptyDir in memory: its limit in bytes, otherwise half of the machine's memory."""
    size = int(parse(empty_dir.get("sizeLimit") or "0"))
    return str(size) if size else "50%"


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


def unmount_memory(pod_directory: Path) -> None:
    for directory in (pod_directory / "volumes").glob("*"):
        if directory.is_mount():
            subprocess.run(["umount", "--lazy", str(directory)], check=False, capture_output=True)


class PodVolumes:
    """Creates and refreshes the volumes of one pod. Persistent volumes are directories of the whole cluster."""

    holders: dict[str, dict[str, str]] = {}  # noqa: RUF012 one per process: volume -> pod uid -> node

    def __init__(self, pod: PodSite) -> None:
        self.pod = pod
        self.directories: dict[str, Path] = {}
        self.by_name: dict[str, Object] = {v["name"]: v for v in pod.item["spec"].get("volumes") or []}
        self._tokens: dict[
            tuple[str, str], tuple[bytes, float]
        ] = {}  # by volume and path: token, time to renew

    async def prepare(self) -> None:
        """Create all volumes.

        Raises:
            MissingReference: An object does not exist yet.
            ApiError: The API server refused a request.
        """
        if self.pod.role:
            self.by_name[IDENTITY] = IDENTITY_VOLUME
        for name, volume in self.by_name.items():
            directory = self.pod.directory / "volumes" / name
            if "hostPath" in volume:
                raise MissingReference(
                    f"volume {name!r}: hostPath volumes are not supported by the local nodes"
                )
            if "persistentVolumeClaim" in volume:
                directory = await self._persistent(volume["persistentVolumeClaim"]["claimName"])
            directory.mkdir(parents=True, exist_ok=True)
            if (volume.get("emptyDir") or {}).get("medium") == "Memory" and not directory.is_mount():
                options = f"size={memory_size(volume['emptyDir'])}"
                command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(directory)]
                subprocess.run(command, check=True, capture_output=True)
            self.directories[name] = directory
        await self.refresh()

    async def _persistent(self, claim_name: str) -> Path:
        """Return the directory of a bound claim's volume. Only one node at a time can use a ReadWriteOnce volume."""
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
        for name, directory in list(self.directories.items()):
            content = read_content(facts, self.by_name[name])
            if content is not None:
                files, tokens = content
                for token in tokens:
                    files[token["path"]] = await self._token(name, token)
                write_files(directory, files)

    async def _token(self, volume: str, wanted: Object) -> bytes:
        """Return a token that is bound to the pod. It is renewed after TOKEN_LIFE_USED of its lifetime."""
        token, renew = self._tokens.get((volume, wanted["path"]), (b"", 0.0))
        if time.time() < renew:
            return token
        pod = self.pod
        spec = {
            "boundObjectRef": {"kind": "Pod", "apiVersion": "v1", "name": pod.name, "uid": pod.uid},
            "expirationSeconds": wanted["expirationSeconds"],
            "audiences": [wanted["audience"]] if wanted.get("audience") else None,  # None: the API server's
        }
        account = pod.item["spec"].get("serviceAccountName", "default")
        path = f"/api/v1/namespaces/{pod.namespace}/serviceaccounts/{account}/token"
        status = (await pod.context.api.create(path, {"spec": spec}))["status"]
        now, ends = time.time(), epoch(status["expirationTimestamp"])
        token = str(status["token"]).encode()
        self._tokens[volume, wanted["path"]] = token, now + TOKEN_LIFE_USED * (ends - now)
        return token

    def plan(self, spec: Object, program: Program) -> Object:
        """Return the mounts, working directory and paths to keep of one container."""
        pod = self.pod
        mounted = list(spec.get("volumeMounts") or [])
        if pod.role:
            mounted.append(IDENTITY_MOUNT)
        mounts = container_mounts({"volumeMounts": mounted}, self.directories, self.by_name)
        mounts.append({"source": str(pod.hosts_file), "target": "/etc/hosts"})
        if all(m["target"].rstrip("/") != "/dev/shm" for m in mounts):  # noqa: S108 the container's own
            mounts.append({"tmpfs": SHARED_MEMORY, "target": "/dev/shm"})  # noqa: S108
        temporary = pod.directory / "tmp" / spec["name"]
        temporary.mkdir(parents=True, exist_ok=True)
        temporary.chmod(0o1777)
        workdir = spec.get("workingDir") or program.workdir
        if program.context and program.workdir != "/" and not Path(program.workdir).exists():
            # The image's content, which a volume at the same path covers. The image's user can't write there either.
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

    def release(self) -> None:
        """Release what removing a directory does not: memory volumes and persistent volumes."""
        unmount_memory(self.pod.directory)
        for holders in self.holders.values():
            holders.pop(self.pod.uid, None)
