"""Clusters, node groups, access entries, add-ons."""

from __future__ import annotations

import time
from datetime import date

import pytest
from botocore.exceptions import ClientError


def code_of(error):
    return error.value.response["Error"]["Code"]


def gone(eks, name):
    for _ in range(200):
        try:
            eks.describe_cluster(name=name)
        except eks.exceptions.ResourceNotFoundException:
            return True
        time.sleep(0.01)
    return False


def node_group(cloud, cluster, name="system", **more):
    eks = cloud.client("eks")
    arguments = {
        "scalingConfig": {"minSize": 2, "maxSize": 4, "desiredSize": 2},
        "instanceTypes": ["m6i.large"],
        "nodeRole": cloud.role(f"{name}-nodes", None),
        **more,
    }
    return eks.create_nodegroup(
        clusterName=cluster["name"], nodegroupName=name, subnets=cluster["subnets"], **arguments
    )["nodegroup"]


def test_a_cluster_gets_a_control_plane_and_an_issuer_of_its_own(cloud):
    cluster = cloud.cluster()
    assert cluster["status"] == "ACTIVE"
    assert cluster["endpoint"] == "https://127.0.0.1:6443"
    asked = cloud.supervisor.started[0]
    assert asked["name"] == "main"
    assert asked["issuer"] == cluster["identity"]["oidc"]["issuer"]
    assert asked["issuer"].startswith("https://oidc.eks.us-west-2.amazonaws.com/id/")
    assert cluster["resourcesVpcConfig"]["vpcId"] == cluster["vpc"]


def test_a_control_plane_that_does_not_start_makes_the_cluster_failed_and_says_why(cloud):
    cloud.supervisor.refuse = "etcd: no space left on device"
    cluster = cloud.cluster()
    assert cluster["status"] == "FAILED"
    assert "no space left" in cluster["health"]["issues"][0]["message"]


def test_deleting_a_cluster_stops_its_control_plane_and_removes_what_it_made(cloud):
    cluster = cloud.cluster()
    eks, ec2 = cloud.client("eks"), cloud.client("ec2")
    group = cluster["resourcesVpcConfig"]["clusterSecurityGroupId"]
    with pytest.raises(ClientError, match="DependencyViolation"):
        ec2.delete_subnet(SubnetId=cluster["subnets"][0])
    eks.delete_cluster(name="main")
    assert gone(eks, "main")
    assert cloud.supervisor.stopped == ["main"]
    with pytest.raises(ClientError, match=group):
        ec2.describe_security_groups(GroupIds=[group])
    for subnet in cluster["subnets"]:
        ec2.delete_subnet(SubnetId=subnet)
    ec2.delete_vpc(VpcId=cluster["vpc"])


LOGGED = {"clusterLogging": [{"types": ["audit"], "enabled": True}]}


@pytest.mark.parametrize("deleted_before", [True, False])
def test_log_group_late_entries_create_it_once_more(cloud, deleted_before):
    cloud.cluster(logging=LOGGED)
    eks, logs = cloud.client("eks"), cloud.client("logs")
    name = "/aws/eks/main/cluster"
    logs.create_log_group(logGroupName=name, tags={"a": "b"})
    if deleted_before:
        logs.delete_log_group(logGroupName=name)
    eks.delete_cluster(name="main")
    assert gone(eks, "main")
    if not deleted_before:
        logs.delete_log_group(logGroupName=name)
    [group] = logs.describe_log_groups()["logGroups"]
    assert group["logGroupName"] == name
    assert logs.list_tags_log_group(logGroupName=name)["tags"] == {}
    logs.delete_log_group(logGroupName=name)
    assert logs.describe_log_groups()["logGroups"] == []


def test_a_cluster_without_logs_leaves_its_log_group_alone(cloud):
    cloud.cluster()
    eks, logs = cloud.client("eks"), cloud.client("logs")
    logs.create_log_group(logGroupName="/aws/eks/main/cluster")
    eks.delete_cluster(name="main")
    assert gone(eks, "main")
    logs.delete_log_group(logGroupName="/aws/eks/main/cluster")
    assert logs.describe_log_groups()["logGroups"] == []


def test_a_cluster_with_a_node_group_is_not_deleted(cloud):
    cluster = cloud.cluster()
    node_group(cloud, cluster)
    with pytest.raises(ClientError) as error:
        cloud.client("eks").delete_cluster(name="main")
    assert code_of(error) == "ResourceInUseException"


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"version": "1.12"}, "1.12"),
        ({"roleArn": "arn:aws:iam::123456789012:role/nobody"}, "role/nobody"),
        ({"resourcesVpcConfig": {"subnetIds": ["subnet-1"]}}, "subnet-1"),
    ],
)
def test_a_cluster_that_cannot_be_is_refused(cloud, change, says):
    network = cloud.network()
    arguments = {
        "name": "main",
        "roleArn": cloud.role("cluster", None),
        "resourcesVpcConfig": {"subnetIds": network["subnets"]},
        **change,
    }
    with pytest.raises(ClientError, match=says) as error:
        cloud.client("eks").create_cluster(**arguments)
    assert code_of(error) == "InvalidParameterException"


def test_update_logging_is_listed(cloud):
    cloud.cluster()
    eks = cloud.client("eks")
    on = [{"types": ["api", "audit"], "enabled": True}]
    update = eks.update_cluster_config(name="main", logging={"clusterLogging": on})["update"]
    assert eks.describe_update(name="main", updateId=update["id"])["update"]["status"] == "Successful"
    assert eks.describe_cluster(name="main")["cluster"]["logging"]["clusterLogging"][0] == on[0]


def test_a_node_group_runs_instances_in_each_zone_with_its_groups_and_tags(cloud):
    cluster = cloud.cluster()
    group = node_group(
        cloud, cluster, labels={"role": "system"}, taints=[{"key": "a", "effect": "NO_SCHEDULE"}]
    )
    assert group["status"] == "ACTIVE"
    nodes, _ = cloud.call("GET", "instances?cluster=main")
    assert {n["zone"] for n in nodes} == {"us-west-2a", "us-west-2b"}
    assert len({n["privateIp"] for n in nodes}) == 2
    assert nodes[0]["nodegroup"] == {
        "name": "system",
        "labels": {"role": "system"},
        "taints": [{"key": "a", "effect": "NO_SCHEDULE"}],
    }
    assert nodes[0]["tags"]["eks:nodegroup-name"] == "system"
    assert nodes[0]["privateDns"].endswith(".us-west-2.compute.internal")
    assert nodes[0]["joinError"] is None
    shown = cloud.client("ec2").describe_instances(InstanceIds=[nodes[0]["instanceId"]])
    instance = shown["Reservations"][0]["Instances"][0]
    assert [g["GroupId"] for g in instance["SecurityGroups"]] == [
        cluster["resourcesVpcConfig"]["clusterSecurityGroupId"]
    ]


def test_a_node_group_is_scaled_changed_and_deleted(cloud):
    cluster = cloud.cluster()
    eks = cloud.client("eks")
    node_group(cloud, cluster, labels={"old": "x"})
    here = {"clusterName": "main", "nodegroupName": "system"}
    eks.update_nodegroup_config(
        **here,
        scalingConfig={"minSize": 1, "maxSize": 4, "desiredSize": 3},
        labels={"addOrUpdateLabels": {"new": "y"}, "removeLabels": ["old"]},
        taints={"addOrUpdateTaints": [{"key": "k", "value": "v", "effect": "NO_EXECUTE"}]},
    )
    nodes, _ = cloud.call("GET", "instances?cluster=main")
    assert len(nodes) == 3
    assert nodes[0]["nodegroup"]["labels"] == {"new": "y"}
    assert nodes[0]["nodegroup"]["taints"][0]["key"] == "k"
    eks.delete_nodegroup(**here)
    assert cloud.call("GET", "instances?cluster=main")[0] == []
    assert eks.list_nodegroups(clusterName="main")["nodegroups"] == []


def test_a_node_group_takes_type_groups_and_tags_of_its_launch_template(cloud):
    cluster = cloud.cluster()
    ec2 = cloud.client("ec2")
    own = ec2.create_security_group(GroupName="own", Description="own", VpcId=cluster["vpc"])["GroupId"]
    template = ec2.create_launch_template(
        LaunchTemplateName="t",
        LaunchTemplateData={
            "InstanceType": "m6i.xlarge",
            "SecurityGroupIds": [own],
            "TagSpecifications": [{"ResourceType": "instance", "Tags": [{"Key": "team", "Value": "ml"}]}],
        },
    )["LaunchTemplate"]
    group = node_group(
        cloud, cluster, launchTemplate={"id": template["LaunchTemplateId"]}, instanceTypes=[], name="lt"
    )
    assert group["launchTemplate"]["name"] == "t"
    node = cloud.call("GET", "instances?cluster=main")[0][0]
    assert node["instanceType"] == "m6i.xlarge"
    assert node["tags"]["team"] == "ml"
    shown = ec2.describe_instances(InstanceIds=[node["instanceId"]])["Reservations"][0]["Instances"][0]
    assert [g["GroupId"] for g in shown["SecurityGroups"]] == [own]


def test_the_creator_is_administrator_unless_the_request_says_no(cloud):
    eks = cloud.client("eks")
    cloud.cluster()
    me = "arn:aws:iam::123456789012:user/deployer"
    assert eks.list_access_entries(clusterName="main")["accessEntries"] == [me]
    no = {"authenticationMode": "API", "bootstrapClusterCreatorAdminPermissions": False}
    cloud.cluster("second", accessConfig=no)
    assert eks.list_access_entries(clusterName="second")["accessEntries"] == []


def test_access_entries_and_policies_live_and_end(cloud):
    cloud.cluster()
    eks = cloud.client("eks")
    role = cloud.role("people", None)
    here = {"clusterName": "main", "principalArn": role}
    eks.create_access_entry(**here, kubernetesGroups=["team"], tags={"a": "b"})
    with pytest.raises(ClientError) as error:
        eks.create_access_entry(**here)
    assert code_of(error) == "ResourceInUseException"
    policy = "arn:aws:eks::aws:cluster-access-policy/AmazonEKSViewPolicy"
    eks.associate_access_policy(**here, policyArn=policy, accessScope={"type": "cluster"})
    listed = eks.list_associated_access_policies(**here)["associatedAccessPolicies"]
    assert [p["policyArn"] for p in listed] == [policy]
    scope = {"type": "namespace", "namespaces": ["x"]}
    with pytest.raises(ClientError, match="'namespace'"):
        eks.associate_access_policy(**here, policyArn=policy, accessScope=scope)
    entry = eks.describe_access_entry(**here)["accessEntry"]
    assert entry["username"].endswith("assumed-role/people/{{SessionName}}")
    eks.tag_resource(resourceArn=entry["accessEntryArn"], tags={"c": "d"})
    assert eks.describe_access_entry(**here)["accessEntry"]["tags"] == {"a": "b", "c": "d"}
    eks.disassociate_access_policy(**here, policyArn=policy)
    eks.delete_access_entry(**here)
    with pytest.raises(ClientError) as error:
        eks.describe_access_entry(**here)
    assert code_of(error) == "ResourceNotFoundException"


@pytest.mark.parametrize(
    "principal",
    [
        "arn:aws:iam::123456789012:role/nobody",
        "arn:aws:iam::123456789012:user/nobody",
        # The role has a path, which belongs to its ARN.
        "arn:aws:iam::123456789012:role/people",
        "arn:aws:sts::123456789012:assumed-role/people/ada",
        "nobody",
    ],
)
def test_an_access_entry_is_for_somebody_who_exists(cloud, principal):
    cloud.cluster()
    trust = '{"Version": "2012-10-17", "Statement": []}'
    iam = cloud.client("iam")
    people = iam.create_role(RoleName="people", Path="/team/", AssumeRolePolicyDocument=trust)["Role"]["Arn"]
    eks = cloud.client("eks")
    with pytest.raises(ClientError) as error:
        eks.create_access_entry(clusterName="main", principalArn=principal)
    assert code_of(error) == "InvalidParameterException"
    assert "The specified principalArn is invalid: invalid principal." in str(error.value)
    assert eks.create_access_entry(clusterName="main", principalArn=people)["accessEntry"]


def test_people_of_another_account_are_let_in_and_machines_are_not(cloud):
    cloud.cluster()
    theirs = {"clusterName": "main", "principalArn": "arn:aws:iam::999999999999:role/people"}
    eks = cloud.client("eks")
    with pytest.raises(ClientError, match="invalid principal"):
        eks.create_access_entry(**theirs, type="EC2_LINUX")
    assert eks.create_access_entry(**theirs)["accessEntry"]["type"] == "STANDARD"


def test_add_ons_live_and_end(cloud):
    cloud.cluster()
    eks = cloud.client("eks")
    versions = eks.describe_addon_versions(addonName="coredns", kubernetesVersion="1.35")["addons"][0][
        "addonVersions"
    ]
    assert versions[0]["compatibilities"][0]["defaultVersion"] is True
    addon = eks.create_addon(clusterName="main", addonName="coredns", tags={"a": "b"})["addon"]
    assert addon["addonVersion"] == versions[0]["addonVersion"]
    eks.update_addon(clusterName="main", addonName="coredns", configurationValues='{"replicaCount": 2}')
    found = eks.describe_addon(clusterName="main", addonName="coredns")["addon"]
    assert found["configurationValues"] == '{"replicaCount": 2}'
    with pytest.raises(ClientError, match="not valid JSON"):
        eks.update_addon(clusterName="main", addonName="coredns", configurationValues="{")
    with pytest.raises(ClientError, match="core-dns"):
        eks.create_addon(clusterName="main", addonName="core-dns")
    eks.delete_addon(clusterName="main", addonName="coredns")
    assert eks.list_addons(clusterName="main")["addons"] == []


def test_the_network_plugin_takes_the_programs_values_and_no_variables_but_texts(cloud):
    from components.documents.eks import cni_values

    cloud.cluster()
    eks = cloud.client("eks")
    here = {"clusterName": "main", "addonName": "vpc-cni"}
    eks.create_addon(**here, configurationValues='{"enableNetworkPolicy": "true"}')
    eks.update_addon(**here, configurationValues=cni_values({"team": "ml"}), resolveConflicts="OVERWRITE")
    assert eks.describe_addon(**here)["addon"]["configurationValues"] == cni_values({"team": "ml"})
    with pytest.raises(ClientError, match=r"\$\.env\.WARM_IP_TARGET: 4 is not a text"):
        eks.update_addon(**here, configurationValues='{"env": {"WARM_IP_TARGET": 4}}')


@pytest.mark.parametrize(
    ("addon", "version"),
    [
        ("kube-proxy", "v1.36.0-eksbuild.14"),  # newer than the control plane
        ("kube-proxy", "v1.31.14-eksbuild.20"),  # four minor versions older
        ("coredns", "v1.11.4-eksbuild.40"),
        ("coredns", "v1.12.4-eksbuild.2"),  # no build of this number
    ],
)
def test_an_add_on_of_another_kubernetes_version_is_refused_and_not_listed(cloud, addon, version):
    cloud.cluster(version="1.35")
    eks = cloud.client("eks")
    with pytest.raises(ClientError) as error:
        eks.create_addon(clusterName="main", addonName=addon, addonVersion=version)
    assert code_of(error) == "InvalidParameterException"
    assert "Addon version specified is not supported" in str(error.value)
    (found,) = eks.describe_addon_versions(addonName=addon, kubernetesVersion="1.35")["addons"]
    listed = [each["addonVersion"] for each in found["addonVersions"]]
    assert version not in listed
    eks.create_addon(clusterName="main", addonName=addon, addonVersion=listed[-1])


def test_each_kubernetes_version_has_its_own_default_of_an_add_on(cloud):
    eks = cloud.client("eks")
    for version in ("1.36", "1.34", "1.31"):
        (found,) = eks.describe_addon_versions(addonName="kube-proxy", kubernetesVersion=version)["addons"]
        (default,) = [v for v in found["addonVersions"] if v["compatibilities"][0]["defaultVersion"]]
        assert default["addonVersion"].startswith(f"v{version}.")
        assert [v["clusterVersion"] for v in default["compatibilities"]] == [version]
    assert eks.describe_addon_versions(addonName="kube-proxy", kubernetesVersion="1.99")["addons"] == []


def test_an_add_on_that_is_newer_than_the_list_is_taken(cloud):
    cloud.cluster()
    made = cloud.client("eks").create_addon(
        clusterName="main", addonName="coredns", addonVersion="v1.15.0-eksbuild.1"
    )
    assert made["addon"]["addonVersion"] == "v1.15.0-eksbuild.1"


@pytest.mark.parametrize(
    ("day", "status"),
    [
        (date(2026, 7, 28), "STANDARD_SUPPORT"),
        (date(2026, 7, 29), "EXTENDED_SUPPORT"),
        (date(2027, 7, 28), "EXTENDED_SUPPORT"),
        (date(2027, 7, 29), "UNSUPPORTED"),
    ],
)
def test_a_version_is_offered_until_its_extended_support_ends(day, status):
    from local.aws.eks import versions

    assert versions.status("1.33", day) == status
    assert ("1.33" in versions.offered(day)) is (status != "UNSUPPORTED")
    assert versions.status("1.99", day) == "UNSUPPORTED"


def test_cluster_versions_have_the_ends_of_their_support_and_one_default(cloud):
    versions = cloud.client("eks").describe_cluster_versions()["clusterVersions"]
    (found,) = [each for each in versions if each["defaultVersion"]]
    assert found["clusterVersion"] == "1.35"
    assert found["versionStatus"] == "STANDARD_SUPPORT"
    assert found["endOfStandardSupportDate"].date() == date(2027, 3, 27)
