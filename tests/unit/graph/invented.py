"""Small recordings of invented resources, for the tests of this folder."""

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


def state(kind: str, name: str = "x", /, inside: str = "", **said: Any) -> dict[str, Any]:
    """A resource as the engine writes it down; `inside` is the type of its parent."""
    chain = f"{inside}${kind}" if inside else kind
    return {"urn": urn(chain, name), "type": kind, "custom": True, **said}


def previewed(*states: dict[str, Any]) -> Recording:
    """Recorded of a preview."""
    return recorded({"steps": [{"op": "create", "newState": each} for each in states]})


def one(kind: str, name: str = "x", /, **inputs: Any) -> Recording:
    """The same of one resource with these inputs."""
    return previewed(state(kind, name, inputs=inputs))


def an_object(kind: str, /, inside: str = "", name: str = "x", **inputs: Any) -> dict[str, Any]:
    """An object of Kubernetes as the engine writes it down."""
    _, group, short = kind.split(":")
    known = {"apiVersion": group.removeprefix("core/"), "kind": short, "metadata": {"name": name}, **inputs}
    return state(kind, name, inside=inside, inputs=known)


def a_job(image: str, /, inside: str = "", name: str = "x", **spec: Any) -> dict[str, Any]:
    """A Job of one container."""
    template = {"spec": {"containers": [{"name": "c", "image": image}]}}
    return an_object(JOB, inside=inside, name=name, spec={"template": template, **spec})


def a_pod(image: str, /, inside: str = "", name: str = "x", **spec: Any) -> dict[str, Any]:
    """A Pod of one container."""
    whole = {"containers": [{"name": "c", "image": image}], **spec}
    return an_object(POD, inside=inside, name=name, spec=whole)
