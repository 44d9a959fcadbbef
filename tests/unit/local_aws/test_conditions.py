"""What EKS's node monitoring agent says of a machine, and how a fault of it is put."""

from __future__ import annotations

import json
import time

import pytest

from tests.unit.local_aws.test_fleets import Launcher

HARDWARE = "AcceleratedHardwareReady"


@pytest.fixture
def launcher(cloud):
    cloud.cluster("main")
    return Launcher(cloud)


def listed(launcher):
    return launcher.cloud.call("GET", "instances?cluster=main")[0]


def monitored(launcher):
    launcher.cloud.client("eks").create_addon(clusterName="main", addonName="eks-node-monitoring-agent")


def test_without_the_agent_nobody_says_anything(launcher):
    launcher.plan({"condition": HARDWARE, "code": "NvidiaXID79Error"})
    launcher.fleet(zones="a")
    assert listed(launcher)[0]["conditions"] == []


def test_the_agent_finds_a_healthy_machine_healthy(launcher):
    monitored(launcher)
    launcher.fleet(zones="a")
    found = {each["type"]: each["status"] for each in listed(launcher)[0]["conditions"]}
    assert found == dict.fromkeys(
        (HARDWARE, "ContainerRuntimeReady", "KernelReady", "NetworkingReady", "StorageReady"), "True"
    )


def test_a_machine_without_accelerators_has_no_word_on_them(launcher):
    monitored(launcher)
    launcher.fleet(zones="a", types=("m5.large",))
    assert HARDWARE not in {each["type"] for each in listed(launcher)[0]["conditions"]}


def test_a_fault_is_that_of_one_machine_and_as_old_as_it_was_put(launcher):
    monitored(launcher)
    ids = [launcher.fleet(zones=zone)["Instances"][0]["InstanceIds"][0] for zone in "ab"]
    shown = launcher.plan(
        {"condition": HARDWARE, "code": "NvidiaXID79Error", "instanceId": ids[0], "since": 600}
    )["faults"][0]
    assert (shown["condition"], shown["instanceId"]) == (HARDWARE, ids[0])
    found = {
        item["instanceId"]: next(each for each in item["conditions"] if each["type"] == HARDWARE)
        for item in listed(launcher)
    }
    assert (found[ids[0]]["status"], found[ids[0]]["reason"]) == ("False", "NvidiaXID79Error")
    assert found[ids[0]]["since"] == pytest.approx(time.time() - 600, abs=30)
    assert found[ids[1]]["status"] == "True"
    launcher.plan()
    assert {each["status"] for item in listed(launcher) for each in item["conditions"]} == {"True"}


def test_a_sick_machine_keeps_none_from_being_launched(launcher):
    monitored(launcher)
    launcher.plan({"condition": HARDWARE, "code": "NvidiaXID79Error"})
    assert len(launcher.fleet(zones="a")["Instances"]) == 1


def test_dcgm_server_has_the_tolerations_of_the_addon(launcher):
    monitored(launcher)
    launcher.fleet(zones="a")
    assert listed(launcher)[0]["dcgmTolerations"] == []
    eks = launcher.cloud.client("eks")
    values = {"dcgmAgent": {"tolerations": [{"operator": "Exists"}]}}
    here = {"clusterName": "main", "addonName": "eks-node-monitoring-agent"}
    eks.update_addon(**here, configurationValues=json.dumps(values))
    assert listed(launcher)[0]["dcgmTolerations"] == [{"operator": "Exists"}]
    with pytest.raises(eks.exceptions.InvalidParameterException, match=r"dcgmAgent\.tolerations"):
        eks.update_addon(**here, configurationValues='{"dcgmAgent": {"tolerations": "all"}}')
