"""Service Quotas of EC2, EBS, FSx and EKS. moto has only those of VPC, and they stay.

The quotas of vCPUs and disks are those of an account that has requested increases: a new account gets almost no G, P
and Trn. A requested increase is granted at once, so that users can try what the preflight proposes.
"""

from __future__ import annotations

import json
from typing import Any, Final

from moto.servicequotas.models import ServiceQuotasBackend
from moto.servicequotas.responses import ServiceQuotasResponse

from local.aws.ec2_utils import table

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


def _granted(backend: Any) -> dict[tuple[str, str], float]:
    """Return the values that were requested in this account."""
    return table(backend, "quotas")


def _shown(quota: tuple[str, str, str, float, float], value: float) -> dict[str, Any]:
    service, code, name, *_ = quota
    return {"ServiceCode": service, "QuotaCode": code, "QuotaName": name, "Value": value}


def _ours(service: str, code: str) -> tuple[str, str, str, float, float] | None:
    return next((quota for quota in QUOTAS if quota[:2] == (service, code)), None)


def install() -> None:
    """Answer for the quotas above, and for requests to raise any quota."""
    of_moto = ServiceQuotasBackend.get_service_quota

    def value(self: Any, service_code: str, quota_code: str) -> dict[str, Any]:
        quota = _ours(service_code, quota_code)
        shown = _shown(quota, quota[3]) if quota else dict(of_moto(self, service_code, quota_code))
        return {**shown, "Value": _granted(self).get((service_code, quota_code), shown["Value"])}

    def default(self: Any) -> str:
        body = json.loads(self.body)
        quota = _ours(body["ServiceCode"], body["QuotaCode"])
        shown = (
            _shown(quota, quota[4])
            if quota
            else of_moto(self.backend, body["ServiceCode"], body["QuotaCode"])
        )
        return json.dumps({"Quota": shown})

    def increase(self: Any) -> str:
        body = json.loads(self.body)
        service, code = body["ServiceCode"], body["QuotaCode"]
        value(self.backend, service, code)  # refuses an unknown one
        _granted(self.backend)[(service, code)] = float(body["DesiredValue"])
        return json.dumps({"RequestedQuota": {**body, "Id": f"{service}-{code}", "Status": "APPROVED"}})

    ServiceQuotasBackend.get_service_quota = value
    ServiceQuotasResponse.get_aws_default_service_quota = default
    ServiceQuotasResponse.request_service_quota_increase = increase
