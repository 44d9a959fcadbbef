"""One of two controllers is active: the Lease against a small API server."""

from __future__ import annotations

from tests.unit.launcher.api_server import FakeApi
from trainyard.k8s import names
from trainyard.k8s.objects import Objects
from trainyard.operator import names as n
from trainyard.operator.__main__ import LeaseHolder

PATH = f"/apis/coordination.k8s.io/v1/namespaces/{n.CONTROLLER_NAMESPACE}/leases/{n.CONTROLLER}"


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def hold(api: FakeApi, holder: str, clock: Clock) -> LeaseHolder:
    return LeaseHolder(
        Objects(api.client(), n.FIELD_MANAGER), holder, clock=clock, now=lambda: 1_800_000_000 + clock()
    )


def test_lease_keeps_its_acquire_time(api: FakeApi) -> None:
    clock = Clock()
    first = hold(api, "a", clock)
    assert first.keep() > clock()
    acquired = api.objects[PATH]["spec"]["acquireTime"]
    clock.now += 5
    assert first.keep() > clock()
    spec = api.objects[PATH]["spec"]
    assert (spec["holderIdentity"], spec["acquireTime"], spec["leaseTransitions"]) == ("a", acquired, 0)
    assert spec["renewTime"] > acquired


def test_lease_is_taken_only_when_not_renewed(api: FakeApi) -> None:
    clock = Clock()
    first, second = hold(api, "a", clock), hold(api, "b", clock)
    assert first.keep() > clock()
    for _ in range(8):
        assert second.keep() <= clock()
        clock.now += names.LEASE_RENEW_SECONDS
        assert first.keep() > clock()
    assert second.other == "a"
    assert second.keep() <= clock()
    clock.now += names.LEASE_SECONDS
    assert second.keep() > clock()
    assert first.keep() <= clock()
    assert api.objects[PATH]["spec"]["leaseTransitions"] == 1


def test_released_lease_is_taken_at_once(api: FakeApi) -> None:
    clock = Clock()
    first, second = hold(api, "a", clock), hold(api, "b", clock)
    assert first.keep() > clock()
    assert second.keep() <= clock()
    hold(api, "c", clock).release()  # not its own
    assert second.keep() <= clock()
    first.release()
    assert second.keep() > clock()


def test_lease_is_renewed_after_retry_after(api: FakeApi) -> None:
    first = hold(api, "a", clock := Clock())
    api.faults = [(429, {"Retry-After": "30"}, b"{}")]
    assert first.keep() <= clock()
    assert first.pause == 30.0
    assert first.keep() > clock()
    assert first.pause == names.LEASE_RENEW_SECONDS


def test_lease_without_an_api_is_held_until_it_expires(api: FakeApi) -> None:
    clock = Clock()
    first = hold(api, "a", clock)
    assert first.keep() > clock()
    api.faults += [(403, {}, b"{}")] * 100
    clock.now += names.LEASE_SECONDS - 1
    assert first.keep() > clock()
    clock.now += 2
    assert first.keep() <= clock()
    api.faults.clear()
    assert first.keep() > clock()
