"""Answers that never change while the server runs are serialised once.

moto needs seconds of CPU to write 1395 instance types as XML, and Karpenter asks for them, their offerings and prices
again and again.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

STATIC_ACTIONS = {
    "ec2:DescribeInstanceTypes",
    "ec2:DescribeInstanceTypeOfferings",
    "ec2:DescribeSpotPriceHistory",
}
# Parts of a request that do not change the answer.
IGNORED = ("Version", "StartTime", "EndTime")
KEPT = 64

_answers: OrderedDict[tuple[Any, ...], Any] = OrderedDict()
_lock = threading.Lock()


def answer(response: Any, name: str, act: Callable[[Any], Any]) -> Any:
    """The action's answer, from memory where it is static."""
    if name not in STATIC_ACTIONS:
        return act(response)
    query = tuple(sorted((k, str(v)) for k, v in response.querystring.items() if k not in IGNORED))
    key = (name, response.region, query)
    with _lock:  # held while the answer is made: a second caller waits instead of doing the same work
        if key not in _answers:
            status, headers, body = act(response)
            if status != 200:
                return status, headers, body
            _answers[key] = (dict(headers), body)
            if len(_answers) > KEPT:
                _answers.popitem(last=False)
        _answers.move_to_end(key)
        headers, body = _answers[key]
    return 200, dict(headers), body


def forget() -> None:
    """Drop every kept answer."""
    with _lock:
        _answers.clear()
