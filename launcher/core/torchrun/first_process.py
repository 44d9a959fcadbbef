"""The first process of a worker's container, which passes SIGTERM on at any time, and tells who ended by it. Pure.

The kernel keeps SIGTERM from a first process that has no handler for it (pid_namespaces(7)): torchrun has none while it
imports torch, for seconds, and a shell never passes it on. Suspended or drained, such a worker would train on until
SIGKILL, and save nothing. https://pytorch.org/docs/stable/elastic/run.html says what torchrun does with the signal.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

# `setsid` gives the command a group of its own, so that what a shell has started hears the signal, too, and may end in
# its time when the shell is gone already; torchrun's own processes have sessions of their own, and are torchrun's to
# tell. A `wait` that a signal interrupts is asked again; it answers 127 for a child of which it has told before.
# Kubernetes counts a pod that ends with 0 as done, also one that was told to go: a Job may be complete by it, and an
# elastic one removes the workers that still train. Who ends well after the signal has saved, and has not trained.
_PASS_ON: Final = r"""
tell() { kill -TERM "-$child" 2>/dev/null || kill -TERM "$child" 2>/dev/null; }
child= going= again= told= after= code=127
trap 'going=1 again=1; [ -z "$child" ] || tell' TERM INT
if command -v setsid >/dev/null 2>&1; then set -- setsid "$@"; fi
"$@" &
child=$!
[ -z "$going" ] || tell
while again=; do
  told=$going
  wait "$child" 2>/dev/null; now=$?
  [ "$now" = 127 ] || { code=$now; after=$told; }
  [ "$again" ] || break
done
while [ "$going" ] && kill -0 "-$child" 2>/dev/null; do sleep 1; done
[ "$code" != 0 ] || [ -z "$after" ] || code=143
exit "$code"
""".strip()


def under_it(words: Iterable[str]) -> list[str]:
    """The words of a container's command that runs these, and ends with their exit code.

    It is 143, a shell's word for SIGTERM, where that would be 0 and they had been told to go.
    """
    return ["sh", "-c", _PASS_ON.replace("$", "$$"), "sh", *words]
