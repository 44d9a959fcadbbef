"""Ask a policy pack as the engine does. Run in the pack's directory by the pack's Python; resources on standard input.

The protocol is Pulumi's analyzer.proto; the first line that a pack prints is its port.
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import grpc
from google.protobuf import empty_pb2, struct_pb2
from pulumi.runtime.proto import analyzer_pb2, analyzer_pb2_grpc


def properties(values: dict[str, Any]) -> Any:
    result = struct_pb2.Struct()
    result.update(values)
    return result


def resource(each: dict[str, Any]) -> Any:
    sources = {
        name: analyzer_pb2.AnalyzerPropertyDependencies(urns=urns) for name, urns in each["from"].items()
    }
    return analyzer_pb2.AnalyzerResource(
        type=each["type"],
        properties=properties(each["properties"]),
        urn=each["urn"],
        name=each.get("name", "x"),
        propertyDependencies=sources,
    )


def ask(port: str, resources: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the policies of the pack, and its findings for the first resource and for a stack of all."""
    stub = analyzer_pb2_grpc.AnalyzerStub(grpc.insecure_channel(f"127.0.0.1:{port}"))
    info = stub.GetAnalyzerInfo(empty_pb2.Empty())
    first = resources[0]
    alone = stub.Analyze(
        analyzer_pb2.AnalyzeRequest(
            type=first["type"], properties=properties(first["properties"]), urn=first["urn"], name="x"
        )
    )
    whole = stub.AnalyzeStack(analyzer_pb2.AnalyzeStackRequest(resources=[resource(r) for r in resources]))
    return {
        "policies": [[p.name, analyzer_pb2.EnforcementLevel.Name(p.enforcementLevel)] for p in info.policies],
        "alone": [[d.policyName, d.message] for d in alone.diagnostics],
        "whole": [[d.policyName, d.urn] for d in whole.diagnostics],
    }


if __name__ == "__main__":
    pack = subprocess.Popen(
        [sys.executable, "-u", "-m", "pulumi.policy", "127.0.0.1:1", "."], stdout=subprocess.PIPE, text=True
    )
    try:
        print(json.dumps(ask(pack.stdout.readline().strip(), json.load(sys.stdin))))
    finally:
        pack.terminate()
        pack.wait()
