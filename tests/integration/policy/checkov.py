"""Check stacks and Dockerfiles with checkov (https://github.com/bridgecrewio/checkov), which knows none of our rules.

`check_stacks()` is the entry point. checkov runs in its own environment because it has many dependencies.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from tests.integration.policy.environments import environment
from tests.integration.policy.terraform_plan import by_address, plan
from trainyard.cli.engine import ROOT
from trainyard.policies.model import UNKNOWN, Resource, Stack, Undecided
from trainyard.policies.pods import TORCHRUN_QUEUE, pods
from trainyard.policies.waivers import Waiver, namespace_of

DOCKERFILES: Final = ("launcher/Dockerfile", "trainer/Dockerfile")
DOCKERFILE: Final = "Dockerfile"
KUBERNETES: Final = "kubernetes:"
# A Helm release is not a Kubernetes object; the objects of its chart are (`tests.integration.policy.charts`).
NO_MANIFESTS: Final = ("kubernetes:helm.sh/",)
# An object with an unknown value of one of these is skipped.
REQUIRED_KEYS: Final = ("spec", "rules")
# A placeholder for an unknown image, so that checkov checks the rest of the pod; it checks the state again.
IMAGE: Final = f"unknown.invalid/image@sha256:{'0' * 64}"

# Kinds of others that have pod templates.
AS_JOBS: Final = (
    "kubernetes:kubeflow.org/v1:PyTorchJob",
    TORCHRUN_QUEUE,
)

PLAN: Final = "plan.json"
# Type, name and namespace of the checked resource.
Place = tuple[str, str, str | None]


class CheckovError(Exception):
    """checkov gave no report."""


@dataclass(frozen=True, kw_only=True)
class Failure:
    """One check that failed; `type` and `name` are those of our resource (or `Dockerfile` and its path).

    `namespace` is None where the resource lies in none.
    """

    check: str
    type: str
    name: str
    message: str
    namespace: str | None = None

    def __str__(self) -> str:
        return f"{self.type} {self.name}: {self.message} [{self.check}]"


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """checkov's results for one stack; `stack` has no resources for Dockerfiles."""

    failures: tuple[Failure, ...]
    passed: int
    stack: Stack

    def unwaived(self, given: Sequence[Waiver]) -> list[Failure]:
        """Return the failures that no waiver matches."""
        return [each for each in self.failures if not self._about(each, given)]

    def used(self, given: Sequence[Waiver]) -> set[Waiver]:
        """Return the waivers that match a failure."""
        return {waiver for each in self.failures for waiver in self._about(each, given)}

    def _about(self, failure: Failure, given: Sequence[Waiver]) -> list[Waiver]:
        where = (failure.check, failure.type, failure.name, failure.namespace, self.stack)
        return [waiver for waiver in given if waiver.matches(*where)]


def check_stack(stack: Stack, folder: Path) -> Verdict:
    """Return checkov's results for a stack's AWS resources and its Kubernetes objects.

    Args:
        stack: Objects with an unknown spec are skipped; an unknown image gets a placeholder. A state has neither.
        folder: An empty directory for checkov's input.

    Raises:
        CheckovError: checkov gave no report.
        EnvironmentFailed: it could not be installed.
        PlanError: a resource has no Terraform equivalent.
    """
    return check_stacks({"stack": stack}, folder)["stack"]


def check_stacks(stacks: Mapping[str, Stack], folder: Path) -> dict[str, Verdict]:
    """Return checkov's results for each stack by name. Args and Raises are those of `check_stack`."""
    resources: dict[str, dict[str, Resource]] = {}
    for name, stack in stacks.items():
        (folder / name).mkdir()
        (folder / name / PLAN).write_text(json.dumps(plan(stack)))
        resources[name] = by_address(stack)
        for index, (resource, manifest) in enumerate(manifests(stack)):
            file = folder / name / f"object-{index}.json"
            file.write_text(json.dumps(manifest))
            resources[name][f"/{file.name}"] = resource

    def resource_place(stack: str, file: str, name: str) -> Place:
        # A check of one block adds its path to the address.
        address = ".".join(name.split(".")[:2]).partition("[")[0]
        found = resources[stack][address if file == f"/{PLAN}" else file]
        return found.type, found.name, namespace_of(found)

    frameworks = ["--framework", "terraform_plan", "kubernetes"]
    inputs = {name: ["--directory", str(folder / name), *frameworks] for name in stacks}
    return {
        name: _verdict(report, partial(resource_place, name), stacks[name])
        for name, report in _reports(inputs, folder).items()
    }


def check_dockerfiles(folder: Path) -> Verdict:
    """Return checkov's results for the project's Dockerfiles; `folder` is an empty directory for its input.

    Raises:
        CheckovError: checkov gave no report.
        EnvironmentFailed: it could not be installed.
    """
    files = [argument for name in DOCKERFILES for argument in ("--file", str(ROOT / name))]

    def dockerfile_place(file: str, _name: str) -> Place:
        path = next(name for name in DOCKERFILES if file.endswith(name) or name.endswith(file))
        return DOCKERFILE, path, None

    reports = _reports({"dockerfiles": [*files, "--framework", "dockerfile"]}, folder)
    return _verdict(reports["dockerfiles"], dockerfile_place, Stack([]))


def manifests(stack: Stack) -> Iterator[tuple[Resource, dict[str, Any]]]:
    """Return the Kubernetes objects of a stack as manifests, except those whose spec is unknown.

    checkov does not know the kinds in `AS_JOBS`; it gets a Job for each of their pod templates.
    """
    for resource in stack.resources:
        if not resource.type.startswith(KUBERNETES) or resource.type.startswith(NO_MANIFESTS):
            continue
        group, _, kind = resource.type.removeprefix(KUBERNETES).rpartition(":")
        head = {"apiVersion": group.removeprefix("core/"), "kind": kind}
        try:
            if resource.type in AS_JOBS:
                metadata = _without_unknown(resource.properties.get("metadata") or {})
                for _, pod in pods(resource):
                    spec = {"template": {"spec": _without_unknown(pod)}}
                    yield (
                        resource,
                        {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": spec},
                    )
            else:
                yield resource, {**head, **_without_unknown(resource.properties)}
        except Undecided:
            continue


def _without_unknown(value: Any) -> Any:
    """Return the value without its unknown parts, such as arguments, variables and annotations.

    Raises:
        Undecided: a part that the object can't be without is unknown.
    """
    if isinstance(value, list):
        return [_without_unknown(each) for each in value if each is not UNKNOWN]
    if not isinstance(value, Mapping):
        return value
    for key in REQUIRED_KEYS:
        if value.get(key) is UNKNOWN:
            raise Undecided(key)
    stated = {**value, "image": IMAGE} if value.get("image") is UNKNOWN else value
    return {key: _without_unknown(each) for key, each in stated.items() if each is not UNKNOWN}


def _reports(inputs: Mapping[str, list[str]], folder: Path) -> dict[str, list[Any]]:
    """Run checkov on each input, which is a list of its arguments; return its reports, one for each framework."""
    for name, arguments in inputs.items():
        options = ["--output", "json", "--compact", "--quiet", "--skip-download"]
        (folder / f"{name}.arguments").write_text(json.dumps([*arguments, *options]))
    python = environment("checkov") / "bin" / "python"
    answer = subprocess.run(
        # -P: the package checkov, not this module.
        [str(python), "-P", str(Path(__file__).with_name("run_checkov.py")), str(folder)],
        capture_output=True,
        text=True,
        env={**os.environ, "LOG_LEVEL": "ERROR"},
    )
    reports = {}
    for name in inputs:
        file = folder / f"{name}.report"
        try:
            parsed = json.loads(file.read_text())
        except (FileNotFoundError, json.JSONDecodeError) as error:
            tail = " ".join(answer.stderr.split())[-500:]
            raise CheckovError(
                f"checkov: no report of {name} (exit code {answer.returncode}): {tail}"
            ) from error
        reports[name] = parsed if isinstance(parsed, list) else [parsed]
    return reports


def _verdict(reports: list[Any], place: Callable[[str, str], Place], stack: Stack) -> Verdict:
    """Read reports; `place` finds our resource by checkov's file and resource name."""
    failures, passed = [], 0
    for report in reports:
        if "results" not in report:
            raise CheckovError(f"checkov: nothing to check: {report}")
        if report["summary"]["parsing_errors"]:
            raise CheckovError(f"checkov: could not read {report['results'].get('parsing_errors')}")
        passed += report["summary"]["passed"]
        for each in report["results"]["failed_checks"]:
            type_, name, namespace = place(each["file_path"], each["resource"])
            failures.append(
                Failure(
                    check=each["check_id"],
                    type=type_,
                    name=name,
                    message=each["check_name"],
                    namespace=namespace,
                )
            )
    return Verdict(failures=tuple(dict.fromkeys(failures)), passed=passed, stack=stack)
