"""Service Quotas of EC2, EBS, FSx and EKS. moto has only those of VPC, and they stay.

The quotas of vCPUs and disks are those of an account that has requested increases: a new account gets almost no G, P
and Trn. A requested increase is granted at once, so that users can try what the preflight proposes.
"""

from __future__ import annotations

import json
from typing import Any, Final

from moto.servicequotas.models import ServiceQuotasBackend
from moto.servicequotas.responses import ServiceQuotasResponse

from local.aws.account import ACCOUNT_ID
from local.aws.ec2_utils import table
from local.aws.pages import page

_VCPUS: Final = 10000.0
# Service, code, name, value in this account, AWS default. The codes are from `aws service-quotas
# list-service-quotas`.
QUOTAS: Final = (
    ("ec2", "L-1216C47A", "Running On-Demand Standard (A, C, D, H, I, M, R, T, Z) instances", _VCPUS, 5.0),
    ("ec2", "L-DB2E81BA", "Running On-Demand G and VT instances", _VCPUS, 0.0),
    ("ec2", "L-417A185B", "Running On-Demand P instances", _VCPUS, 0.0),
    ("ec2", "L-2C3B7624", "Running On-Demand Trn instances", _VCPUS, 0.0),
    ("ec2", "L-34B43A08", "All Standard (A, C, D, H, I, M, R, T, Z) Spot Instance Requests", _VCPUS, 5.0),
    ("ec2", "L-3819A6DF", "All G and VT Spot Instance Requests", _VCPUS, 0.0),
    ("ec2", "L-7212CCBC", "All P4, P3 and P2 Spot Instance Requests", _VCPUS, 0.0),
    ("ec2", "L-C4BD4855", "All P5 Spot Instance Requests", _VCPUS, 0.0),
    ("ec2", "L-6B0D517C", "All Trn Spot Instance Requests", _VCPUS, 0.0),
    ("ec2", "L-0263D0A3", "EC2-VPC Elastic IPs", 5.0, 5.0),
    ("ebs", "L-7A658B76", "Storage for General Purpose SSD (gp3) volumes, in TiB", 1000.0, 50.0),
    ("fsx", "L-AD2FC696", "Lustre Scratch storage capacity", 100800.0, 100800.0),
    ("fsx", "L-C8640C82", "Lustre Persistent_1 storage capacity", 100800.0, 100800.0),
    ("fsx", "L-8F1B9C74", "Lustre Persistent_2 storage capacity", 100800.0, 100800.0),
    ("eks", "L-1194D53C", "Clusters", 100.0, 100.0),
)

SERVICES: Final = {
    "ebs": "Amazon Elastic Block Store (Amazon EBS)",
    "ec2": "Amazon Elastic Compute Cloud (Amazon EC2)",
    "eks": "Amazon Elastic Kubernetes Service (Amazon EKS)",
    "fsx": "Amazon FSx",
    "vpc": "Amazon Virtual Private Cloud (Amazon VPC)",
}


def _granted(backend: Any) -> dict[tuple[str, str], float]:
    """Return the values that were requested in this account."""
    return table(backend, "quotas")


def _shown(backend: Any, quota: tuple[str, str, str, float, float], *, default: bool) -> dict[str, Any]:
    service, code, name, value, initial = quota
    account = "" if default else ACCOUNT_ID
    return {
        "ServiceCode": service,
        "ServiceName": SERVICES[service],
        "QuotaCode": code,
        "QuotaName": name,
        "QuotaArn": f"arn:aws:servicequotas:{backend.region_name}:{account}:{service}/{code}",
        "Value": initial if default else _granted(backend).get((service, code), value),
        "Unit": "None",
        "Adjustable": True,
        "GlobalQuota": False,
    }


def _ours(service: str, code: str) -> tuple[str, str, str, float, float] | None:
    return next((quota for quota in QUOTAS if quota[:2] == (service, code)), None)


def install() -> None:
    """Answer for the quotas above, and for requests to raise any quota."""
    of_moto, vpc_quotas = (
        ServiceQuotasBackend.get_service_quota,
        ServiceQuotasBackend.list_aws_default_service_quotas,
    )

    def value(self: Any, service_code: str, quota_code: str) -> dict[str, Any]:
        quota = _ours(service_code, quota_code)
        if quota is not None:
            return _shown(self, quota, default=False)
        shown: dict[str, Any] = dict(of_moto(self, service_code, quota_code))
        shown["Value"] = _granted(self).get((service_code, quota_code), shown["Value"])
        return shown

    def default(self: Any) -> str:
        body = json.loads(self.body)
        service, code = str(body.get("ServiceCode")), str(body.get("QuotaCode"))
        quota = _ours(service, code)
        shown = _shown(self.backend, quota, default=True) if quota else of_moto(self.backend, service, code)
        return json.dumps({"Quota": shown})

    def increase(self: Any) -> str:
        body = json.loads(self.body)
        service, code = str(body.get("ServiceCode")), str(body.get("QuotaCode"))
        value(self.backend, service, code)  # refuses an unknown one
        _granted(self.backend)[(service, code)] = float(body["DesiredValue"])
        requested = {"ServiceCode": service, "QuotaCode": code, "DesiredValue": float(body["DesiredValue"])}
        return json.dumps({"RequestedQuota": {**requested, "Id": f"{service}-{code}", "Status": "APPROVED"}})

    def answer_page(self: Any, key: str, items: list[dict[str, Any]]) -> str:
        body = json.loads(self.body)
        codes = ("InvalidPaginationTokenException", "IllegalArgumentException")
        found, token = page(items, body.get("NextToken"), body.get("MaxResults"), key=key, codes=codes)
        return json.dumps({key: found, "NextToken": token} if token else {key: found})

    def listed(self: Any, *, default: bool) -> str:
        body = json.loads(self.body)
        service = str(body.get("ServiceCode"))
        found = [_shown(self.backend, quota, default=default) for quota in QUOTAS if quota[0] == service]
        for quota in [] if found else vpc_quotas(self.backend, service):  # refuses an unknown service
            found.append(quota if default else value(self.backend, service, quota["QuotaCode"]))
        code = body.get("QuotaCode")
        return answer_page(self, "Quotas", [each for each in found if code in (None, each["QuotaCode"])])

    def list_services(self: Any) -> str:
        services = [{"ServiceCode": code, "ServiceName": name} for code, name in SERVICES.items()]
        return answer_page(self, "Services", services)

    ServiceQuotasBackend.get_service_quota = value
    ServiceQuotasResponse.list_service_quotas = lambda self: listed(self, default=False)
    ServiceQuotasResponse.list_aws_default_service_quotas = lambda self: listed(self, default=True)
    ServiceQuotasResponse.list_services = list_services
    ServiceQuotasResponse.get_aws_default_service_quota = default
    ServiceQuotasResponse.request_service_quota_increase = increase
