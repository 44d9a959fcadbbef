"""The seed of what a test run draws by chance: TRAINYARD_SEED, else one of the content of the commit."""

from __future__ import annotations

import os
import random
import subprocess
from pathlib import Path

SEED = "TRAINYARD_SEED"
LIMIT = 1_000_000


def of_checkout() -> int:
    """A number from the name of the commit's tree; a drawn one where there is no commit."""
    words = ["git", "rev-parse", "HEAD^{tree}"]
    answer = subprocess.run(words, cwd=Path(__file__).parent, capture_output=True, text=True)
    if answer.returncode != 0:
        return random.SystemRandom().randrange(LIMIT)
    return int(answer.stdout, 16) % LIMIT


def of_run() -> int:
    """TRAINYARD_SEED, or a new one."""
    given = os.environ.get(SEED)
    return int(given) if given else random.SystemRandom().randrange(LIMIT)
