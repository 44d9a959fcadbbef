"""The words of `kubectl torchrun`, as argparse takes them."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from itertools import takewhile
from typing import Any, Final, NoReturn

from trainyard.kubectl.errors import PROGRAM, USAGE, VERSION, PluginError
from trainyard.kubectl.names import job_name, namespace_name, object_name

_EXITS: Final = (
    "Exit codes: 0 done; with --follow that of the job; 64 wrong words or a spec that is refused, 65 workspace, "
    "66 no such job, 69 no answer from the API server or the job's pods, 74 the answer can't be written, "
    "75 a followed job was removed, 77 not allowed, 78 no usable kubeconfig, 130 interrupted."
)
# Of spec.launcher (trainyard/operator/api/job.py).
LAUNCHERS: Final = ("torchrun", "none")
FORMATS: Final = ("yaml", "json", "name", "wide")
VERBS: Final = ("submit", "logs", "status", "list", "queues", "cancel", "suspend", "resume", "sync", "cp")
# What kubectl's own verbs are called here.
_KUBECTLS: Final = {"delete": ("cancel",), "get": ("list",), "describe": ("status",), "create": ("submit",)}
# What argparse says of a value for a flag that takes none, and of a verb that it does not know.
_EXPLICIT: Final = re.compile(r"argument (?P<flag>\S+): ignored explicit argument (?P<value>.*)", re.DOTALL)
_NO_VERB: Final = re.compile(r"argument VERB: invalid choice: '(.*?)' \(choose from", re.DOTALL)
# What kubectl's own flag of this name takes.
_DRY_RUNS: Final = frozenset({"client", "server", "none"})
_UNKNOWN: Final = "unrecognized arguments: "
# What flags that there are not are called here.
_MEANT: Final = {each: ("--node-rank",) for each in ("--node", "--worker", "--rank")}
_MOST_DIGITS: Final = 9
_SHOWN: Final = 60
_SUBMIT: Final = " submit"
_MISSING: Final = "the following arguments are required: "


class Parser(argparse.ArgumentParser):
    """Says what is wrong in one line. A flag that is not known comes before those that are missing: it may be one."""

    _strange = ""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        if self._subparsers is not None:
            names = [word.partition("=")[0] for word in takewhile(lambda word: word not in VERBS, args or ())]
            self._strange = next(
                (each for each in names if each.startswith("-") and each not in self._option_string_actions),
                "",
            )
        else:
            names = [word.partition("=")[0] for word in takewhile(lambda word: word != "--", args or ())]
            strange = (
                each for each in names if each.startswith("--") and each not in self._option_string_actions
            )
            self._strange = next(strange, "")
            if self.prog.endswith(_SUBMIT):
                flag = doubtful_flag(args or (), self._option_string_actions)
                if flag:
                    self.error(
                        f"{flag}: may be the command's or ours here; put the command in quotes, or {flag} first"
                    )
        known, unknown = super().parse_known_args(args, namespace)
        command = getattr(known, "command", None) or [""]
        if getattr(known, "dry_run", False) and len(command) > 1 and command[0] in _DRY_RUNS:
            self.error(f"--dry-run: takes no value; leave {command[0]!r} out")
        if unknown and self._subparsers is None:
            self.error(f"{_UNKNOWN}{' '.join(unknown)}")
        return known, unknown

    def error(self, message: str) -> NoReturn:
        if message.startswith(_MISSING) and self._strange:
            message = f"{_UNKNOWN}{self._strange}"
        if message.startswith(_UNKNOWN):
            message = f"unknown flags or words: {message.removeprefix(_UNKNOWN)}"
            near = get_close_matches(self._strange, self._option_string_actions, 1, 0.8)
            quotes = "a command with words of its own goes in quotes" if self.prog.endswith(_SUBMIT) else ""
            near = near or [
                each for each in _MEANT.get(self._strange, ()) if each in self._option_string_actions
            ]
            hint = f"did you mean {near[0]}?" if near else quotes
            message = f"{message}; {hint}" if hint else message
        if explicit := _EXPLICIT.fullmatch(message):
            message = f"{explicit['flag']}: takes no value; leave {explicit['value']} out"
        if verb := _NO_VERB.match(message):
            near = [*_KUBECTLS.get(verb[1], ()), *get_close_matches(verb[1], VERBS, 1)]
            message = f"{verb[1][:_SHOWN]!r} is no verb; " + (
                f"did you mean {near[0]}?" if near else f"it must be one of {', '.join(VERBS)}"
            )
        raise PluginError(USAGE, f"{message}; see {self.prog} -h")


def parser() -> Parser:
    """All verbs with their flags."""
    common = Parser(add_help=False, allow_abbrev=False)
    common.add_argument(
        "-n",
        "--namespace",
        type=_named(lambda word: namespace_name(word) if word else None),
        default=argparse.SUPPRESS,
        help="default: that of the context",
    )
    common.add_argument(
        "--context", type=value_or_none, default=argparse.SUPPRESS, help="context of the kubeconfig"
    )
    common.add_argument(
        "--kubeconfig",
        type=value_or_none,
        default=argparse.SUPPRESS,
        help="default: $KUBECONFIG, ~/.kube/config",
    )
    result = Parser(
        prog=PROGRAM,
        description="Train on a cluster from the current directory.",
        epilog=_EXITS,
        parents=[common],
        allow_abbrev=False,
    )
    result.add_argument("--version", action="version", version=f"{PROGRAM} {VERSION}")
    verbs = result.add_subparsers(dest="verb", required=True, metavar="VERB", parser_class=Parser)

    def verb(name: str, help: str, **more: Any) -> Parser:
        made: Parser = verbs.add_parser(
            name, help=help, description=help, parents=[common], allow_abbrev=False, **more
        )
        return made

    _submit(verb("submit", "send the current directory and start a job with it"))
    logs = verb("logs", "what a job's workers print")
    _name(logs)
    logs.add_argument("-f", "--follow", action="store_true", help="until the job ends; its exit code is ours")
    either = logs.add_mutually_exclusive_group()
    _node_rank(either)
    either.add_argument(
        "--all", action="store_true", help="logs of all nodes, with the node's number in each line"
    )
    which = logs.add_mutually_exclusive_group()
    which.add_argument("--attempt", type=_whole, help="default: the last one")
    which.add_argument("--previous", action="store_true", help="the attempt before the last one")
    logs.add_argument("--tail", type=_whole, help="only so many lines of its end")
    status = verb("status", "how a job is")
    _name(status)
    _output(status, "yaml", "json")
    listing = verb("list", "the jobs")
    queues = verb("queues", "the queues")
    for each in (listing, queues):
        each.add_argument("-A", "--all-namespaces", action="store_true")
        _output(each, *FORMATS)
    for name, help in (
        ("cancel", "delete jobs; checkpoints that were to persist stay"),
        ("suspend", "stop the workers of jobs and keep their volumes"),
        ("resume", "start suspended jobs where they were"),
    ):
        change = verb(name, help)
        change.add_argument("names", type=_named(job_name), nargs="+", metavar="JOB")
        _output(change, "name")
    sync = verb("sync", "bring the current directory to a job that runs")
    _name(sync)
    _workspace(sync, sync)
    sync.add_argument(
        "--restart", action="store_true", help="a new workspace starts the workers anew, this time"
    )
    copy = verb("cp", "copy a file or directory from or to a job's worker: JOB:PATH PATH, or PATH JOB:PATH")
    copy.add_argument("source", metavar="FROM")
    copy.add_argument("target", metavar="TO")
    _node_rank(copy, default=0)
    return result


def value_or_none(word: str) -> str | None:
    """The value of a flag of kubectl's own, to which an empty one is none: `--context "$CONTEXT"` may be."""
    return word or None


def _submit(submit: Parser) -> None:
    submit.add_argument("--queue", type=_named(object_name), required=True, help="the TorchrunQueue")
    submit.add_argument("--gpus", type=_whole, required=True, help="GPUs of all nodes together; 0: on CPUs")
    submit.add_argument("--nodes", type=_positive, help="default: the fewest that the GPUs fit on")
    submit.add_argument("--min", type=_positive, metavar="NODES", help="fewest nodes of an elastic job")
    submit.add_argument("--max", type=_positive, metavar="NODES", help="most nodes of an elastic job")
    submit.add_argument(
        "--env", action="append", default=[], metavar="NAME=VALUE", help="NAME alone: as it is here"
    )
    submit.add_argument(
        "--secret",
        action="append",
        default=[],
        metavar="NAME[=SECRET/KEY]",
        help="a variable from a Secret (default: HF_TOKEN is the key HF_TOKEN of the Secret hf-token)",
    )
    submit.add_argument(
        "--launcher",
        choices=LAUNCHERS,
        help="torchrun starts the command once for each GPU; none: once on each node (default: as detected)",
    )
    submit.add_argument("--name", help="default: after the directory")
    submit.add_argument(
        "--follow", action="store_true", help="show its log until it ends; its exit code is ours"
    )
    submit.add_argument("--dry-run", action="store_true", help="print the TorchrunJob and send nothing")
    either = submit.add_mutually_exclusive_group()
    _workspace(submit, either)
    either.add_argument("--no-workspace", action="store_true", help="only what is in the image")
    _output(submit, "yaml", "json", "name")
    submit.add_argument(
        "command", nargs="+", metavar="COMMAND", help='in quotes: "python train.py --epochs 10"'
    )


class _StoreGiven(argparse.Action):
    """Store the value, and that it is not the default (`workspace_is_given`)."""

    def __call__(self, _: Any, namespace: Any, values: Any, _option: Any = None) -> None:
        setattr(namespace, self.dest, values)
        setattr(namespace, f"{self.dest}_is_given", True)


def _workspace(verb: Parser, either: Any) -> None:
    either.add_argument(
        "--workspace", action=_StoreGiven, default=".", metavar="DIRECTORY", help="default: the current one"
    )
    verb.add_argument(
        "--max-size", type=_positive, default=512, metavar="MIB", help="of the files together (default 512)"
    )


def _name(verb: Parser) -> None:
    verb.add_argument("name", type=_named(job_name), metavar="JOB")


def _node_rank(verb: Any, default: int | None = None) -> None:
    verb.add_argument(
        "--node-rank",
        type=_whole,
        default=default,
        metavar="NODE",
        help="the worker: number of its node, from 0 (default 0); not the rank of one of its processes",
    )


def _output(verb: Parser, *formats: str) -> None:
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
        raise argparse.ArgumentTypeError(f"{text[:_SHOWN]!r} should be a whole number, 0 or more")
    if len(text) > _MOST_DIGITS:
        raise argparse.ArgumentTypeError(f"{text[:_SHOWN]} should have at most {_MOST_DIGITS} digits")
    return int(text)


def _positive(text: str) -> int:
    if (value := _whole(text)) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} should be at least 1")
    return value


def doubtful_flag(words: Sequence[str], flags: Mapping[str, argparse.Action]) -> str:
    """The first of our flags behind a command of several words, which the command may have, too; "" for none.

    A command in quotes is one word, and flags behind it are ours. What stands behind "--" is the command's. A flag in
    front of the command that is not known is the fault to tell of: the word behind it may be its value.
    """
    of_command, index = 0, 0
    while index < len(words) and words[index] != "--":
        word = words[index]
        name, equals, _ = word.partition("=")
        action = flags.get(name)
        if action is None and word.startswith("-") and not word.startswith("--"):
            action, equals = flags.get(word[:2]), word[2:]
        if action is None and word.startswith("-") and not of_command:
            return ""
        if action is None:
            of_command += not word.startswith("-")
        elif of_command > 1:
            return name
        elif action.nargs != 0 and not equals:
            index += 1
        index += 1
    return ""
