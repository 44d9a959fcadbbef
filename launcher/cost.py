"""The node-hours of a run and their price. A node counts while a placeholder or a worker of the run is on it.

Prices are Karpenter's estimates, which it reads from AWS, so the launcher needs no permission there. A node is counted
from its registration, not from the launch of its instance.
"""

from __future__ import annotations

import http.client
import logging
import math
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from prometheus_client.parser import text_string_to_metric_families

from launcher.capacity import placeholders
from launcher.observe import RESERVED, Observation
from launcher.outcome import is_live, workers
from launcher.progress import Usage
from launcher.request import Request
from trainyard.k8s import names

log = logging.getLogger(__name__)

# The Service of Karpenter's chart (charts/karpenter/templates/service.yaml of karpenter-provider-aws v1.14.1).
METRICS_URL = "http://karpenter.kube-system.svc:8080/metrics"
# The price of an offering in USD per hour (pkg/controllers/metrics/metrics.go).
PRICE_METRIC = "karpenter_cloudprovider_instance_type_offering_price_estimate"
ON_DEMAND = "on-demand"
_TIMEOUT_SECONDS = 5.0
_RETRY_SECONDS = 10.0
_REFRESH_SECONDS = 3600.0


class Offering(NamedTuple):
    """An instance type in a zone, and how it is bought (the node's label karpenter.sh/capacity-type)."""

    instance_type: str
    zone: str
    capacity_type: str

    @classmethod
    def from_labels(cls, labels: Mapping[str, str]) -> Offering:
        """Return the offering of a node. Without Karpenter's label, it is on-demand."""
        return cls(
            labels.get(names.LABEL_INSTANCE_TYPE, ""),
            labels.get(names.LABEL_ZONE, ""),
            labels.get(names.LABEL_CAPACITY_TYPE, ON_DEMAND),
        )


Price = Callable[[Offering], float | None]
"""Returns the price of an offering in USD per hour; None if it is not known."""


def unknown(_offering: Offering) -> None:
    """Return no price."""


def to_annotations(usage: Usage) -> dict[str, str]:
    """Return the annotations of a training job with this usage. The cost is omitted if no price is known."""
    found = {
        names.ANNOTATION_NODE_HOURS: f"{usage.node_seconds / 3600:.4f}",
        names.ANNOTATION_IDLE_NODE_HOURS: f"{usage.idle_node_seconds / 3600:.4f}",
    }
    if usage.usd:
        found[names.ANNOTATION_COST] = f"{usage.usd:.4f}"
    return found


@dataclass
class Meter:
    """Counts the usage of a run from one observation to the next."""

    price: Price
    usage: Usage = field(default_factory=Usage)
    _last: float | None = None
    _nodes: Counter[tuple[Offering, bool]] = field(default_factory=Counter)
    _offerings: dict[str, Offering] = field(default_factory=dict)
    # Node-seconds that wait for a price, and those of earlier launchers, which stay without one.
    _unpriced: dict[Offering, float] = field(default_factory=dict)
    _unpriced_before: float = 0.0

    def resume(self, usage: Usage) -> None:
        """Continue after another launcher. The time between the two launchers is not counted."""
        self.usage, self._last, self._nodes = usage, None, Counter()
        self._unpriced, self._unpriced_before = {}, usage.unpriced_node_seconds

    def lacks_nodes(self, request: Request, seen: Observation) -> bool:
        """Return whether a node's capacity type is unknown. The watches of a running job have no nodes."""
        if seen.fresh or seen.training is None:
            return False
        return not self._find_offerings(request, seen).keys() >= _used(request, seen).keys()

    def count(self, request: Request, seen: Observation, now: float) -> Usage:
        """Add the time since the last observation for its nodes, and return the usage.

        Args:
            now: The time of a monotonic clock, in seconds.
        """
        self._offerings = self._find_offerings(request, seen)
        used, default = _used(request, seen), _offering(request, ON_DEMAND)
        if seen.fresh:  # a node that is gone is not looked for again
            self._offerings = dict.fromkeys(used, default) | self._offerings
        return self.count_nodes(
            ((self._offerings.get(name, default), idle) for name, idle in used.items()), now
        )

    def count_nodes(self, nodes: Iterable[tuple[Offering, bool]], now: float) -> Usage:
        """Add the time since the last call for the nodes of that call, and return the usage.

        Args:
            nodes: The offering of each node, and whether it is idle.
            now: The time of a monotonic clock, in seconds.
        """
        if self._last is not None and now > self._last:
            self._add(now - self._last)
        self._last, self._nodes = now, Counter(nodes)
        return self.usage

    def _find_offerings(self, request: Request, seen: Observation) -> dict[str, Offering]:
        return self._offerings | {
            node.name: _offering(request, node.labels.get(names.LABEL_CAPACITY_TYPE, ON_DEMAND))
            for node in seen.nodes
        }

    def _add(self, seconds: float) -> None:
        added = idle_added = usd = 0.0
        for (offering, idle), nodes in self._nodes.items():
            self._unpriced[offering] = self._unpriced.get(offering, 0.0) + nodes * seconds
            added += nodes * seconds
            idle_added += nodes * seconds * idle
        for offering in tuple(self._unpriced):
            if (price := self.price(offering)) is not None:
                usd += self._unpriced.pop(offering) / 3600 * price
        self.usage = Usage(
            node_seconds=self.usage.node_seconds + added,
            idle_node_seconds=self.usage.idle_node_seconds + idle_added,
            unpriced_node_seconds=self._unpriced_before + sum(self._unpriced.values()),
            usd=self.usage.usd + usd,
        )


def _offering(request: Request, capacity_type: str) -> Offering:
    return Offering(request.pool.instance_type, request.pool.zone, capacity_type)


def _used(request: Request, seen: Observation) -> dict[str, bool]:
    """Return the run's nodes, and whether each is idle."""
    busy = {pod.node for pod in workers(request, seen) if pod.node and is_live(pod)}
    with_placeholder = {pod.node for pod in placeholders(request, seen) if pod.node and is_live(pod)}
    return {node: node not in busy for node in busy | with_placeholder}


def parse_prices(lines: Iterable[str]) -> dict[Offering, float]:
    """Return the prices in Karpenter's metrics, in USD per hour. A price that is 0 or not finite is not known."""
    text = "".join(f"{line.rstrip()}\n" for line in lines if line.startswith(PRICE_METRIC))
    return {
        Offering(
            *(sample.labels[label] for label in ("instance_type", "zone", "capacity_type"))
        ): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if 0 < sample.value < math.inf
    }


class KarpenterPrices:
    """Karpenter's prices, read in the background so that no decision waits for them."""

    def __init__(self, url: str = METRICS_URL) -> None:
        self._url = url
        self._prices: Mapping[Offering, float] = {}

    def start(self) -> None:
        """Read the prices now and once an hour, in a daemon thread."""
        threading.Thread(target=self._keep, name="prices", daemon=True).start()

    def __call__(self, offering: Offering) -> float | None:
        """Return the price of an offering in USD per hour; None if it is not known.

        A reservation is paid for by the hour at the on-demand price. Karpenter calls it almost free, to prefer it
        (pkg/providers/instancetype/offering/reserved_capacity_resolver.go).
        """
        paid = ON_DEMAND if offering.capacity_type == RESERVED else offering.capacity_type
        return self._prices.get(offering._replace(capacity_type=paid))

    def read(self) -> bool:
        """Read the prices once. Return whether there are any.

        The Service also leads to the replica of Karpenter that is not active, which has none
        (pkg/controllers/metrics/controller.go runs with the leader's Lease only). It does not replace known prices.

        Raises:
            OSError, ValueError, KeyError, http.client.HTTPException: The metrics can't be read.
        """
        with urllib.request.urlopen(self._url, timeout=_TIMEOUT_SECONDS) as answer:  # noqa: S310 (our own URL)
            prices = parse_prices(line.decode() for line in answer)
        self._prices = prices or self._prices
        return bool(prices)

    def _keep(self) -> None:
        while True:
            found = False
            try:
                found = self.read()
            except (OSError, ValueError, KeyError, http.client.HTTPException) as error:
                log.debug("no prices from %s: %r", self._url, error)
            time.sleep(_REFRESH_SECONDS if found else _RETRY_SECONDS)
