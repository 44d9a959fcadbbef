"""The Pulumi SDK's state, which it keeps for the whole process: apart for each deployment of a test."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar
from unittest.mock import patch

from pulumi.runtime import rpc
from pulumi.runtime.settings import Settings, set_root_resource

T = TypeVar("T")

# One loop for all tests: the SDK keeps locks and queues that are bound to the loop they were first used in.
LOOP = asyncio.new_event_loop()


def isolated(deployment: Callable[[], T]) -> T:
    """Run a deployment that sets mocks of its own; nothing of its settings, mocks or root stack stays behind.

    The SDK keeps them in context variables: they are new in a context that ends with the deployment.
    """

    def run() -> T:
        Settings(project=None, stack=None)  # new lists of what runs, features and packages, too
        set_root_resource(None)  # type: ignore[arg-type]
        return deployment()

    asyncio.set_event_loop(LOOP)
    try:
        return contextvars.copy_context().run(run)
    finally:
        asyncio.set_event_loop(None)


@contextmanager
def no_resource_modules() -> Iterator[None]:
    """As in a plugin's process: no module of an official SDK makes resources of references, and none stays."""
    with patch.dict(rpc._RESOURCE_MODULES, clear=True):
        yield
