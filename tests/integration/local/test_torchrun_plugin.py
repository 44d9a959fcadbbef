"""`kubectl torchrun` as a person types it, by kubectl and against a real API server: bad input, rights, completion."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import pytest

from local.home import Home
from local.tools.scripts import write_plugin
from tests.integration.local.own_api_server import ApiServer
from tests.integration.local.torchrun_controller import Team, until
from tests.torchrun_manifests import manifest
from tests.unit.k8s.test_kubeconfig import CASES, write
from trainyard.k8s import kubeconfig
from trainyard.k8s.client import RetryPolicy
from trainyard.operator import names as n

pytestmark = pytest.mark.local

NUMBERS = count(1)
SUBMIT = ("submit", "--queue", "research", "--gpus", "8")
# Root reads whatever there is, unless it is without these.
AS_ANYBODY = (
    "setpriv",
    "--bounding-set=-dac_override,-dac_read_search",
    "--inh-caps=-dac_override,-dac_read_search",
)


@dataclass(frozen=True)
class Person:
    """One with a directory of code, and the plugin where kubectl finds it."""

    team: Team
    code: Path
    programs: Path

    def types(
        self, *words: str, by: tuple[str, ...] = (), **variables: str
    ) -> subprocess.CompletedProcess[str]:
        """`kubectl ...`; the output has both streams apart."""
        return self.runs([*by, self.team.server.programs["kubectl"], *words], **variables)

    def runs(self, command: list[str], **variables: str) -> subprocess.CompletedProcess[str]:
        """A command where kubectl, the plugin and the API server are found."""
        kubectl = Path(self.team.server.programs["kubectl"]).parent
        environment = {
            **os.environ,
            "PATH": f"{self.programs}:{kubectl}:{os.environ['PATH']}",
            "KUBECONFIG": str(self.team.server.kubeconfig),
            "XDG_CACHE_HOME": str(self.programs / "cache"),
            **variables,
        }
        return subprocess.run(
            command,
            cwd=self.code, env=environment, capture_output=True, text=True, timeout=120,
        )  # fmt: skip

    def torchrun(
        self, *words: str, by: tuple[str, ...] = (), **variables: str
    ) -> subprocess.CompletedProcess[str]:
        """`kubectl torchrun ...` in the team's namespace."""
        return self.types("torchrun", *words, "-n", self.team.name, by=by, **variables)

    def jobs(self) -> list[str]:
        """Those in the team's namespace."""
        # A kind that was installed a moment ago is not listed at once.
        items = until(lambda: self.team.get(self.team.path(n.JOB_KIND)), "jobs are listed")["items"]
        return [each["metadata"]["name"] for each in items]


@pytest.fixture
def person(torchrun_api: ApiServer, tmp_path: Path) -> Iterator[Person]:
    team = Team(torchrun_api, f"person-{next(NUMBERS)}")
    team.make(manifest(n.QUEUE_KIND, "research"))
    code, home = tmp_path / "code", Home(tmp_path / "home")
    write_plugin(home)
    code.mkdir()
    (code / "train.py").write_text("print('trained')\n")
    yield Person(team, code, home.bin)
    torchrun_api.request("DELETE", team.path(n.JOB_KIND))


def guest(team: Team, directory: Path) -> Path:
    """A kubeconfig of somebody who may do nothing."""
    token = team.server.kubectl("create", "token", "default", "-n", team.name)
    assert token.returncode == 0, token.stderr
    document = json.loads(team.server.kubectl("config", "view", "--raw", "-o", "json").stdout)
    document["users"] = [{"name": "guest", "user": {"token": token.stdout.strip()}}]
    document["contexts"][0]["context"]["user"] = "guest"
    file = directory / "guest.kubeconfig"
    file.write_text(json.dumps(document))
    file.chmod(0o600)
    return file


def test_a_forbidden_namespace_is_named_and_nothing_is_made(person: Person, tmp_path: Path) -> None:
    other = Team(person.team.server, f"{person.team.name}-other")
    kubeconfig = str(guest(person.team, tmp_path))
    for words, what in (
        ((*SUBMIT, "python train.py"), "get torchrunqueues"),
        (("list",), "list torchrunjobs"),
    ):
        answer = person.types("torchrun", *words, "-n", other.name, KUBECONFIG=kubeconfig)
        assert answer.returncode == 77, answer.stderr
        assert f"namespace {other.name}: you may not {what} there" in answer.stderr
        assert len(answer.stderr.splitlines()) == 1
    # A kind that was installed a moment ago is not listed at once.
    assert until(lambda: other.get(other.path(n.JOB_KIND)), "jobs are listed")["items"] == []


BAD = [
    ((*SUBMIT, "--colour", "red", "python train.py"), 64, "unknown flags or words: --colour"),
    ((*SUBMIT, "--nodes", "3", "python train.py"), 64, "--nodes: 3 does not divide --gpus 8"),
    ((*SUBMIT, "--min", "3", "--max", "2", "python train.py"), 64, "--min: 3 is above --max 2"),
    (
        (*SUBMIT, "--name", "a" * 300, "python train.py"),
        64,
        "has 300 characters; a job's name must have at most 40",
    ),
    ((*SUBMIT, "--kubeconfig", "/none", "python train.py"), 78, "/none"),
    ((*SUBMIT, "--workspace", "none", "python train.py"), 65, "workspace: none does not exist"),
    ((*SUBMIT, "--workspace", "empty", "python -m train"), 65, "has no files to send"),
    (("status", "nobody"), 66, "job nobody: is not in namespace"),
]


@pytest.mark.parametrize("files", [each[0] for each in CASES])
def test_of_several_kubeconfigs_kubectl_and_the_plugin_take_the_same(
    person: Person, monkeypatch: pytest.MonkeyPatch, files: str
) -> None:
    write(person.code)
    monkeypatch.chdir(person.code)
    monkeypatch.setenv("HOME", str(person.code))
    monkeypatch.setenv("KUBECONFIG", files)
    answer = person.types("config", "view", "--minify", "--raw", "-o", "json", KUBECONFIG=files)
    assert answer.returncode == 0, answer.stderr
    seen = json.loads(answer.stdout)
    rest, namespace = kubeconfig.connect(None, None, RetryPolicy())
    assert seen["clusters"][0]["cluster"]["server"] == rest.configuration.host
    assert seen["contexts"][0]["context"]["namespace"] == namespace
    assert f"Bearer {seen['users'][0]['user']['token']}" == rest.configuration.api_key["BearerToken"]


@pytest.mark.parametrize(("words", "code", "said"), BAD, ids=[each[2] for each in BAD])
def test_bad_input_gets_one_line_and_makes_nothing(
    person: Person, words: tuple[str, ...], code: int, said: str
) -> None:
    (person.code / "empty").mkdir()
    answer = person.torchrun(*words)
    assert (answer.returncode, answer.stdout) == (code, ""), answer.stderr
    assert said in answer.stderr
    assert len(answer.stderr.splitlines()) == 1, answer.stderr
    assert person.jobs() == []


def test_a_file_that_cannot_be_read_is_named(person: Person) -> None:
    (person.code / "secret.py").write_text("")
    (person.code / "secret.py").chmod(0)
    answer = person.torchrun(*SUBMIT, "python train.py", by=AS_ANYBODY if os.getuid() == 0 else ())
    assert answer.returncode == 65, answer.stderr
    assert "secret.py" in answer.stderr
    assert len(answer.stderr.splitlines()) == 1, answer.stderr
    assert person.jobs() == []


def test_missing_namespace_is_reported(person: Person) -> None:
    answer = person.types("torchrun", *SUBMIT, "-n", "nowhere", "python train.py")
    assert (answer.returncode, answer.stdout) == (64, ""), answer.stderr
    assert answer.stderr == (
        "kubectl torchrun: -n: namespace nowhere does not exist; `kubectl get namespaces` shows all\n"
    )


def test_a_workspace_that_cannot_be_read_is_named(person: Person) -> None:
    (person.code / "shut").mkdir(mode=0)
    answer = person.torchrun(
        *SUBMIT, "--workspace", "shut", "python train.py", by=AS_ANYBODY if os.getuid() == 0 else ()
    )
    assert answer.returncode == 65, answer.stderr
    assert f"workspace: can't read {person.code / 'shut'}: Permission denied" in answer.stderr
    assert len(answer.stderr.splitlines()) == 1, answer.stderr
    assert person.jobs() == []


def test_a_memory_that_is_no_quantity_is_refused_by_its_field(person: Person) -> None:
    wrong = manifest(n.QUEUE_KIND, "wrong", {"nodeResources.memory": "lots"})
    answer = person.team.server.kubectl("apply", "-n", person.team.name, "-f", "-", stdin=json.dumps(wrong))
    assert answer.returncode == 1
    assert "spec.nodeResources.memory" in answer.stderr
    assert person.team.get(person.team.path(n.QUEUE_KIND, "wrong")) == {}


def test_jobs_of_all_namespaces_are_listed(person: Person) -> None:
    other = Team(person.team.server, f"{person.team.name}-other")
    person.team.make(manifest(n.JOB_KIND, "here"))
    other.make(manifest(n.JOB_KIND, "there"))
    answer = person.types("torchrun", "list", "-A")
    assert answer.returncode == 0, answer.stderr
    rows = {tuple(line.split()[:2]) for line in answer.stdout.splitlines()[1:]}
    assert {(person.team.name, "here"), (other.name, "there")} <= rows
    named = person.torchrun("list", "-o", "name")
    assert named.stdout == "torchrunjob.torchrun.ai/here\n"


def test_a_submit_that_takes_its_workspace_nowhere_makes_the_job(person: Person) -> None:
    answer = person.torchrun(*SUBMIT, "--name", "vit", "--no-workspace", "python train.py --epochs 3")
    assert (answer.returncode, answer.stdout) == (0, "torchrunjob.torchrun.ai/vit created\n"), answer.stderr
    spec = person.team.get(person.team.path(n.JOB_KIND, "vit"))["spec"]
    assert (spec["numGPUs"], spec["command"]) == (8, "python train.py --epochs 3")


def test_kubectl_completes_jobs_queues_and_flags(person: Person) -> None:
    person.team.make(manifest(n.JOB_KIND, "vit"))
    asked = ("-n", person.team.name)

    def completed(*words: str) -> list[str]:
        answer = person.types("__complete", "torchrun", *words)
        assert answer.returncode == 0, answer.stderr
        return [line for line in answer.stdout.splitlines() if not line.startswith(":")]

    assert completed("logs", *asked, "") == ["vit"]
    assert completed("submit", *asked, "--queue", "res") == ["research"]
    assert completed("submit", *asked, "--queue=res") == ["research"]
    assert completed("submit", *asked, "--", "--q") == []
    assert completed("sus") == ["suspend"]


# What bash-completion does for a script: the line in words, which "=" and ":" do not part.
BASH = """
_init_completion() {{
    words=({words}); cword=$((${{#words[@]}} - 1)); cur=${{words[$cword]}}; prev=${{words[$cword - 1]}}
}}
source <(kubectl completion bash)
__start_kubectl
printf '%s\\n' "${{COMPREPLY[@]}}"
"""


@pytest.mark.parametrize(
    ("typed", "found"),
    [
        (("logs", ""), ["vit"]),
        (("cp", "vi"), ["vit:"]),
        (("submit", "--queue="), ["research"]),
        (("submit", "--queue=r"), ["research"]),
        (("list", "--output=y"), ["yaml"]),
        (("-n", "list", "submit", "--gp"), ["--gpus"]),
    ],
)
def test_bash_completes(person: Person, typed: tuple[str, ...], found: list[str]) -> None:
    person.team.make(manifest(n.JOB_KIND, "vit"))
    line = ["kubectl", "torchrun", *(() if "-n" in typed else ("-n", person.team.name)), *typed]
    done = person.runs(["bash", "-c", BASH.format(words=shlex.join(line))])
    assert done.stdout.split() == found, done.stderr
