"""A cache for answers that never change while the server runs, with a fast serializer.

moto needs seconds of CPU to write 1395 instance types as XML. Karpenter requests them at its start, once as a dry run.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from moto.core.exceptions import ServiceException
from moto.core.utils import camelcase_to_underscores

from local.aws import ec2_xml

STATIC_ACTIONS = {
    "ec2:DescribeInstanceTypes",
    "ec2:DescribeInstanceTypeOfferings",
    "ec2:DescribeSpotPriceHistory",
}
# Parts of a request that do not affect the answer.
IGNORED = ("Version", "StartTime", "EndTime", "MaxResults")
# The maximum size of the cache in characters. A list of all instance types has millions, for each filter.
KEPT = 48 * 2**20

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
        status, headers, text = response.serialized(_failed(error))
        headers["status"] = str(status)
        return status, headers, text
    return 200, {"Content-Type": "text/xml;charset=UTF-8", "server": "amazon.com"}, body


def _write(response: Any, action: str) -> str:
    result: dict[str, Any] = getattr(response, camelcase_to_underscores(action))().result
    return ec2_xml.answer(action, result)


def _failed(error: Exception) -> Any:
    from moto.core.responses import ActionResult

    return ActionResult(error)
