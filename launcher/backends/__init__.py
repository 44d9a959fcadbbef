"""Backends of a run: PyTorchJob and TrainJob.

The entry point is `of()`. The rest of the launcher asks a `Backend` (backend.py) for everything that depends on the
kind of the training job.
"""

from __future__ import annotations

from typing import Final

from launcher.backends import pytorchjob, trainjob
from launcher.backends.backend import Backend
from launcher.request import Request
from trainyard.k8s import names

BACKENDS: Final = {
    names.BACKEND_PYTORCHJOB: pytorchjob.BACKEND,
    names.BACKEND_TRAINJOB: trainjob.BACKEND,
}


def of(request: Request) -> Backend:
    """Return the backend of this run."""
    return BACKENDS[request.backend]
