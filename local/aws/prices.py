"""The Price List API's GetProducts and EC2's spot prices, which Karpenter reads.

The prices are estimates from the resources of an instance type (vCPUs, memory, accelerators). They order types as the
real prices do, which is enough for choices. They are not a bill.
"""

from __future__ import annotations

import functools
import json
from typing import Any

from moto.ec2.models.instance_types import INSTANCE_TYPE_OFFERINGS, INSTANCE_TYPES

USD_PER_VCPU = 0.034
USD_PER_GIB = 0.0045
# USD per hour of one accelerator, by its model.
USD_PER_ACCELERATOR = {"V100": 2.4, "A100": 2.4, "H100": 9.0, "H200": 10.0, "B200": 14.0, "T4": 0.3, "A10G": 0.6,
                       "L4": 0.5, "L40S": 1.2, "Trainium": 1.0, "Trainium2": 2.0, "Inferentia": 0.2}  # fmt: skip
USD_PER_OTHER_ACCELERATOR = 1.0
SPOT_SHARE = 0.4
PAGE = 100
TARGET = "AWSPriceListService.GetProducts"


@functools.cache
def hourly(instance_type: str) -> float:
    """Return the estimated on-demand price in USD per hour; infinite for a type that does not exist."""
    facts = INSTANCE_TYPES.get(instance_type)
    if facts is None:
        return float("inf")
    price = (
        facts["VCpuInfo"]["DefaultVCpus"] * USD_PER_VCPU
        + facts["MemoryInfo"]["SizeInMiB"] / 1024 * USD_PER_GIB
    )
    for device in accelerators(facts):
        price += device.get("Count", 0) * USD_PER_ACCELERATOR.get(
            device.get("Name", ""), USD_PER_OTHER_ACCELERATOR
        )
    return round(float(price), 4)


def accelerators(facts: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the GPUs, Neuron devices and inference chips of a type."""
    devices: list[dict[str, Any]] = []
    for info, key in (("GpuInfo", "Gpus"), ("NeuronInfo", "NeuronDevices")):
        devices += facts.get(info, {}).get(key, [])
    return devices


@functools.lru_cache(maxsize=64)
def _products(region: str, family: str) -> tuple[str, ...]:
    metal = "bare metal" in family
    offered = sorted({o["InstanceType"] for o in INSTANCE_TYPE_OFFERINGS["region"].get(region, [])})
    return tuple(
        json.dumps(
            {
                "product": {
                    "attributes": {"instanceType": name, "regionCode": region},
                    "productFamily": family,
                },
                "serviceCode": "AmazonEC2",
                "terms": {
                    "OnDemand": {
                        name: {
                            "priceDimensions": {
                                name: {"unit": "Hrs", "pricePerUnit": {"USD": f"{hourly(name):.4f}"}}
                            }
                        }
                    }
                },
            }
        )
        for name in offered
        if (".metal" in name) == metal and name in INSTANCE_TYPES
    )


def get_products(body: dict[str, Any], default_region: str) -> dict[str, Any]:
    """Answer GetProducts. Only the filters regionCode, productFamily and instanceType have an effect.

    `body` is the request's JSON. The answer has at most 100 entries a page.

    Raises:
        ValueError: The request is for another service.
    """
    if body.get("ServiceCode") != "AmazonEC2":
        raise ValueError(f"ServiceCode: only AmazonEC2 is priced here, got {body.get('ServiceCode')!r}")
    filters = {f.get("Field"): f.get("Value") for f in body.get("Filters", [])}
    region = filters.get("regionCode") or default_region
    family = filters.get("productFamily")
    families = [family] if family else ["Compute Instance", "Compute Instance (bare metal)"]
    items = [text for f in families for text in _products(region, f)]
    wanted = filters.get("instanceType")
    if wanted:
        items = [t for t in items if json.loads(t)["product"]["attributes"]["instanceType"] == wanted]
    start, size = int(body.get("NextToken") or 0), min(int(body.get("MaxResults") or PAGE), PAGE)
    answer: dict[str, Any] = {"FormatVersion": "aws_v1", "PriceList": items[start : start + size]}
    if start + size < len(items):
        answer["NextToken"] = str(start + size)
    return answer


def install() -> None:
    """Add prices to EC2's spot price history, in which moto lists offerings without one."""
    from moto.core.responses import ActionResult
    from moto.core.utils import utcnow
    from moto.ec2.responses.spot_instances import SpotInstances

    def describe_spot_price_history(self: Any) -> ActionResult:
        types = self._get_param("InstanceTypes", [])
        offerings = self.ec2_backend.describe_spot_price_history(types, self._filters_from_querystring())
        now = utcnow()
        history = [
            {
                "AvailabilityZone": o["Location"],
                "InstanceType": o["InstanceType"],
                "ProductDescription": "Linux/UNIX",
                "SpotPrice": f"{hourly(o['InstanceType']) * SPOT_SHARE:.4f}",
                "Timestamp": now,
            }
            for o in offerings
            if o["InstanceType"] in INSTANCE_TYPES
        ]
        return ActionResult({"SpotPriceHistory": history, "NextToken": ""})

    SpotInstances.describe_spot_price_history = describe_spot_price_history
