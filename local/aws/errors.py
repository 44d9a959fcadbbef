"""Errors of the extensions. moto serializes them in the protocol of the service that raised them."""

from __future__ import annotations

from moto.core.exceptions import ServiceException


class ApiError(ServiceException):  # type: ignore[misc]
    """An error of an AWS API: `ApiError(code, message)`.

    It has its own class: moto takes a plain ServiceException for an error of a service called "core", and then fails
    itself.
    """
