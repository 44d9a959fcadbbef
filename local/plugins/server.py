"""A gRPC server that serves a `Provider` as Pulumi's service `pulumirpc.ResourceProvider`.

The engine starts one process with its address as argument. The process prints only its port on standard output. The
engine keeps the other end of standard input open. When that closes, the engine is gone and this process ends.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import grpc.aio

from local.plugins import protos
from local.plugins.provider import (
    CheckRequest,
    CheckResult,
    CreateRequest,
    DeleteRequest,
    DiffRequest,
    DiffResult,
    Engine,
    InitFailed,
    Provider,
    ProviderError,
    ReadRequest,
    UpdateRequest,
)
from local.plugins.values import (
    Props,
    Secret,
    contains_secret,
    fill_struct,
    mark_secrets,
    struct_to_props,
    without_secrets,
)

# State and manifests can be large. The engine has the same limit (pulumi sdk, rpcutil).
_OPTIONS = [("grpc.max_receive_message_length", 1024 * 1024 * 400), ("grpc.max_send_message_length", -1)]
# The time for calls in progress when the engine ends early.
GRACE_SECONDS = 1.0
# Each resource that waits for readiness occupies a thread.
_THREADS = 128
_META = ("version", "pluginDownloadURL", "__internal", "__defaults")
_KINDS = {"add": "ADD", "delete": "DELETE", "update": "UPDATE"}


class RemoteEngine(Engine):
    """An engine that sends messages to the real engine at `address`."""

    def __init__(self, address: str) -> None:
        channel = grpc.insecure_channel(address, options=_OPTIONS)
        self._stub = protos.engine_grpc.EngineStub(channel)

    def _log(self, urn: str, text: str, severity: int, *, ephemeral: bool = False) -> None:
        request = protos.engine.LogRequest(severity=severity, message=text, urn=urn, ephemeral=ephemeral)
        try:
            self._stub.Log(request)
        except grpc.RpcError as error:
            print(f"can't reach the Pulumi engine to say {text!r}: {error.code()}", file=sys.stderr)

    def status(self, urn: str, text: str) -> None:
        """Show the progress of a wait."""
        self._log(urn, text, protos.engine.INFO, ephemeral=True)

    def warning(self, urn: str, text: str) -> None:
        """Add a warning to the resource's diagnostics."""
        self._log(urn, text, protos.engine.WARNING)


def _marked(message: Any, name: str) -> Props:
    """Return a property map with its secrets marked."""
    return struct_to_props(getattr(message, name)) if message.HasField(name) else {}


def _props(message: Any, name: str) -> Props:
    props: Props = without_secrets(_marked(message, name))
    return props


def _settings(message: Any, name: str) -> Props:
    return {key: value for key, value in _props(message, name).items() if key not in _META}


def _fill(struct: Any, props: Props, *sources: Props) -> None:
    fill_struct(struct, mark_secrets(props, *sources))


def _identity(request: Any) -> dict[str, str]:
    """Return URN, type and name of a request. The URN ends in `<parent types>$<type>::<name>`."""
    kind = request.type or request.urn.split("::")[2].rsplit("$", 1)[-1]
    name = request.name or request.urn.split("::", 3)[-1]
    return {"urn": request.urn, "type": kind, "name": name}


def _check_response(result: CheckResult, source: Props) -> Any:
    response = protos.provider.CheckResponse()
    _fill(response.inputs, result.inputs, source)
    for failure in result.failures:
        response.failures.add(property=failure.path, reason=failure.reason)
    return response


def _diff_response(result: DiffResult) -> Any:
    """Return the response. A path under one of `replaces` becomes a replacing path."""
    response = protos.provider.DiffResponse(
        replaces=result.replaces,
        deleteBeforeReplace=result.delete_before_replace,
        hasDetailedDiff=True,
        changes=protos.provider.DiffResponse.DIFF_SOME
        if result.has_changes
        else protos.provider.DiffResponse.DIFF_NONE,
    )
    top_level = dict.fromkeys(_top(path) for path in [*result.detailed, *result.replaces])
    response.diffs.extend(top_level)
    detailed = dict(result.detailed)
    for path in result.replaces:
        if not any(_under(key, path) for key in detailed):
            detailed[path] = "update"
    for path, kind in detailed.items():
        replaces = any(_under(path, prefix) for prefix in result.replaces)
        name = f"{_KINDS[kind]}_REPLACE" if replaces else _KINDS[kind]
        response.detailedDiff[path].kind = protos.provider.PropertyDiff.Kind.Value(name)
        response.detailedDiff[path].inputDiff = True
    return response


def _top(path: str) -> str:
    return path.split(".", 1)[0].split("[", 1)[0] or path


def _under(path: str, prefix: str) -> bool:
    return path == prefix or (path.startswith(prefix) and path[len(prefix)] in ".[")


class Servicer(protos.provider_grpc.ResourceProviderServicer):  # type: ignore[misc]
    """The gRPC service. Calls of the provider run on threads, components on the event loop."""

    def __init__(self, provider: Provider, engine_address: str) -> None:
        self._provider = provider
        self._engine_address = engine_address
        self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="call")
        self._components: Any = None

    def _source(self, message: Any, name: str) -> Props:
        """Return a property map as a source of secret marks, also for properties that copy another one."""
        source = _marked(message, name)
        return {**source, **{to: source[key] for to, key in self._provider.copies.items() if key in source}}

    async def _run(self, context: Any, place: str, call: Callable[[], Any], *sources: Props) -> Any:
        """Return the result of a call on a thread. A failure becomes a gRPC status that the engine understands."""
        loop = asyncio.get_running_loop()
        try:
            return await loop.run_in_executor(self._pool, call)
        except InitFailed as error:
            await context.abort_with_status(init_failed_status(error, *sources))
        except ProviderError as error:
            await context.abort(grpc.StatusCode.UNKNOWN, str(error))
        except Exception as error:  # a defect of the plugin: report the place, and print the traceback
            traceback.print_exc(file=sys.stderr)
            text = (
                f"the local {self._provider.name} plugin failed in {place}: {type(error).__name__}: {error}"
            )
            await context.abort(grpc.StatusCode.INTERNAL, text)

    async def Handshake(self, _request: Any, _context: Any) -> Any:
        # Components need all three. After a handshake, the engine ignores the response of `Configure`.
        return protos.provider.ProviderHandshakeResponse(
            accept_secrets=True, accept_resources=True, accept_outputs=True
        )

    async def GetPluginInfo(self, _request: Any, _context: Any) -> Any:
        return protos.plugin.PluginInfo(version=self._provider.version)

    async def GetSchema(self, _request: Any, context: Any) -> Any:
        import json

        schema = await self._run(context, "GetSchema", self._provider.schema)
        return protos.provider.GetSchemaResponse(schema=json.dumps(schema))

    async def CheckConfig(self, request: Any, context: Any) -> Any:
        def call() -> Any:
            every = _props(request, "news")
            result = self._provider.check_config(_settings(request, "news"))
            kept = {key: every[key] for key in _META if key in every}
            merged = CheckResult({**kept, **result.inputs}, result.failures)
            return _check_response(merged, _marked(request, "news"))

        return await self._run(context, "CheckConfig", call)

    async def DiffConfig(self, request: Any, context: Any) -> Any:
        def call() -> Any:
            old = _settings(request, "old_inputs") or _settings(request, "olds")
            return _diff_response(self._provider.diff_config(old, _settings(request, "news")))

        return await self._run(context, "DiffConfig", call)

    async def Configure(self, request: Any, context: Any) -> Any:
        def call() -> Any:
            self._provider.configure(_settings(request, "args"))
            return protos.provider.ConfigureResponse(
                supportsPreview=True, acceptSecrets=True, acceptResources=True, acceptOutputs=True
            )

        return await self._run(context, "Configure", call)

    async def Check(self, request: Any, context: Any) -> Any:
        def call() -> Any:
            asked = CheckRequest(
                **_identity(request),
                inputs=_props(request, "news"),
                old_inputs=_props(request, "olds")
                if request.HasField("olds") and request.olds.fields
                else None,
                seed=request.randomSeed,
            )
            return _check_response(self._provider.check(asked), self._source(request, "news"))

        return await self._run(context, f"Check of {request.urn}", call)

    async def Diff(self, request: Any, context: Any) -> Any:
        def call() -> Any:
            asked = DiffRequest(
                **_identity(request),
                id=request.id,
                old_inputs=_props(request, "old_inputs"),
                old_outputs=_props(request, "olds"),
                inputs=_props(request, "news"),
            )
            return _diff_response(self._provider.diff(asked))

        return await self._run(context, f"Diff of {request.urn}", call)

    async def Create(self, request: Any, context: Any) -> Any:
        def call() -> Any:
            asked = CreateRequest(
                **_identity(request),
                inputs=_props(request, "properties"),
                preview=request.preview,
                timeout=request.timeout or None,
            )
            response = protos.provider.CreateResponse()
            response.id, outputs = self._provider.create(asked)
            _fill(response.properties, outputs, source)
            return response

        source = self._source(request, "properties")
        return await self._run(context, f"Create of {request.urn}", call, source)

    async def Read(self, request: Any, context: Any) -> Any:
        def call() -> Any:
            asked = ReadRequest(
                **_identity(request),
                id=request.id,
                inputs=_props(request, "inputs"),
                outputs=_props(request, "properties"),
            )
            response = protos.provider.ReadResponse()
            found = self._provider.read(asked)
            if found is not None:
                response.id = found.id
                _fill(response.properties, found.outputs, *sources)
                _fill(response.inputs, found.inputs, sources[0])
            return response

        sources = [self._source(request, "inputs"), self._source(request, "properties")]
        return await self._run(context, f"Read of {request.urn}", call, *sources)

    async def Update(self, request: Any, context: Any) -> Any:
        def call() -> Any:
            asked = UpdateRequest(
                **_identity(request),
                id=request.id,
                old_inputs=_props(request, "old_inputs"),
                old_outputs=_props(request, "olds"),
                inputs=_props(request, "news"),
                preview=request.preview,
                timeout=request.timeout or None,
            )
            response = protos.provider.UpdateResponse()
            _fill(response.properties, self._provider.update(asked), source)
            return response

        source = self._source(request, "news")
        return await self._run(context, f"Update of {request.urn}", call, source)

    async def Delete(self, request: Any, context: Any) -> Any:
        def call() -> Any:
            asked = DeleteRequest(
                **_identity(request),
                id=request.id,
                inputs=_props(request, "old_inputs"),
                outputs=_props(request, "properties"),
                timeout=request.timeout or None,
            )
            self._provider.delete(asked)
            return _empty()

        return await self._run(context, f"Delete of {request.urn}", call)

    async def Invoke(self, request: Any, context: Any) -> Any:
        def call() -> Any:
            outputs, failures = self._provider.invoke(request.tok, _props(request, "args"))
            response = protos.provider.InvokeResponse()
            if contains_secret(_marked(request, "args")):
                outputs = {key: Secret(without_secrets(value)) for key, value in outputs.items()}
            # `return` is a Python keyword.
            fill_struct(getattr(response, "return"), outputs)
            for failure in failures:
                response.failures.add(property=failure.path, reason=failure.reason)
            return response

        return await self._run(context, f"Invoke of {request.tok}", call)

    async def Construct(self, request: Any, context: Any) -> Any:
        if self._components is None:
            # Pulumi's own implementation of components. The import takes most of a second, so it is late.
            from local.plugins.components import servicer

            self._components = servicer(self._provider, self._engine_address)
        return await self._components.Construct(request, context)

    async def Cancel(self, _request: Any, _context: Any) -> Any:
        self._provider.cancelled.set()
        return _empty()


def init_failed_status(error: InitFailed, *sources: Props) -> Any:
    """Return the gRPC status for a resource that exists but is not ready."""
    detail = protos.provider.ErrorResourceInitFailed(id=error.resource_id, reasons=error.reasons)
    _fill(detail.properties, error.outputs, *sources)
    if error.inputs is not None:
        _fill(detail.inputs, error.inputs, *sources)
    packed = protos.status.Status(code=grpc.StatusCode.UNKNOWN.value[0], message=str(error))
    packed.details.add().Pack(detail)

    class _Status(grpc.Status):  # type: ignore[misc]
        code = grpc.StatusCode.UNKNOWN
        details = str(error)
        trailing_metadata = (("grpc-status-details-bin", packed.SerializeToString()),)

    return _Status()


def _empty() -> Any:
    from google.protobuf import empty_pb2

    return empty_pb2.Empty()


def _end_with_standard_input() -> None:
    while os.read(0, 4096):
        continue
    os._exit(0)


def serve(provider: Provider) -> None:
    """Serve the plugin to the engine that started this process, until the engine ends.

    The only argument of the process that is used is the engine's address.
    """
    parser = argparse.ArgumentParser(description=f"Pulumi plugin {provider.name} of the local cloud")
    parser.add_argument("engine", help="address of the Pulumi engine")
    address = parser.parse_known_args()[0].engine
    provider.engine = RemoteEngine(address)
    threading.Thread(target=_end_with_standard_input, daemon=True).start()
    asyncio.run(_serve(provider, address))


async def _serve(provider: Provider, address: str) -> None:
    server = grpc.aio.server(options=_OPTIONS)
    protos.provider_grpc.add_ResourceProviderServicer_to_server(Servicer(provider, address), server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    # Users see the plugin's output, so the plugin ends silently when the engine asks it to.
    ending: list[asyncio.Task[None]] = []
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(
            number, lambda: ending.append(asyncio.create_task(server.stop(GRACE_SECONDS)))
        )
    print(port, flush=True)
    await server.wait_for_termination()
    # Threads of calls in progress would keep the process alive.
    os._exit(0)
