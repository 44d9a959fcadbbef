"""Arguments of the trainer that the stack builds, judged by the options that it has; part of `infra.settings`.

The trainer refuses the same (`trainer.config`), once machines are bought and pay for it. Values are its own matter.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Final

from infra.reading import hint, shown
from trainyard.k8s.names import TRAINER_OPTIONS

# What argparse takes for a value though it begins with a hyphen.
NEGATIVE: Final = r"-[0-9]+|-[0-9]*\.[0-9]+"
METRICS: Final = "metrics"


def of_the_stack(shared: str | None, *, built: bool) -> tuple[str, ...]:
    """What stands before the arguments of the settings, which win: of one that is there twice argparse takes the last.

    `shared` is the directory of a shared file system that workers write to, None without one. There the trainer writes
    its records, and where a hang is; a pod's own disk goes with the pod, and its log, where stacks go otherwise, is
    more easily read. Another image than the one that is `built` may know no such option.
    """
    return ("--metrics-directory", f"{shared}/{METRICS}") if built and shared is not None else ()


def wrong(words: Sequence[str]) -> Iterator[tuple[int, str]]:
    """The place of each word that the trainer would not take, and what is wrong with it."""
    index = 0
    while index < len(words):
        name, given, _ = words[index].partition("=")
        following = words[index + 1] if index + 1 < len(words) else None
        has_value = not given and following is not None and not _is_option(following)
        if name not in TRAINER_OPTIONS:
            near = hint(name, TRAINER_OPTIONS) or f"; it must be one of {', '.join(TRAINER_OPTIONS)}"
            yield index, f"{shown(name)} is no option of the trainer (trainer/config.py){near}"
        elif not given and not has_value:
            yield index, f"'{name}' has no value; it must be followed by one"
        # The value of a word that is no option is told with it.
        index += 2 if has_value and name.startswith("-") else 1


def _is_option(word: str) -> bool:
    """Whether argparse takes a word for an option, known or not."""
    if word.partition("=")[0] in TRAINER_OPTIONS:
        return True
    return word.startswith("-") and word != "-" and " " not in word and not re.fullmatch(NEGATIVE, word)
