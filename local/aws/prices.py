"""The Price List API's GetProducts and EC2's spot prices, which Karpenter reads.

The prices are estimates from the resources of an instance type (vCPUs, memory, accelerators). They order types as the
real prices do, which is enough for choices. They are not a bill.
"""

from __future__ import annotations

import functools
import json
from typing import Any

from moto.core.responses import ActionResult
from moto.ec2.models.instance_types import INSTANCE_TYPE_OFFERINGS, INSTANCE_TYPES
from moto.ec2.responses.spot_instances import SpotInstances

from local.aws.pages import page

USD_PER_VCPU = 0.034
USD_PER_GIB = 0.0045
# USD per hour of one accelerator, by its model.
USD_PER_ACCELERATOR = {"V100": 2.4, "A100": 2.4, "H100": 9.0, "H200": 10.0, "B200": 14.0, "T4": 0.3, "A10G": 0.6,
                       "L4": 0.5, "L40S": 1.2, "Trainium": 1.0, "Trainium2": 2.0, "Inferentia": 0.2}  # fmt: skip
USD_PER_OTHER_ACCELERATOR = 1.0
SPOT_SHARE = 0.4
SERVICE = "AmazonEC2"
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
    for info, key in (("GpuInfo", "Gpus"), ("NeuronInfo", "NeuronDevices")):
        for device in facts.get(info, {}).get(key, []):
            each = USD_PER_ACCELERATOR.get(device.get("Name", ""), USD_PER_OTHER_ACCELERATOR)
            price += device.get("Count", 0) * each
    return round(float(price), 4)


@functools.lru_cache(maxsize=64)
def _products(region: str) -> tuple[tuple[dict[str, str], str], ...]:
    """Return the on-demand products of a region: what filters compare, and the text of the answer."""
    offered = sorted({o["InstanceType"] for o in INSTANCE_TYPE_OFFERINGS["region"].get(region, [])})
    found = []
    for name in offered:
        if name not in INSTANCE_TYPES:
            continue
        metal = ".metal" in name
        family = "Compute Instance (bare metal)" if metal else "Compute Instance"
        attributes = {
            "instanceType": name,
            "regionCode": region,
            "servicecode": SERVICE,
            "operatingSystem": "Linux",
            "preInstalledSw": "NA",
            "capacitystatus": "Used",
            "marketoption": "OnDemand",
            "tenancy": "Dedicated" if metal else "Shared",
        }
        price = {"unit": "Hrs", "pricePerUnit": {"USD": f"{hourly(name):.4f}"}}
        text = {
            "product": {"attributes": attributes, "productFamily": family},
            "serviceCode": SERVICE,
            "terms": {"OnDemand": {name: {"priceDimensions": {name: price}}}},
        }
        compared = {**attributes, "productFamily": family, "serviceCode": SERVICE, "ServiceCode": SERVICE}
        found.append((compared, json.dumps(text)))
    return tuple(found)


def get_products(body: dict[str, Any]) -> dict[str, Any]:
    """Answer GetProducts: the compute products of one region with the values of all filters (TERM_MATCH).

    `body` is the request's JSON. The answer has at most 100 entries a page.

    Raises:
        ValueError: The request is for another service.
    """
    if body.get("ServiceCode") != SERVICE:
        raise ValueError(f"ServiceCode: only {SERVICE} is priced here, got {body.get('ServiceCode')!r}")
    wanted = {each["Field"]: each["Value"] for each in body.get("Filters") or []}
    items = [
        text
        for product, text in _products(wanted.get("regionCode", "us-east-1"))
        if all(product.get(field) == value for field, value in wanted.items())
    ]
    found, token = page(items, body.get("NextToken"), body.get("MaxResults"))
    answer: dict[str, Any] = {"FormatVersion": "aws_v1", "PriceList": found}
    return {**answer, "NextToken": token} if token else answer


def install() -> None:
    """Set the prices in EC2's spot price history, which are all the same in moto."""
    of_moto = SpotInstances.describe_spot_price_history

    def describe_spot_price_history(self: Any) -> ActionResult:
        offered = of_moto(self).result["SpotPriceHistory"]
        history = [
            {**each, "SpotPrice": f"{hourly(each['InstanceType']) * SPOT_SHARE:.4f}"}
            for each in offered
            if each["InstanceType"] in INSTANCE_TYPES
        ]
        return ActionResult({"SpotPriceHistory": history})

    SpotInstances.describe_spot_price_history = describe_spot_price_history
