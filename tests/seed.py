"""The seed of what a test run draws by chance: TRAINYARD_SEED, else one of the commit's code."""

from __future__ import annotations

import os
import random
import subprocess
from pathlib import Path

SEED = "TRAINYARD_SEED"
LIMIT = 1_000_000
# A word changed in a document draws nothing else.
CODE = ("components", "infra", "launcher", "local", "tests", "trainer", "trainyard")


def of_checkout() -> int:
    """A number from the names that git gives the commit's folders of code; a drawn one where there is no commit."""
    words = ["git", "rev-parse", *(f"HEAD:{folder}" for folder in CODE)]
    answer = subprocess.run(words, cwd=Path(__file__).parent, capture_output=True, text=True)
    if answer.returncode != 0:
        return random.SystemRandom().randrange(LIMIT)
    return sum(int(name, 16) for name in answer.stdout.split()) % LIMIT


def of_run() -> int:
    """TRAINYARD_SEED, or a new one."""
    given = os.environ.get(SEED)
    return int(given) if given else random.SystemRandom().randrange(LIMIT)
