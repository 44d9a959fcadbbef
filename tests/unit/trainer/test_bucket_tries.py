"""How often a bucket is asked again: a silent S3 must not hold a save for half an hour."""

from __future__ import annotations

from typing import Any

import pytest
from botocore.exceptions import ClientError, ConnectTimeoutError, ReadTimeoutError

from trainer.stores import Bucket, StoreError
from trainer.stores import bucket as module

pytestmark = pytest.mark.unit


class S3:
    """Fails as planned, each call after so many seconds of the clock; counts the calls."""

    def __init__(self, seconds: float, failures: list[Exception]) -> None:
        self.now, self.calls, self.pauses = 0.0, 0, 0
        self._seconds, self._failures = seconds, failures

    def put_object(self, **_request: object) -> dict[str, Any]:
        self.calls += 1
        self.now += self._seconds
        if self._failures:
            raise self._failures.pop(0)
        return {}

    def pause(self, seconds: float) -> None:
        self.pauses += 1
        self.now += seconds


def bucket(s3: S3, monkeypatch: pytest.MonkeyPatch) -> Bucket:
    store = Bucket("b", "p")
    store.__dict__["_client"] = s3
    monkeypatch.setattr(module.time, "monotonic", lambda: s3.now)
    monkeypatch.setattr(module.time, "sleep", s3.pause)
    return store


def timed_out() -> Exception:
    return ReadTimeoutError(endpoint_url="https://b.s3")


def refusal(code: str) -> Exception:
    return ClientError({"Error": {"Code": code, "Message": "planned"}}, "PutObject")


@pytest.mark.parametrize(
    ("seconds", "calls"),
    [(1.0, 2), (119.0, 2), (120.0, 1), (300.0, 1)],  # 300: boto3's own five times a minute
)
def test_a_call_that_timed_out_is_begun_once_more_unless_it_took_long(
    monkeypatch: pytest.MonkeyPatch, seconds: float, calls: int
) -> None:
    s3 = S3(seconds, [timed_out() for _ in range(9)])
    with pytest.raises(StoreError, match=r"cannot save s3://b/p/a: .*[Tt]ime") as caught:
        bucket(s3, monkeypatch).put("a", b"x")
    assert (s3.calls, caught.value.why) == (calls, "failed")


def test_what_works_the_second_time_is_no_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    s3 = S3(1.0, [timed_out()])
    bucket(s3, monkeypatch).put("a", b"x")
    assert s3.calls == 2


def test_what_boto3_has_tried_again_already_is_not_begun_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    s3 = S3(1.0, [ConnectTimeoutError(endpoint_url="https://b.s3")])
    with pytest.raises(StoreError, match="cannot save"):
        bucket(s3, monkeypatch).put("a", b"x")
    assert s3.calls == 1


@pytest.mark.parametrize(("after", "won"), [([], True), (["PreconditionFailed"], False)])
def test_a_claim_that_met_another_one_under_way_is_tried_again(
    monkeypatch: pytest.MonkeyPatch, after: list[str], won: bool
) -> None:
    codes = ["ConditionalRequestConflict"] * 2 + after
    s3 = S3(0.1, [refusal(code) for code in codes])
    assert bucket(s3, monkeypatch).put_if_absent("owners/1", b"x") is won
    assert (s3.calls, s3.pauses) == (3, 2)


def test_a_conflict_that_stays_is_told_after_bounded_tries(monkeypatch: pytest.MonkeyPatch) -> None:
    s3 = S3(0.1, [refusal("ConditionalRequestConflict") for _ in range(99)])
    with pytest.raises(StoreError, match=r"cannot save s3://b/p/owners/1: .*ConditionalRequestConflict"):
        bucket(s3, monkeypatch).put_if_absent("owners/1", b"x")
    assert (s3.calls, s3.pauses) == (module.CONFLICTS, module.CONFLICTS - 1)


def test_an_endpoint_that_is_no_url_is_told_as_a_failure_of_the_store(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "nonsense")
    monkeypatch.delenv("AWS_ENDPOINT_URL_S3", raising=False)
    line = r"^cannot reach s3://b/p: Invalid endpoint: nonsense\. Set AWS_ENDPOINT_URL to a URL, or unset it$"
    with pytest.raises(StoreError, match=line):
        Bucket("b", "p").probe("model.pt")
