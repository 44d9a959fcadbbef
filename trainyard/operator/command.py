"""Build the command of a worker's container: torchrun around the user's command. Pure.

https://docs.pytorch.org/docs/stable/elastic/run.html; torch 2.x, torch/distributed/run.py: torchrun also reads each
flag from the environment, as PET_<FLAG>.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from trainyard.operator import names as n
from trainyard.operator.api.job import C10D, ETCD_V2, NO_LAUNCHER, STATIC, TORCHRUN
from trainyard.operator.launcher_detection import Detection, detect_launcher, takes_args, without_line_end
from trainyard.operator.resources import Size

# New nodes start minutes apart, and on a full cluster days apart. c10d waits 60 s for the first worker and 600 s for
# the others, and a waiting job would use up its restarts. A long timeout is safe, because the controller ends an
# attempt with a failed worker. In milliseconds it must be below 2^31.
RENDEZVOUS_SECONDS: Final = 7 * 86400
# The settings of a backend for it. A backend ignores unknown settings, and then uses the default timeout.
_TIMEOUTS: Final = {C10D: ("join_timeout", "read_timeout"), ETCD_V2: ("join_timeout",)}
# The setting for whether a worker serves the store. By default, torch compares names and addresses. That is wrong until
# the DNS has the first worker's name, and no worker would serve it (_matches_machine_hostname in
# torch/distributed/elastic/rendezvous/utils.py).
_HOST: Final = (
    f'[ "${n.ENV_NODE_RANK}" = 0 ] && host=1 || host=0; '
    'export PET_RDZV_CONF="is_host=$host,$PET_RDZV_CONF"; exec "$@"'
)
# Builtins and keywords of a shell, or an assignment.
_SHELL_WORD: Final = re.compile(
    r"[.!:{]|break|case|cd|command|continue|eval|exec|exit|export|for|if|read|readonly|return|set|shift|source|trap|ulimit"
    r"|umask|unset|until|wait|while|[A-Za-z_][A-Za-z0-9_]*=.*",
    re.DOTALL,
)
# A command without special characters of a shell. shlex keeps a line continuation as a word, and in quotes the
# backslash before a special character.
_PLAIN: Final = re.compile(
    r"""(?:[^\n|&;<>()$`*?\[\\'"~#]|(?<=\S)[~#]|\\[^\n]|'[^']*'|"(?:[^"$`\\]|\\[^\n$`])*")*"""
)


@dataclass(frozen=True, kw_only=True)
class Rendezvous:
    """How the processes of an attempt find each other."""

    backend: str
    endpoint: str
    id: str
    size: Size
    is_external: bool  # whether the user set the endpoint

    @property
    def flags(self) -> tuple[tuple[str, str], ...]:
        """Return torchrun's flags with their values."""
        static = (("node-rank", f"$({n.ENV_NODE_RANK})"),) if self.backend == STATIC else ()
        return (
            ("nnodes", self.size.nnodes),
            ("nproc-per-node", str(self.size.processes)),
            ("rdzv-backend", self.backend),
            ("rdzv-endpoint", self.endpoint),
            ("rdzv-id", self.id),
            *static,
            # The controller restarts the gang as a whole.
            ("max-restarts", "0"),
            ("tee", "3"),
        )


@dataclass(frozen=True, kw_only=True)
class Command:
    """The command of a container, and the variables that it needs."""

    words: tuple[str, ...]
    environment: dict[str, str]


def check_command(command: str, args: tuple[str, ...] = (), launcher: str = "") -> str:
    """Return the error in the command of a job with this `launcher`; "" for none."""
    if why := unclosed(command):
        return (
            f"spec.command is {command[:80]!r} ({why}); it must be words of a POSIX shell with closed quotes"
        )
    if args and needs_shell(command) and not takes_args(command):
        return (
            f"spec.args are given, and the end of spec.command, {command.rstrip()[-40:]!r}, takes none; "
            "write them into the command"
        )
    if launcher == TORCHRUN and (why := nested_launcher(detect_launcher(command, args))):
        return f"spec.launcher: is {TORCHRUN}, {why}"
    return ""


def nested_launcher(found: Detection) -> str:
    """Return why torchrun can't start this command, "" if it can."""
    return found.own_launcher and (
        f"but {found.place or 'the command'} starts {found.own_launcher}, which would run once for each GPU. "
        f"It must be {NO_LAUNCHER}, or be omitted"
    )


def unclosed(command: str) -> str:
    """Return why a command can't be split into words, "" if it can."""
    try:
        shlex.split(command)
    except ValueError as error:
        # Only a shell can tell that a quote in a comment or here-document is not open.
        return "" if re.search(r"(^|\s)#|<<", command) else str(error)
    return ""


def build_command(
    command: str,
    args: tuple[str, ...],
    rendezvous: Rendezvous,
    launcher: str = "",
    variables: Mapping[str, str] | None = None,
) -> Command:
    """Return the container's command. `check_command` must have found no error in the user's command.

    Without `launcher`, the one that the command with these environment variables needs is detected.
    """
    words: tuple[str, ...] = ("sh", "-c", command)
    if not needs_shell(command):
        words = (*shlex.split(command), *args)
    elif args:
        words = ("sh", "-c", f'{without_line_end(command)} "$@"', "sh", *args)
    words = tuple(map(literally, words))
    timeouts = _TIMEOUTS.get(rendezvous.backend, ("timeout",))
    environment = {"PET_RDZV_CONF": ",".join(f"{name}={RENDEZVOUS_SECONDS}" for name in timeouts)}
    if (launcher or detect_launcher(command, args, variables=variables).launcher) == NO_LAUNCHER:
        environment |= {f"PET_{name.upper().replace('-', '_')}": value for name, value in rendezvous.flags}
    else:
        flags = [f"--{name}={value}" for name, value in rendezvous.flags]
        # torchrun expands $local_rank and $$ in each word after the program
        # (torch/distributed/elastic/utils/api.py, macros.substitute).
        words = ("torchrun", *flags, "--no-python", words[0], *map(literally, words[1:]))
    # One of several workers serves the store.
    if rendezvous.backend == C10D and not rendezvous.is_external and rendezvous.size.nodes > 1:
        words = ("sh", "-c", _HOST, "sh", *words)
    return Command(words=words, environment=environment)


def literally(word: str) -> str:
    """Return a word that the kubelet does not expand.

    It replaces $(NAME) by variables, and $$ is a $ (k8s.io/kubernetes, third_party/forked/golang/expansion).
    """
    return word.replace("$", "$$")


def needs_shell(command: str) -> bool:
    """Return whether a command needs a shell: it has operators, expansions, or a builtin or keyword first."""
    try:
        first = shlex.split(command)[0]
    except ValueError:
        return True
    return _SHELL_WORD.fullmatch(first) is not None or _PLAIN.fullmatch(command.strip()) is None
