"""What runs the workers of a run: a PyTorchJob of Kubeflow's training operator.

The entry point is `of()`. The rest of the launcher asks a `Backend` (backend.py) for everything that depends on the
kind of the training job.
"""

from __future__ import annotations

from launcher.backends import pytorchjob
from launcher.backends.backend import Backend
from launcher.request import Request


def of(request: Request) -> Backend:
    """Return the backend of this run."""
    del request
    return pytorchjob.BACKEND
