"""Commands of a user of `kubectl torchrun` on a stack."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import yaml

from local.home import CHECKOUT
from tests.faults.place import until
from tests.integration.local.conftest import Command, Stack
from trainyard.operator import names as n

SPACE = ("-n", "training")
# kube-scheduler may leave a worker pending for five minutes if the placeholder that it preempts ends at the same moment
# (https://github.com/kubernetes/kubernetes/issues/141694).
WAIT_SECONDS = 420
# It says what a file of its own says, whenever that changes.
LISTENS = """
import pathlib, time
said = ""
while said != "end":
    now = pathlib.Path("said.txt").read_text()
    if now != said:
        print(f"said {now}", flush=True)
    said = now
    time.sleep(0.2)
"""
# And which texts are there, whenever one comes or goes.
LISTS = LISTENS.replace(
    "read_text()", """read_text() + " of " + " ".join(sorted(map(str, pathlib.Path().glob("*.txt"))))"""
).replace('"end"', '"end of said.txt"')


def torchrun(stack: Stack, *arguments: str, cwd: Path = CHECKOUT) -> Command:
    """`kubectl torchrun ...`."""
    environment = {**os.environ, **stack.kubectl_environment}
    answer = subprocess.run(
        ["kubectl", "torchrun", *arguments, *SPACE],
        cwd=cwd, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=600,
    )  # fmt: skip
    print(answer.stdout)
    return Command(code=answer.returncode, output=answer.stdout)


def submit_edited(stack: Stack, name: str, fields: dict[str, Any], *words: str, cwd: Path) -> None:
    """A job with fields that `submit` has no flag for: its dry run with them is applied, and its workspace sent."""
    dry = torchrun(stack, "submit", "--name", name, "--dry-run", "-o", "yaml", *words, cwd=cwd)
    assert dry.code == 0, dry.output
    assert stack.kubectl("get", "torchrunjob", name, *SPACE).code == 1, "a dry run made it"
    # Standard error, which says what starts the processes, comes first.
    manifest = yaml.safe_load(dry.output[dry.output.index("apiVersion:") :])
    variables = [*manifest["spec"].get("env", ()), *fields.get("env", ())]
    manifest["spec"] |= {**fields, "env": variables}
    file = cwd.parent / f"{name}.yaml"
    file.write_text(yaml.safe_dump(manifest))
    applied = stack.kubectl("apply", "-f", str(file))
    assert applied.code == 0, applied.output
    sent = torchrun(stack, "sync", name, cwd=cwd)
    assert sent.code == 0, sent.output


def job(stack: Stack, name: str) -> dict[str, Any]:
    return dict(stack.get("torchrunjob", name, *SPACE))


def phase(stack: Stack, name: str) -> str:
    return str((job(stack, name).get("status") or {}).get("phase"))


def reaches(stack: Stack, name: str, wanted: str) -> dict[str, Any]:
    def there() -> bool:
        now = phase(stack, name)
        assert now == wanted or now not in n.FINAL_PHASES, job(stack, name)["status"]
        return now == wanted

    until(there, f"{name} is {wanted}", WAIT_SECONDS)
    return dict(job(stack, name)["status"])


def logs_of(stack: Stack, name: str) -> str:
    """What the workers of a job have said; its other pods go when it is over."""
    return stack.logs(*workers(stack, f"{n.LABEL_JOB}={name},{n.LABEL_ATTEMPT}"))


def workers(stack: Stack, selector: str) -> list[str]:
    """The names of the pods with these labels."""
    return [pod["metadata"]["name"] for pod in stack.get("pods", *SPACE, "-l", selector)["items"]]


def workers_say(stack: Stack, name: str, count: int, line: str) -> None:
    """Wait until each worker of the job's last attempt has written the line, and `kubectl torchrun logs` shows it."""
    until(lambda: logs_of(stack, name).count(line) >= count, f"{name} says {line!r}", WAIT_SECONDS)
    for rank in map(str, range(count)):
        until(
            lambda rank=rank: line in torchrun(stack, "logs", name, "--node-rank", rank).output,  # type: ignore[misc]
            f"worker {rank} of {name} says {line!r}",
            WAIT_SECONDS,
        )
