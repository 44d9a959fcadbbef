from __future__ import annotations

import asyncio
import base64
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from local.nodes import volumes
from local.nodes.environment import Facts, MissingReference
from local.nodes.images import Program
from local.nodes.volumes import PodVolumes


def facts() -> Facts:
    pod = {"metadata": {"name": "p", "namespace": "n", "uid": "u"}, "spec": {"containers": []}}
    maps = {"conf": {"data": {"a": "1", "b": "2"}}}
    secrets = {"cert": {"data": {"tls.crt": base64.b64encode(b"pem").decode()}}}
    return Facts(pod, "127.96.0.2", "127.0.0.1", {}, maps.get, secrets.get)


def files(volume: dict[str, Any]) -> dict[str, bytes]:
    content = volumes.read_content(facts(), volume)
    assert content is not None
    return content[0]


def test_volume_of_keys_has_all_or_the_selected_files() -> None:
    assert files({"configMap": {"name": "conf"}}) == {"a": b"1", "b": b"2"}
    assert files({"configMap": {"name": "conf", "items": [{"key": "b", "path": "sub/x"}]}}) == {"sub/x": b"2"}
    assert files({"secret": {"secretName": "cert"}}) == {"tls.crt": b"pem"}


def test_volume_missing_object_is_named_unless_optional() -> None:
    with pytest.raises(MissingReference, match="secret 'none' not found"):
        files({"secret": {"secretName": "none"}})
    with pytest.raises(MissingReference, match="configmap 'conf' has no key 'z'"):
        files({"configMap": {"name": "conf", "items": [{"key": "z", "path": "z"}]}})
    assert files({"secret": {"secretName": "none", "optional": True}}) == {}


def test_volume_projected_joins_sources_and_tokens() -> None:
    sources = [
        {"serviceAccountToken": {"path": "token", "expirationSeconds": 3607}},
        {"configMap": {"name": "conf", "items": [{"key": "a", "path": "ca.crt"}]}},
        {"downwardAPI": {"items": [{"path": "namespace", "fieldRef": {"fieldPath": "metadata.namespace"}}]}},
    ]
    content = volumes.read_content(facts(), {"projected": {"sources": sources}})
    assert content == ({"ca.crt": b"1", "namespace": b"n"}, [sources[0]["serviceAccountToken"]])


def test_identity_volume_has_a_token_for_sts() -> None:
    token = {"audience": "sts.amazonaws.com", "expirationSeconds": 86400, "path": "token"}
    assert volumes.read_content(facts(), volumes.IDENTITY_VOLUME) == ({}, [token])
    assert volumes.IDENTITY_MOUNT["mountPath"] == "/var/run/secrets/eks.amazonaws.com/serviceaccount"


def test_volume_empty_dir_has_no_content() -> None:
    assert volumes.read_content(facts(), {"emptyDir": {}}) is None


def test_write_files_replaces_all_files_together(tmp_path: Path) -> None:
    volumes.write_files(tmp_path, {"a": b"1", "dir/b": b"2"})
    assert (tmp_path / "a").read_bytes() == b"1"
    first = (tmp_path / "..data").readlink()
    volumes.write_files(tmp_path, {"a": b"1", "dir/b": b"2"})
    assert (tmp_path / "..data").readlink() == first  # unchanged: not written again
    volumes.write_files(tmp_path, {"a": b"3", "c": b"4"})
    assert (tmp_path / "a").read_bytes() == b"3"
    assert sorted(path.name for path in tmp_path.iterdir() if path.name[0] != ".") == ["a", "c"]
    assert len(list(tmp_path.glob("..[0-9]*"))) == 1


def test_write_files_of_no_files_is_a_set(tmp_path: Path) -> None:
    volumes.write_files(tmp_path, {})
    volumes.write_files(tmp_path, {"a": b"1"})
    assert (tmp_path / "a").read_bytes() == b"1"


def test_container_mounts_of_api_objects_are_read_only(tmp_path: Path) -> None:
    by_name: dict[str, Any] = {"conf": {"configMap": {}}, "data": {"emptyDir": {}}}
    directories = {name: tmp_path / name for name in by_name}
    container = {
        "volumeMounts": [
            {"name": "conf", "mountPath": "/etc/x", "subPath": "key"},
            {"name": "data", "mountPath": "/data", "subPath": "inner"},
            {"name": "data", "mountPath": "/all", "readOnly": True},
        ]
    }
    found = volumes.container_mounts(container, directories, by_name)
    assert found == [
        {
            "source": str(tmp_path / source),
            "subPath": path,
            "create": create,
            "target": target,
            "readOnly": read_only,
        }
        for source, path, create, target, read_only in (
            ("conf", "key", False, "/etc/x", True),
            ("data", "inner", True, "/data", False),
            ("data", "", True, "/all", True),
        )
    ]
    container["volumeMounts"][0]["subPathExpr"] = "$(POD)"
    with pytest.raises(volumes.MissingReference, match="subPathExpr"):
        volumes.container_mounts(container, directories, by_name)


def test_size_limit_of_memory_volume_is_in_bytes() -> None:
    assert volumes.memory_size({"medium": "Memory", "sizeLimit": "8Gi"}) == str(8 * 2**30)
    assert volumes.memory_size({"medium": "Memory"}) == "50%"


def test_volume_covers_the_image_content_read_only(tmp_path: Path) -> None:
    """What an image was built from is the checkout, and a workspace's volume is mounted over the image's directory."""
    settings = SimpleNamespace(home=SimpleNamespace(root=tmp_path))
    machine = SimpleNamespace(settings=settings, preload=tmp_path, helpers=tmp_path)
    item = {"spec": {"volumes": [{"name": "workspace", "emptyDir": {}}]}}
    pod = SimpleNamespace(item=item, role="", hosts_file=tmp_path, directory=tmp_path, context=machine)
    of_pod = PodVolumes(pod)  # type: ignore[arg-type]
    of_pod.directories["workspace"] = tmp_path / "volume"
    program = Program("process", ("python",), context="/checkout", workdir="/the-image-s")
    mounted = [{"name": "workspace", "mountPath": "/the-image-s"}]
    plan = of_pod.plan({"name": "torchrun", "volumeMounts": mounted}, program)
    there = [each for each in plan["mounts"] if each["target"] == "/the-image-s"]
    assert [each["source"] for each in there] == ["/checkout", str(tmp_path / "volume")], (
        "the last one is seen"
    )
    assert there[0]["readOnly"]
    assert not there[1].get("readOnly")


class VolumeApi:
    """Has one bound ReadWriteOnce claim. Other pods run during each request; `errors` are raised first."""

    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)

    async def get(self, path: str) -> dict[str, Any]:
        await asyncio.sleep(0)
        if "persistentvolumeclaims" in path:
            return {"spec": {"volumeName": "pv", "accessModes": ["ReadWriteOnce"]}}
        if self.errors:
            raise self.errors.pop()
        return {"metadata": {"name": "pv"}, "spec": {}}


def claiming_pod(api: VolumeApi, directory: Path, node: str) -> PodVolumes:
    settings = SimpleNamespace(home=SimpleNamespace(volumes=directory), cluster="c")
    context = SimpleNamespace(api=api, settings=settings, instances={})
    item = {"spec": {"nodeName": node}}
    return PodVolumes(SimpleNamespace(uid=node, namespace="n", item=item, context=context))  # type: ignore[arg-type]


def test_volume_of_pods_that_start_together_has_one_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PodVolumes, "holders", {})
    api = VolumeApi()
    pods = [claiming_pod(api, tmp_path, node) for node in ("a", "b")]

    async def start() -> list[Path | BaseException]:
        return await asyncio.gather(*(pod._persistent("claim") for pod in pods), return_exceptions=True)

    first, second = asyncio.run(start())
    assert first == tmp_path / "c" / "pv"
    assert str(second) == "Multi-Attach error for volume 'pv': in use on node a"


def test_volume_that_could_not_be_mounted_is_free(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PodVolumes, "holders", {})
    api = VolumeApi(OSError("connection refused"))
    with pytest.raises(OSError, match="refused"):
        asyncio.run(claiming_pod(api, tmp_path, "a")._persistent("claim"))
    assert asyncio.run(claiming_pod(api, tmp_path, "b")._persistent("claim")) == tmp_path / "c" / "pv"
