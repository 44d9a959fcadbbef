"""Names that the trainer shares with the launcher and the program.

The trainer's image has no other package, so that these repeat values of `trainyard/k8s/names.py`; a test compares them.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final

# Given by the launcher to every worker: what it counted and promises.
EXPECTED_NODES: Final = "TRAINYARD_EXPECTED_NODES"
PROCESSES_PER_NODE: Final = "TRAINYARD_PROCESSES_PER_NODE"
RUN_ID: Final = "TRAINYARD_RUN_ID"
RESTART: Final = "TRAINYARD_RESTART"

# Given by the program, from the stack's settings.
DEVICE: Final = "TRAINYARD_DEVICE"
MODEL_URI: Final = "TRAINYARD_MODEL_URI"
CHECKPOINT_URI: Final = "TRAINYARD_CHECKPOINT_URI"
DATA: Final = "TRAINYARD_DATA"
METRICS_PORT: Final = "TRAINYARD_METRICS_PORT"
REGION: Final = "AWS_REGION"

# Given by whoever builds an image, or by the program of one that it builds: the git revision that is in it.
REVISION: Final = "TRAINYARD_REVISION"

# Given by the program to the check of a machine: what it must have, as JSON, and the machine's name.
NODE_CHECK: Final = "TRAINYARD_NODE_CHECK"
NODE: Final = "TRAINYARD_NODE"

# How long torchrun waits for its processes after SIGTERM, in seconds.
SHUTDOWN_VARIABLE: Final = "TORCH_ELASTIC_SHUTDOWN_TIMEOUT"

RUN_ID_MAX_LENGTH: Final = 40

# What is written under <model URI>/<run id>/, and then, last, under <model URI>/: who finds it finds a whole model.
MODEL_FILE: Final = "model.pt"
METADATA_FILE: Final = "metadata.json"
LATEST_FILE: Final = "latest.json"


class Exit(IntEnum):
    """How the trainer's process, and so its pod, ended."""

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
    """How the check of a machine ended."""

    FIT = 0
    UNFIT = 1
    CONFIGURATION = 2


class TrainerError(Exception):
    """An end that needs no stack trace: one line that says what is wrong and what would be right, and a code."""

    def __init__(self, code: Exit, message: str) -> None:
        super().__init__(message)
        self.code = code
