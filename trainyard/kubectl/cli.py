"""The command line of `kubectl torchrun`: `parser`, and checks of the names that a user gives."""

from __future__ import annotations

import argparse
import re
from difflib import get_close_matches
from itertools import takewhile
from typing import Any, Final, NoReturn

from trainyard.kubectl.output import PROGRAM, USAGE, VERSION, PluginError
from trainyard.operator import names as n

_SUBDOMAIN: Final = re.compile(n.RFC1123_SUBDOMAIN)
_NAMESPACE: Final = re.compile(n.RFC1123_LABEL)
_MAX_SUBDOMAIN, _MAX_LABEL = 253, 63
_MAX_DIGITS: Final = 9
_SHOWN: Final = 60
# Prefixes as `kubectl get -o name` prints them.
JOB_KINDS: Final = frozenset(
    f"{kind}{group}" for kind in (n.JOB_SINGULAR, n.JOB_PLURAL, n.JOB_SHORT) for group in ("", f".{n.GROUP}")
)
_EXITS: Final = (
    "Exit codes: 0 done; with --follow that of the job; 64 invalid arguments or a rejected spec, 65 workspace, "
    "66 no such job, 69 no answer from the API server or the job's pods, 74 the output can't be written, "
    "75 a followed job was deleted, 77 not allowed, 78 no usable kubeconfig, 130 interrupted."
)
_COLUMNS: Final = (
    "STEP and LOSS are empty until rank 0 serves the gauges trainyard_trainer_step and trainyard_trainer_loss on pods "
    "with the annotation prometheus.io/scrape (docs/kubectl-torchrun.md); Trainyard's trainer does."
)
# Each verb, and the module that runs it.
VERBS: Final = {
    **{"submit": "submit", "logs": "logs", "status": "jobs", "list": "jobs", "queues": "jobs"},
    **{"cancel": "jobs", "suspend": "jobs", "resume": "jobs", "sync": "sync", "cp": "cp"},
}
# Of kubectl's own verbs.
_OTHER_VERBS: Final = {"delete": "cancel", "get": "list", "describe": "status", "create": "submit"}
# Flags of earlier versions and of other tools.
_OTHER_FLAGS: Final = {flag: ["--node-rank"] for flag in ("--node", "--worker", "--rank")}
# The values of kubectl's own flag --dry-run.
_DRY_RUNS: Final = ("client", "server", "none")
# Messages of argparse.
_EXPLICIT: Final = re.compile(r"argument (?P<flag>\S+): ignored explicit argument (?P<value>.*)", re.DOTALL)
_NO_VERB: Final = re.compile(r"argument VERB: invalid choice: '(.*?)' \(choose from", re.DOTALL)
_UNKNOWN: Final = "unrecognized arguments: "
_MISSING: Final = "the following arguments are required: "


class InvalidWord(argparse.ArgumentTypeError, ValueError):
    """A word of the user is not valid. argparse puts the name of the flag before the message."""


class Parser(argparse.ArgumentParser):
    """Report errors as one line. An unknown flag is reported before missing ones, because it may be one of them."""

    _unknown_flag = ""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        flags, words = self._option_string_actions, list(args or ())
        ends = VERBS if self._subparsers is not None else ("--",)
        names = (word.partition("=")[0] for word in takewhile(lambda word: word not in ends, words))
        self._unknown_flag = next((name for name in names if name.startswith("--") and name not in flags), "")
        known, unknown = super().parse_known_args(args, namespace)
        if unknown and self._subparsers is None:
            self.error(f"{_UNKNOWN}{' '.join(unknown)}")
        if self._is_submit():
            self._check_command(known, words)
        return known, unknown

    def _check_command(self, known: argparse.Namespace, words: list[str]) -> None:
        """Refuse a flag of ours after the words of an unquoted command, which may have the same flag."""
        command = known.command
        if known.dry_run and len(command) > 1 and command[0] in _DRY_RUNS:
            self.error(f"--dry-run: takes no value; leave {command[0]!r} out")
        words, command = ([word for word in line if word != "--"] for line in (words, command))
        size = len(command)
        if size > 1 and words[-size:] != command:
            end = next(at + size for at in range(len(words)) if words[at : at + size] == command)
            flag = words[end].partition("=")[0]
            self.error(
                f"{flag}: may belong to the command or to submit; quote the command, or put {flag} first"
            )

    def error(self, message: str) -> NoReturn:
        if message.startswith(_MISSING) and self._unknown_flag:
            message = f"{_UNKNOWN}{self._unknown_flag}"
        if message.startswith(_UNKNOWN):
            flags, name = self._option_string_actions, self._unknown_flag
            near = get_close_matches(name, flags, 1, 0.8) or _OTHER_FLAGS.get(name, [])
            hint = "; quote a command of several words" if self._is_submit() else ""
            hint = f"; did you mean {near[0]}?" if near and near[0] in flags else hint
            message = f"unknown flags or words: {message.removeprefix(_UNKNOWN)}{hint}"
        elif explicit := _EXPLICIT.fullmatch(message):
            message = f"{explicit['flag']}: takes no value; leave {explicit['value']} out"
        elif verb := _NO_VERB.match(message):
            near = [_OTHER_VERBS.get(verb[1], ""), *get_close_matches(verb[1], VERBS, 1)]
            found = next(filter(None, near), "")
            hint = f"did you mean {found}?" if found else f"it must be one of {', '.join(VERBS)}"
            message = f"unknown command {verb[1][:_SHOWN]!r}; {hint}"
        raise PluginError(USAGE, f"{message}; see {self.prog} -h")

    def _is_submit(self) -> bool:
        return self.prog.endswith(" submit")


def parser() -> Parser:
    common = Parser(add_help=False, allow_abbrev=False, argument_default=argparse.SUPPRESS)
    common.add_argument("-n", "--namespace", type=_namespace, help="default: that of the context")
    common.add_argument("--context", type=value_or_none, help="context of the kubeconfig")
    common.add_argument("--kubeconfig", type=value_or_none, help="default: $KUBECONFIG, ~/.kube/config")
    about = "Train on a cluster from the current directory."
    result = Parser(prog=PROGRAM, description=about, epilog=_EXITS, parents=[common], allow_abbrev=False)
    result.add_argument("--version", action="version", version=f"{PROGRAM} {VERSION}")
    verbs = result.add_subparsers(dest="verb", required=True, metavar="VERB", parser_class=Parser)

    def verb(name: str, help: str, details: str = "") -> Any:
        about = f"{help}. {details}" if details else help
        made = verbs.add_parser(name, help=help, description=about, parents=[common], allow_abbrev=False)
        made.set_defaults(module=VERBS[name])
        return made

    def verb_of_job(name: str, help: str) -> Any:
        made = verb(name, help)
        made.add_argument("name", type=job_name, metavar="JOB")
        return made

    _add_submit(verb("submit", "Send the current directory and start a job with it"))
    logs = verb_of_job("logs", "Print the logs of a job's workers")
    logs.add_argument("-f", "--follow", action="store_true", help="until the job ends; exit with its code")
    either = logs.add_mutually_exclusive_group()
    _add_node_rank(either)
    either.add_argument("--all", action="store_true", help="all nodes, with the node rank in each line")
    either = logs.add_mutually_exclusive_group()
    either.add_argument("--attempt", type=_whole, help="default: the last one")
    either.add_argument("--previous", action="store_true", help="the attempt before the last one")
    logs.add_argument("--tail", type=_whole, help="only this number of lines from the end")
    _add_output(verb_of_job("status", "Show the status of a job"), "yaml", "json")
    for listing in (verb("list", "List jobs", _COLUMNS), verb("queues", "List queues")):
        listing.add_argument("-A", "--all-namespaces", action="store_true")
        _add_output(listing, "yaml", "json", "name", "wide")
    for name, help in (
        ("cancel", "Delete jobs; persistent checkpoints stay"),
        ("suspend", "Stop the workers of jobs and keep their volumes"),
        ("resume", "Continue suspended jobs"),
    ):
        change = verb(name, help)
        change.add_argument("names", type=job_name, nargs="+", metavar="JOB")
        _add_output(change, "name")
    sync = verb_of_job("sync", "Send the current directory to a running job")
    _add_workspace(sync, sync)
    restart = "restart the workers with the new workspace, this time"
    sync.add_argument("--restart", action="store_true", help=restart)
    copy = verb("cp", "Copy a file or directory from or to a worker: JOB:PATH PATH, or PATH JOB:PATH")
    copy.add_argument("source", metavar="FROM")
    copy.add_argument("target", metavar="TO")
    _add_node_rank(copy, default=0)
    return result


def _add_submit(submit: Parser) -> None:
    add = submit.add_argument
    add("--queue", type=object_name, required=True, help="the TorchrunQueue")
    add("--gpus", type=_whole, required=True, help="GPUs of all nodes together; 0: on CPUs")
    add("--nodes", type=_positive, help="default: the fewest that have enough GPUs")
    add("--min", type=_positive, metavar="NODES", help="minimum nodes of an elastic job")
    add("--max", type=_positive, metavar="NODES", help="maximum nodes of an elastic job")
    repeated: Any = {"action": "append", "default": []}
    add("--env", metavar="NAME=VALUE", help="NAME alone: the value in this shell", **repeated)
    from_where = "a variable from a Secret (default: HF_TOKEN is the key HF_TOKEN of the Secret hf-token)"
    add("--secret", metavar="NAME[=SECRET/KEY]", help=from_where, **repeated)
    starts = "torchrun starts the command once for each GPU; none: once on each node (default: as detected)"
    add("--launcher", choices=("torchrun", "none"), help=starts)
    add("--name", help="default: from the name of the directory")
    add("--follow", action="store_true", help="print the log until the job ends; exit with its code")
    add("--dry-run", action="store_true", help="print the TorchrunJob and send nothing")
    either = submit.add_mutually_exclusive_group()
    _add_workspace(submit, either)
    either.add_argument("--no-workspace", action="store_true", help="use only the files of the image")
    _add_output(submit, "yaml", "json", "name")
    add("command", nargs="+", metavar="COMMAND", help='in quotes: "python train.py --epochs 10"')


def _add_workspace(verb: Parser, either: Any) -> None:
    either.add_argument("--workspace", metavar="DIRECTORY", help="default: the current one")
    limit = "limit for the size of all files (default 512)"
    verb.add_argument("--max-size", type=_positive, default=512, metavar="MIB", help=limit)


def _add_node_rank(verb: Any, default: int | None = None) -> None:
    about = "the worker's node, from 0 (default 0); not the rank of a process"
    verb.add_argument("--node-rank", type=_whole, default=default, metavar="NODE", help=about)


def _add_output(verb: Parser, *formats: str) -> None:
    verb.add_argument("-o", "--output", choices=formats)


def value_or_none(word: str) -> str | None:
    """Return the value of a flag of kubectl, None for an empty one, as in `--context "$CONTEXT"`."""
    return word or None


def _namespace(word: str) -> str | None:
    return namespace_name(word) if word else None


def _whole(text: str) -> int:
    if not text.isascii() or not text.isdigit():
        raise InvalidWord(f"{text[:_SHOWN]!r} must be a whole number, 0 or more")
    if len(text) > _MAX_DIGITS:
        raise InvalidWord(f"{text[:_SHOWN]} must have at most {_MAX_DIGITS} digits")
    return int(text)


def _positive(text: str) -> int:
    if (value := _whole(text)) < 1:
        raise InvalidWord(f"{text!r} must be at least 1")
    return value


def object_name(word: str) -> str:
    """Return a valid name of a job or queue (subdomain of RFC 1123). Raise ValueError."""
    if len(word) > _MAX_SUBDOMAIN or not _SUBDOMAIN.fullmatch(word):
        rule = f"a-z, 0-9, - and ., with a letter or digit at both ends, at most {_MAX_SUBDOMAIN} characters"
        raise InvalidWord(f"{_shorten(word)} must be a name: {rule}")
    return word


def job_name(word: str) -> str:
    """Return a valid name of a job, without a prefix such as `torchrunjob/`. Raise ValueError."""
    kind, slash, name = word.partition("/")
    return object_name(name if slash and kind in JOB_KINDS else word)


def namespace_name(word: str) -> str:
    """Return a valid name of a namespace (label of RFC 1123). Raise ValueError."""
    if len(word) > _MAX_LABEL or not _NAMESPACE.fullmatch(word):
        rule = f"a-z, 0-9 and -, with a letter or digit at both ends, at most {_MAX_LABEL} characters"
        raise InvalidWord(f"{_shorten(word)} must be a namespace: {rule}")
    return word


def utf8(word: str) -> str:
    """Return the word if it is UTF-8: arguments and file names may have any bytes. Raise ValueError."""
    try:
        word.encode()
    except UnicodeEncodeError:
        raise InvalidWord(f"{_shorten(word)} must be UTF-8") from None
    return word


def _shorten(word: str) -> str:
    return repr(word) if len(word) <= _SHOWN else f"{word[:_SHOWN]!r}..."
