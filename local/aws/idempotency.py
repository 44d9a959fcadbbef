"""Client tokens, which moto ignores: a request that repeats a token gets the answer of the first one.

https://docs.aws.amazon.com/ec2/latest/devguide/ec2-api-idempotency.html. The answer is the one that was given then. A
failed request leaves its token unused.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from moto.ec2.models import ec2_backends

from local.aws.account import ACCOUNT_ID
from local.aws.ec2_utils import table
from local.aws.errors import ApiError

# Service -> the parameter, and the error of a token that was used with other parameters. EKS documents no code of its
# own, so it is the general one of its creations.
TOKENS = {
    "ec2": ("ClientToken", "IdempotentParameterMismatch"),
    "eks": ("clientRequestToken", "InvalidParameterException"),
    "fsx": ("ClientRequestToken", "IncompatibleParameterError"),
}
MESSAGE = "Arguments on this idempotent request are inconsistent with arguments used in previous request(s)."
# SDKs send a new token with most creations. The oldest are forgotten.
KEPT = 500


def once(response: Any, service: str, act: Callable[[], Any]) -> Any:
    """Return the answer of `act`, or that of the earlier request with the same token.

    The calls of these services run one after the other (`local.aws.serial`).

    Args:
        response: moto's, with the request.
        service: The name of the service.
        act: Carries the request out. Returns the status, headers and body.

    Raises:
        ApiError: The token was used with other parameters.
    """
    if service not in TOKENS:
        return act()
    parameter, code = TOKENS[service]
    given = dict(response.querystring) if service == "ec2" else json.loads(response.body or "{}")
    token = given.pop(parameter, None)
    if not token or "true" in given.pop("DryRun", ()):
        return act()
    request = json.dumps([response.path, given], sort_keys=True)
    answers = table(ec2_backends[ACCOUNT_ID][response.region], "client_tokens")
    key = (service, response._get_action(), str(token))
    if key not in answers:
        status, headers, body = act()
        if int(status) >= 400:
            return status, headers, body
        answers[key] = request, (status, headers, body)
        if len(answers) > KEPT:
            del answers[next(iter(answers))]
    first, (status, headers, body) = answers[key]
    if first != request:
        raise ApiError(code, MESSAGE)
    return status, dict(headers), body
