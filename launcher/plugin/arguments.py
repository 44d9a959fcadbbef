"""What a person types after `kubectl torchrun`."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import NoReturn

from launcher.core import contract as c

PROGRAM = "kubectl torchrun"
OUTPUTS = ("table", "wide", "yaml", "json", "name")


class Parser(argparse.ArgumentParser):
    """One line of what is wrong, and where help is, instead of the whole usage."""

    def error(self, message: str) -> NoReturn:
        self.exit(c.EXIT_BAD_REQUEST, f"error: {message}; see '{self.prog} --help'\n")


def parser() -> Parser:
    """The parser of all verbs; the verb is in `verb`."""
    whole = Parser(
        prog=PROGRAM,
        description="Submit torchrun jobs to a queue of a cluster, and look after them.",
        epilog="Exit codes: 0 done, 2 wrong arguments, 13 the cluster refused or did not answer; "
        "with --follow the job's.",
    )
    verbs = whole.add_subparsers(dest="verb", required=True, metavar="VERB", parser_class=Parser)
    place = _place()
    _submit(verbs, place)
    one = Parser(add_help=False)
    one.add_argument("job", metavar="JOB", help="name of the TorchrunJob")
    logs = verbs.add_parser("logs", parents=[place, one], help="print what the workers print")
    logs.add_argument("-f", "--follow", action="store_true", help="go on until the job ends")
    logs.add_argument("--node", type=_count(0), default=0, metavar="N", help="the worker's node (default: 0)")
    logs.add_argument("--tail", type=_count(0), metavar="LINES", help="the last so many lines alone")
    for verb, says in (
        ("cancel", "delete a job, and all that was made for it but kept volumes"),
        ("suspend", "end a job's workers and keep its volumes, until it is resumed"),
        ("resume", "let a suspended job go on"),
    ):
        verbs.add_parser(verb, parents=[place, one], help=says)
    shown = Parser(add_help=False)
    shown.add_argument("-o", "--output", choices=OUTPUTS, default="table", help="form (default: table)")
    verbs.add_parser("status", parents=[place, one, shown], help="tell how a job is")
    for verb, says in (("list", "list the jobs"), ("queues", "list the queues")):
        listed = verbs.add_parser(verb, parents=[place, shown], help=says)
        listed.add_argument("-A", "--all-namespaces", action="store_true", help="of all namespaces")
    return whole


def _place() -> Parser:
    """The flags of kubectl that say which cluster and namespace (https://kubernetes.io/docs/reference/kubectl/kubectl/)."""
    place = Parser(add_help=False)
    place.add_argument("-n", "--namespace", metavar="NAME", help="namespace (default: the context's)")
    place.add_argument(
        "--context", metavar="NAME", help="context of the kubeconfig (default: the current one)"
    )
    place.add_argument(
        "--kubeconfig", metavar="FILE", help="kubeconfig (default: KUBECONFIG, else ~/.kube/config)"
    )
    return place


def _submit(verbs: argparse._SubParsersAction[Parser], place: Parser) -> None:
    submit = verbs.add_parser(
        "submit",
        parents=[place],
        help="submit a job with the files of this directory",
        usage=f'{PROGRAM} submit --queue QUEUE (--gpus N | --nodes N) [flags] "COMMAND"',
        description="Submit a job. Its workers find this directory's files, as they are now, and run COMMAND there.",
    )
    submit.add_argument(
        "command", metavar="COMMAND", nargs="+", help="what each process runs; quote it, or put -- before it"
    )
    submit.add_argument("--queue", required=True, help="the TorchrunQueue that says how jobs are made")
    submit.add_argument(
        "--gpus", type=_count(0), metavar="N", help="GPUs of all workers together; 0 for CPUs alone"
    )
    submit.add_argument(
        "--nodes", type=_count(1), metavar="N", help="nodes: how the GPUs are spread, or of CPUs how many"
    )
    submit.add_argument(
        "--min", type=_count(1), metavar="N", dest="least", help="nodes that an elastic job goes on with"
    )
    submit.add_argument(
        "--max", type=_count(1), metavar="N", dest="most", help="nodes of an elastic job; --gpus is for these"
    )
    submit.add_argument(
        "-e",
        "--env",
        action="append",
        default=[],
        type=_variable,
        metavar="NAME=VALUE",
        help="a variable of the processes",
    )
    submit.add_argument(
        "--name", help="name of the job (default: from the directory's, with a random ending)"
    )
    submit.add_argument(
        "--workspace", metavar="DIRECTORY", default=".", help="files to take along (default: this directory)"
    )
    submit.add_argument("--no-workspace", action="store_true", help="take no files along")
    submit.add_argument(
        "-f", "--follow", action="store_true", help="print logs until the job ends, and end with its code"
    )
    submit.add_argument("--dry-run", action="store_true", help="print the TorchrunJob and send nothing")
    submit.add_argument(
        "-o",
        "--output",
        choices=("table", "yaml", "json", "name"),
        default="table",
        help="form of the answer",
    )


def _count(least: int) -> Callable[[str], int]:
    """An argparse type: a whole number of at least so much."""

    def read(text: str) -> int:
        if not text.isascii() or not text.isdigit() or int(text) < least:
            raise argparse.ArgumentTypeError(f"{text!r} is no whole number of {least} or more")
        return int(text)

    return read


def _variable(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if (
        not equals
        or not name.replace("_", "a").replace("-", "a").replace(".", "a").isalnum()
        or name[0].isdigit()
    ):
        raise argparse.ArgumentTypeError(f"{text!r} is no variable; right would be NAME=VALUE")
    return name, value
