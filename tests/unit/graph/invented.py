"""Small recordings of fictitious resources for the tests of this directory."""

from __future__ import annotations

from typing import Any

from tests.integration.graph.recordings import Recording, recorded

JOB = "kubernetes:batch/v1:Job"
POD = "kubernetes:core/v1:Pod"
CONFIG_MAP = "kubernetes:core/v1:ConfigMap"
SECRET = "kubernetes:core/v1:Secret"
SUBNET = "aws:ec2/subnet:Subnet"
ROLE = "aws:iam/role:Role"


def urn(kind: str, name: str = "x") -> str:
    return f"urn:pulumi:s::p::{kind}::{name}"


def state(kind: str, name: str = "x", /, inside: str = "", **fields: Any) -> dict[str, Any]:
    """Return a resource as the engine records it; `inside` is the type of its parent."""
    chain = f"{inside}${kind}" if inside else kind
    return {"urn": urn(chain, name), "type": kind, "custom": True, **fields}


def previewed(*states: dict[str, Any]) -> Recording:
    """Return the recording of a preview that creates these resources."""
    return recorded({"steps": [{"op": "create", "newState": each} for each in states]})


def one(kind: str, name: str = "x", /, **inputs: Any) -> Recording:
    """Return the recording of a preview that creates one resource with these inputs."""
    return previewed(state(kind, name, inputs=inputs))


def an_object(kind: str, /, inside: str = "", name: str = "x", **inputs: Any) -> dict[str, Any]:
    """Return a Kubernetes object as the engine records it."""
    _, group, short = kind.split(":")
    manifest = {
        "apiVersion": group.removeprefix("core/"),
        "kind": short,
        "metadata": {"name": name},
        **inputs,
    }
    return state(kind, name, inside=inside, inputs=manifest)


def a_job(image: str, /, inside: str = "", name: str = "x", **spec: Any) -> dict[str, Any]:
    """Return a Job with one container."""
    template = {"spec": {"containers": [{"name": "c", "image": image}]}}
    return an_object(JOB, inside=inside, name=name, spec={"template": template, **spec})


def a_pod(image: str, /, inside: str = "", name: str = "x", **spec: Any) -> dict[str, Any]:
    """Return a Pod with one container."""
    pod_spec = {"containers": [{"name": "c", "image": image}], **spec}
    return an_object(POD, inside=inside, name=name, spec=pod_spec)
