"""Errors that our extensions answer, serialised by moto in the protocol of the service that raised them."""

from __future__ import annotations

from moto.core.exceptions import ServiceException


class ApiError(ServiceException):  # type: ignore[misc]
    """An error of an AWS API: `ApiError(code, message)`.

    A class of our own: moto takes a plain ServiceException for one of a service called "core", and then fails itself.
    """
