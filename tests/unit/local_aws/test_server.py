"""The server itself: who may call, what is not there, and instance types."""

from __future__ import annotations

import json
import socket
import time
from datetime import date
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest
from botocore.exceptions import ClientError

from tests.unit.emulator import Cloud


@pytest.fixture
def cloud(cloud: Cloud, over_http: None) -> Cloud:
    """The emulator, called over HTTP."""
    return cloud


def test_health_answers(cloud):
    assert cloud.call("GET", "health")[0]["status"] == "ok"


OURS = (
    ("GET", "instances?cluster=main"),
    ("GET", "mount"),
    ("GET", "faults"),
    ("PUT", "faults"),
    ("POST", "interruptions"),
    ("GET", "no-such-path"),
)


@pytest.mark.parametrize("authorization", ["", "Bearer wrong", "Bearer "])
@pytest.mark.parametrize(("method", "path"), OURS)
def test_our_paths_are_closed_without_the_token(cloud, method, path, authorization):
    headers = {"Authorization": authorization} if authorization else {}
    request = Request(f"{cloud.endpoint}/_trainyard/{path}", b"{}", headers, method=method)  # noqa: S310
    with pytest.raises(HTTPError) as error:
        urlopen(request, timeout=10)  # noqa: S310
    assert error.value.code == 401
    assert "run/cloud.json" in json.loads(error.value.read())["error"]


def answer_of(cloud: Cloud, length: str, *headers: str, body: str = "") -> bytes:
    """The status line of the answer to a request whose body is not sent, or only this part of it."""
    host, port = cloud.endpoint.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=10) as link:
        lines = [
            "PUT /bucket/key HTTP/1.1",
            f"Host: s3.{host}",
            f"Content-Length: {length}",
            *headers,
            "",
            "",
        ]
        link.sendall(("\r\n".join(lines) + body).encode())
        return link.recv(100).splitlines()[0]


def test_large_body_is_refused_before_it_is_read(cloud):
    assert b" 413 " in answer_of(cloud, "1048577")
    unknown = "Authorization: AWS4-HMAC-SHA256 Credential=AKIAUNKNOWN/20260101/us-west-2/s3/aws4_request"
    assert b" 413 " in answer_of(cloud, "1048577", unknown)
    for length in ("abc", "-1", "1e9"):
        assert b" 400 " in answer_of(cloud, length)


def test_chunked_body_needs_a_key(cloud):
    chunked = "Transfer-Encoding: chunked"
    assert b" 411 " in answer_of(cloud, "0", chunked)
    credential = f"{cloud.key}/20260101/us-west-2/s3/aws4_request"
    signed = f"Authorization: AWS4-HMAC-SHA256 Credential={credential}, SignedHeaders=host, Signature=0"
    assert b" 411 " not in answer_of(cloud, "0", chunked, signed, body="0\r\n\r\n")


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/moto-api/data.json"),
        ("GET", "/moto-api/"),
        ("POST", "/moto-api/reset"),
        ("POST", "/moto-api/reset-auth"),
        ("POST", "/moto-api/config"),
        ("POST", "/moto-api/seed"),
        ("GET", "/moto-api/recorder/download-recording"),
        ("GET", "/moto-apix"),
        ("GET", "/latest/meta-data/iam/security-credentials/"),
        ("PUT", "/latest/api/token"),
    ],
)
def test_dashboard_and_metadata_of_moto_are_closed(cloud, method, path):
    with pytest.raises(HTTPError) as error:
        urlopen(Request(cloud.endpoint + path, method=method), timeout=10)  # noqa: S310
    assert error.value.code == 404
    assert cloud.secret not in error.value.read().decode()


def test_an_unknown_path_of_ours_names_the_ones_there_are(cloud):
    with pytest.raises(HTTPError) as error:
        cloud.call("GET", "helth")
    assert error.value.code == 404
    assert "/_trainyard/health" in error.value.read().decode()


def test_the_deployer_is_an_iam_user_who_may_do_all(cloud):
    assert cloud.client("sts").get_caller_identity()["Arn"] == "arn:aws:iam::123456789012:user/deployer"
    assert cloud.client("ec2").describe_vpcs()["Vpcs"]


@pytest.mark.parametrize(
    ("service", "call", "code"),
    [
        ("ec2", "describe_vpcs", "AuthFailure"),
        ("iam", "list_roles", "InvalidClientTokenId"),
        ("eks", "list_clusters", "UnrecognizedClientException"),
        ("sqs", "list_queues", "UnrecognizedClientException"),
        ("s3", "list_buckets", "InvalidAccessKeyId"),
    ],
)
def test_a_key_of_nobody_is_refused(cloud, service, call, code):
    stranger = {"AccessKeyId": "AKIAIOSFODNN7EXAMPLE", "SecretAccessKey": "x"}
    with pytest.raises(ClientError) as error:
        getattr(cloud.client(service, stranger), call)()
    assert error.value.response["Error"]["Code"] == code


def test_unsupported_action_is_named_in_the_error(cloud):
    with pytest.raises(ClientError, match="ec2:DescribeIpams") as error:
        cloud.client("ec2").describe_ipams()
    assert error.value.response["Error"]["Code"] == "UnsupportedOperation"


def test_instance_types_are_serialised_once(cloud):
    ec2 = cloud.client("ec2")
    filters = [{"Name": "instance-type", "Values": ["g5.*", "p4d.24xlarge"]}]
    first = ec2.describe_instance_types(Filters=filters)["InstanceTypes"]
    started = time.perf_counter()
    again = ec2.describe_instance_types(Filters=filters)["InstanceTypes"]
    assert [t["InstanceType"] for t in again] == [t["InstanceType"] for t in first]
    assert "p4d.24xlarge" in {t["InstanceType"] for t in again}
    assert time.perf_counter() - started < 1


def test_an_instance_type_that_ec2_lacks_is_refused(cloud):
    with pytest.raises(ClientError, match=r"g5\.13xlarge"):
        cloud.client("ec2").describe_instance_types(InstanceTypes=["g5.13xlarge"])


def test_prices_order_types_and_come_in_pages(cloud):
    pricing = cloud.client("pricing")
    filters = [
        {"Type": "TERM_MATCH", "Field": "regionCode", "Value": "us-west-2"},
        {"Type": "TERM_MATCH", "Field": "productFamily", "Value": "Compute Instance"},
    ]
    page = pricing.get_products(ServiceCode="AmazonEC2", Filters=filters)
    assert len(page["PriceList"]) == 100
    following = pricing.get_products(ServiceCode="AmazonEC2", Filters=filters, NextToken=page["NextToken"])
    assert not set(page["PriceList"]) & set(following["PriceList"])
    from local.aws.prices import hourly

    assert hourly("t3.medium") < hourly("g5.12xlarge") < hourly("p4d.24xlarge") < hourly("p5.48xlarge")


# The filters of Karpenter (aws/karpenter-provider-aws, pkg/providers/pricing/pricing.go).
KARPENTER = {
    "regionCode": "us-west-2", "serviceCode": "AmazonEC2", "preInstalledSw": "NA", "operatingSystem": "Linux",
    "capacitystatus": "Used", "marketoption": "OnDemand", "instanceType": "g5.12xlarge",
}  # fmt: skip
SHARED = {"tenancy": "Shared", "productFamily": "Compute Instance"}


@pytest.mark.parametrize(
    ("changes", "count"),
    [
        (SHARED, 1),
        ({"tenancy": "Dedicated", "productFamily": "Compute Instance (bare metal)"}, 0),
        ({"tenancy": "Dedicated", "productFamily": "Compute Instance"}, 0),
        ({**SHARED, "productFamily": "Storage"}, 0),
        ({**SHARED, "operatingSystem": "Windows"}, 0),
        ({**SHARED, "regionCode": "nowhere"}, 0),
        ({**SHARED, "volumeApiName": "gp3"}, 0),
    ],
)
def test_products_match_all_filters(cloud, changes, count):
    wanted = {**KARPENTER, **changes}
    filters = [{"Type": "TERM_MATCH", "Field": field, "Value": value} for field, value in wanted.items()]
    found = cloud.client("pricing").get_products(ServiceCode="AmazonEC2", Filters=filters)
    assert len(found["PriceList"]) == count


def test_spot_prices_have_a_price(cloud):
    history = cloud.client("ec2").describe_spot_price_history(InstanceTypes=["g5.12xlarge"])[
        "SpotPriceHistory"
    ]
    assert {h["AvailabilityZone"] for h in history} == {"us-west-2a", "us-west-2b", "us-west-2c"}
    assert all(float(h["SpotPrice"]) > 0 for h in history)


def test_kubernetes_images_are_found_by_parameter_and_by_id(cloud):
    ssm, ec2 = cloud.client("ssm"), cloud.client("ec2")
    base = "/aws/service/eks/optimized-ami/1.35/amazon-linux-2023/x86_64/"
    latest = ssm.get_parameter(Name=base + "nvidia/recommended/image_id")["Parameter"]["Value"]
    pinned = base + "nvidia/amazon-eks-node-al2023-x86_64-nvidia-1.35-v20260724/image_id"
    assert ssm.get_parameter(Name=pinned)["Parameter"]["Value"] == latest
    older = base + "nvidia/amazon-eks-node-al2023-x86_64-nvidia-1.35-v20260120/image_id"
    assert ssm.get_parameter(Name=older)["Parameter"]["Value"] != latest
    image = ec2.describe_images(Filters=[{"Name": "image-id", "Values": [latest]}])["Images"][0]
    assert image["Architecture"] == "x86_64"


@pytest.mark.long
@pytest.mark.parametrize(
    ("version", "release", "there"),
    [
        ("1.35", "v20260714", True),
        # Newer than what is known here, and not after today.
        ("1.35", "v20260801", True),
        ("1.35", "v20261123", False),
        # No release of that day; one that was abandoned; one before there was the version; no release at all.
        ("1.35", "v20260713", False),
        ("1.35", "v20260311", False),
        ("1.36", "v20260505", False),
        ("1.99", "v20260714", False),
        ("1.35", "v20260724-2", False),
    ],
)
def test_images_are_those_of_releases_that_there_were(version, release, there):
    from local.aws.images import is_published

    assert is_published(version, release, date(2026, 11, 22)) is there


@pytest.mark.parametrize(
    "image",
    [
        "1.35/amazon-linux-2023/x86_64/standard/amazon-eks-node-al2023-x86_64-standard-1.35-v20260713",
        "1.20/amazon-linux-2023/x86_64/standard/recommended",
        "1.99/amazon-linux-2023/x86_64/standard/recommended",
    ],
)
def test_image_that_eks_lacks_has_no_parameter(cloud, image):
    with pytest.raises(ClientError, match="ParameterNotFound"):
        cloud.client("ssm").get_parameter(Name=f"/aws/service/eks/optimized-ami/{image}/image_id")


def test_the_quick_writer_says_what_motos_serialiser_says(cloud, monkeypatch):
    from local.aws import static_answers

    ec2 = cloud.client("ec2")
    names = ["g5.12xlarge", "p4d.24xlarge", "trn1.32xlarge", "t3.micro"]

    def ask():
        offerings = [{"Name": "instance-type", "Values": names}]
        return (
            ec2.describe_instance_types(InstanceTypes=names)["InstanceTypes"],
            ec2.describe_instance_type_offerings(LocationType="availability-zone", Filters=offerings)[
                "InstanceTypeOfferings"
            ],
            [
                h["SpotPrice"]
                for h in ec2.describe_spot_price_history(InstanceTypes=names)["SpotPriceHistory"]
            ],
        )

    quick = ask()
    monkeypatch.setattr(static_answers, "STATIC_ACTIONS", set())
    assert quick == ask()
    assert len(quick[0]) == 4


def test_a_dry_run_of_a_static_answer_is_a_dry_run(cloud):
    with pytest.raises(ClientError, match="DryRunOperation"):
        cloud.client("ec2").describe_instance_types(DryRun=True)
