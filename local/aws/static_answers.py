"""A cache for answers that never change while the server runs, with a fast serializer.

moto needs seconds of CPU to write 1395 instance types as XML. Karpenter requests them at its start, once as a dry run.
The serializer is many times faster than moto's general one, and is for large answers of plain dictionaries:
https://docs.aws.amazon.com/AWSEC2/latest/APIReference/Query-Requests.html.
"""

from __future__ import annotations

import functools
import threading
from collections import OrderedDict
from collections.abc import Callable
from datetime import datetime
from typing import Any
from xml.sax.saxutils import escape

from moto.core.exceptions import ServiceException
from moto.core.responses import ActionResult
from moto.core.utils import camelcase_to_underscores, get_service_model

STATIC_ACTIONS = {
    "ec2:DescribeInstanceTypes",
    "ec2:DescribeInstanceTypeOfferings",
    "ec2:DescribeSpotPriceHistory",
}
# Parts of a request that do not affect the answer.
IGNORED = ("Version", "StartTime", "EndTime", "MaxResults")
# The maximum size of the cache in characters. A list of all instance types has millions, for each filter.
KEPT = 48 * 2**20

REQUEST_ID = "00000000-0000-4000-8000-000000000000"
Writer = Callable[[Any], str]

_answers: OrderedDict[tuple[Any, ...], str] = OrderedDict()
_lock = threading.Lock()


def answer(response: Any, name: str, act: Callable[[Any], Any]) -> Any:
    """Return the action's answer, from the cache if it is static. `act` is moto's function that creates one."""
    if name not in STATIC_ACTIONS:
        return act(response)
    query = tuple(sorted((k, str(v)) for k, v in response.querystring.items() if k not in IGNORED))
    key = (name, response.region, query)
    try:
        response.error_on_dryrun()
        with _lock:  # held while the answer is made: a second caller waits instead of doing the same work
            if key not in _answers:
                _answers[key] = _write(response, name.partition(":")[2])
                while len(_answers) > 1 and sum(map(len, _answers.values())) > KEPT:
                    _answers.popitem(last=False)
            _answers.move_to_end(key)
            body = _answers[key]
    except ServiceException as error:
        status, headers, text = response.serialized(ActionResult(error))
        headers["status"] = str(status)
        return status, headers, text
    return 200, {"Content-Type": "text/xml;charset=UTF-8", "server": "amazon.com"}, body


def _write(response: Any, action: str) -> str:
    result: dict[str, Any] = getattr(response, camelcase_to_underscores(action))().result
    return to_xml(action, result)


def to_xml(operation: str, result: dict[str, Any]) -> str:
    """Return the body of a successful answer of an EC2 operation, without members that the model lacks."""
    model = get_service_model("ec2")
    shape = model.operation_model(operation).output_shape
    namespace = f"http://ec2.amazonaws.com/doc/{model.api_version}/"
    body = _writer(shape)(result)
    return (
        f'<?xml version="1.0" encoding="utf-8"?>\n<{operation}Response xmlns="{namespace}">'
        f"<requestId>{REQUEST_ID}</requestId>{body}</{operation}Response>"
    )


# There are few shapes, and each member requests its writer once.
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
