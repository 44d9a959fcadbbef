"""The gRPC service around a provider, called as the engine calls it."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from local.plugins import protos
from local.plugins.provider import (
    CheckRequest,
    CheckResult,
    CreateRequest,
    DiffRequest,
    DiffResult,
    Failure,
    InitFailed,
    Provider,
    ProviderError,
)
from local.plugins.server import Servicer
from local.plugins.values import Props, Secret, fill_struct, struct_to_props

URN = "urn:pulumi:dev::p::my:component$fake:index:Thing::thing"


class Fake(Provider):
    name, version = "fake", "1.2.3"
    copies = {"again": "password"}  # noqa: RUF012

    def check(self, request: CheckRequest) -> CheckResult:
        assert request.type == "fake:index:Thing"
        assert request.name == "thing"
        failures = [Failure("bad", "bad is bad")] if "bad" in request.inputs else []
        return CheckResult({**request.inputs, "name": request.auto_name()}, failures)

    def diff(self, request: DiffRequest) -> DiffResult:
        return DiffResult({"spec.a": "update", "b": "add"}, ["spec"], delete_before_replace=True)

    def create(self, request: CreateRequest) -> tuple[str, Props]:
        assert request.inputs["password"] == "plain", "a provider never sees the wrapping"
        if request.inputs.get("fail") == "init":
            raise InitFailed("id-1", {"password": "plain"}, ["not ready"])
        if request.inputs.get("fail") == "error":
            raise ProviderError("one clear line")
        if request.inputs.get("fail") == "defect":
            raise KeyError("x")
        return "id-1", {**request.inputs, "again": "plain", "derived": Secret("d"), "open": 1}


def ask(call: Callable[[Any], Awaitable[Any]]) -> Any:
    """Run one exchange against a server of its own."""

    async def exchange() -> Any:
        server = grpc.aio.server()
        protos.provider_grpc.add_ResourceProviderServicer_to_server(Servicer(Fake(), "127.0.0.1:1"), server)
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        try:
            async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
                return await call(protos.provider_grpc.ResourceProviderStub(channel))
        finally:
            await server.stop(None)

    return asyncio.run(exchange())


def create(**inputs: Any) -> Any:
    request = protos.provider.CreateRequest(urn=URN)
    fill_struct(request.properties, {"password": Secret("plain"), **inputs})
    return ask(lambda stub: stub.Create(request))


def test_what_comes_of_a_secret_input_is_a_secret_output() -> None:
    response = create()
    outputs = struct_to_props(response.properties)
    assert response.id == "id-1"
    secrets = {"password": Secret("plain"), "again": Secret("plain"), "derived": Secret("d")}
    assert outputs == {**secrets, "open": 1}


def test_a_resource_that_is_not_ready_keeps_its_id_and_its_secrets() -> None:
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        create(fail="init")
    packed = dict(raised.value.trailing_metadata() or ())["grpc-status-details-bin"]
    status = protos.status.Status.FromString(packed)
    detail = protos.provider.ErrorResourceInitFailed()
    assert status.details[0].Unpack(detail)
    assert (detail.id, list(detail.reasons)) == ("id-1", ["not ready"])
    assert struct_to_props(detail.properties) == {"password": Secret("plain")}


def test_an_error_for_the_user_stands_alone_and_a_defect_says_where() -> None:
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        create(fail="error")
    assert raised.value.details() == "one clear line"
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        create(fail="defect")
    assert "the local fake plugin failed in Create of urn:pulumi:dev" in (raised.value.details() or "")


def test_check_names_the_failures_and_draws_names_from_the_seed() -> None:
    def check(seed: bytes, **inputs: Any) -> Any:
        request = protos.provider.CheckRequest(urn=URN, randomSeed=seed)
        fill_struct(request.news, inputs)
        return ask(lambda stub: stub.Check(request))

    response = check(b"1", bad=1)
    assert [(failure.property, failure.reason) for failure in response.failures] == [("bad", "bad is bad")]
    names = [struct_to_props(check(seed).inputs)["name"] for seed in (b"1", b"1", b"2")]
    assert names[0] == names[1] != names[2]
    assert names[0].startswith("thing-")


def test_a_path_below_a_replacing_one_replaces_and_others_do_not() -> None:
    response = ask(lambda stub: stub.Diff(protos.provider.DiffRequest(urn=URN, id="id-1")))
    kinds = {
        path: protos.provider.PropertyDiff.Kind.Name(diff.kind)
        for path, diff in response.detailedDiff.items()
    }
    assert kinds == {"spec.a": "UPDATE_REPLACE", "b": "ADD"}
    assert response.deleteBeforeReplace
    assert response.changes == protos.provider.DiffResponse.DIFF_SOME


def test_the_handshake_accepts_secrets_because_components_need_it() -> None:
    response = ask(lambda stub: stub.Handshake(protos.provider.ProviderHandshakeRequest()))
    assert response.accept_secrets
    assert response.accept_outputs


@pytest.mark.parametrize("number", [None, signal.SIGINT, signal.SIGTERM])
def test_process_prints_only_its_port_and_ends_with_the_engine(number: signal.Signals | None) -> None:
    """The engine closes standard input, or interrupts the process."""
    plugin = Path(__file__).parents[3] / "local" / "plugins" / "bin" / "pulumi-resource-kubernetes"
    process = subprocess.Popen(
        [sys.executable, str(plugin), "127.0.0.1:1"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        assert int(process.stdout.readline()) > 0
        if number is not None:
            process.send_signal(number)
        said = process.communicate(timeout=20)  # this closes standard input
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 0
    assert said == ("", "")


DEEP_REQUEST = """
import functools
from google.protobuf import struct_pb2
from local.plugins import protos
request = protos.provider.CheckRequest()
request.news.update(functools.reduce(lambda inner, _: {"a": inner}, range(60), {"a": 1}))
protos.provider.CheckRequest.FromString(request.SerializeToString())
"""


def test_plugin_reads_objects_as_deep_as_definitions_of_jobsets() -> None:
    # In a process of its own: the Pulumi SDK, which other tests import, sets the same limit.
    answer = subprocess.run([sys.executable, "-c", DEEP_REQUEST], capture_output=True, text=True, timeout=60)
    assert answer.returncode == 0, answer.stderr
