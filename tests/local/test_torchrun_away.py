"""What docs/torchrun.md types for queues with a pool, and to take everything away again, on a real API server."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from components.shared import contract as c
from launcher.core.torchrun import names as n
from local.home import CHECKOUT
from tests.local import kai
from tests.local.own_api_server import ApiServer
from tests.local.torchrun_controller import Team, controller, until
from tests.local.torchrun_machine import cluster
from tests.torchrun_manifests import manifest

pytestmark = [pytest.mark.local, pytest.mark.timeout(300)]

BLOCKS = re.findall(r"```bash\n(.+?)```", (CHECKOUT / "docs" / "torchrun.md").read_text(), re.DOTALL)
PRIORITY = f"/apis/scheduling.k8s.io/v1/priorityclasses/{c.PLACEHOLDER_PRIORITY_CLASS}"
DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"


def typed(server: ApiServer, word: str) -> None:
    """The block that has this in its first line, line by line."""
    (block,) = (each for each in BLOCKS if word in each.partition("\n")[0])
    for line in block.splitlines():
        kubectl, *words = shlex.split(line)
        assert kubectl == "kubectl"
        done = server.kubectl(*words)
        assert done.returncode == 0, f"{line}: {done.stderr}"


def test_all_of_it_goes_by_the_commands_of_the_page_also_while_jobs_run(tmp_path: Path) -> None:
    with cluster(with_kai=True) as server, controller(server, tmp_path):
        typed(server, "create priorityclass")
        made = server.request("GET", PRIORITY).body
        assert (made["value"], made["preemptionPolicy"]) == (c.PLACEHOLDER_PRIORITY, "Never")
        team = Team(server, "team")
        gang = {"scheduling.scheduler": n.KAI_SCHEDULER, "kaiQueue": "gpus"}
        team.make(manifest(n.QUEUE_KIND, "research", gang))
        team.make(manifest(n.JOB_KIND, "vit"))
        until(lambda: team.get(team.core("pods")).get("items"), "its workers are made", 60.0)
        assert team.get(f"{kai.QUEUES}/gpus")

        typed(server, "delete torchrunjobs")
        assert not team.get(f"{kai.QUEUES}/gpus")
        assert not team.get(PRIORITY)
        assert not team.get(f"/api/v1/namespaces/{n.CONTROLLER_NAMESPACE}")
        groups = {each["spec"]["group"] for each in team.get(DEFINITIONS)["items"]}
        assert n.GROUP not in groups
        made_for_it = (team.batch(), team.core("pods"), team.core("services"), kai.gangs(team.name))
        until(lambda: not any(team.get(each)["items"] for each in made_for_it), "all goes after the job")
