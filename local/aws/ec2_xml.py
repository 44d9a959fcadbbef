"""A serializer of EC2 answers to XML by botocore's model, many times faster than moto's general one.

It is for large answers of plain dictionaries:
https://docs.aws.amazon.com/AWSEC2/latest/APIReference/Query-Requests.html.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from datetime import datetime
from typing import Any
from xml.sax.saxutils import escape

from moto.core.utils import get_service_model

REQUEST_ID = "00000000-0000-4000-8000-000000000000"
Writer = Callable[[Any], str]


def answer(operation: str, result: dict[str, Any]) -> str:
    """Return the body of a successful answer of an EC2 operation, without members that the model lacks."""
    model = get_service_model("ec2")
    shape = model.operation_model(operation).output_shape
    namespace = f"http://ec2.amazonaws.com/doc/{model.api_version}/"
    body = _writer(shape)(result)
    return (
        f'<?xml version="1.0" encoding="utf-8"?>\n<{operation}Response xmlns="{namespace}">'
        f"<requestId>{REQUEST_ID}</requestId>{body}</{operation}Response>"
    )


# There are few shapes, and each member requests its writer once. So the cost of the recursion below is negligible.
@functools.cache
def _by_name(shape_name: str, shape: Any) -> Writer:
    if shape.type_name == "structure":
        return _structure(shape)
    if shape.type_name == "list":
        write = _writer(shape.member)
        return lambda items: "".join(f"<item>{write(item)}</item>" for item in items)
    if shape.type_name == "boolean":
        return lambda value: "true" if value else "false"
    if shape.type_name == "timestamp":
        return _timestamp
    return lambda value: escape(str(value))


def _writer(shape: Any) -> Writer:
    writer: Writer = _by_name(shape.name, shape)
    return writer


def _structure(shape: Any) -> Writer:
    members = []
    for name, member in shape.members.items():
        tag = member.serialization.get("name", name)
        members.append((name, f"<{tag}>", f"</{tag}>", _writer(member)))

    def write(value: Any) -> str:
        parts = []
        for name, start, end, inner in members:
            item = value.get(name)
            if item is not None:
                parts.append(start + inner(item) + end)
        return "".join(parts)

    return write


def _timestamp(value: Any) -> str:
    return value.strftime("%Y-%m-%dT%H:%M:%S.000Z") if isinstance(value, datetime) else escape(str(value))
