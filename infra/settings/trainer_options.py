"""Check the arguments of the trainer that the stack builds.

The trainer checks the same (`trainer.config`), but only after nodes exist. Only the trainer checks the values.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Final

from infra.settings.fields import hint, shown
from trainyard.k8s.names import TRAINER_OPTIONS

# argparse reads these as values although they begin with a hyphen.
NEGATIVE: Final = r"-[0-9]+|-[0-9]*\.[0-9]+"
METRICS: Final = "metrics"


def of_the_stack(shared: str | None, *, built: bool) -> tuple[str, ...]:
    """Return the stack's own arguments. Those of the settings follow and override them, because argparse uses the last.

    Args:
        shared: The directory of a shared file system that workers can write, None without one. The trainer writes its
            metrics there, because the disk of a pod is deleted with the pod.
        built: Whether the stack builds the image. Other images may have no such option.
    """
    return ("--metrics-directory", f"{shared}/{METRICS}") if built and shared is not None else ()


def wrong(words: Sequence[str]) -> Iterator[tuple[int, str]]:
    """Return the index of each word that the trainer refuses, and the error."""
    index = 0
    while index < len(words):
        name, given, value = words[index].partition("=")
        following = words[index + 1] if index + 1 < len(words) else None
        has_value = not given and following is not None and not _is_option(following)
        if name not in TRAINER_OPTIONS:
            near = hint(name, TRAINER_OPTIONS) or f"; it must be one of {', '.join(TRAINER_OPTIONS)}"
            yield index, f"{shown(name)} is no option of the trainer (trainer/config.py){near}"
        elif value == "--" or not (given or has_value):  # argparse drops `--` (Python 3.11, `_get_values`)
            yield index, f"'{name}' has no value; it must be followed by one"
        # The value of a word that is no option is reported with it.
        index += 2 if has_value and name.startswith("-") else 1


def _is_option(word: str) -> bool:
    """Return whether argparse reads a word as an option, known or not."""
    if word.partition("=")[0] in TRAINER_OPTIONS:
        return True
    return word.startswith("-") and word != "-" and " " not in word and not re.fullmatch(NEGATIVE, word)
