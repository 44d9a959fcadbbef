"""The command line of `kubectl torchrun`: `parser`, and checks of the names that a user gives.

https://kubernetes.io/docs/concepts/overview/working-with-objects/names/
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from itertools import takewhile
from typing import Any, Final, NoReturn

from trainyard.kubectl.output import PROGRAM, USAGE, VERSION, PluginError
from trainyard.operator import names as n

_LABEL: Final = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_SUBDOMAIN: Final = re.compile(rf"{_LABEL}(\.{_LABEL})*")
_NAMESPACE: Final = re.compile(_LABEL)
_MAX_SUBDOMAIN, _MAX_LABEL = 253, 63
_SHOWN: Final = 60
# Prefixes as `kubectl get -o name` prints them.
_KINDS: Final = frozenset(
    f"{kind}{group}" for kind in (n.JOB_SINGULAR, n.JOB_PLURAL, n.JOB_SHORT) for group in ("", f".{n.GROUP}")
)
_EXITS: Final = (
    "Exit codes: 0 done; with --follow that of the job; 64 invalid arguments or a rejected spec, 65 workspace, "
    "66 no such job, 69 no answer from the API server or the job's pods, 74 the output can't be written, "
    "75 a followed job was removed, 77 not allowed, 78 no usable kubeconfig, 130 interrupted."
)
# Of spec.launcher (trainyard/operator/api/job.py).
LAUNCHERS: Final = ("torchrun", "none")
_TABLE: Final = ("yaml", "json", "name", "wide")
# Each verb, and the module that runs it.
VERBS: Final = {
    **{"submit": "submit", "logs": "follow", "status": "jobs", "list": "jobs", "queues": "jobs"},
    **{"cancel": "jobs", "suspend": "jobs", "resume": "jobs", "sync": "sync", "cp": "cp"},
}
# The verbs that kubectl's own verbs correspond to.
_KUBECTL_VERBS: Final = {"delete": "cancel", "get": "list", "describe": "status", "create": "submit"}
# Flags of earlier versions and of other tools.
_OTHER_FLAGS: Final = {each: ["--node-rank"] for each in ("--node", "--worker", "--rank")}
# The values of kubectl's own flag --dry-run.
_DRY_RUNS: Final = frozenset({"client", "server", "none"})
# Messages of argparse.
_EXPLICIT: Final = re.compile(r"argument (?P<flag>\S+): ignored explicit argument (?P<value>.*)", re.DOTALL)
_NO_VERB: Final = re.compile(r"argument VERB: invalid choice: '(.*?)' \(choose from", re.DOTALL)
_UNKNOWN: Final = "unrecognized arguments: "
_MISSING: Final = "the following arguments are required: "
_MAX_DIGITS: Final = 9


class Parser(argparse.ArgumentParser):
    """Report errors as one line. An unknown flag is reported before missing ones, because it may be one of them."""

    _unknown_flag = ""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        flags, words = self._option_string_actions, list(args or ())
        ends = VERBS if self._subparsers is not None else ("--",)
        dash = "-" if self._subparsers is not None else "--"
        names = (word.partition("=")[0] for word in takewhile(lambda word: word not in ends, words))
        self._unknown_flag = next((name for name in names if name.startswith(dash) and name not in flags), "")
        if self._is_submit() and (flag := ambiguous_flag(words, flags)):
            self.error(
                f"{flag}: may belong to the command or to submit; quote the command, or put {flag} first"
            )
        known, unknown = super().parse_known_args(args, namespace)
        command = getattr(known, "command", None) or [""]
        if getattr(known, "dry_run", False) and len(command) > 1 and command[0] in _DRY_RUNS:
            self.error(f"--dry-run: takes no value; leave {command[0]!r} out")
        if unknown and self._subparsers is None:
            self.error(f"{_UNKNOWN}{' '.join(unknown)}")
        return known, unknown

    def error(self, message: str) -> NoReturn:
        if message.startswith(_MISSING) and self._unknown_flag:
            message = f"{_UNKNOWN}{self._unknown_flag}"
        if message.startswith(_UNKNOWN):
            flags, name = self._option_string_actions, self._unknown_flag
            near = get_close_matches(name, flags, 1, 0.8) or _OTHER_FLAGS.get(name, [])
            hint = "; quote a command of several words" if self._is_submit() else ""
            hint = f"; did you mean {near[0]}?" if near and near[0] in flags else hint
            message = f"unknown flags or words: {message.removeprefix(_UNKNOWN)}{hint}"
        if explicit := _EXPLICIT.fullmatch(message):
            message = f"{explicit['flag']}: takes no value; leave {explicit['value']} out"
        if verb := _NO_VERB.match(message):
            near = [_KUBECTL_VERBS.get(verb[1], ""), *get_close_matches(verb[1], VERBS, 1)]
            found = next(filter(None, near), "")
            hint = f"did you mean {found}?" if found else f"it must be one of {', '.join(VERBS)}"
            message = f"unknown command {verb[1][:_SHOWN]!r}; {hint}"
        raise PluginError(USAGE, f"{message}; see {self.prog} -h")

    def _is_submit(self) -> bool:
        return self.prog.endswith(" submit")


def ambiguous_flag(words: Sequence[str], flags: Mapping[str, argparse.Action]) -> str:
    """Return the first flag of ours after the words of an unquoted command, which may have the same flag; else "".

    A quoted command is one word. What follows "--" belongs to the command. An unknown flag before the command is
    reported elsewhere: the next word may be its value.
    """
    of_command, index = 0, 0
    while index < len(words) and words[index] != "--":
        word = words[index]
        name, value, _ = word.partition("=")
        action = flags.get(name)
        if action is None and word.startswith("-") and not word.startswith("--"):
            action, value = flags.get(word[:2]), word[2:]
        if action is None and word.startswith("-") and not of_command:
            return ""
        if action is None:
            of_command += not word.startswith("-")
        elif of_command > 1:
            return name
        elif action.nargs != 0 and not value:
            index += 1
        index += 1
    return ""


def parser() -> Parser:
    """Return the parser of all verbs."""
    common = Parser(add_help=False, allow_abbrev=False)
    absent: dict[str, Any] = {"default": argparse.SUPPRESS}
    in_namespace = _named(lambda word: namespace_name(word) if word else None)
    common.add_argument("-n", "--namespace", type=in_namespace, **absent, help="default: that of the context")
    common.add_argument("--context", type=value_or_none, **absent, help="context of the kubeconfig")
    default = "default: $KUBECONFIG, ~/.kube/config"
    common.add_argument("--kubeconfig", type=value_or_none, **absent, help=default)
    about = "Train on a cluster from the current directory."
    result = Parser(prog=PROGRAM, description=about, epilog=_EXITS, parents=[common], allow_abbrev=False)
    result.add_argument("--version", action="version", version=f"{PROGRAM} {VERSION}")
    verbs = result.add_subparsers(dest="verb", required=True, metavar="VERB", parser_class=Parser)

    def verb(name: str, help: str) -> Any:
        made = verbs.add_parser(name, help=help, description=help, parents=[common], allow_abbrev=False)
        made.set_defaults(module=VERBS[name])
        return made

    _add_submit(verb("submit", "Send the current directory and start a job with it"))
    logs = verb("logs", "Print the logs of a job's workers")
    _add_job(logs)
    logs.add_argument("-f", "--follow", action="store_true", help="until the job ends; exit with its code")
    either = logs.add_mutually_exclusive_group()
    _add_node_rank(either)
    either.add_argument("--all", action="store_true", help="all nodes, with the node rank in each line")
    either = logs.add_mutually_exclusive_group()
    either.add_argument("--attempt", type=_whole, help="default: the last one")
    either.add_argument("--previous", action="store_true", help="the attempt before the last one")
    logs.add_argument("--tail", type=_whole, help="only this number of lines from the end")
    status = verb("status", "Show the status of a job")
    _add_job(status)
    _add_output(status, "yaml", "json")
    for each in (verb("list", "List jobs"), verb("queues", "List queues")):
        each.add_argument("-A", "--all-namespaces", action="store_true")
        _add_output(each, *_TABLE)
    for name, help in (
        ("cancel", "Delete jobs; persistent checkpoints stay"),
        ("suspend", "Stop the workers of jobs and keep their volumes"),
        ("resume", "Continue suspended jobs"),
    ):
        change = verb(name, help)
        change.add_argument("names", type=_named(job_name), nargs="+", metavar="JOB")
        _add_output(change, "name")
    sync = verb("sync", "Send the current directory to a running job")
    _add_job(sync)
    _add_workspace(sync, sync)
    sync.add_argument(
        "--restart", action="store_true", help="restart the workers with the new workspace, this time"
    )
    copy = verb("cp", "Copy a file or directory from or to a worker: JOB:PATH PATH, or PATH JOB:PATH")
    copy.add_argument("source", metavar="FROM")
    copy.add_argument("target", metavar="TO")
    _add_node_rank(copy, default=0)
    return result


def value_or_none(word: str) -> str | None:
    """Return the value of a flag of kubectl, None for an empty one, as in `--context "$CONTEXT"`."""
    return word or None


def _add_submit(submit: Parser) -> None:
    add = submit.add_argument
    add("--queue", type=_named(object_name), required=True, help="the TorchrunQueue")
    add("--gpus", type=_whole, required=True, help="GPUs of all nodes together; 0: on CPUs")
    add("--nodes", type=_positive, help="default: the fewest that have enough GPUs")
    add("--min", type=_positive, metavar="NODES", help="minimum nodes of an elastic job")
    add("--max", type=_positive, metavar="NODES", help="maximum nodes of an elastic job")
    add(
        "--env", action="append", default=[], metavar="NAME=VALUE", help="NAME alone: the value in this shell"
    )
    from_where = "a variable from a Secret (default: HF_TOKEN is the key HF_TOKEN of the Secret hf-token)"
    add("--secret", action="append", default=[], metavar="NAME[=SECRET/KEY]", help=from_where)
    starts = "torchrun starts the command once for each GPU; none: once on each node (default: as detected)"
    add("--launcher", choices=LAUNCHERS, help=starts)
    add("--name", help="default: from the name of the directory")
    add("--follow", action="store_true", help="print the log until the job ends; exit with its code")
    add("--dry-run", action="store_true", help="print the TorchrunJob and send nothing")
    either = submit.add_mutually_exclusive_group()
    _add_workspace(submit, either)
    either.add_argument("--no-workspace", action="store_true", help="use only the files of the image")
    _add_output(submit, "yaml", "json", "name")
    add("command", nargs="+", metavar="COMMAND", help='in quotes: "python train.py --epochs 10"')


class _StoreGiven(argparse.Action):
    """Store the value, and record that it is not the default (`workspace_is_given`)."""

    def __call__(self, _: Any, namespace: Any, values: Any, _option: Any = None) -> None:
        setattr(namespace, self.dest, values)
        setattr(namespace, f"{self.dest}_is_given", True)


def _add_workspace(verb: Parser, either: Any) -> None:
    where: dict[str, Any] = {"metavar": "DIRECTORY", "help": "default: the current one"}
    either.add_argument("--workspace", action=_StoreGiven, default=".", **where)
    limit = "limit for the size of all files (default 512)"
    verb.add_argument("--max-size", type=_positive, default=512, metavar="MIB", help=limit)


def _add_job(verb: Parser) -> None:
    verb.add_argument("name", type=_named(job_name), metavar="JOB")


def _add_node_rank(verb: Any, default: int | None = None) -> None:
    about = "the worker's node, from 0 (default 0); not the rank of a process"
    verb.add_argument("--node-rank", type=_whole, default=default, metavar="NODE", help=about)


def _add_output(verb: Parser, *formats: str) -> None:
    verb.add_argument("-o", "--output", choices=formats)


def _named(check: Callable[[str], str | None]) -> Callable[[str], str | None]:
    def checked(word: str) -> str | None:
        try:
            return check(word)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return checked


def _whole(text: str) -> int:
    if not text.isascii() or not text.isdigit():
        raise argparse.ArgumentTypeError(f"{text[:_SHOWN]!r} must be a whole number, 0 or more")
    if len(text) > _MAX_DIGITS:
        raise argparse.ArgumentTypeError(f"{text[:_SHOWN]} must have at most {_MAX_DIGITS} digits")
    return int(text)


def _positive(text: str) -> int:
    if (value := _whole(text)) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} must be at least 1")
    return value


def object_name(word: str) -> str:
    """Return a valid name of a job or queue (subdomain of RFC 1123). Raise ValueError."""
    if len(word) > _MAX_SUBDOMAIN or not _SUBDOMAIN.fullmatch(word):
        rule = f"a-z, 0-9, - and ., with a letter or digit at both ends, at most {_MAX_SUBDOMAIN} characters"
        raise ValueError(f"{_shorten(word)} must be a name: {rule}")
    return word


def job_name(word: str) -> str:
    """Return a valid name of a job, without a prefix such as `torchrunjob/`. Raise ValueError."""
    kind, slash, name = word.partition("/")
    return object_name(name if slash and kind in _KINDS else word)


def namespace_name(word: str) -> str:
    """Return a valid name of a namespace (label of RFC 1123). Raise ValueError."""
    if len(word) > _MAX_LABEL or not _NAMESPACE.fullmatch(word):
        rule = f"a-z, 0-9 and -, with a letter or digit at both ends, at most {_MAX_LABEL} characters"
        raise ValueError(f"{_shorten(word)} must be a namespace: {rule}")
    return word


def utf8(word: str) -> str:
    """Return the word if it is UTF-8: arguments and file names may have any bytes. Raise ValueError."""
    try:
        word.encode()
    except UnicodeEncodeError:
        raise ValueError(f"{_shorten(word)} must be UTF-8") from None
    return word


def _shorten(word: str) -> str:
    return repr(word) if len(word) <= _SHOWN else f"{word[:_SHOWN]!r}..."
