"""Names that the trainer shares with the launcher and the Pulumi program.

The image of the trainer has no other package, so this repeats values of `trainyard/k8s/names.py`. A test compares them.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final

# The launcher sets these in each worker: what it counted.
EXPECTED_NODES: Final = "TRAINYARD_EXPECTED_NODES"
PROCESSES_PER_NODE: Final = "TRAINYARD_PROCESSES_PER_NODE"
RUN_ID: Final = "TRAINYARD_RUN_ID"
RESTART: Final = "TRAINYARD_RESTART"

# The Pulumi program sets these from the settings of the stack.
DEVICE: Final = "TRAINYARD_DEVICE"
MODEL_URI: Final = "TRAINYARD_MODEL_URI"
CHECKPOINT_URI: Final = "TRAINYARD_CHECKPOINT_URI"
DATA: Final = "TRAINYARD_DATA"
METRICS_PORT: Final = "TRAINYARD_METRICS_PORT"
REGION: Final = "AWS_REGION"

# The build of an image sets this: the git revision in the image.
REVISION: Final = "TRAINYARD_REVISION"

# The Pulumi program sets these for checks: what a node must have, as JSON, and the name of the node.
NODE_CHECK: Final = "TRAINYARD_NODE_CHECK"
FABRIC_CHECK: Final = "TRAINYARD_FABRIC_CHECK"
NODE: Final = "TRAINYARD_NODE"

# How long torchrun waits for its processes after SIGTERM, in seconds.
SHUTDOWN_VARIABLE: Final = "TORCH_ELASTIC_SHUTDOWN_TIMEOUT"

RUN_ID_MAX_LENGTH: Final = 40

# The first two are written under <model URI>/<run id>/. The last one is written after them, under <model URI>/.
MODEL_FILE: Final = "model.pt"
METADATA_FILE: Final = "metadata.json"
LATEST_FILE: Final = "latest.json"


class Exit(IntEnum):
    """Exit codes of the trainer's process and its pod."""

    SUCCEEDED = 0
    FAILED = 1
    CONFIGURATION = 2
    WORLD_SIZE = 20
    NO_CUDA = 21
    DATA = 22
    SAVE = 23
    STOPPED = 24
    HUNG = 25


class CheckExit(IntEnum):
    """Exit codes of the node check and the fabric check."""

    FIT = 0
    UNFIT = 1
    CONFIGURATION = 2


class TrainerError(Exception):
    """An error with an exit code and a one-line message, which needs no stack trace."""

    def __init__(self, code: Exit, message: str) -> None:
        super().__init__(message)
        self.code = code


class SharedError(TrainerError):
    """An error that all processes raise. Rank 0 prints it, and it is not broadcast."""


class AgreedError(TrainerError):
    """An error of this process, which the others know (`trainer.distributed.together`). This process prints it."""


class LocalError(TrainerError):
    """An error of this process, which the others do not know. This process prints and broadcasts it."""
