"""The requirement's own manifests and commands, in its order: applied unchanged, and what a person reads then.

A real API server and the controller's process. KAI Scheduler's kinds come after the first jobs, as on a cluster where
somebody installs it later; nobody makes pods of Jobs here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import count

import pytest
import yaml

from tests.integration.local import torchrun_discovery
from tests.integration.local.kai import kai_kinds
from tests.integration.local.own_api_server import ApiServer
from tests.integration.local.torchrun_controller import Team, controller, until
from tests.torchrun_manifests import SEED
from trainyard.operator import names as n

pytestmark = [pytest.mark.local, pytest.mark.timeout(180)]

NUMBERS = count(1)
# A job that waits for a queue of KAI is reconciled every minute.
BEGIN_SECONDS = 100.0
KAI = f"/apis/{n.KAI_GROUP}"
SHARED_CLASS = {
    "apiVersion": "storage.k8s.io/v1",
    "kind": "StorageClass",
    "metadata": {
        "name": "walk-shared",
        "annotations": {"storageclass.kubernetes.io/is-default-class": "true"},
    },
    "provisioner": "fsx.csi.aws.com",
}


class Person(Team):
    """Types the requirement's commands in a namespace of its own."""

    def types(self, *words: str, stdin: str | None = None) -> str:
        answer = self.server.kubectl(*words, "-n", self.name, stdin=stdin)
        assert answer.returncode == 0, answer.stderr
        return answer.stdout

    def applies(self, *names: str) -> None:
        chosen = [each for each in SEED if each["metadata"]["name"] in names]
        assert len(chosen) == len(names)
        self.types("apply", "-f", "-", stdin=yaml.safe_dump_all(chosen))

    def row(self, *words: str) -> dict[str, str]:
        """The only line of a table, by its columns."""
        header, line = self.types(*words).splitlines()
        titles = list(re.finditer(r"\S+(?: \S+)*", header))
        ends = [title.start() for title in titles[1:]] + [None]
        return {each[0]: line[each.start() : end].strip() for each, end in zip(titles, ends, strict=True)}


@pytest.fixture(scope="module")
def server(torchrun_api: ApiServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    for each in ("config/deployment.yaml", "config/rbac/role.yaml"):
        applied = torchrun_api.kubectl("apply", "-f", each)
        assert applied.returncode == 0, applied.stderr
    program = torchrun_discovery.__name__
    with controller(torchrun_api, tmp_path_factory.mktemp("walk"), program=program):
        yield torchrun_api


@pytest.fixture
def person(server: ApiServer) -> Iterator[Person]:
    person = Person(server, f"walk-{next(NUMBERS)}")
    yield person
    person.types("delete", "torchrunjobs", "--all", "--timeout=60s")
    # Kubernetes would remove them with their jobs; who does that is not here.
    server.kubectl("delete", f"{n.KAI_POD_GROUP_PLURAL}.{n.KAI_GROUP}", "--all", "-n", person.name)
    # Queues release those of KAI while its kinds exist.
    person.types("delete", "torchrunqueues", "--all", "--timeout=60s")


@pytest.fixture(scope="module")
def kai(server: ApiServer) -> Iterator[None]:
    """KAI's kinds, until the end of the walk."""
    with kai_kinds(server):
        yield


@pytest.fixture
def shared_class(server: ApiServer) -> Iterator[str]:
    """A default class whose volumes many nodes mount."""
    applied = server.kubectl("apply", "-f", "-", stdin=yaml.safe_dump(SHARED_CLASS))
    assert applied.returncode == 0, applied.stderr
    yield "walk-shared"
    server.kubectl("delete", "storageclass", "walk-shared")


def test_a_job_before_its_queue_waits_for_it(person: Person) -> None:
    person.applies("vit-training")
    until(lambda: person.status("vit-training").get("reason") == n.REASON_QUEUE_NOT_FOUND, "it says so")
    missing = person.server.kubectl("get", "torchrunqueue", "h100-training", "-n", person.name)
    assert (missing.returncode, "NotFound" in missing.stderr) == (1, True)
    described = person.types("describe", "torchrunjob", "vit-training")
    assert "TorchrunQueue h100-training is not in namespace" in described


def test_queues_for_different_purposes(person: Person) -> None:
    person.applies("dev-queue", "prod-queue")
    for name in ("dev-queue", "prod-queue"):
        until(
            lambda name=name: (
                person.condition(name, n.READY, n.QUEUE_KIND).get("status") in ("True", "False")
            ),
            f"{name} is judged",
        )
    assert person.row("get", "torchrunqueue", "dev-queue")["READY"] == "True"
    refused = person.condition("prod-queue", n.READY, n.QUEUE_KIND)
    assert (refused["status"], refused["reason"]) == ("False", "Refused")
    assert "no PriorityClass with name production-priority was found" in refused["message"]


def test_vit_training_without_kai_waits_and_then_has_four_nodes(
    person: Person, request: pytest.FixtureRequest
) -> None:
    person.applies("h100-training", "vit-training")
    until(
        lambda: person.status("vit-training").get("reason") == n.REASON_SCHEDULER_NOT_INSTALLED,
        "it says what it waits for",
    )
    row = person.row("get", "torchrunjobs")
    assert (row["NAME"], row["QUEUE"], row["PHASE"]) == ("vit-training", "h100-training", "Pending")
    described = person.types("describe", "torchrunjob", "vit-training")
    assert "whose API is not installed. Install KAI Scheduler. The job then starts." in described
    assert not person.get(person.batch("vit-training-0"))
    until(lambda: person.condition("h100-training", n.READY, n.QUEUE_KIND), "the queue is judged")
    assert person.row("get", "torchrunqueue", "h100-training")["READY"] == "False"

    request.getfixturevalue("kai")
    until(
        lambda: person.status("vit-training").get("phase") == n.PHASE_PROVISIONING,
        "it begins once KAI is there",
        BEGIN_SECONDS,
    )
    status = person.status("vit-training")
    assert (status["nodes"], status["gpusPerNode"], status["gpus"]) == (4, 8, 32)
    row = person.row("get", "torchrunjobs")
    assert (row["PHASE"], row["NODES"], row["GPUS"]) == ("Provisioning", "4", "32")

    substituted = person.condition("vit-training", n.RENDEZVOUS_SUBSTITUTED)
    assert (substituted["status"], substituted["reason"]) == ("True", "NoEndpoint")
    assert "etcd-v2 needs distributed.rdzvEndpoint" in person.types("describe", "torchrunjob", "vit-training")

    made = until(
        lambda: person.server.request("GET", f"{KAI}/v2/queues/gpu-h100-queue").body.get("spec"),
        "KAI's queue is made",
    )
    assert made["parentQueue"] == n.KAI_PARENT_QUEUE
    group = person.get(f"{KAI}/v2alpha2/namespaces/{person.name}/podgroups/vit-training-0")
    assert (group["spec"]["minMember"], group["spec"]["queue"]) == (4, "gpu-h100-queue")

    service = person.get(person.core("services", "vit-training"))
    assert service["spec"]["clusterIP"] == "None"
    assert service["spec"]["selector"] == {"torchrun-job-name": "vit-training"}

    # A disk of one node's for each node, so that each has a Job of its own.
    listed = person.get(f"{person.batch()}?labelSelector=torchrun-job-name%3Dvit-training")
    jobs = listed["items"]
    assert [each["metadata"]["name"] for each in jobs] == [
        "vit-training-0",
        *(f"vit-training-0-n{i}" for i in (1, 2, 3)),
    ]
    for each in jobs:
        pod = each["spec"]["template"]
        assert pod["metadata"]["labels"]["torchrun-job-name"] == "vit-training"
        spec = pod["spec"]
        assert spec["schedulerName"] == "kai-scheduler"
        assert spec["nodeSelector"] == {"gpu.nvidia.com/class": "H100"}
        assert "h100-80gb" in str(spec["affinity"]["nodeAffinity"])
        shared = next(volume["emptyDir"] for volume in spec["volumes"] if volume["name"] == "shared-memory")
        assert shared == {"medium": "Memory", "sizeLimit": "64Gi"}
        (container,) = spec["containers"]
        assert container["resources"]["limits"]["nvidia.com/gpu"] == "8"
        assert "c10d" in str(container["command"])
        assert {"name": "PET_NNODES", "value": "4"} in container["env"] or "--nnodes=4" in str(container)

    claims = person.types("get", "pvc", "-l", "torchrun-job-name=vit-training", "-o", "name").split()
    ending = ("", "-1", "-2", "-3")
    assert claims == [f"persistentvolumeclaim/vit-training-workspace{each}" for each in ending]
    claim = person.get(person.core("persistentvolumeclaims", "vit-training-workspace"))
    assert claim["spec"]["resources"]["requests"]["storage"] == "80Gi"
    assert person.row("get", "pvc", "vit-training-workspace")["STATUS"] == "Pending"
    # Nobody makes pods here; the label that this command asks for is on the template, above.
    assert person.types("get", "pods", "-l", "torchrun-job-name=vit-training", "-o", "name") == ""


@pytest.mark.usefixtures("kai")
def test_training_job_without_such_a_class_is_refused_by_name(person: Person) -> None:
    person.applies("gpu-training-queue", "training-job")
    until(
        lambda: person.status("training-job").get("phase") == n.PHASE_FAILED, "it is refused", BEGIN_SECONDS
    )
    status = person.status("training-job")
    assert status["reason"] == n.REASON_INVALID_SPEC
    assert "storage.checkpoints can be mounted by one node" in status["message"]
    assert person.get(person.core("persistentvolumeclaims"))["items"] == []


def kai_ready(person: Person) -> tuple[str, str]:
    """The condition for the queue of KAI of the seed's second TorchrunQueue."""
    condition = person.condition("gpu-training-queue", n.KAI_QUEUE_READY, n.QUEUE_KIND)
    return condition.get("status", ""), condition.get("reason", "")


@pytest.mark.usefixtures("kai")
def test_training_job_with_a_class_for_many_nodes(person: Person, shared_class: str) -> None:
    assert shared_class in person.types("get", "storageclass")
    person.applies("gpu-training-queue", "training-job")
    # The seed's parent is nobody's here, until an administrator makes it: KAI would start nothing below it.
    condition = until(
        lambda: (
            person.status("training-job").get("reason") == n.REASON_KAI_QUEUE_NOT_FOUND
            and "queue default of KAI Scheduler does not exist"
            in (said := person.status("training-job")["message"])
            and said
        ),
        "the job names the missing parent",
        BEGIN_SECONDS,
    )
    assert condition.startswith(
        "queue default of KAI Scheduler does not exist; it is above queue gpu-training."
    )
    until(lambda: kai_ready(person) == ("False", n.REASON_PARENT_QUEUE_NOT_FOUND), "so does its queue")
    above = {
        "apiVersion": f"{n.KAI_GROUP}/{n.KAI_QUEUE_VERSION}",
        "kind": "Queue",
        "metadata": {"name": "default"},
    }
    assert person.server.request("POST", f"{KAI}/v2/queues", above).status == 201
    until(lambda: kai_ready(person) == ("True", "Created"), "the parent is seen")
    until(
        lambda: person.status("training-job").get("phase") == n.PHASE_PROVISIONING, "it begins", BEGIN_SECONDS
    )
    made = person.get(person.batch("training-job-0"))["spec"]
    assert (made["completions"], made["template"]["spec"]["priorityClassName"]) == (2, "gpu-priority")
    sizes = {
        each["metadata"]["name"]: each["spec"]["resources"]["requests"]["storage"]
        for each in person.get(person.core("persistentvolumeclaims"))["items"]
    }
    assert sizes == {"training-job-workspace": "160Gi", "training-job-checkpoints": "800Gi"}
    queue = until(
        lambda: person.server.request("GET", f"{KAI}/v2/queues/gpu-training").body.get("spec"), "KAI's queue"
    )
    assert queue["parentQueue"] == "default"
    until(
        lambda: person.condition("gpu-training-queue", n.READY, n.QUEUE_KIND).get("reason") == "Refused",
        "the missing priority class is reported",
    )
    described = person.types("describe", "torchrunqueue", "gpu-training-queue")
    assert "no PriorityClass with name gpu-priority was found" in described
