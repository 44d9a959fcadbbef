"""A small asynchronous client of the Kubernetes API: requests, and watches that heal themselves."""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import ssl
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import aiohttp
import yaml

Object = dict[str, Any]
Key = tuple[str, str]

MERGE = "application/merge-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
WATCH_SECONDS = 600
GONE = 410

log = logging.getLogger(__name__)


class ApiError(Exception):
    """The API server refused a request. `status` is the HTTP code, `reason` the machine-readable word."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason

    @property
    def transient(self) -> bool:
        """Whether the same request may well be taken later."""
        return self.status == 429 or self.status >= 500


# What a request may raise while the API server is away or restarting.
UNREACHABLE = (aiohttp.ClientError, TimeoutError, OSError)


def tls_of(kubeconfig: Path) -> tuple[str, ssl.SSLContext]:
    """Server address and TLS context (client certificate included) of a kubeconfig's current context."""
    config = yaml.safe_load(kubeconfig.read_text())
    context = next(c["context"] for c in config["contexts"] if c["name"] == config["current-context"])
    cluster = next(c["cluster"] for c in config["clusters"] if c["name"] == context["cluster"])
    user = next(u["user"] for u in config["users"] if u["name"] == context["user"])

    def pem(entry: Object, key: str) -> bytes:
        if f"{key}-data" in entry:
            return base64.b64decode(str(entry[f"{key}-data"]))
        return (kubeconfig.parent / str(entry[key])).read_bytes()

    tls = ssl.create_default_context(cadata=pem(cluster, "certificate-authority").decode())
    with tempfile.NamedTemporaryFile() as file:  # the ssl module reads a client certificate from a file only
        file.write(pem(user, "client-certificate") + b"\n" + pem(user, "client-key"))
        file.flush()
        tls.load_cert_chain(file.name)
    return str(cluster["server"]), tls


class Api:
    """Requests to one API server. Use as an async context manager."""

    def __init__(self, kubeconfig: Path) -> None:
        self.server, self._tls = tls_of(kubeconfig)
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Api:
        self._session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=self._tls, limit=0))
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.session.close()

    @property
    def session(self) -> aiohttp.ClientSession:
        """The open HTTP session."""
        if self._session is None:
            raise RuntimeError("the API client is used outside `async with`")
        return self._session

    async def request(
        self, method: str, path: str, body: Object | None = None, content_type: str = "application/json"
    ) -> Object:
        """One request of at most 30 s. Raises ApiError for a refusal, one of UNREACHABLE for no answer."""
        async with self.session.request(
            method,
            self.server + path,
            data=None if body is None else json.dumps(body),
            headers={"Content-Type": content_type},
            timeout=aiohttp.ClientTimeout(total=30),
        ) as response:
            answer = decode(await response.read())
            if response.status >= 400:
                raise ApiError(response.status, answer.get("reason", ""), answer.get("message", str(answer)))
            return answer

    async def get(self, path: str) -> Object:
        """Read one object or list."""
        return await self.request("GET", path)

    async def create(self, path: str, body: Object) -> Object:
        """POST a new object to a collection."""
        return await self.request("POST", path, body)

    async def patch(self, path: str, body: Object, content_type: str = STRATEGIC) -> Object:
        """PATCH one object or its status."""
        return await self.request("PATCH", path, body, content_type)

    async def delete(self, path: str, body: Object | None = None) -> Object:
        """DELETE one object; options go in the body (query parameters are ignored once there is a body)."""
        return await self.request("DELETE", path, body)


def decode(text: bytes) -> Object:
    """JSON of an answer; a plain text (a proxy's error) becomes a message."""
    try:
        answer = json.loads(text)
    except ValueError:
        return {"message": text.decode(errors="replace")}
    return answer if isinstance(answer, dict) else {"message": str(answer)}


def key_of(item: Object) -> Key:
    """Namespace (empty for cluster-scoped objects) and name."""
    return item["metadata"].get("namespace", ""), item["metadata"]["name"]


class Informer:
    """A local copy of the objects at one path, and a callback for every change.

    The callback gets "set" or "gone" and the object. `synced` is set after the first list.
    """

    def __init__(
        self, api: Api, path: str, changed: Callable[[str, Object], None], selector: str = ""
    ) -> None:
        self.api = api
        self.path = path
        self.selector = f"fieldSelector={selector}&" if selector else ""
        self.changed = changed
        self.objects: dict[Key, Object] = {}
        self.synced = asyncio.Event()

    async def run(self) -> None:
        """List, watch and list again, until cancelled."""
        while True:
            try:
                version = await self._list()
                while version:
                    version = await self._watch(version)
            except (*UNREACHABLE, ApiError) as error:
                log.warning("watch of %s interrupted: %s", self.path, error)
                await asyncio.sleep(1)

    async def _list(self) -> str:
        answer = await self.api.get(f"{self.path}?{self.selector}")
        found = {key_of(item): item for item in answer["items"]}
        for key in self.objects.keys() - found.keys():
            self.changed("gone", self.objects.pop(key))
        for key, item in found.items():
            before = self.objects.get(key)
            if before is not None and before["metadata"]["uid"] != item["metadata"]["uid"]:
                # Replaced while nobody watched: what is there of the old one has to end.
                self.changed("gone", self.objects.pop(key))
                before = None
            self.objects[key] = item
            version = item["metadata"]["resourceVersion"]
            if before is None or before["metadata"]["resourceVersion"] != version:
                self.changed("set", item)
        self.synced.set()
        return str(answer["metadata"]["resourceVersion"])

    async def _watch(self, version: str) -> str:
        """Follow changes until the server ends the stream; the version to go on from, or "" to list again."""
        url = (
            f"{self.api.server}{self.path}?{self.selector}watch=1&allowWatchBookmarks=true"
            f"&resourceVersion={version}&timeoutSeconds={WATCH_SECONDS}"
        )
        timeout = aiohttp.ClientTimeout(total=None, sock_read=WATCH_SECONDS + 30)
        async with self.api.session.get(url, timeout=timeout) as response:
            if response.status == GONE:
                return ""
            if response.status != 200:
                raise ApiError(response.status, "", (await response.read()).decode(errors="replace"))
            rest = b""
            async for chunk in response.content.iter_any():
                *lines, rest = (rest + chunk).split(b"\n")
                for line in lines:
                    version = self._event(json.loads(line))
                    if not version:
                        return ""
        return version

    def _event(self, event: Object) -> str:
        item = event["object"]
        if event["type"] == "ERROR":
            log.info("watch of %s starts anew: %s", self.path, item.get("message"))
            return ""
        if event["type"] == "DELETED":
            self.objects.pop(key_of(item), None)
            self.changed("gone", item)
        elif event["type"] != "BOOKMARK":
            self.objects[key_of(item)] = item
            self.changed("set", item)
        return str(item["metadata"]["resourceVersion"])
